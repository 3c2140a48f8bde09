// Matrix products of packed rows and packed panels.
#include "products.hpp"
#include "tier.hpp"

namespace ferrum::FERRUM_TIER {

namespace {

// Rows are cut into tiles as even as possible: 16 rows are 8 + 8, not 12 + 4. Tile t begins at row t * rows / tiles.
int64_t tile_count(int64_t rows) { return ceil_divide(rows, kProductRows); }

constexpr int64_t kBlockTiles = 192 / kProductRows;  // packed rows that stay in the second-level cache
constexpr int64_t kAhead = 8192;                     // bytes: at 4 to 16 rows streaming and arithmetic overlap only this far

template <class P>
void pack_rows(const float* x, int64_t rows, int64_t depth, int64_t tile_begin, int64_t tile_end, std::byte* out) {
    using X = typename P::X;
    const int64_t steps = ceil_divide(depth, P::kDepth), tiles = tile_count(rows);
    for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
        const int64_t first = tile * rows / tiles, height = (tile + 1) * rows / tiles - first;
        X* base = reinterpret_cast<X*>(out) + first * steps;
        for (int64_t r = 0; r < height; ++r) {
            const float* row = x + (first + r) * depth;
            for (int64_t k = 0; k < depth; k += kLanes) {
                X words[kLanes];
                P::pack(load_part(row + k, depth - k), words);
                X* to = base + k / P::kDepth * height + r;
                const int64_t count = least(kLanes / P::kDepth, steps - k / P::kDepth);
                for (int64_t i = 0; i < count; ++i) to[i * height] = words[i];
            }
        }
    }
}

template <class P, int MR>
struct Tile {
    vf total[MR][kProductVectors];

    void run(const std::byte* panel, int64_t vector, const typename P::X* x, int64_t steps, bool stream) {
        constexpr int kLines = static_cast<int>(P::kPanelStep) / 64;
        const std::byte* w = panel + vector * kLanes * P::kPanelStep / kPanel;
        for (int r = 0; r < MR; ++r)
            for (int v = 0; v < kProductVectors; ++v) total[r][v] = vf{};
        if (stream)
            accumulate<P, MR, kProductVectors, MR, 1, kLines>(total, w, P::kPanelStep, x, steps, panel + kAhead);
        else
            accumulate<P, MR, kProductVectors, MR, 1, 0>(total, w, P::kPanelStep, x, steps, nullptr);
    }
};

// One tile of rows by one panel; the first tile of a panel streams it in, the others find it in the cache.
template <class P, int MR>
void tile_by_panel(const ProductArgs& a, int64_t panel, int64_t row, bool stream) {
    const int64_t steps = ceil_divide(a.depth, P::kDepth), panel_bytes = steps * P::kPanelStep;
    const auto* x = reinterpret_cast<const typename P::X*>(a.x) + row * steps;
    for (int vector = 0; vector < kPanelVectors; vector += kProductVectors) {
        Tile<P, MR> tile;
        tile.run(a.weight + panel * panel_bytes, vector, x, steps, stream && vector == 0);
        if (a.up != nullptr) {
            Tile<P, MR> up;
            up.run(a.up + panel * panel_bytes, vector, x, steps, stream && vector == 0);
            for (int r = 0; r < MR; ++r)
                for (int v = 0; v < kProductVectors; ++v) tile.total[r][v] = silu(tile.total[r][v]) * up.total[r][v];
        }
        for (int v = 0; v < kProductVectors; ++v) {
            const int64_t column = panel * kPanel + (vector + v) * kLanes, left = a.outputs - column;
            if (left <= 0) break;
            const vf bias = a.bias != nullptr ? load_part(a.bias + column, left) : -vf{};  // x + -0 is x, for x = -0 too
            for (int r = 0; r < MR; ++r)
                store_part(a.y + (row + r) * a.outputs + column, tile.total[r][v] + bias, left);
        }
    }
}

using TileFunction = void (*)(const ProductArgs&, int64_t, int64_t, bool);

template <class P, int... Index>
TileFunction tile_function(int64_t height, std::integer_sequence<int, Index...>) {
    static constexpr TileFunction kFunctions[] = {&tile_by_panel<P, Index + 1>...};
    return kFunctions[height - 1];
}

template <class P>
void product_of(const ProductArgs& a, int64_t panel_begin, int64_t panel_end) {
    const int64_t tiles = tile_count(a.rows);
    for (int64_t block = 0; block < tiles; block += kBlockTiles)
        for (int64_t panel = panel_begin; panel < panel_end; ++panel)
            for (int64_t tile = block; tile < least(block + kBlockTiles, tiles); ++tile) {
                const int64_t row = tile * a.rows / tiles, height = (tile + 1) * a.rows / tiles - row;
                const auto heights = std::make_integer_sequence<int, kProductRows>{};
                tile_function<P>(height, heights)(a, panel, row, tile == block);
            }
}

}  // namespace

int64_t packed_bytes(Format format, int64_t rows, int64_t depth) {
    return with_policy(format, [&](auto policy) {
        using P = decltype(policy);
        return rows * ceil_divide(depth, P::kDepth) * static_cast<int64_t>(sizeof(typename P::X));
    });
}

int64_t row_tiles(Format, int64_t rows) { return tile_count(rows); }

void pack(Format format, const float* x, int64_t rows, int64_t depth, int64_t tile_begin, int64_t tile_end, std::byte* out) {
    with_policy(format, [&](auto policy) { pack_rows<decltype(policy)>(x, rows, depth, tile_begin, tile_end, out); });
}

void product(const ProductArgs& a, int64_t panel_begin, int64_t panel_end) {
    with_policy(a.format, [&](auto policy) { product_of<decltype(policy)>(a, panel_begin, panel_end); });
}

}  // namespace ferrum::FERRUM_TIER
