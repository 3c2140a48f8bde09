// Elementary functions and roundings, number by number, as docs/numerics.md specifies them: the bits of every processor.
#pragma once

#include "device.hpp"

namespace ferrum::cuda {

constexpr float kLog2E = 1.4426950408889634f, kMasked = -1e30f;
constexpr float kLeast = 1.17549435e-38f;  // 2^-126, the smallest normal number
constexpr unsigned kInfinity = 0x7f800000u, kSign = 0x80000000u;

FERRUM_DEVICE float magnitude(float x) { return as_float(as_bits(x) & ~kSign); }
FERRUM_DEVICE bool is_finite(float x) { return (as_bits(x) & kInfinity) != kInfinity; }
// Limit x to two bounds; NaN stays NaN.
FERRUM_DEVICE float within(float low, float high, float x) { return x < low ? low : x > high ? high : x; }

template <int N>
FERRUM_DEVICE float polynomial(float r, const float (&c)[N]) {
    float total = c[0];
    for (int i = 1; i < N; ++i) total = fused(total, r, c[i]);
    return total;
}

// 2^n for whole n from -127 to 127; -127 gives 0, as does NaN.
FERRUM_DEVICE float power_of_two(float n) { return as_float(static_cast<unsigned>((n == n ? static_cast<int>(n) : -127) + 127) << 23); }

FERRUM_DEVICE float exp2(float x) {
    constexpr float kTaylor[8] = {1.5252733804e-05f, 1.5403530393e-04f, 1.3333558146e-03f, 9.6181291076e-03f,
                                  5.5504108665e-02f, 2.4022650696e-01f, 6.9314718056e-01f, 1.0f};
    const float bounded = within(-127.0f, 127.4f, x), n = nearest(bounded);
    return polynomial(bounded - n, kTaylor) * power_of_two(n);
}

FERRUM_DEVICE float exp(float x) {
    constexpr float kTaylor[8] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
    const float bounded = within(-88.0f, 88.3f, x), n = nearest(bounded * kLog2E);
    const float r = fused(n, -1.4286068203094172e-06f, fused(n, -0.693145751953125f, bounded));
    return polynomial(r, kTaylor) * power_of_two(n);
}

// The natural logarithm of a positive normal number.
FERRUM_DEVICE float log(float x) {
    constexpr float kTail[9] = {0.06915425f,  -0.11789835f, 0.11872966f,  -0.12384343f, 0.14218658f,
                                -0.16669251f, 0.20002227f,  -0.24999987f, 0.3333331f};
    constexpr int kRootHalf = 0x3f3504f3;
    const int shifted = static_cast<int>(as_bits(x)) - kRootHalf;
    const float exponent = static_cast<float>(shifted >> 23);
    const float f = as_float(static_cast<unsigned>((shifted & 0x7fffff) + kRootHalf)) - 1.0f;
    const float square = f * f;
    float tail = kTail[0];
    for (int i = 1; i < 9; ++i) tail = tail * f + kTail[i];
    const float correction = ((f * square) * tail + exponent * 1.4286068203094172e-06f) - 0.5f * square;
    return (f + correction) + exponent * 0.693145751953125f;
}

FERRUM_DEVICE float bf16_to_float(unsigned bits) { return as_float(bits << 16); }
// The nearest bfloat16, ties to even; NaN stays NaN.
FERRUM_DEVICE unsigned to_bf16(float x) {
    const unsigned bits = as_bits(x);
    return (x == x ? bits + 0x7fffu + (bits >> 16 & 1u) : bits | 0x400000u) >> 16;
}
FERRUM_DEVICE float flushed(float x) { return magnitude(x) < kLeast ? as_float(as_bits(x) & kSign) : x; }
// The input of a product of bfloat16 numbers.
FERRUM_DEVICE float input_bf16(float x) { return bf16_to_float(to_bf16(flushed(x))); }

// Whether a b + c is below 2^-126 - 2^-151, where 24 bits with an unbounded exponent round to less than 2^-126.
FERRUM_DEVICE bool rounds_below_least(float a, float b, float c) {
    constexpr double kBound = 1.1754943508222875e-38 * (1 - 1.0 / (1 << 25));
    const double product = static_cast<double>(a) * b, total = product + c, back = total - product;
    const double lost = (product - (total - back)) + (c - back);
    const bool negative = total < 0;
    const double size = negative ? -total : total, rest = negative ? -lost : lost;
    return size < kBound || (size == kBound && rest < 0);
}

// a b + c rounded once, where subnormal sums are zeros of their sign; c and the factors are no subnormal numbers. See
// add_pairs in kernels/reference/fused_sums.py.
FERRUM_DEVICE float fused_flushed(float a, float b, float c) {
    const float total = fused(a, b, c);
    const bool doubtful = magnitude(total) <= kLeast && total != 0;
    return doubtful && rounds_below_least(a, b, c) ? as_float(as_bits(total) & kSign) : total;
}

// ---- Activations: Activation in kernels/op_attributes.py ----

enum class Curve : Int { none, scaled, capped, silu, gelu, gelu_tanh, relu2, sigmoid, clip };

// A function of each number, as `Activation` of native/src/kernel_table.hpp.
struct Activation {
    Curve curve;
    Real slope, top, span;
    Int limited;
    Real limit;
};

FERRUM_DEVICE float sigmoid(float x) { return divided(1.0f, 1.0f + exp(-x)); }

FERRUM_DEVICE float gelu(float x) {
    constexpr float kErf[5] = {1.061405429f, -1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f};
    const float z = magnitude(x) * 0.7071067811865476f, t = divided(1.0f, fused(z, 0.3275911f, 1.0f));
    const float tail = 0.5f * (polynomial(t, kErf) * t * exp(-(z * z)));
    return x * (x > 0 ? 1.0f - tail : tail);
}

FERRUM_DEVICE float activated(const Activation& a, float x) {
    switch (a.curve) {
        case Curve::none: return x;
        case Curve::scaled: return x * a.slope.value;
        case Curve::capped: return a.top.value - divided(a.span.value, 1.0f + exp(x * a.slope.value));
        case Curve::silu: return divided(x, 1.0f + exp(-(x * a.slope.value)));
        case Curve::gelu: return gelu(x);
        case Curve::gelu_tanh:
            return divided(x, 1.0f + exp(-(x * fused(x * x, 0.07135481627260025f, 1.5957691216057308f))));
        case Curve::relu2: return x * (x > 0 ? x : x != x ? x : 0.0f);
        case Curve::sigmoid: return sigmoid(x);
        case Curve::clip: return within(a.span.value, a.top.value, x);
    }
    return x;
}

// The activated gate times the other factor.
FERRUM_DEVICE float gated(const Activation& a, float x, float other) {
    if (a.limited == 0) return activated(a, x) * other;
    const float limit = a.limit.value;
    return activated(a, x > limit ? limit : x) * (within(-limit, limit, other) + 1.0f);
}

// ---- Sums of a row in 64 accumulators: squares_sum and lanes_sum in kernels/reference/reference_math.py ----

// Add `width` numbers (a power of two) of shared memory, halves onto each other, by the first threads of the block. All
// threads call it; afterwards all see the sum in lanes[0].
FERRUM_DEVICE void fold(float* lanes, int width) {
    for (int half = width / 2; half > 0; half /= 2) {
        sync_block();
        if (thread() < half) lanes[thread()] = lanes[thread()] + lanes[thread() + half];
    }
    sync_block();
}

}  // namespace ferrum::cuda
