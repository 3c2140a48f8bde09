#include "head_linear.hpp"

#include <utility>

#include "ordered_rows.hpp"
#include "row_groups.hpp"

namespace ferrum {

struct HeadLinear::Own {
    int64_t* pieces;
    RowGroup* groups;
    int32_t* ids;  // of a head's rows, the row packed alone
    std::byte* tile;
    int64_t bytes;

    Own(int64_t heads, int64_t max_rows, int64_t threads, int64_t tile_bytes, std::byte* from) {
        Parts parts(from);
        pieces = parts.take<int64_t>(GroupPieces::room(heads, threads));
        groups = parts.take<RowGroup>(heads);
        ids = parts.take<int32_t>(max_rows);
        tile = parts.take<std::byte>(tile_bytes);
        bytes = parts.used();
    }
};

HeadLinear::HeadLinear(Runtime& runtime, Rows x, float* out, WeightPointer weight, int64_t heads, int64_t max_rows)
    : x_(x), out_(out), weight_(std::move(weight)), heads_(heads), max_rows_(max_rows) {
    const int64_t row_bytes = runtime.kernels.packed_bytes(weight_->format(), 1, weight_->inputs());
    alone_bytes_ = (row_bytes * max_rows * heads_ + 63) / 64 * 64;
    tile_bytes_ = tile_bytes(runtime, *weight_, 1);
    runtime.reserve(2 * alone_bytes_, Own(heads, max_rows, runtime.team.max_threads(), tile_bytes_, nullptr).bytes);
}

void HeadLinear::run(Runtime& runtime, int thread) {
    const int64_t rows = runtime.step.count(x_.extent), inputs = weight_->inputs(), outputs = weight_->outputs() / heads_;
    if (rows == 0) return;
    const Format format = weight_->format();
    const int64_t bytes = runtime.kernels.packed_bytes(format, 1, inputs);
    const Own o(heads_, max_rows_, runtime.team.max_threads(), tile_bytes_, runtime.own(thread));
    std::byte *alone = runtime.shared(), *tiles = alone + alone_bytes_;
    for (int64_t head = 0; head < heads_; ++head) o.groups[head] = {head, head * rows, rows};
    for (int64_t row = 0; row < rows; ++row) o.ids[row] = static_cast<int32_t>(row * heads_);
    const RowGroups groups{o.groups, heads_};
    GroupedProduct product{weight_.get(), nullptr, outputs, nullptr, nullptr, {}, false};
    product.x = rows > 1 ? tiles : alone;
    product.y = out_;
    product.stride = heads_ * outputs;
    product.matrix_step = outputs;
    GroupPieces pieces(groups, o.pieces);
    pieces.deal(runtime, product, thread);
    const KernelTable& kernels = runtime.kernels;
    const auto [begin, end] = share(runtime, rows * heads_, thread);
    for (int64_t i = begin; i < end; ++i) {
        const int32_t* order = weight_->order(i % heads_ * outputs);
        pack_tiles(runtime, {{format, 1}, 0, 1}, x_.data + i * inputs, inputs, order, o.tile, alone + i * bytes);
    }
    runtime.team.barrier();
    if (rows > 1) {
        for_tiles(runtime, groups, format, thread, 1, [&](const RowGroup& g, const Tiles& some) {
            kernels.gather_rows(some.of, alone + g.matrix * bytes, o.ids, inputs, some.begin, some.end, tiles + g.first * bytes);
        });
        runtime.team.barrier();
    }
    pieces.multiply(runtime, product, thread);
}

}  // namespace ferrum
