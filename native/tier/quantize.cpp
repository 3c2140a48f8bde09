// Quantisation of a float matrix to blocks, directly into panels, with the bits of quant/block_quantizers.py.
#include "block_format.hpp"
#include "superblocks.hpp"
#include "tier.hpp"
#include "transpose.hpp"

namespace ferrum::FERRUM_TIER {

namespace {

// QUICK and THOROUGH of quant/scale_search.py.
constexpr float kQuick4[] = {-8, -8.5f, -7.25f, -8.75f, -7.75f, -7}, kQuick5[] = {-16, -15, -16.5f, -14, -15.75f, -15.25f};
constexpr float kQuick6[] = {-32, -31, -30, -29, -28, -27};
constexpr float kFull4[] = {-6.5f, -6.75f, -7, -7.25f, -7.5f, -7.75f, -8, -8.25f, -8.5f, -8.75f, -9, -9.25f};
constexpr float kFull5[] = {-13.25f, -13.5f, -13.75f, -14, -14.25f, -14.5f, -14.75f, -15, -15.25f,
                            -15.5f, -15.75f, -16, -16.25f, -16.5f, -16.75f, -17, -17.25f};
constexpr float kFull6[] = {-26, -26.5f, -27, -27.5f, -28, -28.5f, -29, -29.5f, -30, -30.5f, -31, -31.5f, -32, -32.5f};
constexpr float kFull8[] = {-127, -126.5f, -126, -125.5f};
constexpr Range kAffine4[] = {{0, 0}, {-1, 2}, {2, 0}, {0, 1}, {-4, 1}, {1, 0}, {1, -4}, {2, -1},  // the quick ones
                              {0, 2}, {2, 2}, {-4, -4}, {0, -1}, {-1, 0}, {-1, -3}, {-4, -1}, {1, 2},
                              {2, 1}, {3, 0}, {0, 3}, {-1, 1}, {1, 1}, {-4, 0}, {-3, -1}};
constexpr Range kAffine5[] = {{0, 0}, {-3, 1}, {1, -1}, {-1, 1}, {-4, -4}, {-1, -4}, {-4, -1}, {1, 0},  // the quick ones
                              {0, 2}, {2, 2}, {0, -1}, {-1, 0}, {-1, -3}, {1, 2}, {2, 1}, {3, 0},
                              {0, 3}, {1, 1}, {-4, 0}, {-3, -1}};
constexpr int kQuickAffine = 8;
constexpr int kSteps[] = {-1, 1, -2, 2};

template <class T, size_t COUNT>
constexpr int count_of(const T (&)[COUNT]) { return static_cast<int>(COUNT); }

constexpr Search search_of(int bits, bool thorough) {
    const Range* affine = bits == 4 ? kAffine4 : kAffine5;
    const int ranges = !thorough ? kQuickAffine : bits == 4 ? count_of(kAffine4) : count_of(kAffine5);
    const float* full = bits == 4 ? kFull4 : bits == 5 ? kFull5 : bits == 6 ? kFull6 : kFull8;
    const int fulls = bits == 4 ? count_of(kFull4) : bits == 5 ? count_of(kFull5) : bits == 6 ? count_of(kFull6) : count_of(kFull8);
    if (thorough) return {full, fulls, affine, ranges, 3, kSteps, count_of(kSteps)};
    return {bits == 4 ? kQuick4 : bits == 5 ? kQuick5 : kQuick6, count_of(kQuick4), affine, ranges, 0, nullptr, 0};
}

// What a block of kLanes outputs becomes.
struct Stored {
    vf d, m;
    vf sub[16], sub_m[16];
    vi codes[256];
};

// kLanes elements of a row with `left` more, as f32; zeros after its end.
vf widen_row(Format format, const std::byte* from, int64_t left) {
    if (format == Format::f32) return left > 0 ? load_part(reinterpret_cast<const float*>(from), least(left, kLanes)) : vf{};
    vh part{};
    std::memcpy(&part, from, static_cast<size_t>(most(0, least(left, kLanes))) * 2);
    if (format == Format::f16) return widen_halves(reinterpret_cast<const std::byte*>(&part));
    return (vf)(__builtin_convertvector(part, vu) << 16);
}

// Inputs [k, k + count) of kLanes outputs.
void load_inputs(vf* x, const MatrixArgs& m, int64_t output, int64_t k, int64_t count) {
    const int64_t item = item_bytes(m.format);
    for (int64_t part = 0; part < count; part += kLanes) {
        const std::byte* from = m.values + (output * m.inputs + k + part) * item;
        turn_rows(m.outputs - output, reinterpret_cast<vf(&)[kLanes]>(x[part]),
                  [&](int64_t row) { return widen_row(m.format, from + row * m.inputs * item, m.inputs - k - part); });
    }
}

template <int N>
void store_codes(const vf* codes, int offset, vi* out) {
    for (int k = 0; k < N; ++k) out[k] = whole(codes[k]) + offset;
}

// Replace scale and codes by fitted ones where these have a smaller error.
void improve(const Group<32>& group, vf& scale, vf (&codes)[32], vf fitted, float low, float high, int rounds) {
    vf least = group.error(codes, scale, vf{}), tried[32];
    for (int again = 0; again <= rounds; ++again) {
        const vf other = half(fitted);
        group.codes(other, vf{}, low, high, tried);
        const vf error = group.error(tried, other, vf{});
        const vi better = error < least;
        scale = select(better, other, scale), least = select(better, error, least);
        for (int k = 0; k < 32; ++k) codes[k] = select(better, tried[k], codes[k]);
        if (again < rounds) fitted = ratio(group.products(tried), group.squares(tried));
    }
}

Rounding round_q8_0(const Group<32>& group, const Search& search, Stored& out) {
    const vf exact = absolute(group.signed_largest()) / 127.0f + group.spoiled();
    const Rounding found = fault_of(exact);
    if (found != Rounding::fine) return found;
    out.d = half(exact);
    const vf steps = select(out.d == 0.0f, vf{}, inverse(exact));
    vf codes[32];
    for (int k = 0; k < 32; ++k) {
        const vf scaled = group.x[k] * steps, cut = __builtin_convertvector(whole(scaled), vf);
        codes[k] = cut + __builtin_convertvector(whole(2.0f * (scaled - cut)), vf);  // halves away from zero
    }
    if (search.rounds > 0) improve(group, out.d, codes, fit_symmetric(group, -127.0f, 127.0f, search), -127.0f, 127.0f, search.rounds);
    store_codes<32>(codes, 128, out.codes);
    return found;
}

Rounding round_symmetric(const Group<32>& group, int offset, const Search& search, Stored& out) {
    const float low = static_cast<float>(-offset), high = static_cast<float>(offset - 1);
    const vf exact = group.signed_largest() / low + group.spoiled();
    const Rounding found = fault_of(exact);
    if (found != Rounding::fine) return found;
    vf codes[32];
    out.d = half(exact);
    group.codes(out.d, vf{}, low, high, codes);
    improve(group, out.d, codes, fit_symmetric(group, low, high, search), low, high, search.rounds);
    store_codes<32>(codes, offset, out.codes);
    return found;
}

Rounding round_affine(const Group<32>& group, float top, const Search& search, Stored& out) {
    const vf smallest = group.smallest(), exact = (group.largest() - smallest) / top;
    const Rounding of_minimum = fault_of(smallest + group.spoiled()), of_scale = fault_of(exact);
    if (of_minimum != Rounding::fine || of_scale != Rounding::fine) return of_minimum > of_scale ? of_minimum : of_scale;
    vf codes[32], tried[32];
    out.d = half(exact), out.m = half(smallest);
    group.codes(out.d, out.m, 0.0f, top, codes);
    vf least = group.error(codes, out.d, out.m);
    Line line = fit_affine(group, top, search, true);
    const vf total = group.total(), mean = ratio(group.sum(), total);
    for (int again = 0; again <= search.rounds; ++again) {
        const vf scale = half(line.scale), minimum = half(line.minimum);
        group.codes(scale, minimum, 0.0f, top, tried);
        const vf error = group.error(tried, scale, minimum);
        const vi better = error < least;
        out.d = select(better, scale, out.d), out.m = select(better, minimum, out.m), least = select(better, error, least);
        for (int k = 0; k < 32; ++k) codes[k] = select(better, tried[k], codes[k]);
        if (again == search.rounds) break;
        const vf sum = group.sum_of(tried), codes_mean = ratio(sum, total), covariance = group.products(tried) - mean * sum;
        line.scale = ratio(covariance, group.squares(tried) - codes_mean * sum);
        line.minimum = mean - line.scale * codes_mean;
    }
    store_codes<32>(codes, 0, out.codes);
    return Rounding::fine;
}

template <int GROUPS, int N, bool MINIMA>
Rounding round_superblock(const vf* x, const vf* weights, const BlockFormat& format, const Search& search, Stored& out) {
    const float low = static_cast<float>(-format.offset), high = static_cast<float>((1 << format.bits) - 1 - format.offset);
    Superblock<GROUPS, N, MINIMA> block{x, weights, low, high};
    const Rounding found = block.run(search);
    if (found != Rounding::fine) return found;
    out.d = block.d, out.m = block.m;
    vf codes[N];
    for (int g = 0; g < GROUPS; ++g) {
        out.sub[g] = block.sub[g], out.sub_m[g] = block.sub_m[g];
        block.codes(g, codes);
        store_codes<N>(codes, format.offset, out.codes + g * N);
    }
    return found;
}

Rounding round_block(const vf* x, const vf* weights, const BlockFormat& format, const Search& search, Stored& out) {
    if (format.scales == Scales::unsigned_subs) return round_superblock<8, 32, true>(x, weights, format, search, out);
    if (format.scales == Scales::signed_subs) return round_superblock<16, 16, false>(x, weights, format, search, out);
    const Group<32> group{x, weights};
    if (format.bits == 8) return round_q8_0(group, search, out);
    if (format.minima) return round_affine(group, static_cast<float>((1 << format.bits) - 1), search, out);
    return round_symmetric(group, format.offset, search, out);
}

// Weights of the squared errors of a block.
void weigh_inputs(const vf* x, const float* importance, const BlockFormat& format, vf* weights) {
    if (importance != nullptr) {
        for (int64_t k = 0; k < format.inputs; ++k) weights[k] = spread(importance[k]);
    } else if (format.scales == Scales::whole) {
        own_weights<1, 32>(x, weights);
    } else if (format.scales == Scales::unsigned_subs) {
        own_weights<8, 32>(x, weights);
    } else {
        own_weights<16, 16>(x, weights);
    }
}

// The rows of a group's codes: see quant/panels.py.
void store_rows(const vi* codes, const BlockFormat& format, std::byte* to) {
    const int words = static_cast<int>(format.group) / 4, width = format.bits - 4;
    const auto word = [&](int w, int mask, int shift) {
        const vi* of = codes + w * 4;
        const auto part = [&](int i) { return of[i] >> shift & mask; };
        return part(0) | part(1) << 8 | part(2) << 16 | part(3) << 24;
    };
    if (format.bits == 8) {
        for (int w = 0; w < words; ++w, to += kPanel * 4) store(to, word(w, 255, 0));
        return;
    }
    for (int w = 0; w < words; w += 2, to += kPanel * 4) store(to, word(w, 15, 0) | word(w + 1, 15, 0) << 4);
    if (width == 0) return;
    vi upper{};
    for (int w = 0; w < words; ++w) upper |= word(w, (1 << width) - 1, 4) << width * w;
    store(to, upper);
}

void store_bytes(std::byte* to, vf v) {
    const vi numbers = whole(v);
    for (int lane = 0; lane < kLanes; ++lane) to[lane] = static_cast<std::byte>(numbers[lane]);
}

// Store a block from the lane on, at the lane's place in the block of a panel.
void store_block(const Stored& block, const BlockFormat& format, int64_t lane, std::byte* at) {
    store(at + lane * 2, narrow_halves(block.d));
    if (format.minima) store(at + (kPanel + lane) * 2, narrow_halves(block.m));
    for (int64_t g = 0; g < format.subs(); ++g) {
        store_bytes(at + format.sub_at() + g * kPanel + lane, block.sub[g]);
        if (format.minima) store_bytes(at + format.sub_m_at() + g * kPanel + lane, block.sub_m[g]);
    }
    for (int64_t g = 0; g < format.groups(); ++g)
        store_rows(block.codes + g * format.group, format, at + format.header_bytes() + g * format.code_bytes() + lane * 4);
}

}  // namespace

Rounding quantize(const MatrixArgs& m, const QuantizeArgs& a, int64_t panel_begin, int64_t panel_end, std::byte* panels) {
    const BlockFormat format = block_format(a.format);
    const Search search = search_of(format.bits, a.thorough);
    const int64_t blocks = ceil_divide(m.inputs, format.inputs);
    Rounding worst = Rounding::fine;
    vf x[256], weights[256];
    Stored block{};
    for (int64_t panel = panel_begin; panel < panel_end; ++panel)
        for (int64_t b = 0; b < blocks; ++b)
            for (int64_t lane = 0; lane < kPanel; lane += kLanes) {
                load_inputs(x, m, panel * kPanel + lane, b * format.inputs, format.inputs);
                weigh_inputs(x, a.importance == nullptr ? nullptr : a.importance + b * format.inputs, format, weights);
                const Rounding found = round_block(x, weights, format, search, block);
                worst = found > worst ? found : worst;
                if (found == Rounding::fine) store_block(block, format, lane, panels + (panel * blocks + b) * format.bytes());
            }
    return worst;
}

}  // namespace ferrum::FERRUM_TIER
