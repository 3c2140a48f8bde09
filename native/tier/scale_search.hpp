// Search of scales and minima with the bits of quant/scale_search.py, which explains the method and has the same
// candidates. A vector has one input of kLanes outputs, so plain vector operations reduce a group.
#pragma once

#include "math.hpp"

namespace ferrum::FERRUM_TIER {

constexpr float kSmallest = 1.0f / (1LL << 40);  // SMALLEST
constexpr float kLargestHalf = 65504.0f;
constexpr float kOverflow = 65520.0f;  // the least number that rounds to an infinite half

struct Range {
    int below, above;
};

struct Search {
    const float* symmetric;
    int symmetric_count;
    const Range* affine;
    int affine_count, rounds;
    const int* steps;
    int step_count;
};

inline vi magnitude(vf x) { return (vi)x & 0x7fffffff; }
inline vf absolute(vf x) { return (vf)magnitude(x); }
inline vf select(vi mask, vf yes, vf no) { return (vf)(((vi)yes & mask) | ((vi)no & ~mask)); }
inline vi whole(vf x) { return __builtin_convertvector(x, vi); }
inline vf bounded(vf x, float low, float high) { return smaller(larger(x, spread(low)), spread(high)); }
inline vf nearest_within(vf x, float low, float high) { return nearest(bounded(x, low, high)); }
inline vf inverse(vf x, float numerator = 1.0f) { return select(absolute(x) >= kSmallest, spread(numerator) / x, vf{}); }
inline vf ratio(vf a, vf b) { return select(b > 0.0f, a / b, vf{}); }

// Convert to f16, to the nearest, ties to even.
inline vh narrow_halves(vf x) {
#if defined(__AVX512VNNI__)
    return (vh)_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__AVX2__)
    return (vh)_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    const vu sign = ((vu)x >> 16) & 0x8000u, size = (vu)magnitude(x);
    const vu normal = (size + 0xfffu + ((size >> 13) & 1u) - 0x38000000u) >> 13;
    const vu small = (vu)((vf)size + 0.5f) - 0x3f000000u;  // the sum keeps multiples of the least half
    const vu half = size < 0x38800000u ? small : normal;
    return __builtin_convertvector(half | sign, vh);
#endif
}

inline vf half(vf x) {
    const vh rounded = narrow_halves(bounded(x + 0.0f, -kLargestHalf, kLargestHalf));
    return widen_halves(reinterpret_cast<const std::byte*>(&rounded));
}

// The worst error of scales, which must fit in f16.
inline Rounding fault_of(vf exact) {
    if (lanes_where(magnitude(exact) >= 0x7f800000) != 0) return Rounding::not_finite;
    return lanes_where(absolute(exact) >= kOverflow) != 0 ? Rounding::too_large : Rounding::fine;
}

// term(0) + ... + term(N - 1): halves are added until one number is left.
template <int N, class Term>
inline vf fold(Term term) {
    vf terms[N / 2];
    for (int k = 0; k < N / 2; ++k) terms[k] = term(k) + term(k + N / 2);
    for (int left = N / 4; left > 0; left /= 2)
        for (int k = 0; k < left; ++k) terms[k] += terms[k + left];
    return terms[0];
}

// Of N numbers.
template <int N>
inline vf smallest_of(const vf* x) {
    vf found = x[0];
    for (int k = 1; k < N; ++k) found = smaller(found, x[k]);
    return found;
}
template <int N>
inline vf largest_of(const vf* x) {
    vf found = x[0];
    for (int k = 1; k < N; ++k) found = larger(found, x[k]);
    return found;
}
template <int N>
inline vf signed_largest_of(const vf* x) {
    const vf low = smallest_of<N>(x), high = largest_of<N>(x);
    return select(high > -low, high, low);
}

// A group of N inputs of kLanes outputs, and the weights of their squared errors.
template <int N>
struct Group {
    const vf* x;
    const vf* weights;

    vf weigh(int k, vf v) const { return v * weights[k]; }
    vf total() const {
        return fold<N>([&](int k) { return weights[k]; });
    }
    vf smallest() const { return smallest_of<N>(x); }
    vf largest() const { return largest_of<N>(x); }
    vf signed_largest() const { return signed_largest_of<N>(x); }
    // 0, or NaN if a number is not finite.
    vf spoiled() const {
        vf found{};
        for (int k = 0; k < N; ++k) found += x[k] * 0.0f;
        return found;
    }
    void codes(vf scale, vf minimum, float low, float high, vf* out) const {
        const vf steps = inverse(scale);
        for (int k = 0; k < N; ++k) out[k] = nearest_within((x[k] - minimum) * steps, low, high);
    }
    vf error(const vf* codes, vf scale, vf minimum) const {
        return fold<N>([&](int k) {
            const vf rest = x[k] - codes[k] * scale - minimum;
            return weigh(k, rest * rest);
        });
    }
    vf sum() const {
        return fold<N>([&](int k) { return weigh(k, x[k]); });
    }
    vf sum_of(const vf* codes) const {
        return fold<N>([&](int k) { return weigh(k, codes[k]); });
    }
    vf squares(const vf* codes) const {
        return fold<N>([&](int k) { return weigh(k, codes[k]) * codes[k]; });
    }
    vf products(const vf* codes) const {
        return fold<N>([&](int k) { return weigh(k, codes[k]) * x[k]; });
    }
};

// The weights of numbers of unknown importance: see own_weights().
template <int GROUPS, int N>
inline void own_weights(const vf* x, vf* weights) {
    for (int k = 0; k < GROUPS * N; ++k) weights[k] = x[k] * x[k];
    vf sums[GROUPS];
    for (int g = 0; g < GROUPS; ++g) sums[g] = fold<N>([&](int k) { return weights[g * N + k]; });
    vf sum = sums[0];
    if constexpr (GROUPS > 1) sum = fold<GROUPS>([&](int g) { return sums[g]; });
    const vf mean = sum / static_cast<float>(GROUPS * N), factor = select(mean >= kSmallest * kSmallest, 1.0f / mean, vf{});
    for (int k = 0; k < GROUPS * N; ++k) weights[k] = weights[k] * factor + 1.0f;
}

template <int N>
vf fit_symmetric(const Group<N>& group, float low, float high, const Search& search) {
    const vf largest = group.signed_largest();
    vf best = spread(-1.0f), scale{}, codes[N];
    for (int candidate = 0; candidate < search.symmetric_count; ++candidate) {
        const vf steps = inverse(largest, search.symmetric[candidate]);
        for (int k = 0; k < N; ++k) codes[k] = nearest_within(group.x[k] * steps, low, high);
        const vf products = fold<N>([&](int k) { return group.weigh(k, group.x[k]) * codes[k]; });
        const vf fitted = ratio(products, group.squares(codes)), explained = products * fitted;
        const vi better = explained > best;
        best = select(better, explained, best), scale = select(better, fitted, scale);
    }
    return scale;
}

struct Line {
    vf scale, minimum;
};

template <int N>
Line fit_affine(const Group<N>& group, float top, const Search& search, bool positive) {
    const vf lowest = group.smallest(), smallest = positive ? lowest : smaller(lowest, vf{});
    vf shifted[N], codes[N];
    for (int k = 0; k < N; ++k) shifted[k] = group.x[k] - smallest;
    const vf span = group.largest() - smallest, total = group.total();
    const vf sum_of_shifted = fold<N>([&](int k) { return group.weigh(k, shifted[k]); }), mean = ratio(sum_of_shifted, total);
    vf best = spread(-1.0f);
    Line line{vf{}, smallest};
    for (int candidate = 0; candidate < search.affine_count; ++candidate) {
        const auto [below, above] = search.affine[candidate];
        const float start_code = static_cast<float>(below) / 4;
        const vf steps = inverse(span, top + static_cast<float>(below + above) / 4);
        for (int k = 0; k < N; ++k) codes[k] = nearest_within(shifted[k] * steps - start_code, 0.0f, top);
        const vf sum = group.sum_of(codes), squares = group.squares(codes);
        const vf products = fold<N>([&](int k) { return group.weigh(k, shifted[k]) * codes[k]; });
        const vf codes_mean = ratio(sum, total), covariance = products - mean * sum;
        vf fitted = ratio(covariance, squares - codes_mean * sum), explained = covariance * fitted;
        vf start = smallest + (mean - fitted * codes_mean);
        if (!positive) {
            const vi through_zero = start > 0.0f;
            const vf own = products + smallest * sum, own_mean = mean + smallest, slope = ratio(own, squares);
            explained = select(through_zero, own * slope - own_mean * (own_mean * total), explained);
            fitted = select(through_zero, slope, fitted), start = select(through_zero, vf{}, start);
        }
        const vi better = explained > best;
        best = select(better, explained, best);
        line = {select(better, fitted, line.scale), select(better, start, line.minimum)};
    }
    return line;
}

}  // namespace ferrum::FERRUM_TIER
