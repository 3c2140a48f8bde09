// Operations on whole rows: norms, QK-norm with rotation and the write to the pool, the check for finite numbers.
#include "rows.hpp"
#include "tier.hpp"

namespace ferrum::FERRUM_TIER {

namespace {

// 1 / sqrt(mean(x^2) + eps) of a row; `load` returns the lanes from an index on, given how many are left. The running
// sums of four virtual vectors hide their latencies.
template <class Load>
float inverse_rms(int64_t columns, float eps, Load load) {
    constexpr int kSums = 4 * kVirtual;
    vf sums[kSums] = {};
    const auto add = [&](int part, int64_t i, int64_t left) {
        const vf x = load(i, left);
        sums[part] = fused(x, x, sums[part]);
    };
    int64_t i = 0;
    for (; i + kSums * kLanes <= columns; i += kSums * kLanes)
#pragma GCC unroll 8
        for (int part = 0; part < kSums; ++part) add(part, i + part * kLanes, kLanes);
#pragma GCC unroll 8
    for (int part = 0; part < kSums; ++part, i += kLanes)
        if (i < columns) add(part, i, columns - i);
    vf total[kVirtual];
    for (int v = 0; v < kVirtual; ++v)
        total[v] = (sums[v] + sums[kVirtual + v]) + (sums[2 * kVirtual + v] + sums[3 * kVirtual + v]);
    return 1.0f / __builtin_sqrtf(sum_lanes(total) / static_cast<float>(columns) + eps);
}

float inverse_rms(const float* x, int64_t columns, float eps) {
    return inverse_rms(columns, eps, [=](int64_t i, int64_t left) { return load_part(x + i, left); });
}

void scale_row(const float* x, const float* weight, float factor, int64_t columns, float* y) {
    for (int64_t i = 0; i < columns; i += kLanes) {
        const int64_t left = columns - i;
        store_part(y + i, load_part(x + i, left) * spread(factor) * load_part(weight + i, left), left);
    }
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

// One head: norm, then rotation, from `from` to `to`.
void turn(const RopeArgs& a, const float* from, const float* norm, int64_t position, float* to) {
    if (norm != nullptr)
        scale_row(from, norm, inverse_rms(from, a.head_dim, a.eps), a.head_dim, to);
    else
        std::memcpy(to, from, static_cast<size_t>(a.head_dim) * sizeof(float));
    if (a.cosines != nullptr) rotate(to, a.cosines + position * a.pairs, a.sines + position * a.pairs, a.pairs);
}

// Rows whose tokens have adjacent keys in the store.
struct Run {
    Slot slot;
    int64_t count;
};

Run run_from(const RopeArgs& a, int64_t row, int64_t end, int64_t kv_head) {
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
        turn(a, key, a.k_norm, a.tables.positions[row + t], keys + t * a.head_dim);
    }
    const int64_t stride = a.num_kv_heads * s.value_dim;
    const float* values = a.v + row * stride + kv_head * s.value_dim;
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
        const int64_t heads = a.num_heads + a.num_kv_heads, share = a.num_heads / a.num_kv_heads;
        begin = item / heads * kRowBlock;
        end = least(begin + kRowBlock, a.rows);
        kv_head = item % heads / (share + 1);
        query = item % (share + 1) == 0 ? -1 : kv_head * share + item % (share + 1) - 1;
    }
};

void store_tokens(const RopeArgs& a, const RopeItem& item) {
    for (int64_t row = item.begin; row < item.end;) {
        const Run run = run_from(a, row, item.end, item.kv_head);
        store_run(a, run, row, item.kv_head);
        row += run.count;
    }
}

void turn_queries(const RopeArgs& a, const RopeItem& item) {
    for (int64_t row = item.begin; row < item.end; ++row) {
        const int64_t at = (row * a.num_heads + item.query) * a.head_dim;
        turn(a, a.q + at, a.q_norm, a.tables.positions[row], a.q_out + at);
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

}  // namespace

void norm(const NormArgs& a, int64_t row_begin, int64_t row_end) {
    for (int64_t row = row_begin; row < row_end; ++row) {
        const float* x = a.x + row * a.columns;
        float* y = a.y + row * a.columns;
        if (a.delta == nullptr) {
            scale_row(x, a.weight, inverse_rms(x, a.columns, a.eps), a.columns, y);
            continue;
        }
        const float* delta = a.delta + row * a.columns;
        float* total = a.total + row * a.columns;
        prefetch_floats(x + a.columns, a.columns);  // the next row: hardware prefetch stops at a page's end
        prefetch_floats(delta + a.columns, a.columns);
        const float factor = inverse_rms(a.columns, a.eps, [=](int64_t i, int64_t left) {
            const vf sum = load_part(x + i, left) + load_part(delta + i, left);
            store_part(total + i, sum, left);
            return sum;
        });
        scale_row(total, a.weight, factor, a.columns, y);
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

bool finite(const float* x, int64_t count) {
    vi bad{};
    for (int64_t i = 0; i < count; i += kLanes)  // a number that is not finite has all exponent bits set
        bad |= ((vi)load_part(x + i, count - i) & 0x7f800000) == 0x7f800000;
    return lanes_where(bad) == 0;
}

}  // namespace ferrum::FERRUM_TIER
