// Attention's two products over a step of keys and values stored as bytes, with the interface of attention_floats.hpp.
// kernels/reference/reference_attention.py states the arithmetic. Integer sums are exact, so their order is free.
#pragma once

#include "bytes.hpp"
#include "dots.hpp"
#include "rows.hpp"
#include "softmax.hpp"

namespace ferrum::FERRUM_TIER {

struct ByteAttention {
    using Store = ByteStore;
    using Query = uint32_t;   // of a row: words of 4 codes, then the start of its sums, then its scale
    using Weight = uint32_t;  // of a row: the upper 7 bits of 64 probabilities, then the lower 7
    static constexpr int kQuads = static_cast<int>(kStep) / 4, kWeights = 2 * kQuads;
    static constexpr int kRows = kManyRegisters ? 6 : 3;  // of a tile: a product with values has two sums per output

    static constexpr bool kFlushes = false, kNeedsMode = false, kSplits = false;

    static int64_t query_words(const GroupStore& s) { return s.key_padded / 4 + 2; }

    static void pack_query(const GroupStore& s, const float* q, int64_t height, Query* out) {
        int8_t codes[kMaxHead + kLanes];
        const float scale = round_bytes(q, s.key_dim, codes);
        int32_t sum = 0;
        for (int64_t d = 0; d < s.key_dim; ++d) sum += codes[d];
        const int64_t words = s.key_padded / 4;
        for (int64_t i = 0; i < words; ++i) std::memcpy(out + i * height, codes + 4 * i, sizeof *out);
        out[words * height] = static_cast<uint32_t>(-kCodeOffset * sum);
        std::memcpy(out + (words + 1) * height, &scale, sizeof scale);
    }

    template <int MR>
    static void score(const GroupStore& s, const std::byte* keys, int64_t tokens, const Query* queries,
                      float (&scores)[MR][kStep], const NextBlock& next) {
        const int64_t words = s.key_padded / 4;
        const auto* scales = reinterpret_cast<const float*>(keys + kStep * s.key_padded);
        const KeyVectors vectors{words};
        next.fetch_scales(keys + kStep * s.key_padded);
        step_parts<kLanes == 16 ? 4 : 2>(tokens, [&](int part, auto width) {
            constexpr int kVectors = decltype(width)::value;
            vi sum[MR][kVectors];
            for (int r = 0; r < MR; ++r)
                for (int v = 0; v < kVectors; ++v) sum[r][v] = spread(static_cast<int32_t>(queries[words * MR + r]));
            const std::byte* w = keys + vectors.at(part);
            const Ahead ahead = next.keys<kVectors>(keys, part, vectors);
            for (int64_t i = 0; i < words; ++i, w += kKeySide * 4) {
                ahead.go<kVectors>(i);
                vi key[kVectors];
#pragma GCC unroll 4
                for (int v = 0; v < kVectors; ++v) key[v] = signed_codes(load<vi>(w + vectors.at(v)));
#pragma GCC unroll 6
                for (int r = 0; r < MR; ++r) {
                    const vi query = spread(static_cast<int32_t>(queries[i * MR + r]));
#pragma GCC unroll 4
                    for (int v = 0; v < kVectors; ++v) sum[r][v] = dot_codes(sum[r][v], key[v], query);
                }
            }
            for (int r = 0; r < MR; ++r) {
                const vf scale = spread(load<float>(queries + (words + 1) * MR + r));
                for (int v = 0; v < kVectors; ++v)
                    store(&scores[r][(part + v) * kLanes],
                          __builtin_convertvector(sum[r][v], vf) * (load<vf>(scales + (part + v) * kLanes) * scale));
            }
        });
    }

    // Probabilities times the scales of their values, rounded to 14 bits by the largest of the step.
    static float pack_weights(const GroupStore& s, const std::byte* values, const float* weights, Weight* out) {
        const auto* scales = reinterpret_cast<const float*>(values + kStep * s.value_padded);
        vf scaled[kStepVectors];
        vi top{};
        for (int v = 0; v < kStepVectors; ++v) {
            const vf weight = load<vf>(weights + v * kLanes);
            scaled[v] = weight == 0 ? vf{} : weight * load<vf>(scales + v * kLanes);
            top = larger(top, magnitude(scaled[v]));
        }
        const WholeScale<float, int32_t> scale(max_lanes(top), 16383.0f);
        auto* upper = reinterpret_cast<int8_t*>(out);
        auto* lower = reinterpret_cast<int8_t*>(out + kQuads);
        for (int v = 0; v < kStepVectors; ++v) {
            const vu code = nearest_bits(scaled[v] * spread(scale.inverse));
            store(upper + v * kLanes, low_bytes(code >> 7));
            store(lower + v * kLanes, low_bytes(code & 127));
        }
        return scale.scale;
    }

    template <int MR>
    static void mix(const GroupStore& s, const std::byte* values, int64_t tokens, const Weight (&weights)[MR][kWeights],
                    const float (&factor)[MR], const float (&decay)[MR], float* out, const NextBlock& next) {
        next.fetch_scales(values + kStep * s.value_padded);
        constexpr int kWide = kLanes < 16 ? 1 : MR <= 2 ? 4 : 2;
        for (int64_t first = 0; first < s.value_padded; first += kSide) {
            const int64_t width = value_width(s.value_padded, first);
            const std::byte* part = values + first * kStep / Store::kDepth * 4;
            int64_t d = 0;
            for (; d + kWide * kLanes <= width; d += kWide * kLanes)
                mix_part<MR, kWide>(s, part + d * 4, width * 4, tokens, weights, factor, decay, out + first + d, next);
            for (; d < width; d += kLanes)
                mix_part<MR, 1>(s, part + d * 4, width * 4, tokens, weights, factor, decay, out + first + d, next);
        }
    }

    template <int MR, int NV>
    static void mix_part(const GroupStore& s, const std::byte* values, int64_t stride, int64_t tokens,
                         const Weight (&weights)[MR][kWeights], const float (&factor)[MR], const float (&decay)[MR], float* out,
                         const NextBlock& next) {
        const Ahead ahead = next.values(values, stride, 4);
        vi upper[MR][NV] = {}, lower[MR][NV] = {};
        for (int64_t quad = 0; quad < ceil_divide(tokens, 4); ++quad) {  // probabilities after the last token are 0
            const std::byte* row = values + quad * stride;
            ahead.go<NV>(quad);
            vi value[NV];
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) value[v] = load<vi>(row + v * kLanes * 4);
#pragma GCC unroll 6
            for (int r = 0; r < MR; ++r) {
                const vi high = spread(static_cast<int32_t>(weights[r][quad]));
                const vi low = spread(static_cast<int32_t>(weights[r][kQuads + quad]));
#pragma GCC unroll 4
                for (int v = 0; v < NV; ++v) {
                    upper[r][v] = dot(upper[r][v], high, value[v]);
                    lower[r][v] = dot(lower[r][v], low, value[v]);
                }
            }
        }
        for (int r = 0; r < MR; ++r)
            for (int v = 0; v < NV; ++v) {
                float* to = out + r * s.value_padded + v * kLanes;
                const vf sum = __builtin_convertvector((upper[r][v] << 7) + lower[r][v], vf);
                store(to, fused(sum, spread(factor[r]), load<vf>(to) * spread(decay[r])));
            }
    }
};

}  // namespace ferrum::FERRUM_TIER
