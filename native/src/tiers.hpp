// The instruction tiers of this machine, best first.
#pragma once

#include <string>
#include <vector>

#include "kernel_table.hpp"

namespace ferrum {

std::vector<const KernelTable*> available_tiers();
// Return the tier of that name, or the best with "auto". Throws std::invalid_argument with the available ones.
const KernelTable& tier(const std::string& name);

}  // namespace ferrum
