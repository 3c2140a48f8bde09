// Tiles of FP8 weights (E4M3): numbers are unpacked to pairs of bfloat16, exactly, and multiplied as bfloat16 weights are. The
// sum of 128 inputs starts at 0; it joins the output as fused(sum, scale, output), by the rule of pairs for numbers below
// 2^-126 (quant/block_weight.py).
#pragma once

#include "codes.hpp"
#include "tiles.hpp"

namespace ferrum::FERRUM_TIER {

#if defined(__AVX2__) || defined(FERRUM_NEON)

// An FP8 number is a sign, four bits of exponent and three of the fraction. In bfloat16, the upper byte is the sign and the
// exponent + 120 but its last bit; the lower byte is that bit and the fraction. Sizes below 8 are multiples of 2^-9 instead:
// kUpperSmall and kLowerSmall flip the bits that differ. NaN counts as 480.
static constexpr ByteTable kUpper{{60, 61, 62, 63, 64, 65, 66, 67, -68, -67, -66, -65, -64, -63, -62, -61}};
static constexpr ByteTable kUpperSmall{{0x3c, 0x07, 0x07, 0x07}};
static constexpr ByteTable kLowerSmall{{0, 0x10, -0x60, -0x10, 0x40, 0x70, 0x20, 0x10}};

// Entries of a table by bytes below 16; 0 for those from 16 to 127.
inline vi look_up_small(const ByteTable& table, vi bytes) {
#if defined(__AVX2__)
    bytes += 0x70707070;  // bytes from 128 on give 0
#endif
    return look_up(table.entries, bytes);
}

// The pairs (k, k + 1) and (k + 2, k + 3) of a word of FP8 numbers, which has k, k + 2, k + 1 and k + 3.
inline void unpack_float8(vi codes, vi& first, vi& second) {
    const vi sizes = codes & 0x7f7f7f7f;
    const vi upper = look_up(kUpper.entries, (codes >> 4) & 0x0f0f0f0f) ^ look_up_small(kUpperSmall, sizes);
    const vi lower = ((codes << 4) & static_cast<int32_t>(0xf0f0f0f0)) ^ look_up_small(kLowerSmall, sizes);
#if defined(__AVX512VNNI__)
    const __m512i exchanged = _mm512_set4_epi32(0x0e0f0c0d, 0x0a0b0809, 0x06070405, 0x02030001);
    first = (vi)_mm512_mask_shuffle_epi8((__m512i)lower, 0xaaaaaaaaaaaaaaaa, (__m512i)upper, exchanged);
    second = (vi)_mm512_mask_shuffle_epi8((__m512i)upper, 0x5555555555555555, (__m512i)lower, exchanged);
#else
    using Halves = uint16_t __attribute__((vector_size(4 * kLanes)));
    first = (vi)((Halves)upper << 8 | ((Halves)lower & 0x00ff));
    second = (vi)(((Halves)upper & 0xff00) | (Halves)lower >> 8);
#endif
}

#else

// The bits of a byte's number as f32.
inline vi float8_bits(vi byte) {
    const vi size = byte & 127, normal = (size << 20) + (120 << 23);  // with the difference of the exponents' biases
    return (size < 8 ? (vi)(__builtin_convertvector(size, vf) * 0x1p-9f) : normal) | (byte & 128) << 24;
}

inline void unpack_float8(vi codes, vi& first, vi& second) {
    first = (float8_bits(codes) >> 16 & 0xffff) | float8_bits(codes >> 16);
    second = (float8_bits(codes >> 8) >> 16 & 0xffff) | float8_bits(codes >> 24);
}

#endif

template <class P>
struct Float8Tiles {
    using X = typename P::X;
    static constexpr bool kNeedsMode = kHasFlushMode, kSplits = P::kSplits;
    using Unsplit = Float8Tiles<typename P::Unsplit>;
    static constexpr BlockFormat kFormat = block_format(Format::fp8);
    static constexpr bool kHasSlabs = false;
    static constexpr int kRows = kProductRows, kDirectRows = kRows;
    static constexpr int vectors(int rows) { return FloatTiles<P>::vectors(rows); }

    static constexpr int kWords = static_cast<int>(kFormat.inputs) / 4;  // of four inputs
    static constexpr int kBuffered = 8;  // words that are unpacked at once,
    static constexpr int kFew = 2;       // with more rows than these
    static constexpr int64_t kStretchBytes = kFormat.bytes(), kStretchGoes = kWords / 2;

    static int64_t blocks(int64_t depth) { return ceil_divide(depth, kFormat.inputs); }
    static int64_t row_words(int64_t depth) { return blocks(depth) * kWords * 2; }
    static int64_t panel_bytes(int64_t depth) { return blocks(depth) * kFormat.bytes(); }

    // Pack the rows of a tile to [pair][row].
    static void pack_rows(const float* rows, int64_t depth, int64_t height, X* out) {
        FloatTiles<P>::pack_rows(rows, depth, height, out);
        for (int64_t i = FloatTiles<P>::row_words(depth) * height; i < row_words(depth) * height; ++i) out[i] = X{};
    }

    // total = the tile's rows times the panel's vectors from `vector` on.
    template <int MR, int NV>
    [[gnu::noinline]] static void multiply(vf (&total)[MR][NV], const std::byte* panel, int vector, const X* x, int64_t depth,
                                           const Fetch& given) {
        Fetch fetch = given;  // in registers
        vf all[MR][NV];
#pragma GCC unroll 12
        for (int r = 0; r < MR; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) {
                all[r][v] = vf{};  // one by one: all at once, the compiler would use a slow string instruction
                stay_in_memory(all[r][v]);
            }
        for (int64_t left = blocks(depth); left > 0; --left) {
            fetch.enter(left);
            add_block<MR, NV>(all, panel, vector, x, fetch);
            panel += kFormat.bytes();
            x += kWords * 2 * MR;
        }
        std::memcpy(total, all, sizeof all);
    }

    // Add a block to the totals.
    template <int MR, int NV>
    [[gnu::always_inline]] static inline void add_block(vf (&total)[MR][NV], const std::byte* block, int vector, const X* x, Fetch& fetch) {
        constexpr int kAtOnce = MR <= kFew ? 2 : kBuffered;
        const std::byte* codes = block + kFormat.header_bytes() + vector * kLanes * 4;
        vf sum[MR][NV] = {};
        for (int words = 0; words < kWords; words += kAtOnce) {
            if constexpr (MR <= kFew)
                add_few<MR, NV>(sum, codes, x, fetch);
            else
                add_buffered<MR, NV>(sum, codes, x, fetch);
            codes += kAtOnce * kPanel * 4;
            x += kAtOnce * 2 * MR;
        }
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) {
            const vf scale = load<vf>(block + (vector + v) * kLanes * 4);
#pragma GCC unroll 12
            for (int r = 0; r < MR; ++r)
                total[r][v] = kSplits ? fused(sum[r][v], scale, total[r][v]) : fused_flushed(sum[r][v], scale, total[r][v]);
        }
    }

    // Add two words to few rows: pairs stay in registers.
    template <int MR, int NV>
    [[gnu::always_inline]] static inline void add_few(vf (&sum)[MR][NV], const std::byte* codes, const X* x, Fetch& fetch) {
        fetch.go();
#pragma GCC unroll 2
        for (int word = 0; word < 2; ++word)
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) {
                vi pairs[2];
                unpack_float8(load<vi>(codes + (word * kPanel + v * kLanes) * 4), pairs[0], pairs[1]);
#pragma GCC unroll 2
                for (int half = 0; half < 2; ++half)
#pragma GCC unroll 2
                    for (int part = 0; part < P::kParts; ++part) {
                        const auto weight = P::weight(reinterpret_cast<const std::byte*>(&pairs[half]), part);
#pragma GCC unroll 2
                        for (int r = 0; r < MR; ++r)
                            sum[r][v] = P::step_each(sum[r][v], weight, x + (2 * word + half) * MR + r, part);
                    }
            }
    }

    // Add kBuffered words: unpacking them before leaves the registers to either loop.
    template <int MR, int NV>
    [[gnu::always_inline]] static inline void add_buffered(vf (&sum)[MR][NV], const std::byte* codes, const X* x, Fetch& fetch) {
        alignas(64) vi pairs[2 * kBuffered][NV];
        for (int word = 0; word < kBuffered; ++word) {
            if (word % 2 == 0) fetch.go();
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v)
                unpack_float8(load<vi>(codes + (word * kPanel + v * kLanes) * 4), pairs[2 * word][v], pairs[2 * word + 1][v]);
        }
        accumulate<P, MR, NV, MR, 1>(sum, reinterpret_cast<const std::byte*>(pairs), sizeof pairs[0], x, 2 * kBuffered, {nullptr, 0, 0});
    }
};

}  // namespace ferrum::FERRUM_TIER
