// Tiles of NF4 (quant/normal_floats.py): 64 inputs of the panel's vectors are unpacked to float32 at a time, and multiplied as
// float32 weights are.
#pragma once

#include "codes.hpp"
#include "tiles.hpp"

namespace ferrum::FERRUM_TIER {

alignas(64) static constexpr float kNf4[16] = {-1,         -0.6961928f, -0.52507305f, -0.3949175f, -0.28444138f, -0.18477343f,
                                               -0.091050036f, 0,        0.0795803f,   0.1609302f,  0.2461123f,   0.33791524f,
                                               0.44070983f, 0.562617f,  0.72295684f,  1};

// The floats at the lowest four bits of each lane.
inline vf look_up_nf4(vi codes) {
#if defined(__AVX512VNNI__)
    return (vf)_mm512_permutexvar_ps((__m512i)codes, load<__m512>(kNf4));
#elif defined(__AVX2__)
    const __m256 low = _mm256_permutevar8x32_ps(load<__m256>(kNf4), (__m256i)codes);
    const __m256 high = _mm256_permutevar8x32_ps(load<__m256>(kNf4 + 8), (__m256i)codes);
    return (vf)_mm256_blendv_ps(low, high, (__m256)(codes << 28));
#else
    codes &= 15;
    return vf{kNf4[codes[0]], kNf4[codes[1]], kNf4[codes[2]], kNf4[codes[3]]};
#endif
}

struct NormalTiles : FloatTiles<F32> {
    static constexpr BlockFormat kFormat = block_format(Format::nf4);
    static constexpr int64_t kStretchBytes = kFormat.bytes(), kStretchGoes = kFormat.inputs / 8;

    static int64_t panel_bytes(int64_t depth) { return ceil_divide(depth, kFormat.inputs) * kFormat.bytes(); }

    // total = the tile's rows times the panel's vectors from `vector` on.
    template <int MR, int NV>
    [[gnu::noinline]] static void multiply(vf (&total)[MR][NV], const std::byte* panel, int vector, const float* x, int64_t depth,
                                           const Fetch& given) {
        Fetch fetch = given;  // in registers
        alignas(64) vf numbers[kFormat.inputs][NV];
        vf sum[MR][NV] = {};
        for (int64_t left = depth; left > 0; left -= kFormat.inputs) {
            fetch.enter(ceil_divide(left, kFormat.inputs));
            const std::byte* from = panel + vector * kLanes * 4;
            for (int i = 0; i < kFormat.inputs; i += 8) {
                fetch.go();
#pragma GCC unroll 4
                for (int v = 0; v < NV; ++v) unpack<NV>(from + v * kLanes * 4, i, numbers[i] + v);
            }
            const int64_t count = least(left, kFormat.inputs);
            accumulate<F32, MR, NV, MR, 1>(sum, reinterpret_cast<const std::byte*>(numbers), sizeof numbers[0], x, count, {nullptr, 0, 0});
            x += count * MR;
            panel += kFormat.bytes();
        }
        std::memcpy(total, sum, sizeof sum);
    }

    // The numbers of eight inputs from `input` on, `STEP` vectors apart.
    template <int STEP>
    [[gnu::always_inline]] static inline void unpack(const std::byte* block, int input, vf* to) {
        const vf scale = load<vf>(block);
        const vi codes = load<vi>(block + (1 + input / 8) * kPanel * 4);
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) to[i * STEP] = look_up_nf4((vi)((vu)codes >> (4 * i))) * scale;
    }

    // The numbers of an output.
    static void read_row(const std::byte* panel, int64_t lane, int64_t depth, float* to) {
        const std::byte* from = panel + lane / kLanes * kLanes * 4;
        for (int64_t k = 0; k < depth; k += 8) {
            vf numbers[8];
            unpack<1>(from + k / kFormat.inputs * kFormat.bytes(), static_cast<int>(k % kFormat.inputs), numbers);
            for (int64_t i = 0; i < least(8, depth - k); ++i) to[k + i] = numbers[i][lane % kLanes];
        }
    }
};

}  // namespace ferrum::FERRUM_TIER
