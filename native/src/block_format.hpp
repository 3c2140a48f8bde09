// What a panel has per block of a format of weight_formats.hpp: quant/block_format.py and quant/panels.py describe both.
//
// A block of a panel, unless it keeps the bytes of a file: d and m of its 32 outputs (16 bits each), integer scales and minima of its groups (a byte each), and
// the rows of codes of its groups.
#pragma once

#include <cstdint>

#include "kernel_table.hpp"

namespace ferrum {

// Internal linkage here and below, because every tier compiles this with its instruction set.
static constexpr int8_t kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static constexpr int8_t kFp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// d alone, or times an integer per group; own: as tier/units.hpp reads them; floats: d alone, a float32, and codes are FP8
// numbers (E4M3).
enum class Scales { whole, unsigned_subs, signed_subs, own, floats };

struct BlockFormat {
    int64_t inputs;  // of a block; 0 for float formats
    int64_t group;   // inputs with a common scale
    int bits;        // of a code
    int offset;      // number = stored code - offset, or table[stored code]
    const int8_t* table;
    bool minima;
    Scales scales;
    bool wide_range;  // d is a bfloat16, not a float16
    // Of a block that panels keep as it is in a file (quant/low_bits.py), else 0: byte b of it is at kPanel b, as each of its
    // fields stands there for the 32 outputs together. Its bits and offset are those of integers in products.
    int64_t file_bytes = 0;
    bool output_scales = false;  // a panel begins with 32 factors and 32 divisors of its outputs, float32

    constexpr int64_t groups() const { return inputs / group; }
    constexpr bool whole() const { return scales == Scales::whole || scales == Scales::floats; }
    constexpr int64_t subs() const { return whole() ? 0 : groups(); }  // integers per output
    constexpr int64_t sub_at() const { return kPanel * (scales == Scales::floats ? 4 : 2) * (minima ? 2 : 1); }
    constexpr int64_t sub_m_at() const { return sub_at() + kPanel * subs(); }
    constexpr int64_t panel_header() const { return output_scales ? kPanel * 8 : 0; }
    constexpr int64_t header_bytes() const { return sub_at() + kPanel * subs() * (minima ? 2 : 1); }
    constexpr int64_t code_bytes() const { return kPanel * group * bits / 8; }  // of a group
    constexpr int64_t bytes() const { return file_bytes != 0 ? kPanel * file_bytes : header_bytes() + groups() * code_bytes(); }
    constexpr int code_rows() const { return static_cast<int>(group / (bits == 8 ? 4 : 8)); }  // of whole or low bits
};

static constexpr BlockFormat block_format(Format format) {
#define FERRUM_CASE(name, ...) \
    case Format::name: return {__VA_ARGS__};
    switch (format) {
        FERRUM_BLOCK_FORMATS(FERRUM_CASE)
        default: return {};
    }
#undef FERRUM_CASE
}

}  // namespace ferrum
