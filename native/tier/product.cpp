// Matrix products of packed rows and packed panels, in any format.
#include "tier.hpp"
#include "wide_groups.hpp"

namespace ferrum::FERRUM_TIER {

namespace {

constexpr int64_t kBlockRows = 192;  // packed rows that stay in the second-level cache

// Calls work with the tiles of a format.
template <class Work>
auto with_tiles(Format format, Work work) {
    switch (format) {
        case Format::bf16: return work(FloatTiles<Bf16>{});
        case Format::f16: return work(FloatTiles<F16>{});
        case Format::int8: return work(GroupTiles<Int8>{});
        case Format::int4: return work(GroupTiles<Int4>{});
        case Format::int8_64: return work(WideGroupTiles<Int8, 64, false>{});
        case Format::int8_128: return work(WideGroupTiles<Int8, 128, false>{});
        case Format::int4_64: return work(WideGroupTiles<Int4, 64, false>{});
        case Format::int4_128: return work(WideGroupTiles<Int4, 128, false>{});
        case Format::int4_zero_32: return work(WideGroupTiles<Int4, 32, true>{});
        case Format::int4_zero_64: return work(WideGroupTiles<Int4, 64, true>{});
        case Format::int4_zero_128: return work(WideGroupTiles<Int4, 128, true>{});
        default: return work(FloatTiles<F32>{});
    }
}

template <class T>
int64_t tile_count(int64_t rows) {
    return ceil_divide(rows, T::kRows);
}

// One tile of rows by one panel; the first tile of a panel streams it in, the others find it in the cache.
template <class T, int MR, bool STREAM>
void tile_by_panel(const ProductArgs& a, int64_t panel, int64_t row) {
    constexpr int kVectors = T::kVectors;
    const int64_t panel_bytes = T::panel_bytes(a.depth);
    const auto* x = reinterpret_cast<const typename T::X*>(a.x) + row * T::row_words(a.depth);
    for (int vector = 0; vector < kPanelVectors; vector += kVectors) {
        vf total[MR][kVectors];
        T::template multiply<MR, STREAM>(total, a.weight + panel * panel_bytes, vector, x, a.depth);
        if (a.up != nullptr) {
            vf up[MR][kVectors];
            T::template multiply<MR, STREAM>(up, a.up + panel * panel_bytes, vector, x, a.depth);
            for (int r = 0; r < MR; ++r)
                for (int v = 0; v < kVectors; ++v) total[r][v] = silu(total[r][v]) * up[r][v];
        }
        for (int v = 0; v < kVectors; ++v) {
            const int64_t column = panel * kPanel + (vector + v) * kLanes, left = a.outputs - column;
            if (left <= 0) break;
            const vf bias = a.bias != nullptr ? load_part(a.bias + column, left) : -vf{};  // x + -0 is x, for x = -0 too
            for (int r = 0; r < MR; ++r) store_part(a.y + (row + r) * a.outputs + column, total[r][v] + bias, left);
        }
    }
}

using TileFunction = void (*)(const ProductArgs&, int64_t, int64_t);

template <class T, bool STREAM, int... Index>
TileFunction tile_function(int64_t height, std::integer_sequence<int, Index...>) {
    static constexpr TileFunction kFunctions[] = {&tile_by_panel<T, Index + 1, STREAM>...};
    return kFunctions[height - 1];
}

template <class T>
void product_of(const ProductArgs& a, int64_t panel_begin, int64_t panel_end) {
    constexpr auto kHeights = std::make_integer_sequence<int, T::kRows>{};
    constexpr int64_t kBlock = kBlockRows / T::kRows;
    const int64_t tiles = tile_count<T>(a.rows);
    for (int64_t block = 0; block < tiles; block += kBlock)
        for (int64_t panel = panel_begin; panel < panel_end; ++panel)
            for (int64_t tile = block; tile < least(block + kBlock, tiles); ++tile) {
                const auto [row, height] = tile_rows(tile, tiles, a.rows);
                const bool stream = tile == block;
                (stream ? tile_function<T, true>(height, kHeights) : tile_function<T, false>(height, kHeights))(a, panel, row);
            }
}

}  // namespace

int64_t packed_bytes(Format format, int64_t rows, int64_t depth) {
    return with_tiles(format, [&](auto tiles) {
        using T = decltype(tiles);
        return rows * T::row_words(depth) * static_cast<int64_t>(sizeof(typename T::X));
    });
}

int64_t row_tiles(Format format, int64_t rows) {
    return with_tiles(format, [&](auto tiles) { return tile_count<decltype(tiles)>(rows); });
}

void pack(Format format, const float* x, int64_t rows, int64_t depth, int64_t tile_begin, int64_t tile_end, std::byte* out) {
    with_tiles(format, [&](auto tiles) {
        using T = decltype(tiles);
        for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
            const auto [first, height] = tile_rows(tile, tile_count<T>(rows), rows);
            auto* base = reinterpret_cast<typename T::X*>(out) + first * T::row_words(depth);
            for (int64_t r = 0; r < height; ++r) T::pack_row(x + (first + r) * depth, depth, height, base + r);
        }
    });
}

void product(const ProductArgs& a, int64_t panel_begin, int64_t panel_end) {
    with_tiles(a.format, [&](auto tiles) { product_of<decltype(tiles)>(a, panel_begin, panel_end); });
}

}  // namespace ferrum::FERRUM_TIER
