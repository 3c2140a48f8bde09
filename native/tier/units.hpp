// Tiles of the formats whose panels keep the bytes of files (quant/low_bits.py): 32 inputs of a vector of outputs are
// unpacked to bytes in registers, and multiplied by each row of the tile. Sums and their order are those of groups.hpp.
#pragma once

#include "codebooks.hpp"
#include "groups.hpp"

namespace ferrum::FERRUM_TIER {

constexpr int kUnit = 32, kUnitWords = kUnit / 4;

// Shifts by constants: others take two operations. Tiers without instructions for bytes would take minutes to compile.
#if defined(__AVX2__)
#define FERRUM_UNROLL_UNITS _Pragma("GCC unroll 8")
#else
#define FERRUM_UNROLL_UNITS
#endif

inline vi wide_bytes(const std::byte* from) {
#if defined(__AVX512VNNI__)
    return (vi)_mm512_cvtepu8_epi32(load<__m128i>(from));
#elif defined(__AVX2__)
    return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
#else
    const auto* bytes = reinterpret_cast<const uint8_t*>(from);
    return vi{bytes[0], bytes[1], bytes[2], bytes[3]};
#endif
}

inline vi look_up_word(const uint32_t* table, vi indices) {
#if defined(__AVX512VNNI__)
    return (vi)_mm512_i32gather_epi32((__m512i)indices, table, 4);
#elif defined(__AVX2__)
    return (vi)_mm256_i32gather_epi32(reinterpret_cast<const int*>(table), (__m256i)indices, 4);
#else
    return (vi)vu{table[indices[0]], table[indices[1]], table[indices[2]], table[indices[3]]};
#endif
}

inline vf floats(vi integers) { return __builtin_convertvector(integers, vf); }
inline vf odd(vi scales) { return floats(scales * 2 + 1); }

// Bytes of magnitudes from 1 on, negative where a bit of the lane's lowest four is set, plus 128.
inline vi with_signs(vi magnitudes, vi signs) {
#if defined(__AVX512VNNI__)
    const __m512i spread_bits = _mm512_mullo_epi32((__m512i)(signs & 15), _mm512_set1_epi32(0x00204081));
    const __mmask64 negative = _mm512_test_epi8_mask(spread_bits, _mm512_set1_epi32(0x01010101));
    const __m512i base = _mm512_set1_epi32(static_cast<int>(0x80808080));
    const __m512i sum = _mm512_add_epi8(base, (__m512i)magnitudes);
    return (vi)_mm512_mask_sub_epi8(sum, negative, base, (__m512i)magnitudes);
#else
    const vi ones = (signs & 15) * 0x00204081 & 0x01010101;
    return ((magnitudes ^ ((ones << 8) - ones)) + ones) ^ static_cast<int32_t>(0x80808080);
#endif
}

// Seven signs in each of four runs of bits from 0, 7, 14 and 21 on. The number of minus signs of eight is even.
class EvenSigns {
public:
    explicit EvenSigns(vi word) : word_((vu)word) {
        const vu pairs = word_ ^ (word_ >> 1), fours = pairs ^ (pairs >> 2);
        odd_ = fours ^ (pairs >> 4) ^ (word_ >> 6);  // bit i: the sum of bits i to i + 6
    }
    vi eight(int run) const { return (vi)(((word_ >> (7 * run)) & 127u) | (((odd_ >> (7 * run)) & 1u) << 7)); }

private:
    vu word_, odd_;
};

// A block of kLanes outputs: fields at their first byte in the file.
struct LowBlock {
    const std::byte* block;
    int lane;

    const std::byte* at(int byte, int width) const { return block + byte * kPanel + lane * width; }
    vi word(int byte) const { return load<vi>(at(byte, 4)); }
    vi pair(int byte) const { return (vi)widen_words(at(byte, 2)); }
    vi byte(int byte) const { return wide_bytes(at(byte, 1)); }
    vf half(int byte) const { return widen_halves(at(byte, 2)); }
};

// What a unit is unpacked to: words of stored codes (integer + offset), scales and minima of its groups.
struct Unit {
    vi words[kUnitWords];
    vf scale[2], minimum[2];
};

// Two-bit codes of unit `u`, from 64 bytes.
inline void two_bits(const LowBlock& b, int first, int u, Unit& out) {
    for (int i = 0; i < kUnitWords; ++i) out.words[i] = (b.word(first + u / 4 * 32 + 4 * i) >> (2 * (u % 4))) & 0x03030303;
}

// Two words of a point of eight numbers.
template <size_t POINTS>
inline void eight_numbers(const uint32_t (&points)[POINTS], const ByteTable& levels, vi index, vi signs, vi* words) {
    const vi point = look_up_word(points, index);
    words[0] = with_signs(look_up(levels.entries, point & 0x0f0f0f0f), signs);
    words[1] = with_signs(look_up(levels.entries, (point >> 4) & 0x0f0f0f0f), signs >> 4);
}

static constexpr ByteTable kThreeLevels{{8, 25, 43}};
static constexpr int8_t kShifted[16] = {-7, 1, 9, -9, -1, 7};
static constexpr ByteTable kShiftedLevels = shifted_table(kShifted, -128);

// Two words of eight times a point of -1, 0 and 1, plus 1, or minus 1 where `minus` is 1.
inline void shifted_numbers(vi index, vi minus, vi* words) {
    const vi point = look_up_word(codebooks.iq1_s, index), added = minus * 0x03030303;
    words[0] = look_up(kShiftedLevels.entries, (point & 0x0f0f0f0f) + added);
    words[1] = look_up(kShiftedLevels.entries, ((point >> 4) & 0x0f0f0f0f) + added);
}

// Reads a block of a format; unpack() reads its units.
template <Format FORMAT>
struct LowReader;

template <>
struct LowReader<Format::q2_k> : LowBlock {
    vf d, m;

    explicit LowReader(const LowBlock& b) : LowBlock(b), d(half(80)), m(half(82)) {}
    void unpack(int u, Unit& out) const {
        two_bits(*this, 16, u, out);
        for (int h = 0; h < 2; ++h) {
            const vi both = byte(2 * u + h);
            out.scale[h] = d * floats(both & 15);
            out.minimum[h] = -(m * floats(both >> 4));
        }
    }
};

template <>
struct LowReader<Format::q3_k> : LowBlock {
    vf d;

    explicit LowReader(const LowBlock& b) : LowBlock(b), d(half(108)) {}
    void unpack(int u, Unit& out) const {
        two_bits(*this, 32, u, out);
        for (int i = 0; i < kUnitWords; ++i) {
            const vi third = word(4 * i);
            out.words[i] |= (u < 2 ? third << ((2 - u) & 31) : third >> ((u - 2) & 31)) & 0x04040404;
        }
        for (int h = 0; h < 2; ++h) {
            const int group = 2 * u + h;
            const vi low = (byte(96 + group % 8) >> (group / 8 * 4)) & 15;
            const vi high = (byte(104 + group % 4) >> (group / 4 * 2)) & 3;
            out.scale[h] = d * floats((low | high << 4) - 32);
        }
    }
};

template <>
struct LowReader<Format::iq2_xxs> : LowBlock {
    vf d;

    explicit LowReader(const LowBlock& b) : LowBlock(b), d(half(0)) {}
    void unpack(int u, Unit& out) const {
        const vi points = word(2 + 8 * u), rest = word(6 + 8 * u);
        const EvenSigns signs(rest);
        for (int i = 0; i < 4; ++i)
            eight_numbers(codebooks.iq2_xxs, kThreeLevels, (points >> (8 * i)) & 255, signs.eight(i), out.words + 2 * i);
        out.scale[0] = d * (odd((vi)((vu)rest >> 28)) * 0.125f);
    }
};

template <>
struct LowReader<Format::iq2_xs> : LowBlock {
    vf d;

    explicit LowReader(const LowBlock& b) : LowBlock(b), d(half(0)) {}
    void unpack(int u, Unit& out) const {
        for (int i = 0; i < 4; ++i) {
            const vi code = pair(2 + 8 * u + 2 * i);
            eight_numbers(codebooks.iq2_xs, kThreeLevels, code & 511, EvenSigns(code >> 9).eight(0), out.words + 2 * i);
        }
        const vi scales = byte(66 + u);
        out.scale[0] = d * (odd(scales & 15) * 0.125f);
        out.scale[1] = d * (odd(scales >> 4) * 0.125f);
    }
};

template <>
struct LowReader<Format::iq2_s> : LowBlock {
    vf d;

    explicit LowReader(const LowBlock& b) : LowBlock(b), d(half(0)) {}
    void unpack(int u, Unit& out) const {
        const vi points = word(2 + 4 * u), signs = word(34 + 4 * u), upper = byte(66 + u), scales = byte(74 + u);
        for (int i = 0; i < 4; ++i) {
            const vi index = ((points >> (8 * i)) & 255) | ((upper >> (2 * i)) & 3) << 8;
            eight_numbers(codebooks.iq2_s, kThreeLevels, index, signs >> (8 * i), out.words + 2 * i);
        }
        out.scale[0] = d * (odd(scales & 15) * 0.125f);
        out.scale[1] = d * (odd(scales >> 4) * 0.125f);
    }
};

template <>
struct LowReader<Format::iq3_xxs> : LowBlock {
    vf d;

    explicit LowReader(const LowBlock& b) : LowBlock(b), d(half(0)) {}
    void unpack(int u, Unit& out) const {
        const vi rest = word(66 + 4 * u);
        const EvenSigns signs(rest);
        for (int i = 0; i < kUnitWords; ++i) {
            const vi index = (word(2 + 8 * u + i / 4 * 4) >> (i % 4 * 8)) & 255;
            out.words[i] = with_signs(look_up_word(codebooks.iq3_xxs, index), signs.eight(i / 2) >> (i % 2 * 4));
        }
        out.scale[0] = d * (odd((vi)((vu)rest >> 28)) * 0.25f);
    }
};

template <>
struct LowReader<Format::iq3_s> : LowBlock {
    vf d;

    explicit LowReader(const LowBlock& b) : LowBlock(b), d(half(0)) {}
    void unpack(int u, Unit& out) const {
        const vi upper = byte(66 + u), signs = word(74 + 4 * u);
        for (int i = 0; i < kUnitWords; ++i) {
            const vi index = ((word(2 + 8 * u + i / 4 * 4) >> (i % 4 * 8)) & 255) | ((upper >> i) & 1) << 8;
            out.words[i] = with_signs(look_up_word(codebooks.iq3_s, index), signs >> (4 * i));
        }
        out.scale[0] = d * odd((byte(106 + u / 2) >> (u % 2 * 4)) & 15);
    }
};

template <>
struct LowReader<Format::iq1_s> : LowBlock {
    vf d;

    explicit LowReader(const LowBlock& b) : LowBlock(b), d(half(0)) {}
    void unpack(int u, Unit& out) const {
        const vi points = word(2 + 4 * u), rest = pair(34 + 2 * u);
        for (int i = 0; i < 4; ++i)
            shifted_numbers(((points >> (8 * i)) & 255) | ((rest >> (3 * i)) & 7) << 8, rest >> 15, out.words + 2 * i);
        out.scale[0] = d * (odd((rest >> 12) & 7) * 0.125f);
    }
};

template <>
struct LowReader<Format::iq1_m> : LowBlock {
    vf d;

    explicit LowReader(const LowBlock& b) : LowBlock(b) {
        const vi bits = (pair(48) >> 12) | ((pair(50) >> 8) & 0xf0) | ((pair(52) >> 4) & 0xf00) | (pair(54) & 0xf000);
        const vh halves = __builtin_convertvector(bits, vh);
        d = widen_halves(reinterpret_cast<const std::byte*>(&halves));
    }
    void unpack(int u, Unit& out) const {
        const vi points = word(4 * u), rest = pair(32 + 2 * u);
        for (int i = 0; i < 4; ++i) {
            const vi four = rest >> (4 * i);
            shifted_numbers(((points >> (8 * i)) & 255) | (four & 7) << 8, (four >> 3) & 1, out.words + 2 * i);
        }
        const vi scales = pair(48 + u / 2 * 2);
        for (int h = 0; h < 2; ++h) out.scale[h] = d * (odd((scales >> (3 * (u % 2 * 2 + h))) & 7) * 0.125f);
    }
};

template <>
struct LowReader<Format::tq2_0> : LowBlock {
    vf d;

    explicit LowReader(const LowBlock& b) : LowBlock(b), d(half(64)) {}
    void unpack(int u, Unit& out) const {
        two_bits(*this, 0, u, out);
        out.scale[0] = d;
    }
};

// Digits of base 3: a byte has five, as a fraction of 256. Input i of a block is digit `place` of a byte.
template <>
struct LowReader<Format::tq1_0> : LowBlock {
    vf d;

    explicit LowReader(const LowBlock& b) : LowBlock(b), d(half(52)) {}
    static vi digits(vi bytes, int place) {
        static constexpr int32_t kPowers[] = {1, 3, 9, 27, 81};
        constexpr int32_t kEven = 0x00ff00ff;
        const vi even = (bytes & kEven) * kPowers[place] & kEven, uneven = ((bytes >> 8) & kEven) * kPowers[place] & kEven;
        return ((even * 3 >> 8) & kEven) | (uneven * 3 & static_cast<int32_t>(0xff00ff00));
    }
    void unpack(int u, Unit& out) const {
        for (int i = 0; i < kUnitWords; ++i) {
            const int k = kUnit * u + 4 * i;  // 160 inputs from 32 bytes, 80 from 16, 16 from 4
            if (k < 160) out.words[i] = digits(word(k % 32), k / 32);
            else if (k < 240) out.words[i] = digits(word(32 + k % 16), (k - 160) / 16);
            else out.words[i] = digits(word(48), (k - 240) / 4);
        }
        out.scale[0] = d;
    }
};

template <>
struct LowReader<Format::nvfp4> : LowBlock {
    static constexpr ByteTable kNumbers = shifted_table(kFp4, -128);

    explicit LowReader(const LowBlock& b) : LowBlock(b) {}
    void unpack(int u, Unit& out) const {
        for (int h = 0; h < 2; ++h) {
            for (int i = 0; i < 2; ++i) {
                const vi codes = word(4 + 16 * u + 8 * h + 4 * i);
                out.words[4 * h + i] = look_up(kNumbers.entries, codes & 0x0f0f0f0f);
                out.words[4 * h + 2 + i] = look_up(kNumbers.entries, (codes >> 4) & 0x0f0f0f0f);
            }
            const vi scale = byte(2 * u + h);  // four bits of exponent, three of the fraction; 127 counts as 0
            // Exponent 0 has fractions of 2^-7: as exponent 1, less its 1. So no number on the way is below 2^-126.
            const vi small = (scale & 0x78) == 0, bits = ((scale & 127) << 20) + (119 << 23) + (small & (1 << 23));
            const vf number = (vf)bits - (vf)(small & 0x3c000000);
            out.scale[h] = (vf)((vi)number & (scale != 127));
        }
    }
};

// Codes of 2 to 4 bits less the zero point of a group (quant/zero_points.py).
template <int BITS, int GROUP>
struct ZeroReader : LowBlock {
    static constexpr int kScales = 16 * BITS, kZeros = kScales + 256 / GROUP, kOffset = 1 << BITS;

    explicit ZeroReader(const LowBlock& b) : LowBlock(b) {}
    void unpack(int u, Unit& out) const {
        const vi zero = (pair(kZeros) >> (4 * u)) & (kOffset - 1), added = (kOffset - zero) * 0x01010101;
        for (int i = 0; i < kUnitWords; ++i) {
            vi codes;
            if (BITS == 4)
                codes = (word(16 * u + i / 2 * 4) >> (i % 2 * 4)) & 0x0f0f0f0f;
            else
                codes = (word(8 * u + i / 4 * 4) >> (i % 4 * 2)) & 0x03030303;
            if (BITS == 3) codes |= ((word(32 + 4 * u) >> i) & 0x01010101) << 2;
            out.words[i] = codes + added;
        }
        out.scale[0] = half(kScales + u * kUnit / GROUP * 2);
    }
};

template <>
struct LowReader<Format::q4_z32> : ZeroReader<4, 32> {
    using ZeroReader::ZeroReader;
};
template <>
struct LowReader<Format::q4_z64> : ZeroReader<4, 64> {
    using ZeroReader::ZeroReader;
};
template <>
struct LowReader<Format::q4_z128> : ZeroReader<4, 128> {
    using ZeroReader::ZeroReader;
};
template <>
struct LowReader<Format::q3_z32> : ZeroReader<3, 32> {
    using ZeroReader::ZeroReader;
};
template <>
struct LowReader<Format::q3_z64> : ZeroReader<3, 64> {
    using ZeroReader::ZeroReader;
};
template <>
struct LowReader<Format::q3_z128> : ZeroReader<3, 128> {
    using ZeroReader::ZeroReader;
};
template <>
struct LowReader<Format::q2_z32> : ZeroReader<2, 32> {
    using ZeroReader::ZeroReader;
};
template <>
struct LowReader<Format::q2_z64> : ZeroReader<2, 64> {
    using ZeroReader::ZeroReader;
};
template <>
struct LowReader<Format::q2_z128> : ZeroReader<2, 128> {
    using ZeroReader::ZeroReader;
};

template <Format FORMAT>
struct UnitTiles : GroupTiles<FORMAT> {
    using Base = GroupTiles<FORMAT>;
    using X = typename Base::X;
    using P = typename Base::P;
    using Slabs = typename Base::Slabs;
    static constexpr BlockFormat kFormat = Base::kFormat;
    static constexpr int kUnits = static_cast<int>(kFormat.inputs / kUnit), kParts = static_cast<int>(kUnit / kFormat.group);
    static constexpr int kWords = kUnitWords / kParts;  // of four inputs in a group
    static constexpr int64_t kStretchGoes = kUnits;
    static constexpr bool kHasSlabs = true;
    static constexpr int kDirectRows = 2;
    static constexpr int vectors(int) { return kPanelVectors; }

    // Unpack blocks of a panel.
    static void unpack(const std::byte* panel, int blocks, Slab& to) {
        int word = 0, group = 0;
        for (int block = 0; block < blocks; ++block, panel += kFormat.bytes()) {
            for (int v = 0; v < kPanelVectors; ++v) {
                const LowReader<FORMAT> reader({panel, v * kLanes});
FERRUM_UNROLL_UNITS
                for (int unit = 0; unit < kUnits; ++unit) {
                    Unit unpacked;
                    reader.unpack(unit, unpacked);
                    for (int i = 0; i < kUnitWords; ++i)
                        to.words[word + unit * kUnitWords + i][v] = stored_codes(unpacked.words[i]);
                    for (int part = 0; part < kParts; ++part) {
                        to.scales[group + unit * kParts + part][v] = unpacked.scale[part];
                        if (kFormat.minima) to.minima[group + unit * kParts + part][v] = unpacked.minimum[part];
                    }
                }
            }
            word += kUnits * kUnitWords, group += kUnits * kParts;
        }
    }

    static vi stored_codes(vi stored) {
#if !defined(FERRUM_FLOAT_SUMS)
        if (P::kBytes) return signed_codes(stored);
#endif
        return stored;
    }

    template <int MR, int NV>
    [[gnu::noinline]] static void multiply(vf (&total)[MR][NV], const std::byte* panel, int vector, const X* x, int64_t depth,
                                           const Fetch& given) {
        Fetch fetch = given;
        vf all[MR][NV] = {};
        for (int64_t left = Base::blocks(depth); left > 0; --left) {
            fetch.enter(left);
FERRUM_UNROLL_UNITS
            for (int unit = 0; unit < kUnits; ++unit) {
                fetch.go();
#pragma GCC unroll 8
                for (int v = 0; v < NV; ++v) {
                    const LowReader<FORMAT> block({panel, (vector + v) * kLanes});
                    Unit unpacked;
                    block.unpack(unit, unpacked);
#pragma GCC unroll 2
                    for (int part = 0; part < kParts; ++part)
                        add_part<MR, NV>(all, v, unpacked, part, x + part * Base::kGroupWords * MR);
                }
                x += kParts * Base::kGroupWords * MR;
            }
            panel += kFormat.bytes();
        }
        std::memcpy(total, all, sizeof all);
    }

    // Add a group to the totals of each row.
    template <int MR, int NV>
    [[gnu::always_inline]] static inline void add_part(vf (&total)[MR][NV], int v, const Unit& unit, int part, const X* x) {
        const X *others = x + Base::kWords * MR, *factors = others + MR;
#pragma GCC unroll 2
        for (int r = 0; r < MR; ++r) {
            Sums sum = kFormat.minima || P::kOffset == 0 ? Sums{} : spread_word(others[r]);
            constexpr int kRun = Slabs::kPairs ? pair_words<FORMAT>() : kWords;
#pragma GCC unroll 2
            for (int first = 0; first < kWords; first += kRun) {
                Sums run = Slabs::kPairs ? Sums{} : sum;
#pragma GCC unroll 8
                for (int i = first; i < first + kRun; ++i) {
                    const vi codes = stored_codes(unit.words[part * kWords + i]);
                    run = Slabs::template add_word<MR>(run, codes, x + i * 4 / kWordInputs * MR + r, false);
                }
                sum = Slabs::kPairs ? Slabs::joined(sum, run) : run;
            }
            total[r][v] = fused(floats_of(sum), unit.scale[part] * (vf)spread(factors[r]), total[r][v]);
            if constexpr (kFormat.minima) total[r][v] = fused(unit.minimum[part], (vf)spread(others[r]), total[r][v]);
        }
    }

    // The numbers of an output, whose scales are multiplied and divided.
    static void read_row(const std::byte* panel, int64_t lane, int64_t depth, float* to, float factor = 1, float divisor = 1) {
        const int first = static_cast<int>(lane / kLanes * kLanes), own = static_cast<int>(lane % kLanes);
        for (int64_t k = 0; k < depth; k += kUnit) {
            Unit unit;
            LowReader<FORMAT>({panel + k / kFormat.inputs * kFormat.bytes(), first})
                .unpack(static_cast<int>(k % kFormat.inputs / kUnit), unit);
            for (int64_t i = 0; i < least(kUnit, depth - k); ++i) {
                const int64_t part = i / kFormat.group;
                const auto word = static_cast<uint32_t>(unit.words[i / 4][own]);
                const int code = static_cast<int>(word >> (i % 4 * 8) & 255u) - kFormat.offset;
                to[k + i] = static_cast<float>(code) * (unit.scale[part][own] * factor / divisor);
                if (kFormat.minima) to[k + i] += unit.minimum[part][own];
            }
        }
    }
};

}  // namespace ferrum::FERRUM_TIER
