#include "routing.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ferrum {

namespace {

struct Choice {
    float value;
    int32_t number;
};

// The greatest of the values offered in ascending order of numbers, greatest first; of equals, those offered first.
class Best {
public:
    Best(Choice* room, int64_t most) : held_(room), most_(most) {}

    void clear() { count_ = 0; }
    void offer(float value, int32_t number) {
        if (std::isnan(value)) value = -std::numeric_limits<float>::infinity();
        if (count_ == most_ && !(value > held_[most_ - 1].value)) return;
        int64_t at = count_ < most_ ? count_++ : most_ - 1;
        for (; at > 0 && value > held_[at - 1].value; --at) held_[at] = held_[at - 1];
        held_[at] = {value, number};
    }
    float sum() const {
        float total = held_[0].value;
        for (int64_t i = 1; i < count_; ++i) total += held_[i].value;
        return total;
    }
    void sort_by_number() {
        std::sort(held_, held_ + count_, [](const Choice& a, const Choice& b) { return a.number < b.number; });
    }
    int64_t count() const { return count_; }
    int32_t number(int64_t i) const { return held_[i].number; }

private:
    Choice* held_;
    int64_t most_, count_ = 0;
};

// Scores as weights. The sum of a softmax is of ascending experts.
void apply(const KernelTable& kernels, Score score, const float* x, int64_t count, float* out) {
    const bool divides = score == Score::softmax;
    kernels.scores(score, x, count, divides ? kernels.largest(x, count) : 0.0f, out);
    if (!divides) return;
    float total = out[0];
    for (int64_t i = 1; i < count; ++i) total += out[i];
    for (int64_t i = 0; i < count; ++i) out[i] /= total;
}

// Offer the experts that a row can choose: all, or those of its best groups.
void offer_all(const Routing& r, const float* values, Choice* room, Best& best) {
    const auto rank = [&](int64_t e) { return r.selection_bias != nullptr ? values[e] + r.selection_bias[e] : values[e]; };
    const int64_t size = r.experts / r.groups;
    const auto offer_group = [&](int64_t group, Best& to) {
        for (int64_t e = group * size; e < (group + 1) * size; ++e) to.offer(rank(e), static_cast<int32_t>(e));
    };
    if (r.groups == 1) return offer_group(0, best);
    Best groups(room, r.kept_groups), within(room + r.kept_groups, r.group_best);
    for (int64_t group = 0; group < r.groups; ++group) {
        within.clear();
        offer_group(group, within);
        groups.offer(within.sum(), static_cast<int32_t>(group));
    }
    groups.sort_by_number();
    for (int64_t i = 0; i < groups.count(); ++i) offer_group(groups.number(i), best);
}

void weigh(const Routing& r, const int32_t* experts, float* weights) {
    if (r.renormalise) {
        float total = weights[0];
        for (int64_t i = 1; i < r.top_k; ++i) total += weights[i];
        total += r.eps;
        const float divisor = total < r.least ? r.least : total;
        for (int64_t i = 0; i < r.top_k; ++i) weights[i] /= divisor;
    }
    for (int64_t i = 0; i < r.top_k; ++i) weights[i] *= r.factor;
    if (r.expert_scale == nullptr) return;
    for (int64_t i = 0; i < r.top_k; ++i) weights[i] *= r.expert_scale[experts[i]];
}

}  // namespace

int64_t Routing::room() const {
    const int64_t choices = top_k + kept_groups + group_best;
    return choices * static_cast<int64_t>(sizeof(Choice)) + experts * static_cast<int64_t>(sizeof(float));
}

void route(const KernelTable& kernels, const Routing& r, const float* scores, std::byte* room, int32_t* experts,
           float* weights) {
    if (!kernels.finite(scores, r.experts)) {
        for (int64_t i = 0; i < r.top_k; ++i) experts[i] = static_cast<int32_t>(i);
        std::fill(weights, weights + r.top_k, std::numeric_limits<float>::quiet_NaN());
        return;
    }
    auto* choices = reinterpret_cast<Choice*>(room);
    auto* applied = reinterpret_cast<float*>(choices + r.top_k + r.kept_groups + r.group_best);
    if (!r.late) apply(kernels, r.score, scores, r.experts, applied);
    const float* values = r.late ? scores : applied;
    Best best(choices, r.top_k);
    offer_all(r, values, choices + r.top_k, best);
    best.sort_by_number();
    for (int64_t i = 0; i < r.top_k; ++i) {
        experts[i] = best.number(i);
        weights[i] = values[experts[i]];
    }
    if (r.late) {
        std::copy(weights, weights + r.top_k, applied);
        apply(kernels, r.score, applied, r.top_k, weights);
    }
    weigh(r, experts, weights);
}

}  // namespace ferrum
