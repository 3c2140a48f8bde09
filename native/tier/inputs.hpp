// Inputs of integer products: rounded to bytes in groups, each with a scale (quant/activations.py).
#pragma once

#include "bytes.hpp"
#include "transpose.hpp"

namespace ferrum::FERRUM_TIER {

// Inputs of a row that are rounded in one go: the scales of their groups, of 32 at least, are one vector.
constexpr int64_t kRounded = 32 * kLanes;

// kRounded inputs of a row, in groups: bytes round(x * (127 / max|x|)), and of each group minus `offset` times the sum of its
// bytes and the scale max|x| / 127 (quant/activations.py).
struct RoundedInputs {
    uint32_t codes[kRounded / 4], starts[kLanes], scales[kLanes];
};

// One group alone would wait for its maximum to cross the lanes, and for two divisions.
template <int GROUP>
inline void round_groups(const float* x, uint32_t offset, RoundedInputs& out) {
    constexpr int kParts = GROUP / kLanes, kGroups = kRounded / GROUP;
    vi folded[kLanes] = {};
#pragma GCC unroll 16
    for (int g = 0; g < kGroups; ++g)
        for (int part = 0; part < kParts; ++part)
            folded[g] = larger(folded[g], magnitude(load<vf>(x + g * GROUP + part * kLanes)));
    const WholeScale<vf, vi> scale(fold_each(folded, [](vi a, vi b) { return larger(a, b); }), 127.0f);
    store(out.scales, scale.scale);
    float inverses[kLanes];
    store(inverses, scale.inverse);
    stay_in_memory(inverses);
    auto* codes = reinterpret_cast<std::byte*>(out.codes);
#pragma GCC unroll 16
    for (int g = 0; g < kGroups; ++g) {
        vu sum{};
        for (int i = g * GROUP; i < (g + 1) * GROUP; i += kLanes) {
            const vu whole = nearest_bits(load<vf>(x + i) * spread(inverses[g]));
            sum += whole;
            store(codes + i, low_bytes(whole));
        }
        folded[g] = (vi)sum;
    }
    const vu sums = (vu)fold_each(folded, [](vi a, vi b) { return (vi)((vu)a + (vu)b); });
    const vu starts = (spread(GROUP * kWholeBits) - sums) * offset;
    store(out.starts, scale.inverse == vf{} ? vu{} : starts);  // codes of a group that is not finite may be anything
}

}  // namespace ferrum::FERRUM_TIER
