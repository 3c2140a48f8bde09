#include "attention.hpp"

#include <algorithm>

namespace ferrum {

namespace {

// How the queries of a span are split into work items. A split changes no bit, because rows are independent.
struct Cut {
    int64_t queries;           // per KV head
    int64_t heads, head_parts;  // per item; items over all heads
    int64_t rows, blocks;      // queries per item; items per group of heads

    int64_t items() const { return head_parts * blocks; }
};

constexpr int64_t kLeastRows = 8;  // every item reads all keys, so it must have work for them

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

class Plan {
public:
    Plan(const AttentionArgs& args, int64_t spans, int64_t threads) : a_(args), threads_(threads) {
        for (int64_t span = 0; span < spans; ++span) total_ += keys_of(span);
        rest_ = total_;
    }

    // Split the next span. Call once per span, in order.
    // An item with few queries covers all heads: their keys are adjacent, and memory reads are fastest in long runs.
    // The threads split the heads, and then the queries of a head, only if a thread would be idle otherwise.
    Cut cut(int64_t span) {
        const int64_t heads = a_.num_kv_heads, queries = rows_of(span) * (a_.num_heads / heads), keys = keys_of(span);
        const bool many = 4 * threads_ * keys <= total_ && threads_ * keys <= rest_;
        rest_ -= keys;
        const int64_t wanted = many ? heads : ceil_divide(heads, threads_);
        const int64_t together = std::max<int64_t>(1, std::min(wanted, kItemRows / queries));
        const int64_t rows = many || heads >= threads_ ? kItemRows : split(queries, ceil_divide(threads_, heads));
        return {queries, together, ceil_divide(heads, together), rows, ceil_divide(queries, rows)};
    }

private:
    // Queries per item if `threads` share the queries of a head.
    static int64_t split(int64_t queries, int64_t threads) {
        return std::min(kItemRows, ceil_divide(ceil_divide(queries, threads), kLeastRows) * kLeastRows);
    }
    int64_t rows_of(int64_t span) const { return a_.tables.span_rows[span + 1] - a_.tables.span_rows[span]; }
    int64_t keys_of(int64_t span) const {
        const int32_t* rows = a_.tables.span_rows + span;
        return a_.tables.last_seen[rows[1] - 1] + 1 - first_seen(a_, a_.tables.positions[rows[0]]);
    }

    const AttentionArgs& a_;
    int64_t threads_, total_ = 0, rest_;
};

}  // namespace

Attention::Attention(Runtime& runtime, const AttentionArgs& args, int64_t group) : args_(args), group_(group) {
    runtime.reserve(0, runtime.kernels.attention_scratch(store(runtime)));
}

// The keys and values of the group; a latent one gets the operation's values.
GroupStore Attention::store(const Runtime& runtime) const {
    GroupStore s = runtime.pool.group(group_);
    if (s.latent()) {
        s.value_dim = args_.value_dim;
        s.value_padded = ceil_divide(args_.value_dim, 16) * 16;
    }
    return s;
}

// A counter hands out the items: spans in order, and within KV heads the last queries (the longest) first.
void Attention::run(Runtime& runtime, int thread) {
    AttentionArgs args = args_;
    const GroupStore store = this->store(runtime);
    args.store = &store;
    args.tables = runtime.step.rows_of(group_);
    if (args.causal) args.tables.last_seen = args.tables.positions;
    Plan plan(args, runtime.step.spans(), runtime.team.size());
    int64_t item = next_.fetch_add(1, std::memory_order_relaxed), first = 0;
    for (int64_t span = 0; span < runtime.step.spans(); ++span) {
        const Cut cut = plan.cut(span);
        for (; item < first + cut.items(); item = next_.fetch_add(1, std::memory_order_relaxed)) {
            const int64_t part = (item - first) / cut.blocks, block = cut.blocks - 1 - (item - first) % cut.blocks;
            const int64_t head = part * cut.heads, begin = block * cut.rows;
            runtime.kernels.attention(args,
                                      {span, head, std::min(head + cut.heads, args.num_kv_heads), begin,
                                       std::min(begin + cut.rows, cut.queries)},
                                      runtime.own(thread));
        }
        first += cut.items();
    }
}

}  // namespace ferrum
