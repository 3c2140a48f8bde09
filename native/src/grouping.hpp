// Groups of the integer formats, and the contents of a panel per group.
//
//   codes        int8: a row of 32 words for every 4 inputs, bytes code + 128
//                int4: a row of 32 words for every 8 inputs; in byte i of row j the low nibble is input 8 j + i and the high
//                nibble input 8 j + 4 + i, each code + 8, or the code with zero points
//   scales       32 in f16
// 32 in u16, if the format has them: the number is code - zero point
#pragma once

#include <cstdint>

#include "kernel_table.hpp"

namespace ferrum {

struct Grouping {
    int64_t inputs;  // of a group; 0 for float formats
    bool nibbles, zero_points;
    int64_t code_bytes, bytes;  // per group of a panel: codes only, all parts
};

// Internal linkage here and below, because every tier compiles this with its instruction set.
static constexpr Grouping groups_of(int64_t inputs, bool nibbles, bool zero_points) {
    const int64_t codes = kPanel * inputs / (nibbles ? 2 : 1);
    return {inputs, nibbles, zero_points, codes, codes + kPanel * (zero_points ? 4 : 2)};
}

static constexpr Grouping grouping(Format format) {
    switch (format) {
        case Format::int8: return groups_of(32, false, false);
        case Format::int8_64: return groups_of(64, false, false);
        case Format::int8_128: return groups_of(128, false, false);
        case Format::int4: return groups_of(32, true, false);
        case Format::int4_64: return groups_of(64, true, false);
        case Format::int4_128: return groups_of(128, true, false);
        case Format::int4_zero_32: return groups_of(32, true, true);
        case Format::int4_zero_64: return groups_of(64, true, true);
        case Format::int4_zero_128: return groups_of(128, true, true);
        default: return {};
    }
}

}  // namespace ferrum
