// Rounding of rows for products by weights in blocks.
#include "rounded_rows.hpp"

using namespace ferrum::cuda;

namespace {

struct RoundingArgs {
    const int* rows;   // of the step, [1]
    const float* x;    // rows of `parts` x depth numbers: each part is rounded as a row
    const int* order;  // the input of each place, [depth], or null
    Byte* out;
    Int depth, parts;
};

}  // namespace

// A warp has a unit.
FERRUM_KERNEL(round_rows, RoundingArgs) {
    const RoundedRow layout(a.depth);
    const Int all = *a.rows * a.parts * layout.units, first = block_x() * kWarps + warp();
    if (first >= all) return;
    const auto row = static_cast<Int>(static_cast<unsigned>(first) / static_cast<unsigned>(layout.units));
    const Int unit = first - row * layout.units, k = unit * kUnit + lane();
    const float x = k < a.depth ? a.x[row * a.depth + (a.order != nullptr ? a.order[k] : k)] : 0.0f;
    round_unit(x, a.out + row * layout.bytes(), layout, unit);
}
