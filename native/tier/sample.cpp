// What a sampler does over a whole row of logits: the functions of sampling/math.py and sampling/philox.py, bit for bit.
// Nothing is fused here: every product and every sum is rounded by itself, as numpy rounds them.
#include "math.hpp"
#include "tier.hpp"

namespace ferrum::FERRUM_TIER {

namespace {

using vl = int64_t __attribute__((vector_size(8 * kLanes)));

constexpr float kNever = -__builtin_inff();

vf exact_polynomial(vf x, const float* c, int count) {
    vf total = spread(c[0]);
    for (int i = 1; i < count; ++i) total = total * x + spread(c[i]);
    return total;
}

// e^x of x <= 0, the reference's: 0 below 2^-126.
vf exact_exp(vf x) {
    const vf bounded = x < spread(-200.0f) ? spread(-200.0f) : x;
    const vf n = nearest(bounded * spread(1.4426950408889634f));
    const vf r = (bounded - n * spread(0.693145751953125f)) - n * spread(1.4286068203094172e-06f);
    const vf exponent = n < spread(-126.0f) ? spread(-126.0f) : n;
    const vf value = exact_polynomial(r, kExp, 8) * power_of_two(nearest_bits(exponent));
    return n < spread(-126.0f) ? vf{} : value;
}

// Natural logarithm of positive normal numbers (sampling/math.py).
vf exact_log(vf x) {
    static constexpr float kLog1p[9] = {0.06915425f,  -0.11789835f, 0.11872966f,  -0.12384343f, 0.14218658f,
                                        -0.16669251f, 0.20002227f,  -0.24999987f, 0.3333331f};
    const vi shifted = (vi)x - 0x3f3504f3;
    const vf exponent = __builtin_convertvector(shifted >> 23, vf);
    const vf f = (vf)((shifted & 0x007fffff) + 0x3f3504f3) - spread(1.0f);
    const vf square = f * f;
    const vf tail = exact_polynomial(f, kLog1p, 9);
    const vf correction = ((f * square) * tail + exponent * spread(1.4286068203094172e-06f)) - spread(0.5f) * square;
    return (f + correction) + exponent * spread(0.693145751953125f);
}

// Multiples of 2^-40 of the greatest probability; x <= 0.
vf masses(vf x) {
    const vf scaled = exact_exp(x) * spread(1099511627776.0f);
    const vf integer = spread(8388608.0f);  // from 2^23 on all floats are whole numbers
    return scaled >= integer ? scaled : (scaled + integer) - integer;
}

struct Words {
    vu word[4];

    bool any_from(uint32_t least) const {
        const vu a = word[0] > word[1] ? word[0] : word[1], b = word[2] > word[3] ? word[2] : word[3];
        return max_lanes(-((a > b ? a : b) >= spread(least))) != 0;
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

constexpr int64_t kDrawn = 4 * kLanes;  // tokens of a block: a vector of counters makes their words

// Those of the block from `first` on: of token first + i, word[i % 4] of lane i / 4.
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

// How many leading bits of a word are ones where it makes at least so much noise: its u is at least exp(-exp(-noise)), which is
// above 1 - exp(-noise). A fiftieth less, which is far more than roundings hide.
float octaves_to(float noise) { return noise * 1.4426950408889634f - 0.02f; }

uint32_t least_word(float octaves) {
    return octaves < 1.0f ? 0 : ~uint32_t{0} << (32 - static_cast<int>(octaves));
}

}  // namespace

float largest(const float* x, int64_t count) {
    vf top = spread(kNever);
    vi unordered{};
    for (int64_t i = 0; i < count; i += kLanes) {
        const int64_t left = count - i;
        const vf value = left >= kLanes ? load<vf>(x + i) : load_part(x + i, left);
        const vf masked = left >= kLanes ? value : (lane_index() < static_cast<int32_t>(left) ? value : spread(kNever));
        unordered |= masked != masked;
        top = larger(masked, top);
    }
    for (int lane = 0; lane < kLanes; ++lane)
        if (unordered[lane] != 0) return __builtin_nanf("");
    return max_lanes(top);
}

int64_t first_equal(const float* x, int64_t count, float value) {
    for (int64_t i = 0; i < count; i += kLanes) {
        const int64_t left = least(kLanes, count - i);
        const vi equal = load_part(x + i, left) == spread(value);
        for (int lane = 0; lane < left; ++lane)
            if (equal[lane] != 0) return i + lane;
    }
    return -1;
}

void scale_below(const float* x, int64_t count, float peak, float divisor, float* out) {
    for (int64_t i = 0; i < count; i += kLanes) {
        const int64_t left = count - i;
        store_part(out + i, (load_part(x + i, left) - spread(peak)) / spread(divisor), left);
    }
}

int64_t mass_of(const float* x, int64_t count, int64_t* each) {
    vl total{};
    for (int64_t i = 0; i < count; i += kLanes) {
        const int64_t left = least(kLanes, count - i);
        const vf value = left == kLanes ? load<vf>(x + i)
                                        : (lane_index() < static_cast<int32_t>(left) ? load_part(x + i, left) : spread(kNever));
        const vl whole = __builtin_convertvector(masses(value), vl);
        total += whole;
        if (each != nullptr)
            for (int lane = 0; lane < left; ++lane) each[i + lane] = whole[lane];
    }
    int64_t sum = 0;
    for (int lane = 0; lane < kLanes; ++lane) sum += total[lane];
    return sum;
}

void exp_of(const float* x, int64_t count, float* out) {
    for (int64_t i = 0; i < count; i += kLanes) store_part(out + i, exact_exp(load_part(x + i, count - i)), count - i);
}

float log_of(float x) { return exact_log(spread(x))[0]; }

int64_t collect_from(const float* x, int64_t count, float cut, int32_t* tokens) {
    int64_t found = 0;
    for (int64_t i = 0; i < count; i += kLanes) {
        const int64_t left = least(kLanes, count - i);
        const vf value = load_part(x + i, left);
        const vi enough = value >= spread(cut);
        if (max_lanes(-enough) == 0) continue;
        for (int lane = 0; lane < left; ++lane)
            if (enough[lane] != 0) tokens[found++] = static_cast<int32_t>(i + lane);
    }
    return found;
}

int64_t draw_among(const float* x, const int32_t* tokens, int64_t count, const DrawKey& key) {
    Best best;
    for (int64_t i = 0; i < count; i += kLanes) {
        const int64_t here = least(kLanes, count - i);
        vu token{};
        for (int lane = 0; lane < here; ++lane) token[lane] = static_cast<uint32_t>(tokens[i + lane]);
        const Words words = philox(token >> 2, key);
        const vu low = (token & 1u) != 0u ? words.word[1] : words.word[0];
        const vu high = (token & 1u) != 0u ? words.word[3] : words.word[2];
        const vf noise = gumbel((token & 2u) != 0u ? high : low);
        for (int lane = 0; lane < here; ++lane) best.offer(x[tokens[i + lane]] + noise[lane], tokens[i + lane]);
    }
    return best.token;
}

// The likeliest token's block comes first: beside what it offers, few others have a word that is worth turning into noise, and
// where all tokens are so unlikely that the greatest noise would not do, words need not be made either.
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
