// Products of weight codes and input codes per format, summed exactly over a group in int32 or floats, and the words of
// a packed row for them.
#pragma once

#include "bytes.hpp"
#include "dots.hpp"

// SSE2 and NEON without dot products multiply floats in one step and words in several. Products of codes, and their sums over a group, are
// integers below 2^24, which floats hold exactly.
#if !defined(__AVX2__) && !defined(FERRUM_NEON_DOT)
#define FERRUM_FLOAT_SUMS
#endif

namespace ferrum::FERRUM_TIER {

#if defined(FERRUM_FLOAT_SUMS)

using Sums = vf;
constexpr int kWordInputs = 1;  // inputs per word of a packed row

// The words of kLanes inputs, from their codes by nearest_bits(), as those of the row from input `i` on.
inline void store_inputs(uint32_t* row, int i, vu whole) { store(row + i, (vf)whole - spread(kWhole)); }
// The words that sums start at.
inline vu start_words(vu starts) { return (vu)__builtin_convertvector((vi)starts, vf); }
inline vf spread_word(uint32_t word) { return (vf)spread(word); }
inline vf floats_of(vf sums) { return sums; }
inline vf add_products(vf sum, vf weights, vf inputs) {
#if defined(FERRUM_NEON)
    return fused(weights, inputs, sum);
#else
    return weights * inputs + sum;
#endif
}
// Zero points times the word that their row's sums start at.
inline vf add_zero_points(vf sum, vi zeros, uint32_t start) {
    return add_products(sum, __builtin_convertvector(zeros, vf), spread_word(start));
}

#else

using Sums = vi;
constexpr int kWordInputs = 4;

inline void store_inputs(uint32_t* row, int i, vu whole) { store(row + i / kWordInputs, low_bytes(whole)); }
inline vu start_words(vu starts) { return starts; }
inline vi spread_word(uint32_t word) { return (vi)spread(word); }
inline vf floats_of(vi sums) { return __builtin_convertvector(sums, vf); }
// Both factors fit 16 bits of a word whose upper half is 0 on one side, so an instruction for pairs multiplies them.
inline vi add_zero_points(vi sum, vi zeros, uint32_t start) {
#if defined(__AVX512VNNI__)
    return (vi)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)zeros, (__m512i)spread(start));
#elif defined(FERRUM_NEON)
    return sum + zeros * (vi)spread(start);
#else
    return sum + (vi)_mm256_madd_epi16((__m256i)zeros, (__m256i)spread(start));
#endif
}

#endif

// A format:
//   kRows          rows of a tile
//   kParts         input words per word of weight codes; part(word, i) makes the codes for word i
//   kOffset        part() makes code + kOffset except with zero points; sums start at -kOffset times the sum of inputs
//   add            adds the products of such codes and a word of inputs to a sum
//   kPairRows      0, or add makes sums of two times 16 bits; after this many word rows they join the group's sum
struct Int4 {
    static constexpr bool kNibbles = true;
    static constexpr int32_t kOffset = 8;

#if defined(FERRUM_FLOAT_SUMS)
    static constexpr int kParts = 8, kRows = kGroupRows, kPairRows = 0;
    static vf part(vi word, int part) {
        return __builtin_convertvector((word >> (part % 4 * 8 + part / 4 * 4)) & 0x0f, vf);
    }
    static vf add(vf sum, vf weights, vf inputs) { return add_products(sum, weights, inputs); }
#else
    static constexpr int kParts = 2;
    static vi part(vi word, int part) { return (word >> (4 * part)) & 0x0f0f0f0f; }
#if defined(FERRUM_PAIRS)
    static constexpr int kRows = 6, kPairRows = 4;  // 16 bits hold 8 x 2 products of up to 15 x 127
    static vi add(vi pairs, vi weights, vi inputs) { return add_pairs(pairs, pair_products(weights, inputs)); }
#else
    static constexpr int kRows = kGroupRows, kPairRows = 0;
    static vi add(vi sum, vi weights, vi inputs) { return dot(sum, weights, inputs); }
#endif
#endif
};

struct Int8 {
    static constexpr bool kNibbles = false;
    static constexpr int kRows = kGroupRows, kPairRows = 0;

#if defined(FERRUM_FLOAT_SUMS)
    static constexpr int32_t kOffset = 128;
    static constexpr int kParts = 4;
    static vf part(vi word, int part) { return __builtin_convertvector((word >> (part * 8)) & 0xff, vf); }
    static vf add(vf sum, vf weights, vf inputs) { return add_products(sum, weights, inputs); }
#else
    static constexpr int32_t kOffset = kCodeOffset;
    static constexpr int kParts = 1;
    static vi part(vi word, int) { return signed_codes(word); }
    static vi add(vi sum, vi weights, vi inputs) { return dot_codes(sum, weights, inputs); }
#endif
};

// P::add(sum, weights, spread_word(*input)), like fused_each.
template <class P>
inline Sums add_each(Sums sum, Sums weights, const uint32_t* input) {
#if defined(FERRUM_SPREADS)
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(weights), "m"(*input));
    return sum;
#else
    return P::add(sum, weights, spread_word(*input));
#endif
}

}  // namespace ferrum::FERRUM_TIER
