// Tiles of the integer formats: int8 and int4 weights in groups of 32 inputs, inputs rounded to int8 per row and group.
//
// Within a group sums are exact in int32. Groups are then added in ascending order as sum * (weight scale * row scale) with
// three roundings and nothing fused, so that every tier and the numpy reference give the same bits.
//
// A panel's group: int8, 8 quads [32 outputs][4 k] of w + 128; int4, 4 rows [32 outputs][4 bytes] whose low nibbles are quad
// 2j and high ones quad 2j + 1 of w + 8; then 32 scales in f16. Weights are the unsigned operand, inputs the signed one: the
// sum starts at minus the offset times the sum of the inputs.
#pragma once

#include "tiles.hpp"

namespace ferrum::FERRUM_TIER {

struct Int4 {
    static constexpr bool kNibbles = true;
    static constexpr int kRowsOfWords = 4;  // rows of 32 words before the scales
    static constexpr int32_t kOffset = 8;

    // total + the products of 4 unsigned by 4 signed bytes in each word.
    static vi dot(vi total, vi weights, vi inputs) {
#if defined(__AVX512BF16__)
        return (vi)_mm512_dpbusd_epi32((__m512i)total, (__m512i)weights, (__m512i)inputs);
#elif defined(__AVX2__)
        const __m256i pairs = _mm256_maddubs_epi16((__m256i)weights, (__m256i)inputs);
        return total + (vi)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else
        for (int byte = 0; byte < 4; ++byte) {
            const vi w = (weights >> (8 * byte)) & 0xff;
            const vi x = (vi)((vu)inputs << (24 - 8 * byte)) >> 24;
            total += w * x;
        }
        return total;
#endif
    }
};

struct Int8 {
    static constexpr bool kNibbles = false;
    static constexpr int kRowsOfWords = 8;

#if defined(__AVX2__) && !defined(__AVX512BF16__)
    // Pairs of 8-bit unsigned weights would pass 16 bits; signed ones do not: |w| by x with the sign of w.
    static constexpr int32_t kOffset = 0;

    static vi dot(vi total, vi weights, vi inputs) {
        const __m256i w = _mm256_xor_si256((__m256i)weights, _mm256_set1_epi8(-128));
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8((__m256i)inputs, w));
        return total + (vi)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    }
#else
    static constexpr int32_t kOffset = 128;

    static vi dot(vi total, vi weights, vi inputs) { return Int4::dot(total, weights, inputs); }
#endif
};

// How a group of inputs is rounded, from the bits of its largest magnitude.
struct InputScale {
    explicit InputScale(int32_t bits) {
        float largest;
        std::memcpy(&largest, &bits, sizeof largest);
        // Below 2^-64 a group counts as zeros: all further numbers are then normal. Infinity and NaN spoil the whole row.
        used = largest >= 0x1p-64f && bits < 0x7f800000;
        inverse = used ? 127.0f / largest : 0.0f;
        scale = used ? largest / 127.0f : bits < 0x7f800000 ? 0.0f : __builtin_nanf("");
    }
    bool used;
    float inverse, scale;
};

// GROUP inputs as words: bytes round(x * (127 / max|x|)), minus `offset` times their sum, and the scale max|x| / 127
// (quant/activations.py).
template <int64_t GROUP>
inline void round_group(const float* x, int64_t count, int32_t offset, uint32_t* words) {
    constexpr int kParts = static_cast<int>(GROUP) / kLanes;
    vf value[kParts];
    vi top{};  // as integers magnitudes order alike, and NaN above all: it reaches the scale
    for (int part = 0; part < kParts; ++part) {
        const int64_t left = count - part * kLanes;
        value[part] = left > 0 ? load_part(x + part * kLanes, left) : vf{};
        const vi magnitude = (vi)value[part] & 0x7fffffff;
        top = magnitude > top ? magnitude : top;
    }
    const InputScale scale(max_lanes(top));
    vi sum{};
    auto* bytes = reinterpret_cast<std::byte*>(words);
    for (int part = 0; part < kParts; ++part) {
        const vi whole = scale.used ? __builtin_convertvector(nearest(value[part] * spread(scale.inverse)), vi) : vi{};
        sum += whole;
        using Bytes = int8_t __attribute__((vector_size(kLanes)));
        store(bytes + part * kLanes, __builtin_convertvector(whole, Bytes));
    }
    words[GROUP / 4] = static_cast<uint32_t>(-offset * sum_lanes(sum));
    std::memcpy(&words[GROUP / 4 + 1], &scale.scale, sizeof scale.scale);
}

template <class P>
struct GroupTiles {
    using X = uint32_t;
    static constexpr int kRows = kLanes == 16 ? 6 : 2, kVectors = 2;
    static constexpr int64_t kRowWords = kGroup / 4 + 2;  // of a group: the inputs, where the sum starts, the scale
    static constexpr int64_t kRowBytes = kPanel * 4;
    static constexpr int64_t kGroupBytes = P::kRowsOfWords * kRowBytes + kPanel * 2;

    static constexpr int64_t kStretchBytes = kGroupBytes;

    static int64_t groups(int64_t depth) { return ceil_divide(depth, kGroup); }
    static int64_t row_words(int64_t depth) { return groups(depth) * kRowWords; }
    static int64_t panel_bytes(int64_t depth) { return groups(depth) * kGroupBytes; }

    static void pack_row(const float* row, int64_t depth, int64_t height, X* out) {
        for (int64_t k = 0; k < depth; k += kGroup) {
            X words[kRowWords];
            round_group<kGroup>(row + k, depth - k, P::kOffset, words);
            X* to = out + k / kGroup * kRowWords * height;
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
            panel += kGroupBytes;
            x += kRowWords * MR;
        }
    }

    template <int MR>
    static inline void add_group(vf (&total)[MR][kVectors], const std::byte* group, int vector, const X* x) {
        const std::byte* words = group + vector * kLanes * 4;
        const X* starts = x + kGroup / 4 * MR;
        vi sum[MR][kVectors];
        for (int r = 0; r < MR; ++r)
            for (int v = 0; v < kVectors; ++v) sum[r][v] = spread(static_cast<int32_t>(starts[r]));
#pragma GCC unroll 8
        for (int row = 0; row < P::kRowsOfWords; ++row) {
            vi weights[kVectors];
            for (int v = 0; v < kVectors; ++v) weights[v] = load<vi>(words + row * kRowBytes + v * kLanes * 4);
            add_words<MR>(sum, weights, x, row);
        }
        const std::byte* scales = group + P::kRowsOfWords * kRowBytes + vector * kLanes * 2;
        for (int v = 0; v < kVectors; ++v) {
            const vf scale = widen_halves(scales + v * kLanes * 2);
            for (int r = 0; r < MR; ++r) {
                float row_scale;
                std::memcpy(&row_scale, starts + MR + r, sizeof row_scale);
                total[r][v] += __builtin_convertvector(sum[r][v], vf) * (scale * spread(row_scale));
            }
        }
    }

    // One row of words of the panel: a quad of k of int8, two of int4.
    template <int MR>
    static inline void add_words(vi (&sum)[MR][kVectors], const vi (&weights)[kVectors], const X* x, int row) {
        constexpr int kQuads = P::kNibbles ? 2 : 1;
#pragma GCC unroll 2
        for (int half = 0; half < kQuads; ++half) {
            vi bytes[kVectors];
            for (int v = 0; v < kVectors; ++v)
                bytes[v] = P::kNibbles ? (weights[v] >> (4 * half)) & 0x0f0f0f0f : weights[v];
#pragma GCC unroll 6
            for (int r = 0; r < MR; ++r) {
                const vi input = spread(static_cast<int32_t>(x[(row * kQuads + half) * MR + r]));
                for (int v = 0; v < kVectors; ++v) sum[r][v] = P::dot(sum[r][v], bytes[v], input);
            }
        }
    }
};

}  // namespace ferrum::FERRUM_TIER
