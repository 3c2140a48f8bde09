// The two products of attention by the format of the pool, four terms at a time: the rows of a tile by a token's key, or
// by a dimension of values. kernels/reference/reference_attention.py states the arithmetic.
#pragma once

#include "attention.hpp"

namespace ferrum::cuda {

template <class T, int N>
struct alignas(sizeof(T) * N) Few {
    T x[N];
};

template <int N, class T>
FERRUM_DEVICE Few<T, N> few(const T* from) {
    return *reinterpret_cast<const Few<T, N>*>(from);
}

// The factors of N rows: term k of all rows after each other, `stride` numbers a term.
template <class T, int N>
struct ByTerm {
    const T* at;
    int stride;

    FERRUM_DEVICE Few<T, N> one(int k) const { return few<N>(at + k * stride); }
    FERRUM_DEVICE void four(int k, Few<T, N> (&terms)[4]) const {
        for (int i = 0; i < 4; ++i) terms[i] = one(k + i);
    }
};

// The factors of one row, term after term.
template <class T>
struct ByRow {
    const T* at;

    FERRUM_DEVICE Few<T, 1> one(int k) const { return few<1>(at + k); }
    FERRUM_DEVICE void four(int k, Few<T, 1> (&terms)[4]) const {
        const Few<T, 4> all = few<4>(at + k);
        for (int i = 0; i < 4; ++i) terms[i].x[0] = all.x[i];
    }
};

// The words of four tokens of a latent key, from which the number of one dimension is taken.
using Tokens = Few<unsigned, 4>;

namespace terms {

// ---- float32: each term is added by a fused operation ----

struct float32 : formats::float32 {
    using Factor = float;  // of a query, and a probability
    using Sum = float;
    struct Four {
        float x[4];
    };

    template <int COLUMNS>
    FERRUM_DEVICE static Four of_words(const unsigned* column, int four) {
        Four found;
        for (int i = 0; i < 4; ++i) found.x[i] = as_float(column[(4 * four + i) * COLUMNS]);
        return found;
    }
    FERRUM_DEVICE static Four of_tokens(const Tokens& tokens, int) {
        Four found;
        for (int i = 0; i < 4; ++i) found.x[i] = as_float(tokens.x[i]);
        return found;
    }
    FERRUM_DEVICE static Four first(const Four& given, int count) {
        Four found;
        for (int i = 0; i < 4; ++i) found.x[i] = i < count ? given.x[i] : 0.0f;
        return found;
    }
    FERRUM_DEVICE static float factor(float x) { return x; }
    FERRUM_DEVICE static float decayed(float out, float decay) { return out * decay; }

    template <int N, class Factors>
    FERRUM_DEVICE static void add(float (&sum)[N], const Factors& factors, int four, const Four& b, bool) {
        Few<float, N> terms[4];
        factors.four(4 * four, terms);
        for (int k = 0; k < 4; ++k)
            for (int n = 0; n < N; ++n) sum[n] = fused(terms[k].x[n], b.x[k], sum[n]);
    }
};

// ---- bfloat16: pairs, the second term of which is added first; numbers below 2^-126 count as zeros ----

struct bfloat16 : formats::bfloat16 {
    using Factor = float;
    using Sum = float;
    struct Four {
        unsigned pairs[2];
    };

    template <int COLUMNS>
    FERRUM_DEVICE static Four of_words(const unsigned* column, int four) {
        return {{column[2 * four * COLUMNS], column[(2 * four + 1) * COLUMNS]}};
    }
    FERRUM_DEVICE static Four of_tokens(const Tokens& tokens, int index) {
        Four found;
        for (int i = 0; i < 2; ++i) {
            const unsigned low = tokens.x[2 * i], high = tokens.x[2 * i + 1];
            found.pairs[i] = index == 0 ? (low & 0xffffu) | high << 16 : low >> 16 | (high & 0xffff0000u);
        }
        return found;
    }
    FERRUM_DEVICE static Four first(const Four& given, int count) {
        return {{count == 1 ? given.pairs[0] & 0xffffu : given.pairs[0],
                 count == 3 ? given.pairs[1] & 0xffffu : count < 3 ? 0u : given.pairs[1]}};
    }
    FERRUM_DEVICE static float factor(float x) { return input_bf16(x); }
    FERRUM_DEVICE static float decayed(float out, float decay) { return fused_flushed(out, flushed(decay), -0.0f); }

    FERRUM_DEVICE static bool has_small(unsigned pair) { return (pair & 0x7f80u) == 0 || (pair & 0x7f800000u) == 0; }

    // Sums are computed as if there were no small numbers; if one may have been, those that are `wanted` are computed
    // again, with the rule for them.
    template <int N, class Factors>
    FERRUM_DEVICE static void add(float (&sum)[N], const Factors& factors, int four, const Four& b, bool wanted) {
        constexpr int kOrder[4] = {1, 0, 3, 2};
        Few<float, N> terms[4];
        factors.four(4 * four, terms);
        bool small = has_small(b.pairs[0]) || has_small(b.pairs[1]);
        float numbers[4], found[N];
        for (int k = 0; k < 4; ++k) numbers[k] = as_float(k % 2 == 0 ? b.pairs[k / 2] << 16 : b.pairs[k / 2] & 0xffff0000u);
        for (int n = 0; n < N; ++n) {
            found[n] = sum[n];
            for (int k = 0; k < 4; ++k) {
                found[n] = fused(terms[kOrder[k]].x[n], numbers[kOrder[k]], found[n]);
                small = small || magnitude(found[n]) <= kLeast;
            }
        }
        if (small && wanted) {
            for (int n = 0; n < N; ++n) {
                found[n] = sum[n];
                for (int k = 0; k < 4; ++k)
                    found[n] = fused_flushed(terms[kOrder[k]].x[n], flushed(numbers[kOrder[k]]), found[n]);
            }
        }
        for (int n = 0; n < N; ++n) sum[n] = found[n];
    }
};

// ---- int8: exact sums of codes ----

struct int8 : formats::int8 {
    using Factor = unsigned;  // four codes of a query
    using Sum = int;
    struct Four {
        unsigned codes;
    };

    template <int COLUMNS>
    FERRUM_DEVICE static Four of_words(const unsigned* column, int four) {
        return {column[four * COLUMNS]};
    }
    FERRUM_DEVICE static Four of_tokens(const Tokens& tokens, int index) {
        unsigned codes = 0;
        for (int i = 0; i < 4; ++i) codes |= (tokens.x[i] >> (8 * index) & 0xffu) << (8 * i);
        return {codes ^ kKeyFlip};
    }
    FERRUM_DEVICE static Four first(const Four& given, int) { return given; }  // weights of other tokens are 0

    template <int N, class Factors>
    FERRUM_DEVICE static void add(int (&sum)[N], const Factors& factors, int four, const Four& b, bool) {
        const Few<unsigned, N> codes = factors.one(four);
        for (int n = 0; n < N; ++n) sum[n] = dot4(codes.x[n], b.codes, sum[n]);
    }
};

}  // namespace terms

// ---- The sums of a step's values, continued from out * decay ----

template <class F, int N>
struct Mixed {
    float sum[N];

    FERRUM_DEVICE void begin(int n, float out, float decay) { sum[n] = F::decayed(out, decay); }
    template <class Factors>
    FERRUM_DEVICE void add(const Factors& weights, int four, const typename F::Four& values) {
        F::template add<N>(sum, weights, four, values, true);
    }
    FERRUM_DEVICE float result(int n, float) const { return sum[n]; }
};

// Weights are 14 bits: the words of their upper 7, then those of their lower 7.
template <int N>
struct Mixed<terms::int8, N> {
    float start[N];
    int upper[N] = {}, lower[N] = {};

    FERRUM_DEVICE void begin(int n, float out, float decay) {
        start[n] = out * decay;
        upper[n] = lower[n] = 0;
    }
    template <class Factors>
    FERRUM_DEVICE void add(const Factors& weights, int four, const terms::int8::Four& values) {
        terms::int8::add<N>(upper, weights, four, values, true);
        terms::int8::add<N>(lower, weights, kStep / 4 + four, values, true);
    }
    FERRUM_DEVICE float result(int n, float factor) const {
        return fused(static_cast<float>(upper[n] * 128 + lower[n]), factor, start[n]);
    }
};

// Add the values of `count` tokens, of which `values` gives four at a time.
template <class F, int N, class Factors, class Values>
FERRUM_DEVICE void add_values(Mixed<F, N>& mixed, const Factors& weights, int first, int count, Values values) {
    for (int four = 0; four < count / 4; ++four) mixed.add(weights, first / 4 + four, values(four));
    if (count > 0 && count % 4 != 0) mixed.add(weights, first / 4 + count / 4, F::first(values(count / 4), count % 4));
}

using Terms = terms::FERRUM_FORMAT;

}  // namespace ferrum::cuda
