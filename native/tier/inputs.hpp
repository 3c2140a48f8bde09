// Inputs of integer products: rounded to bytes in blocks, each with a scale (quant/activations.py).
#pragma once

#include "codes.hpp"
#include "transpose.hpp"

namespace ferrum::FERRUM_TIER {

constexpr int64_t kBlockInputs = 128;  // inputs of a row that share a scale: whole groups of the weight, however large those are

// Inputs of a row that are rounded in one go: whole blocks, and what is kept of each group, of 32 at least, is one vector.
constexpr int64_t kRounded = 32 * kLanes;
constexpr int64_t kRoundedBlocks = kRounded / kBlockInputs;
static_assert(kRounded % kBlockInputs == 0 && kBlockInputs % 32 == 0);

// The words of a packed row, for weights in groups of GROUP inputs: of each block its scale max|x| / 127, then of each of its groups
// the codes round(x * (127 / max|x|)) and what the group's sums start at.
template <int GROUP>
struct RowWords {
    static constexpr int64_t kCodes = GROUP / kWordInputs, kGroup = kCodes + 1, kTogether = kBlockInputs / GROUP;
    static_assert(kBlockInputs % GROUP == 0);

    static constexpr int64_t groups(int64_t depth) { return ceil_divide(depth, GROUP); }
    static constexpr int64_t count(int64_t depth) { return groups(depth) * kGroup + ceil_divide(depth, kBlockInputs); }
    static constexpr int64_t scale_at(int64_t block) { return block * (kTogether * kGroup + 1); }
    static constexpr int64_t group_at(int64_t group) { return group * kGroup + group / kTogether + 1; }
};

// Of kRounded inputs each of up to ROWS rows, and of each block: 127 / max|x| and max|x| / 127. Blocks of several rows share the way
// of their maxima across the lanes and the two divisions, for which a row alone would wait.
template <int ROWS>
struct BlockScales {
    static constexpr int kTogether = kLanes / kRoundedBlocks;  // rows
    static constexpr int kRoom = ceil_divide(ROWS, kTogether) * kTogether;

    float inverses[kRoom][kRoundedBlocks], scales[kRoom][kRoundedBlocks];

    BlockScales(const float* const* rows, int64_t count) {
        for (int64_t first = 0; first < count; first += kTogether) {
            vi largest[kLanes] = {};
            for (int64_t r = 0; r < least(kTogether, count - first); ++r)
                for (int block = 0; block < kRoundedBlocks; ++block) {
                    vi so_far{};
#pragma GCC unroll 8
                    for (int i = 0; i < kBlockInputs; i += kLanes)
                        so_far = larger(so_far, magnitude(load<vf>(rows[first + r] + block * kBlockInputs + i)));
                    largest[r * kRoundedBlocks + block] = so_far;
                }
            const WholeScale<vf, vi> scale(fold_each(largest, [](vi a, vi b) { return larger(a, b); }), 127.0f);
            store(inverses[first], scale.inverse);
            store(scales[first], scale.scale);
        }
    }
};

// kRounded inputs of a row as such words, by its blocks' scales; sums start at minus `offset` times the sum of their group's codes
// (quant/activations.py). One group alone would wait for its sum to cross the lanes.
template <int GROUP>
inline void round_inputs(const float* x, const float* inverses, const float* scales, uint32_t offset, uint32_t* words) {
    using Words = RowWords<GROUP>;
    constexpr int kGroups = kRounded / GROUP;
    vi sums[kLanes] = {};
#pragma GCC unroll 16
    for (int g = 0; g < kGroups; ++g) {
        const float inverse = inverses[g * GROUP / kBlockInputs];
        vu sum{};
        for (int i = 0; i < GROUP; i += kLanes) {
            const vu whole = nearest_bits(load<vf>(x + g * GROUP + i) * spread(inverse));
            sum += whole;
            store_inputs(words + Words::group_at(g) + i / kWordInputs, whole);
        }
        // Codes of a block that is not finite may be anything: their sum is that of zeros.
        sums[g] = (vi)(inverse != 0.0f ? sum : spread(GROUP / kLanes * kWholeBits));
    }
    const vu folded = (vu)fold_each(sums, [](vi a, vi b) { return (vi)((vu)a + (vu)b); });
    uint32_t starts[kLanes];
    store(starts, start_words((spread(GROUP * kWholeBits) - folded) * offset));
#pragma GCC unroll 16
    for (int g = 0; g < kGroups; ++g) words[Words::group_at(g) + Words::kCodes] = starts[g];
#pragma GCC unroll 4
    for (int block = 0; block < kRoundedBlocks; ++block)
        std::memcpy(words + Words::scale_at(block), scales + block, sizeof *scales);
}

}  // namespace ferrum::FERRUM_TIER
