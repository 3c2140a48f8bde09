#include "sampler.hpp"

#include <algorithm>
#include <cmath>

namespace ferrum {

namespace {

// The one order of tokens: greater first, among equals the lower id first.
struct Better {
    const float* x;
    bool operator()(int32_t a, int32_t b) const { return x[a] > x[b] || (x[a] == x[b] && a < b); }
};

struct Candidate {
    float value;
    int32_t token;
    int64_t mass;
};

// The first of the candidates in that order whose mass reaches what is needed, without sorting them: like quickselect, but
// by mass. `candidates` are in ascending order of tokens and have enough mass; at least one is kept.
std::vector<int32_t> nucleus(std::vector<Candidate> candidates, int64_t needed) {
    std::vector<int32_t> kept;
    std::vector<Candidate> parts[3];  // above, at and below the pivot
    while (!candidates.empty()) {
        const float a = candidates.front().value, b = candidates[candidates.size() / 2].value, c = candidates.back().value;
        const float pivot = std::max(std::min(a, b), std::min(std::max(a, b), c));
        int64_t above = 0;
        for (auto& part : parts) part.clear();
        for (const Candidate& each : candidates) {
            parts[each.value > pivot ? 0 : each.value == pivot ? 1 : 2].push_back(each);
            above += each.value > pivot ? each.mass : 0;
        }
        if (above >= needed && !parts[0].empty()) {
            candidates.swap(parts[0]);
            continue;
        }
        for (const Candidate& each : parts[0]) kept.push_back(each.token);
        needed -= above;
        for (const Candidate& each : parts[1]) {
            if (needed <= 0 && !kept.empty()) return kept;
            kept.push_back(each.token);
            needed -= each.mass;
        }
        if (needed <= 0) return kept;
        candidates.swap(parts[2]);
    }
    return kept;
}

constexpr int64_t kBlock = 64;  // tokens whose greatest stands for them when a threshold is sought

}  // namespace

int64_t Sampler::greedy(const float* logits, int64_t count) const {
    const float peak = kernels_.largest(logits, count);
    return peak > -INFINITY ? kernels_.first_equal(logits, count, peak) : -1;
}

int64_t Sampler::draw(const float* logits, int64_t count, const DrawRules& rules, const DrawKey& key) {
    const float peak = kernels_.largest(logits, count);
    if (!(peak > -INFINITY)) return -1;
    scaled_.resize(static_cast<size_t>(count));
    float* x = scaled_.data();
    kernels_.scale_below(logits, count, peak, rules.temperature, x);
    const bool by_count = rules.top_k > 0 && rules.top_k < count, by_mass = rules.top_p < 1.0, by_share = rules.min_p > 0.0f;
    if (!by_count && !by_mass && !by_share) return kernels_.draw_from_all(x, count, key);
    if (by_count) keep_top_k(x, count, rules.top_k);
    if (by_mass) keep_top_p(x, count, rules.top_p, !by_count);
    if (by_share) keep_min_p(x, count, rules.min_p, !by_count && !by_mass);
    return kernels_.draw_among(x, tokens_.data(), static_cast<int64_t>(tokens_.size()), key);
}

std::vector<int32_t> Sampler::top(const float* logits, int64_t count, int64_t most) {
    keep_top_k(logits, count, most);
    std::vector<int32_t> best = tokens_;
    std::sort(best.begin(), best.end(), Better{logits});
    return best;
}

// The `most`-th greatest of the blocks' greatest is a threshold that at least `most` tokens reach, and few others.
void Sampler::keep_top_k(const float* x, int64_t count, int64_t most) {
    tokens_.clear();
    if (most <= 0) return;
    const int64_t blocks = (count + kBlock - 1) / kBlock;
    float cut = -INFINITY;
    if (most <= blocks) {
        values_.resize(static_cast<size_t>(blocks));
        for (int64_t block = 0; block < blocks; ++block)
            values_[static_cast<size_t>(block)] =
                kernels_.largest(x + block * kBlock, std::min(kBlock, count - block * kBlock));
        std::nth_element(values_.begin(), values_.begin() + most - 1, values_.end(), std::greater<float>());
        cut = values_[static_cast<size_t>(most) - 1];
    }
    tokens_.resize(static_cast<size_t>(count));
    tokens_.resize(static_cast<size_t>(kernels_.collect_from(x, count, cut, tokens_.data())));
    if (most >= static_cast<int64_t>(tokens_.size())) return;
    std::nth_element(tokens_.begin(), tokens_.begin() + most - 1, tokens_.end(), Better{x});
    tokens_.resize(static_cast<size_t>(most));
    std::sort(tokens_.begin(), tokens_.end());
}

// The fewest best whose mass reaches the share. Most nuclei are small: candidates come from the top in widening cuts.
void Sampler::keep_top_p(const float* x, int64_t count, double share, bool all) {
    if (all) {
        tokens_.resize(static_cast<size_t>(count));
        tokens_.resize(static_cast<size_t>(kernels_.collect_from(x, count, -INFINITY, tokens_.data())));
    }
    values_.resize(tokens_.size());
    masses_.resize(tokens_.size());
    for (size_t i = 0; i < tokens_.size(); ++i) values_[i] = x[tokens_[i]];
    const int64_t total = kernels_.mass_of(values_.data(), static_cast<int64_t>(tokens_.size()), masses_.data());
    const int64_t needed = std::min(static_cast<int64_t>(std::ceil(share * static_cast<double>(total))), total);
    std::vector<Candidate> candidates;
    for (const float cut : {-2.0f, -8.0f, -INFINITY}) {
        int64_t sum = 0;
        candidates.clear();
        for (size_t i = 0; i < tokens_.size(); ++i)
            if (values_[i] >= cut) {
                candidates.push_back({values_[i], tokens_[i], masses_[i]});
                sum += masses_[i];
            }
        if (sum >= needed) break;
    }
    tokens_ = nucleus(std::move(candidates), needed);
    std::sort(tokens_.begin(), tokens_.end());
}

void Sampler::keep_min_p(const float* x, int64_t count, float least, bool all) {
    if (all) {
        tokens_.resize(static_cast<size_t>(count));
        const float cut = std::log(least) - 0.01f;  // a little more than needed: the exact test follows
        tokens_.resize(static_cast<size_t>(kernels_.collect_from(x, count, cut, tokens_.data())));
    }
    values_.resize(tokens_.size());
    exponentials_.resize(tokens_.size());
    for (size_t i = 0; i < tokens_.size(); ++i) values_[i] = x[tokens_[i]];
    kernels_.exp_of(values_.data(), static_cast<int64_t>(tokens_.size()), exponentials_.data());
    size_t kept = 0;
    for (size_t i = 0; i < tokens_.size(); ++i)
        if (exponentials_[i] >= least) tokens_[kept++] = tokens_[i];
    tokens_.resize(kept);
}

float Sampler::log_total(const float* logits, int64_t count) {
    scaled_.resize(static_cast<size_t>(count));
    kernels_.scale_below(logits, count, kernels_.largest(logits, count), 1.0f, scaled_.data());
    const int64_t total = kernels_.mass_of(scaled_.data(), count, nullptr);
    return kernels_.log_of(static_cast<float>(total) / 1099511627776.0f);
}

Description Sampler::describe(const float* logits, int64_t count, int64_t token, int64_t most) {
    const float value = logits[token];
    int64_t before = 0;
    for (int64_t i = 0; i < count; ++i) before += logits[i] > value;
    for (int64_t i = 0; i < token; ++i) before += logits[i] == value;
    return {kernels_.largest(logits, count), log_total(logits, count), 1 + before, top(logits, count, most)};
}

}  // namespace ferrum
