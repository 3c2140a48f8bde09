// Terms of products with weights of floats, in the format FERRUM_FORMAT, a structure of float_formats.hpp.
#pragma once

#include "float_formats.hpp"
#include "products.hpp"

namespace ferrum::cuda {
namespace {

using F = formats::FERRUM_FORMAT;

constexpr int kMostProducts = 4;

// Products of the same rows by matrices of one format and depth, whose panels are one after another in the grid's x.
struct FloatProducts {
    ProductArgs of[kMostProducts];
    Int count;
};

// The product that has this block's outputs, and the number of the block within it.
struct Place {
    int product = 0;
    Int part = block_x();

    // outputs: of a block, for each matrix.
    FERRUM_DEVICE Place(const FloatProducts& a, int outputs) {
        for (Int own; product + 1 < a.count && part >= (own = ceil_divide(a.of[product].outputs, outputs)); ++product) part -= own;
    }
};

// An input as the product takes it. `small` is set by one that is neither 0 nor plain.
FERRUM_DEVICE float rounded_input(float x, bool& small) {
    if constexpr (!F::kPairs) return x;
    const float rounded = input_bf16(x);
    small = small || (rounded != 0 && magnitude(rounded) < kPlainInput);
    return rounded;
}

// Where input k of a block stands: in the order of addition.
FERRUM_DEVICE int place(int k) { return F::kPairs ? k ^ 1 : k; }

// Add the first `count` of 8 terms in order.
template <bool WHOLE>
FERRUM_DEVICE float added(float total, const float (&x)[kTerms], const float (&w)[kTerms], int count) {
    FERRUM_UNROLLED
    for (int i = 0; i < kTerms; ++i)
        if (WHOLE || i < count) total = fused(x[i], w[i], total);
    return total;
}

// numbers[i]; the numbers stay in registers.
template <int N>
FERRUM_DEVICE float picked(const float (&numbers)[N], Int i) {
    float found = numbers[0];
    FERRUM_UNROLLED
    for (int at = 1; at < N; ++at)
        if (i == at) found = numbers[at];
    return found;
}

FERRUM_DEVICE void load_terms(const float* from, float (&x)[kTerms]) {
    FERRUM_UNROLLED
    for (int part = 0; part < kTerms / 4; ++part) {
        const Four four = reinterpret_cast<const Four*>(from)[part];
        FERRUM_UNROLLED
        for (int i = 0; i < 4; ++i) x[4 * part + i] = four.value[i];
    }
}

FERRUM_DEVICE float block_scale(const Byte* block, int output) {
    if constexpr (!F::kHasScales) return 1.0f;
    return as_float(word_at(block + output * 4));
}

FERRUM_DEVICE void copy_table(float* table) {
    if (thread() < 16) table[thread()] = kNormalFloats[thread()];
}

}  // namespace
}  // namespace ferrum::cuda
