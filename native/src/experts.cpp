#include "experts.hpp"

#include <algorithm>
#include <utility>

#include "ordered_rows.hpp"

namespace ferrum {

namespace {

constexpr int64_t kColumns = 256;       // columns of a row that a thread adds at a time
constexpr int64_t kResults = 1 << 21;  // of down at a time: more would go through memory before they are added

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

struct Experts::Shared {
    // Of the pairs of a row and one of its experts, ascending.
    int32_t* experts;
    float* weights;
    std::byte* packed_hidden;
    float *up, *t, *weighted;  // in a step with adapters: products of up, those by matrices A, and inputs with weights
    // Until the products of gate and up are done:
    std::byte *alone, *tiles;
    float *hidden, *own;  // the results of gate and up, and those of this rank
    // Then in their place:
    float* results;
    int64_t bytes;

    Shared(const Experts& e, std::byte* from) {
        const int64_t pairs = e.max_rows_ * e.routing_.top_k;
        Parts parts(from);
        experts = parts.take<int32_t>(pairs);
        weights = parts.take<float>(pairs);
        packed_hidden = parts.take<std::byte>(e.hidden_bytes_ * pairs);
        up = parts.take<float>(e.adapted_pairs_ * e.own_);
        t = parts.take<float>(e.numbers_);
        weighted = parts.take<float>(e.routing_.on_input ? e.adapted_pairs_ * e.columns_ : 0);
        Parts late = parts;
        alone = parts.take<std::byte>(e.inner_bytes_ * (e.by_pair_ ? pairs : e.max_rows_));
        tiles = parts.take<std::byte>(e.inner_bytes_ * pairs);
        hidden = parts.take<float>(pairs * e.hidden_);
        own = e.exchange_ == nullptr ? hidden : parts.take<float>(pairs * e.own_);
        results = late.take<float>(std::min(pairs * e.outputs_, std::max(kResults, pairs * kPanel)));
        bytes = std::max(parts.used(), late.used());
    }
};

struct Experts::Own {
    std::byte* routing;
    int64_t* pieces;
    int32_t *ids, *places;  // of the rows of all groups, the row packed alone; of the pairs, the row of a group
    RowGroup* groups;
    const float** rows;  // of a sum
    float* weighted;     // a row of inputs
    std::byte* tile;     // gathered
    int64_t bytes;

    Own(const Experts& e, int64_t threads, std::byte* from) {
        const int64_t pairs = e.max_rows_ * e.routing_.top_k;
        Parts parts(from);
        routing = parts.take<std::byte>(e.routing_.room());
        pieces = parts.take<int64_t>(GroupPieces::room(e.routing_.experts, threads));
        ids = parts.take<int32_t>(pairs);
        places = parts.take<int32_t>(pairs);
        groups = parts.take<RowGroup>(e.routing_.experts);
        rows = parts.take<const float*>(e.routing_.top_k);
        weighted = parts.take<float>(e.routing_.on_input ? e.columns_ : 0);
        tile = parts.take<std::byte>(e.tile_bytes_);
        bytes = parts.used();
    }
};

Experts::Experts(Runtime& runtime, Rows x, const float* scores, float* out, const Routing& routing, const ExpertWeights& weights,
                 const Activation& activation, int64_t max_rows, std::shared_ptr<AdapterSite> site,
                 std::shared_ptr<Exchange> exchange, Starts starts)
    : x_(x), scores_(scores), out_(out), routing_(routing), weights_(weights), max_rows_(max_rows),
      columns_(weights.gate->inputs()), outputs_(weights.down->outputs() / routing.experts), hidden_(weights.down->inputs()),
      own_(weights.gate->outputs() / routing.experts), runtime_(runtime), site_(std::move(site)), activation_(activation),
      exchange_(std::move(exchange)), starts_(std::move(starts)) {
    const ExpertWeights& w = weights_;
    by_pair_ = routing_.on_input;
    if (w.gate->packs_like(*w.up)) {
        inner_.push_back({w.gate.get(), w.up.get(), own_, w.gate_bias, w.up_bias, activation, false});
    } else {
        inner_.push_back({w.up.get(), nullptr, own_, w.up_bias, nullptr, {}, false});
        inner_.push_back({w.gate.get(), nullptr, own_, w.gate_bias, nullptr, activation, true});
    }
    plain_.push_back({w.up.get(), nullptr, own_, w.up_bias, nullptr, {}, false});  // rows are packed for up first
    plain_.push_back({w.gate.get(), nullptr, own_, w.gate_bias, nullptr, {}, false});
    for (GroupedProduct& product : plain_) product.stride = product.row_step = own_;
    outer_ = {w.down.get(), nullptr, outputs_, w.down_bias, nullptr, {}, false};
    for (GroupedProduct& product : inner_) {
        product.stride = product.row_step = own_;
        inner_bytes_ = std::max(inner_bytes_, runtime.kernels.packed_bytes(product.weight->format(), 1, columns_));
        by_pair_ = by_pair_ || product.weight->order() != nullptr;
        tile_bytes_ = std::max(tile_bytes_, tile_bytes(runtime, *product.weight, 1));
    }
    tile_bytes_ = std::max(tile_bytes_, tile_bytes(runtime, *w.down, max_rows * routing_.top_k));
    hidden_bytes_ = runtime.kernels.packed_bytes(w.down->format(), 1, hidden_);
    runtime.reserve(Shared(*this, nullptr).bytes, Own(*this, runtime.team.max_threads(), nullptr).bytes);
}

// Reserve memory for a step with adapters.
void Experts::prepare() {
    adapted_pairs_ = numbers_ = 0;
    if (site_ == nullptr) return;
    int64_t adapters = 0, pairs = 0;
    for (const StepAdapter& each : runtime_.step.adapters)
        if (const AdapterEntry* entry = site_->entry(each.slot)) {
            const int64_t own = static_cast<int64_t>(each.rows.size()) * routing_.top_k;
            ++adapters;
            pairs += own;
            numbers_ += own * entry->rank;
        }
    if (pairs == 0) return;
    adapted_pairs_ = runtime_.step.count(x_.extent) * routing_.top_k;
    inner_jobs_.reserve(static_cast<size_t>(adapters * routing_.experts));
    outer_jobs_.reserve(static_cast<size_t>(adapters * routing_.experts));
    ids_.reserve(static_cast<size_t>(2 * pairs));  // pointers stay valid
    runtime_.reserve(Shared(*this, nullptr).bytes, 0);
}

void Experts::run(Runtime& runtime, int thread) {
    const int64_t rows = runtime.step.count(x_.extent);
    if (rows == 0) return;
    const Shared s(*this, runtime.shared());
    const Own o(*this, runtime.team.max_threads(), runtime.own(thread));
    route_rows(runtime, s, o, rows, thread);
    runtime.team.barrier();
    const RowGroups groups = group(s, o, rows);
    if (thread == 0) experts_read_ += groups.count;
    const bool adapted = adapted_pairs_ > 0;
    if (adapted && thread == 0) list_jobs(runtime, o, groups);
    const std::vector<GroupedProduct>& inner = adapted ? plain_ : inner_;
    for (const GroupedProduct& product : inner) {
        const bool first = &product == &inner.front();
        if (!first) runtime.team.barrier();  // wait until the packed rows of the other format are free
        if (!first || by_pair_) {
            const Share own = share(runtime, by_pair_ ? rows * routing_.top_k : rows, thread);
            pack_alone(runtime, s, o, *product.weight, own.begin, own.end);
            runtime.team.barrier();
        }
        multiply_inner(runtime, s, o, groups, product, adapted && first ? s.up : s.own, thread);
    }
    runtime.team.barrier();
    if (adapted) adapt_inner(runtime, s, rows, thread);
    if (exchange_ != nullptr) join_inner(runtime, s, rows, thread);
    if (adapted) {
        float* const ys[] = {nullptr, nullptr, nullptr};
        const int64_t outputs[] = {0, 0, 0};
        shrink(runtime, thread, outer_jobs_, adapted_outer(s, outer_, ys, outputs));
    }
    const int64_t width = strip(rows * routing_.top_k);
    for (int64_t begin = 0; begin < outputs_; begin += width) {
        GroupedProduct product = outer_;
        product.begin = begin;
        product.columns = product.stride = product.row_step = std::min(width, outputs_ - begin);
        if (begin > 0) runtime.team.barrier();  // wait until the results of the last strip are free
        multiply_outer(runtime, s, o, groups, product, thread);
        runtime.team.barrier();
        if (adapted) {
            float* const ys[] = {nullptr, nullptr, s.results};
            const int64_t outputs[] = {0, 0, product.columns};
            expand(runtime, thread, outer_jobs_, adapted_outer(s, product, ys, outputs));
            runtime.team.barrier();
        }
        add_results(runtime, s, o, rows, product, thread);
    }
}

// The columns of results that are computed at a time.
int64_t Experts::strip(int64_t pairs) const { return std::min(outputs_, std::max(kPanel, kResults / pairs / kPanel * kPanel)); }

// Inputs without weights are packed meanwhile. The packings come first, so that with one row a thread does each.
void Experts::route_rows(const Runtime& runtime, const Shared& s, const Own& o, int64_t rows, int thread) const {
    const int64_t packed = by_pair_ ? 0 : rows, top_k = routing_.top_k;
    const auto [begin, end] = share(runtime, packed + rows, thread);
    pack_alone(runtime, s, o, *inner_.front().weight, begin, std::min(end, packed));
    for (int64_t row = std::max(begin, packed) - packed; row < end - packed; ++row) {
        const float* scores = scores_ + row * routing_.experts;
        route(runtime.kernels, routing_, scores, o.routing, s.experts + row * top_k, s.weights + row * top_k);
    }
}

// Pack rows, or pairs, each as a tile.
void Experts::pack_alone(const Runtime& runtime, const Shared& s, const Own& o, const Weight& weight, int64_t begin, int64_t end) const {
    const int64_t bytes = runtime.kernels.packed_bytes(weight.format(), 1, columns_);
    for (int64_t i = begin; i < end; ++i) {
        const float* from = x_.data + (by_pair_ ? i / routing_.top_k : i) * columns_;
        if (routing_.on_input) {
            for (int64_t column = 0; column < columns_; ++column) o.weighted[column] = from[column] * s.weights[i];
            from = o.weighted;
        }
        const int32_t* order = by_pair_ ? weight.order(s.experts[i] * own_) : nullptr;
        pack_tiles(runtime, {{weight.format(), 1}, 0, 1}, from, columns_, order, o.tile, s.alone + i * bytes);
    }
}

// Each thread lists all groups: that takes less time than a barrier, or than the rows of a large step to multiply.
RowGroups Experts::group(const Shared& s, const Own& o, int64_t rows) const {
    const int64_t pairs = rows * routing_.top_k;
    int64_t* next = o.pieces;  // free until pieces are dealt
    std::fill(next, next + routing_.experts, 0);
    for (int64_t pair = 0; pair < pairs; ++pair) ++next[s.experts[pair]];
    int64_t count = 0, first = 0;
    for (int64_t e = 0; e < routing_.experts; ++e) {
        if (next[e] != 0) o.groups[count++] = {e, first, next[e]};
        first += std::exchange(next[e], first);
    }
    for (int64_t pair = 0; pair < pairs; ++pair) {
        const int64_t at = next[s.experts[pair]]++;
        o.places[pair] = static_cast<int32_t>(at);
        o.ids[at] = static_cast<int32_t>(by_pair_ ? pair : pair / routing_.top_k);
    }
    return {o.groups, count};
}

void Experts::multiply_inner(Runtime& runtime, const Shared& s, const Own& o, const RowGroups& groups, GroupedProduct product,
                             float* y, int thread) const {
    const Format format = product.weight->format();
    const int64_t bytes = runtime.kernels.packed_bytes(format, 1, columns_);
    GroupPieces pieces(groups, o.pieces);
    pieces.deal(runtime, product, thread);
    if (groups.crowded()) {
        for_tiles(runtime, groups, format, thread, 2, [&](const RowGroup& g, const Tiles& some) {
            std::byte* to = s.tiles + g.first * bytes;
            runtime.kernels.gather_rows(some.of, s.alone, o.ids + g.first, columns_, some.begin, some.end, to);
        });
        runtime.team.barrier();
    }
    product.x = s.tiles;
    product.alone = s.alone;
    product.ids = o.ids;
    product.y = y;
    pieces.multiply(runtime, product, thread);
}

// List the rows of each adapter by expert: their numbers among the inputs, and among the pairs by expert.
void Experts::list_jobs(const Runtime& runtime, const Own& o, const RowGroups& groups) {
    inner_jobs_.clear();
    outer_jobs_.clear();
    ids_.clear();
    int64_t first = 0;
    for (const StepAdapter& each : runtime.step.adapters) {
        const AdapterEntry* entry = site_->entry(each.slot);
        if (entry == nullptr) continue;
        for (int64_t i = 0; i < groups.count; ++i) {
            const RowGroup& g = groups.all[i];
            const auto row_of = [&](int64_t at) { return static_cast<int32_t>(by_pair_ ? o.ids[at] / routing_.top_k : o.ids[at]); };
            const auto uses = [&](int64_t at) { return std::binary_search(each.rows.begin(), each.rows.end(), row_of(at)); };
            const size_t inputs = ids_.size();
            for (int64_t at = g.first; at < g.first + g.count; ++at)
                if (uses(at)) ids_.push_back(routing_.on_input ? o.ids[at] : row_of(at));
            const size_t places = ids_.size();
            for (int64_t at = g.first; at < g.first + g.count; ++at)
                if (uses(at)) ids_.push_back(static_cast<int32_t>(at));
            const auto count = static_cast<int64_t>(places - inputs);
            if (count == 0) continue;
            const int32_t *from = ids_.data() + inputs, *to = ids_.data() + places;
            inner_jobs_.push_back({entry, each.scale, g.matrix, from, to, count, first});
            outer_jobs_.push_back({entry, each.scale, g.matrix, to, to, count, first});
            first += count * entry->rank;
        }
    }
}

// Change the products of gate and up, and activate them.
void Experts::adapt_inner(Runtime& runtime, const Shared& s, int64_t rows, int thread) const {
    const int64_t pairs = rows * routing_.top_k;
    if (routing_.on_input) {
        const auto [begin, end] = share(runtime, pairs, thread);
        for (int64_t pair = begin; pair < end; ++pair)
            for (int64_t column = 0; column < columns_; ++column)
                s.weighted[pair * columns_ + column] = x_.data[pair / routing_.top_k * columns_ + column] * s.weights[pair];
        runtime.team.barrier();
    }
    float* const ys[] = {s.own, s.up, nullptr};
    const int64_t outputs[] = {own_, own_, 0};
    const AdaptedProducts of{0, 2, routing_.on_input ? s.weighted : x_.data, columns_, ys, outputs, s.t};
    shrink(runtime, thread, inner_jobs_, of);
    runtime.team.barrier();
    expand(runtime, thread, inner_jobs_, of);
    runtime.team.barrier();
    const auto [begin, end] = share(runtime, pairs, thread);
    if (begin < end)
        runtime.kernels.activate_all(activation_, s.own + begin * own_, s.up + begin * own_, (end - begin) * own_, s.own + begin * own_);
    runtime.team.barrier();
}

// Join the results of gate and up of all ranks, which list the pairs in one order.
void Experts::join_inner(Runtime& runtime, const Shared& s, int64_t rows, int thread) const {
    join_columns(*exchange_, runtime, thread, rows * routing_.top_k, starts_, s.own, s.hidden);
    runtime.team.barrier();
}

// The products of down that are computed at a time.
AdaptedProducts Experts::adapted_outer(const Shared& s, const GroupedProduct& product, float* const* ys, const int64_t* outputs) const {
    return {2, 3, s.hidden, hidden_, ys, outputs, s.t, product.begin, outputs_};
}

void Experts::multiply_outer(Runtime& runtime, const Shared& s, const Own& o, const RowGroups& groups, GroupedProduct product,
                             int thread) const {
    GroupPieces pieces(groups, o.pieces);
    pieces.deal(runtime, product, thread);
    if (product.begin == 0) {
        for_tiles(runtime, groups, product.weight->format(), thread, 1, [&](const RowGroup& g, const Tiles& some) {
            const int32_t* order = product.weight->order(g.matrix * product.outputs);
            std::byte* to = s.packed_hidden + g.first * hidden_bytes_;
            pack_tiles(runtime, some, s.hidden + g.first * hidden_, hidden_, order, o.tile, to);
        });
        runtime.team.barrier();
    }
    product.x = s.packed_hidden;
    product.y = s.results;
    pieces.multiply(runtime, product, thread);
}

void Experts::add_results(const Runtime& runtime, const Shared& s, const Own& o, int64_t rows, const GroupedProduct& product,
                          int thread) const {
    const int64_t width = product.columns, parts = ceil_divide(width, kColumns), top_k = routing_.top_k;
    const auto [begin, end] = share(runtime, rows * parts, thread);
    for (int64_t at = begin; at < end;) {
        const int64_t row = at / parts, last = std::min(end, (row + 1) * parts);
        for (int64_t i = 0; i < top_k; ++i) o.rows[i] = s.results + o.places[row * top_k + i] * width;
        const float* weights = routing_.on_input ? nullptr : s.weights + row * top_k;
        const int64_t from = (at - row * parts) * kColumns, to = std::min(width, (last - row * parts) * kColumns);
        runtime.kernels.add_rows(o.rows, weights, top_k, from, to, out_ + row * outputs_ + product.begin);
        at = last;
    }
}

}  // namespace ferrum
