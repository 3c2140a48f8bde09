// Tiles of the integer formats: int8 and int4 weights in groups of inputs; inputs rounded to int8 per row and block of
// groups.
//
// Sums within a group are exact (codes.hpp). The groups of a block are added in ascending order as sum * weight scale,
// and blocks as block sum * input scale, fused in every tier, so that all tiers and the numpy reference give the same
// bits (quant/activations.py). These multiplications use the same pipes as those of bytes: one per group and one per
// block. Inputs with a scale per group would need two per group.
//
// src/grouping.hpp describes a group of a panel. Weights are the unsigned operand, inputs the signed one: the sum
// starts at minus the offset times the sum of the inputs, or zero point x sum of inputs is subtracted.
#pragma once

#include "codes.hpp"
#include "grouping.hpp"
#include "inputs.hpp"
#include "tiles.hpp"

namespace ferrum::FERRUM_TIER {

// P is Int8 or Int4, in groups of GROUP inputs, with or without zero points.
template <class P, int GROUP, bool ZERO>
struct GroupTiles {
    using X = uint32_t;
    static constexpr bool kNeedsMode = false;
    static constexpr Grouping kGrouping = groups_of(GROUP, P::kNibbles, ZERO);
    static constexpr int kRows = P::kRows;
    static constexpr int vectors(int rows) { return group_vectors(rows); }
    static constexpr int64_t kWords = GROUP / kWordInputs, kGroupWords = kWords + 1;  // per row: inputs, start of the sum
    static constexpr int64_t kTogether = kBlockInputs / GROUP;                        // groups per block
    static_assert(kBlockInputs % GROUP == 0);
    static constexpr int64_t kRowBytes = kPanel * 4;
    static constexpr int kRowsOfWords = static_cast<int>(kGrouping.code_bytes / kRowBytes);

    static constexpr int64_t kStretchBytes = kGrouping.bytes, kStretchGoes = kRowsOfWords / 2;

    static int64_t groups(int64_t depth) { return ceil_divide(depth, GROUP); }
    static int64_t row_words(int64_t depth) { return groups(depth) * kGroupWords + ceil_divide(depth, kBlockInputs); }
    static int64_t panel_bytes(int64_t depth) { return groups(depth) * kGrouping.bytes; }

    // Pack the rows of a tile to [word][row]: per block its scale, then the words of its groups.
    static void pack_rows(const float* rows, int64_t depth, int64_t height, X* out) {
        alignas(64) RoundedInputs rounded[kRows];
        for (int64_t k = 0; k < depth; k += kRounded) {
            const int64_t count = least(kRounded, depth - k);
            for (int64_t r = 0; r < height; ++r) {
                const float* x = rows + r * depth + k;
                // Short pieces, far apart: the hardware does not prefetch them.
                prefetch_floats(r + 1 < height || k + count == depth ? x + depth : rows + k + kRounded, count);
                float padded[kRounded];
                if (count < kRounded) {
                    std::memset(padded, 0, sizeof padded);
                    std::memcpy(padded, x, static_cast<size_t>(count) * sizeof *x);
                    x = padded;
                }
                round_inputs<GROUP>(x, ZERO ? 1 : P::kOffset, rounded[r]);
            }
            place(rounded, count, height, out);
            out += row_words(count) * height;
        }
    }

    // Index of a block's scale, and of a group's first word, among the words of a row.
    static int64_t scale_at(int64_t block) { return block * (kTogether * kGroupWords + 1); }
    static int64_t group_at(int64_t group) { return group * kGroupWords + group / kTogether + 1; }

    // Transposing whole vectors pays from a few rows on, and earlier with more lanes.
    static void place(const RoundedInputs* rounded, int64_t depth, int64_t height, X* out) {
        constexpr int64_t kFew = kLanes == 16 ? 1 : 32 / kLanes;
        if constexpr (kRows > kFew)
            if (height > kFew) return place_turned<(kRows <= kLanes / 2 ? 2 : 1)>(rounded, depth, height, out);
        for (int64_t r = 0; r < height; ++r) place_row(rounded[r], depth, height, out + r);
    }

    static void place_row(const RoundedInputs& rounded, int64_t depth, int64_t height, X* out) {
        const X* words = rounded.words;
        for (int64_t g = 0; g < groups(depth); ++g) {
            X* to = out + group_at(g) * height;
            for (int64_t i = 0; i < kWords; ++i, to += height) *to = *words++;
            *to = rounded.starts[g];
        }
        for (int64_t block = 0; block < ceil_divide(depth, kBlockInputs); ++block)
            out[scale_at(block) * height] = rounded.scales[block];
    }

    template <int TIMES>
    static void place_turned(const RoundedInputs* rounded, int64_t depth, int64_t height, X* out) {
        constexpr int64_t kStride = sizeof(RoundedInputs) / sizeof(X);
        const int64_t count = groups(depth);
        turn_words<TIMES>(rounded->words, kStride, count * kWords, height,
                          [=](int64_t i) { return out + (group_at(i / kWords) + i % kWords) * height; });
        turn_words<TIMES>(rounded->starts, kStride, count, height,
                          [=](int64_t i) { return out + (group_at(i) + kWords) * height; });
        turn_words<TIMES>(rounded->scales, kStride, ceil_divide(depth, kBlockInputs), height,
                          [=](int64_t i) { return out + scale_at(i) * height; });
    }

    // Sums of a group are in registers; the parts of a block too, if both fit; and the totals, used once per block, if
    // all three fit. With AVX-512 this decides the height of a tile. Twelve rows take fewer instructions per product,
    // but their parts would be stored after each group, and processors can store less per cycle than they multiply (in
    // tiles of six, 192 rows of int8 in groups of 32 take a fifth less time on Zen 4, a third less on Emerald Rapids).
    //
    // A block of one group equals its product: adding it to 0, as the rule says, differs only in the sign of a zero,
    // which the total loses.
    template <int MR, int NV>
    static void multiply(vf (&total)[MR][NV], const std::byte* panel, int vector, const X* x, int64_t depth, Fetch fetch) {
        constexpr bool kPartsApart = MR * NV > kPartSums;
        constexpr int kTotals = kTogether == 1 ? kPartSums : kPartSums * 2 / 3;  // in registers: three for two, with parts
        int64_t left = groups(depth);
        const auto add = [&](auto fold) __attribute__((always_inline)) {
            fetch.enter(left--);
            add_group<MR, NV>(panel, vector, x, fetch, fold);
            panel += kGrouping.bytes;
            x += kGroupWords * MR;
        };
        for (int r = 0; r < MR; ++r)
            for (int v = 0; v < NV; ++v) total[r][v] = vf{};
        while (left > 0) {
            const X* scales = x;
            x += MR;
            vf part[MR][NV];
            if constexpr (kTogether == 1) {
                add([&](int r, int v, vf sum, vf scale) { part[r][v] = sum * scale; });
            } else {
                for (int r = 0; r < MR; ++r)
                    for (int v = 0; v < NV; ++v) {
                        part[r][v] = vf{};  // one by one: all at once, the compiler would use a slow string instruction
                        if (kPartsApart) stay_in_memory(part[r][v]);
                    }
                const int64_t after = left - least(left, kTogether);
                while (left > after) {
                    if (kPartsApart) stay_in_memory(part);
                    add([&](int r, int v, vf sum, vf scale) { part[r][v] = fused(sum, scale, part[r][v]); });
                }
            }
            for (int r = 0; r < MR; ++r) {
                float scale;
                std::memcpy(&scale, scales + r, sizeof scale);
                for (int v = 0; v < NV; ++v) total[r][v] = fused(part[r][v], spread(scale), total[r][v]);
            }
            if (MR * NV > kTotals) stay_in_memory(total);
        }
    }

    // Add the sum of a group, of each row and vector, with the scale of its weights. Inlined, so that the sums stay in
    // registers.
    template <int MR, int NV, class Fold>
    [[gnu::always_inline]] static inline void add_group(const std::byte* group, int vector, const X* x, Fetch& fetch, Fold fold) {
        const std::byte* words = group + vector * kLanes * 4;
        const X* starts = x + kWords * MR;
        Sums sum[MR][NV];
        for (int r = 0; r < MR; ++r)
            for (int v = 0; v < NV; ++v) sum[r][v] = ZERO ? Sums{} : spread_word(starts[r]);
        if constexpr (P::kPairRows == 0) {
            add_rows(sum, words, 0, kRowsOfWords, x, fetch);
        } else {
#pragma GCC unroll 4
            for (int row = 0; row < kRowsOfWords; row += P::kPairRows) {
                Sums pairs[MR][NV] = {};
                add_rows(pairs, words, row, row + P::kPairRows, x, fetch);
                for (int r = 0; r < MR; ++r)
                    for (int v = 0; v < NV; ++v) sum[r][v] += sum_pairs(pairs[r][v]);
            }
        }
        const std::byte* scales = group + kGrouping.code_bytes + vector * kLanes * 2;
        for (int v = 0; v < NV; ++v) {
            if (ZERO) {
                const vi zeros = __builtin_convertvector(load<vh>(scales + kPanel * 2 + v * kLanes * 2), vi);
                for (int r = 0; r < MR; ++r) sum[r][v] = add_zero_points(sum[r][v], zeros, starts[r]);
            }
            const vf scale = widen_halves(scales + v * kLanes * 2);
            for (int r = 0; r < MR; ++r) fold(r, v, floats_of(sum[r][v]), scale);
        }
    }

    // Word rows of the panel, each of four inputs of int8 or eight of int4.
    template <int MR, int NV>
    [[gnu::always_inline]] static inline void add_rows(Sums (&sum)[MR][NV], const std::byte* words, int begin, int end,
                                                       const X* x, Fetch& fetch) {
#pragma GCC unroll 8
        for (int row = begin; row < end; ++row) {
            if (row % 2 == 0) fetch.go();
#pragma GCC unroll 8
            for (int part = 0; part < P::kParts; ++part) {
                Sums weights[NV];
                for (int v = 0; v < NV; ++v)
                    weights[v] = P::part(load<vi>(words + row * kRowBytes + v * kLanes * 4), part);
#pragma GCC unroll 6
                for (int r = 0; r < MR; ++r) {
                    const X* input = &x[(row * P::kParts + part) * MR + r];
                    const Sums all = spread_word(*input);
                    for (int v = 0; v < NV; ++v)
                        sum[r][v] = spread_each(r, NV) ? add_each<P>(sum[r][v], weights[v], input)
                                                       : P::add(sum[r][v], weights[v], all);
                }
            }
        }
    }
};

}  // namespace ferrum::FERRUM_TIER
