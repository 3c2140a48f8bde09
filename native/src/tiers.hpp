// Which instruction tiers this machine can run, best first.
#pragma once

#include <string>
#include <vector>

#include "kernel_table.hpp"

namespace ferrum {

std::vector<const KernelTable*> available_tiers();
// The tier of that name, or with "auto" the best. Throws std::invalid_argument naming those that there are.
const KernelTable& tier(const std::string& name);

}  // namespace ferrum
