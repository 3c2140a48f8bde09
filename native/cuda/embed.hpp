// Rows of an embedding table for the tokens of a step.
#pragma once

#include "numbers.hpp"

namespace ferrum::cuda {

struct EmbedArgs {
    const int* rows;       // of the step, [1]
    const int* token_ids;  // [rows]
    const int* given_of;   // [rows], the row of `given` that replaces an embedding, or -1; null: none is replaced
    const float* given;    // [.., columns]
    const Byte* table;     // panels
    const int* order;      // [columns], the place of each stored column, or null
    const unsigned* points;  // of the format's codebook, or null
    float* y;              // [rows, columns]
    Int columns, stride, offset, panel_bytes;
    Real scale;
};

// A row of the result: its table row, or the given row that replaces it (null: none).
struct EmbeddedRow {
    const EmbedArgs& a;
    const Int row;
    const float* given = nullptr;
    const Byte* panel = nullptr;
    int output = 0;

    FERRUM_DEVICE EmbeddedRow(const EmbedArgs& args, Int at) : a(args), row(at) {
        const int replaced = a.given_of != nullptr ? a.given_of[row] : -1;
        if (replaced >= 0) {
            given = a.given + replaced * a.columns;
        } else {
            const Int id = a.token_ids[row] * a.stride + a.offset;
            panel = a.table + id / kPanel * a.panel_bytes;
            output = static_cast<int>(id % kPanel);
        }
    }

    // Write the number of a stored column.
    FERRUM_DEVICE void write(Int column, float number) const {
        a.y[row * a.columns + (a.order != nullptr ? a.order[column] : column)] = number * a.scale.value;
    }
};

}  // namespace ferrum::cuda
