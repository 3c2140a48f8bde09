// Matrix products of packed rows and packed panels, in any format.
#include "activations.hpp"
#include "block_tiles.hpp"
#include "tier.hpp"

namespace ferrum::FERRUM_TIER {

namespace {

constexpr int64_t kBlockRows = 192;  // packed rows that fit in the second-level cache

constexpr int64_t kAhead = 3072;  // prefetch distance in bytes: fastest at 2 to 3 KB

// Up to this many passes over a panel (by tiles and ways), memory is the limit, and two streams have more lines in
// flight than the hardware allows for one. With more passes, computing takes longer than memory, and two streams only
// slow it down.
constexpr int64_t kFewPlaces = 2;

// Call work with the tiles of a format.
template <class Work>
auto with_tiles(Format format, Work work) {
#define FERRUM_FLOAT(name, in_python, elements) \
    case Format::name: return work(FloatTiles<elements>{});
#define FERRUM_BLOCK(name, ...) \
    case Format::name: return work(BlockTiles<Format::name>{});
    switch (format) {
        FERRUM_FLOAT_FORMATS(FERRUM_FLOAT)
        FERRUM_BLOCK_FORMATS(FERRUM_BLOCK)
    }
#undef FERRUM_FLOAT
#undef FERRUM_BLOCK
    __builtin_unreachable();
}

template <class T>
int64_t tile_count(const TiledRows& tiled) {
    return ceil_divide(tiled.rows, T::kRows);
}

template <class T>
constexpr int64_t kBlockTiles = kBlockRows / T::kRows;

// A tile of a product: the rows from `row` on, one of the tiles of their block.
struct Tile {
    int64_t row, place, tiles;
};

// The prefetch of one pass over `panel`: then it, or the next tile, multiplies `onward`; `next` follows after the last
// pass of the block. A stream would end with the first of several passes.
template <class T, int WAYS>
Fetch fetch_of(const ProductArgs& a, const Tile& tile, int way, const std::byte* panel, const std::byte* onward,
               const std::byte* next) {
    constexpr int64_t kLines = T::kStretchBytes / 64, kTurn = ceil_divide(kAhead, T::kStretchBytes);
    constexpr int64_t kPace = ceil_divide(kLines * Fetch::kLine, T::kStretchGoes);  // as fast as it is used
    if (WAYS == 1 && a.tiled.rows <= kFewRows) return {panel + kTurn * T::kStretchBytes, kPace, kTurn, onward};
    if (next == nullptr) return {};
    const int64_t lines = T::panel_bytes(a.depth) / 64, place = tile.place * WAYS + way, places = tile.tiles * WAYS;
    const int64_t first = place * lines / places, end = (place + 1) * lines / places;
    return Fetch::part(next + first * 64, end - first, ceil_divide(kPace, places), places <= kFewPlaces);
}

// The sums of a tile as a separate function, which has all registers to itself. Where they are few, that is a quarter faster.
template <class T, int MR, int NV>
[[gnu::noinline]] void multiply_apart(vf (&total)[MR][NV], const std::byte* panel, int vector, const typename T::X* x,
                                      int64_t depth, const Fetch& fetch) {
    T::multiply(total, panel, vector, x, depth, fetch);
}

template <class T, int MR, int NV>
[[gnu::always_inline]] inline void multiply(vf (&total)[MR][NV], const std::byte* panel, int vector, const typename T::X* x,
                                            int64_t depth, Fetch fetch) {
    if constexpr (!T::kNeedsMode) {
        T::multiply(total, panel, vector, x, depth, fetch);
    } else {
        {
            const FlushMode mode;
            if constexpr (kLanes == 16)
                T::multiply(total, panel, vector, x, depth, fetch);
            else
                multiply_apart<T>(total, panel, vector, x, depth, fetch);
            hold(total);
            if constexpr (T::kSplits)
                if (mode.passed_range()) multiply_apart<typename T::Unsplit>(total, panel, vector, x, depth, {});
        }
        hold(total);
    }
}

// Where a tile's vectors of one way go: rows from `y` on, each with `left` outputs from the first vector on.
struct Target {
    float* y;
    int64_t stride, left;
};

template <int MR, int NV>
void add_bias(vf (&sums)[MR][NV], const float* bias, int64_t left) {
    if (bias == nullptr) return;
    for (int v = 0; v < NV && left > v * kLanes; ++v) {
        const vf added = load_part(bias + v * kLanes, left - v * kLanes);
        for (int r = 0; r < MR; ++r) sums[r][v] += added;
    }
}

template <int MR, int NV>
void load_rows(vf (&sums)[MR][NV], const Target& from) {
    for (int v = 0; v < NV; ++v)
        for (int r = 0; r < MR; ++r)
            sums[r][v] = from.left > v * kLanes ? load_part(from.y + r * from.stride + v * kLanes, from.left - v * kLanes) : vf{};
}

template <int MR, int NV>
void store_rows(const vf (&sums)[MR][NV], const Target& to) {
    for (int v = 0; v < NV && to.left > v * kLanes; ++v)
        for (int r = 0; r < MR; ++r) store_part(to.y + r * to.stride + v * kLanes, sums[r][v], to.left - v * kLanes);
}

template <class T, int MR>
void tile_by_panel(const ProductArgs& a, int64_t panel, const NextPanel& next, const Tile& tile) {
    constexpr int kVectors = T::vectors(MR), kWays = kPanelVectors / kVectors;
    const auto* x = reinterpret_cast<const typename T::X*>(a.x) + tile.row * T::row_words(a.depth);
    const int64_t offset = panel * T::panel_bytes(a.depth);
    const std::byte *weight = a.weight + offset, *up = a.up != nullptr ? a.up + offset : nullptr;
    // Results go to short pieces, one row apart: the hardware does not prefetch them, and stores would wait for memory.
    for (int r = 0; r < MR; ++r) prefetch_floats(a.y + (tile.row + r) * a.outputs + panel * kPanel, kPanel);
    for (int way = 0; way < kWays; ++way) {
        const int vector = way * kVectors;
        const int64_t column = panel * kPanel + vector * kLanes;
        const Target target{a.y + tile.row * a.outputs + column, a.outputs, a.outputs - column};
        const auto bias_at = [=](const float* bias) { return bias == nullptr ? nullptr : bias + column; };
        vf total[MR][kVectors];
        multiply<T>(total, weight, vector, x, a.depth,
                    fetch_of<T, kWays>(a, tile, way, weight, up != nullptr ? up : next.weight, next.weight));
        add_bias(total, bias_at(a.bias), target.left);
        if (up == nullptr && !a.gates && a.activation.curve == Curve::none) {
            store_rows(total, target);
            continue;
        }
        vf held[MR][kVectors], other[MR][kVectors];  // the sums of a plain product stay in registers
        std::memcpy(held, total, sizeof held);
        if (up != nullptr) {
            multiply<T>(other, up, vector, x, a.depth, fetch_of<T, kWays>(a, tile, way, up, next.weight, next.up));
            add_bias(other, bias_at(a.up_bias), target.left);
        } else if (a.gates) {
            load_rows(other, target);
        }
        if (up != nullptr || a.gates)
            gate(a.activation, &held[0][0], &other[0][0], MR * kVectors);
        else
            activate(a.activation, &held[0][0], MR * kVectors);
        store_rows(held, target);
    }
}

using TileFunction = void (*)(const ProductArgs&, int64_t, const NextPanel&, const Tile&);

template <class T, int... Index>
TileFunction tile_function(int64_t height, std::integer_sequence<int, Index...>) {
    static constexpr TileFunction kFunctions[] = {&tile_by_panel<T, Index + 1>...};
    return kFunctions[height - 1];
}

using SlabFunction = void (*)(PanelTotals*, const Slab&, const uint32_t*, int, Fetch&);

template <class S, int... Index>
SlabFunction slab_function(int64_t height, std::integer_sequence<int, Index...>) {
    static constexpr SlabFunction kFunctions[] = {&S::template add_rows<Index + 1>...};
    return kFunctions[height - 1];
}

// A tile of rows between slabs.
struct SlabTile {
    SlabFunction add_rows;
    PanelTotals* totals;
    const uint32_t* x;  // of the next slab
    int64_t height;
};

// The totals of a block of rows times a panel. While a slab is multiplied, the bytes of a later one are prefetched, at last those
// of the panel `onward`.
template <class T>
void multiply_by_slabs(int64_t depth, SlabTile* tiles, int64_t count, const std::byte* panel, const std::byte* onward) {
    constexpr int64_t kBlocks = kSlabInputs / T::kFormat.inputs, kBytes = kBlocks * T::kFormat.bytes();
    constexpr int64_t kFar = ceil_divide(kAhead, kBytes), kGroups = kBlocks * T::kGroups;
    const int64_t blocks = T::blocks(depth), slabs = ceil_divide(blocks, kBlocks);
    const int64_t goes = kGroups * T::Slabs::kGoes * count, pace = ceil_divide(kBytes / 64 * Fetch::kLine, goes);
    Slab slab;
    for (int64_t i = 0; i < slabs; ++i) {
        const int own = static_cast<int>(least(kBlocks, blocks - i * kBlocks));
        T::unpack(panel + i * kBytes, own, slab);
        const std::byte* rest = onward != nullptr ? onward - slabs * kBytes : nullptr;
        const std::byte* base = i + kFar < slabs ? panel : rest;
        Fetch fetch = base != nullptr ? Fetch::part(base + (i + kFar) * kBytes, 0, pace, false) : Fetch{};
        for (SlabTile* tile = tiles; tile != tiles + count; ++tile) {
            tile->add_rows(tile->totals, slab, tile->x, own * T::kGroups, fetch);
            tile->x += kGroups * T::kGroupWords * tile->height;
        }
    }
}

// A row of totals to the product's outputs.
void finish_row(const ProductArgs& a, int64_t row, int64_t panel, PanelTotals& totals, PanelTotals& others) {
    const int64_t column = panel * kPanel, left = a.outputs - column;
    const Target target{a.y + row * a.outputs + column, a.outputs, left};
    using Row = vf[1][kPanelVectors];
    auto& sums = reinterpret_cast<Row&>(totals.outputs);
    auto& factors = reinterpret_cast<Row&>(others.outputs);
    const auto bias_at = [=](const float* bias) { return bias == nullptr ? nullptr : bias + column; };
    add_bias(sums, bias_at(a.bias), left);
    if (a.up != nullptr) add_bias(factors, bias_at(a.up_bias), left);
    if (a.gates) load_rows(factors, target);
    if (a.up != nullptr || a.gates)
        gate(a.activation, totals.outputs, others.outputs, kPanelVectors);
    else if (a.activation.curve != Curve::none)
        activate(a.activation, totals.outputs, kPanelVectors);
    store_rows(sums, target);
}

template <class T>
void product_by_slabs(const ProductArgs& a, int64_t tile_begin, int64_t tile_end, int64_t panel, const NextPanel& next) {
    const int64_t all = tile_count<T>(a.tiled), offset = panel * T::panel_bytes(a.depth), count = tile_end - tile_begin;
    const int64_t first = tile_rows(tile_begin, all, a.tiled.rows).first;
    const auto end = tile_rows(tile_end - 1, all, a.tiled.rows);
    const int64_t rows = end.first + end.height - first;
    PanelTotals totals[kBlockRows], others[kBlockRows];
    const auto multiply_all = [&](const std::byte* weight, const std::byte* onward, PanelTotals* to) {
        SlabTile tiles[kBlockTiles<T>];
        for (int64_t tile = 0; tile < count; ++tile) {
            const auto [row, height] = tile_rows(tile_begin + tile, all, a.tiled.rows);
            const auto add_rows = slab_function<typename T::Slabs>(height, std::make_integer_sequence<int, T::kRows>{});
            const auto* x = reinterpret_cast<const uint32_t*>(a.x) + row * T::row_words(a.depth);
            tiles[tile] = {add_rows, to + (row - first), x, height};
        }
        std::memset(to, 0, static_cast<size_t>(rows) * sizeof *to);
        multiply_by_slabs<T>(a.depth, tiles, count, weight + offset, onward);
        if constexpr (kScalesOutputs<T>)
            for (int64_t row = 0; row < rows; ++row)
                for (int v = 0; v < kPanelVectors; ++v) to[row].outputs[v] = T::scaled(to[row].outputs[v], weight + offset, v);
    };
    for (int64_t row = first; row < first + rows; ++row)  // see tile_by_panel()
        prefetch_floats(a.y + row * a.outputs + panel * kPanel, kPanel);
    multiply_all(a.weight, a.up != nullptr ? a.up + offset : next.weight, totals);
    if (a.up != nullptr) multiply_all(a.up, next.weight, others);
    for (int64_t row = 0; row < rows; ++row) finish_row(a, first + row, panel, totals[row], others[row]);
}

template <class T>
void product_of(const ProductArgs& a, int64_t block, int64_t panel, const NextPanel& next) {
    const int64_t tiles = tile_count<T>(a.tiled), begin = block * kBlockTiles<T>;
    const int64_t end = least(begin + kBlockTiles<T>, tiles);
    if constexpr (T::kHasSlabs)
        if (a.tiled.rows > T::kDirectRows)
            return product_by_slabs<T>(a, begin, end, panel, next);
    using Heights = std::make_integer_sequence<int, static_cast<int>(least(T::kRows, T::kDirectRows))>;
    for (int64_t tile = begin; tile < end; ++tile) {
        const auto [row, height] = tile_rows(tile, tiles, a.tiled.rows);
        const auto run = tile_function<T>(height, Heights{});
        run(a, panel, next, {row, tile - begin, end - begin});
    }
}

}  // namespace

void read_row(Format format, const std::byte* panel, int64_t lane, int64_t depth, float* to) {
    with_tiles(format, [&](auto tiles) {
        using T = decltype(tiles);
        if constexpr (kReadsRows<T>) T::read_row(panel, lane, depth, to);
    });
}

int64_t packed_bytes(Format format, int64_t rows, int64_t depth) {
    return with_tiles(format, [&](auto tiles) {
        using T = decltype(tiles);
        return rows * T::row_words(depth) * static_cast<int64_t>(sizeof(typename T::X));
    });
}

int64_t row_tiles(const TiledRows& tiled) {
    return with_tiles(tiled.format, [&](auto tiles) { return tile_count<decltype(tiles)>(tiled); });
}

void pack(const TiledRows& tiled, const float* x, int64_t depth, int64_t tile_begin, int64_t tile_end, std::byte* out) {
    with_tiles(tiled.format, [&](auto tiles) {
        using T = decltype(tiles);
        for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
            const auto [first, height] = tile_rows(tile, tile_count<T>(tiled), tiled.rows);
            auto* base = reinterpret_cast<typename T::X*>(out) + first * T::row_words(depth);
            T::pack_rows(x + first * depth, depth, height, base);
        }
    });
}

int64_t row_blocks(const TiledRows& tiled) {
    return with_tiles(tiled.format, [&](auto tiles) {
        using T = decltype(tiles);
        return ceil_divide(tile_count<T>(tiled), kBlockTiles<T>);
    });
}

void product(const ProductArgs& a, int64_t block, int64_t panel, const NextPanel& next) {
    with_tiles(a.tiled.format, [&](auto tiles) { product_of<decltype(tiles)>(a, block, panel, next); });
}

}  // namespace ferrum::FERRUM_TIER
