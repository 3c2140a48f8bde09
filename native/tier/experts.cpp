// Scores of experts, rows packed for them, and the sum of their results.
#include "logarithm.hpp"
#include "tier.hpp"
#include "tiles.hpp"
#include "transpose.hpp"

namespace ferrum::FERRUM_TIER {

namespace {

vf square_root(vf x) {
    for (int lane = 0; lane < kLanes; ++lane) x[lane] = __builtin_sqrtf(x[lane]);
    return x;
}

constexpr int64_t kTileRows = most(kProductRows, kGroupRows);

// Rows packed alone, as a tile [word][row].
template <class Word>
void place_words(const std::byte* const* rows, int64_t height, int64_t words, std::byte* out) {
    for (int64_t r = 0; r < height; ++r)
        for (int64_t i = 0; i < words; ++i) {
            constexpr auto kBytes = static_cast<int64_t>(sizeof(Word));
            std::memcpy(out + (i * height + r) * kBytes, rows[r] + i * kBytes, sizeof(Word));
        }
}

// The same by vectors. A store may write beyond its word where a later one overwrites it.
void turn_words(const std::byte* const* rows, int64_t height, int64_t words, std::byte* out) {
    for (int64_t first = 0; first < words; first += kLanes) {
        const int64_t left = words - first;
        vf columns[kLanes];
        turn_rows(height, columns, [&](int64_t r) { return load_part(reinterpret_cast<const float*>(rows[r]) + first, left); });
        for (int64_t i = 0; i < least(kLanes, left); ++i) {
            auto* to = reinterpret_cast<float*>(out) + (first + i) * height;
            store_part(to, columns[i], (left - i) * height >= kLanes ? kLanes : height);
        }
    }
}

}  // namespace

void scores(Score score, const float* x, int64_t count, float peak, float* out) {
    for (int64_t i = 0; i < count; i += kLanes) {
        const vf from = load_part(x + i, count - i), one = spread(1.0f);
        vf to;
        switch (score) {
            case Score::softmax: to = exp(from - spread(peak)); break;
            case Score::sigmoid: to = one / (one + exp(-from)); break;
            default: to = square_root(softplus(from));
        }
        store_part(out + i, to, count - i);
    }
}

void gather_rows(const TiledRows& tiled, const std::byte* alone, const int32_t* ids, int64_t depth, int64_t tile_begin,
                 int64_t tile_end, std::byte* out) {
    const int64_t row_bytes = packed_bytes(tiled.format, 1, depth), tiles = row_tiles(tiled);
    for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
        const auto [first, height] = tile_rows(tile, tiles, tiled.rows);
        const std::byte* rows[kTileRows];
        for (int64_t r = 0; r < height; ++r) rows[r] = alone + ids[first + r] * row_bytes;
        std::byte* to = out + first * row_bytes;
        if ((tiled.format == Format::bf16 || tiled.format == Format::fp8) && sizeof(Bf16::X) == 8)
            place_words<uint64_t>(rows, height, row_bytes / 8, to);
        else if (kTileRows > kLanes)
            place_words<uint32_t>(rows, height, row_bytes / 4, to);
        else
            turn_words(rows, height, row_bytes / 4, to);
    }
}

void add_rows(const float* const* rows, const float* weights, int64_t count, int64_t begin, int64_t end, float* out) {
    for (int64_t i = begin; i < end; i += kLanes) {
        vf sum{};
        for (int64_t row = 0; row < count; ++row)
            sum = fused(load_part(rows[row] + i, end - i), spread(weights != nullptr ? weights[row] : 1.0f), sum);
        store_part(out + i, sum, end - i);
    }
}

}  // namespace ferrum::FERRUM_TIER
