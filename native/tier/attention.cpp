// Attention over the pool: online softmax in steps of 64 keys, ascending (Milakov and Gimelshein 2018), with decode and
// prefill the same code: tiles of a few query rows of one KV head against one step of keys and values.
//
// A row's arithmetic depends on its own query and on the keys that it sees. A step that is masked for a row changes none of
// its bits: its weights are set to 0 (and not left to underflow), its decay is 2^0.
#include "rows.hpp"
#include "tier.hpp"

namespace ferrum::FERRUM_TIER {

namespace {

constexpr float kMasked = -1e30f;
constexpr int64_t kChunkSteps = 8;  // steps that all rows of an item go over before the next: their keys stay cached
constexpr int kRows = kAttentionRows, kVectors = kAttentionVectors;

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Scratch of an item: queries as a product's packed rows, the running state, and room for a step gathered from small pages.
template <class P>
struct Scratch {
    typename P::X* queries;  // per tile [depth step][row]
    float* maximum;          // [rows]
    float* total;
    float* out;  // [rows, value_padded]
    std::byte* keys;
    std::byte* values;

    Scratch(std::byte* at, const GroupStore& s) {
        const int64_t words = ceil_divide(s.key_padded, P::kDepth);
        queries = take<typename P::X>(at, kItemRows * words);
        maximum = take<float>(at, kItemRows);
        total = take<float>(at, kItemRows);
        out = take<float>(at, kItemRows * s.value_padded);
        keys = take<std::byte>(at, kStep * s.key_padded * P::kItem);
        values = take<std::byte>(at, kStep * s.value_padded * P::kItem);
    }

    template <class T>
    static T* take(std::byte*& at, int64_t count) {
        T* here = reinterpret_cast<T*>(at);
        at += aligned(count * static_cast<int64_t>(sizeof(T)));
        return here;
    }
};

template <class P>
struct Item {
    const AttentionArgs& a;
    const AttentionItem& item;
    const GroupStore& s;
    int64_t share, first_row;
    const int32_t* pages;
    Scratch<P> scratch;

    Item(const AttentionArgs& args, const AttentionItem& work, std::byte* memory)
        : a(args), item(work), s(*args.store), share(args.num_heads / args.num_kv_heads),
          first_row(args.tables.span_rows[work.span]), pages(args.tables.pages + work.span * args.tables.pages_stride),
          scratch(memory, *args.store) {}

    int64_t position(int64_t query) const { return a.tables.positions[first_row + query / share]; }
    int64_t head_of(int64_t query) const { return item.kv_head * share + query % share; }
    int64_t at(int64_t query) const { return (first_row + query / share) * a.num_heads + head_of(query); }

    // First key that a query at the position sees.
    int64_t floor_of(int64_t position) const { return a.window > 0 ? most(0, position - a.window + 1) : 0; }

    void start(int64_t tile, int64_t height) {
        const int64_t words = ceil_divide(s.key_padded, P::kDepth);
        auto* base = scratch.queries + tile * words;
        for (int64_t r = 0; r < height; ++r) {
            const float* q = a.q + at(item.begin + tile + r) * a.head_dim;
            for (int64_t d = 0; d < s.key_padded; d += kLanes) {
                typename P::X packed[kLanes];
                P::pack(load_part(q + d, most(0, a.head_dim - d)), packed);
                for (int64_t i = 0; i < least(kLanes / P::kDepth, words - d / P::kDepth); ++i)
                    base[(d / P::kDepth + i) * height + r] = packed[i];
            }
            scratch.maximum[tile + r] = kMasked;
            scratch.total[tile + r] = 0;
            for (int64_t d = 0; d < s.value_padded; d += kLanes)
                store(scratch.out + (tile + r) * s.value_padded + d, vf{});
        }
    }

    void finish(int64_t rows) {
        for (int64_t r = 0; r < rows; ++r) {
            float* to = a.out + at(item.begin + r) * s.value_dim;
            const float* from = scratch.out + r * s.value_padded;
            const vf total = spread(scratch.total[r]);
            for (int64_t d = 0; d < s.value_dim; d += kLanes)  // + 0 gives every zero one sign
                store_part(to + d, load<vf>(from + d) / total + vf{}, s.value_dim - d);
        }
    }

    // The keys and values of step `step`: in place, or gathered from pages shorter than a step.
    Slot block(int64_t step) const {
        const int64_t token = step * kStep;
        if (s.block == kStep) return slot_of(s, a.layer, pages[token / s.page_size], item.kv_head, token % s.page_size);
        auto* keys = reinterpret_cast<Stored<P>*>(scratch.keys);
        auto* values = reinterpret_cast<Stored<P>*>(scratch.values);
        std::memset(keys, 0, static_cast<size_t>(kStep * s.key_padded * P::kItem));
        std::memset(values, 0, static_cast<size_t>(kStep * s.value_padded * P::kItem));
        for (int64_t t = 0; t < kStep; ++t) {
            const int64_t page = (token + t) / s.page_size;
            if (page >= a.tables.pages_stride || pages[page] < 0) continue;
            const Slot slot = slot_of(s, a.layer, pages[page], item.kv_head, (token + t) % s.page_size);
            const auto* from_keys = reinterpret_cast<const Stored<P>*>(slot.keys);
            const auto* from_values = reinterpret_cast<const Stored<P>*>(slot.values);
            for (int64_t d = 0; d < s.key_dim; ++d)
                keys[key_index<P>(kStep, t, d)] = from_keys[key_index<P>(s.block, slot.token, d)];
            for (int64_t d = 0; d < s.value_dim; ++d)
                values[value_index<P>(s.value_padded, t, d)] = from_values[value_index<P>(s.value_padded, slot.token, d)];
        }
        return {scratch.keys, scratch.values, 0};
    }
};

// Softmax of one row over one step: from scores to packed weights; returns the decay of what was summed before.
template <class P>
float weigh(float* scores, float scale, int64_t first, int64_t low, int64_t high, float& maximum, float& total,
            typename P::X* weights) {
    const vi low_key = spread(static_cast<int32_t>(low - first)), high_key = spread(static_cast<int32_t>(high - first));
    vf value[kStepVectors];
    vi seen[kStepVectors];
    vf top = spread(maximum);
    for (int v = 0; v < kStepVectors; ++v) {
        const vi key = lane_index() + v * kLanes;
        seen[v] = (key >= low_key) & (key <= high_key);
        value[v] = seen[v] ? load<vf>(scores + v * kLanes) * spread(scale) : spread(kMasked);
        top = larger(value[v], top);
    }
    const float raised = max_lanes(top);
    vf sum{};
    for (int v = 0; v < kStepVectors; ++v) {
        const vf weight = seen[v] ? exp2(value[v] - spread(raised)) : vf{};
        sum += weight;
        P::pack(weight, weights + v * kLanes / P::kDepth);
    }
    const float decay = exp2(spread(maximum - raised))[0];
    total = total * decay + sum_lanes(sum);
    maximum = raised;
    return decay;
}

// out [MR][NV vectors] = out * decay + weights [MR][tokens] x values [tokens][NV vectors].
template <class P, int MR, int NV>
void mix(float* out, int64_t padded, const float* decay, const typename P::X* weights, const std::byte* values, int64_t tokens,
         const std::byte* ahead) {
    constexpr int kRowWords = static_cast<int>(kStep) / P::kDepth;
    const int64_t stride = padded * P::kItem * P::kDepth, whole = tokens / P::kDepth;
    vf total[MR][NV];
    for (int r = 0; r < MR; ++r)
        for (int v = 0; v < NV; ++v) total[r][v] = load<vf>(out + r * padded + v * kLanes) * spread(decay[r]);
    accumulate<P, MR, NV, 1, kRowWords, NV * kLanes / 16>(total, values, stride, weights, whole, ahead);
    if (whole * P::kDepth < tokens)  // the other half of the last word is a token that nobody wrote: it may hold anything
        for (int v = 0; v < NV; ++v) {
            const auto weight = P::first_only(P::weight(values + whole * stride, v));
            for (int r = 0; r < MR; ++r) total[r][v] = P::step(total[r][v], weight, P::spread_x(weights + whole + r * kRowWords));
        }
    for (int r = 0; r < MR; ++r)
        for (int v = 0; v < NV; ++v) store(out + r * padded + v * kLanes, total[r][v]);
}

template <class P, int MR>
void tile_step(const Item<P>& it, int64_t tile, int64_t step, const Slot& block, const std::byte* next) {
    const GroupStore& s = it.s;
    const int64_t steps = ceil_divide(s.key_padded, P::kDepth), first = step * kStep;
    const auto* queries = it.scratch.queries + tile * steps;
    alignas(64) float scores[MR][kStep];
    alignas(64) typename P::X weights[MR][kStep / P::kDepth];
    float decay[MR];
    for (int part = 0; part < kStepVectors; part += kVectors) {
        vf total[MR][kVectors] = {};
        accumulate<P, MR, kVectors, MR, 1, kVectors * kLanes / 16>(total, block.keys + part * kLanes * 4, kStep * 4, queries,
                                                                    steps, block.values + part * kLanes * 4 * steps);
        for (int r = 0; r < MR; ++r)
            for (int v = 0; v < kVectors; ++v) store(&scores[r][(part + v) * kLanes], total[r][v]);
    }
    int64_t tokens = 0;
    for (int r = 0; r < MR; ++r) {
        const int64_t position = it.position(it.item.begin + tile + r);
        tokens = most(tokens, least(kStep, position - first + 1));
        decay[r] = weigh<P>(scores[r], it.a.scale, first, it.floor_of(position), position, it.scratch.maximum[tile + r],
                            it.scratch.total[tile + r], weights[r]);
    }
    float* out = it.scratch.out + tile * s.value_padded;
    int64_t d = 0;
    for (; d + kVectors * kLanes <= s.value_padded; d += kVectors * kLanes)
        mix<P, MR, kVectors>(out + d, s.value_padded, decay, weights[0], block.values + d * 4, tokens, next + d * 4 * 32);
    for (; d < s.value_padded; d += kLanes)
        mix<P, MR, 1>(out + d, s.value_padded, decay, weights[0], block.values + d * 4, tokens, next);
}

template <class P>
using StepFunction = void (*)(const Item<P>&, int64_t, int64_t, const Slot&, const std::byte*);

template <class P, int... Index>
StepFunction<P> step_function(int64_t height, std::integer_sequence<int, Index...>) {
    static constexpr StepFunction<P> kFunctions[] = {&tile_step<P, Index + 1>...};
    return kFunctions[height - 1];
}

template <class P>
void attend(const AttentionArgs& a, const AttentionItem& work, std::byte* memory) {
    Item<P> it(a, work, memory);
    const int64_t rows = work.end - work.begin, tiles = ceil_divide(rows, kRows);
    for (int64_t t = 0; t < tiles; ++t) it.start(t * rows / tiles, (t + 1) * rows / tiles - t * rows / tiles);
    const int64_t begin = it.floor_of(it.position(work.begin)) / kStep, end = it.position(work.end - 1) / kStep + 1;
    for (int64_t chunk = begin; chunk < end; chunk += kChunkSteps)
        for (int64_t t = 0; t < tiles; ++t) {
            const int64_t tile = t * rows / tiles, height = (t + 1) * rows / tiles - tile;
            const int64_t low = it.floor_of(it.position(work.begin + tile)) / kStep;
            const int64_t high = it.position(work.begin + tile + height - 1) / kStep + 1;
            const auto run = step_function<P>(height, std::make_integer_sequence<int, kRows>{});
            for (int64_t step = most(chunk, low); step < least(chunk + kChunkSteps, high); ++step) {
                const Slot block = it.block(step);
                run(it, tile, step, block, step + 1 < high && it.s.block == kStep ? it.block(step + 1).keys : block.keys);
            }
        }
    it.finish(rows);
}

}  // namespace

int64_t attention_scratch(int64_t key_dim, int64_t value_dim) {
    const int64_t rows = kItemRows * (2 * key_dim + value_dim + 2), step = kStep * (key_dim + value_dim);
    return (rows + step) * 4 + 6 * 64;  // every field above, in its widest form
}

void attention(const AttentionArgs& a, const AttentionItem& item, std::byte* scratch) {
    if (a.store->format == Format::f32)
        attend<F32>(a, item, scratch);
    else
        attend<Bf16>(a, item, scratch);
}

}  // namespace ferrum::FERRUM_TIER
