// Which instruction tiers this machine can run, best first, and what else about its processor decides how kernels go.
#pragma once

#include <string>
#include <vector>

#include "kernel_table.hpp"

namespace ferrum {

std::vector<const KernelTable*> available_tiers();
// The tier of that name, or with "auto" the best. Throws std::invalid_argument naming those that there are.
const KernelTable& tier(const std::string& name);

// Whether integer products are fastest in tall tiles here, whose blocks are summed in memory (see tier/groups.hpp). AMD stores
// less in a cycle than it multiplies: on Zen 4 int8 products of 192 rows take a fifth less time in low ones.
bool prefers_tall_tiles();

}  // namespace ferrum
