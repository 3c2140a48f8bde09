// Quantisation of a float matrix to integers in groups, directly into panels, with the bits of quant/int8.py and
// quant/int4.py, which explain the method.
//
// A vector has one input of kLanes outputs. So plain vector operations reduce a group, and its codes are in the order
// of the panel's words.
#include "grouping.hpp"
#include "tier.hpp"
#include "transpose.hpp"

namespace ferrum::FERRUM_TIER {

namespace {

// A group of kLanes outputs: inputs and results.
template <int GROUP>
struct Block {
    vf x[GROUP];       // [k][lane]
    vi stored[GROUP];  // codes as in a panel
    vf scale;
    vh half;  // the scale in f16
    vi zero;  // zero point
};

// Magnitude bits: as integers they have the same order, with NaN the largest, so the maximum of a group propagates NaN.
vi magnitude(vf x) { return (vi)x & 0x7fffffff; }
vi finite(vf x) { return magnitude(x) < 0x7f800000; }

vf select(vi mask, vf yes, vf no) { return (vf)(((vi)yes & mask) | ((vi)no & ~mask)); }
vf reciprocal(vf x) { return select(x == 0.0f, vf{}, 1.0f / x); }
vi whole(vf x) { return __builtin_convertvector(x, vi); }
vf bounded(vf x, float low, float high) {
    const vf above = select(x < low, spread(low), x);
    return select(above > high, spread(high), above);
}

// Convert to f16, to the nearest, ties to even.
vh narrow_halves(vf x) {
#if defined(__AVX512VNNI__)
    return (vh)_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__AVX2__)
    return (vh)_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    const vu sign = ((vu)x >> 16) & 0x8000u, size = (vu)magnitude(x);
    const vu normal = (size + 0xfffu + ((size >> 13) & 1u) - 0x38000000u) >> 13;
    const vu small = (vu)((vf)size + 0.5f) - 0x3f000000u;  // the sum keeps multiples of the least half
    const vu large = 0x7c00u | ((vu)(size > 0x7f800000u) & 0x200u);
    const vu half = size < 0x38800000u ? small : size < 0x47800000u ? normal : large;
    return __builtin_convertvector(half | sign, vh);
#endif
}

// Round the scale to f16 and return its error code. A refused group gets no codes, because no integers represent it.
template <int GROUP>
Rounding set_scale(Block<GROUP>& b, vf exact) {
    b.half = narrow_halves(exact);
    b.scale = widen_halves(reinterpret_cast<const std::byte*>(&b.half));
    if (lanes_where(~finite(b.scale)) == 0) return Rounding::fine;
    return lanes_where(~finite(exact)) != 0 ? Rounding::not_finite : Rounding::too_large;
}

// Round to the nearest integer, halves away from zero.
vi round_half_away(vf x) {
    const vi cut = whole(x);
    return cut + whole(2.0f * (x - __builtin_convertvector(cut, vf)));
}

template <int GROUP>
Rounding round_int8(Block<GROUP>& b) {
    vi largest{};
    for (int64_t k = 0; k < GROUP; ++k) {
        const vi size = magnitude(b.x[k]);
        largest = size > largest ? size : largest;
    }
    const vf exact = (vf)largest / 127.0f;
    const Rounding found = set_scale(b, exact);
    if (found != Rounding::fine) return found;
    const vf inverse = reciprocal(select(b.scale == 0.0f, vf{}, exact));
    for (int64_t k = 0; k < GROUP; ++k) b.stored[k] = round_half_away(b.x[k] * inverse) + 128;
    return found;
}

// The sum over the group of (x - code * scale)^2, as a binary tree; codes are `stored` - 8.
template <int GROUP>
vf squared_error(const Block<GROUP>& b, const vi* stored, vf scale) {
    vf terms[GROUP];
    const int64_t half = GROUP / 2;
    const auto term = [&](int64_t k) {
        const vf difference = b.x[k] - __builtin_convertvector(stored[k] - 8, vf) * scale;
        return difference * difference;
    };
    for (int64_t k = 0; k < half; ++k) terms[k] = term(k) + term(k + half);
    for (int64_t left = half / 2; left > 0; left /= 2)
        for (int64_t k = 0; k < left; ++k) terms[k] += terms[k + left];
    return terms[0];
}

// The number of largest magnitude of each lane, the first of equals.
template <int GROUP>
vf signed_largest(const Block<GROUP>& b) {
    vf best = b.x[0];
    for (int64_t k = 1; k < GROUP; ++k) best = select(magnitude(b.x[k]) > magnitude(best), b.x[k], best);
    return best;
}

// Try another scale; replace it in lanes whose squared error is below `least`.
template <int GROUP>
void try_scale(Block<GROUP>& b, float multiple, vf plain, vf& least) {
    const vh half = narrow_halves(plain * multiple);
    const vf scale = widen_halves(reinterpret_cast<const std::byte*>(&half)), inverse = reciprocal(scale);
    vi stored[GROUP];
    for (int64_t k = 0; k < GROUP; ++k) stored[k] = whole(bounded(nearest(b.x[k] * inverse), -8.0f, 7.0f)) + 8;
    const vf error = squared_error(b, stored, scale);
    const vi better = error < least;
    least = select(better, error, least);
    const vh chosen = __builtin_convertvector(better, vh);
    b.half = (half & chosen) | (b.half & ~chosen);
    for (int64_t k = 0; k < GROUP; ++k) b.stored[k] = (stored[k] & better) | (b.stored[k] & ~better);
}

template <int GROUP>
Rounding round_int4(Block<GROUP>& b) {
    const vf exact = signed_largest(b) / -8.0f;
    const Rounding found = set_scale(b, exact);
    if (found != Rounding::fine) return found;
    const vf inverse = reciprocal(select(b.scale == 0.0f, vf{}, exact)), plain = b.scale;
    for (int64_t k = 0; k < GROUP; ++k) b.stored[k] = whole(bounded(b.x[k] * inverse + 8.5f, 0.0f, 15.0f));
    vf least = squared_error(b, b.stored, plain);
    for (const float multiple : {0.97f, 0.94f, 0.88f, -1.12f}) try_scale(b, multiple, plain, least);
    return found;
}

template <int GROUP>
Rounding round_int4_zero_points(Block<GROUP>& b) {
    vf smallest{}, largest{}, spoiled{};
    for (int64_t k = 0; k < GROUP; ++k) {
        smallest = select(b.x[k] < smallest, b.x[k], smallest);
        largest = select(b.x[k] > largest, b.x[k], largest);
        spoiled += b.x[k] * 0.0f;  // stays 0, except for infinities and NaN
    }
    const Rounding found = set_scale(b, (largest - smallest) / 15.0f + spoiled);
    if (found != Rounding::fine) return found;
    const vf inverse = reciprocal(b.scale), zero = bounded(nearest(-smallest * inverse), 0.0f, 15.0f);
    for (int64_t k = 0; k < GROUP; ++k) b.stored[k] = whole(bounded(nearest(b.x[k] * inverse) + zero, 0.0f, 15.0f));
    b.zero = whole(zero);
    return found;
}

// Words of the panel's rows: a word is four inputs of one output, or eight of int4.
template <int GROUP>
void store_words(const Block<GROUP>& b, bool nibbles, std::byte* to) {
    const int64_t quads = GROUP / 4, step = nibbles ? 2 : 1;
    const auto word = [&](int64_t quad) {
        const vi* codes = b.stored + quad * 4;
        return codes[0] | codes[1] << 8 | codes[2] << 16 | codes[3] << 24;
    };
    for (int64_t quad = 0; quad < quads; quad += step, to += kPanel * 4)
        store(to, nibbles ? word(quad) | word(quad + 1) << 4 : word(quad));
}

void store_lanes(std::byte* to, vh v, int64_t lanes) { std::memcpy(to, &v, static_cast<size_t>(lanes) * 2); }

// kLanes elements of a row with `left` more, as f32; zeros after its end.
vf widen_row(Format format, const std::byte* from, int64_t left) {
    if (format == Format::f32) return left > 0 ? load_part(reinterpret_cast<const float*>(from), left) : vf{};
    vh part{};
    std::memcpy(&part, from, static_cast<size_t>(most(0, least(left, kLanes))) * 2);
    if (format == Format::f16) return widen_halves(reinterpret_cast<const std::byte*>(&part));
    return (vf)(__builtin_convertvector(part, vu) << 16);
}

// Inputs [k, k + group) of kLanes outputs.
template <int GROUP>
void load_block(Block<GROUP>& b, const MatrixArgs& m, int64_t output, int64_t k) {
    const int64_t item = item_bytes(m.format);
    for (int64_t part = 0; part < GROUP; part += kLanes) {
        const std::byte* from = m.values + (output * m.inputs + k + part) * item;
        turn_rows(m.outputs - output, reinterpret_cast<vf(&)[kLanes]>(b.x[part]),
                  [&](int64_t row) { return widen_row(m.format, from + row * m.inputs * item, m.inputs - k - part); });
    }
}

template <int GROUP>
Rounding round_block(Block<GROUP>& b, const Grouping& g) {
    if (g.zero_points) return round_int4_zero_points(b);
    return g.nibbles ? round_int4(b) : round_int8(b);
}

template <int GROUP>
Rounding quantize_panels(const MatrixArgs& m, const Grouping& g, int64_t panel_begin, int64_t panel_end, std::byte* panels) {
    Rounding worst = Rounding::fine;
    Block<GROUP> block{};
    for (int64_t panel = panel_begin; panel < panel_end; ++panel)
        for (int64_t k = 0; k < m.inputs; k += GROUP) {
            std::byte* at = panels + (panel * ceil_divide(m.inputs, GROUP) + k / GROUP) * g.bytes;
            std::byte* scales = at + g.code_bytes;
            std::memset(scales, 0, static_cast<size_t>(g.bytes - g.code_bytes));
            for (int64_t lane = 0; lane < kPanel; lane += kLanes) {
                const int64_t output = panel * kPanel + lane, lanes = most(0, least(kLanes, m.outputs - output));
                load_block(block, m, output, k);
                const Rounding found = round_block(block, g);
                worst = found > worst ? found : worst;
                store_words(block, g.nibbles, at + lane * 4);
                store_lanes(scales + lane * 2, block.half, lanes);
                if (g.zero_points) store_lanes(scales + kPanel * 2 + lane * 2, __builtin_convertvector(block.zero, vh), lanes);
            }
        }
    return worst;
}

}  // namespace

Rounding quantize(const MatrixArgs& m, Format format, int64_t panel_begin, int64_t panel_end, std::byte* panels) {
    const Grouping g = grouping(format);
    switch (g.inputs) {
        case 32: return quantize_panels<32>(m, g, panel_begin, panel_end, panels);
        case 64: return quantize_panels<64>(m, g, panel_begin, panel_end, panels);
        default: return quantize_panels<128>(m, g, panel_begin, panel_end, panels);
    }
}

}  // namespace ferrum::FERRUM_TIER
