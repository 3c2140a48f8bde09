// Fused sums for the numpy reference (kernels/reference/fused_sums.py): the same bits as its emulation in float64, only
// faster. They share no code with the kernels, because the reference judges these.
#pragma once

#include <cstdint>

namespace ferrum {

// out[i] = a[i] * b[i] + c[i], rounded once; `out` may be `c`.
void fuse(const float* a, const float* b, const float* c, int64_t count, float* out);

// Add the terms x [rows, depth] by w [depth, columns] to total [rows, columns] in ascending k, each rounded once.
void add_products(const float* x, const float* w, float* total, int64_t rows, int64_t depth, int64_t columns);

// The same for bfloat16 pairs: each term k + 1 before k, and subnormal numbers count as 0. `depth` is even.
void add_pairs(const float* x, const float* w, float* total, int64_t rows, int64_t depth, int64_t columns);

}  // namespace ferrum
