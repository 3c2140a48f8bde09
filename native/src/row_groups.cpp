#include "row_groups.hpp"

namespace ferrum {

namespace {

constexpr int64_t kFewRows = 4;  // up to this, a product takes as long as reading its weights

}  // namespace

void GroupPieces::deal(Runtime& runtime, const GroupedProduct& product, int thread) {
    const int64_t panels = product.columns / kPanel;
    const auto blocks_of = [&](const RowGroup& g) { return runtime.kernels.row_blocks({product.weight->format(), g.count}); };
    const auto cost_of = [&](const RowGroup& g) { return std::max(g.count, kFewRows * blocks_of(g)); };
    int64_t cost = 0, pieces = 0;
    for (int64_t i = 0; i < groups_.count; ++i) {
        cost += cost_of(groups_.all[i]);
        ends_[i] = pieces += blocks_of(groups_.all[i]) * panels;
    }
    const int64_t threads = runtime.team.size();
    int64_t before = 0, at = 0;  // cost of the groups before `at`
    for (int64_t t = 0; t < threads; ++t) {
        const int64_t wanted = cost * t / threads;
        while (before + cost_of(groups_.all[at]) <= wanted) before += cost_of(groups_.all[at++]);
        const int64_t first = at == 0 ? 0 : ends_[at - 1];
        begins_[t] = first + (ends_[at] - first) * (wanted - before) / cost_of(groups_.all[at]);
    }
    begins_[threads] = pieces;
    runtime.shares.deal(thread, begins_[thread + 1] - begins_[thread]);
}

GroupPieces::Place GroupPieces::find(int64_t piece, int64_t guess) const {
    // Pieces are taken in order, mostly.
    if (piece >= ends_[guess]) ++guess;
    const auto begin_of = [&](int64_t group) { return group == 0 ? 0 : ends_[group - 1]; };
    if (guess == groups_.count || piece < begin_of(guess) || piece >= ends_[guess])
        guess = std::upper_bound(ends_, ends_ + groups_.count, piece) - ends_;
    return {guess, piece - begin_of(guess)};
}

void GroupPieces::multiply(Runtime& runtime, const GroupedProduct& p, int thread) const {
    const Weight& w = *p.weight;
    const int64_t panels = p.columns / kPanel, bytes = panel_bytes(w.format(), w.inputs());
    const int64_t row_bytes = runtime.kernels.packed_bytes(w.format(), 1, w.inputs());
    const auto panel_at = [&](const Weight& of, const RowGroup& g, int64_t panel) {
        return of.data() + ((g.matrix * p.outputs + p.begin) / kPanel + panel) * bytes;
    };
    int64_t last = 0;
    for (Shares::Piece piece = runtime.shares.take(thread); piece.owner >= 0; piece = runtime.shares.take(thread)) {
        const int64_t number = begins_[piece.owner] + piece.number;
        const Place place = find(number, last);
        const RowGroup& g = groups_.all[place.group];
        last = place.group;
        NextPanel next{};
        if (piece.owner == thread && number + 1 < begins_[thread + 1]) {
            const Place follows = find(number + 1, place.group);
            const RowGroup& of = groups_.all[follows.group];
            next.weight = panel_at(w, of, follows.number % panels);
            if (p.up != nullptr) next.up = panel_at(*p.up, of, follows.number % panels);
        }
        ProductArgs args{};
        args.tiled = {w.format(), g.count};
        args.x = g.count == 1 && p.alone != nullptr ? p.alone + p.ids[g.first] * row_bytes : p.x + g.first * row_bytes;
        args.depth = w.inputs();
        args.weight = panel_at(w, g, 0);
        args.up = p.up != nullptr ? panel_at(*p.up, g, 0) : nullptr;
        args.bias = p.bias != nullptr ? p.bias + g.matrix * p.outputs + p.begin : nullptr;
        args.up_bias = p.up_bias != nullptr ? p.up_bias + g.matrix * p.outputs + p.begin : nullptr;
        args.activation = p.activation;
        args.outputs = p.stride;  // whole panels: none needs its end
        args.y = p.y + g.first * p.row_step + g.matrix * p.matrix_step;
        args.gates = p.gates;
        runtime.kernels.product(args, place.number / panels, place.number % panels, next);
    }
}

}  // namespace ferrum
