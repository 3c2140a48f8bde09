#include "state_operations.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace ferrum {

namespace {

constexpr int64_t kConvColumns = 512;  // of a piece of a convolution

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

void StateOperation::prepare() {
    const Step& step = runtime_.step;
    if (static_cast<int64_t>(step.states.read.size()) != step.spans()) throw std::logic_error("the step has no slots of states");
    keeps_ = std::any_of(step.states.kept.begin(), step.states.kept.end(), [](int32_t kept) { return kept > 0; });
    per_span_ = pieces(step.spans(), runtime_.team.size());
    for (int thread = 0; thread < runtime_.team.size(); ++thread)
        shares_.deal(thread, share(runtime_, step.spans() * per_span_, thread).count());
}

void StateOperation::run(Runtime& runtime, int thread) {
    const Step& step = runtime.step;
    const int64_t all = step.spans() * per_span_;
    for (Shares::Piece taken = shares_.take(thread); taken.owner >= 0; taken = shares_.take(thread)) {
        const Share owned = share(runtime, all, taken.owner);
        const int64_t piece = owned.begin + taken.number, next = piece + 1;
        const bool goes_on = taken.owner == thread && next < owned.end;
        advance({span_of(piece / per_span_), piece % per_span_, goes_on ? next % per_span_ : -1,
                 goes_on ? span_of(next / per_span_).read : nullptr},
                thread);
    }
    if (thread == 0)
        for (int64_t span = 0; span < step.spans(); ++span) {
            const auto at = static_cast<size_t>(span);
            const int64_t start = step.positions[static_cast<size_t>(step.span_rows[at])];
            runtime.states.seen(place_.group, place_.layer, step.states.write[at]) =
                start + step.span_rows[at + 1] - step.span_rows[at] - step.states.kept[at];
        }
    if (!keeps_) return;
    runtime.team.barrier();
    const auto [begin, end] = share(runtime, step.spans(), thread);
    for (int64_t span = begin; span < end; ++span) keep_rows(span);
}

StateSpan StateOperation::span_of(int64_t span) const {
    const Step& step = runtime_.step;
    const auto at = static_cast<size_t>(span);
    const States& states = runtime_.states;
    const int64_t read = step.states.read[at];
    return {read < 0 ? nullptr : states.state(place_.group, place_.layer, read),
            states.state(place_.group, place_.layer, step.states.write[at]),
            read < 0 ? nullptr : states.rows(place_.group, place_.layer, read),
            step.states.waiting[at],
            step.span_rows[at],
            step.span_rows[at + 1] - step.span_rows[at],
            step.states.kept[at]};
}

// The last rows of a span, or of those waiting, in order: they may move to the front of their own slot.
void StateOperation::keep_rows(int64_t span) const {
    const StateSpan s = span_of(span);
    const int64_t columns = runtime_.states.shape(place_.group).row_numbers;
    float* to = runtime_.states.rows(place_.group, place_.layer, runtime_.step.states.write[static_cast<size_t>(span)]);
    for (int64_t row = s.applied(); row < s.all(); ++row) {
        if (row < s.waiting_rows) {
            std::memmove(to, s.waiting + row * columns, static_cast<size_t>(columns) * sizeof(float));
            to += columns;
            continue;
        }
        for (const RowPart& part : parts_) {
            const float* from = part.data + (s.first + row - s.waiting_rows) * part.columns;
            std::memcpy(to, from, static_cast<size_t>(part.columns) * sizeof(float));
            to += part.columns;
        }
    }
}

int64_t ShortConv::pieces(int64_t, int64_t) const { return ceil_divide(args_.columns, kConvColumns); }

void ShortConv::advance(const Piece& piece, int) {
    const int64_t begin = piece.number * kConvColumns;
    runtime_.kernels.convolve(args_, piece.span, begin, std::min(begin + kConvColumns, args_.columns));
}

DeltaRule::DeltaRule(Runtime& runtime, StatePlace place, const DeltaArgs& args)
    : StateOperation(runtime, place, {{args.x, args.columns()}, {args.a, args.heads}, {args.b, args.heads}}), args_(args) {
    runtime.reserve(0, runtime.kernels.delta_scratch(args));
}

// All columns of a head, unless a thread would be idle then.
int64_t DeltaRule::columns(int64_t spans, int64_t threads) const {
    const int64_t blocks = ceil_divide(args_.value_dim, kDeltaColumns), heads = spans * args_.heads;
    const int64_t parts = heads >= threads ? 1 : std::min(blocks, ceil_divide(threads, heads));
    return ceil_divide(blocks, parts) * kDeltaColumns;
}

int64_t DeltaRule::pieces(int64_t spans, int64_t threads) const {
    return args_.heads * ceil_divide(args_.value_dim, columns(spans, threads));
}

void DeltaRule::advance(const Piece& piece, int thread) {
    const int64_t width = columns(runtime_.step.spans(), runtime_.team.size()), parts = ceil_divide(args_.value_dim, width);
    const int64_t begin = piece.number % parts * width;
    const bool fetches = parts == 1 && piece.next >= 0 && piece.next_read != nullptr;
    const float* next = fetches ? piece.next_read + piece.next * args_.key_dim * args_.value_dim : nullptr;
    runtime_.kernels.delta(args_, piece.span, {piece.number / parts, begin, std::min(begin + width, args_.value_dim), next},
                           runtime_.own(thread));
}

void GatedNorm::run(Runtime& runtime, int thread) {
    const auto [begin, end] = share(runtime, runtime.step.count(extent_) * heads_, thread);
    if (begin < end) runtime.kernels.gated_norm(args_, begin, end);
}

}  // namespace ferrum
