// Operations with states: the short convolution, and the gated delta rule (docs/numerics.md, section States).
#include "activations.hpp"
#include "logarithm.hpp"
#include "squares.hpp"
#include "tier.hpp"

namespace ferrum::FERRUM_TIER {

namespace {

// Columns of values whose sums are in registers: a cache line or two.
constexpr int kBlockVectors = kLanes == 16 ? 2 : 16 / kLanes;
constexpr int64_t kBlockColumns = kBlockVectors * kLanes;
static_assert(kDeltaColumns % kBlockColumns == 0, "an item begins with a block");

constexpr int kChains = 4;       // sums over the key dimension
constexpr int64_t kTokens = 16;  // rows whose unit vectors are computed together
constexpr float kUnitEps = 1e-6f;
constexpr int kConvVectors = 4;  // adjacent columns of a convolution

// Vectors in a row, of which `left` numbers are there; the others are 0.
template <bool WHOLE>
vf load_block(const float* from, int vector, int64_t left) {
    if (WHOLE) return load<vf>(from + vector * kLanes);
    return left > vector * kLanes ? load_part(from + vector * kLanes, left - vector * kLanes) : vf{};
}

template <bool WHOLE>
void store_block(float* to, int vector, vf v, int64_t left) {
    if (WHOLE) return store(to + vector * kLanes, v);
    if (left > vector * kLanes) store_part(to + vector * kLanes, v, left - vector * kLanes);
}

// Row i of the rows before a span, of those waiting, and of the span's, from the column `begin` on; null: zeros.
const float* conv_row(const ConvArgs& a, const StateSpan& s, int64_t i, int64_t begin) {
    const int64_t before = a.taps - 1;
    if (i < before) return s.read == nullptr ? nullptr : s.read + i * a.columns + begin;
    if (i < before + s.waiting_rows) return s.waiting + (i - before) * a.columns + begin;
    return a.x + (s.first + i - before - s.waiting_rows) * a.columns + begin;
}

// The convolution of a row at the columns from `begin` on, of which `left` are computed.
template <bool WHOLE>
void convolve_row(const ConvArgs& a, const StateSpan& s, int64_t row, int64_t begin, int64_t left) {
    vf y[kConvVectors] = {};
    for (int64_t tap = 0; tap < a.taps; ++tap) {
        const float *x = conv_row(a, s, s.waiting_rows + row + tap, begin), *weight = a.weight + tap * a.columns + begin;
        for (int v = 0; v < kConvVectors; ++v) {
            const vf from = x == nullptr ? vf{} : load_block<WHOLE>(x, v, left);
            y[v] = fused(from, load_block<WHOLE>(weight, v, left), y[v]);
        }
    }
    for (int v = 0; a.bias != nullptr && v < kConvVectors; ++v) y[v] += load_block<WHOLE>(a.bias + begin, v, left);
    activate(a.activation, y, kConvVectors);
    for (int v = 0; v < kConvVectors; ++v) store_block<WHOLE>(a.y + (s.first + row) * a.columns + begin, v, y[v], left);
}

// The rows of a head that a state is advanced by. Unit vectors are in rows of `width`.
struct Tokens {
    int64_t width;
    float* q;  // [kTokens, width]
    float* k;
    float decay[kTokens], share[kTokens];  // factors of the state, and of the change
    const float* v[kTokens];               // [value_dim]
    float* y[kTokens];
};

// Prefetch the head's columns of rows of the span, which are far apart, before they are read.
void fetch_rows(const DeltaArgs& a, int64_t head, int64_t begin, int64_t end) {
    const int64_t key_head = a.key_head(head);
    for (int64_t row = begin; row < end; ++row) {
        const float* x = a.x + row * a.columns();
        prefetch_floats(x + key_head * a.key_dim, a.key_dim);
        prefetch_floats(x + (a.key_heads + key_head) * a.key_dim, a.key_dim);
        prefetch_floats(x + 2 * a.key_heads * a.key_dim + head * a.value_dim, a.value_dim);
        prefetch_floats(a.y + (row * a.heads + head) * a.value_dim, a.value_dim);
    }
}

void unit(const float* x, int64_t count, float factor, float* out) {
    const float sum = squares_sum(count, [=](int64_t i, int64_t left) { return load_part(x + i, left); });
    const vf inverse = spread(1.0f / __builtin_sqrtf(sum + kUnitEps));
    for (int64_t i = 0; i < count; i += kLanes) store(out + i, load_part(x + i, count - i) * inverse * spread(factor));
}

// The rows [begin, begin + count) of those waiting and those of the span. The results of waiting ones go to `unused`.
void read_tokens(const DeltaArgs& a, const StateSpan& s, int64_t head, int64_t begin, int64_t count, float* unused, Tokens& to) {
    const int64_t key_head = a.key_head(head), values = 2 * a.key_heads * a.key_dim + head * a.value_dim;
    float from[kTokens] = {}, gate[kTokens] = {};
    for (int64_t t = 0; t < count; ++t) {
        const int64_t row = begin + t - s.waiting_rows + s.first;
        const bool waits = begin + t < s.waiting_rows;
        const float* x = waits ? s.waiting + (begin + t) * a.row_numbers() : a.x + row * a.columns();
        from[t] = waits ? x[a.columns() + head] : a.a[row * a.heads + head];
        gate[t] = waits ? x[a.columns() + a.heads + head] : a.b[row * a.heads + head];
        unit(x + key_head * a.key_dim, a.key_dim, a.query_scale, to.q + t * to.width);
        unit(x + (a.key_heads + key_head) * a.key_dim, a.key_dim, 1.0f, to.k + t * to.width);
        to.v[t] = x + values;
        to.y[t] = waits ? unused : a.y + (row * a.heads + head) * a.value_dim;
    }
    for (int64_t t = 0; t < kTokens; t += kLanes) {
        const vf shifted = load<vf>(from + t) + spread(a.shift[head]);
        store(to.decay + t, exp(spread(a.decay[head]) * softplus(shifted)));
        store(to.share + t, sigmoid(load<vf>(gate + t)));
    }
}

// A block of columns of a state, in rows of two places; of the last one, only `left` columns.
struct Block {
    const float* from;
    float* to;
    int64_t from_stride, to_stride, keys, left;
};

// Call work(chain, key) for all keys in order. The chain is a constant of the compiled code.
template <class Work>
inline __attribute__((always_inline)) void for_keys(int64_t keys, Work work) {
    int64_t i = 0;
    for (; i + kChains <= keys; i += kChains)
#pragma GCC unroll 4
        for (int chain = 0; chain < kChains; ++chain) work(chain, i + chain);
#pragma GCC unroll 4
    for (int chain = 0; chain < kChains; ++chain)
        if (i + chain < keys) work(chain, i + chain);
}

inline void add_chains(const vf (&sums)[kChains][kBlockVectors], vf (&total)[kBlockVectors]) {
    for (int v = 0; v < kBlockVectors; ++v) total[v] = (sums[0][v] + sums[1][v]) + (sums[2][v] + sums[3][v]);
}

// (decay S)^T k. It prefetches kBlockColumns numbers at `ahead` per key, unless that is null.
template <bool WHOLE>
void recall(const Block& b, const float* k, float decay, const float* ahead, vf (&total)[kBlockVectors]) {
    vf sums[kChains][kBlockVectors] = {};
    const vf factor = spread(decay);
    const float* from = b.from;
    for_keys(b.keys, [&](int chain, int64_t i) __attribute__((always_inline)) {
        if (ahead != nullptr) prefetch_floats(ahead + i * kBlockColumns, kBlockColumns);
        const vf key = spread(k[i]);
        for (int v = 0; v < kBlockVectors; ++v)
            sums[chain][v] = fused(load_block<WHOLE>(from, v, b.left) * factor, key, sums[chain][v]);
        from += b.from_stride;
    });
    add_chains(sums, total);
}

enum class Store { part, whole, streamed };

// S = decay S + k change^T, at `to`; returns S^T q.
template <Store HOW>
void advance(const Block& b, const float* q, const float* k, float decay, const vf (&change)[kBlockVectors],
             vf (&total)[kBlockVectors]) {
    constexpr bool kWhole = HOW != Store::part;
    vf sums[kChains][kBlockVectors] = {};
    const vf factor = spread(decay);
    const float* from = b.from;
    float* to = b.to;
    for_keys(b.keys, [&](int chain, int64_t i) __attribute__((always_inline)) {
        const vf key = spread(k[i]), query = spread(q[i]);
        for (int v = 0; v < kBlockVectors; ++v) {
            const vf s = fused(key, change[v], load_block<kWhole>(from, v, b.left) * factor);
            if (HOW == Store::streamed)
                stream(to + v * kLanes, s);
            else
                store_block<kWhole>(to, v, s, b.left);
            sums[chain][v] = fused(s, query, sums[chain][v]);
        }
        from += b.from_stride;
        to += b.to_stride;
    });
    add_chains(sums, total);
}

// Apply a token to a block whose first column is `column`.
template <Store HOW>
void apply(const Block& b, const Tokens& tokens, int64_t t, int64_t column, const float* ahead) {
    constexpr bool kWhole = HOW != Store::part;
    const float *q = tokens.q + t * tokens.width, *k = tokens.k + t * tokens.width;
    vf total[kBlockVectors], change[kBlockVectors];
    recall<kWhole>(b, k, tokens.decay[t], ahead, total);
    for (int v = 0; v < kBlockVectors; ++v)
        change[v] = (load_block<kWhole>(tokens.v[t] + column, v, b.left) - total[v]) * spread(tokens.share[t]);
    advance<HOW>(b, q, k, tokens.decay[t], change, total);
    for (int v = 0; v < kBlockVectors; ++v) store_block<kWhole>(tokens.y[t] + column, v, total[v], b.left);
}

// A head's state in memory of the thread, block after block, and its tokens. Rows of a whole state are a multiple of a
// page's part apart, so that those of a block would not fit in the first-level cache.
struct Scratch {
    float* state;   // [blocks, key_dim, kBlockColumns]
    float* unused;  // [value_dim]
    Tokens tokens;
};

Scratch scratch_of(const DeltaArgs& a, std::byte* memory, int64_t* bytes = nullptr) {
    const int64_t width = ceil_divide(a.key_dim, kLanes) * kLanes, columns = ceil_divide(a.value_dim, kBlockColumns) * kBlockColumns;
    int64_t used = 0;
    const auto take = [&](int64_t count) {
        float* at = memory == nullptr ? nullptr : reinterpret_cast<float*>(memory) + used;
        used += ceil_divide(count, 16) * 16;
        return at;
    };
    Scratch made{take(a.key_dim * columns), take(a.value_dim), {width, take(kTokens * width), take(kTokens * width), {}, {}, {}, {}}};
    if (bytes != nullptr) *bytes = used * static_cast<int64_t>(sizeof(float));
    return made;
}

// The columns of an item in a slot or in scratch memory: the distances of rows, and of blocks.
template <class Number>
struct Place {
    Number* at;
    int64_t stride, step;

    Number* block(int64_t index) const { return at + index * step; }
};

// A step of some tokens from one state to another; between them the state is in scratch memory. The last store may stream
// if nothing reads the state soon.
struct Passage {
    Place<const float> from;
    Place<float> to, scratch;
    int64_t count;
    bool streams;
    const float* ahead;  // the columns of the next item, or null
};

void pass(const DeltaArgs& a, const DeltaItem& item, const Passage& p, const Tokens& tokens) {
    for (int64_t column = item.begin, index = 0; column < item.end; column += kBlockColumns, ++index) {
        const int64_t left = item.end - column;
        const float* ahead = p.ahead == nullptr ? nullptr : p.ahead + (column - item.begin) * a.key_dim;
        for (int64_t t = 0; t < p.count; ++t) {
            const bool first = t == 0, last = t + 1 == p.count;
            const Block block{first ? p.from.block(index) : p.scratch.block(index), last ? p.to.block(index) : p.scratch.block(index),
                              first ? p.from.stride : p.scratch.stride, last ? p.to.stride : p.scratch.stride, a.key_dim, left};
            if (left < kBlockColumns)
                apply<Store::part>(block, tokens, t, column, nullptr);
            else if (last && p.streams && streams_at(block.to, block.to_stride))
                apply<Store::streamed>(block, tokens, t, column, first ? ahead : nullptr);
            else
                apply<Store::whole>(block, tokens, t, column, first ? ahead : nullptr);
        }
    }
}

void copy_columns(const DeltaArgs& a, const DeltaItem& item, const float* from, float* to) {
    const auto bytes = static_cast<size_t>(item.end - item.begin) * sizeof(float);
    for (int64_t at = item.begin; at < a.key_dim * a.value_dim; at += a.value_dim) {
        if (from == nullptr)
            std::memset(to + at, 0, bytes);
        else if (from != to)
            std::memcpy(to + at, from + at, bytes);
    }
}

}  // namespace

void convolve(const ConvArgs& a, const StateSpan& s, int64_t begin, int64_t end) {
    for (int64_t row = 0; row < s.rows; ++row)
        for (int64_t c = begin; c < end; c += kConvVectors * kLanes)
            end - c < kConvVectors * kLanes ? convolve_row<false>(a, s, row, c, end - c) : convolve_row<true>(a, s, row, c, end - c);
    for (int64_t i = 0; i < a.taps - 1; ++i) {  // after all rows: it may be the state read
        const float* row = conv_row(a, s, s.applied() + i, begin);
        float* to = s.write + i * a.columns + begin;
        const auto bytes = static_cast<size_t>(end - begin) * sizeof(float);
        row == nullptr ? std::memset(to, 0, bytes) : std::memmove(to, row, bytes);
    }
}

int64_t delta_scratch(const DeltaArgs& a) {
    int64_t bytes = 0;
    scratch_of(a, nullptr, &bytes);
    return bytes;
}

void delta(const DeltaArgs& a, const StateSpan& s, const DeltaItem& item, std::byte* memory) {
    Scratch scratch = scratch_of(a, memory);
    const int64_t size = a.key_dim * a.value_dim, applied = s.applied();
    float* written = s.write + item.head * size;
    const float* read = s.read == nullptr ? nullptr : s.read + item.head * size;
    if (applied == 0) copy_columns(a, item, read, written), read = written;
    const Place<float> own{scratch.state, kBlockColumns, kBlockColumns * a.key_dim};
    const Place<float> slot{written + item.begin, a.value_dim, kBlockColumns};
    Place<const float> from{read == nullptr ? own.at : read + item.begin, a.value_dim, kBlockColumns};
    if (read == nullptr) {
        std::memset(own.at, 0, static_cast<size_t>(ceil_divide(item.end - item.begin, kBlockColumns) * own.step) * sizeof(float));
        from = {own.at, own.stride, own.step};
    }
    const float* ahead = item.next;
    for (int64_t begin = 0; begin < s.all();) {
        const bool applies = begin < applied;
        const int64_t end = least(begin + kTokens, applies ? applied : s.all());
        const Place<float>& to = end == applied ? slot : own;
        read_tokens(a, s, item.head, begin, end - begin, scratch.unused, scratch.tokens);
        const int64_t next = s.first + most(end - s.waiting_rows, 0);
        fetch_rows(a, item.head, next, least(next + kTokens, s.first + s.rows));
        pass(a, item, {from, to, own, end - begin, end == s.all() && applies, ahead}, scratch.tokens);
        from = {to.at, to.stride, to.step};
        ahead = nullptr;
        begin = end;
    }
    end_streams();
}

}  // namespace ferrum::FERRUM_TIER
