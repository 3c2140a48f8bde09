// Rows of a matrix turned into vectors of outputs, which is how panels hold them.
#pragma once

#include "math.hpp"

namespace ferrum::FERRUM_TIER {

// Lanes of two vectors in turns, from lane `FIRST` of each on. GCC has Clang's form of this only since version 12.
template <int FIRST, int... I>
inline vf in_turns(vf a, vf b, std::integer_sequence<int, I...>) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, (FIRST + I / 2 + I % 2 * kLanes)...);
#else
    return __builtin_shuffle(a, b, vi{(FIRST + I / 2 + I % 2 * kLanes)...});
#endif
}

// kLanes vectors of kLanes words, transposed in place. To interleave rows i and i + half is to rotate the bits of a word's
// place, (row, column), by one: after as many times as a row number has bits, the two have changed places.
inline void transpose(vf (&rows)[kLanes]) {
    constexpr auto kIndices = std::make_integer_sequence<int, kLanes>{};
    for (int times = kLanes; times > 1; times /= 2) {
        vf turned[kLanes];
#pragma GCC unroll 8
        for (int i = 0; i < kLanes / 2; ++i) {
            turned[2 * i] = in_turns<0>(rows[i], rows[i + kLanes / 2], kIndices);
            turned[2 * i + 1] = in_turns<kLanes / 2>(rows[i], rows[i + kLanes / 2], kIndices);
        }
        std::memcpy(rows, turned, sizeof turned);
    }
}

// Rows 0 to kLanes - 1 of a matrix, `row(i)` a vector of each, as columns[i][lane]; rows from `count` on are zeros.
template <class Row>
inline void turn_rows(int64_t count, vf (&columns)[kLanes], Row row) {
#pragma GCC unroll 16
    for (int lane = 0; lane < kLanes; ++lane) columns[lane] = lane < count ? row(lane) : vf{};
    transpose(columns);
}

// Folds the lanes of each vector into one lane: that of its number.
template <class Fold>
inline vi fold_each(const vi (&vectors)[kLanes], Fold fold) {
    vf lanes[kLanes];
    std::memcpy(lanes, vectors, sizeof lanes);
    transpose(lanes);
    vi all = (vi)lanes[0];
#pragma GCC unroll 15
    for (int i = 1; i < kLanes; ++i) all = fold(all, (vi)lanes[i]);
    return all;
}

// words [rows][stride], the first `count` of each row: word i of all rows, side by side, goes to place(i).
template <class Place>
inline void turn_words(const uint32_t* words, int64_t stride, int64_t count, int64_t rows, Place place) {
    for (int64_t first = 0; first < count; first += kLanes) {
        vf columns[kLanes];
        turn_rows(rows, columns, [&](int64_t row) { return load<vf>(words + row * stride + first); });
        for (int64_t i = 0; i < least(kLanes, count - first); ++i)
            store_part(reinterpret_cast<float*>(place(first + i)), columns[i], rows);
    }
}

}  // namespace ferrum::FERRUM_TIER
