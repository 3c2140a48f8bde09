// Slabs: a piece of a panel whose codes are unpacked to bytes and whose scales are floats, once for many tiles of rows.
//
// Unpacking a code of few bits takes longer than multiplying it by a row. A slab has the inputs of the largest block, so it
// stays in the first-level cache while all tiles of a block of rows are multiplied by it. Sums and their order are those of
// groups.hpp.
#pragma once

#include "codes.hpp"
#include "tiles.hpp"

namespace ferrum::FERRUM_TIER {

constexpr int kSlabInputs = 256;

struct Slab {
    static constexpr int kMostGroups = kSlabInputs / 16;

    vi words[kSlabInputs / 4][kPanelVectors];  // four codes each, as multiply() takes them
    vf scales[kMostGroups][kPanelVectors], minima[kMostGroups][kPanelVectors];
};

// Totals of a row of a tile.
struct PanelTotals {
    vf outputs[kPanelVectors];
};

// What is multiplied by slabs, for all formats with the same groups of inputs, minima or none, and way of sums: PAIR_WORDS is
// the number of words whose products a sum of pairs in 16 bits holds, or 0 if products are added to 32 bits at once.
template <int GROUP, bool MINIMA, int PAIR_WORDS>
struct SlabTiles {
    using X = uint32_t;
    static constexpr bool kPairs = PAIR_WORDS != 0;
    static constexpr int kWords = GROUP / 4;                                          // of a group in a slab
    static constexpr int64_t kRowWords = GROUP / kWordInputs, kStep = kRowWords + 2;  // of a group in a row
    static constexpr int kGoes = kWords / 2;                                          // of the prefetch in a group

    // Add the products of the slab's first groups to the totals of MR rows.
    template <int MR, int NV>
    [[gnu::noinline]] static void multiply(PanelTotals* totals, const Slab& slab, int vector, const X* x, int groups,
                                           Fetch& onward) {
        Fetch fetch = onward;  // in registers
        constexpr bool kApart = MR * NV > kTotalSums;
        vf all[MR][NV];
#pragma GCC unroll 12
        for (int r = 0; r < MR; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) {
                all[r][v] = totals[r].outputs[vector + v];
                if (kApart) stay_in_memory(all[r][v]);
            }
        for (int group = 0; group < groups; ++group) {
            if (kApart) stay_in_memory(all);
            add_group<MR, NV>(all, slab, vector, group, x, fetch);
            x += kStep * MR;
        }
#pragma GCC unroll 12
        for (int r = 0; r < MR; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) totals[r].outputs[vector + v] = all[r][v];
        onward = fetch;
    }

    // The same for all vectors of a panel.
    template <int MR>
    static void add_rows(PanelTotals* totals, const Slab& slab, const X* x, int groups, Fetch& fetch) {
        constexpr int kVectors = group_vectors(MR);
        for (int vector = 0; vector < kPanelVectors; vector += kVectors)
            multiply<MR, kVectors>(totals, slab, vector, x, groups, fetch);
    }

    template <int MR, int NV>
    [[gnu::always_inline]] static inline void add_group(vf (&total)[MR][NV], const Slab& slab, int vector, int group, const X* x,
                                                        Fetch& fetch) {
        const X *others = x + kRowWords * MR, *factors = others + MR;
        const vi(*words)[kPanelVectors] = slab.words + group * kWords;
        Sums sum[MR][NV];
#pragma GCC unroll 12
        for (int r = 0; r < MR; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) sum[r][v] = MINIMA ? Sums{} : spread_word(others[r]);
        if constexpr (!kPairs) {
            add_words(sum, words, vector, 0, kWords, x, fetch);
        } else {
#pragma GCC unroll 4
            for (int word = 0; word < kWords; word += PAIR_WORDS) {
                Sums pairs[MR][NV] = {};
                add_words(pairs, words, vector, word, word + PAIR_WORDS, x, fetch);
#pragma GCC unroll 12
                for (int r = 0; r < MR; ++r)
#pragma GCC unroll 4
                    for (int v = 0; v < NV; ++v) sum[r][v] = joined(sum[r][v], pairs[r][v]);
            }
        }
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) {
            const vf scale = slab.scales[group][vector + v];
#pragma GCC unroll 12
            for (int r = 0; r < MR; ++r) {
                total[r][v] = fused(floats_of(sum[r][v]), scale * (vf)spread(factors[r]), total[r][v]);
                if constexpr (MINIMA) total[r][v] = fused(slab.minima[group][vector + v], (vf)spread(others[r]), total[r][v]);
            }
        }
    }

    static Sums joined(Sums sum, [[maybe_unused]] Sums pairs) {
#if defined(FERRUM_PAIRS)
        return sum + sum_pairs(pairs);
#else
        return sum;
#endif
    }

    template <int MR, int NV>
    [[gnu::always_inline]] static inline void add_words(Sums (&sum)[MR][NV], const vi (*words)[kPanelVectors], int vector,
                                                        int begin, int end, const X* x, Fetch& fetch) {
#pragma GCC unroll 8
        for (int word = begin; word < end; ++word) {
            if (word % 2 == 0) fetch.go();
#pragma GCC unroll 12
            for (int r = 0; r < MR; ++r) {
                const X* input = x + word * 4 / kWordInputs * MR + r;
                for (int v = 0; v < NV; ++v)
                    sum[r][v] = add_word<MR>(sum[r][v], words[word][vector + v], input, spread_each(r, NV));
            }
        }
    }

    struct Words {
        static vi add(vi sum, vi codes, vi inputs) {
#if defined(FERRUM_PAIRS)
            if (kPairs) return add_pairs(sum, pair_products(codes, inputs));
#endif
            return dot_codes(sum, codes, inputs);
        }
    };

    // Add the products of four inputs. `each`: see spread_each().
    template <int MR>
    [[gnu::always_inline]] static inline Sums add_word(Sums sum, vi codes, const X* input, [[maybe_unused]] bool each) {
#if defined(FERRUM_FLOAT_SUMS)
        for (int i = 0; i < 4; ++i)
            sum = add_products(sum, __builtin_convertvector((codes >> (8 * i)) & 0xff, vf), spread_word(input[i * MR]));
        return sum;
#else
        return each ? add_each<Words>(sum, codes, input) : Words::add(sum, codes, spread_word(*input));
#endif
    }
};

template <Format FORMAT>
constexpr int pair_words() {
#if defined(FERRUM_PAIRS)
    constexpr BlockFormat kFormat = block_format(FORMAT);
    if (Codes<FORMAT>::kBytes) return 0;
    return kFormat.bits > 4 ? 8 >> (kFormat.bits - 4) : static_cast<int>(kFormat.group / 4);
#else
    return 0;
#endif
}

template <Format FORMAT>
using SlabTilesOf = SlabTiles<block_format(FORMAT).group, block_format(FORMAT).minima, pair_words<FORMAT>()>;

}  // namespace ferrum::FERRUM_TIER
