#include "attention.hpp"

#include <algorithm>

namespace ferrum {

namespace {

// How the queries of a span are split into work items. A split changes no bit, because rows are independent.
struct Cut {
    int64_t queries;           // per KV head
    int64_t heads, head_parts;  // per item; items over all heads
    int64_t blocks;            // items per group of heads

    int64_t items() const { return head_parts * blocks; }
};

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

class Plan {
public:
    Plan(const AttentionArgs& args, int64_t spans, int64_t threads) : a_(args), threads_(threads) {
        for (int64_t span = 0; span < spans; ++span) total_ += keys_of(span);
        rest_ = total_;
    }

    // Split the next span. Call once per span, in order.
    // An item with few queries covers all heads: their keys are adjacent, and memory reads are fastest in long runs.
    // The threads split the heads only if a thread would be idle otherwise.
    Cut cut(int64_t span) {
        const int64_t heads = a_.num_kv_heads, queries = rows_of(span) * (a_.num_heads / heads), keys = keys_of(span);
        const bool many = 4 * threads_ * keys <= total_ && threads_ * keys <= rest_;
        rest_ -= keys;
        const int64_t wanted = many ? heads : ceil_divide(heads, threads_);
        const int64_t together = std::max<int64_t>(1, std::min(wanted, kItemRows / queries));
        return {queries, together, ceil_divide(heads, together), ceil_divide(queries, kItemRows)};
    }

private:
    int64_t rows_of(int64_t span) const { return a_.tables.span_rows[span + 1] - a_.tables.span_rows[span]; }
    int64_t keys_of(int64_t span) const {
        const int64_t keys = a_.tables.positions[a_.tables.span_rows[span + 1] - 1] + 1;
        return a_.window > 0 ? std::min(keys, a_.window + rows_of(span) - 1) : keys;
    }

    const AttentionArgs& a_;
    int64_t threads_, total_ = 0, rest_;
};

}  // namespace

Attention::Attention(Runtime& runtime, const AttentionArgs& args, int64_t group) : args_(args), group_(group) {
    runtime.reserve(0, runtime.kernels.attention_scratch(runtime.pool.group(group)));
}

// A counter hands out the items: spans in order, and within KV heads the last queries (the longest) first.
void Attention::run(Runtime& runtime, int thread) {
    AttentionArgs args = args_;
    args.store = &runtime.pool.group(group_);
    args.tables = runtime.step.rows_of(group_);
    Plan plan(args, runtime.step.spans(), runtime.team.size());
    int64_t item = next_.fetch_add(1, std::memory_order_relaxed), first = 0;
    for (int64_t span = 0; span < runtime.step.spans(); ++span) {
        const Cut cut = plan.cut(span);
        for (; item < first + cut.items(); item = next_.fetch_add(1, std::memory_order_relaxed)) {
            const int64_t part = (item - first) / cut.blocks, block = cut.blocks - 1 - (item - first) % cut.blocks;
            const int64_t head = part * cut.heads, begin = block * kItemRows;
            runtime.kernels.attention(args,
                                      {span, head, std::min(head + cut.heads, args.num_kv_heads), begin,
                                       std::min(begin + kItemRows, cut.queries)},
                                      runtime.own(thread));
        }
        first += cut.items();
    }
}

}  // namespace ferrum
