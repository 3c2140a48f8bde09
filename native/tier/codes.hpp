// Products of weight codes and input codes per format, summed exactly over a group in int32 or floats, and the words of
// a packed row for them.
#pragma once

#include "block_format.hpp"
#include "bytes.hpp"
#include "dots.hpp"

// SSE2 and NEON without dot products multiply floats in one step and words in several. Products of codes, and their sums
// over a group, are integers below 2^24, which floats hold exactly.
#if !defined(__AVX2__) && !defined(FERRUM_NEON_DOT)
#define FERRUM_FLOAT_SUMS
#endif

namespace ferrum::FERRUM_TIER {

// Replace the low four bits of each byte, whose upper bits are 0, by an entry of the table.
inline vi look_up(const int8_t (&table)[16], vi indices) {
#if defined(__AVX512VNNI__)
    return (vi)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(load<__m128i>(table)), (__m512i)indices);
#elif defined(__AVX2__)
    return (vi)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load<__m128i>(table)), (__m256i)indices);
#elif defined(FERRUM_NEON)
    return (vi)vqtbl1q_s8(load<int8x16_t>(table), (uint8x16_t)indices);
#else
    int8_t bytes[4 * kLanes];
    std::memcpy(bytes, &indices, sizeof bytes);
    for (int8_t& byte : bytes) byte = table[byte];
    return load<vi>(bytes);
#endif
}

struct ByteTable {
    int8_t entries[16];
};
constexpr ByteTable shifted_table(const int8_t* table, int by) {
    ByteTable out{};
    for (int i = 0; i < 16; ++i) out.entries[i] = static_cast<int8_t>((table != nullptr ? table[i] : 0) + by);
    return out;
}

// Stored codes of a word of inputs, the word's number within the group: from its row of low bits, and from the row of
// upper bits that all words of a group share.
template <int BITS>
inline vi word_codes(vi row, vi upper, int word) {
    if (BITS == 8) return row;
    const vi low = (word % 2 == 1 ? row >> 4 : row) & 0x0f0f0f0f;
    if (BITS == 4) return low;
    constexpr int kWidth = BITS - 4, kMask = BITS == 5 ? 0x10101010 : 0x30303030;
    const int shift = 4 - kWidth * word;
    return low | ((shift >= 0 ? upper << (shift & 31) : upper >> (-shift & 31)) & kMask);
}

#if defined(FERRUM_FLOAT_SUMS)

using Sums = vf;
constexpr int kWordInputs = 1;  // inputs per word of a packed row

// The words of kLanes inputs, from their codes by nearest_bits(), as those of the row from input `i` on.
inline void store_inputs(uint32_t* row, int i, vu whole) { store(row + i, (vf)whole - spread(kWhole)); }
// The words that sums start at.
inline vu start_words(vi starts) { return (vu)__builtin_convertvector(starts, vf); }
inline vf spread_word(uint32_t word) { return (vf)spread(word); }
inline vf floats_of(vf sums) { return sums; }
inline vf add_products(vf sum, vf weights, vf inputs) {
#if defined(FERRUM_NEON)
    return fused(weights, inputs, sum);
#else
    return weights * inputs + sum;
#endif
}

#else

using Sums = vi;
constexpr int kWordInputs = 4;

inline void store_inputs(uint32_t* row, int i, vu whole) { store(row + i / kWordInputs, low_bytes(whole)); }
inline vu start_words(vi starts) { return (vu)starts; }
inline vi spread_word(uint32_t word) { return (vi)spread(word); }
inline vf floats_of(vi sums) { return __builtin_convertvector(sums, vf); }

#endif

// The codes of a format:
//   kParts         input words per row of low or whole bits; part(row, upper, i) makes the codes for input word i
//   kOffset        part() makes number + kOffset; sums start at -kOffset times the sum of inputs
//   add            adds the products of such codes and a word of inputs to a sum
//   kPairRows      0, or add makes sums of two times 16 bits; after this many rows they join the group's sum
template <Format FORMAT>
struct Codes {
    static constexpr BlockFormat kFormat = block_format(FORMAT);
    static constexpr bool kBytes = kFormat.bits == 8 || kFormat.table != nullptr;  // or numbers of few bits, without a sign

#if defined(FERRUM_FLOAT_SUMS)
    static constexpr int kParts = kFormat.bits == 8 ? 4 : 8, kRows = kGroupRows, kPairRows = 0;
    static constexpr int32_t kOffset = kFormat.table != nullptr ? 0 : kFormat.offset;
    static constexpr ByteTable kTable = shifted_table(kFormat.table, 0);

    static vf part(vi row, vi upper, int input) {
        const vi word = word_codes<kFormat.bits>(row, upper, input / 4);
        const int byte = input % 4 * 8;
        if (kFormat.table == nullptr) return __builtin_convertvector((word >> byte) & 0xff, vf);
        return __builtin_convertvector((vi)((vu)look_up(kTable.entries, word) << (24 - byte)) >> 24, vf);
    }
    static vf add(vf sum, vf weights, vf inputs) { return add_products(sum, weights, inputs); }
#else
    static constexpr int kParts = kFormat.bits == 8 ? 1 : 2;
    static constexpr int32_t kOffset = kBytes ? kCodeOffset : kFormat.offset;
    static constexpr ByteTable kTable = shifted_table(kFormat.table, kCodeOffset);

    static vi part(vi row, vi upper, int word) {
        const vi codes = word_codes<kFormat.bits>(row, upper, word);
        if (kFormat.table != nullptr) return look_up(kTable.entries, codes);
        return kBytes ? signed_codes(codes) : codes;
    }
#if defined(FERRUM_PAIRS)
    // 16 bits hold the sum of 8, 4 or 2 products of pairs of codes up to 15, 31 or 63 by inputs up to 127.
    static constexpr int kPairRows = kBytes || kFormat.bits < 4 ? 0 : 4 >> most(0, kFormat.bits - 4), kRows = kBytes || kFormat.bits == 6 ? kGroupRows : 6;
    static vi add(vi sum, vi weights, vi inputs) {
        if (kBytes) return dot_codes(sum, weights, inputs);
        return add_pairs(sum, pair_products(weights, inputs));
    }
#else
    static constexpr int kRows = kGroupRows, kPairRows = 0;
    static vi add(vi sum, vi weights, vi inputs) {
        return kBytes ? dot_codes(sum, weights, inputs) : dot(sum, weights, inputs);
    }
#endif
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
