// What all kernels of products share: their argument, the rows of a group, and what happens to a sum.
//
// y = activation(x w^T + bias), or with `up` the activated x w^T + bias times x up^T + up_bias. Weights are in the panels of
// the CPU (quant/panels.py, native/src/weight.hpp): 32 outputs with all their inputs, contiguous; a lane of a warp each.
//
// One launch has `groups` products in the grid's z: the heads of head_linear, the experts of a layer, or one. Group z has
// the panels from `weight` + z x weight_step bytes on, and the rows bounds[z] to bounds[z + 1]; without bounds all of them. Row i
// of a group reads inputs row_of[i] (without row_of: i) and writes row i of y.
#pragma once

#include "numbers.hpp"

namespace ferrum::cuda {

struct ProductArgs {
    const int* rows;  // of the step, [1]
    const int* bounds;   // [groups + 1], or null
    const int* row_of;   // [bounds[groups]], or null
    const Byte* x;       // packed rows of the format
    const Byte* weight;
    const Byte* up;      // or null
    const float* bias;   // or null
    const float* up_bias;
    float* y;
    Int depth, outputs;  // of a group
    Int x_row, x_step;   // bytes of a row of x; and from group to group, of heads
    Int weight_step;     // bytes
    Int y_row, y_step;   // numbers
    Int bias_step;       // numbers
    Activation activation;
};

// The rows of this block's group.
struct GroupRows {
    Int begin, end;

    FERRUM_DEVICE GroupRows(const ProductArgs& a)
        : begin(a.bounds != nullptr ? a.bounds[block_z()] : 0), end(a.bounds != nullptr ? a.bounds[block_z() + 1] : *a.rows) {}
};

FERRUM_DEVICE const Byte* inputs_of(const ProductArgs& a, Int row) {
    return a.x + (a.row_of != nullptr ? a.row_of[row] : row) * a.x_row + block_z() * a.x_step;
}

// Write an output from its sums, and return it; `other` is that of `up`. Outputs of a panel that do not exist are 0.
FERRUM_DEVICE float finish(const ProductArgs& a, Int row, Int output, float sum, float other) {
    if (output >= a.outputs) return 0.0f;
    const Int bias = block_z() * a.bias_step + output;
    if (a.bias != nullptr) sum = sum + a.bias[bias];
    if (a.up != nullptr) {
        if (a.up_bias != nullptr) other = other + a.up_bias[bias];
        sum = gated(a.activation, sum, other);
    } else {
        sum = activated(a.activation, sum);
    }
    a.y[row * a.y_row + block_z() * a.y_step + output] = sum;
    return sum;
}

}  // namespace ferrum::cuda
