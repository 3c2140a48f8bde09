// Operations on whole rows: norms, sums and products of rows, activations, selections, checks and the best tokens.
#include "rounded_rows.hpp"
#include "sums.hpp"

namespace ferrum::cuda {

namespace {

constexpr int kBatch = 8;                    // numbers that a thread reads at once
constexpr int kStretch = kBatch * kThreads;  // and a block

FERRUM_DEVICE int least(Int a, Int b) { return static_cast<int>(a < b ? a : b); }

// ---- Norms: a block has a row ----

struct NormArgs {
    const int* rows;
    const float* x;
    const float* delta;  // or null: the norm of x + factor delta, which is written to total
    const float* weight;
    const float* bias;  // or null
    float* total;
    float* y;
    Byte* rounded;  // or null: the results rounded for products, too
    Int columns;
    Real factor, eps;
    Int centred;
};

constexpr int kHeld = 8192;  // numbers of a row in shared memory; a longer row is read for each pass

struct NormRow {
    const NormArgs& a;
    float* held;
    Int first, begin = -1;
    float mean = 0;

    FERRUM_DEVICE NormRow(const NormArgs& args, float* memory) : a(args), held(memory), first(block_x() * args.columns) {}

    // Read numbers of a batch, kThreads apart.
    FERRUM_DEVICE void read(const float* from, int i, int count, float (&numbers)[kBatch]) const {
        for (int j = 0; j < kBatch; ++j) numbers[j] = i + j * kThreads < count ? from[i + j * kThreads] : 0.0f;
    }
    // Hold the numbers from `from` on, less the mean; returns their count.
    FERRUM_DEVICE int hold(Int from) {
        const int count = least(kHeld, a.columns - from);
        if (begin == from) return count;
        sync_block();
        for (int i = thread(); i < count; i += kStretch) {
            float numbers[kBatch], changes[kBatch] = {};
            read(a.x + first + from, i, count, numbers);
            if (a.delta != nullptr) read(a.delta + first + from, i, count, changes);
            for (int j = 0; j < kBatch; ++j) {
                const int at = i + j * kThreads;
                if (at >= count) continue;
                if (a.delta != nullptr) a.total[first + from + at] = numbers[j] = fused(changes[j], a.factor.value, numbers[j]);
                held[at] = numbers[j] - mean;
            }
        }
        sync_block();
        begin = from;
        return count;
    }
    // Subtract the mean; a row in one piece is not read again.
    FERRUM_DEVICE void centre(float* statistics) {
        float sum = 0;  // of a lane of the vector
        for (Int from = 0; from < a.columns; from += kHeld) {
            const int count = hold(from);
            for (int i = thread(); thread() < 16 && i < count; i += 16) sum = sum + held[i];
        }
        if (warp() == 0) {
            const float all = fold_vector(sum);
            if (lane() == 0) statistics[0] = divided(all, static_cast<float>(a.columns));
        }
        sync_block();
        mean = statistics[0];
        if (a.columns > kHeld) return;  // the pieces are read again
        for (int i = thread(); i < a.columns; i += kThreads) held[i] = held[i] - mean;
        sync_block();
    }
    // 1 / sqrt(mean of squares + eps).
    FERRUM_DEVICE float inverse(float* statistics) {
        SquaresSum sum;
        for (Int from = 0; from < a.columns; from += kHeld) {
            const int count = hold(from);
            if (warp() == 0) sum.add(held, count);
        }
        if (warp() == 0) {
            const float squares = divided(sum.folded(), static_cast<float>(a.columns));
            if (lane() == 0) statistics[1] = divided(1.0f, square_root(squares + a.eps.value));
        }
        sync_block();
        return statistics[1];
    }
    FERRUM_DEVICE void write(float factor) {
        for (Int from = 0; from < a.columns; from += kHeld) {
            const int count = hold(from);
            if (a.rounded == nullptr) {
                for (int i = thread(); i < count; i += kThreads) a.y[first + from + i] = number(from, i, factor);
            } else {
                write_rounded(from, count, factor);
            }
        }
    }
    FERRUM_DEVICE float number(Int from, int i, float factor) const {
        const float y = (held[i] * factor) * a.weight[from + i];
        return a.bias == nullptr ? y : y + a.bias[from + i];
    }
    // Write numbers as they are and rounded, with zeros to the end of a chunk.
    FERRUM_DEVICE void write_rounded(Int from, int count, float factor) const {
        const RoundedRow layout(a.columns);
        Byte* rounded = a.rounded + block_x() * layout.bytes();
        const Int end = least(layout.units * kUnit - from, kHeld);
        for (int i = thread(); i < end; i += kThreads) {
            const float y = i < count ? number(from, i, factor) : 0.0f;
            if (i < count) a.y[first + from + i] = y;
            round_unit(y, rounded, layout, (from + i) / kUnit);
        }
    }
};

}  // namespace

FERRUM_KERNEL(norm_rows, NormArgs) {
    FERRUM_SHARED(float, held, kHeld);
    FERRUM_SHARED(float, statistics, 2);
    if (block_x() >= *a.rows) return;
    NormRow row(a, held);
    if (a.centred != 0) row.centre(statistics);
    row.write(row.inverse(statistics));
}

// ---- Numbers of rows: a thread has one ----

namespace {

struct AddArgs {
    const int* rows;
    const float* x;
    const float* y;
    const float* gate;  // [rows], or null: its sigmoid is the factor
    float* out;
    Int columns;
    Real factor, scale;
};

struct ActivateArgs {
    const int* rows;
    const float* x;
    const float* others;  // or null: factors of the activated numbers
    float* out;
    Int columns;
    Activation activation;
};

struct MultiplyArgs {
    const int* rows;
    const float* x;
    const float* y;
    float* out;
    Int columns;
};

struct GatherArgs {
    const int* rows;
    const int* row_of;
    const float* x;
    float* out;
    Int columns;
};

// Write this thread's number of a row, which `number` gives from its index.
template <class Number>
FERRUM_DEVICE void write_number(float* out, Int columns, Number number) {
    const Int i = block_x() * kThreads + thread();
    if (i < columns) out[block_y() * columns + i] = number(i);
}

}  // namespace

FERRUM_KERNEL(add_rows, AddArgs) {
    if (block_y() >= *a.rows) return;
    const float factor = a.gate == nullptr ? a.factor.value : sigmoid(a.gate[block_y()]), scale = a.scale.value;
    const float *x = a.x + block_y() * a.columns, *y = a.y + block_y() * a.columns;
    write_number(a.out, a.columns, [=](Int i) { return fused(y[i], factor, x[i]) * scale; });
}

FERRUM_KERNEL(multiply_rows, MultiplyArgs) {
    if (block_y() >= *a.rows) return;
    const float *x = a.x + block_y() * a.columns, *y = a.y + block_y() * a.columns;
    write_number(a.out, a.columns, [=](Int i) { return x[i] * y[i]; });
}

FERRUM_KERNEL(activate_rows, ActivateArgs) {
    if (block_y() >= *a.rows) return;
    const Int row = block_y() * a.columns;
    const float *x = a.x + row, *others = a.others == nullptr ? nullptr : a.others + row;
    const Activation& curve = a.activation;
    write_number(a.out, a.columns, [=](Int i) {
        return others == nullptr ? activated(curve, x[i]) : gated(curve, x[i], others[i]);
    });
}

FERRUM_KERNEL(gather_rows, GatherArgs) {
    if (block_y() >= *a.rows) return;
    const float* x = a.x + a.row_of[block_y()] * a.columns;
    write_number(a.out, a.columns, [=](Int i) { return x[i]; });
}

// ---- Finite rows and spans, best tokens ----

namespace {

struct FiniteArgs {
    const int* rows;
    const float* x;
    int* flags;  // [rows]
    Int columns;
};

struct FiniteSpansArgs {
    const int* spans;
    const int* span_rows;
    const int* flags;
    Byte* out;  // [spans]
};

struct BestArgs {
    const int* rows;
    const float* logits;
    float* values;  // [rows, parts]: the greatest logit of a part of a row
    int* ids;       // and its token; -1 if a logit is not finite
    int* out;       // [rows]
    Int columns, parts;
};

constexpr int kPart = 4 * kStretch;  // logits of a block

// The greatest logit so far, and the lowest token that has it.
struct Best {
    float value = as_float(kInfinity | kSign);
    int id = 0x7fffffff;

    FERRUM_DEVICE void meet(float other, int other_id) {
        const bool better = other > value || (other == value && other_id < id);
        value = better ? other : value;
        id = better ? other_id : id;
    }
    FERRUM_DEVICE void meet_lanes() {
        for (int half = 16; half > 0; half /= 2) meet(shuffle(value, lane() ^ half), shuffle(id, lane() ^ half));
    }
};

}  // namespace

FERRUM_KERNEL(finite_rows, FiniteArgs) {
    FERRUM_SHARED(unsigned, flags, kWarps);
    if (block_x() >= *a.rows) return;
    const float* x = a.x + block_x() * a.columns;
    bool bad = false;
    for (Int i = thread(); i < a.columns; i += kStretch)
        for (int j = 0; j < kBatch; ++j)
            if (i + j * kThreads < a.columns) bad |= !is_finite(x[i + j * kThreads]);
    bad = any_of_block(bad, flags);
    if (thread() == 0) a.flags[block_x()] = !bad;
}

FERRUM_KERNEL(finite_spans, FiniteSpansArgs) {
    FERRUM_SHARED(unsigned, flags, kWarps);
    if (block_x() >= *a.spans) return;
    bool bad = false;
    for (Int row = a.span_rows[block_x()] + thread(); row < a.span_rows[block_x() + 1]; row += kThreads) bad |= a.flags[row] == 0;
    bad = any_of_block(bad, flags);
    if (thread() == 0) a.out[block_x()] = !bad;
}

FERRUM_KERNEL(best_parts, BestArgs) {
    FERRUM_SHARED(unsigned, flags, kWarps);
    FERRUM_SHARED(float, values, kWarps);
    FERRUM_SHARED(int, ids, kWarps);
    if (block_y() >= *a.rows) return;
    const float* logits = a.logits + block_y() * a.columns;
    const Int end = least((block_x() + 1) * kPart, a.columns);
    Best best;
    bool bad = false;
    for (Int i = block_x() * kPart + thread(); i < end; i += kStretch) {
        float numbers[kBatch];
        for (int j = 0; j < kBatch; ++j) numbers[j] = logits[i + j * kThreads < end ? i + j * kThreads : i];
        for (int j = 0; j < kBatch; ++j) {
            bad |= !is_finite(numbers[j]);
            best.meet(numbers[j], static_cast<int>(i + j * kThreads < end ? i + j * kThreads : i));
        }
    }
    best.meet_lanes();
    if (lane() == 0) values[warp()] = best.value, ids[warp()] = best.id;
    bad = any_of_block(bad, flags);
    if (thread() != 0) return;
    for (int i = 0; i < kWarps; ++i) best.meet(values[i], ids[i]);
    a.values[block_y() * a.parts + block_x()] = best.value;
    a.ids[block_y() * a.parts + block_x()] = bad ? -1 : best.id;
}

FERRUM_KERNEL(best_rows, BestArgs) {
    const Int row = block_x() * kWarps + warp();
    if (row >= *a.rows) return;
    Best best;
    bool bad = false;
    for (Int i = lane(); i < a.parts; i += kWarp) {
        const int id = a.ids[row * a.parts + i];
        bad |= id < 0;
        best.meet(a.values[row * a.parts + i], id);
    }
    best.meet_lanes();
    bad = ballot(bad) != 0;
    if (lane() == 0) a.out[row] = bad ? -1 : best.id;
}

}  // namespace ferrum::cuda
