// Inputs of integer products: rounded to bytes, 32 of a row with one scale (quant/block_weight.py).
#pragma once

#include "codes.hpp"
#include "transpose.hpp"

namespace ferrum::FERRUM_TIER {

constexpr int kScaled = 32;  // inputs of a row that share a scale

// Inputs of a row that are rounded at once: their scales fill a vector.
constexpr int kRounded = kScaled * kLanes;

// kRounded inputs of a row: their codes round(x * (127 / max |x|)), the scales max |x| / 127, and for each group of the
// weight another word: where its sum starts, or for formats with minima the float sum of codes x scale.
struct RoundedInputs {
    uint32_t words[kRounded / kWordInputs], others[2 * kLanes], scales[kLanes];
};

// Several groups at once hide the latency of sums across lanes, of the maximum and of two divisions.
template <int GROUP>
inline void round_inputs(const float* x, int32_t offset, bool minima, RoundedInputs& out) {
    vi folded[kLanes] = {};
#pragma GCC unroll 16
    for (int g = 0; g < kLanes; ++g)
        for (int i = 0; i < kScaled; i += kLanes) folded[g] = larger(folded[g], magnitude(load<vf>(x + g * kScaled + i)));
    const WholeScale<vf, vi> scale(fold_each(folded, [](vi a, vi b) { return larger(a, b); }), 127.0f);
    store(out.scales, scale.scale);
    float inverses[kLanes];
    store(inverses, scale.inverse);
    stay_in_memory(inverses);
    constexpr int kParts = kScaled / GROUP;
    vi sums[kParts];
    for (int part = 0; part < kParts; ++part) {
#pragma GCC unroll 16
        for (int g = 0; g < kLanes; ++g) {
            vu sum{};
            const int first = g * kScaled + part * GROUP;
            for (int i = first; i < first + GROUP; i += kLanes) {
                const vu whole = nearest_bits(load<vf>(x + i) * spread(inverses[g]));
                sum += whole;
                store_inputs(out.words, i, whole);
            }
            // Inputs that are not finite have undefined codes: their sum is that of zeros.
            folded[g] = (vi)(inverses[g] != 0.0f ? sum : spread(GROUP / kLanes * kWholeBits));
        }
        const vu all = (vu)fold_each(folded, [](vi a, vi b) { return (vi)((vu)a + (vu)b); });
        sums[part] = (vi)(all - spread(GROUP * kWholeBits));
    }
    for (int part = 0; part < kParts; ++part) {
        const vu word = minima ? (vu)(__builtin_convertvector(sums[part], vf) * scale.scale) : start_words(sums[part] * -offset);
        if (kParts == 1) {
            store(out.others, word);
        } else {
            for (int g = 0; g < kLanes; ++g) out.others[g * kParts + part] = word[g];
        }
    }
}

}  // namespace ferrum::FERRUM_TIER
