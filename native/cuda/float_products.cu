// Products of weights of floats: one accumulator for each output, in the order of docs/numerics.md. Compiled for a format
// each, FERRUM_FORMAT.
//
// Each output adds its inputs one after another, so that blocks of threads share outputs and rows only. Inputs are
// rounded as they are read.
#include "float_few.hpp"
#include "float_many.hpp"

using namespace ferrum::cuda;

// grid: [panels of all products, most rows / kFewRows, groups]
FERRUM_KERNEL(product_few, FloatProducts) {
    FERRUM_SHARED(Byte, ring, F::kSlots * F::kBlockBytes);
    FERRUM_SHARED(float, x, kFewRows * F::kInputs);
    FERRUM_SHARED(float, table, 16);
    const GroupRows rows(a.of[0]);
    const Int first = rows.begin + block_y() * kFewRows;
    if (first >= rows.end) return;
    copy_table(table);
    sync_block();
    const Place place(a, kPanel);
    const ProductArgs& product = a.of[place.product];
    if (product.up != nullptr)
        multiply_few<2>(product, place.part, first, rows.end, ring, x, table);
    else
        multiply_few<1>(product, place.part, first, rows.end, ring, x, table);
}

// grid: [tiles of 128 outputs of all products, or of 64 with `up`, most rows / kManyRows, groups]
FERRUM_KERNEL(product_many, FloatProducts) {
    FERRUM_SHARED(float, w, 2 * kChunk * kManyOutputs);
    FERRUM_SHARED(float, x, 2 * kChunk * kRowsStride);
    FERRUM_SHARED(unsigned, small, 2 * kWarps);
    FERRUM_SHARED(float, table, 16);
    const GroupRows rows(a.of[0]);
    const Int first = rows.begin + block_y() * kManyRows;
    if (first >= rows.end) return;
    copy_table(table);
    sync_block();
    const Int end = least(rows.end, first + kManyRows);
    const bool gates = a.of[0].up != nullptr;
    const Place place(a, gates ? kManyOutputs / 2 : kManyOutputs);
    const ProductArgs& product = a.of[place.product];
    if (gates)
        ManyRows<2>(product, place.part, first, end, w, x, small, table).multiply();
    else
        ManyRows<1>(product, place.part, first, end, w, x, small, table).multiply();
}
