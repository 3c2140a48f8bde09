// The natural logarithm and softplus, as docs/numerics.md specifies them. No product and sum is fused there.
#pragma once

#include "math.hpp"

namespace ferrum::FERRUM_TIER {

inline vf exact_polynomial(vf x, const float* c, int count) {
    vf total = spread(c[0]);
    for (int i = 1; i < count; ++i) total = total * x + spread(c[i]);
    return total;
}

// Natural logarithm of positive normal numbers.
inline vf exact_log(vf x) {
    static constexpr float kLog1p[9] = {0.06915425f,  -0.11789835f, 0.11872966f,  -0.12384343f, 0.14218658f,
                                        -0.16669251f, 0.20002227f,  -0.24999987f, 0.3333331f};
    const vi shifted = (vi)x - 0x3f3504f3;
    const vf exponent = __builtin_convertvector(shifted >> 23, vf);
    const vf f = (vf)((shifted & 0x007fffff) + 0x3f3504f3) - spread(1.0f);
    const vf square = f * f;
    const vf tail = exact_polynomial(f, kLog1p, 9);
    const vf correction = ((f * square) * tail + exponent * spread(1.4286068203094172e-06f)) - spread(0.5f) * square;
    return (f + correction) + exponent * spread(0.693145751953125f);
}

// log(1 + e^x): with t = e^-|x| and u the rounded 1 + t, log(1 + t) = log(u) + (t - (u - 1)) / u.
inline vf softplus(vf x) {
    const vf one = spread(1.0f), t = exp((vf)((vu)x | 0x80000000u)), u = one + t;
    return larger(x, vf{}) + (exact_log(u) + (t - (u - one)) / u);
}

}  // namespace ferrum::FERRUM_TIER
