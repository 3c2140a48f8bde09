// Sampling by the whole team: the most likely token of each row as an operation of a step, and what samplers do for many rows.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "operations.hpp"
#include "sampler.hpp"

namespace ferrum {

// The most likely token of each row of logits, the lowest id among equals; -1 where a number is NaN or infinite. A row is
// shared out by tokens, as the product before left it in the caches.
class Best final : public Operation {
public:
    Best(const Runtime& runtime, const float* logits, int32_t* out, int64_t columns, int64_t extent, int64_t most_rows);
    void run(Runtime& runtime, int thread) override;

private:
    struct Found {
        float value;
        int32_t token;  // -1: something is not finite
    };

    Found find(const KernelTable& kernels, const float* row, int64_t begin, int64_t end) const;

    const float* logits_;
    int32_t* out_;
    int64_t columns_, extent_, most_rows_;
    std::vector<Found> found_;  // [threads, most_rows]
};

// A row of logits, and what is to be drawn from it; at temperature 0 the most likely token.
struct DrawWish {
    const float* logits;
    int64_t count;
    DrawRules rules;
    DrawKey key;
};

// A row of logits, and what is to be told of it: see Sampler::describe.
struct DescribeWish {
    const float* logits;
    int64_t count, token, most;
};

// A sampler for each thread of a team, but not for any number of them, as each holds megabytes; rows are computed side by side.
class SamplerTeam {
public:
    static constexpr int kMost = 16;

    explicit SamplerTeam(Runtime& runtime)
        : runtime_(runtime), samplers_(static_cast<size_t>(std::min(runtime.team.most(), kMost)), Sampler(runtime.kernels)) {}

    // See Sampler::held_bytes.
    int64_t held_bytes(int64_t count) const { return static_cast<int64_t>(samplers_.size()) * Sampler::held_bytes(count); }
    // Tokens as Sampler::draw and Sampler::greedy tell them.
    std::vector<int64_t> draw(const std::vector<DrawWish>& wishes);
    std::vector<Description> describe(const std::vector<DescribeWish>& wishes);

private:
    void each(size_t count, const std::function<void(Sampler&, size_t)>& work);

    Runtime& runtime_;
    std::vector<Sampler> samplers_;
};

}  // namespace ferrum
