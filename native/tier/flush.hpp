// The arithmetic of bfloat16 pairs: sums are fused, and numbers below 2^-126 count as zeros, as arguments and as
// results. Whether a result is that small is decided after rounding it to 24 bits with any exponent. AVX-512 has an
// instruction for it; other x86 tiers set the processor to flush, which does the same. AArch64 flushes too, but decides
// before rounding: a result that rounds up to 2^-126 becomes 0 there. It also notes that it flushed, so a tile in which it
// did is computed again in double.
#pragma once

#include "simd.hpp"

namespace ferrum::FERRUM_TIER {

#if defined(__x86_64__)

constexpr bool kHasFlushMode = true, kFlushesEarly = false;

// The mode of this thread for the lifetime of the object; then that of float_mode.hpp, which threads of the team have.
// Compilers move arithmetic across the change, unless it is in functions that are not inlined, or it begins with loads
// and its results are held before and after the change.
class FlushMode {
public:
    FlushMode() { set(0x9fc0); }
    ~FlushMode() { set(0x1f80); }
    FlushMode(const FlushMode&) = delete;
    FlushMode& operator=(const FlushMode&) = delete;

    // Whether a result so far was too small or too large.
    bool passed_range() const {
        uint32_t word;
        asm volatile("stmxcsr %0" : "=m"(word) : : "memory");
        return (word & 0x18) != 0;
    }

private:
    static void set(uint32_t word) { asm volatile("ldmxcsr %0" : : "m"(word) : "memory"); }
};

inline vf fused_flushed(vf a, vf b, vf c) { return fused(a, b, c); }
inline vf multiply_flushed(vf a, vf b) { return a * b; }

#else

#if defined(__aarch64__)

constexpr bool kHasFlushMode = true, kFlushesEarly = true;

class FlushMode {
public:
    FlushMode() {
        asm volatile("msr fpsr, %0" : : "r"(uint64_t{0}) : "memory");
        set(uint64_t{1} << 24);  // FZ
    }
    ~FlushMode() { set(0); }
    FlushMode(const FlushMode&) = delete;
    FlushMode& operator=(const FlushMode&) = delete;

    // Whether a result so far was flushed (UFC).
    bool passed_range() const {
        uint64_t word;
        asm volatile("mrs %0, fpsr" : "=r"(word) : : "memory");
        return (word & 8) != 0;
    }

private:
    static void set(uint64_t word) { asm volatile("msr fpcr, %0" : : "r"(word) : "memory"); }
};

#else

constexpr bool kHasFlushMode = false, kFlushesEarly = false;

class FlushMode {
public:
    bool passed_range() const { return false; }
};

#endif

inline vf without_subnormals(vf x) { return ((vi)x & 0x7f800000) != 0 ? x : (vf)((vu)x & 0x80000000u); }

// a * b + c by the rule above, in any mode. All is exact in double but the sum, which is rounded to odd (see fused).
inline vf fused_flushed(vf a, vf b, vf c) {
    using vl = uint64_t __attribute__((vector_size(8 * kLanes)));
    const vdouble sum = odd_sum(without_subnormals(a), without_subnormals(b), without_subnormals(c));
    const vl size = (vl)sum & 0x7fffffffffffffffu;
    const vl tiny = (vl)((vdouble)size < 0x1p-126 - 0x1p-151), rises = (vl)((vdouble)size < 0x1p-126);
    const vl least = (vl)(vdouble{} + 0x1p-126), kept = (rises & least) | (~rises & size);
    return __builtin_convertvector((vdouble)((kept & ~tiny) | ((vl)sum & 0x8000000000000000u)), vf);
}
inline vf multiply_flushed(vf a, vf b) { return fused_flushed(a, b, -vf{}); }

#endif

// Have these numbers at this point: computed before, used after.
template <int MR, int NV>
inline void hold([[maybe_unused]] vf (&numbers)[MR][NV]) {
#pragma GCC unroll 12
    for (int r = 0; r < MR; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) {
#if defined(__AVX512VNNI__)
            asm volatile("" : "+v"(numbers[r][v]));
#elif defined(__x86_64__)
            asm volatile("" : "+x"(numbers[r][v]));
#elif defined(__aarch64__)
            asm volatile("" : "+w"(numbers[r][v]));
#endif
        }
}

}  // namespace ferrum::FERRUM_TIER
