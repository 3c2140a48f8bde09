// One row of logits becomes one token: the candidate rules and the draw of sampling/rules.py and sampling/sampler.py, with
// the same result for every row, and the log-probabilities of sampling/logprobs.py.
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

// What log-probabilities of a row are made of.
struct Description {
    float greatest, log_total;  // log_total: log(sum(exp(logits - greatest))) by whole masses
    int64_t rank;               // of the token in question, 1 for the first
    std::vector<int32_t> best;  // as Sampler::top
};

class Sampler {
public:
    explicit Sampler(const KernelTable& kernels) : kernels_(kernels) {}

    // Bytes that it holds once it has drawn from rows of so many logits.
    static int64_t held_bytes(int64_t count);

    // The most likely token, the lowest id among equals; -1 where no token is above minus infinity or one is NaN.
    int64_t greedy(const float* logits, int64_t count) const;
    // A draw after temperature, top-k, top-p and min-p; -1 as above, and where a token is at infinity.
    int64_t draw(const float* logits, int64_t count, const DrawRules& rules, const DrawKey& key);
    // log(sum(exp(logits - peak))) by whole masses; peak: the greatest.
    float log_total(const float* logits, int64_t count, float peak) const;
    // The `most` first tokens, best first, the lower id among equals.
    std::vector<int32_t> top(const float* logits, int64_t count, int64_t most);
    Description describe(const float* logits, int64_t count, int64_t token, int64_t most);

private:
    // The least value of a nucleus, and how many tokens of that value it has, the lowest ids.
    struct Edge {
        float least;
        int64_t equals;
    };

    void prepare(int64_t count);                          // room for rows of so many logits, once
    float look_over(const float* logits, int64_t count);  // the greatest, NaN where there is one; fills `strands_`
    // Of a row that has been looked over: as `top`; and a value that at least `most` tokens reach.
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
    std::vector<int32_t> tokens_;  // the candidates, ascending once a rule has kept some
    std::vector<int64_t> masses_;
    std::vector<int32_t> near_[2];  // of the tokens, those by the edge of a nucleus: places in `values_`
};

}  // namespace ferrum
