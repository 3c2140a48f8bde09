// Transposition of matrix rows to vectors of outputs, the layout of panels.
#pragma once

#include "math.hpp"

namespace ferrum::FERRUM_TIER {

// Lanes of two vectors: At::lane(i) for lane i, where the lanes of b follow those of a. GCC has Clang's form since
// version 12.
template <class At, int... I>
inline vf picked(vf a, vf b, std::integer_sequence<int, I...>) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, At::lane(I)...);
#else
    return __builtin_shuffle(a, b, vi{At::lane(I)...});
#endif
}

template <class At>
inline vf pick(vf a, vf b) {
    return picked<At>(a, b, std::make_integer_sequence<int, kLanes>());
}

// Alternate the lanes of both, from lane FIRST of each on.
template <int FIRST>
struct InTurns {
    static constexpr int lane(int i) { return FIRST + i / 2 + i % 2 * kLanes; }
};
using LowInTurns = InTurns<0>;
using HighInTurns = InTurns<kLanes / 2>;

// Swap the halves of the lanes.
struct HalvesSwapped {
    static constexpr int lane(int i) { return (i + kLanes / 2) % kLanes; }
};

// Transpose kLanes vectors of kLanes words in place. Interleaving rows i and i + half rotates the bits of a word's
// index (row, column) by one; after one rotation per bit of a row number, rows and columns are exchanged.
inline void transpose(vf (&rows)[kLanes]) {
    for (int times = kLanes; times > 1; times /= 2) {
        vf turned[kLanes];
#pragma GCC unroll 8
        for (int i = 0; i < kLanes / 2; ++i) {
            turned[2 * i] = pick<LowInTurns>(rows[i], rows[i + kLanes / 2]);
            turned[2 * i + 1] = pick<HighInTurns>(rows[i], rows[i + kLanes / 2]);
        }
        std::memcpy(rows, turned, sizeof turned);
    }
}

// Rows 0 to kLanes - 1 of a matrix (`row(i)` is a vector of each), as columns[i][lane]; rows from `count` on are zeros.
template <class Row>
inline void turn_rows(int64_t count, vf (&columns)[kLanes], Row row) {
#pragma GCC unroll 16
    for (int lane = 0; lane < kLanes; ++lane) columns[lane] = lane < count ? row(lane) : vf{};
    transpose(columns);
}

// Reduce the lanes of each vector to one lane: the lane with its number. This is a transposition that only computes the
// sums: interleaved vectors are reduced in halves, so that each step halves the number of vectors.
template <class Fold>
inline vi fold_each(const vi (&vectors)[kLanes], Fold fold) {
    vf lanes[kLanes];
    std::memcpy(lanes, vectors, sizeof lanes);
#pragma GCC unroll 4
    for (int left = kLanes / 2; left > 0; left /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < left; ++i) {
            const vf low = pick<LowInTurns>(lanes[i], lanes[i + left]), high = pick<HighInTurns>(lanes[i], lanes[i + left]);
            lanes[i] = (vf)fold((vi)low, (vi)high);
        }
    return (vi)lanes[0];
}

// words [rows][stride], the first `count` of each row: word i of all rows is written to place(i). A vector has TIMES
// pieces of a row, each in a group of lanes for all rows.
template <int TIMES, class Place>
inline void turn_words(const uint32_t* words, int64_t stride, int64_t count, int64_t rows, Place place) {
    constexpr int64_t kRoom = kLanes / TIMES;
    for (int64_t first = 0; first < count; first += TIMES * kLanes) {
        vf columns[kLanes];
        turn_rows(kLanes, columns, [&](int64_t lane) {
            const int64_t row = lane % kRoom, word = first + lane / kRoom * kLanes;
            return row < rows && word < count ? load<vf>(words + row * stride + word) : vf{};
        });
#pragma GCC unroll 16
        for (int64_t i = 0; i < kLanes; ++i) {
            const auto put = [&](int64_t word, vf column) {
                if (word < count) store_part(reinterpret_cast<float*>(place(word)), column, rows);
            };
            put(first + i, columns[i]);
            if constexpr (TIMES == 2) put(first + kLanes + i, pick<HalvesSwapped>(columns[i], columns[i]));
        }
    }
}

}  // namespace ferrum::FERRUM_TIER
