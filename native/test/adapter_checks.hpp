// Checks of operations of adapters, and of the operations that follow products in a program with adapters.
#pragma once

#include <memory>

#include "adapters.hpp"
#include "runtime.hpp"
#include "vectors.hpp"

namespace ferrum {

// The adapters of a case's site, slot by slot.
std::shared_ptr<AdapterSite> site_of(const Case& from);

void check_adapt(Runtime& runtime, const Case& from);
// Products that adapters change in the same operation.
void check_adapted_linear(Runtime& runtime, const Case& from);
void check_adapt_embedding(Runtime& runtime, const Case& from);
void check_activate(Runtime& runtime, const Case& from);
// Experts with the adapters of their site, and without.
void check_experts(Runtime& runtime, const Case& from);
// Norms of rows, with weights of adapters if the case has some; of heads of queries and of stored keys, with them.
void check_norm(Runtime& runtime, const Case& from);
void check_adapted_heads(Runtime& runtime, const Case& from);

}  // namespace ferrum
