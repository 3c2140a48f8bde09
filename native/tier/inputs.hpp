// Inputs of integer products: rounded to bytes in blocks with one scale each (quant/activations.py).
#pragma once

#include "codes.hpp"
#include "transpose.hpp"

namespace ferrum::FERRUM_TIER {

constexpr int64_t kBlockInputs = 128;  // inputs of a row that share a scale: a multiple of every group size

// Inputs of a row that are rounded at once: whole blocks, with one vector of results for groups of at least 32.
constexpr int64_t kRounded = 32 * kLanes;
constexpr int64_t kRoundedBlocks = kRounded / kBlockInputs;
static_assert(kRounded % kBlockInputs == 0 && kBlockInputs % 32 == 0);

// Round kRounded inputs of a row: the words of codes round(x * (127 / max
// x
// )), the scale max
// x
// / 127 of each block, and for each group of the weight the word of minus `offset` times the sum of its codes
// (quant/activations.py).
struct RoundedInputs {
    uint32_t words[kRounded / kWordInputs], starts[kLanes], scales[kLanes];
};

// Several groups at once hide the latency of sums across lanes, of the maximum and of two divisions.
template <int GROUP>
inline void round_inputs(const float* x, uint32_t offset, RoundedInputs& out) {
    constexpr int kGroups = kRounded / GROUP;
    vi folded[kLanes] = {};
#pragma GCC unroll 4
    for (int block = 0; block < kRoundedBlocks; ++block)
        for (int i = 0; i < kBlockInputs; i += kLanes)
            folded[block] = larger(folded[block], magnitude(load<vf>(x + block * kBlockInputs + i)));
    const WholeScale<vf, vi> scale(fold_each(folded, [](vi a, vi b) { return larger(a, b); }), 127.0f);
    store(out.scales, scale.scale);
    float inverses[kLanes];
    store(inverses, scale.inverse);
    stay_in_memory(inverses);
#pragma GCC unroll 16
    for (int g = 0; g < kGroups; ++g) {
        const float inverse = inverses[g * GROUP / kBlockInputs];
        vu sum{};
        for (int i = g * GROUP; i < (g + 1) * GROUP; i += kLanes) {
            const vu whole = nearest_bits(load<vf>(x + i) * spread(inverse));
            sum += whole;
            store_inputs(out.words, i, whole);
        }
        // A block that is not finite has undefined codes: its sum is that of zeros.
        folded[g] = (vi)(inverse != 0.0f ? sum : spread(GROUP / kLanes * kWholeBits));
    }
    const vu sums = (vu)fold_each(folded, [](vi a, vi b) { return (vi)((vu)a + (vu)b); });
    store(out.starts, start_words((spread(GROUP * kWholeBits) - sums) * offset));
}

}  // namespace ferrum::FERRUM_TIER
