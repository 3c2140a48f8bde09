// What a lane reads of 32 inputs of its output: signed bytes, and the scales and minima of one group or two. A lane has an
// output of a panel (quant/panels.py). Formats whose panels keep the bytes of files are in file_units.hpp.
#pragma once

#include "block_format.hpp"
#include "numbers.hpp"

namespace ferrum::cuda {

constexpr int kUnit = 32, kUnitWords = kUnit / 4;
constexpr unsigned kEach = 0x01010101u;  // times a number: that in each byte

struct alignas(16) Words {
    unsigned of[4];
};

template <class T>
FERRUM_DEVICE T load(const void* from) {
    return *static_cast<const T*>(from);
}

struct Unit {
    unsigned words[kUnitWords];
    float scale[2], minimum[2];
};

// A block of a panel: field `byte` of each output's block is at kPanel x byte, those of the 32 outputs together.
struct Block {
    const Byte* block;
    const unsigned* points;  // of the codebook

    FERRUM_DEVICE unsigned word(int byte) const { return load<unsigned>(block + byte * kPanel + lane() * 4); }
    FERRUM_DEVICE unsigned pair(int byte) const { return load<unsigned short>(block + byte * kPanel + lane() * 2); }
    FERRUM_DEVICE unsigned byte(int byte) const { return block[byte * kPanel + lane()]; }
    FERRUM_DEVICE float half(int byte) const { return half_to_float(pair(byte)); }
};

// Bytes below 128 less an offset up to 128, as signed bytes.
FERRUM_DEVICE unsigned less(unsigned bytes, unsigned offset) { return (bytes + (128u - offset) * kEach) ^ 0x80808080u; }

// The entries of eight indices: those in the low halves of the bytes, then those in the high halves.
FERRUM_DEVICE void look_up_8(unsigned low, unsigned high, unsigned indices, unsigned* words) {
    const unsigned a = permute(low, high, indices), b = permute(low, high, indices >> 16);
    words[0] = permute(a, b, 0x6420), words[1] = permute(a, b, 0x7531);
}
FERRUM_DEVICE void look_up_16(const unsigned (&table)[4], unsigned indices, unsigned* words) {
    const unsigned halves = 0x32103210u | (indices & 0x88888888u) >> 1, next = indices >> 16;
    const unsigned a = permute(permute(table[0], table[1], indices), permute(table[2], table[3], indices), halves);
    const unsigned b = permute(permute(table[0], table[1], next), permute(table[2], table[3], next), halves >> 16);
    words[0] = permute(a, b, 0x6420), words[1] = permute(a, b, 0x7531);
}

// The parts of a format: its layout, and unpack(), which reads a unit of a block. Here the formats with a d, perhaps an m,
// integer scales and rows of codes.
template <Format FORMAT>
struct Units : Block {
    static constexpr BlockFormat kFormat = block_format(FORMAT);
    static constexpr int kGroups = kFormat.inputs / kFormat.group, kParts = kUnit / kFormat.group, kWords = kFormat.group / 4;
    static constexpr bool kWhole = kFormat.scales == Scales::whole;
    static constexpr int kSubs = kFormat.minima ? 4 : 2, kSubMinima = kSubs + kGroups;
    static constexpr int kCodes = kWhole ? kSubs : kFormat.minima ? kSubMinima + kGroups : kSubMinima;
    static constexpr int kGroupBytes = kFormat.group * kFormat.bits / 8;
    static constexpr int kFileBytes = kCodes + kGroups * kGroupBytes, kPoints = 0;

    FERRUM_DEVICE void unpack(int unit, Unit& out) const {
        const float d = kFormat.wide_range ? bf16_to_float(pair(0)) : half(0), m = kFormat.minima ? half(2) : 0.0f;
        FERRUM_UNROLLED
        for (int part = 0; part < kParts; ++part) {
            const int group = unit * kParts + part;
            codes(kCodes + group * kGroupBytes, out.words + part * kWords);
            out.scale[part] = d, out.minimum[part] = m;
            if (kWhole) continue;
            const auto sub = static_cast<int>(byte(kSubs + group));
            out.scale[part] = d * static_cast<float>(kFormat.scales == Scales::signed_subs ? static_cast<signed char>(sub) : sub);
            if (kFormat.minima) out.minimum[part] = -(m * static_cast<float>(byte(kSubMinima + group)));
        }
    }

private:
    FERRUM_DEVICE void codes(int first, unsigned* words) const {
        if constexpr (kFormat.bits == 8) {
            FERRUM_UNROLLED
            for (int i = 0; i < kWords; ++i) words[i] = word(first + 4 * i) ^ 0x80808080u;
        } else {
            const unsigned upper = kFormat.bits > 4 ? word(first + kFormat.group / 2) : 0;
            FERRUM_UNROLLED
            for (int i = 0; i < kWords; i += 2) {
                const unsigned row = word(first + 2 * i);
                if constexpr (kFormat.table.used) {
                    constexpr Table kTable = kFormat.table;
                    const unsigned table[4] = {kTable.words[0], kTable.words[1], kTable.words[2], kTable.words[3]};
                    look_up_16(table, row, words + i);
                } else {
                    words[i] = number((row & 0x0f0f0f0fu) | upper_bits(upper, i));
                    words[i + 1] = number((row >> 4 & 0x0f0f0f0fu) | upper_bits(upper, i + 1));
                }
            }
        }
    }
    FERRUM_DEVICE static unsigned upper_bits(unsigned upper, int word) {
        if (kFormat.bits == 5) return (upper >> word & kEach) << 4;
        return kFormat.bits == 6 ? (upper >> (2 * word) & 3 * kEach) << 4 : 0;
    }
    FERRUM_DEVICE static unsigned number(unsigned codes) {
        return kFormat.offset == 0 ? codes : less(codes, kFormat.offset);
    }
};

}  // namespace ferrum::cuda
