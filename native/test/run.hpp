// Run of one operation.
#pragma once

#include <memory>
#include <utility>

#include "operations.hpp"

namespace ferrum {

inline void run(Runtime& runtime, std::shared_ptr<Operation> operation) { run_all(runtime, {std::move(operation)}); }

}  // namespace ferrum
