// Rounding to integers with one common scale: round(x * (levels / max |x|)); round_whole in
// kernels/reference/reference_math.py states the rule.
#pragma once

#include "math.hpp"

namespace ferrum::FERRUM_TIER {

// The scale of numbers whose largest magnitude has these bits, for one set or for one set per lane (F, I). As integers,
// magnitudes have the same order, with NaN the largest. Magnitudes below 2^-64 count as zeros, so that all further
// numbers are normal. Infinity and NaN make the scale NaN.
template <class F, class I>
struct WholeScale {
    F inverse, scale;

    WholeScale(I largest_bits, float levels) {
        F largest;
        std::memcpy(&largest, &largest_bits, sizeof largest);
        const auto finite = largest_bits < 0x7f800000;
        const auto used = (largest_bits >= 0x1f800000) & finite;
        inverse = used ? levels / largest : F{};
        scale = used ? largest / levels : finite ? F{} : F{} + __builtin_nanf("");
    }
};

using Bytes = int8_t __attribute__((vector_size(kLanes)));

// Return the low byte of each word.
inline Bytes low_bytes(vu words) {
#if defined(__AVX512VNNI__)
    return (Bytes)_mm512_cvtepi32_epi8((__m512i)words);
#else
    return __builtin_convertvector((vi)words, Bytes);
#endif
}

inline vi magnitude(vf x) { return (vi)x & 0x7fffffff; }
inline vi larger(vi a, vi b) { return a > b ? a : b; }

// Write `count` numbers as bytes, padded with zeros to a whole vector; returns their scale.
inline float round_bytes(const float* x, int64_t count, int8_t* out) {
    vi top{};
    for (int64_t d = 0; d < count; d += kLanes) top = larger(top, magnitude(load_part(x + d, count - d)));
    const WholeScale<float, int32_t> scale(max_lanes(top), 127.0f);
    for (int64_t d = 0; d < count; d += kLanes)
        store(out + d, low_bytes(nearest_bits(load_part(x + d, count - d) * spread(scale.inverse))));
    return scale.scale;
}

}  // namespace ferrum::FERRUM_TIER
