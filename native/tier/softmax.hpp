// The online softmax of a tile's rows over one step of keys (Milakov and Gimelshein 2018).
#pragma once

#include "activations.hpp"

namespace ferrum::FERRUM_TIER {

constexpr float kMasked = -1e30f;

// The keys of a step that a row sees: `low` to `high`, inclusive; either may be outside the step.
struct Sight {
    int64_t low, high;

    vi of(int vector) const {
        const vi key = lane_index() + vector * kLanes;
        return (key >= spread(static_cast<int32_t>(low))) & (key <= spread(static_cast<int32_t>(high)));
    }
};

// Call `work` with the first vector and the number of vectors (at most MOST) for the scores of a step's first `tokens`
// keys. In a short page most keys need not be read.
template <int MOST, class Work>
inline void step_parts(int64_t tokens, Work work) {
    for (int part = 0; part * kLanes < tokens;) {
        const int64_t left = tokens - part * kLanes;
        if (left <= kLanes)
            work(part, std::integral_constant<int, 1>{}), part += 1;
        else if (MOST == 2 || left <= 2 * kLanes)
            work(part, std::integral_constant<int, 2>{}), part += 2;
        else
            work(part, std::integral_constant<int, MOST>{}), part += MOST;
    }
}

// Scale a row's scores and mask those that it does not see; returns the largest of them and of `maximum`.
template <bool WHOLE>
inline float scale_scores(float* scores, float scale, Sight sight, float maximum) {
    vf top = spread(maximum);
    for (int v = 0; v < kStepVectors; ++v) {
        vf score = load<vf>(scores + v * kLanes) * spread(scale);
        if (!WHOLE) score = sight.of(v) ? score : spread(kMasked);
        store(scores + v * kLanes, score);
        top = larger(score, top);
    }
    return max_lanes(top);
}

// Cap the scores of a row.
[[gnu::noinline]] inline void cap_scores(const Activation& scaling, float* scores) {
    for (int v = 0; v < kStepVectors; ++v) store(scores + v * kLanes, capped(scaling, load<vf>(scores + v * kLanes)));
}

// Turn a row's scaled scores into its weights, 0 for masked keys; returns their sum.
template <bool WHOLE>
inline float weigh(float* scores, float maximum, Sight sight) {
    vf sum[kVirtual] = {};
    for (int first = 0; first < kStepVectors; first += kVirtual)
        for (int i = 0; i < kVirtual; ++i) {
            const int v = first + i;
            vf weight = exp2(load<vf>(scores + v * kLanes) - spread(maximum));
            if (!WHOLE) weight = sight.of(v) ? weight : vf{};
            store(scores + v * kLanes, weight);
            sum[i] += weight;
        }
    return sum_lanes(sum);
}

// Turn the scores of MR rows into weights in place. `maximum` and `total` are the running state of the rows; `decay` is
// the factor of all earlier sums. WHOLE: each row sees the whole step.
template <bool WHOLE, int MR>
inline void weigh_rows(float (&scores)[MR][kStep], const Activation& scaling, const Sight (&sights)[MR], float* maximum, float* total,
                       float (&decay)[MR]) {
    constexpr int kRoom = (MR + kLanes - 1) / kLanes * kLanes;
    float change[kRoom] = {};
    const bool caps = scaling.curve == Curve::capped;
    const float scale = caps ? 1 : scaling.slope;
    for (int r = 0; r < MR; ++r) {
        if (caps) cap_scores(scaling, scores[r]);
        const float raised = scale_scores<WHOLE>(scores[r], scale, sights[r], maximum[r]);
        change[r] = maximum[r] - raised;
        maximum[r] = raised;
    }
    for (int r = 0; r < kRoom; r += kLanes) store(change + r, exp2(load<vf>(change + r)));
    for (int r = 0; r < MR; ++r) {
        decay[r] = change[r];
        total[r] = fused(total[r], decay[r], weigh<WHOLE>(scores[r], maximum[r], sights[r]));
    }
}

}  // namespace ferrum::FERRUM_TIER
