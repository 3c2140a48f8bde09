// Rows of rope tables: cosines and sines whose bits no library decides.
#pragma once

#include <cstdint>

namespace ferrum {

// Cosine and sine of a finite angle, as docs/numerics.md specifies them.
struct Turn {
    double cosine, sine;

    explicit Turn(double angle);
};

// Rows of the positions `begin` to `end` - 1, [position, pair] each: cosine and sine of position x frequency, times
// `scaling`.
void rope_rows(const float* frequencies, int64_t pairs, double scaling, int64_t begin, int64_t end, float* cosines,
               float* sines);

}  // namespace ferrum
