// Sampling of a row of logits: the candidate rules and the draw of sampling/rules.py and sampling/sampler.py, and the
// log-probabilities of sampling/probabilities.py, with equal results.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kernel_table.hpp"

namespace ferrum {

// Neutral values: top_k 0, top_p 1, min_p 0.
struct DrawRules {
    float temperature;
    int64_t top_k;
    double top_p;
    float min_p;
};

// Parts of the log-probabilities of a row.
struct Description {
    float greatest, log_total;  // log_total: log(sum(exp(logits - greatest))) by whole masses
    int64_t rank;               // of the requested token, 1 for the first
    std::vector<int32_t> best;  // as Sampler::top
};

class Sampler {
public:
    explicit Sampler(const KernelTable& kernels) : kernels_(kernels) {}

    // Maximum bytes held for rows of that many logits.
    static int64_t held_bytes(int64_t count);

    // Return the most likely token, the lowest id among equals; -1 if no token is above minus infinity or one is NaN.
    int64_t greedy(const float* logits, int64_t count) const;
    // Draw after temperature, top-k, top-p and min-p; -1 as above, or if a token is at infinity.
    int64_t draw(const float* logits, int64_t count, const DrawRules& rules, const DrawKey& key);
    // log(sum(exp(logits - peak))) from integer masses; peak is the greatest logit.
    float log_total(const float* logits, int64_t count, float peak) const;
    // The `most` first tokens, best first, the lower id among equals.
    std::vector<int32_t> top(const float* logits, int64_t count, int64_t most);
    Description describe(const float* logits, int64_t count, int64_t token, int64_t most);

private:
    // The least value of a nucleus, and how many tokens of that value it has (those of lowest id).
    struct Edge {
        float least;
        int64_t equals;
    };

    void prepare(int64_t count);                          // reserve memory for rows of that many logits
    float look_over(const float* logits, int64_t count);  // the greatest, NaN if there is one; fills `strands_`
    // For a row after look_over: as `top`; and a value that at least `most` tokens reach.
    std::vector<int32_t> first(const float* logits, int64_t count, int64_t most);
    float reached_by(int64_t most);
    void collect(const float* x, int64_t count, float cut);
    void gather(const float* x);
    void cut_to(const float* x, int64_t most);
    void keep_top_k(const float* x, int64_t count, int64_t most);
    void keep_top_k_scaled(const float* logits, int64_t count, float peak, float temperature, int64_t most);
    int64_t weigh(const float* x);
    Edge edge_of(int64_t needed);
    void keep_top_p(const float* x, int64_t count, double share, bool all);
    void keep_min_p(const float* x, int64_t count, float least, bool all);

    const KernelTable& kernels_;
    std::vector<float> scaled_, values_, exponentials_, strands_;
    std::vector<int32_t> found_;
    std::vector<int32_t> tokens_;  // candidates, ascending after a rule has filtered them
    std::vector<int64_t> masses_;
    std::vector<int32_t> near_[2];  // tokens near the edge of a nucleus, as indices of `values_`
};

}  // namespace ferrum
