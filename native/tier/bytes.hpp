// Rounding to whole numbers by one scale for all: round(x * (levels / max|x|)); round_whole in
// kernels/reference/math.py states the rule.
#pragma once

#include "math.hpp"

namespace ferrum::FERRUM_TIER {

// The scale of numbers whose largest magnitude has these bits. As integers magnitudes order alike, and NaN above all.
// Below 2^-64 they count as zeros, so that all further numbers are normal; infinity and NaN make the scale a NaN.
struct WholeScale {
    bool used;
    float inverse, scale;

    WholeScale(int32_t largest_bits, float levels) {
        float largest;
        std::memcpy(&largest, &largest_bits, sizeof largest);
        used = largest >= 0x1p-64f && largest_bits < 0x7f800000;
        inverse = used ? levels / largest : 0.0f;
        scale = used ? largest / levels : largest_bits < 0x7f800000 ? 0.0f : __builtin_nanf("");
    }

    vi round(vf x) const { return used ? __builtin_convertvector(nearest(x * spread(inverse)), vi) : vi{}; }
};

inline vi magnitude(vf x) { return (vi)x & 0x7fffffff; }
inline vi larger(vi a, vi b) { return a > b ? a : b; }

// `count` numbers as bytes, zeros up to a whole vector; returns their scale.
inline float round_bytes(const float* x, int64_t count, int8_t* out) {
    using Bytes = int8_t __attribute__((vector_size(kLanes)));
    vi top{};
    for (int64_t d = 0; d < count; d += kLanes) top = larger(top, magnitude(load_part(x + d, count - d)));
    const WholeScale scale(max_lanes(top), 127.0f);
    for (int64_t d = 0; d < count; d += kLanes)
        store(out + d, __builtin_convertvector(scale.round(load_part(x + d, count - d)), Bytes));
    return scale.scale;
}

}  // namespace ferrum::FERRUM_TIER
