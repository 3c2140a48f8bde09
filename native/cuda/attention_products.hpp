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

    FERRUM_DEVICE ByTerm from(int k) const { return {at + k * stride, stride}; }
    FERRUM_DEVICE Few<T, N> one(int k) const { return few<N>(at + k * stride); }
    FERRUM_DEVICE void four(int k, Few<T, N> (&terms)[4]) const {
        for (int i = 0; i < 4; ++i) terms[i] = one(k + i);
    }
};

// The factors of one row, term after term.
template <class T>
struct ByRow {
    const T* at;

    FERRUM_DEVICE ByRow from(int k) const { return {at + k}; }
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
    static constexpr int kTerms = 1;  // of a factor
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

    // Add COUNT fours of terms from `four` on; `values` gives the other factors.
    template <int COUNT, int N, class Factors, class Values>
    FERRUM_DEVICE static void add(float (&sum)[N], const Factors& factors, int four, Values values, bool) {
        for (int i = 0; i < COUNT; ++i) {
            Few<float, N> terms[4];
            factors.four(4 * (four + i), terms);
            const Four b = values(four + i);
            for (int k = 0; k < 4; ++k)
                for (int n = 0; n < N; ++n) sum[n] = fused(terms[k].x[n], b.x[k], sum[n]);
        }
    }
};

// ---- bfloat16: pairs, the second term of which is added first; numbers below 2^-126 count as zeros ----

struct bfloat16 : formats::bfloat16 {
    static constexpr int kTerms = 1;  // of a factor
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
            found.pairs[i] = (low >> (16 * index) & 0xffffu) | high >> (16 * index) << 16;
        }
        return found;
    }
    FERRUM_DEVICE static Four first(const Four& given, int count) {
        constexpr unsigned kUpper = kEmpty & 0xffff0000u;
        return {{count == 1 ? (given.pairs[0] & 0xffffu) | kUpper : given.pairs[0],
                 count == 3 ? (given.pairs[1] & 0xffffu) | kUpper : count < 3 ? kEmpty : given.pairs[1]}};
    }
    FERRUM_DEVICE static float factor(float x) { return input_bf16(x); }
    FERRUM_DEVICE static float decayed(float out, float decay) { return fused_flushed(out, flushed(decay), -0.0f); }

    // Bits of kSmall are set if a number of the pair is below 2^-126: its exponent less 1 is then below 0.
    static constexpr unsigned kSmall = 0x80008000u;
    FERRUM_DEVICE static unsigned marks(unsigned pair) { return (pair & 0x7f807f80u) - 0x00800080u; }
    FERRUM_DEVICE static float number(const Four& b, int k) {
        return as_float(k % 2 == 0 ? b.pairs[k / 2] << 16 : b.pairs[k / 2] & 0xffff0000u);
    }

    // Sums are computed as if there were no small numbers. If one may have been, those that are `wanted` are computed
    // again, with the rule for them.
    template <int COUNT, int N, class Factors, class Values>
    FERRUM_DEVICE static void add(float (&sum)[N], const Factors& factors, int four, Values values, bool wanted) {
        float before[N];
        for (int n = 0; n < N; ++n) before[n] = sum[n];
        bool small = false;
        unsigned marked = 0;
        for (int i = 0; i < COUNT; ++i) {
            Few<float, N> terms[4];
            factors.four(4 * (four + i), terms);
            const Four b = values(four + i);
            marked |= marks(b.pairs[0]) | marks(b.pairs[1]);
            for (int k = 0; k < 4; ++k)
                for (int n = 0; n < N; ++n) {
                    sum[n] = fused(terms[k ^ 1].x[n], number(b, k ^ 1), sum[n]);
                    small = small | (magnitude(sum[n]) <= kLeast);
                }
        }
        if (!((small | ((marked & kSmall) != 0)) & wanted)) return;
        for (int n = 0; n < N; ++n) sum[n] = before[n];
        FERRUM_ROLLED
        for (int i = four; i < four + COUNT; ++i) {
            Few<float, N> terms[4];
            factors.four(4 * i, terms);
            const Four b = values(i);
            for (int k = 0; k < 4; ++k)
                for (int n = 0; n < N; ++n) sum[n] = fused_flushed(terms[k ^ 1].x[n], flushed(number(b, k ^ 1)), sum[n]);
        }
    }
};

// ---- int8: exact sums of codes ----

struct int8 : formats::int8 {
    static constexpr int kTerms = 4;  // of a factor
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

    template <int COUNT, int N, class Factors, class Values>
    FERRUM_DEVICE static void add(int (&sum)[N], const Factors& factors, int four, Values values, bool) {
        for (int i = 0; i < COUNT; ++i) {
            const Few<unsigned, N> codes = factors.one(four + i);
            const unsigned b = values(four + i).codes;
            for (int n = 0; n < N; ++n) sum[n] = dot4(codes.x[n], b, sum[n]);
        }
    }
};

}  // namespace terms

// Add `count` fours of terms; `values` gives the other factors of each.
template <class F, int N, class Factors, class Values>
FERRUM_DEVICE void add_terms(typename F::Sum (&sum)[N], const Factors& factors, int count, Values values, bool wanted) {
    constexpr int kTogether = 4;
    int four = 0;
    for (; four + kTogether <= count; four += kTogether) F::template add<kTogether, N>(sum, factors, four, values, wanted);
    for (; four < count; ++four) F::template add<1, N>(sum, factors, four, values, wanted);
}

// ---- The sums of a step's values, continued from out * decay ----

template <class F, int N>
struct Mixed {
    float sum[N];

    FERRUM_DEVICE void begin(int n, float out, float decay) { sum[n] = F::decayed(out, decay); }
    template <class Factors, class Values>
    FERRUM_DEVICE void add(const Factors& weights, int count, Values values) {
        add_terms<F, N>(sum, weights, count, values, true);
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
    template <class Factors, class Values>
    FERRUM_DEVICE void add(const Factors& weights, int count, Values values) {
        const Factors lowers = weights.from(kStep / 4);
        for (int four = 0; four < count; ++four) {
            terms::int8::add<1, N>(upper, weights, four, values, true);
            terms::int8::add<1, N>(lower, lowers, four, values, true);
        }
    }
    FERRUM_DEVICE float result(int n, float factor) const {
        return fused(static_cast<float>(upper[n] * 128 + lower[n]), factor, start[n]);
    }
};

// Add the values of `count` tokens, of which `values` gives four at a time.
template <class F, int N, class Factors, class Values>
FERRUM_DEVICE void add_values(Mixed<F, N>& mixed, const Factors& weights, int count, Values values) {
    mixed.add(weights, count / 4, values);
    if (count % 4 == 0) return;
    const int last = count / 4;
    mixed.add(weights.from(last * (4 / F::kTerms)), 1, [&](int) { return F::first(values(last), count % 4); });
}

using Terms = terms::FERRUM_FORMAT;

}  // namespace ferrum::cuda
