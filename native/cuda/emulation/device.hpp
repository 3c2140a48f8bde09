// The device of `device.hpp` on a processor: each thread of a block is a fiber, and barriers and exchanges switch between
// them. emulation/block.hpp runs them in an adversarial order.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "block.hpp"

#define FERRUM_DEVICE inline
#define FERRUM_CONSTANT inline constexpr
#define FERRUM_CONSTANT_FUNCTION constexpr
#define FERRUM_UNROLLED
#define FERRUM_UNROLL(count)
// The kernel, and what the driver of the emulation reads of it.
#define FERRUM_KERNEL(name, Args)                                                                          \
    static void name##_body(const Args& a);                                                                \
    extern "C" __attribute__((visibility("default"))) const ferrum::cuda::emulation::Kernel name;           \
    const ferrum::cuda::emulation::Kernel name = {[](const void* given) {                                  \
        name##_body(*static_cast<const Args*>(given)); }, sizeof(Args)};                                   \
    static void name##_body(const Args& a)
#define FERRUM_ROOMY_KERNEL(name, Args) FERRUM_KERNEL(name, Args)
#define FERRUM_ROLLED
// Each declaration is one piece of the block's memory: its address is that of the line's own marker.
#define FERRUM_SHARED(T, name, count)                                                                      \
    static const char name##_marker = 0;                                                                   \
    T* const name = static_cast<T*>(ferrum::cuda::emulation::shared(&name##_marker, sizeof(T) * (count)))

namespace ferrum::cuda {

FERRUM_DEVICE int thread() { return emulation::current()->thread; }
FERRUM_DEVICE Int block_x() { return emulation::current()->block[0]; }
FERRUM_DEVICE Int block_y() { return emulation::current()->block[1]; }
FERRUM_DEVICE Int block_z() { return emulation::current()->block[2]; }
FERRUM_DEVICE Int blocks_x() { return emulation::current()->blocks_x; }

FERRUM_DEVICE void sync_block() { emulation::wait_for_block(); }
FERRUM_DEVICE void sync_warp() { emulation::exchange(nullptr, 0); }

FERRUM_DEVICE float as_float(unsigned bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}
FERRUM_DEVICE unsigned as_bits(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

template <class T>
FERRUM_DEVICE T shuffle(T value, int lane) {
    T all[kWarp];
    std::memcpy(all, emulation::exchange(&value, sizeof value), sizeof all);
    return all[lane % kWarp];
}
FERRUM_DEVICE unsigned ballot(bool value) {
    const auto* all = static_cast<const bool*>(emulation::exchange(&value, sizeof value));
    unsigned bits = 0;
    for (int i = 0; i < kWarp; ++i) bits |= static_cast<unsigned>(all[i]) << i;
    return bits;
}

FERRUM_DEVICE float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
FERRUM_DEVICE float divided(float a, float b) { return a / b; }
FERRUM_DEVICE float square_root(float x) { return __builtin_sqrtf(x); }
FERRUM_DEVICE float nearest(float x) { return __builtin_rintf(x); }
FERRUM_DEVICE unsigned upper_product(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}
FERRUM_DEVICE float half_to_float(unsigned bits) {
    const unsigned moved = (bits & 0x7fffu) << 13;  // 2^112 is the ratio of the biases
    const unsigned size = (bits & 0x7c00u) == 0x7c00u ? moved | 0x7f800000u : as_bits(as_float(moved) * 5.192296858534828e33f);
    return as_float(size | (bits & 0x8000u) << 16);
}
FERRUM_DEVICE int dot4(unsigned a, unsigned b, int sum) {
    for (int i = 0; i < 32; i += 8) sum += static_cast<int8_t>(a >> i) * static_cast<int8_t>(b >> i);
    return sum;
}
FERRUM_DEVICE unsigned permute(unsigned low, unsigned high, unsigned selector) {
    const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
    unsigned out = 0;
    for (int i = 0; i < 4; ++i) out |= static_cast<unsigned>(bytes >> (8 * (selector >> (4 * i) & 7)) & 255) << (8 * i);
    return out;
}

FERRUM_DEVICE void multiply_fragments(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    struct Fragment {
        unsigned a[4], b[2];
    } mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}}, all[kWarp];
    std::memcpy(all, emulation::exchange(&mine, sizeof mine), sizeof all);
    const int l = thread() % kWarp;
    for (int i = 0; i < 4; ++i) {
        const int row = l / 4, upper = i / 2, column = l % 4 * 2 + i % 2;
        for (int k = 0; k < 4; ++k)
            for (int half = 0; half < 2; ++half)
                d[i] = dot4(all[row * 4 + k].a[half * 2 + upper], all[column * 4 + k].b[half], d[i]);
    }
}

FERRUM_DEVICE void prefetch(const void*) {}
FERRUM_DEVICE void copy_16(void* shared, const void* global) { emulation::current()->copies.add(shared, global); }
FERRUM_DEVICE void close_copies() { emulation::current()->copies.close(); }
template <int OPEN>
FERRUM_DEVICE void wait_for_copies() {
    emulation::current()->copies.wait(OPEN);
}

}  // namespace ferrum::cuda
