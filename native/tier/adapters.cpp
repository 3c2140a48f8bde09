// Products of adapters: by a few rows of a matrix, whose inputs are not rounded, and back to all outputs.
#include "activations.hpp"
#include "tier.hpp"

namespace ferrum::FERRUM_TIER {

namespace {

constexpr int64_t kLine = 64;                 // bytes that memory gives at once
constexpr int64_t kAhead = 8192;              // bytes that a thread reads while a line comes from memory
constexpr int kSums = 4 * kVirtual;           // vectors of the 64 accumulators of a dot product
constexpr int kDots = kLanes == 16 ? 4 : 1;   // dot products at a time whose sums fit in registers
constexpr int kExpanded = kLanes == 16 ? 4 : 2;  // rows at a time

template <Format F>
constexpr int64_t kItem = F == Format::f32 ? 4 : 2;

// kLanes elements from `i` on, as floats.
template <Format F>
inline vf widened(const std::byte* from, int64_t i) {
    from += i * kItem<F>;
    if constexpr (F == Format::f32) return load<vf>(from);
    if constexpr (F == Format::f16) return widen_halves(from);
    return (vf)(widen_words(from) << 16);
}

// The same of which only `left` are there; the others are 0.
template <Format F>
inline vf widened_part(const std::byte* from, int64_t i, int64_t left) {
    if (left >= kLanes) return widened<F>(from, i);
    std::byte part[kLanes * 4] = {};
    if (left > 0) std::memcpy(part, from + i * kItem<F>, static_cast<size_t>(left * kItem<F>));
    return widened<F>(part, 0);
}

// N dot products of a row. In the last 64 numbers every accumulator adds its term, which may be that of zeros. Rows of the
// matrix that come `ahead` bytes later are prefetched; 0: none.
template <Format F, int N>
inline void dot_rows(const std::byte* matrix, int64_t depth, int64_t ahead, const float* x, float (&out)[N]) {
    vf sums[N][kSums] = {};
    const int64_t bytes = depth * kItem<F>;
    int64_t i = 0;
    for (; i + kSums * kLanes <= depth; i += kSums * kLanes)
#pragma GCC unroll 16
        for (int part = 0; part < kSums; ++part) {
            const vf inputs = load<vf>(x + i + part * kLanes);
#pragma GCC unroll 4
            for (int n = 0; n < N; ++n) {
                sums[n][part] = fused(widened<F>(matrix + n * bytes, i + part * kLanes), inputs, sums[n][part]);
                if (ahead > 0 && part * kLanes * kItem<F> % kLine == 0) prefetch(matrix + n * bytes + (i + part * kLanes) * kItem<F> + ahead);
            }
        }
    for (int part = 0; i < depth && part < kSums; ++part) {
        const int64_t at = i + part * kLanes, left = depth - at;
        const vf inputs = left > 0 ? load_part(x + at, left) : vf{};
        for (int n = 0; n < N; ++n)
            sums[n][part] = fused(widened_part<F>(matrix + n * bytes, at, left), inputs, sums[n][part]);
    }
    for (int n = 0; n < N; ++n) {
        vf total[kVirtual];
        for (int v = 0; v < kVirtual; ++v)
            total[v] = (sums[n][v] + sums[n][kVirtual + v]) + (sums[n][2 * kVirtual + v] + sums[n][3 * kVirtual + v]);
        out[n] = sum_lanes(total);
    }
}

template <Format F, int N>
inline void dot_some(const DotArgs& a, int64_t row, int64_t output, int64_t end) {
    float found[N];
    const int64_t bytes = a.depth * kItem<F>, ahead = a.prefetches && output + 2 * N <= end ? N * bytes : 0;
    dot_rows<F, N>(a.matrix + output * bytes, a.depth, ahead, a.x + a.rows[row] * a.depth, found);
    float* to = a.out + (a.in_rows ? a.rows[row] : row) * a.stride;
    for (int n = 0; n < N; ++n) to[a.columns != nullptr ? a.columns[output + n] : output + n] = found[n];
}

template <Format F>
void dots_of(const DotArgs& a, int64_t row_begin, int64_t row_end, int64_t begin, int64_t end) {
    int64_t output = begin;
    for (; output + kDots <= end; output += kDots)
        for (int64_t row = row_begin; row < row_end; ++row) dot_some<F, kDots>(a, row, output, end);
    for (; output < end; ++output)
        for (int64_t row = row_begin; row < row_end; ++row) dot_some<F, 1>(a, row, output, end);
}

// Change kLanes numbers of y, of which `left` are there, by the product z.
inline void change_part(const ExpandArgs& a, vf z, int64_t at, int64_t left, float* y) {
    vf changed = load_part(y + at, left);
    if (a.t != nullptr) {
        if (a.bias != nullptr) z += load_part(a.bias + at, left);
        changed = fused(z, spread(a.scale), changed);
    }
    if (a.factor != nullptr) changed = fused(changed, load_part(a.factor + at, left), load_part(a.offset + at, left));
    store_part(y + at, changed, left);
}

// Change N rows; `ahead` is a panel to prefetch, or null.
template <Format F, int N>
inline void expand_rows(const ExpandArgs& a, int64_t row, int64_t panel, const std::byte* ahead) {
    vf z[N][kPanelVectors] = {};
    const std::byte* b = a.b + panel * a.rank * kPanel * kItem<F>;
    for (int64_t j = 0; a.t != nullptr && j < a.rank; ++j)
#pragma GCC unroll 8
        for (int v = 0; v < kPanelVectors; ++v) {
            const vf column = widened<F>(b, j * kPanel + v * kLanes);
            if (ahead != nullptr && v * kLanes * kItem<F> % kLine == 0) prefetch(ahead + (j * kPanel + v * kLanes) * kItem<F>);
#pragma GCC unroll 4
            for (int n = 0; n < N; ++n) z[n][v] = fused(column, spread(a.t[(row + n) * a.stride + j]), z[n][v]);
        }
    for (int n = 0; n < N; ++n)
        for (int v = 0; v < kPanelVectors; ++v) {
            const int64_t at = panel * kPanel + v * kLanes, left = a.outputs - at;
            if (left > 0) change_part(a, z[n][v], at, left, a.y + a.rows[row + n] * a.outputs);
        }
}

template <Format F>
void expand_panels(const ExpandArgs& a, int64_t panel_begin, int64_t panel_end) {
    const int64_t bytes = a.rank * kPanel * kItem<F>, step = bytes > 0 ? ceil_divide(kAhead, bytes) : 0;
    for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
        const int64_t beyond = panel + step - panel_end;
        const std::byte* ahead = beyond < 0 ? a.b + (panel + step) * bytes : nullptr;
        if (beyond >= 0 && a.next != nullptr && panel_end - panel_begin > 1) ahead = a.next + beyond * bytes;
        int64_t row = 0;
        for (; row + kExpanded <= a.count; row += kExpanded) expand_rows<F, kExpanded>(a, row, panel, ahead);
        for (; row < a.count; ++row) expand_rows<F, 1>(a, row, panel, ahead);
    }
}

template <Format F>
void widen_row(const std::byte* from, int64_t count, float factor, float* out) {
    for (int64_t i = 0; i < count; i += kLanes)
        store_part(out + i, widened_part<F>(from, i, count - i) * spread(factor), count - i);
}

}  // namespace

void activate_all(const Activation& a, const float* x, const float* others, int64_t count, float* y) {
    for (int64_t i = 0; i < count; i += kLanes) {
        vf part = load_part(x + i, count - i);
        if (others == nullptr) {
            activate(a, &part, 1);
        } else {
            const vf other = load_part(others + i, count - i);
            gate(a, &part, &other, 1);
        }
        store_part(y + i, part, count - i);
    }
}

void dots(const DotArgs& a, int64_t row_begin, int64_t row_end, int64_t begin, int64_t end) {
    switch (a.format) {
        case Format::f32: return dots_of<Format::f32>(a, row_begin, row_end, begin, end);
        case Format::f16: return dots_of<Format::f16>(a, row_begin, row_end, begin, end);
        default: return dots_of<Format::bf16>(a, row_begin, row_end, begin, end);
    }
}

void expand(const ExpandArgs& a, int64_t panel_begin, int64_t panel_end) {
    switch (a.format) {
        case Format::f32: return expand_panels<Format::f32>(a, panel_begin, panel_end);
        case Format::f16: return expand_panels<Format::f16>(a, panel_begin, panel_end);
        default: return expand_panels<Format::bf16>(a, panel_begin, panel_end);
    }
}

void widen(Format format, const std::byte* from, int64_t count, float factor, float* out) {
    switch (format) {
        case Format::f32: return widen_row<Format::f32>(from, count, factor, out);
        case Format::f16: return widen_row<Format::f16>(from, count, factor, out);
        default: return widen_row<Format::bf16>(from, count, factor, out);
    }
}

}  // namespace ferrum::FERRUM_TIER
