// One vector type per instruction tier, over the compiler's vector extensions, with intrinsics for the operations that
// these lack. FERRUM_TIER is the namespace of the tier: the same sources are compiled once per tier, so no name may be
// shared between tiers (the linker would keep one of the two).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(FERRUM_NEON)
#include <arm_neon.h>
#endif

#include "kernel_table.hpp"

// Whether the compiler has an instruction for a fused multiply-add.
#if defined(__FP_FAST_FMAF) || defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__riscv_flen)
#define FERRUM_FUSES
#endif

namespace ferrum::FERRUM_TIER {

#if defined(__AVX512VNNI__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

using vf = float __attribute__((vector_size(4 * kLanes)));
using vi = int32_t __attribute__((vector_size(4 * kLanes)));
using vu = uint32_t __attribute__((vector_size(4 * kLanes)));
using vh = uint16_t __attribute__((vector_size(2 * kLanes)));

// AVX-512 and NEON have 32 vector registers, the others 16.
#if defined(__AVX512VNNI__) || defined(FERRUM_NEON)
constexpr bool kManyRegisters = true;
#else
constexpr bool kManyRegisters = false;
#endif

// Register tiles: rows by vectors of a product of floats, and of one of integers. They fill the register file without
// spilling in the inner loop.
constexpr int kProductRows = kLanes == 16 ? 12 : kLanes == 8 || kManyRegisters ? 6 : 3;
constexpr int product_vectors(int rows) { return rows <= (kManyRegisters ? 6 : 3) ? 4 : 2; }
constexpr int kGroupRows = kManyRegisters ? 6 : 4;
constexpr int group_vectors(int rows) { return kLanes <= 8 && rows <= 2 ? 4 : 2; }
constexpr int kTotalSums = kManyRegisters ? 12 : 4;  // up to this, the sums of a group and the totals are in registers together
#if defined(FERRUM_FUSES)
constexpr bool kFuses = true;
#else
constexpr bool kFuses = false;
#endif
constexpr int kPanelVectors = static_cast<int>(kPanel) / kLanes;
constexpr int kStepVectors = static_cast<int>(kStep) / kLanes;

template <class V, class T>
inline V load(const T* from) {
    V v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

template <class V, class T>
inline void store(T* to, V v) {
    std::memcpy(to, &v, sizeof v);
}

// The first `count` lanes; the others are 0.
inline vf load_part(const float* from, int64_t count) {
    if (count >= kLanes) return load<vf>(from);
#if defined(__AVX512VNNI__)
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1 << count) - 1), from);
#else
    vf v{};
    std::memcpy(&v, from, static_cast<size_t>(count) * sizeof(float));
    return v;
#endif
}

inline void store_part(float* to, vf v, int64_t count) {
    if (count >= kLanes) return store(to, v);
#if defined(__AVX512VNNI__)
    _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1 << count) - 1), v);
#else
    std::memcpy(to, &v, static_cast<size_t>(count) * sizeof(float));
#endif
}

#if defined(__AVX2__)
constexpr bool kStreams = true;
#else
constexpr bool kStreams = false;
#endif

// Whether vectors in rows `stride` numbers apart can be stored around the caches.
inline bool streams_at(const float* to, int64_t stride) {
    return kStreams && reinterpret_cast<uintptr_t>(to) % sizeof(vf) == 0 && stride % kLanes == 0;
}

// Store around the caches, which would read a line before it is written. Others see it after `end_streams`.
inline void stream(float* to, vf v) {
#if defined(__AVX512VNNI__)
    _mm512_stream_ps(to, v);
#elif defined(__AVX2__)
    _mm256_stream_ps(to, v);
#else
    store(to, v);
#endif
}

inline void end_streams() {
#if defined(__AVX2__)
    _mm_sfence();
#endif
}

inline vf spread(float x) { return x - vf{}; }
inline vi spread(int32_t x) { return x + vi{}; }
inline vu spread(uint32_t x) { return x + vu{}; }

inline vi lane_index() {
    vi v;
    for (int lane = 0; lane < kLanes; ++lane) v[lane] = lane;
    return v;
}

#if !defined(__AVX2__)
using vdouble = double __attribute__((vector_size(8 * kLanes)));

// a * b + c in double, rounded to odd: away from the middle between two floats, so that rounding it again equals one
// rounding (Boldo and Melquiond 2008). The product is exact.
inline vdouble odd_sum(vf a, vf b, vf c) {
    using vl = uint64_t __attribute__((vector_size(8 * kLanes)));
    const vdouble product = __builtin_convertvector(a, vdouble) * __builtin_convertvector(b, vdouble);
    const vdouble addend = __builtin_convertvector(c, vdouble), sum = product + addend, added = sum - product;
    const vdouble error = (product - (sum - added)) + (addend - added);
    const vl inexact = (vl)((error < 0) | (error > 0)), even = ((vl)sum & 1) - 1;
    const vl onward = 1 - 2 * (((vl)error ^ (vl)sum) >> 63);  // towards the exact sum
    return (vdouble)((vl)sum + (inexact & even & onward));
}
#endif

// a * b + c with one rounding, in every tier.
inline vf fused(vf a, vf b, vf c) {
#if defined(__AVX512VNNI__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
    return _mm256_fmadd_ps(a, b, c);
#elif defined(FERRUM_NEON)
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#elif defined(FERRUM_FUSES)
    for (int lane = 0; lane < kLanes; ++lane) c[lane] = __builtin_fmaf(a[lane], b[lane], c[lane]);
    return c;
#else
    return __builtin_convertvector(odd_sum(a, b, c), vf);
#endif
}

inline float fused(float a, float b, float c) {
#if defined(FERRUM_FUSES)
    return __builtin_fmaf(a, b, c);
#else
    return fused(spread(a), spread(b), spread(c))[0];
#endif
}

// Force an array into memory at this point. Otherwise compilers give registers to part of it and spill others that the
// loop uses more often.
template <class Array>
inline void stay_in_memory(Array& array) {
    asm("" : "+m"(array));
}

// Whether a multiply instruction can broadcast from memory. Sanitizers do not see what inline assembly reads.
#if defined(__AVX512VNNI__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define FERRUM_SPREADS
#endif

// fused(a, spread(*b), c), in one instruction if possible.
inline vf fused_each(vf a, const float* b, vf c) {
#if defined(FERRUM_SPREADS)
    asm("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(c) : "v"(a), "m"(*b));
    return c;
#else
    return fused(a, spread(*b), c);
#endif
}

// Whether each multiply instruction broadcasts the word of a row from memory, or one instruction does it for all
// vectors. The first costs loads, the second instructions, and both are scarce on a core shared with another thread:
// with few vectors, half of the rows use each way.
constexpr bool spread_each(int row, int vectors) { return row % 2 == 1 && vectors <= 2; }

// The larger of each pair; b if a is NaN.
inline vf larger(vf a, vf b) {
#if defined(__AVX512VNNI__)
    return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
    return _mm256_max_ps(a, b);
#else
    return a > b ? a : b;
#endif
}

// The smaller of each pair; b if a is NaN.
inline vf smaller(vf a, vf b) {
#if defined(__AVX512VNNI__)
    return _mm512_min_ps(a, b);
#elif defined(__AVX2__)
    return _mm256_min_ps(a, b);
#else
    return a < b ? a : b;
#endif
}

// The upper halves of 64-bit products.
inline vu multiply_high(vu a, uint32_t by) {
#if defined(__AVX512VNNI__)
    const __m512i factor = _mm512_set1_epi32(static_cast<int32_t>(by)), all = (__m512i)a;
    const __m512i even = _mm512_mul_epu32(all, factor), odd = _mm512_mul_epu32(_mm512_srli_epi64(all, 32), factor);
    return (vu)_mm512_mask_mov_epi32(_mm512_srli_epi64(even, 32), 0xaaaa, odd);
#elif defined(__AVX2__)
    const __m256i factor = _mm256_set1_epi32(static_cast<int32_t>(by)), all = (__m256i)a;
    const __m256i even = _mm256_mul_epu32(all, factor), odd = _mm256_mul_epu32(_mm256_srli_epi64(all, 32), factor);
    return (vu)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
#elif defined(FERRUM_NEON)
    const uint32x4_t all = (uint32x4_t)a;
    const uint64x2_t low = vmull_n_u32(vget_low_u32(all), by), high = vmull_high_n_u32(all, by);
    return (vu)vuzp2q_u32(vreinterpretq_u32_u64(low), vreinterpretq_u32_u64(high));
#else
    using vul = uint64_t __attribute__((vector_size(8 * kLanes)));
    return __builtin_convertvector(__builtin_convertvector(a, vul) * static_cast<uint64_t>(by) >> 32, vu);
#endif
}

// A sum over numbers has the order of 16 lanes in every tier: a virtual vector is kVirtual vectors.
constexpr int kVirtualLanes = 16, kVirtual = kVirtualLanes / kLanes;

// Add the lanes of a virtual vector in halves, upper onto lower.
inline float sum_lanes(const vf (&v)[kVirtual]) {
#if defined(__AVX2__)
#if defined(__AVX512VNNI__)
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v[0]), _mm512_extractf32x8_ps(v[0], 1));
#else
    const __m256 eight = _mm256_add_ps(v[0], v[1]);
#endif
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
#else
    float x[kVirtualLanes];
    std::memcpy(x, v, sizeof x);
    for (int half = kVirtualLanes / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) x[i] += x[i + half];
    return x[0];
#endif
}

inline int32_t sum_lanes(vi v) {
#if defined(__AVX512VNNI__)
    return _mm512_reduce_add_epi32((__m512i)v);
#elif defined(FERRUM_NEON)
    return vaddvq_s32((int32x4_t)v);
#else
    int32_t sum = 0;
    for (int lane = 0; lane < kLanes; ++lane) sum += v[lane];
    return sum;
#endif
}

inline float max_lanes(vf v) {
#if defined(__AVX512VNNI__)
    return _mm512_reduce_max_ps(v);
#else
    float best = v[0];
    for (int lane = 1; lane < kLanes; ++lane) best = v[lane] > best ? v[lane] : best;
    return best;
#endif
}

inline int32_t max_lanes(vi v) {
#if defined(__AVX512VNNI__)
    return _mm512_reduce_max_epi32((__m512i)v);
#elif defined(FERRUM_NEON)
    return vmaxvq_s32((int32x4_t)v);
#else
    int32_t best = v[0];
    for (int lane = 1; lane < kLanes; ++lane) best = v[lane] > best ? v[lane] : best;
    return best;
#endif
}

// A bit per lane in which a comparison holds, the lowest for the first lane.
inline uint32_t lanes_where(vi holds) {
#if defined(__AVX512VNNI__)
    return _mm512_movepi32_mask((__m512i)holds);
#elif defined(__AVX2__)
    return static_cast<uint32_t>(_mm256_movemask_ps((__m256)holds));
#elif defined(FERRUM_NEON)
    return vaddvq_u32((uint32x4_t)((vu)holds & vu{1, 2, 4, 8}));
#else
    uint32_t lanes = 0;
    for (int lane = 0; lane < kLanes; ++lane) lanes |= static_cast<uint32_t>(holds[lane]) >> 31 << lane;
    return lanes;
#endif
}

// Prefetch into the second-level cache: it can wait for more lines at once than the first-level cache, which hardware
// fills from it.
inline void prefetch(const std::byte* line) {
    __builtin_prefetch(line, 0, 2);
    asm volatile("");  // GCC removes calls of functions without effects
}

inline void prefetch_bytes(const std::byte* from, int64_t count) {
    for (int64_t byte = 0; byte < count; byte += 64) prefetch(from + byte);
}

inline void prefetch_floats(const float* from, int64_t count) {
    prefetch_bytes(reinterpret_cast<const std::byte*>(from), count * 4);
}

}  // namespace ferrum::FERRUM_TIER
