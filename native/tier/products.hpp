// How one step of a product of floats goes, per format, and the one inner loop that they all share: the panels of a
// weight, the keys of a page, its values. step() takes an input spread over all lanes, step_each() spreads it itself.
//
// An output is one f32 accumulator that adds its terms in one fixed order. So its bits do not depend on rows, panels or
// threads. More accumulators hide the latency; k is never split. A step with more terms than an instruction adds has
// several parts: all accumulators take one part before the next, whose factors then need no registers.
#pragma once

#include "flush.hpp"
#include "math.hpp"

namespace ferrum::FERRUM_TIER {

// What a format says of numbers below 2^-126: kFlushes, they count as zeros; kNeedsMode, the processor does so only in a
// FlushMode; kSplits, see Bf16Pairs.
struct Unflushed {
    static constexpr bool kFlushes = false, kNeedsMode = false, kSplits = false;
    using Unsplit = void;
};

// f32: a word is one k.
struct F32 : Unflushed {
    static constexpr int kDepth = 1, kParts = 1;
    static constexpr int64_t kPanelStep = kPanel * 4;  // bytes per step of a panel
    static constexpr int64_t kItem = 4;
    using X = float;
    using W = vf;

    static W weight(const std::byte* at, int) { return load<vf>(at); }
    static vf spread_x(const X* x, int) { return spread(*x); }
    static vf step(vf total, W w, vf x) { return fused(w, x, total); }
    static vf step_each(vf total, W w, const X* x, int) { return fused_each(w, x, total); }
    static void pack(vf x, X* out) { store(out, x); }
};

// bf16: a word is the pair (k, k + 1). The term of k + 1 is added first, as the instruction of AVX-512 does.
#if defined(__AVX512BF16__)
struct Bf16 {
    static constexpr int kDepth = 2, kParts = 1;
    static constexpr bool kFlushes = true, kNeedsMode = false, kSplits = false;
    using Unsplit = void;
    static constexpr int64_t kPanelStep = kPanel * 4;
    static constexpr int64_t kItem = 2;
    using X = uint32_t;
    using W = vi;

    static W weight(const std::byte* at, int) { return load<vi>(at); }
    static W first_only(const std::byte* at) { return load<vi>(at) & 0xffff; }
    static vi spread_x(const X* x, int) { return spread(static_cast<int32_t>(*x)); }
    static vi spread_first(const X* x) { return spread_x(x, 0); }
    static vf step(vf total, W w, vi x) { return _mm512_dpbf16_ps(total, (__m512bh)w, (__m512bh)x); }
    static vf step_each(vf total, W w, const X* x, int) {
#if defined(FERRUM_SPREADS)
        asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(total) : "v"(w), "m"(*x));
        return total;
#else
        return step(total, w, spread_x(x, 0));
#endif
    }
    // The instruction flushes numbers below 2^-126 to 0, as the product does.
    static void pack(vf x, X* out) { store(out, (__m256i)_mm512_cvtneps_pbh(x)); }
};
#else
// The inputs k and k + 1.
struct Bf16Pair {
    float input[2];
};

// Without bf16 arithmetic a pair is two f32 terms. Products of bf16 are exact in f32 unless they leave its range, so a
// product and a sum (SPLIT) have fused bits, and a tile in which a number left the range is computed again without.
template <bool SPLIT>
struct Bf16Pairs {
    static constexpr int kDepth = 2, kParts = 2;
    static constexpr bool kFlushes = true, kNeedsMode = kHasFlushMode, kSplits = SPLIT;
    using Unsplit = Bf16Pairs<false>;
    static constexpr int64_t kPanelStep = kPanel * 4;
    static constexpr int64_t kItem = 2;
    using X = Bf16Pair;
    using W = vf;

    static W weight(const std::byte* at, int part) {
        const vi pair = load<vi>(at);
        return (vf)(part == 0 ? pair & static_cast<int32_t>(0xffff0000) : pair << 16);
    }
    static W first_only(const std::byte* at) { return weight(at, 1); }
    static vf spread_x(const X* x, int part) { return spread(x->input[1 - part]); }
    static vf spread_first(const X* x) { return spread(x->input[0]); }
    static vf step(vf total, W w, vf x) {
        if (!SPLIT) return fused_flushed(w, x, total);
        return kFuses ? fused(w, x, total) : w * x + total;
    }
    static vf step_each(vf total, W w, const X* x, int part) {
#if defined(FERRUM_SPREADS)
        return fused_each(w, &x->input[1 - part], total);
#else
        return step(total, w, spread_x(x, part));
#endif
    }
    static void pack(vf x, X* out) {
        const vi counts = ((vi)x & 0x7f800000) != 0;  // subnormals count as zeros before they are rounded
        store(out, upper_bf16(x) & 0xffff0000u & (vu)(counts | static_cast<int32_t>(0x80000000)));
    }
};

using Bf16 = Bf16Pairs<kHasFlushMode && (!kFuses || kFlushesEarly)>;
#endif

// f16: a panel's step is 32 outputs of one k in halves; products are of f32, inputs as they are (they may pass 65504).
struct F16 : Unflushed {
    static constexpr int kDepth = 1, kParts = 1;
    static constexpr int64_t kPanelStep = kPanel * 2;
    static constexpr int64_t kItem = 2;
    using X = float;
    using W = vf;

    static W weight(const std::byte* at, int) { return widen_halves(at); }
    static vf spread_x(const X* x, int) { return spread(*x); }
    static vf step(vf total, W w, vf x) { return fused(w, x, total); }
    static vf step_each(vf total, W w, const X* x, int) { return fused_each(w, x, total); }
    static void pack(vf x, X* out) { store(out, x); }
};

// The vectors of a step, adjacent.
template <class P>
struct SideBySide {
    static constexpr int64_t at(int vector) { return vector * kLanes * P::kItem * P::kDepth; }
};

// Add one step to MR x NV accumulators: weight vectors at `vectors` from w on, row r's word at x[r * XR].
template <class P, int MR, int NV, int XR, class Vectors = SideBySide<P>>
inline void add_step(vf (&total)[MR][NV], const std::byte* w, const typename P::X* x, Vectors vectors = {}) {
#pragma GCC unroll 2
    for (int part = 0; part < P::kParts; ++part) {
        typename P::W weight[NV];
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) weight[v] = P::weight(w + vectors.at(v), part);
#pragma GCC unroll 12
        for (int r = 0; r < MR; ++r) {
            const auto all = P::spread_x(x + r * XR, part);
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v)
                total[r][v] = spread_each(r, NV) ? P::step_each(total[r][v], weight[v], x + r * XR, part)
                                                 : P::step(total[r][v], weight[v], all);
        }
    }
}

// Cache lines of NV vectors, at least one.
template <int NV>
constexpr int64_t kLinesOf = most(1, NV * kLanes * 4 / 64);

// The prefetch of a loop: in each of its first `steps` steps, `stride` bytes ahead, as many lines as the step reads, at
// this distance.
struct Ahead {
    const std::byte* from;
    int64_t stride, steps, apart = 64;

    template <int NV>
    void go(int64_t step) const {
        if (step >= steps) return;
#pragma GCC unroll 4
        for (int64_t line = 0; line < kLinesOf<NV>; ++line) prefetch(from + step * stride + line * apart);
    }
};

// Add `steps` steps. Step s of the weight is at w + s * stride; row r's word of it at x[s * XS + r * XR].
template <class P, int MR, int NV, int XS, int XR, class Vectors = SideBySide<P>>
inline void accumulate(vf (&total)[MR][NV], const std::byte* w, int64_t stride, const typename P::X* x, int64_t steps,
                       const Ahead& ahead, Vectors vectors = {}) {
    vf sum[MR][NV];  // a local array stays in registers; the caller's would be written at every step
#pragma GCC unroll 12
    for (int r = 0; r < MR; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) sum[r][v] = total[r][v];
    for (int64_t s = 0; s < steps; ++s) {
        ahead.go<NV>(s);
        add_step<P, MR, NV, XR>(sum, w, x, vectors);
        w += stride;
        x += XS;
    }
#pragma GCC unroll 12
    for (int r = 0; r < MR; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) total[r][v] = sum[r][v];
}

}  // namespace ferrum::FERRUM_TIER
