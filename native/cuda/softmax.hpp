// The online softmax of a row over one step of keys, by a warp: lane l has the scores of the keys l and l + 32.
// Source: Milakov and Gimelshein 2018.
#pragma once

#include "attention_products.hpp"

namespace ferrum::cuda {

// The number of two keys of a step.
struct OfKeys {
    float low, high;
};

FERRUM_DEVICE float larger(float a, float b) { return a > b ? a : b; }

FERRUM_DEVICE float largest(OfKeys scores) {
    float top = larger(scores.low, scores.high);
    for (int half = 16; half > 0; half /= 2) top = larger(shuffle(top, lane() ^ half), top);
    return top;
}

// The sum of the weights of a step: four vectors, added in ascending order and folded.
FERRUM_DEVICE float sum_of(OfKeys weights) {
    float sum = weights.low + shuffle(weights.low, lane() + 16);
    sum = sum + weights.high;
    return fold_vector(sum + shuffle(weights.high, lane() + 16));
}

FERRUM_DEVICE OfKeys weights_of(OfKeys scores, float raised, bool sees_low, bool sees_high) {
    return {sees_low ? exp2(scores.low - raised) : 0.0f, sees_high ? exp2(scores.high - raised) : 0.0f};
}

// Write the weights of a step as factors of a product with values, `stride` numbers or words apart; returns the factor of
// their sums.
template <class F>
FERRUM_DEVICE float write_weights(OfKeys weights, OfKeys, unsigned* to, int stride) {
    to[lane() * stride] = as_bits(F::factor(weights.low));
    to[(lane() + 32) * stride] = as_bits(F::factor(weights.high));
    return 1;
}

// The weights times the scales of their values, in 14 bits.
template <>
FERRUM_DEVICE float write_weights<terms::int8>(OfKeys weights, OfKeys scales, unsigned* to, int stride) {
    const float low = weights.low == 0 ? 0.0f : weights.low * scales.low;
    const float high = weights.high == 0 ? 0.0f : weights.high * scales.high;
    const unsigned first = as_bits(low) & ~kSign, second = as_bits(high) & ~kSign;
    const WholeScale scale(greatest(first > second ? first : second), 16383.0f);
    for (int half = 0; half < 2; ++half) {
        const int code = scale.code(half == 0 ? low : high), token = lane() + 32 * half;
        Byte* const at = reinterpret_cast<Byte*>(to + token / 4 * stride) + token % 4;
        at[0] = static_cast<Byte>(code >> 7);
        at[kStep / 4 * stride * 4] = static_cast<Byte>(code & 127);
    }
    return scale.scale;
}

// A row's greatest score, and the sum of its weights.
struct Softmax {
    float maximum, total;

    FERRUM_DEVICE Softmax(const AttentionArgs& a, int head)
        : maximum(a.sinks == nullptr ? kMasked : a.sinks[head] * kLog2E), total(a.sinks == nullptr ? 0.0f : 1.0f) {}
};

}  // namespace ferrum::cuda
