// Operations on whole rows: norms, QK-norm with rotation and the write to the pool, the finite check.
#include "rows.hpp"
#include "tier.hpp"

namespace ferrum::FERRUM_TIER {

namespace {

// 1 / sqrt(mean(x^2) + eps) of a row; four running sums, so that their latencies overlap.
float inverse_rms(const float* x, int64_t columns, float eps) {
    vf sums[4] = {};
    for (int64_t i = 0, part = 0; i < columns; i += kLanes, ++part) {
        const vf value = load_part(x + i, columns - i);
        sums[part % 4] = multiply_add(value, value, sums[part % 4]);
    }
    const float mean = sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3])) / static_cast<float>(columns);
    return 1.0f / __builtin_sqrtf(mean + eps);
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
        store_part(x + i, low * cosine - high * sine, left);
        store_part(x + pairs + i, high * cosine + low * sine, left);
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

// Heads are counted in turns of a KV head and the query heads that share it, so that threads get as much of both.
void rope_store_item(const RopeArgs& a, int64_t row, int64_t head) {
    const int64_t position = a.tables.positions[row], share = a.num_heads / a.num_kv_heads;
    const int64_t kv_head = head / (share + 1), query = head % (share + 1) - 1;
    if (query >= 0) {
        const int64_t at = (row * a.num_heads + kv_head * share + query) * a.head_dim;
        return turn(a, a.q + at, a.q_norm, position, a.q_out + at);
    }
    const int64_t at = row * a.num_kv_heads + kv_head;
    float key[kMaxHead];
    turn(a, a.k + at * a.head_dim, a.k_norm, position, key);
    const GroupStore& s = *a.store;
    const int64_t page = a.tables.pages[a.tables.row_span[row] * a.tables.pages_stride + position / s.page_size];
    const Slot slot = slot_of(s, a.layer, page, kv_head, position % s.page_size);
    const float* value = a.v + at * s.value_dim;
    switch (s.format) {
        case KvFormat::f32: return write_token<FloatStore<F32>>(s, slot, key, value);
        case KvFormat::int8: return write_token<ByteStore>(s, slot, key, value);
        default: return write_token<FloatStore<Bf16>>(s, slot, key, value);
    }
}

}  // namespace

void norm(const NormArgs& a, int64_t row_begin, int64_t row_end) {
    for (int64_t row = row_begin; row < row_end; ++row) {
        const float* x = a.x + row * a.columns;
        if (a.delta != nullptr) {
            float* total = a.total + row * a.columns;
            const float* delta = a.delta + row * a.columns;
            for (int64_t i = 0; i < a.columns; i += kLanes) {
                const int64_t left = a.columns - i;
                store_part(total + i, load_part(x + i, left) + load_part(delta + i, left), left);
            }
            x = total;
        }
        scale_row(x, a.weight, inverse_rms(x, a.columns, a.eps), a.columns, a.y + row * a.columns);
    }
}

void rope_store(const RopeArgs& a, int64_t item_begin, int64_t item_end) {
    const int64_t heads = a.num_heads + a.num_kv_heads;
    for (int64_t item = item_begin; item < item_end; ++item) {
        const int64_t first = item / heads * kRowBlock;
        for (int64_t row = first; row < least(first + kRowBlock, a.rows); ++row) rope_store_item(a, row, item % heads);
    }
}

bool finite(const float* x, int64_t count) {
    vi bad{};
    for (int64_t i = 0; i < count; i += kLanes)  // of a non-finite number all exponent bits are set
        bad |= ((vi)load_part(x + i, count - i) & 0x7f800000) == 0x7f800000;
    for (int lane = 0; lane < kLanes; ++lane)
        if (bad[lane] != 0) return false;
    return true;
}

}  // namespace ferrum::FERRUM_TIER
