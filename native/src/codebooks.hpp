// The points of codebooks (kernels/codebooks.py), as the kernels look them up. Python sets them when it loads the library.
#pragma once

#include <cstdint>

namespace ferrum {

// A point of eight numbers is the indices of its levels: byte i has that of number i in its low half, and that of number
// 4 + i in its high half. A point of four numbers is its bytes.
struct Codebooks {
    uint32_t iq2_xxs[256], iq2_xs[512], iq2_s[1024], iq3_xxs[256], iq3_s[512], iq1_s[2048];
};

extern Codebooks codebooks;

}  // namespace ferrum
