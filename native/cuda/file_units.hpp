// Units of the formats whose panels keep the bytes of files: quant/low_bits.py, quant/zero_points.py. tier/units.hpp has
// the same formats for vectors.
#pragma once

#include "units.hpp"

namespace ferrum::cuda {

template <Format FORMAT, int POINTS = 0>
struct FileUnits : Block {
    static constexpr BlockFormat kFormat = block_format(FORMAT);
    static constexpr int kParts = kUnit / kFormat.group, kFileBytes = kFormat.file_bytes, kPoints = POINTS;
};

FERRUM_DEVICE float odd(unsigned scale) { return static_cast<float>(2 * scale + 1); }

// Bytes from 1 on, negative where a bit of the lowest four is set.
FERRUM_DEVICE unsigned with_signs(unsigned bytes, unsigned signs) {
    const unsigned ones = (signs & 15u) * 0x00204081u & kEach;
    return (bytes ^ ((ones << 8) - ones)) + ones;
}

// Seven signs and an eighth, so that the number of minus signs is even.
FERRUM_DEVICE unsigned even_signs(unsigned seven) {
    const unsigned pairs = seven ^ seven >> 4, fours = pairs ^ pairs >> 2;
    return seven | ((fours ^ fours >> 1) & 1u) << 7;
}

// Two-bit codes of a unit, from 64 bytes.
FERRUM_DEVICE void two_bits(const Block& b, int first, int unit, Unit& out) {
    FERRUM_UNROLLED
    for (int i = 0; i < kUnitWords; ++i) out.words[i] = b.word(first + unit / 4 * 32 + 4 * i) >> (2 * (unit % 4)) & 3 * kEach;
}

constexpr unsigned kThreeLevels = four_bytes(8, 25, 43, 0);
constexpr unsigned kShiftedLevels = four_bytes(-7, 1, 9, -9), kMoreLevels = four_bytes(-1, 7, 0, 0);

// Two words of a point of eight numbers, each the index of one of three levels.
FERRUM_DEVICE void eight_numbers(unsigned point, unsigned signs, unsigned* words) {
    look_up_8(kThreeLevels, 0, point, words);
    words[0] = with_signs(words[0], signs), words[1] = with_signs(words[1], signs >> 4);
}

// Two words of eight times a point of -1, 0 and 1, plus 1, or minus 1 where `minus` is 1.
FERRUM_DEVICE void shifted_numbers(unsigned point, unsigned minus, unsigned* words) {
    look_up_8(kShiftedLevels, kMoreLevels, point + minus * 0x33333333u, words);
}

template <>
struct Units<Format::q2_k> : FileUnits<Format::q2_k> {
    FERRUM_DEVICE void unpack(int unit, Unit& out) const {
        const float d = half(80), m = half(82);
        two_bits(*this, 16, unit, out);
        FERRUM_UNROLLED
        for (int part = 0; part < 2; ++part) {
            const unsigned both = byte(2 * unit + part);
            out.scale[part] = d * static_cast<float>(both & 15u);
            out.minimum[part] = -(m * static_cast<float>(both >> 4));
        }
    }
};

template <>
struct Units<Format::q3_k> : FileUnits<Format::q3_k> {
    FERRUM_DEVICE void unpack(int unit, Unit& out) const {
        two_bits(*this, 32, unit, out);
        FERRUM_UNROLLED
        for (int i = 0; i < kUnitWords; ++i) out.words[i] = less(out.words[i] | (word(4 * i) >> unit & kEach) << 2, 4);
        FERRUM_UNROLLED
        for (int part = 0; part < 2; ++part) {
            const int group = 2 * unit + part;
            const unsigned low = byte(96 + group % 8) >> (group / 8 * 4) & 15u;
            const unsigned high = byte(104 + group % 4) >> (group / 4 * 2) & 3u;
            out.scale[part] = half(108) * static_cast<float>(static_cast<int>(low | high << 4) - 32);
        }
    }
};

template <>
struct Units<Format::iq2_xxs> : FileUnits<Format::iq2_xxs, 256> {
    FERRUM_DEVICE void unpack(int unit, Unit& out) const {
        const unsigned codes = word(2 + 8 * unit), rest = word(6 + 8 * unit);
        FERRUM_UNROLLED
        for (int i = 0; i < 4; ++i)
            eight_numbers(points[codes >> (8 * i) & 255u], even_signs(rest >> (7 * i) & 127u), out.words + 2 * i);
        out.scale[0] = half(0) * (odd(rest >> 28) * 0.125f);
    }
};

template <>
struct Units<Format::iq2_xs> : FileUnits<Format::iq2_xs, 512> {
    FERRUM_DEVICE void unpack(int unit, Unit& out) const {
        FERRUM_UNROLLED
        for (int i = 0; i < 4; ++i) {
            const unsigned code = pair(2 + 8 * unit + 2 * i);
            eight_numbers(points[code & 511u], even_signs(code >> 9), out.words + 2 * i);
        }
        const unsigned scales = byte(66 + unit);
        out.scale[0] = half(0) * (odd(scales & 15u) * 0.125f);
        out.scale[1] = half(0) * (odd(scales >> 4) * 0.125f);
    }
};

template <>
struct Units<Format::iq2_s> : FileUnits<Format::iq2_s, 1024> {
    FERRUM_DEVICE void unpack(int unit, Unit& out) const {
        const unsigned codes = word(2 + 4 * unit), signs = word(34 + 4 * unit), upper = byte(66 + unit), scales = byte(74 + unit);
        FERRUM_UNROLLED
        for (int i = 0; i < 4; ++i)
            eight_numbers(points[(codes >> (8 * i) & 255u) | (upper >> (2 * i) & 3u) << 8], signs >> (8 * i), out.words + 2 * i);
        out.scale[0] = half(0) * (odd(scales & 15u) * 0.125f);
        out.scale[1] = half(0) * (odd(scales >> 4) * 0.125f);
    }
};

template <>
struct Units<Format::iq3_xxs> : FileUnits<Format::iq3_xxs, 256> {
    FERRUM_DEVICE void unpack(int unit, Unit& out) const {
        const unsigned rest = word(66 + 4 * unit);
        FERRUM_UNROLLED
        for (int i = 0; i < kUnitWords; i += 2) {
            const unsigned codes = word(2 + 8 * unit + i / 4 * 4) >> (i % 4 * 8), signs = even_signs(rest >> (i / 2 * 7) & 127u);
            out.words[i] = with_signs(points[codes & 255u], signs);
            out.words[i + 1] = with_signs(points[codes >> 8 & 255u], signs >> 4);
        }
        out.scale[0] = half(0) * (odd(rest >> 28) * 0.25f);
    }
};

template <>
struct Units<Format::iq3_s> : FileUnits<Format::iq3_s, 512> {
    FERRUM_DEVICE void unpack(int unit, Unit& out) const {
        const unsigned upper = byte(66 + unit), signs = word(74 + 4 * unit);
        FERRUM_UNROLLED
        for (int i = 0; i < kUnitWords; ++i) {
            const unsigned code = word(2 + 8 * unit + i / 4 * 4) >> (i % 4 * 8) & 255u;
            out.words[i] = with_signs(points[code | (upper >> i & 1u) << 8], signs >> (4 * i));
        }
        out.scale[0] = half(0) * odd(byte(106 + unit / 2) >> (unit % 2 * 4) & 15u);
    }
};

template <>
struct Units<Format::iq1_s> : FileUnits<Format::iq1_s, 2048> {
    FERRUM_DEVICE void unpack(int unit, Unit& out) const {
        const unsigned codes = word(2 + 4 * unit), rest = pair(34 + 2 * unit);
        FERRUM_UNROLLED
        for (int i = 0; i < 4; ++i)
            shifted_numbers(points[(codes >> (8 * i) & 255u) | (rest >> (3 * i) & 7u) << 8], rest >> 15, out.words + 2 * i);
        out.scale[0] = half(0) * (odd(rest >> 12 & 7u) * 0.125f);
    }
};

template <>
struct Units<Format::iq1_m> : FileUnits<Format::iq1_m, 2048> {
    FERRUM_DEVICE void unpack(int unit, Unit& out) const {
        const unsigned codes = word(4 * unit), rest = pair(32 + 2 * unit), scales = pair(48 + unit / 2 * 2);
        FERRUM_UNROLLED
        for (int i = 0; i < 4; ++i) {
            const unsigned four = rest >> (4 * i);
            shifted_numbers(points[(codes >> (8 * i) & 255u) | (four & 7u) << 8], four >> 3 & 1u, out.words + 2 * i);
        }
        const float d = half_to_float(pair(48) >> 12 | (pair(50) >> 8 & 0xf0u) | (pair(52) >> 4 & 0xf00u) | (pair(54) & 0xf000u));
        FERRUM_UNROLLED
        for (int part = 0; part < 2; ++part)
            out.scale[part] = d * (odd(scales >> (3 * (unit % 2 * 2 + part)) & 7u) * 0.125f);
    }
};

template <>
struct Units<Format::tq2_0> : FileUnits<Format::tq2_0> {
    FERRUM_DEVICE void unpack(int unit, Unit& out) const {
        two_bits(*this, 0, unit, out);
        FERRUM_UNROLLED
        for (int i = 0; i < kUnitWords; ++i) out.words[i] = less(out.words[i], 1);
        out.scale[0] = half(64);
    }
};

// Digits of base 3: a byte has five, as a fraction of 256. 160 inputs are from 32 bytes, 80 from 16, 16 from 4.
template <>
struct Units<Format::tq1_0> : FileUnits<Format::tq1_0> {
    FERRUM_DEVICE static unsigned digits(unsigned bytes, int place) {
        constexpr unsigned kEven = 0x00ff00ffu;
        const unsigned power = place == 0 ? 1 : place == 1 ? 3 : place == 2 ? 9 : place == 3 ? 27 : 81;
        const unsigned even = (bytes & kEven) * power & kEven, uneven = (bytes >> 8 & kEven) * power & kEven;
        return less((even * 3 >> 8 & kEven) | (uneven * 3 & ~kEven), 1);
    }
    FERRUM_DEVICE void unpack(int unit, Unit& out) const {
        FERRUM_UNROLLED
        for (int i = 0; i < kUnitWords; ++i) {
            const bool last = unit == 7 && i >= 4;
            const int first = unit < 5 ? 4 * i : last ? 48 : 32 + 4 * (i % 4);
            out.words[i] = digits(word(first), unit < 5 ? unit : last ? i - 4 : 2 * (unit - 5) + i / 4);
        }
        out.scale[0] = half(52);
    }
};

template <Format FORMAT>
struct Fp4Units : FileUnits<FORMAT> {
    FERRUM_DEVICE void unpack(int unit, Unit& out) const {
        const unsigned table[4] = {kFp4.words[0], kFp4.words[1], kFp4.words[2], kFp4.words[3]};
        FERRUM_UNROLLED
        for (int part = 0; part < 2; ++part) {
            FERRUM_UNROLLED
            for (int i = 0; i < 2; ++i) {
                unsigned both[2];
                look_up_16(table, this->word(4 + 16 * unit + 8 * part + 4 * i), both);
                out.words[4 * part + i] = both[0], out.words[4 * part + 2 + i] = both[1];
            }
            // Half an FP8 number without a sign; 127 counts as 0.
            const unsigned scale = this->byte(2 * unit + part), exponent = scale >> 3 & 15u;
            const float fraction = static_cast<float>(scale & 7u);
            const float normal = as_float((exponent + 119u) << 23) * (1.0f + fraction * 0.125f);
            out.scale[part] = scale == 127u ? 0.0f : exponent == 0 ? fraction * 9.765625e-4f : normal;
        }
    }
};
template <>
struct Units<Format::nvfp4> : Fp4Units<Format::nvfp4> {};
template <>
struct Units<Format::nvfp4_scaled> : Fp4Units<Format::nvfp4_scaled> {};

// Codes of 2 to 4 bits less the zero point of their group.
template <Format FORMAT, int BITS, int GROUP>
struct ZeroUnits : FileUnits<FORMAT> {
    static constexpr int kScales = 16 * BITS, kZeros = kScales + 256 / GROUP;
    static constexpr unsigned kMask = (1u << BITS) - 1;

    FERRUM_DEVICE void unpack(int unit, Unit& out) const {
        const unsigned zero = this->pair(kZeros) >> (4 * unit) & kMask, third = BITS == 3 ? this->word(32 + 4 * unit) : 0;
        FERRUM_UNROLLED
        for (int i = 0; i < kUnitWords; ++i) {
            unsigned codes;
            if (BITS == 4)
                codes = this->word(16 * unit + i / 2 * 4) >> (i % 2 * 4) & 15 * kEach;
            else
                codes = (this->word(8 * unit + i / 4 * 4) >> (i % 4 * 2) & 3 * kEach) | (third >> i & kEach) << 2;
            out.words[i] = less(codes, zero);
        }
        out.scale[0] = this->half(kScales + unit * kUnit / GROUP * 2);
    }
};
#define FERRUM_ZERO_UNITS(BITS, GROUP) \
    template <>                        \
    struct Units<Format::q##BITS##_z##GROUP> : ZeroUnits<Format::q##BITS##_z##GROUP, BITS, GROUP> {};
FERRUM_ZERO_UNITS(4, 32)
FERRUM_ZERO_UNITS(4, 64)
FERRUM_ZERO_UNITS(4, 128)
FERRUM_ZERO_UNITS(3, 32)
FERRUM_ZERO_UNITS(3, 64)
FERRUM_ZERO_UNITS(3, 128)
FERRUM_ZERO_UNITS(2, 32)
FERRUM_ZERO_UNITS(2, 64)
FERRUM_ZERO_UNITS(2, 128)
#undef FERRUM_ZERO_UNITS

}  // namespace ferrum::cuda
