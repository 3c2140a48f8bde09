// Embeddings from tables in blocks: integer x scale (exact), plus the minimum (rounded). Compiled for a format each,
// FERRUM_FORMAT.
#include "block_products.hpp"
#include "embed.hpp"

namespace ferrum::cuda {

using P = Panels<Format::FERRUM_FORMAT>;

// The scale of a group of an output, with its factor and divisor if the format has them.
FERRUM_DEVICE float output_scale(float scale, const EmbeddedRow& row) {
    if constexpr (!P::kFormat.output_scales) return scale;
    return P::scaled(scale, row.panel, row.output);
}

// grid: [columns / 256, most rows]. A warp has 32 columns: the lane of the output reads them, and then each lane has one.
FERRUM_KERNEL(embed_rows, EmbedArgs) {
    if (block_y() >= *a.rows) return;
    const EmbeddedRow row(a, block_y());
    const Int unit = block_x() * kWarps + warp(), column = unit * kUnit + lane();
    if (unit * kUnit >= a.columns) return;
    if (row.given != nullptr) {
        if (column < a.columns) a.y[block_y() * a.columns + column] = row.given[column];
        return;
    }
    Unit read{};
    const Int block = unit / P::kBlockUnits;
    P::Reader reader{};
    reader.block = row.panel + P::kHeader + block * P::kBytes, reader.points = a.points;
    if (lane() == row.output) reader.unpack(static_cast<int>(unit % P::kBlockUnits), read);
    unsigned word = 0;
    FERRUM_UNROLLED
    for (int i = 0; i < kUnitWords; ++i) {
        const auto found = static_cast<unsigned>(shuffle(static_cast<int>(read.words[i]), row.output));
        if (i == lane() / 4) word = found;
    }
    float scale = shuffle(read.scale[0], row.output), minimum = shuffle(read.minimum[0], row.output);
    if constexpr (P::kParts == 2) {
        const float upper = shuffle(read.scale[1], row.output), upper_minimum = shuffle(read.minimum[1], row.output);
        if (lane() >= kUnit / 2) scale = upper, minimum = upper_minimum;
    }
    const auto number = static_cast<float>(static_cast<signed char>(word >> (lane() % 4 * 8)));
    const float value = number * output_scale(scale, row);
    if (column < a.columns) row.write(column, P::kFormat.minima ? value + minimum : value);
}

}  // namespace ferrum::cuda
