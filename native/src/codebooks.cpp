#include "codebooks.hpp"

namespace ferrum {

Codebooks codebooks;

}  // namespace ferrum
