// Embeddings from tables of floats. Compiled for a format each, FERRUM_FORMAT.
#include "embed.hpp"
#include "float_formats.hpp"

namespace ferrum::cuda {

using F = formats::FERRUM_FORMAT;

// grid: [columns / kThreads, most rows]
FERRUM_KERNEL(embed_rows, EmbedArgs) {
    const Int column = block_x() * kThreads + thread();
    if (block_y() >= *a.rows || column >= a.columns) return;
    const EmbeddedRow row(a, block_y());
    if (row.given != nullptr) {
        a.y[block_y() * a.columns + column] = row.given[column];
    } else {
        const Int block = column / F::kInputs;
        const int k = static_cast<int>(column - block * F::kInputs);
        row.write(column, F::number_at(row.panel + block * F::kBlockBytes, row.output, k));
    }
}

}  // namespace ferrum::cuda
