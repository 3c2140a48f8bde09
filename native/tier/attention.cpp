// Attention over the pool: online softmax in ascending steps of 64 keys. Decode and prefill use the same code: tiles of
// a few query rows of one KV head by one step of keys and values.
//
// The arithmetic of a row depends only on its query and the keys that it sees. A step that is masked for a row changes
// none of its bits: its weights are set to 0 (they do not underflow), its decay is 2^0.
#include "attention_bytes.hpp"
#include "attention_floats.hpp"
#include "latent_values.hpp"
#include "softmax.hpp"
#include "tier.hpp"

namespace ferrum::FERRUM_TIER {

namespace {

constexpr int64_t kChunkSteps = 8;  // steps that all rows of a head process before the next: their keys stay cached

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Scratch memory of an item: queries as packed rows of a product, the running state, and one step gathered from small
// pages.
template <class F>
struct Scratch {
    typename F::Query* queries;  // per head and tile [words][row]
    int32_t* last;               // [rows] of a head: the last key that each row sees, and the first one
    int32_t* floor;
    float* maximum;  // [rows] of all heads
    float* total;
    float* out;  // [rows, value_padded]
    std::byte* block;

    Scratch(std::byte* at, const GroupStore& s) {
        queries = take<typename F::Query>(at, kItemRows * F::query_words(s));
        last = take<int32_t>(at, kItemRows);
        floor = take<int32_t>(at, kItemRows);
        maximum = take<float>(at, kItemRows);
        total = take<float>(at, kItemRows);
        out = take<float>(at, kItemRows * s.value_padded);
        block = at;
    }

    template <class T>
    static T* take(std::byte*& at, int64_t count) {
        T* here = reinterpret_cast<T*>(at);
        at += aligned(count * static_cast<int64_t>(sizeof(T)));
        return here;
    }
};

// Rows of a tile: `count` from `first`, of one head.
struct Tile {
    int64_t first, count;
};

template <class F>
struct Item {
    using S = typename F::Store;
    const AttentionArgs& a;
    const AttentionItem& item;
    const GroupStore& s;
    int64_t share, first_row, rows, tiles;
    const int32_t* pages;
    Scratch<F> scratch;
    Slot latent{};  // the current step of latent attention

    Item(const AttentionArgs& args, const AttentionItem& work, std::byte* memory)
        : a(args), item(work), s(*args.store), share(args.num_heads / args.num_kv_heads),
          first_row(args.tables.span_rows[work.span]), rows(work.end - work.begin), tiles(ceil_divide(rows, F::kRows)),
          pages(args.tables.pages + work.span * args.tables.pages_stride), scratch(memory, *args.store) {}

    // Index of row r of a head in q and out.
    int64_t at(int64_t head, int64_t r) const {
        const int64_t query = item.begin + r;
        return (first_row + query / share) * a.num_heads + head * share + query % share;
    }

    Tile tile(int64_t index) const {
        const int64_t first = index * rows / tiles;
        return {first, (index + 1) * rows / tiles - first};
    }
    // Range of the steps that rows `first` to `last` see.
    int64_t begin_of(int64_t first) const { return scratch.floor[first] / kStep; }
    int64_t end_of(int64_t last) const { return scratch.last[last] / kStep + 1; }
    // Index of the state of a head's first row.
    int64_t state_of(int64_t head) const { return (head - item.head_begin) * rows; }
    typename F::Query* queries_of(int64_t head, int64_t first) const {
        return scratch.queries + (state_of(head) + first) * F::query_words(s);
    }

    void start() {
        for (int64_t r = 0; r < rows; ++r) {
            const int64_t row = first_row + (item.begin + r) / share;
            scratch.last[r] = a.tables.last_seen[row];
            scratch.floor[r] = static_cast<int32_t>(first_seen(a, a.tables.positions[row]));
        }
        for (int64_t head = item.head_begin; head < item.head_end; ++head)
            for (int64_t r = 0; r < rows; ++r)  // short pieces, far apart: the hardware does not prefetch them
                prefetch_floats(a.q + at(head, r) * a.head_dim, a.head_dim);
        for (int64_t head = item.head_begin; head < item.head_end; ++head)
            for (int64_t t = 0; t < tiles; ++t) {
                const auto [first, count] = tile(t);
                for (int64_t r = 0; r < count; ++r)
                    F::pack_query(s, a.q + at(head, first + r) * a.head_dim, count, queries_of(head, first) + r);
            }
        const int64_t all = state_of(item.head_end);
        for (int64_t r = 0; r < all; ++r) scratch.maximum[r] = kMasked;
        std::memset(scratch.total, 0, static_cast<size_t>(all) * sizeof(float));
        if (a.sinks != nullptr) start_with_sinks();
        std::memset(scratch.out, 0, static_cast<size_t>(all * s.value_padded) * sizeof(float));
    }

    // Begin with the weight of each head's sink, 2^0.
    void start_with_sinks() {
        for (int64_t head = item.head_begin; head < item.head_end; ++head)
            for (int64_t r = 0; r < rows; ++r) {
                scratch.maximum[state_of(head) + r] = a.sinks[head * share + (item.begin + r) % share] * kLog2E;
                scratch.total[state_of(head) + r] = 1;
            }
    }

    void finish() {
        for (int64_t head = item.head_begin; head < item.head_end; ++head)  // far apart like the pieces of q
            for (int64_t r = 0; r < rows; ++r) prefetch_floats(a.out + at(head, r) * s.value_dim, s.value_dim);
        for (int64_t head = item.head_begin; head < item.head_end; ++head)
            for (int64_t r = 0; r < rows; ++r) {
                float* to = a.out + at(head, r) * s.value_dim;
                const float* from = scratch.out + (state_of(head) + r) * s.value_padded;
                const vf total = spread(scratch.total[state_of(head) + r]);
                for (int64_t d = 0; d < s.value_dim; d += kLanes)  // + 0 makes every zero positive
                    store_part(to + d, load<vf>(from + d) / total + vf{}, s.value_dim - d);
            }
    }

    // The keys and values of step `step`: in place, or gathered from pages shorter than a step, or prepared.
    Slot block(int64_t head, int64_t step) const {
        if (s.latent()) return latent;
        return s.page_size % kStep == 0 ? in_place(head, step) : gathered(head, step * kStep);
    }

    Slot in_place(int64_t head, int64_t step) const {
        const int64_t token = step * kStep;
        return slot_of(s, a.layer, pages[token / s.page_size], head, token % s.page_size);
    }

    // The keys of step `step`, and the values in them as the product with values reads them: once for all rows.
    Slot prepared(int64_t head, int64_t step) const {
        const Slot keys = s.page_size % kStep == 0 ? in_place(head, step) : gathered(head, step * kStep);
        std::byte* values = scratch.block + gathered_keys();
        values_of_keys<S>(s, keys.keys, least(kStep, scratch.last[rows - 1] + 1 - step * kStep), values);
        return {keys.keys, values, 0};
    }

    // The block after a step's, of the next head or else of the next step. Keys and values prefetched during the step
    // before cost no memory time. There is none after the last step, or if blocks are gathered.
    NextBlock after(int64_t head, int64_t step) const {
        const bool turns = head + 1 == item.head_end;
        if (s.page_size % kStep != 0 || (turns && step + 1 == end_of(rows - 1))) return {};
        const int64_t then = step + turns;
        const Slot next = in_place(turns ? item.head_begin : head + 1, then);
        return {next.keys - in_place(head, step).keys, least(kStep, scratch.last[rows - 1] + 1 - then * kStep)};
    }

    static constexpr int64_t kScale = S::kScaled ? 4 : 0;

    // Bytes of the keys of a gathered step.
    int64_t gathered_keys() const { return kStep * (s.key_padded / S::kDepth * 4 + kScale); }

    Slot gathered(int64_t head, int64_t token) const {
        const int64_t key_bytes = gathered_keys();
        const int64_t value_bytes = kStep * (s.value_padded / S::kDepth * 4 + kScale);
        std::memset(scratch.block, 0, static_cast<size_t>(key_bytes + value_bytes));
        std::byte *block_keys = scratch.block, *block_values = block_keys + key_bytes;
        auto* keys = reinterpret_cast<typename S::Element*>(block_keys);
        auto* values = reinterpret_cast<typename S::Element*>(block_values);
        for (int64_t t = 0; t < kStep; ++t) {
            const int64_t page = (token + t) / s.page_size;
            if (page >= a.tables.pages_stride || pages[page] < 0) continue;
            const Slot slot = slot_of(s, a.layer, pages[page], head, (token + t) % s.page_size);
            const auto* from_keys = reinterpret_cast<const typename S::Element*>(slot.keys);
            const auto* from_values = reinterpret_cast<const typename S::Element*>(slot.values);
            for (int64_t d = 0; d < s.key_dim; ++d)
                keys[key_index<S>(kKeySide, s.key_padded, t, d)] =
                    from_keys[key_index<S>(s.key_side, s.key_padded, slot.token, d)];
            for (int64_t d = 0; d < (s.latent() ? 0 : s.value_dim); ++d) {
                const int64_t first = d / kSide * kSide, rest = (d - first) * S::kDepth;
                values[value_index<S>(kStep, s.value_padded, t, first) + rest] =
                    from_values[value_index<S>(s.block, s.value_padded, slot.token, first) + rest];
            }
            if constexpr (S::kScaled) {
                scales_of(block_keys, key_bytes, kStep)[t] = scales_of(slot.keys, s.key_bytes, s.block)[slot.token];
                if (s.latent()) continue;
                scales_of(block_values, value_bytes, kStep)[t] = scales_of(slot.values, s.value_bytes, s.block)[slot.token];
            }
        }
        return {block_keys, block_values, 0};
    }

    void go_over(int64_t head, int64_t begin, int64_t end);
};

// The products of a step as separate functions, so that they stay inside a FlushMode.
template <class F, int MR>
[[gnu::noinline]] void score_apart(const GroupStore& s, const std::byte* keys, int64_t tokens, const typename F::Query* queries,
                                   float (&scores)[MR][kStep], const NextBlock& next) {
    F::template score<MR>(s, keys, tokens, queries, scores, next);
}

template <class F, int MR>
[[gnu::noinline]] void mix_apart(const GroupStore& s, const std::byte* values, int64_t tokens,
                                 const typename F::Weight (&weights)[MR][F::kWeights], const float (&factor)[MR],
                                 const float (&decay)[MR], float* out, const NextBlock& next) {
    F::template mix<MR>(s, values, tokens, weights, factor, decay, out, next);
}

// If a number leaves the range, products that are split are computed again without splitting them (products.hpp).
template <class F, int MR>
void score(const GroupStore& s, const std::byte* keys, int64_t tokens, const typename F::Query* queries,
           float (&scores)[MR][kStep], const NextBlock& next) {
    if constexpr (!F::kNeedsMode) {
        F::template score<MR>(s, keys, tokens, queries, scores, next);
    } else {
        const FlushMode mode;
        score_apart<F>(s, keys, tokens, queries, scores, next);
        if constexpr (F::kSplits)
            if (mode.passed_range()) score_apart<typename F::Unsplit>(s, keys, tokens, queries, scores, {});
    }
}

template <class F, int MR>
void mix(const GroupStore& s, const std::byte* values, int64_t tokens, const typename F::Weight (&weights)[MR][F::kWeights],
         const float (&factor)[MR], const float (&decay)[MR], float* out, const NextBlock& next) {
    if constexpr (!F::kFlushes) {
        F::template mix<MR>(s, values, tokens, weights, factor, decay, out, next);
    } else if constexpr (!F::kSplits) {
        [[maybe_unused]] const FlushMode mode;
        mix_apart<F>(s, values, tokens, weights, factor, decay, out, next);
    } else {
        float before[MR * (kMaxHead + kSide)];
        const size_t bytes = static_cast<size_t>(MR * s.value_padded) * sizeof(float);
        std::memcpy(before, out, bytes);
        const FlushMode mode;
        mix_apart<F>(s, values, tokens, weights, factor, decay, out, next);
        if (!mode.passed_range()) return;
        std::memcpy(out, before, bytes);
        mix_apart<typename F::Unsplit>(s, values, tokens, weights, factor, decay, out, {});
    }
}

// Process one tile of a head over one step.
template <class F, int MR>
void tile_step(const Item<F>& it, int64_t head, int64_t tile, int64_t step, const NextBlock& next) {
    const int64_t state = it.state_of(head) + tile;
    const Slot block = it.block(head, step);
    alignas(64) float scores[MR][kStep];
    alignas(64) typename F::Weight packed[MR][F::kWeights];
    float decay[MR], factor[MR];
    Sight sights[MR];
    for (int r = 0; r < MR; ++r)
        sights[r] = {it.scratch.floor[tile + r] - step * kStep, it.scratch.last[tile + r] - step * kStep};
    // Rows are ordered by position, and by the last key.
    const int64_t tokens = least(kStep, sights[MR - 1].high + 1);
    const bool whole = sights[0].high >= kStep - 1 && sights[MR - 1].low <= 0;
    if (!whole) std::memset(scores, 0, sizeof scores);  // scores after the last visible key must be numbers
    score<F>(it.s, block.keys, tokens, it.queries_of(head, tile), scores, next);
    float *maximum = it.scratch.maximum + state, *total = it.scratch.total + state;
    whole ? weigh_rows<true>(scores, it.a.scaling, sights, maximum, total, decay)
          : weigh_rows<false>(scores, it.a.scaling, sights, maximum, total, decay);
    for (int r = 0; r < MR; ++r) factor[r] = F::pack_weights(it.s, block.values, scores[r], packed[r]);
    mix<F>(it.s, block.values, tokens, packed, factor, decay, it.scratch.out + state * it.s.value_padded,
           it.s.latent() ? NextBlock{} : next);
}

template <class F>
using StepFunction = void (*)(const Item<F>&, int64_t, int64_t, int64_t, const NextBlock&);

template <class F, int... Index>
StepFunction<F> step_function(int64_t height, std::integer_sequence<int, Index...>) {
    static constexpr StepFunction<F> kFunctions[] = {&tile_step<F, Index + 1>...};
    return kFunctions[height - 1];
}

// Process all rows of a head over the visible steps from `begin` to `end`.
template <class F>
void Item<F>::go_over(int64_t head, int64_t begin, int64_t end) {
    if (s.latent()) latent = prepared(head, begin);
    for (int64_t t = 0; t < tiles; ++t) {
        const auto [first, count] = tile(t);
        const auto run = step_function<F>(count, std::make_integer_sequence<int, F::kRows>{});
        const int64_t to = least(end, end_of(first + count - 1));
        for (int64_t step = most(begin, begin_of(first)); step < to; ++step)
            run(*this, head, first, step, t == 0 ? after(head, step) : NextBlock{});
    }
}

template <class F>
void attend(const AttentionArgs& a, const AttentionItem& work, std::byte* memory) {
    Item<F> it(a, work, memory);
    it.start();
    // Several heads take turns over each step: their data is adjacent, and memory reads are fastest in long runs.
    // Latent values are prepared for one step.
    const bool apart = work.head_end - work.head_begin > 1 || a.store->latent();
    const int64_t chunk = apart ? 1 : kChunkSteps, end = it.end_of(it.rows - 1);
    for (int64_t step = it.begin_of(0); step < end; step += chunk)
        for (int64_t head = work.head_begin; head < work.head_end; ++head) it.go_over(head, step, step + chunk);
    it.finish();
}

}  // namespace

int64_t attention_scratch(const GroupStore& s) {
    const int64_t rows = kItemRows * (s.key_padded + s.value_padded + 6), step = kStep * (s.key_padded + s.value_padded + 2);
    return (rows + step) * 4 + 8 * 64;  // every field above, in its widest form
}

void attention(const AttentionArgs& a, const AttentionItem& item, std::byte* scratch) {
    switch (a.store->format) {
        case KvFormat::f32: return attend<FloatAttention<F32>>(a, item, scratch);
        case KvFormat::int8: return attend<ByteAttention>(a, item, scratch);
        default: return attend<FloatAttention<Bf16>>(a, item, scratch);
    }
}

}  // namespace ferrum::FERRUM_TIER
