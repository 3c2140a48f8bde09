// The formats of weights in blocks: the list of src/weight_formats.hpp as kernels use it. src/block_format.hpp has the
// meaning of each member.
#pragma once

#include "../src/weight_formats.hpp"
#include "device.hpp"

namespace ferrum::cuda {

enum class Scales { whole, unsigned_subs, signed_subs, own, floats };

FERRUM_CONSTANT_FUNCTION unsigned four_bytes(int a, int b, int c, int d) {
    return static_cast<unsigned>((a & 255) | (b & 255) << 8 | (c & 255) << 16) | static_cast<unsigned>(d & 255) << 24;
}

// The numbers of 16 codes, signed bytes.
struct Table {
    bool used = false;
    unsigned words[4] = {};

    FERRUM_CONSTANT_FUNCTION Table(decltype(nullptr)) {}
    FERRUM_CONSTANT_FUNCTION Table(unsigned a, unsigned b, unsigned c, unsigned d) : used(true), words{a, b, c, d} {}
};
constexpr Table kIq4(four_bytes(-127, -104, -83, -65), four_bytes(-49, -35, -22, -10), four_bytes(1, 13, 25, 38),
                     four_bytes(53, 69, 89, 113));
constexpr Table kFp4(four_bytes(0, 1, 2, 3), four_bytes(4, 6, 8, 12), four_bytes(0, -1, -2, -3), four_bytes(-4, -6, -8, -12));

struct BlockFormat {
    int inputs, group, bits, offset;
    Table table;
    bool minima;
    Scales scales;
    bool wide_range;
    int file_bytes = 0;
    bool output_scales = false;
};

FERRUM_CONSTANT_FUNCTION BlockFormat block_format(Format format) {
#define FERRUM_CASE(name, ...) \
    case Format::name: return {__VA_ARGS__};
    switch (format) {
        FERRUM_BLOCK_FORMATS(FERRUM_CASE)
        default: return {0, 0, 0, 0, nullptr, false, Scales::whole, false};
    }
#undef FERRUM_CASE
}

}  // namespace ferrum::cuda
