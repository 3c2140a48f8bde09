// Checks of operations with states, and cases of them whose results every tier must agree on.
#pragma once

#include "outcomes.hpp"
#include "vectors.hpp"

namespace ferrum {

// Steps of a short convolution and of the delta rule, and the slots after them.
void check_states(Runtime& runtime, const Case& from);
void check_gated_norm(Runtime& runtime, const Case& from);

std::vector<Named> state_cases();

}  // namespace ferrum
