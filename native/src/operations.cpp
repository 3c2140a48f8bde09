#include "operations.hpp"

#include <cstring>

#include "ordered_rows.hpp"
#include "row_norms.hpp"

namespace ferrum {

namespace {

void copy_row(const float* from, float* to, int64_t columns) {
    std::memcpy(to, from, static_cast<size_t>(columns) * sizeof(float));
}

// Let a rotation with axes use the places of the step's rows, if it has any.
void take_places(RopeArgs& args, const Step& step, const std::vector<int32_t>& axes) {
    if (step.places.empty() || axes.empty()) return;
    args.places = step.places.data();
    args.axes = axes.data();
}

}  // namespace

void Embed::run(Runtime& runtime, int thread) {
    const Step& step = runtime.step;
    const int64_t columns = table_->inputs();
    const bool replaces = stride_ == 1 && !step.given_of.empty() && step.given_columns == columns;
    const auto [begin, end] = share(runtime, step.count(out_.extent), thread);
    for (int64_t row = begin; row < end; ++row) {
        float* to = out_.data + row * columns;
        const int32_t given = replaces ? step.given_of[static_cast<size_t>(row)] : -1;
        if (given >= 0) {
            copy_row(step.given.data() + given * columns, to, columns);
            continue;
        }
        table_->row(runtime.kernels, step.token_ids[static_cast<size_t>(row)] * stride_ + offset_, to);
        for (int64_t i = 0; scale_ != 1 && i < columns; ++i) to[i] *= scale_;
    }
}

void AddGiven::run(Runtime& runtime, int thread) {
    const Step& step = runtime.step;
    if (step.given_of.empty() || step.added_columns < offset_ + columns_) return;
    const auto [begin, end] = share(runtime, step.count(x_.extent), thread);
    for (int64_t row = begin; row < end; ++row) {
        const int32_t given = step.given_of[static_cast<size_t>(row)];
        if (given < 0) continue;
        const float* from = step.added.data() + given * step.added_columns + offset_;
        float* to = x_.data + row * columns_;
        for (int64_t i = 0; i < columns_; ++i) to[i] += from[i];
    }
}

void EmbedPositions::run(Runtime& runtime, int thread) {
    const auto [begin, end] = share(runtime, runtime.step.count(out_.extent), thread);
    for (int64_t row = begin; row < end; ++row)
        table_->row(runtime.kernels, runtime.step.positions[static_cast<size_t>(row)], out_.data + row * table_->inputs());
}

void Multiply::run(Runtime& runtime, int thread) {
    const auto [begin, end] = share(runtime, runtime.step.count(out_.extent), thread);
    for (int64_t i = begin * columns_; i < end * columns_; ++i) out_.data[i] = x_[i] * y_[i];
}

void Norm::prepare() {
    if (norms_ == nullptr) return;
    norms_->choose();
    args_.weights = norms_->weights();
    args_.biases = norms_->biases();
}

void Norm::run(Runtime& runtime, int thread) {
    const auto [begin, end] = share(runtime, runtime.step.count(extent_), thread);
    if (begin < end) runtime.kernels.norm(args_, begin, end);
}

void Add::run(Runtime& runtime, int thread) {
    const auto [begin, end] = share(runtime, runtime.step.count(extent_), thread);
    if (begin < end) runtime.kernels.add(args_, begin, end);
}

Linear::Linear(Runtime& runtime, Rows x, std::vector<Product> products, int64_t max_rows)
    : x_(x), products_(std::move(products)) {
    for (size_t i = 0; i < products_.size(); ++i) {
        const Weight& weight = *products_[i].weight;
        runtime.reserve(runtime.kernels.packed_bytes(weight.format(), max_rows, weight.inputs()), tile_bytes(runtime, weight, max_rows));
        size_t first = 0;
        while (!products_[first].weight->packs_like(weight)) ++first;
        firsts_.push_back(first);
    }
}

void Linear::run(Runtime& runtime, int thread, LinearWork* more) {
    const int64_t rows = runtime.step.count(x_.extent);
    if (rows == 0) return;
    for (size_t i = 0; i < products_.size(); ++i) {
        if (firsts_[i] != i) continue;
        if (i > 0) runtime.team.barrier();  // wait until the last packed rows are free
        const TiledRows tiled{products_[i].weight->format(), rows};
        pack(runtime, i, tiled, thread);
        if (i == 0 && more != nullptr) more->pack(runtime, thread);
        runtime.team.barrier();
        multiply(runtime, i, tiled, thread, more);
    }
}

int64_t Linear::panels_of(size_t first) const {
    int64_t panels = 0;
    for (size_t i = first; i < products_.size(); ++i) panels += firsts_[i] == first ? products_[i].weight->panels() : 0;
    return panels;
}

// The panels of all weights for which rows are packed alike form one list.
Linear::Place Linear::find(size_t first, int64_t panel) const {
    for (size_t i = first; i < products_.size(); ++i) {
        if (firsts_[i] != first) continue;
        if (panel < products_[i].weight->panels()) return {products_[i], panel};
        panel -= products_[i].weight->panels();
    }
    return {products_.back(), 0};
}

NextPanel Linear::Place::panels() const {
    const int64_t offset = panel * panel_bytes(product.weight->format(), product.weight->inputs());
    return {product.weight->data() + offset, product.up != nullptr ? product.up->data() + offset : nullptr};
}

// Each thread owns a contiguous part of the list, once per block of rows, so that it streams through memory.
void Linear::pack(Runtime& runtime, size_t first, const TiledRows& tiled, int thread) const {
    const Share own = share(runtime, panels_of(first), thread);
    runtime.shares.deal(thread, runtime.kernels.row_blocks(tiled) * own.count());
    const auto [begin, end] = share(runtime, runtime.kernels.row_tiles(tiled), thread);
    const Weight& weight = *products_[first].weight;
    pack_tiles(runtime, {tiled, begin, end}, x_.data, weight.inputs(), weight.order(), runtime.own(thread), runtime.shared());
}

void Linear::multiply(Runtime& runtime, size_t first, const TiledRows& tiled, int thread, LinearWork* more) const {
    const int64_t panels = panels_of(first);
    for (Shares::Piece piece = runtime.shares.take(thread); piece.owner >= 0; piece = runtime.shares.take(thread)) {
        const Share part = share(runtime, panels, piece.owner);
        const int64_t block = piece.number / part.count(), panel = part.begin + piece.number % part.count();
        const auto [p, place] = find(first, panel);
        const bool goes_on = piece.owner == thread && panel + 1 < part.end;
        const NextPanel next = goes_on ? find(first, panel + 1).panels() : NextPanel{};
        const Weight& w = *p.weight;
        const std::byte* up = p.up != nullptr ? p.up->data() : nullptr;
        const ProductArgs args{tiled,     runtime.shared(), w.inputs(),  w.data(), up,     p.bias,
                               p.up_bias, p.activation,     w.outputs(), p.y,      p.gates};
        const auto product = static_cast<size_t>(&p - products_.data());
        if (more != nullptr) more->begin_panel(runtime, product, place);
        runtime.kernels.product(args, block, place, next);
        if (more != nullptr) more->end_panel(runtime, product, place);
    }
}

void RopeStore::prepare() {
    if (q_norms_ != nullptr) q_norms_->choose(), args_.q_norms = q_norms_->weights();
    if (k_norms_ != nullptr) k_norms_->choose(), args_.k_norms = k_norms_->weights();
}

void RopeStore::run(Runtime& runtime, int thread) {
    RopeArgs args = args_;
    args.store = &runtime.pool.group(group_);
    args.tables = runtime.step.rows_of(group_);
    args.rows = runtime.step.count(extent_);
    take_places(args, runtime.step, axes_);
    const int64_t items = (args.rows + kRowBlock - 1) / kRowBlock * items_per_row(args);
    const auto [begin, end] = share(runtime, items, thread);
    if (begin < end) runtime.kernels.rope_store(args, begin, end);
}

void Rotate::run(Runtime& runtime, int thread) {
    RopeArgs args = args_;
    args.tables.positions = runtime.step.positions.data();
    args.rows = runtime.step.count(extent_);
    take_places(args, runtime.step, axes_);
    const auto [begin, end] = share(runtime, (args.rows + kRowBlock - 1) / kRowBlock * items_per_row(args), thread);
    if (begin < end) runtime.kernels.rope_store(args, begin, end);
}

void LatentStore::run(Runtime& runtime, int thread) {
    LatentArgs args = args_;
    args.store = &runtime.pool.group(group_);
    args.tables = runtime.step.rows_of(group_);
    args.rows = runtime.step.count(extent_);
    const int64_t items = (args.rows + kRowBlock - 1) / kRowBlock * (args.num_heads + 1);
    const auto [begin, end] = share(runtime, items, thread);
    if (begin < end) runtime.kernels.latent_store(args, begin, end);
}

void Gather::run(Runtime& runtime, int thread) {
    const Step& step = runtime.step;
    const std::vector<int32_t>& rows = out_.extent == kLogits ? step.logit_rows : step.hidden_rows;
    const auto [begin, end] = share(runtime, static_cast<int64_t>(rows.size()), thread);
    for (int64_t i = begin; i < end; ++i)
        copy_row(x_ + rows[static_cast<size_t>(i)] * columns_, out_.data + i * columns_, columns_);
}

void Finite::run(Runtime& runtime, int thread) {
    const Step& step = runtime.step;
    const auto [begin, end] = share(runtime, step.spans(), thread);
    for (int64_t span = begin; span < end; ++span) {
        const int64_t from = step.span_rows[static_cast<size_t>(span)], to = step.span_rows[static_cast<size_t>(span) + 1];
        out_[span] = runtime.kernels.finite(x_ + from * columns_, (to - from) * columns_);
    }
}

void run_all(Runtime& runtime, const Operations& operations) {
    struct Call {
        Runtime& runtime;
        const Operations& operations;
    } call{runtime, operations};
    const std::lock_guard<std::mutex> lock(runtime.running);
    for (const auto& operation : operations) operation->prepare();
    runtime.team.run(
        [](void* context, int thread) {
            const Call& c = *static_cast<Call*>(context);
            for (const auto& operation : c.operations) {
                operation->run(c.runtime, thread);
                c.runtime.team.barrier();
            }
        },
        &call);
}

}  // namespace ferrum
