// Products of weights of floats: one accumulator for each output, in the order of docs/numerics.md. Compiled for a format
// each, FERRUM_FORMAT.
//
// Each output adds its inputs one after another, so that blocks of threads share outputs and rows only. Inputs are
// rounded as they are read.
#include "float_few.hpp"
#include "float_many.hpp"

using namespace ferrum::cuda;

// grid: [panels, most rows / kFewRows, groups]
FERRUM_KERNEL(product_few, ProductArgs) {
    FERRUM_SHARED(Byte, ring, F::kSlots * F::kBlockBytes);
    FERRUM_SHARED(float, x, kFewRows * F::kInputs);
    FERRUM_SHARED(float, table, 16);
    const GroupRows rows(a);
    const Int first = rows.begin + block_y() * kFewRows;
    if (first >= rows.end) return;
    copy_table(table);
    sync_block();
    if (a.up != nullptr)
        multiply_few<2>(a, first, rows.end, ring, x, table);
    else
        multiply_few<1>(a, first, rows.end, ring, x, table);
}

// grid: [tiles of 128 outputs, or of 64 with `up`, most rows / kManyRows, groups]
FERRUM_KERNEL(product_many, ProductArgs) {
    FERRUM_SHARED(float, w, 2 * kChunk * kManyOutputs);
    FERRUM_SHARED(float, x, 2 * kChunk * kRowsStride);
    FERRUM_SHARED(unsigned, small, 2 * kWarps);
    FERRUM_SHARED(float, table, 16);
    const GroupRows rows(a);
    const Int first = rows.begin + block_y() * kManyRows;
    if (first >= rows.end) return;
    copy_table(table);
    sync_block();
    const Int end = least(rows.end, first + kManyRows);
    if (a.up != nullptr)
        ManyRows<2>(a, first, end, w, x, small, table).multiply();
    else
        ManyRows<1>(a, first, end, w, x, small, table).multiply();
}
