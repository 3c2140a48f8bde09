// Functions over a row of logits, with the bits of sampling/probabilities.py and sampling/philox.py. No products and
// sums are fused: each is rounded separately, as in numpy.
#include "logarithm.hpp"
#include "tier.hpp"

namespace ferrum::FERRUM_TIER {

namespace {

// Half the lanes of a vector: their 64-bit integers fill one.
using vhf = float __attribute__((vector_size(2 * kLanes)));
using vd = double __attribute__((vector_size(4 * kLanes)));
using vl = int64_t __attribute__((vector_size(4 * kLanes)));

constexpr float kNever = -__builtin_inff(), kNothing = __builtin_nanf("");

// e^x of x <= 0, as the reference: 0 below 2^-126. Several vectors at once hide the latency.
template <int N>
void exact_exp(vf (&x)[N]) {
    vf n[N], total[N];
    for (int v = 0; v < N; ++v) x[v] = x[v] < spread(-200.0f) ? spread(-200.0f) : x[v];
    for (int v = 0; v < N; ++v) n[v] = nearest(x[v] * spread(1.4426950408889634f));
    for (int v = 0; v < N; ++v) x[v] = (x[v] - n[v] * spread(0.693145751953125f)) - n[v] * spread(1.4286068203094172e-06f);
    for (int v = 0; v < N; ++v) total[v] = spread(kExp[0]);
    for (int i = 1; i < 8; ++i)
        for (int v = 0; v < N; ++v) total[v] = total[v] * x[v] + spread(kExp[i]);
    for (int v = 0; v < N; ++v) {
        const vf exponent = n[v] < spread(-126.0f) ? spread(-126.0f) : n[v];
        const vf value = total[v] * power_of_two(nearest_bits(exponent));
        x[v] = n[v] < spread(-126.0f) ? vf{} : value;
    }
}

// Multiples of 2^-40 of the greatest probability; x <= 0.
template <int N>
void to_masses(vf (&x)[N]) {
    exact_exp(x);
    const vf integer = spread(8388608.0f);  // from 2^23 on all floats are integers
    for (vf& each : x) {
        const vf scaled = each * spread(1099511627776.0f);
        each = scaled >= integer ? scaled : (scaled + integer) - integer;
    }
}

// Convert half a vector of whole floats to integers in [0, 2^52): adding 2^52 gives a double with the integer in its
// low bits.
template <int HALF>
vl whole_half(vf x) {
#if defined(__AVX512VNNI__)
    return (vl)_mm512_cvttps_epi64(_mm512_extractf32x8_ps(x, HALF));
#else
    vhf half;
    std::memcpy(&half, reinterpret_cast<const std::byte*>(&x) + HALF * sizeof half, sizeof half);
    return (vl)(__builtin_convertvector(half, vd) + 0x1p52) & 0xfffffffffffff;
#endif
}

struct Words {
    vu word[4];

    bool any_from(uint32_t least) const {
        const vu a = word[0] > word[1] ? word[0] : word[1], b = word[2] > word[3] ? word[2] : word[3];
        return lanes_where((a > b ? a : b) >= spread(least)) != 0;
    }
};

// Philox4x32-10 (Salmon et al. 2011) of counters (block, position, choice, stream 0).
Words philox(vu block, const DrawKey& key) {
    vu c0 = block, c1 = spread(key.position), c2 = spread(key.choice), c3{};
    uint32_t k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
    for (int round = 0; round < 10; ++round) {
        const vu high0 = multiply_high(c0, 0xd2511f53u), high1 = multiply_high(c2, 0xcd9e8d57u);
        const vu low0 = c0 * 0xd2511f53u, low1 = c2 * 0xcd9e8d57u;
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return {{c0, c1, c2, c3}};
}

vf gumbel(vu word) {
    const vf u = (__builtin_convertvector(word >> 9, vf) + spread(0.5f)) * spread(0x1p-23f);
    return -exact_log(-exact_log(u));
}

constexpr int64_t kDrawn = 4 * kLanes;  // tokens of a block: the words of a vector of counters

// The words of the block from `first` on: token first + i has word[i % 4] of lane i / 4.
Words words_of(int64_t first, const DrawKey& key) { return philox((vu)lane_index() + static_cast<uint32_t>(first / 4), key); }

struct Best {
    float value = kNever;
    int64_t token = -1;

    void offer(float candidate, int64_t at) {  // the lowest of equals stays
        if (candidate > value || (candidate == value && at < token)) {
            value = candidate;
            token = at;
        }
    }

    void offer_all(const float* x, int64_t first, int64_t count, const Words& words) {
        float noise[4][kLanes];
        for (int w = 0; w < 4; ++w) store(noise[w], gumbel(words.word[w]));
        for (int64_t i = 0; i < least(kDrawn, count - first); ++i) offer(x[first + i] + noise[i % 4][i / 4], first + i);
    }
};

constexpr int kNoiseBits = 23;  // of a word

// Number of leading one bits of a word with at least that much noise: its u is at least exp(-exp(-noise)), which is
// above 1 - exp(-noise). A fiftieth is subtracted, far more than rounding errors.
float octaves_to(float noise) { return noise * 1.4426950408889634f - 0.02f; }

uint32_t least_word(float octaves) {
    return octaves < 1.0f ? 0 : ~uint32_t{0} << (32 - static_cast<int>(octaves));
}

// `filler` in the lanes after `left` numbers.
vf load_or(const float* x, int64_t left, float filler) {
    if (left >= kLanes) return load<vf>(x);
    if (left <= 0) return spread(filler);
    return lane_index() < static_cast<int32_t>(left) ? load_part(x, left) : spread(filler);
}

// The largest number so far, and whether one was NaN, per lane.
struct Peak {
    vf top = spread(kNever);
    vi unordered{};

    void take(vf value) {
        unordered |= value != value;
        top = larger(value, top);
    }
    void take(const Peak& other) {
        unordered |= other.unordered;
        top = larger(other.top, top);
    }
    float value() const { return lanes_where(unordered) != 0 ? __builtin_nanf("") : max_lanes(top); }
};

// A bit per lane for the first `left` numbers.
uint32_t first_lanes(int64_t left) { return left >= kLanes ? ~uint32_t{0} : (uint32_t{1} << left) - 1; }

}  // namespace

float largest(const float* x, int64_t count) {
    Peak peak;
    for (int64_t i = 0; i < count; i += kLanes) peak.take(load_or(x + i, count - i, kNever));
    return peak.value();
}

float largest_of_strands(const float* x, int64_t count, float* strands) {
    constexpr int kVectors = kStrands / kLanes;
    Peak all;
    for (int64_t begin = 0; begin < count; begin += kStretch, strands += kStrands) {
        Peak strand[kVectors];
        for (int64_t i = begin; i < least(begin + kStretch, count); i += kStrands)
            for (int v = 0; v < kVectors; ++v) strand[v].take(load_or(x + i + v * kLanes, count - i - v * kLanes, kNever));
        for (int v = 0; v < kVectors; ++v) {
            store(strands + v * kLanes, strand[v].top);
            all.take(strand[v]);
        }
    }
    return all.value();
}

int64_t first_equal(const float* x, int64_t count, float value) {
    for (int64_t i = 0; i < count; i += kLanes) {
        const uint32_t equal = lanes_where(load_part(x + i, count - i) == spread(value)) & first_lanes(count - i);
        if (equal != 0) return i + __builtin_ctz(equal);
    }
    return -1;
}

void scale_below(const float* x, int64_t count, float peak, float divisor, float* out) {
    for (int64_t i = 0; i < count; i += kLanes) {
        const int64_t left = count - i;
        store_part(out + i, (load_part(x + i, left) - spread(peak)) / spread(divisor), left);
    }
}

int64_t mass_of(const float* x, int64_t count, float peak, int64_t* each) {
    constexpr int kVectors = 4;
    vl total{};
    for (int64_t begin = 0; begin < count; begin += kVectors * kLanes) {
        vf mass[kVectors];
        for (int v = 0; v < kVectors; ++v) {
            const int64_t i = begin + v * kLanes;
            mass[v] = load_or(x + i, count - i, kNever) - spread(peak);
        }
        to_masses(mass);
        for (int v = 0; v < kVectors; ++v) {
            const vl whole[2] = {whole_half<0>(mass[v]), whole_half<1>(mass[v])};
            total += whole[0] + whole[1];
            const int64_t i = begin + v * kLanes;
            if (each != nullptr && i < count)
                std::memcpy(each + i, whole, static_cast<size_t>(least(kLanes, count - i)) * sizeof *each);
        }
    }
    int64_t sum = 0;
    for (int lane = 0; lane < kLanes / 2; ++lane) sum += total[lane];
    return sum;
}

int64_t count_before(const float* x, int64_t count, int64_t token) {
    const vf value = spread(x[token]);
    vi found{};
    for (int64_t i = 0; i < token; i += kLanes) found -= load_or(x + i, token - i, kNothing) >= value;
    for (int64_t i = token; i < count; i += kLanes) found -= load_or(x + i, count - i, kNothing) > value;
    return sum_lanes(found);
}

void exp_of(const float* x, int64_t count, float* out) {
    for (int64_t i = 0; i < count; i += kLanes) {
        vf value[1] = {load_part(x + i, count - i)};
        exact_exp(value);
        store_part(out + i, value[0], count - i);
    }
}

float log_of(float x) { return exact_log(spread(x))[0]; }

int64_t collect_from(const float* x, int64_t count, float cut, int32_t* tokens) {
    int64_t found = 0;
    for (int64_t i = 0; i < count; i += kLanes) {
        uint32_t enough = lanes_where(load_part(x + i, count - i) >= spread(cut)) & first_lanes(count - i);
        if (enough == 0) continue;
#if defined(__AVX512VNNI__)
        if (i + kLanes <= count) {  // enough room: no more tokens were found than read
            const __m512i ids = (__m512i)(lane_index() + static_cast<int32_t>(i));
            _mm512_storeu_si512(tokens + found, _mm512_maskz_compress_epi32(static_cast<__mmask16>(enough), ids));
            found += __builtin_popcount(enough);
            continue;
        }
#endif
        for (; enough != 0; enough &= enough - 1) tokens[found++] = static_cast<int32_t>(i + __builtin_ctz(enough));
    }
    return found;
}

int64_t draw_among(const float* x, const int32_t* tokens, int64_t count, const DrawKey& key) {
    Best best;
    for (int64_t i = 0; i < count; i += kLanes) {
        const int64_t here = least(kLanes, count - i);
        uint32_t ids[kLanes] = {};
        float values[kLanes];
        for (int lane = 0; lane < here; ++lane) {
            ids[lane] = static_cast<uint32_t>(tokens[i + lane]);
            values[lane] = x[ids[lane]];
        }
        const vf value = load_or(values, here, kNever);
        const float octaves = octaves_to(best.value - max_lanes(value));
        if (!(octaves < kNoiseBits + 1)) continue;
        const vu token = load<vu>(ids);
        const Words words = philox(token >> 2, key);
        const vu low = (token & 1u) != 0u ? words.word[1] : words.word[0];
        const vu high = (token & 1u) != 0u ? words.word[3] : words.word[2];
        const vu word = (token & 2u) != 0u ? high : low;
        if (lanes_where(word >= spread(least_word(octaves))) == 0) continue;
        const vf noise = gumbel(word);
        for (int lane = 0; lane < here; ++lane) best.offer(values[lane] + noise[lane], tokens[i + lane]);
    }
    return best.token;
}

// The block of the most likely token comes first. Compared with its offer, few other words can win and need their
// noise. If all tokens of a block are so unlikely that the greatest noise is not enough, its words are not computed.
int64_t draw_from_all(const float* x, int64_t count, const DrawKey& key) {
    Best best;
    const int64_t likeliest = first_equal(x, count, 0.0f) / kDrawn * kDrawn;
    best.offer_all(x, likeliest, count, words_of(likeliest, key));
    for (int64_t i = 0; i < count; i += kDrawn) {
        const float octaves = octaves_to(best.value - largest(x + i, least(kDrawn, count - i)));
        if (!(octaves < kNoiseBits + 1)) continue;
        const Words words = words_of(i, key);
        if (words.any_from(least_word(octaves))) best.offer_all(x, i, count, words);
    }
    return best.token;
}

}  // namespace ferrum::FERRUM_TIER
