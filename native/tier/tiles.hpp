// A tile of floats: a few packed rows by some vectors of one panel's outputs. groups.hpp has the tiles of the integer
// formats.
//
// A tile type defines the rows and vectors that fill the registers, the packing of rows and the size of a panel.
#pragma once

#include "products.hpp"

namespace ferrum::FERRUM_TIER {

constexpr int64_t kFewRows = 4;  // up to this, a product takes as long as reading its weights

// The prefetch of a tile: the next weights, a few lines at a time in each stretch of its panel.
//
// With few rows, which pass over a panel once, memory is the limit, and a stream a few kilobytes ahead keeps it busy.
// Otherwise the passes over a panel take longer than its bytes: each pass prefetches an even part of the next panel, so
// that memory and arithmetic overlap. Many lines at once would wait for each other and delay the reads of the tile.
struct Fetch {
    static constexpr int64_t kLine = 256;

    const std::byte* line;
    int64_t pace;             // lines per time, in 256ths
    int64_t turn;             // the stream continues this many stretches before the panel's end ...
    const std::byte* onward;  // ... here, or ends if null
    int64_t hop = 64;         // bytes to the next line; with two streams, every other hop
    int64_t two_hops = 128;   // goes back, and this is the distance of two hops
    int64_t due = kLine - 1;  // start with one line: less than one in total would never be fetched

    // `lines` lines from `from` on, in two streams or in one.
    static Fetch part(const std::byte* from, int64_t lines, int64_t pace, bool two) {
        if (two) return {from, pace, -1, nullptr, ceil_divide(lines, 2) * 64, 64};
        return {from, pace, -1, nullptr};
    }

    // At the beginning of a stretch; `left` stretches remain.
    void enter(int64_t left) {
        if (left == turn) line = onward, pace = onward != nullptr ? pace : 0;
    }

    // Called kStretchGoes times in each stretch of the tile.
    void go() {
        for (due += pace; due >= kLine; due -= kLine, line += hop, hop = two_hops - hop) prefetch(line);
    }
};

// Rows are split into tiles as evenly as possible: 16 rows are 8 + 8, not 12 + 4.
struct TileRows {
    int64_t first, height;
};

inline TileRows tile_rows(int64_t tile, int64_t tiles, int64_t rows) {
    const int64_t first = tile * rows / tiles;
    return {first, (tile + 1) * rows / tiles - first};
}

template <class P>
struct FloatTiles {
    using X = typename P::X;
    static constexpr bool kNeedsMode = P::kNeedsMode, kSplits = P::kSplits;
    using Unsplit = FloatTiles<typename P::Unsplit>;
    static constexpr bool kHasSlabs = false;
    static constexpr int kRows = kProductRows, kDirectRows = kRows;
    static constexpr int vectors(int rows) { return product_vectors(rows) < kPanelVectors ? product_vectors(rows) : kPanelVectors; }

    static constexpr int64_t kStretch = 8;  // steps
    static constexpr int64_t kStretchBytes = kStretch * P::kPanelStep, kStretchGoes = kStretch;

    static int64_t steps(int64_t depth) { return ceil_divide(depth, P::kDepth); }
    static int64_t row_words(int64_t depth) { return steps(depth); }
    static int64_t panel_bytes(int64_t depth) { return steps(depth) * P::kPanelStep; }

    // Pack the rows of a tile to [step][row].
    static void pack_rows(const float* rows, int64_t depth, int64_t height, X* out) {
        for (int64_t r = 0; r < height; ++r) pack_row(rows + r * depth, depth, height, out + r);
    }
    static void pack_row(const float* row, int64_t depth, int64_t height, X* out) {
        for (int64_t k = 0; k < depth; k += kLanes) {
            X words[kLanes];
            P::pack(load_part(row + k, depth - k), words);
            X* to = out + k / P::kDepth * height;
            const int64_t count = least(kLanes / P::kDepth, steps(depth) - k / P::kDepth);
            for (int64_t i = 0; i < count; ++i) to[i * height] = words[i];
        }
    }

    // total = the tile's rows times the panel's vectors from `vector` on.
    template <int MR, int NV>
    static void multiply(vf (&total)[MR][NV], const std::byte* panel, int vector, const X* x, int64_t depth, Fetch fetch) {
        const std::byte* w = panel + vector * kLanes * P::kPanelStep / kPanel;
        vf sum[MR][NV] = {};  // a local array stays in registers; the caller's would be written at every step
        for (int64_t left = steps(depth); left > 0; left -= kStretch) {
            fetch.enter(ceil_divide(left, kStretch));
            for (const X* end = x + least(left, kStretch) * MR; x != end; x += MR, w += P::kPanelStep) {
                fetch.go();
                add_step<P, MR, NV, 1>(sum, w, x);
            }
        }
#pragma GCC unroll 12
        for (int r = 0; r < MR; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) total[r][v] = sum[r][v];
    }
};

}  // namespace ferrum::FERRUM_TIER
