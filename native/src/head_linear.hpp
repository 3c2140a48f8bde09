// The operation of products by heads: each part of a row by its own matrix.
#pragma once

#include "operations.hpp"

namespace ferrum {

// Each head of x [rows, heads x inputs] by its matrix -> [rows, heads x outputs].
class HeadLinear final : public Operation {
public:
    HeadLinear(Runtime& runtime, Rows x, float* out, WeightPointer weight, int64_t heads, int64_t max_rows);
    void run(Runtime& runtime, int thread) override;

private:
    struct Own;  // memory of a thread

    Rows x_;
    float* out_;
    WeightPointer weight_;
    int64_t heads_, max_rows_, alone_bytes_ = 0, tile_bytes_ = 0;
};

}  // namespace ferrum
