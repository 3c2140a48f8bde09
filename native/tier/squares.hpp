// Sums of the squares of a row, in the order of docs/numerics.md.
#pragma once

#include "math.hpp"

namespace ferrum::FERRUM_TIER {

// The sum of the squares of `columns` numbers; `load` returns the lanes from an index on, given how many are left. The
// running sums of four virtual vectors hide their latencies.
template <class Load>
inline float squares_sum(int64_t columns, Load load) {
    constexpr int kSums = 4 * kVirtual;
    vf sums[kSums] = {};
    const auto add = [&](int part, int64_t i, int64_t left) {
        const vf x = load(i, left);
        sums[part] = fused(x, x, sums[part]);
    };
    int64_t i = 0;
    for (; i + kSums * kLanes <= columns; i += kSums * kLanes)
#pragma GCC unroll 8
        for (int part = 0; part < kSums; ++part) add(part, i + part * kLanes, kLanes);
#pragma GCC unroll 8
    for (int part = 0; part < kSums; ++part, i += kLanes)
        if (i < columns) add(part, i, columns - i);
    vf total[kVirtual];
    for (int v = 0; v < kVirtual; ++v)
        total[v] = (sums[v] + sums[kVirtual + v]) + (sums[2 * kVirtual + v] + sums[3 * kVirtual + v]);
    return sum_lanes(total);
}

}  // namespace ferrum::FERRUM_TIER
