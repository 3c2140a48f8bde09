// Attention among all rows of each span, without the pool: keys and values lie in scratch memory while it runs.
#pragma once

#include <atomic>

#include "operations.hpp"

namespace ferrum {

class AttendAll final : public Operation {
public:
    // The arrays are [rows, heads x dim]. `scaling` is of q . k to an exponent of 2.
    struct Args {
        const float* q;
        const float* k;
        const float* v;
        float* out;
        int64_t heads, dim;
        Activation scaling;
    };

    AttendAll(Runtime& runtime, const Args& args, KvFormat format, int64_t max_rows);
    void run(Runtime& runtime, int thread) override;

private:
    void store(const Runtime& runtime, const GroupStore& to, int64_t first, int64_t rows, int thread) const;
    void attend(const Runtime& runtime, const GroupStore& from, int64_t first, int64_t rows, int thread);

    Args args_;
    GroupStore store_;                                 // without memory
    std::vector<int32_t> places_, pages_, last_, zeros_;  // of the rows of a span
    std::atomic<int64_t> next_{0};
};

}  // namespace ferrum
