// Draws of tokens from rows of logits: the most likely one, or at a temperature the greatest sum of a scaled logit and
// Gumbel noise (sampling/rules.py, sampling/philox.py). Of equals, the token of lower id wins.
//
// A row is cut into parts of kPart tokens, a block of threads each. No product and sum is fused.
#include "numbers.hpp"

namespace ferrum::cuda {
namespace {

constexpr int kPart = 8192;
constexpr int kNone = 0x7fffffff;

struct DrawRequest {
    const float* logits;  // [tokens]
    Real temperature;     // 0: the most likely token
    unsigned seed[2];     // low and high word
    unsigned position, choice;
};

struct DrawArgs {
    const DrawRequest* requests;
    float* values;  // [requests, parts]: the greatest of each part, NaN if one is
    int* tokens;    // [requests, parts]: where it is
    float* drawn;   // [requests, parts]: the same of draws
    int* drawn_tokens;
    int* out;       // [requests]: -1: no token is above minus infinity, or one is NaN; for a draw, or plus infinity
    Int parts, count;  // of tokens
};

struct Best {
    float value = as_float(kInfinity | kSign);  // minus infinity; NaN stays
    int token = kNone;

    FERRUM_DEVICE void offer(float other, int at) {
        if (other != other || (value == value && (other > value || (other == value && at < token && token != kNone))))
            value = other, token = at;
    }
};

// The best of all threads, in every thread of the first warp.
FERRUM_DEVICE Best best_of_block(Best own, float* values, int* tokens) {
    for (int step = kWarp / 2; step > 0; step /= 2) own.offer(shuffle(own.value, lane() ^ step), shuffle(own.token, lane() ^ step));
    if (lane() == 0) values[warp()] = own.value, tokens[warp()] = own.token;
    sync_block();
    Best best;
    for (int i = 0; i < kWarps; ++i) best.offer(values[i], tokens[i]);
    return best;
}

// The best of the parts of a row.
FERRUM_DEVICE Best best_of_parts(const float* values, const int* tokens, Int parts) {
    Best best;
    for (Int i = 0; i < parts; ++i) best.offer(values[i], tokens[i]);
    return best;
}

// Philox4x32-10 (Salmon et al. 2011) of the counter (block, position, choice, stream 0).
FERRUM_DEVICE void philox(const DrawRequest& request, unsigned block, unsigned (&words)[4]) {
    unsigned c0 = block, c1 = request.position, c2 = request.choice, c3 = 0;
    unsigned k0 = request.seed[0], k1 = request.seed[1];
    FERRUM_UNROLLED
    for (int round = 0; round < 10; ++round) {
        const unsigned high0 = upper_product(c0, 0xd2511f53u), high1 = upper_product(c2, 0xcd9e8d57u);
        const unsigned low0 = c0 * 0xd2511f53u, low1 = c2 * 0xcd9e8d57u;
        c0 = high1 ^ c1 ^ k0, c1 = low1, c2 = high0 ^ c3 ^ k1, c3 = low0;
        k0 += 0x9e3779b9u, k1 += 0xbb67ae85u;
    }
    words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}

FERRUM_DEVICE float gumbel(unsigned word) {
    const float u = (static_cast<float>(word >> 9) + 0.5f) * 1.1920928955078125e-7f;  // 2^-23
    return -log(-log(u));
}

}  // namespace

// grid: [parts, requests]
FERRUM_KERNEL(peak_parts, DrawArgs) {
    FERRUM_SHARED(float, values, kWarps);
    FERRUM_SHARED(int, tokens, kWarps);
    const DrawRequest& request = a.requests[block_y()];
    const Int begin = block_x() * kPart, end = begin + kPart < a.count ? begin + kPart : a.count;
    Best own;
    for (Int i = begin + thread(); i < end; i += kThreads) own.offer(request.logits[i], static_cast<int>(i));
    const Best best = best_of_block(own, values, tokens);
    if (thread() != 0) return;
    a.values[block_y() * a.parts + block_x()] = best.value;
    a.tokens[block_y() * a.parts + block_x()] = best.token;
}

// grid: [parts, requests]. A thread draws for 4 tokens at a time, which share a counter.
FERRUM_KERNEL(draw_parts, DrawArgs) {
    FERRUM_SHARED(float, values, kWarps);
    FERRUM_SHARED(int, tokens, kWarps);
    const DrawRequest& request = a.requests[block_y()];
    const Int first = block_y() * a.parts, begin = block_x() * kPart, end = begin + kPart < a.count ? begin + kPart : a.count;
    if (request.temperature.value == 0.0f) return;
    const float peak = best_of_parts(a.values + first, a.tokens + first, a.parts).value;
    Best own;
    for (Int four = begin + 4 * thread(); four < end; four += 4 * kThreads) {
        unsigned words[4];
        philox(request, static_cast<unsigned>(four / 4), words);
        FERRUM_UNROLLED
        for (int i = 0; i < 4; ++i) {
            if (four + i >= end) continue;
            const float scaled = divided(request.logits[four + i] - peak, request.temperature.value);
            own.offer(scaled + gumbel(words[i]), static_cast<int>(four + i));
        }
    }
    const Best best = best_of_block(own, values, tokens);
    if (thread() != 0) return;
    a.drawn[first + block_x()] = best.value;
    a.drawn_tokens[first + block_x()] = best.token;
}

// grid: [1, requests]
FERRUM_KERNEL(draw_rows, DrawArgs) {
    const Int first = block_y() * a.parts;
    const Best peak = best_of_parts(a.values + first, a.tokens + first, a.parts);
    if (thread() != 0) return;
    const bool greedy = a.requests[block_y()].temperature.value == 0.0f;
    const Best best = greedy ? peak : best_of_parts(a.drawn + first, a.drawn_tokens + first, a.parts);
    const bool valid = peak.token != kNone && peak.value == peak.value && (greedy || is_finite(peak.value));
    a.out[block_y()] = valid ? best.token : -1;
}

}  // namespace ferrum::cuda
