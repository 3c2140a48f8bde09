// Elementary functions on vectors, as docs/numerics.md specifies them.
#pragma once

#include "simd.hpp"

namespace ferrum::FERRUM_TIER {

// The nearest integer of x, for |x| < 2^22, ties to even: adding 1.5 x 2^23 leaves no bits for a fraction.
constexpr float kWhole = 12582912.0f;
constexpr uint32_t kWholeBits = 0x4b400000u;

inline vf nearest(vf x) { return (x + spread(kWhole)) - spread(kWhole); }

// The nearest integer plus kWholeBits: it is in the low bits, because those of kWholeBits are 0.
inline vu nearest_bits(vf x) { return (vu)(x + spread(kWhole)); }

// Horner's rule: sum of c[i] r^(N-1-i).
template <int N>
inline vf polynomial(vf r, const float (&c)[N]) {
    vf total = spread(c[0]);
#pragma GCC unroll 7
    for (int i = 1; i < N; ++i) total = fused(total, r, spread(c[i]));
    return total;
}

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kExp2[8] = {1.5252733804e-05f, 1.5403530393e-04f, 1.3333558146e-03f, 9.6181291076e-03f,
                            5.5504108665e-02f, 2.4022650696e-01f, 6.9314718056e-01f, 1.0f};
constexpr float kExp[8] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};

// Limit x to two bounds; NaN stays NaN.
inline vf within(float low, float high, vf x) { return larger(spread(low), smaller(spread(high), x)); }

// 2^n for the n in [-127, 127] from nearest_bits(); -127 gives 0. Only the exponent's bits of the sum remain.
inline vf power_of_two(vu bits) { return (vf)((bits << 23) + (127u << 23)); }

// 2^x; 0 below 2^-127, 2^127.4 above. NaN stays NaN.
inline vf exp2(vf x) {
    const vf bounded = within(-127.0f, 127.4f, x);
    const vu bits = nearest_bits(bounded);
    const vf n = (vf)bits - spread(kWhole);
    return polynomial(bounded - n, kExp2) * power_of_two(bits);
}

// e^x with the same limits; ln 2 in two parts keeps the low bits of the argument (Cody and Waite).
inline vf exp(vf x) {
    const vf bounded = within(-88.0f, 88.3f, x);
    const vu bits = nearest_bits(bounded * spread(kLog2E));
    const vf n = (vf)bits - spread(kWhole);
    const vf r = fused(n, spread(-1.4286068203094172e-06f), fused(n, spread(-0.693145751953125f), bounded));
    return polynomial(r, kExp) * power_of_two(bits);
}

// The nearest bfloat16 in the upper half of each word, ties to even; the lower half is undefined. NaN stays NaN.
inline vu upper_bf16(vf x) {
    const vu bits = (vu)x;
    return x == x ? bits + 0x7fffu + ((bits >> 16) & 1u) : bits | 0x400000u;
}

inline vh round_bf16(vf x) { return __builtin_convertvector(upper_bf16(x) >> 16, vh); }

// kLanes words of 16 bits in words of 32. GCC converts the two halves of a vector of 16 lanes and joins them.
template <class T>
inline vu widen_words(const T* from) {
#if defined(__AVX512VNNI__)
    return (vu)_mm512_cvtepu16_epi32(load<__m256i>(from));
#else
    return __builtin_convertvector(load<vh>(from), vu);
#endif
}

// Convert kLanes halves to floats, exactly.
inline vf widen_halves(const std::byte* from) {
#if defined(__AVX512VNNI__)
    return _mm512_cvtph_ps(load<__m256i>(from));
#elif defined(__AVX2__)
    return _mm256_cvtph_ps(load<__m128i>(from));
#elif defined(FERRUM_NEON)
    return (vf)vcvt_f32_f16(vreinterpret_f16_u16(load<uint16x4_t>(from)));
#else
    // Move the exponent: 2^112 is the ratio of the biases. Then restore infinities and NaN.
    const vu half = widen_words(from);
    const vf scaled = (vf)((half & 0x7fffu) << 13) * spread(5.192296858534828e33f);
    const vu special = ((half & 0x7fffu) << 13) | 0x7f800000u;
    const vu magnitude = (half & 0x7c00u) == 0x7c00u ? special : (vu)scaled;
    return (vf)(magnitude | ((half & 0x8000u) << 16));
#endif
}

constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
constexpr int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace ferrum::FERRUM_TIER
