// Operations that advance states: distribution of the spans of a step to threads, and the rows kept for the next step.
#pragma once

#include "operations.hpp"

namespace ferrum {

// The place of a layer among the states.
struct StatePlace {
    int64_t group, layer;
};

// Columns of the rows of a step, from `data` on, which are a part of the rows that a state is advanced by.
struct RowPart {
    const float* data;
    int64_t columns;
};

// Pieces of spans run by work stealing. Rows are kept once all pieces are done, since a piece may read those kept before.
class StateOperation : public Operation {
public:
    StateOperation(Runtime& runtime, StatePlace place, std::vector<RowPart> parts)
        : runtime_(runtime), place_(place), parts_(std::move(parts)), shares_(runtime.team.max_threads()) {}
    // Throws std::logic_error if the step has no states.
    void prepare() final;
    void run(Runtime& runtime, int thread) final;

protected:
    // A piece of a span, and the piece that the thread computes next, or -1, with the state that its span reads.
    struct Piece {
        StateSpan span;
        int64_t number, next;
        const float* next_read;
    };

    // How many pieces a span has, the same for all spans.
    virtual int64_t pieces(int64_t spans, int64_t threads) const = 0;
    virtual void advance(const Piece& piece, int thread) = 0;

    Runtime& runtime_;

private:
    StateSpan span_of(int64_t span) const;
    void keep_rows(int64_t span) const;

    StatePlace place_;
    std::vector<RowPart> parts_;
    Shares shares_;
    int64_t per_span_ = 1;  // pieces
    bool keeps_ = false;
};

class ShortConv final : public StateOperation {
public:
    ShortConv(Runtime& runtime, StatePlace place, const ConvArgs& args)
        : StateOperation(runtime, place, {{args.x, args.columns}}), args_(args) {}

private:
    int64_t pieces(int64_t, int64_t) const override;
    void advance(const Piece& piece, int thread) override;

    ConvArgs args_;
};

class DeltaRule final : public StateOperation {
public:
    DeltaRule(Runtime& runtime, StatePlace place, const DeltaArgs& args);

private:
    int64_t pieces(int64_t spans, int64_t threads) const override;
    void advance(const Piece& piece, int thread) override;

    // The columns of values of a piece.
    int64_t columns(int64_t spans, int64_t threads) const;

    DeltaArgs args_;
};

class GatedNorm final : public Operation {
public:
    GatedNorm(const GatedNormArgs& args, int64_t heads, int64_t extent) : args_(args), heads_(heads), extent_(extent) {}
    void run(Runtime& runtime, int thread) override;

private:
    GatedNormArgs args_;
    int64_t heads_, extent_;
};

}  // namespace ferrum
