// A tile: a few packed rows by some vectors of one panel's outputs, for floats. groups.hpp has the integer formats'.
//
// A tile type says how many rows and vectors fill the registers, how rows are packed for it and how large a panel is.
#pragma once

#include "products.hpp"

namespace ferrum::FERRUM_TIER {

constexpr int64_t kAhead = 8192;  // bytes: at 4 to 16 rows streaming and arithmetic overlap only with prefetches this far

// Rows are cut into tiles as even as possible: 16 rows are 8 + 8, not 12 + 4.
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
    static constexpr int kRows = kProductRows, kVectors = kProductVectors;

    static int64_t steps(int64_t depth) { return ceil_divide(depth, P::kDepth); }
    static int64_t row_words(int64_t depth) { return steps(depth); }
    static int64_t panel_bytes(int64_t depth) { return steps(depth) * P::kPanelStep; }

    // One row of a tile of `height` rows, to [step][row].
    static void pack_row(const float* row, int64_t depth, int64_t height, X* out) {
        for (int64_t k = 0; k < depth; k += kLanes) {
            X words[kLanes];
            P::pack(load_part(row + k, depth - k), words);
            X* to = out + k / P::kDepth * height;
            const int64_t count = least(kLanes / P::kDepth, steps(depth) - k / P::kDepth);
            for (int64_t i = 0; i < count; ++i) to[i * height] = words[i];
        }
    }

    // total = the tile's rows times the panel's vectors `vector` and on; with STREAM it fetches the panel ahead of use.
    template <int MR, bool STREAM>
    static void multiply(vf (&total)[MR][kVectors], const std::byte* panel, int vector, const X* x, int64_t depth) {
        constexpr int kLines = STREAM ? static_cast<int>(P::kPanelStep) / 64 : 0;
        const std::byte* w = panel + vector * kLanes * P::kPanelStep / kPanel;
        for (int r = 0; r < MR; ++r)
            for (int v = 0; v < kVectors; ++v) total[r][v] = vf{};
        accumulate<P, MR, kVectors, MR, 1, kLines>(total, w, P::kPanelStep, x, steps(depth), panel + kAhead);
    }
};

}  // namespace ferrum::FERRUM_TIER
