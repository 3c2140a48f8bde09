// The attention operation: distribution of a step's queries to threads.
#pragma once

#include <atomic>

#include "operations.hpp"

namespace ferrum {

class Attention final : public Operation {
public:
    Attention(Runtime& runtime, const AttentionArgs& args, int64_t group);
    void prepare() override { next_.store(0, std::memory_order_relaxed); }
    void run(Runtime& runtime, int thread) override;

private:
    GroupStore store(const Runtime& runtime) const;

    AttentionArgs args_;
    int64_t group_;
    std::atomic<int64_t> next_{0};
};

}  // namespace ferrum
