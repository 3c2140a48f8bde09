#include "attend_all.hpp"

#include <algorithm>
#include <numeric>

namespace ferrum {

namespace {

int64_t pages_of(int64_t rows) { return (rows + kStep - 1) / kStep; }

std::vector<int32_t> ascending(int64_t count) {
    std::vector<int32_t> numbers(static_cast<size_t>(count));
    std::iota(numbers.begin(), numbers.end(), 0);
    return numbers;
}

}  // namespace

AttendAll::AttendAll(Runtime& runtime, const Args& args, KvFormat format, int64_t max_rows)
    : args_(args), store_(layout({format, pages_of(max_rows), kStep, 1, args.heads, args.dim, args.dim})),
      places_(ascending(max_rows)), pages_(ascending(pages_of(max_rows))), last_(static_cast<size_t>(max_rows)),
      zeros_(static_cast<size_t>(max_rows)) {
    runtime.reserve(store_.num_pages * layer_page_bytes(store_), runtime.kernels.attention_scratch(store_));
}

// Spans one after another: the rows of an image are enough work for all threads.
void AttendAll::run(Runtime& runtime, int thread) {
    const std::vector<int32_t>& bounds = runtime.step.span_rows;
    GroupStore store = store_;
    store.data = runtime.shared();
    for (size_t span = 0; span + 1 < bounds.size(); ++span) {
        const int64_t first = bounds[span], rows = bounds[span + 1] - first;
        // Rows after the last one of a block, and padding, are read as zeros.
        const auto [begin, end] = share(runtime, pages_of(rows), thread);
        const int64_t bytes = layer_page_bytes(store);
        std::memset(store.data + begin * bytes, 0, static_cast<size_t>((end - begin) * bytes));
        if (thread == 0) {
            std::fill_n(last_.begin(), rows, static_cast<int32_t>(rows - 1));
            next_.store(0, std::memory_order_relaxed);
        }
        runtime.team.barrier();
        this->store(runtime, store, first, rows, thread);
        runtime.team.barrier();
        attend(runtime, store, first, rows, thread);
        runtime.team.barrier();
    }
}

void AttendAll::store(const Runtime& runtime, const GroupStore& to, int64_t first, int64_t rows, int thread) const {
    const int32_t bounds[] = {0, static_cast<int32_t>(rows)};
    const int64_t at = first * args_.heads * args_.dim;
    RopeArgs args{};  // no queries, and no rotation
    args.rows = rows;
    args.k = args_.k + at;
    args.v = args_.v + at;
    args.num_kv_heads = args_.heads;
    args.head_dim = args_.dim;
    args.store = &to;
    args.tables = {places_.data(), places_.data(), bounds, zeros_.data(), pages_.data(), to.num_pages};
    const auto [begin, end] = share(runtime, (rows + kRowBlock - 1) / kRowBlock * items_per_row(args), thread);
    if (begin < end) runtime.kernels.rope_store(args, begin, end);
}

// A counter hands out the items: runs of queries of a head.
void AttendAll::attend(const Runtime& runtime, const GroupStore& from, int64_t first, int64_t rows, int thread) {
    const int32_t bounds[] = {0, static_cast<int32_t>(rows)};
    const int64_t at = first * args_.heads * args_.dim, runs = (rows + kItemRows - 1) / kItemRows;
    AttentionArgs args{};
    args.q = args_.q + at;
    args.out = args_.out + at;
    args.num_heads = args.num_kv_heads = args_.heads;
    args.head_dim = args_.dim;
    args.scaling = args_.scaling;
    args.store = &from;
    args.tables = {last_.data(), last_.data(), bounds, zeros_.data(), pages_.data(), from.num_pages};
    for (int64_t item = next_.fetch_add(1, std::memory_order_relaxed); item < runs * args_.heads;
         item = next_.fetch_add(1, std::memory_order_relaxed)) {
        const int64_t head = item / runs, begin = item % runs * kItemRows;
        runtime.kernels.attention(args, {0, head, head + 1, begin, std::min(begin + kItemRows, rows)}, runtime.own(thread));
    }
}

}  // namespace ferrum
