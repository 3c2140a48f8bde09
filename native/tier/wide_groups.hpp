// Tiles of integer formats in groups of any size, with or without zero points; groups.hpp has the common case, 32 inputs
// without, on its own.
//
// The arithmetic is that of quant/activations.py, as there: exact sums within a group, groups added in ascending order with
// three roundings each. A panel's group is laid out as src/grouping.hpp says. With zero points, the sum of code x input has
// zero point x sum of inputs taken from it, all in int32.
#pragma once

#include "groups.hpp"
#include "grouping.hpp"

namespace ferrum::FERRUM_TIER {

// P is Int8 or Int4.
template <class P, int GROUP, bool ZERO>
struct WideGroupTiles {
    using X = uint32_t;
    static constexpr Grouping kGrouping = groups_of(GROUP, P::kNibbles, ZERO);
    static constexpr int kRows = kLanes == 16 ? 6 : 2, kVectors = 2;
    static constexpr int64_t kWords = GROUP / 4, kRowWords = kWords + 2;  // the inputs, the start of the sum, the scale
    static constexpr int64_t kRowBytes = kPanel * 4;
    static constexpr int kRowsOfWords = static_cast<int>(kGrouping.code_bytes / kRowBytes);

    static constexpr int64_t kStretchBytes = kGrouping.bytes;

    static int64_t groups(int64_t depth) { return ceil_divide(depth, GROUP); }
    static int64_t row_words(int64_t depth) { return groups(depth) * kRowWords; }
    static int64_t panel_bytes(int64_t depth) { return groups(depth) * kGrouping.bytes; }

    static void pack_row(const float* row, int64_t depth, int64_t height, X* out) {
        for (int64_t k = 0; k < depth; k += GROUP) {
            X words[kRowWords];
            round_group<GROUP>(row + k, depth - k, ZERO ? 1 : P::kOffset, words);
            X* to = out + k / GROUP * kRowWords * height;
            for (int64_t i = 0; i < kRowWords; ++i) to[i * height] = words[i];
        }
    }

    template <int MR>
    static void multiply(vf (&total)[MR][kVectors], const std::byte* panel, int vector, const X* x, int64_t depth, Fetch fetch) {
        for (int r = 0; r < MR; ++r)
            for (int v = 0; v < kVectors; ++v) total[r][v] = vf{};
        for (int64_t left = groups(depth); left > 0; --left) {
            fetch.go(left);
            add_group<MR>(total, panel, vector, x);
            panel += kGrouping.bytes;
            x += kRowWords * MR;
        }
    }

    template <int MR>
    static inline void add_group(vf (&total)[MR][kVectors], const std::byte* group, int vector, const X* x) {
        const std::byte* words = group + vector * kLanes * 4;
        const X* starts = x + kWords * MR;
        vi sum[MR][kVectors];
        for (int r = 0; r < MR; ++r)
            for (int v = 0; v < kVectors; ++v) sum[r][v] = ZERO ? vi{} : spread(static_cast<int32_t>(starts[r]));
#pragma GCC unroll 4
        for (int row = 0; row < kRowsOfWords; ++row) {
            vi weights[kVectors];
            for (int v = 0; v < kVectors; ++v) weights[v] = load<vi>(words + row * kRowBytes + v * kLanes * 4);
            GroupTiles<P>::template add_words<MR>(sum, weights, x, row);
        }
        const std::byte* scales = group + kGrouping.code_bytes + vector * kLanes * 2;
        for (int v = 0; v < kVectors; ++v) {
            if (ZERO) take_zero_points<MR>(sum, v, scales + kPanel * 2 + v * kLanes * 2, starts);
            const vf scale = widen_halves(scales + v * kLanes * 2);
            for (int r = 0; r < MR; ++r) {
                float row_scale;
                std::memcpy(&row_scale, starts + MR + r, sizeof row_scale);
                total[r][v] += __builtin_convertvector(sum[r][v], vf) * (scale * spread(row_scale));
            }
        }
    }

    // Both factors fit 16 bits, of a word whose upper half is 0 on one side: an instruction made for pairs multiplies them.
    template <int MR>
    static inline void take_zero_points(vi (&sum)[MR][kVectors], int v, const std::byte* zero_points, const X* starts) {
        const vi zero = __builtin_convertvector(load<vh>(zero_points), vi);
        for (int r = 0; r < MR; ++r) {
            const vi minus = spread(static_cast<int32_t>(starts[r]));
#if defined(__AVX512BF16__)
            sum[r][v] = (vi)_mm512_dpwssd_epi32((__m512i)sum[r][v], (__m512i)zero, (__m512i)minus);
#elif defined(__AVX2__)
            sum[r][v] += (vi)_mm256_madd_epi16((__m256i)zero, (__m256i)minus);
#else
            sum[r][v] += zero * minus;
#endif
        }
    }
};

}  // namespace ferrum::FERRUM_TIER
