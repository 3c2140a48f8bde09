// Exact sums of byte products in int32, with the instructions of each tier.
#pragma once

#include "simd.hpp"

// AVX2 alone multiplies bytes to sums of two in 16 bits, and adds those with further instructions.
#if defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
#define FERRUM_PAIRS
#endif

namespace ferrum::FERRUM_TIER {

#if defined(FERRUM_PAIRS)

// a + b, computed at this point. Compilers may reorder a sum of integers and would collect its terms until registers
// run out.
inline vi add_here(vi a, vi b) {
    a += b;
    asm("" : "+x"(a));
    return a;
}

inline vi add_pairs(vi a, vi b) {
    a = (vi)_mm256_add_epi16((__m256i)a, (__m256i)b);
    asm("" : "+x"(a));
    return a;
}
inline vi sum_pairs(vi pairs) { return (vi)_mm256_madd_epi16((__m256i)pairs, _mm256_set1_epi16(1)); }

// Two sums of products of 4 unsigned by 4 signed bytes per word, which fit 16 bits: of the first two, and of the
// others.
inline vi pair_products(vi a, vi b) { return (vi)_mm256_maddubs_epi16((__m256i)a, (__m256i)b); }

#endif

// total + the products of 4 unsigned by 4 signed bytes per word; sums of two products fit 16 bits. NEON takes both as
// signed: callers' unsigned bytes are below 128, except codes, which signed_codes() converts.
inline vi dot(vi total, vi a, vi b) {
#if defined(__AVX512VNNI__)
    return (vi)_mm512_dpbusd_epi32((__m512i)total, (__m512i)a, (__m512i)b);
#elif defined(__AVXVNNI__)
    return (vi)_mm256_dpbusd_avx_epi32((__m256i)total, (__m256i)a, (__m256i)b);
#elif defined(FERRUM_PAIRS)
    return add_here(total, sum_pairs(pair_products(a, b)));
#elif defined(__ARM_FEATURE_DOTPROD)
    return (vi)vdotq_s32((int32x4_t)total, (int8x16_t)a, (int8x16_t)b);
#elif defined(FERRUM_NEON)
    const auto x = (int8x16_t)a, y = (int8x16_t)b;
    const int16x8_t low = vmull_s8(vget_low_s8(x), vget_low_s8(y)), high = vmull_high_s8(x, y);
    return (vi)vpadalq_s16((int32x4_t)total, vpaddq_s16(low, high));
#else
    for (int byte = 0; byte < 4; ++byte) {
        const vi x = (a >> (8 * byte)) & 0xff;
        const vi y = (vi)((vu)b << (24 - 8 * byte)) >> 24;
        total += x * y;
    }
    return total;
#endif
}

// Codes stored as code + 128 are multiplied by signed bytes directly if the sum starts at -kCodeOffset times these
// bytes, or after signed_codes().
#if defined(FERRUM_PAIRS)
// Sums of two products of unsigned bytes exceed 16 bits, those of signed bytes do not: multiply
// |code| by the other with the code's sign.
constexpr int32_t kCodeOffset = 0;

inline vi signed_codes(vi stored) { return stored ^ static_cast<int32_t>(0x80808080); }
inline vi dot_codes(vi total, vi codes, vi b) {
    return dot(total, (vi)_mm256_abs_epi8((__m256i)codes), (vi)_mm256_sign_epi8((__m256i)b, (__m256i)codes));
}
#elif defined(FERRUM_NEON)
constexpr int32_t kCodeOffset = 0;

inline vi signed_codes(vi stored) { return stored ^ static_cast<int32_t>(0x80808080); }
inline vi dot_codes(vi total, vi codes, vi b) { return dot(total, codes, b); }
#else
constexpr int32_t kCodeOffset = 128;

inline vi signed_codes(vi stored) { return stored; }
inline vi dot_codes(vi total, vi codes, vi b) { return dot(total, codes, b); }
#endif

}  // namespace ferrum::FERRUM_TIER
