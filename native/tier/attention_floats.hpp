// Attention's two products over a step of keys and values stored as floats.
#pragma once

#include "rows.hpp"
#include "softmax.hpp"

namespace ferrum::FERRUM_TIER {

// A tile of queries over a step, per format; attention.cpp has the part common to all formats.
//   Query   a word of a tile's packed queries, query_words() per row
//   Weight  a word of a row's packed probabilities, kWeights per step
template <class P>
struct FloatAttention {
    using Store = FloatStore<P>;
    using Query = typename P::X;
    using Weight = typename P::X;
    static constexpr int kWeights = static_cast<int>(kStep) / P::kDepth;
    static constexpr int kRows = kProductRows;  // of a tile
    static constexpr bool kFlushes = P::kFlushes, kNeedsMode = P::kNeedsMode, kSplits = P::kSplits;
    using Unsplit = FloatAttention<typename P::Unsplit>;
    template <int MR>
    static constexpr int kVectors = product_vectors(MR);

    static int64_t query_words(const GroupStore& s) { return s.key_padded / P::kDepth; }

    // Pack one row of a tile of `height` to [depth step][row].
    static void pack_query(const GroupStore& s, const float* q, int64_t height, Query* out) {
        const int64_t words = query_words(s);
        for (int64_t d = 0; d < s.key_padded; d += kLanes) {
            Query packed[kLanes];
            P::pack(load_part(q + d, most(0, s.key_dim - d)), packed);
            for (int64_t i = 0; i < least(kLanes / P::kDepth, words - d / P::kDepth); ++i)
                out[(d / P::kDepth + i) * height] = packed[i];
        }
    }

    // Score the first `tokens` keys of the step; the others are undefined.
    template <int MR>
    static void score(const GroupStore& s, const std::byte* keys, int64_t tokens, const Query* queries,
                      float (&scores)[MR][kStep], const NextBlock& next) {
        const KeyVectors vectors{query_words(s)};
        step_parts<kVectors<MR>>(tokens, [&](int part, auto width) {
            constexpr int kWide = decltype(width)::value;
            vf total[MR][kWide] = {};
            accumulate<P, MR, kWide, MR, 1>(total, keys + vectors.at(part), kKeySide * 4, queries, query_words(s),
                                            next.keys<kWide>(keys, part, vectors), vectors);
            for (int r = 0; r < MR; ++r)
                for (int v = 0; v < kWide; ++v) store(&scores[r][(part + v) * kLanes], total[r][v]);
        });
    }

    // Pack a row's probabilities over a step; returns the factor of the product with values.
    static float pack_weights(const GroupStore&, const std::byte*, const float* weights, Weight* out) {
        for (int i = 0; i < kStep; i += kLanes) P::pack(load<vf>(weights + i), out + i / P::kDepth);
        return 1;
    }

    // out [MR][padded] = out * decay + weights [MR] x values.
    template <int MR>
    static void mix(const GroupStore& s, const std::byte* values, int64_t tokens, const Weight (&weights)[MR][kWeights],
                    const float (&)[MR], const float (&decay)[MR], float* out, const NextBlock& next) {
        constexpr int kWide = kVectors<MR>;
        for (int64_t first = 0; first < s.value_padded; first += kSide) {
            const int64_t width = value_width(s.value_padded, first);
            const std::byte* part = values + first * kStep / Store::kDepth * 4;
            int64_t d = 0;
            for (; d + kWide * kLanes <= width; d += kWide * kLanes)
                mix_part<MR, kWide>(s, part + d * 4, width * 4, tokens, weights, decay, out + first + d, next);
            for (; d < width; d += kLanes)
                mix_part<MR, 1>(s, part + d * 4, width * 4, tokens, weights, decay, out + first + d, next);
        }
    }

    static vf decayed(vf out, vf decay) { return kFlushes && !kSplits ? multiply_flushed(out, decay) : out * decay; }

    template <int MR, int NV>
    static void mix_part(const GroupStore& s, const std::byte* values, int64_t stride, int64_t tokens,
                         const Weight (&weights)[MR][kWeights], const float (&decay)[MR], float* out, const NextBlock& next) {
        const int64_t padded = s.value_padded, whole = tokens / P::kDepth;
        vf total[MR][NV];
        for (int r = 0; r < MR; ++r)
            for (int v = 0; v < NV; ++v) total[r][v] = decayed(load<vf>(out + r * padded + v * kLanes), spread(decay[r]));
        accumulate<P, MR, NV, 1, kWeights>(total, values, stride, weights[0], whole, next.values(values, stride, P::kDepth));
        if constexpr (P::kDepth > 1)
            if (whole * P::kDepth < tokens)  // the other half of the last word is an unwritten token
                for (int v = 0; v < NV; ++v) {
                    const auto weight = P::first_only(values + whole * stride + SideBySide<P>::at(v));
                    for (int r = 0; r < MR; ++r)
                        total[r][v] = P::step(total[r][v], weight, P::spread_first(&weights[r][whole]));
                }
        for (int r = 0; r < MR; ++r)
            for (int v = 0; v < NV; ++v) store(out + r * padded + v * kLanes, total[r][v]);
    }
};

}  // namespace ferrum::FERRUM_TIER
