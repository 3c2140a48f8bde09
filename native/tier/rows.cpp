// Operations on whole rows: norms, QK-norm with rotation and the write to the pool, the check for finite numbers.
#include "activations.hpp"
#include "rows.hpp"
#include "squares.hpp"
#include "tier.hpp"

namespace ferrum::FERRUM_TIER {

namespace {

// 1 / sqrt(mean(x^2) + eps) of a row; `load` as in `squares_sum`.
template <class Load>
float inverse_rms(int64_t columns, float eps, Load load) {
    return 1.0f / __builtin_sqrtf(squares_sum(columns, load) / static_cast<float>(columns) + eps);
}

float inverse_rms(const float* x, int64_t columns, float eps) {
    return inverse_rms(columns, eps, [=](int64_t i, int64_t left) { return load_part(x + i, left); });
}

// y = x * factor * weight + bias, which may be null.
void scale_row(const float* x, const float* weight, const float* bias, float factor, int64_t columns, float* y) {
    for (int64_t i = 0; i < columns; i += kLanes) {
        const int64_t left = columns - i;
        const vf scaled = load_part(x + i, left) * spread(factor) * load_part(weight + i, left);
        store_part(y + i, bias == nullptr ? scaled : scaled + load_part(bias + i, left), left);
    }
}

void norm_head(const float* x, const float* weight, int64_t columns, float eps, float* y) {
    scale_row(x, weight, nullptr, inverse_rms(x, columns, eps), columns, y);
}

// Subtract the mean of a row.
void centre(const float* x, int64_t columns, float* y) {
    vf sums[kVirtual] = {};
    for (int64_t i = 0; i < columns; i += kVirtualLanes)
        for (int v = 0; v < kVirtual; ++v)
            if (i + v * kLanes < columns) sums[v] += load_part(x + i + v * kLanes, columns - i - v * kLanes);
    const vf mean = spread(sum_lanes(sums) / static_cast<float>(columns));
    for (int64_t i = 0; i < columns; i += kLanes) store_part(y + i, load_part(x + i, columns - i) - mean, columns - i);
}

// Rotate the pairs (i, i + pairs) of the first 2 x pairs elements.
void rotate(float* x, const float* cosines, const float* sines, int64_t pairs) {
    for (int64_t i = 0; i < pairs; i += kLanes) {
        const int64_t left = pairs - i;
        const vf cosine = load_part(cosines + i, left), sine = load_part(sines + i, left);
        const vf low = load_part(x + i, left), high = load_part(x + pairs + i, left);
        store_part(x + i, fused(low, cosine, -(high * sine)), left);
        store_part(x + pairs + i, fused(high, cosine, low * sine), left);
    }
}

// The vector of a row, which may be that of all rows.
const float* of_row(const float* const* of_rows, const float* of_all, int64_t row) {
    return of_rows == nullptr ? of_all : of_rows[row];
}

// Rotate each pair by the number of the row's place that its axis is.
void rotate_by_place(const RopeArgs& a, int64_t row, float* x) {
    float cosines[kMaxHead / 2], sines[kMaxHead / 2];
    for (int64_t i = 0; i < a.pairs; ++i) {
        const int64_t at = a.places[row * kPlaceAxes + a.axes[i]] * a.pairs + i;
        cosines[i] = a.cosines[at], sines[i] = a.sines[at];
    }
    rotate(x, cosines, sines, a.pairs);
}

void rotate_row(const RopeArgs& a, int64_t row, float* x) {
    if (a.cosines == nullptr) return;
    if (a.places != nullptr && a.axes != nullptr) return rotate_by_place(a, row, x);
    const int64_t at = a.tables.positions[row] * a.pairs;
    rotate(x, a.cosines + at, a.sines + at, a.pairs);
}

// One head of a row: norm and rotation, in either order, from `from` to `to`.
void turn(const RopeArgs& a, const float* from, const float* norm, int64_t row, float* to) {
    if (norm != nullptr && !a.norm_last)
        norm_head(from, norm, a.head_dim, a.eps, to);
    else
        std::memcpy(to, from, static_cast<size_t>(a.head_dim) * sizeof(float));
    rotate_row(a, row, to);
    if (norm != nullptr && a.norm_last) norm_head(to, norm, a.head_dim, a.eps, to);
}

// Rows whose tokens have adjacent keys in the store.
struct Run {
    Slot slot;
    int64_t count;
};

template <class Args>
Run run_from(const Args& a, int64_t row, int64_t end, int64_t kv_head) {
    const GroupStore& s = *a.store;
    const int64_t span = a.tables.row_span[row], position = a.tables.positions[row], offset = position % s.page_size;
    const int64_t page = a.tables.pages[span * a.tables.pages_stride + position / s.page_size];
    const Slot slot = slot_of(s, a.layer, page, kv_head, offset);
    const int64_t room = least(s.page_size - offset, s.key_side - slot.token % s.key_side);
    return {slot, least(least(end, a.tables.span_rows[span + 1]) - row, room)};
}

void store_run(const RopeArgs& a, const Run& run, int64_t row, int64_t kv_head) {
    const GroupStore& s = *a.store;
    float keys[kRowBlock * kMaxHead];
    for (int64_t t = 0; t < run.count; ++t) {
        const float* key = a.k + ((row + t) * a.num_kv_heads + kv_head) * a.head_dim;
        turn(a, key, of_row(a.k_norms, a.k_norm, row + t), row + t, keys + t * a.head_dim);
    }
    int64_t stride = a.num_kv_heads * s.value_dim;
    const float* values = a.v + row * stride + kv_head * s.value_dim;
    float normed[kRowBlock * kMaxHead];
    if (a.v_norm != nullptr) {
        for (int64_t t = 0; t < run.count; ++t)
            norm_head(values + t * stride, a.v_norm, s.value_dim, a.eps, normed + t * s.value_dim);
        values = normed, stride = s.value_dim;
    }
    switch (s.format) {
        case KvFormat::f32: return write_tokens<FloatStore<F32>>(s, run.slot, run.count, keys, values, stride);
        case KvFormat::int8: return write_tokens<ByteStore>(s, run.slot, run.count, keys, values, stride);
        default: return write_tokens<FloatStore<Bf16>>(s, run.slot, run.count, keys, values, stride);
    }
}

// A head of a block of rows. Heads are ordered by KV head, each with the query heads that share it, so that threads get
// an equal part of both.
struct RopeItem {
    int64_t begin, end;      // rows
    int64_t kv_head, query;  // the query head, or -1 for the KV head

    RopeItem(const RopeArgs& a, int64_t item) {
        const int64_t heads = items_per_row(a), by_kv_head = heads / a.num_kv_heads, share = a.num_heads / a.num_kv_heads;
        begin = item / heads * kRowBlock;
        end = least(begin + kRowBlock, a.rows);
        kv_head = item % heads / by_kv_head;
        const int64_t place = item % by_kv_head - (by_kv_head - share);
        query = place < 0 ? -1 : kv_head * share + place;
    }
};

void store_tokens(const RopeArgs& a, const RopeItem& item) {
    for (int64_t row = item.begin; row < item.end;) {
        const Run run = run_from(a, row, item.end, item.kv_head);
        store_run(a, run, row, item.kv_head);
        row += run.count;
    }
}

void scale_head(float* x, float factor, int64_t columns) {
    for (int64_t i = 0; i < columns; i += kLanes) store_part(x + i, load_part(x + i, columns - i) * spread(factor), columns - i);
}

void turn_queries(const RopeArgs& a, const RopeItem& item) {
    for (int64_t row = item.begin; row < item.end; ++row) {
        const int64_t at = (row * a.num_heads + item.query) * a.head_dim;
        turn(a, a.q + at, of_row(a.q_norms, a.q_norm, row), row, a.q_out + at);
        if (a.temperature != nullptr) scale_head(a.q_out + at, a.temperature[a.tables.positions[row]], a.head_dim);
    }
}

// The inputs of an item are short pieces far apart, and so are the lines of its tokens and queries. The hardware
// prefetches none of them.
void fetch(const RopeArgs& a, const RopeItem& item) {
    const int64_t heads = item.query >= 0 ? a.num_heads : a.num_kv_heads, head = item.query >= 0 ? item.query : item.kv_head;
    for (int64_t row = item.begin; row < item.end; ++row) {
        const int64_t at = row * heads + head;
        prefetch_floats((item.query >= 0 ? a.q : a.k) + at * a.head_dim, a.head_dim);
        if (item.query < 0)
            prefetch_floats(a.v + at * a.store->value_dim, a.store->value_dim);
        else
            prefetch_floats(a.q_out + at * a.head_dim, a.head_dim);
    }
    for (int64_t row = item.begin; item.query < 0 && row < item.end;) {
        const Run run = run_from(a, row, item.end, item.kv_head);
        prefetch_tokens(*a.store, run.slot, run.count);
        row += run.count;
    }
}

// [x, rotated rope] of a row, at `to`.
void join(const LatentArgs& a, int64_t row, const float* x, const float* rope, float* to) {
    std::memcpy(to, x, static_cast<size_t>(a.value_dim) * sizeof(float));
    std::memcpy(to + a.value_dim, rope, static_cast<size_t>(a.rope_dim) * sizeof(float));
    const int64_t at = a.tables.positions[row] * a.pairs;
    rotate(to + a.value_dim, a.cosines + at, a.sines + at, a.pairs);
}

void store_latent(const LatentArgs& a, int64_t row, int64_t end) {
    float keys[kRowBlock * kMaxHead];
    for (const GroupStore& s = *a.store; row < end;) {
        const Run run = run_from(a, row, end, 0);
        for (int64_t t = 0; t < run.count; ++t)
            join(a, row + t, a.latent + (row + t) * a.value_dim, a.k_rope + (row + t) * a.rope_dim, keys + t * s.key_dim);
        switch (s.format) {
            case KvFormat::f32: write_keys_of<FloatStore<F32>>(s, run.slot, run.count, keys); break;
            case KvFormat::int8: write_keys_of<ByteStore>(s, run.slot, run.count, keys); break;
            default: write_keys_of<FloatStore<Bf16>>(s, run.slot, run.count, keys);
        }
        row += run.count;
    }
}

// Write total = x + factor delta; returns 1 / sqrt(mean(total^2) + eps). PLAIN: the factor is 1.
template <bool PLAIN>
float add_delta(const NormArgs& a, const float* x, const float* delta, float* total) {
    prefetch_floats(x + a.columns, a.columns);  // the next row: hardware prefetch stops at a page's end
    prefetch_floats(delta + a.columns, a.columns);
    return inverse_rms(a.columns, a.eps, [=](int64_t i, int64_t left) {
        const vf change = load_part(delta + i, left), from = load_part(x + i, left);
        const vf sum = PLAIN ? from + change : fused(change, spread(a.factor), from);
        store_part(total + i, sum, left);
        return sum;
    });
}

// out = (x + factor y) scale. PLAIN: the factor is 1.
template <bool PLAIN>
void add_row(const AddArgs& a, int64_t at, float factor) {
    for (int64_t i = 0; i < a.columns; i += kLanes) {
        const int64_t left = a.columns - i;
        const vf x = load_part(a.x + at + i, left), y = load_part(a.y + at + i, left);
        store_part(a.out + at + i, (PLAIN ? x + y : fused(y, spread(factor), x)) * spread(a.scale), left);
    }
}

}  // namespace

void norm(const NormArgs& a, int64_t row_begin, int64_t row_end) {
    for (int64_t row = row_begin; row < row_end; ++row) {
        const float* x = a.x + row * a.columns;
        float* y = a.y + row * a.columns;
        float factor = 0;
        if (a.delta != nullptr) {
            const float* delta = a.delta + row * a.columns;
            float* total = a.total + row * a.columns;
            factor = a.factor == 1 ? add_delta<true>(a, x, delta, total) : add_delta<false>(a, x, delta, total);
            x = total;
        }
        if (a.centred) centre(x, a.columns, y), x = y;
        if (a.centred || a.delta == nullptr) factor = inverse_rms(x, a.columns, a.eps);
        scale_row(x, of_row(a.weights, a.weight, row), of_row(a.biases, a.bias, row), factor, a.columns, y);
    }
}

void gated_norm(const GatedNormArgs& a, int64_t begin, int64_t end) {
    for (int64_t at = begin * a.dim; at < end * a.dim; at += a.dim) norm_head(a.x + at, a.weight, a.dim, a.eps, a.y + at);
    activate_all(a.activation, a.gate + begin * a.dim, a.y + begin * a.dim, (end - begin) * a.dim, a.y + begin * a.dim);
}

void add(const AddArgs& a, int64_t row_begin, int64_t row_end) {
    for (int64_t row = row_begin; row < row_end; ++row) {
        const float factor = a.gate == nullptr ? a.factor : sigmoid(spread(a.gate[row]))[0];
        factor == 1 ? add_row<true>(a, row * a.columns, factor) : add_row<false>(a, row * a.columns, factor);
    }
}

void rope_store(const RopeArgs& a, int64_t item_begin, int64_t item_end) {
    fetch(a, RopeItem(a, item_begin));
    for (int64_t item = item_begin; item < item_end; ++item) {
        if (item + 1 < item_end) fetch(a, RopeItem(a, item + 1));
        const RopeItem at(a, item);
        at.query >= 0 ? turn_queries(a, at) : store_tokens(a, at);
    }
}

void latent_store(const LatentArgs& a, int64_t item_begin, int64_t item_end) {
    for (int64_t item = item_begin; item < item_end; ++item) {
        const int64_t head = item % (a.num_heads + 1) - 1, begin = item / (a.num_heads + 1) * kRowBlock;
        const int64_t end = least(begin + kRowBlock, a.rows);
        if (head < 0) store_latent(a, begin, end);
        for (int64_t row = begin; head >= 0 && row < end; ++row) {
            const int64_t at = row * a.num_heads + head;
            join(a, row, a.q + at * a.value_dim, a.q_rope + at * a.rope_dim, a.q_out + at * (a.value_dim + a.rope_dim));
        }
    }
}

bool finite(const float* x, int64_t count) {
    vi bad{};
    for (int64_t i = 0; i < count; i += kLanes)  // a number that is not finite has all exponent bits set
        bad |= ((vi)load_part(x + i, count - i) & 0x7f800000) == 0x7f800000;
    return lanes_where(bad) == 0;
}

}  // namespace ferrum::FERRUM_TIER
