// Tiles of the formats of quantised weights; inputs rounded to int8 per row and 32 inputs.
//
// Sums within a group are exact (codes.hpp). The groups are added in ascending order as sum * (weight scale * input scale),
// then minimum * (sum of codes * input scale), fused in every tier, so that all tiers and the numpy reference give the same
// bits (quant/block_weight.py).
//
// Weights are the unsigned operand, inputs the signed one: the sum starts at minus the offset times the sum of the inputs.
#pragma once

#include "inputs.hpp"
#include "slabs.hpp"

namespace ferrum::FERRUM_TIER {

// kLanes bytes as floats. GCC 12 would convert them one by one.
template <class Byte>
inline vf widen_bytes(const std::byte* from) {
    [[maybe_unused]] constexpr bool kSigned = static_cast<Byte>(-1) < 0;
#if defined(__AVX512VNNI__)
    const __m128i bytes = load<__m128i>(from);
    return _mm512_cvtepi32_ps(kSigned ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes));
#elif defined(__AVX2__)
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    return _mm256_cvtepi32_ps(kSigned ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
#else
    const auto* bytes = reinterpret_cast<const Byte*>(from);
    return __builtin_convertvector(vi{bytes[0], bytes[1], bytes[2], bytes[3]}, vf);
#endif
}

// The scales and minima of NV vectors of a block.
template <Format FORMAT, int NV>
class BlockScales {
public:
    static constexpr BlockFormat kFormat = block_format(FORMAT);

    BlockScales(const std::byte* block, int vector) : subs_(block + kFormat.sub_at() + vector * kLanes) {
        for (int v = 0; v < NV; ++v) {
            const std::byte* at = block + (vector + v) * kLanes * 2;
            d_[v] = kFormat.wide_range ? (vf)(widen_words(at) << 16) : widen_halves(at);
            if (kFormat.minima) m_[v] = widen_halves(at + kPanel * 2);
        }
    }

    vf scale(int group, int v) const {
        const std::byte* at = subs_ + group * kPanel + v * kLanes;
        if constexpr (kFormat.scales == Scales::unsigned_subs) return d_[v] * widen_bytes<uint8_t>(at);
        if constexpr (kFormat.scales == Scales::signed_subs) return d_[v] * widen_bytes<int8_t>(at);
        return d_[v];
    }
    vf minimum(int group, int v) const {
        if constexpr (kFormat.scales == Scales::whole) return m_[v];
        return -(m_[v] * widen_bytes<uint8_t>(subs_ + kFormat.sub_m_at() - kFormat.sub_at() + group * kPanel + v * kLanes));
    }

private:
    const std::byte* subs_;
    vf d_[NV], m_[NV];
};

template <Format FORMAT>
struct GroupTiles {
    using X = uint32_t;
    using P = Codes<FORMAT>;
    static constexpr bool kNeedsMode = false;
    static constexpr BlockFormat kFormat = block_format(FORMAT);
    static constexpr int kRows = P::kRows, kGroups = static_cast<int>(kFormat.groups()), kGroup = static_cast<int>(kFormat.group);
    static constexpr int vectors(int rows) { return group_vectors(rows); }
    static constexpr int64_t kWords = kGroup / kWordInputs, kGroupWords = kWords + 2;  // per row: inputs, another word, scale
    static constexpr int64_t kRowBytes = kPanel * 4;
    using Slabs = SlabTilesOf<FORMAT>;
#if defined(FERRUM_FLOAT_SUMS)
    static constexpr bool kHasSlabs = false;
#else
    static constexpr bool kHasSlabs = kFormat.bits != 8;  // bytes are multiplied as they are
#endif
    static constexpr int kDirectRows = 2 * kRows;  // up to this, rows are multiplied by panels: unpacking twice is as fast

    static constexpr int64_t kStretchBytes = kFormat.bytes(), kStretchGoes = kGroups * ceil_divide(kFormat.code_rows(), 2);

    static int64_t blocks(int64_t depth) { return ceil_divide(depth, kFormat.inputs); }
    static int64_t row_words(int64_t depth) { return blocks(depth) * kGroups * kGroupWords; }
    static int64_t panel_bytes(int64_t depth) { return blocks(depth) * kFormat.bytes(); }

    // Pack the rows of a tile to [word][row]: per group the words of its inputs, another word, and the inputs' scale.
    static void pack_rows(const float* rows, int64_t depth, int64_t height, X* out) {
        alignas(64) RoundedInputs rounded[kRows];
        const int64_t padded_depth = blocks(depth) * kFormat.inputs;
        for (int64_t k = 0; k < padded_depth; k += kRounded) {
            const int64_t count = most(0, least(kRounded, depth - k)), groups = least(kRounded, padded_depth - k) / kGroup;
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
                round_inputs<kGroup>(x, P::kOffset, kFormat.minima, rounded[r]);
            }
            place(rounded, groups, height, out);
            out += groups * kGroupWords * height;
        }
    }

    // Transposing whole vectors pays from a few rows on, and earlier with more lanes.
    static void place(const RoundedInputs* rounded, int64_t groups, int64_t height, X* out) {
        constexpr int64_t kFew = kLanes == 16 ? 1 : 32 / kLanes;
        if constexpr (kRows > kFew)
            if (height > kFew) return place_turned<(kRows <= kLanes / 2 ? 2 : 1)>(rounded, groups, height, out);
        for (int64_t r = 0; r < height; ++r) place_row(rounded[r], groups, height, out + r);
    }

    static void place_row(const RoundedInputs& rounded, int64_t groups, int64_t height, X* out) {
        const X* words = rounded.words;
        for (int64_t g = 0; g < groups; ++g) {
            for (int64_t i = 0; i < kWords; ++i, out += height) *out = *words++;
            out[0] = rounded.others[g];
            out[height] = rounded.scales[g * kGroup / kScaled];
            out += 2 * height;
        }
    }

    template <int TIMES>
    static void place_turned(const RoundedInputs* rounded, int64_t groups, int64_t height, X* out) {
        constexpr int64_t kStride = sizeof(RoundedInputs) / sizeof(X), kShare = kScaled / kGroup;
        const auto word_of = [=](int64_t group, int64_t word) { return out + (group * kGroupWords + word) * height; };
        turn_words<TIMES>(rounded->words, kStride, groups * kWords, height,
                          [=](int64_t i) { return word_of(i / kWords, i % kWords); });
        turn_words<TIMES>(rounded->others, kStride, groups, height, [=](int64_t i) { return word_of(i, kWords); });
        for (int64_t share = 0; share < kShare; ++share)
            turn_words<TIMES>(rounded->scales, kStride, ceil_divide(groups, kShare), height,
                              [=](int64_t i) { return word_of(i * kShare + share, kWords + 1); });
    }

#if !defined(FERRUM_FLOAT_SUMS)
    // Unpack blocks of a panel.
    static void unpack(const std::byte* panel, int blocks, Slab& to) {
        int word = 0, group = 0;
        for (int block = 0; block < blocks; ++block, panel += kFormat.bytes()) {
            const BlockScales<FORMAT, kPanelVectors> scales(panel, 0);
            const std::byte* codes = panel + kFormat.header_bytes();
            for (int g = 0; g < kGroups; ++g, ++group, word += static_cast<int>(kWords), codes += kFormat.code_bytes())
                for (int v = 0; v < kPanelVectors; ++v) {
                    to.scales[group][v] = scales.scale(g, v);
                    if constexpr (kFormat.minima) to.minima[group][v] = scales.minimum(g, v);
                    unpack_group(codes + v * kLanes * 4, to.words + word, v);
                }
        }
    }

    static void unpack_group(const std::byte* codes, vi (*to)[kPanelVectors], int v) {
        constexpr int kCodeRows = kFormat.code_rows();
        vi upper{};
        if constexpr (kFormat.bits == 5 || kFormat.bits == 6) upper = load<vi>(codes + kCodeRows * kRowBytes);
#pragma GCC unroll 8
        for (int row = 0; row < kCodeRows; ++row)
            for (int part = 0; part < P::kParts; ++part) {
                const int at = row * P::kParts + part;
                to[at][v] = P::part(load<vi>(codes + row * kRowBytes), upper, at);
            }
    }
#endif

    // Sums of a group are in registers, and the totals too if both fit. Not inlined: products with `up` multiply twice, and
    // the compiler takes half the time.
    template <int MR, int NV>
    [[gnu::noinline]] static void multiply(vf (&total)[MR][NV], const std::byte* panel, int vector, const X* x, int64_t depth,
                                           const Fetch& given) {
        Fetch fetch = given;  // in registers
        constexpr bool kApart = MR * NV > kTotalSums;
        vf all[MR][NV];  // a local array stays in registers; the caller's would be written after every group
#pragma GCC unroll 12
        for (int r = 0; r < MR; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) {
                all[r][v] = vf{};  // one by one: all at once, the compiler would use a slow string instruction
                if (kApart) stay_in_memory(all[r][v]);
            }
        for (int64_t left = blocks(depth); left > 0; --left) {
            fetch.enter(left);
            const BlockScales<FORMAT, NV> scales(panel, vector);
            const std::byte* codes = panel + kFormat.header_bytes() + vector * kLanes * 4;
            for (int group = 0; group < kGroups; ++group) {
                if (kApart) stay_in_memory(all);
                add_group<MR, NV>(all, codes, x, fetch, scales, group);
                codes += kFormat.code_bytes();
                x += kGroupWords * MR;
            }
            panel += kFormat.bytes();
        }
#pragma GCC unroll 12
        for (int r = 0; r < MR; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) total[r][v] = all[r][v];
    }

    // Add a group to the totals of each row and vector. Inlined, so that the sums stay in registers.
    template <int MR, int NV>
    [[gnu::always_inline]] static inline void add_group(vf (&total)[MR][NV], const std::byte* codes, const X* x, Fetch& fetch,
                                                        const BlockScales<FORMAT, NV>& scales, int group) {
        constexpr int kCodeRows = kFormat.code_rows();
        const X *others = x + kWords * MR, *factors = others + MR;
        vi upper[NV] = {};
        if constexpr (kFormat.bits == 5 || kFormat.bits == 6)
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) upper[v] = load<vi>(codes + kCodeRows * kRowBytes + v * kLanes * 4);
        Sums sum[MR][NV];
#pragma GCC unroll 12
        for (int r = 0; r < MR; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) sum[r][v] = kFormat.minima || P::kOffset == 0 ? Sums{} : spread_word(others[r]);
        if constexpr (P::kPairRows == 0) {
            add_rows(sum, codes, upper, 0, kCodeRows, x, fetch);
        } else {
#pragma GCC unroll 4
            for (int row = 0; row < kCodeRows; row += P::kPairRows) {
                Sums pairs[MR][NV] = {};
                add_rows(pairs, codes, upper, row, row + P::kPairRows, x, fetch);
#pragma GCC unroll 12
                for (int r = 0; r < MR; ++r)
#pragma GCC unroll 4
                    for (int v = 0; v < NV; ++v) sum[r][v] += sum_pairs(pairs[r][v]);
            }
        }
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) {
            const vf scale = scales.scale(group, v);
            vf minimum{};
            if constexpr (kFormat.minima) minimum = scales.minimum(group, v);
#pragma GCC unroll 12
            for (int r = 0; r < MR; ++r) {
                total[r][v] = fused(floats_of(sum[r][v]), scale * (vf)spread(factors[r]), total[r][v]);
                if constexpr (kFormat.minima) total[r][v] = fused(minimum, (vf)spread(others[r]), total[r][v]);
            }
        }
    }

    // Rows of whole or low bits, each of kParts words of inputs.
    template <int MR, int NV>
    [[gnu::always_inline]] static inline void add_rows(Sums (&sum)[MR][NV], const std::byte* codes, const vi (&upper)[NV],
                                                       int begin, int end, const X* x, Fetch& fetch) {
#pragma GCC unroll 8
        for (int row = begin; row < end; ++row) {
            if (row % 2 == 0) fetch.go();
            vi low[NV];
            for (int v = 0; v < NV; ++v) low[v] = load<vi>(codes + row * kRowBytes + v * kLanes * 4);
#pragma GCC unroll 8
            for (int part = 0; part < P::kParts; ++part) {
                const int word = row * P::kParts + part;
                Sums weights[NV];
                for (int v = 0; v < NV; ++v) weights[v] = P::part(low[v], upper[v], word);
#pragma GCC unroll 6
                for (int r = 0; r < MR; ++r) {
                    const X* input = &x[word * MR + r];
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
