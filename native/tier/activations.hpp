// Activations of products, as kernels/reference/reference_rows.py and docs/numerics.md specify them.
#pragma once

#include "math.hpp"

namespace ferrum::FERRUM_TIER {

// Half the tail of erf, and its argument's factor (Abramowitz and Stegun 1964, 7.1.26).
constexpr float kErf[5] = {1.061405429f, -1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f};
constexpr float kErfFactor = 0.3275911f, kRootHalf = 0.7071067811865476f;
constexpr float kGelu = 1.5957691216057308f, kGeluCubic = 0.07135481627260025f;  // 2 sqrt(2 / pi), times 0.044715

inline vf sigmoid(vf x) { return spread(1.0f) / (spread(1.0f) + exp(-x)); }

inline vf logistic_product(vf x, vf exponent) { return x / (spread(1.0f) + exp(-exponent)); }

// x times the mass of the normal distribution below x.
inline vf gelu(vf x) {
    const vf z = (vf)((vu)x & 0x7fffffffu) * spread(kRootHalf);
    const vf t = spread(1.0f) / fused(z, spread(kErfFactor), spread(1.0f));
    const vf tail = spread(0.5f) * (polynomial(t, kErf) * t * exp(-(z * z)));
    return x * (x > 0 ? spread(1.0f) - tail : tail);
}

inline vf gelu_tanh(vf x) { return logistic_product(x, x * fused(x * x, spread(kGeluCubic), spread(kGelu))); }

inline vf capped(const Activation& a, vf x) {
    return spread(a.top) - spread(a.span) / (spread(1.0f) + exp(x * spread(a.slope)));
}

// Change `count` vectors by a function of a vector.
template <class Function>
inline void change(vf* x, int count, Function function) {
    for (int i = 0; i < count; ++i) x[i] = function(x[i]);
}

// Apply an activation to `count` vectors. A function by itself: it is long, and products call it once per tile.
[[gnu::noinline]] inline void activate(const Activation& a, vf* x, int count) {
    const vf slope = spread(a.slope);
    switch (a.curve) {
        case Curve::none: return;
        case Curve::scaled: return change(x, count, [=](vf v) { return v * slope; });
        case Curve::capped: return change(x, count, [&](vf v) { return capped(a, v); });
        case Curve::silu: return change(x, count, [=](vf v) { return logistic_product(v, v * slope); });
        case Curve::gelu: return change(x, count, gelu);
        case Curve::gelu_tanh: return change(x, count, gelu_tanh);
        case Curve::relu2: return change(x, count, [](vf v) { return v * larger(v, vf{}); });
        case Curve::sigmoid: return change(x, count, sigmoid);
        case Curve::clip: return change(x, count, [&](vf v) { return within(a.span, a.top, v); });
    }
}

// Multiply activated gates by the other factors.
[[gnu::noinline]] inline void gate(const Activation& a, vf* gates, const vf* others, int count) {
    if (!a.limited) {
        activate(a, gates, count);
        for (int i = 0; i < count; ++i) gates[i] *= others[i];
        return;
    }
    change(gates, count, [&](vf x) { return smaller(spread(a.limit), x); });
    activate(a, gates, count);
    for (int i = 0; i < count; ++i) gates[i] *= within(-a.limit, a.limit, others[i]) + spread(1.0f);
}

}  // namespace ferrum::FERRUM_TIER
