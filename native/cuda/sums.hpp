// Sums and choices over the lanes of a warp and over a block, in the orders of kernels/reference/reference_math.py.
#pragma once

#include "numbers.hpp"

namespace ferrum::cuda {

// Fold a vector whose 16 lanes are those of the first half of a warp. All lanes get the sum.
FERRUM_DEVICE float fold_vector(float x) {
    for (int half = 8; half > 0; half /= 2) x = x + shuffle(x, lane() + half);
    return shuffle(x, 0);
}

// Fold 64 accumulators, of which a lane has those of its number and of 32 more: squares_sum.
FERRUM_DEVICE float fold_64(float low, float high) {
    const float first = low + shuffle(low, lane() + 16), second = high + shuffle(high, lane() + 16);
    return fold_vector(first + second);
}

// The sum of the squares of `count` numbers in shared memory, continued: a lane has two of the 64 accumulators.
struct SquaresSum {
    float low = 0, high = 0;

    FERRUM_DEVICE void add(const float* x, int count) {
        for (int i = lane(); i < count; i += 64) {
            low = fused(x[i], x[i], low);
            const float other = i + 32 < count ? x[i + 32] : 0.0f;
            high = fused(other, other, high);
        }
    }
    FERRUM_DEVICE float folded() const { return fold_64(low, high); }
};

// The greatest of the lanes' numbers, in all lanes.
FERRUM_DEVICE unsigned greatest(unsigned x) {
    for (int half = 16; half > 0; half /= 2) {
        const unsigned other = static_cast<unsigned>(shuffle(static_cast<int>(x), lane() ^ half));
        x = other > x ? other : x;
    }
    return x;
}

// Whether a thread of the block has a true value; `flags` are kWarps numbers of shared memory.
FERRUM_DEVICE bool any_of_block(bool value, unsigned* flags) {
    const unsigned found = ballot(value);
    if (lane() == 0) flags[warp()] = found;
    sync_block();
    unsigned all = 0;
    for (int i = 0; i < kWarps; ++i) all |= flags[i];
    return all != 0;
}

// Rounding to integers with one scale: round_whole in kernels/reference/reference_math.py. The largest magnitude is given
// by its bits, in whose order NaN is the largest.
struct WholeScale {
    float inverse, scale;  // 0 and NaN if a number is not finite

    FERRUM_DEVICE WholeScale(unsigned largest, float levels) {
        const bool finite = largest < kInfinity, used = finite && largest >= 0x1f800000u;  // 2^-64
        const float number = as_float(used ? largest : 0x3f800000u);
        inverse = used ? divided(levels, number) : 0.0f;
        scale = used ? divided(number, levels) : as_float(finite ? 0u : 0x7fc00000u);
    }
    // The code of a number; 0 for all numbers that are not used.
    FERRUM_DEVICE int code(float x) const { return inverse == 0 ? 0 : static_cast<int>(nearest(x * inverse)); }
};

}  // namespace ferrum::cuda
