// Sampling by the whole team: the most likely token of each row as an operation of a step, and batches of draws.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "operations.hpp"
#include "sampler.hpp"

namespace ferrum {

// The most likely token of each row of logits, the lowest id among equals; -1 if a number is NaN or infinite. Threads
// split a row by tokens, as the product before left it in the caches.
class Best final : public Operation {
public:
    Best(const Runtime& runtime, const float* logits, int32_t* out, int64_t columns, int64_t extent, int64_t max_rows);
    void run(Runtime& runtime, int thread) override;

private:
    struct Found {
        float value;
        int32_t token;  // -1: a logit is not finite
    };

    Found find(const KernelTable& kernels, const float* row, int64_t begin, int64_t end) const;

    const float* logits_;
    int32_t* out_;
    int64_t columns_, extent_, max_rows_;
    std::vector<Found> found_;  // [threads, max_rows]
};

// A row of logits and the parameters of its draw; temperature 0 takes the most likely token.
struct DrawRequest {
    const float* logits;
    int64_t count;
    DrawRules rules;
    DrawKey key;
};

// A row of logits and its log-probability query: see Sampler::describe.
struct DescribeRequest {
    const float* logits;
    int64_t count, token, most;
};

// One sampler per thread of a team, up to a limit, because each holds megabytes. Rows run in parallel.
class SamplerTeam {
public:
    static constexpr int kMost = 16;

    explicit SamplerTeam(Runtime& runtime)
        : runtime_(runtime), samplers_(static_cast<size_t>(std::min(runtime.team.max_threads(), kMost)), Sampler(runtime.kernels)) {}

    // See Sampler::held_bytes.
    int64_t held_bytes(int64_t count) const { return static_cast<int64_t>(samplers_.size()) * Sampler::held_bytes(count); }
    // Return tokens as Sampler::draw and Sampler::greedy.
    std::vector<int64_t> draw(const std::vector<DrawRequest>& requests);
    std::vector<Description> describe(const std::vector<DescribeRequest>& requests);

private:
    void each(size_t count, const std::function<void(Sampler&, size_t)>& work);

    Runtime& runtime_;
    std::vector<Sampler> samplers_;
};

}  // namespace ferrum
