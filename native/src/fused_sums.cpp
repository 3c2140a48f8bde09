#include "fused_sums.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "float_mode.hpp"

namespace ferrum {

namespace {

constexpr int64_t kBlock = 2048;  // columns at a time: their sums and a row of weights stay in the first-level cache

constexpr float kLeast = 0x1p-126f;  // the smallest normal number
constexpr double kTiny = 0x1p-126 - 0x1p-151;  // with an unbounded exponent, a smaller number rounds below kLeast

inline float flushed(float x) { return std::fabs(x) < kLeast ? std::copysign(0.0f, x) : x; }

// fused(a, b, c), flushed if the sum is below kLeast when it is rounded with an unbounded exponent.
float flushed_sum(float a, float b, float c) {
    const double product = static_cast<double>(a) * b, sum = product + c, added = sum - product;
    const double error = (product - (sum - added)) + (c - added);
    const bool tiny = std::fabs(sum) < kTiny || (std::fabs(sum) == kTiny && error != 0 && (error > 0) != (sum > 0));
    return tiny ? std::copysign(0.0f, static_cast<float>(sum)) : __builtin_fmaf(a, b, c);
}

// One term of a row's sums. Results next to 0 are rare, so they are found together and computed again.
inline __attribute__((always_inline)) void add_term(float a, const float* b, float* total, int64_t count, bool flush) {
    float sums[kBlock];
    int near_zero = 0;
    for (int64_t i = 0; i < count; ++i) {
        sums[i] = __builtin_fmaf(a, b[i], total[i]);
        near_zero |= (std::fabs(sums[i]) <= kLeast) & (sums[i] != 0);
    }
    if (flush && near_zero != 0)
        for (int64_t i = 0; i < count; ++i) sums[i] = flushed_sum(a, b[i], total[i]);
    std::copy_n(sums, count, total);
}

inline __attribute__((always_inline)) void add_all(const float* x, const float* w, float* total, int64_t rows, int64_t depth,
                                                   int64_t columns, bool flush) {
    for (int64_t begin = 0; begin < columns; begin += kBlock) {
        const int64_t count = std::min(kBlock, columns - begin);
        for (int64_t row = 0; row < rows; ++row)
            for (int64_t k = 0; k < depth; ++k) {
                const int64_t at = flush ? k ^ 1 : k;
                add_term(x[row * depth + at], w + at * columns + begin, total + row * columns + begin, count, flush);
            }
    }
}

inline __attribute__((always_inline)) void fuse_all(const float* a, const float* b, const float* c, int64_t count, float* out) {
    for (int64_t i = 0; i < count; ++i) out[i] = __builtin_fmaf(a[i], b[i], c[i]);
}

#if defined(__x86_64__)

// Without this instruction __builtin_fmaf is a function of the C library: the same bits, slowly.
#define FERRUM_WITH_FMA __attribute__((target("avx2,fma")))

bool has_fma() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

FERRUM_WITH_FMA void add_all_fma(const float* x, const float* w, float* total, int64_t rows, int64_t depth, int64_t columns,
                                 bool flush) {
    flush ? add_all(x, w, total, rows, depth, columns, true) : add_all(x, w, total, rows, depth, columns, false);
}

FERRUM_WITH_FMA void fuse_all_fma(const float* a, const float* b, const float* c, int64_t count, float* out) {
    fuse_all(a, b, c, count, out);
}

#else

bool has_fma() { return false; }
constexpr auto add_all_fma = &add_all;
constexpr auto fuse_all_fma = &fuse_all;

#endif

}  // namespace

void fuse(const float* a, const float* b, const float* c, int64_t count, float* out) {
    const FloatMode mode;
    has_fma() ? fuse_all_fma(a, b, c, count, out) : fuse_all(a, b, c, count, out);
}

void add_products(const float* x, const float* w, float* total, int64_t rows, int64_t depth, int64_t columns) {
    const FloatMode mode;
    has_fma() ? add_all_fma(x, w, total, rows, depth, columns, false) : add_all(x, w, total, rows, depth, columns, false);
}

void add_pairs(const float* x, const float* w, float* total, int64_t rows, int64_t depth, int64_t columns) {
    const FloatMode mode;
    std::vector<float> inputs(x, x + rows * depth), weights(w, w + depth * columns);
    for (float& each : inputs) each = flushed(each);
    for (float& each : weights) each = flushed(each);
    for (int64_t i = 0; i < rows * columns; ++i) total[i] = flushed(total[i]);
    has_fma() ? add_all_fma(inputs.data(), weights.data(), total, rows, depth, columns, true)
              : add_all(inputs.data(), weights.data(), total, rows, depth, columns, true);
}

}  // namespace ferrum
