// What kernels use of the device: threads, barriers, exchanges within a warp, copies to shared memory, tensor cores, and
// the arithmetic that has one meaning on every processor. nvcc and nvrtc map it to the hardware, other compilers to the
// emulation (emulation/device.hpp), with the same names and the same bits.
//
// Every kernel has blocks of kThreads threads and one argument, a structure of fields of 8 bytes: addresses, Int and Real.
// Row counts that vary by step are read from memory, so that one graph runs steps of any size up to its capacity.
//
// Compile without contraction of a * b + c (-fmad=false, -ffp-contract=off): `fused` names every fused operation.
#pragma once

namespace ferrum::cuda {

using Int = long long;  // 8 bytes everywhere
using Byte = unsigned char;

struct alignas(8) Real {
    float value;
};

constexpr int kWarp = 32, kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kPanel = 32;  // outputs of a panel: a lane each

}  // namespace ferrum::cuda

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

#define FERRUM_DEVICE __device__ __forceinline__
#define FERRUM_CONSTANT __device__ constexpr
#define FERRUM_CONSTANT_FUNCTION __host__ __device__ constexpr  // evaluated by the compiler
#define FERRUM_UNROLLED _Pragma("unroll")  // a loop over arrays that are to be registers
#define FERRUM_PRAGMA(text) _Pragma(#text)
#define FERRUM_UNROLL(count) FERRUM_PRAGMA(unroll count)
#define FERRUM_KERNEL(name, Args) extern "C" __global__ void __launch_bounds__(ferrum::cuda::kThreads) name(const __grid_constant__ Args a)
// A kernel of which two blocks share the registers of a multiprocessor: without that, a compiler may spill to fit more.
#define FERRUM_ROOMY_KERNEL(name, Args) extern "C" __global__ void __launch_bounds__(ferrum::cuda::kThreads, 2) name(const __grid_constant__ Args a)
#define FERRUM_ROLLED _Pragma("unroll 1")  // before a loop that is rare and long
#define FERRUM_SHARED(T, name, count) __shared__ __align__(16) T name[count]

namespace ferrum::cuda {

FERRUM_DEVICE int thread() { return static_cast<int>(threadIdx.x); }
FERRUM_DEVICE Int block_x() { return blockIdx.x; }
FERRUM_DEVICE Int block_y() { return blockIdx.y; }
FERRUM_DEVICE Int block_z() { return blockIdx.z; }
FERRUM_DEVICE Int blocks_x() { return gridDim.x; }

FERRUM_DEVICE void sync_block() { __syncthreads(); }
FERRUM_DEVICE void sync_warp() { __syncwarp(); }
FERRUM_DEVICE int shuffle(int value, int lane) { return __shfl_sync(0xffffffffu, value, lane); }
FERRUM_DEVICE float shuffle(float value, int lane) { return __shfl_sync(0xffffffffu, value, lane); }
FERRUM_DEVICE unsigned ballot(bool value) { return __ballot_sync(0xffffffffu, value); }

FERRUM_DEVICE float as_float(unsigned bits) { return __uint_as_float(bits); }
FERRUM_DEVICE unsigned as_bits(float x) { return __float_as_uint(x); }
#if defined(FERRUM_WITHOUT_FUSED)  // to see that every fused operation is a named one
FERRUM_DEVICE float fused(float a, float b, float c) { return __fadd_rn(__fmul_rn(a, b), c); }
#else
FERRUM_DEVICE float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
#endif
FERRUM_DEVICE float divided(float a, float b) { return __fdiv_rn(a, b); }
FERRUM_DEVICE float square_root(float x) { return __fsqrt_rn(x); }
FERRUM_DEVICE float nearest(float x) { return rintf(x); }
FERRUM_DEVICE unsigned upper_product(unsigned a, unsigned b) { return __umulhi(a, b); }
// The float of the 16 bits of a half, exactly.
FERRUM_DEVICE float half_to_float(unsigned bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(static_cast<unsigned short>(bits)));
    return x;
}
// sum + the four products of the signed bytes of two words.
FERRUM_DEVICE int dot4(unsigned a, unsigned b, int sum) { return __dp4a(static_cast<int>(a), static_cast<int>(b), sum); }
// Byte i is the byte `selector` >> 4 i & 7 of the eight of low and high.
FERRUM_DEVICE unsigned permute(unsigned low, unsigned high, unsigned selector) { return __byte_perm(low, high, selector); }

// d += a b of a warp's fragments, 16 x 32 by 32 x 8 signed bytes. Lane l has of a the rows l / 4 (words 0 and 2) and
// l / 4 + 8 (words 1 and 3) at inputs 4 (l % 4) to + 3, in words 2 and 3 those 16 inputs on; of b the column l / 4 at the same inputs (words 0
// and 1); of d the rows l / 4 (0 and 1) and l / 4 + 8 (2 and 3) at columns 2 (l % 4) and + 1.
FERRUM_DEVICE void multiply_fragments(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Ask for the line of 128 bytes at an address, so that a later read of it is quick.
FERRUM_DEVICE void prefetch(const void* global) { asm volatile("prefetch.global.L2 [%0];" ::"l"(global)); }

// Copy 16 bytes to shared memory in the background. A thread closes a batch of copies, and later waits until at most `OPEN`
// of its batches are not done; other threads see them after the next barrier.
FERRUM_DEVICE void copy_16(void* shared, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))), "l"(global));
}
FERRUM_DEVICE void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int OPEN>
FERRUM_DEVICE void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(OPEN) : "memory");
}

}  // namespace ferrum::cuda

#else
#include "emulation/device.hpp"
#endif

namespace ferrum::cuda {

FERRUM_DEVICE int lane() { return thread() % kWarp; }
FERRUM_DEVICE int warp() { return thread() / kWarp; }

}  // namespace ferrum::cuda
