// The scores of a tile's rows over a step of keys: queries in shared memory, and sums of a thread's column of tokens.
#pragma once

#include "attention_products.hpp"

namespace ferrum::cuda {

// Of up to 4 x N rows. A thread has a column of 64 tokens, and N rows.
template <class F, int N>
struct TileScores {
    static constexpr int kRows = 4 * N;
    using Factor = typename F::Factor;

    const AttentionArgs& a;
    const Tile& tile;
    unsigned* queries;    // [term][row], or of one row a thread [row][term]
    float* query_scales;  // [row], of int8
    const int column = warp() % 2 * kWarp + lane(), first = warp() / 2 * N;
    const int terms = (static_cast<int>(a.head_dim) + 3) / 4 * (4 / F::kTerms);
    const int parts = (static_cast<int>(a.pages.key_words) + kWords - 1) / kWords;
    typename F::Sum sum[N] = {};

    FERRUM_DEVICE unsigned& query(int r, int term) const { return queries[N == 1 ? r * terms + term : term * kRows + r]; }
    FERRUM_DEVICE auto factors_from(int term) const {
        const auto* from = reinterpret_cast<const Factor*>(&query(first, term));
        if constexpr (N == 1)
            return ByRow<Factor>{from};
        else
            return ByTerm<Factor, N>{from, kRows};
    }

    // A warp has a row.
    FERRUM_DEVICE void read_queries() const {
        const int dim = static_cast<int>(a.head_dim);
        for (int r = warp(); r < kRows; r += kWarps) {
            const float* q = a.q + tile.index_of(a, r) * dim;
            if constexpr (F::kDepth == 4) {
                unsigned top = 0;
                for (int i = lane(); i < dim; i += kWarp) top = (as_bits(q[i]) & ~kSign) > top ? as_bits(q[i]) & ~kSign : top;
                const WholeScale scale(greatest(top), 127.0f);
                for (int i = lane(); i < terms; i += kWarp) {
                    unsigned codes = 0;
                    for (int k = 0; k < 4; ++k)
                        if (4 * i + k < dim) codes |= (static_cast<unsigned>(scale.code(q[4 * i + k])) & 0xffu) << (8 * k);
                    query(r, i) = codes;
                }
                if (lane() == 0) query_scales[r] = scale.scale;
            } else {
                for (int i = lane(); i < terms; i += kWarp) query(r, i) = i < dim ? as_bits(F::factor(q[i])) : 0u;
            }
        }
    }

    FERRUM_DEVICE bool works() const { return first < tile.count; }

    // Add the terms of a part of the keys, whose words are in `buffer`.
    template <int COLUMNS>
    FERRUM_DEVICE void add(int step, int part, const unsigned* buffer) {
        if (part == 0)
            for (int n = 0; n < N; ++n) sum[n] = 0;
        const int token = step * kStep + column, left = static_cast<int>(a.pages.key_words) - part * kWords;
        const int words = left < kWords ? left : kWords, fours = (words * F::kDepth + 3) / 4;
        const bool wanted = token >= tile.low && token <= tile.last;
        const auto key = [=](int four) {
            auto found = F::template of_words<COLUMNS>(buffer + column, four);
            if constexpr (F::kDepth == 4) found.codes ^= F::kKeyFlip;
            return found;
        };
        add_terms<F, N>(sum, factors_from(part * kWords * F::kDepth / F::kTerms), fours, key, wanted);
    }
    // The scale of the column's key, or of its value; 0 for tokens that no row sees.
    FERRUM_DEVICE float scale(int step, bool of_value) const {
        const int token = step * kStep + column;
        if (token < tile.low || token > tile.last) return 0;
        const Block block = token_block(a.pages, tile, token);
        if (block.keys == nullptr) return 0;
        return (of_value ? value_scales(a.pages, block) : key_scales(a.pages, block))[block.token];
    }
    // The score of row first + n, as an exponent of 2.
    FERRUM_DEVICE float score(int n, float key_scale) const {
        float number = static_cast<float>(sum[n]);
        if constexpr (F::kDepth == 4) number = number * (key_scale * query_scales[first + n]);
        return activated(a.scaling, number);
    }
};

}  // namespace ferrum::cuda
