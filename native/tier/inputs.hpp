// Inputs of integer products: rounded to bytes in blocks, each with a scale (quant/activations.py).
#pragma once

#include "codes.hpp"
#include "transpose.hpp"

namespace ferrum::FERRUM_TIER {

constexpr int64_t kBlockInputs = 128;  // inputs of a row that share a scale: whole groups of the weight, however large those are

// Inputs of a row that are rounded in one go: whole blocks, and what is kept of each group, of 32 at least, is one vector.
constexpr int64_t kRounded = 32 * kLanes;
constexpr int64_t kRoundedBlocks = kRounded / kBlockInputs;
static_assert(kRounded % kBlockInputs == 0 && kBlockInputs % 32 == 0);

// kRounded inputs of a row: the words of codes round(x * (127 / max|x|)), the scale max|x| / 127 of each block, and of each of the
// weight's groups the word of minus `offset` times the sum of its codes (quant/activations.py).
struct RoundedInputs {
    uint32_t words[kRounded / kWordInputs], starts[kLanes], scales[kLanes];
};

// One group alone would wait for its sum to cross the lanes, and one block for its maximum and for two divisions.
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
        // Codes of a block that is not finite may be anything: their sum is that of zeros.
        folded[g] = (vi)(inverse != 0.0f ? sum : spread(GROUP / kLanes * kWholeBits));
    }
    const vu sums = (vu)fold_each(folded, [](vi a, vi b) { return (vi)((vu)a + (vu)b); });
    store(out.starts, start_words((spread(GROUP * kWholeBits) - sums) * offset));
}

}  // namespace ferrum::FERRUM_TIER
