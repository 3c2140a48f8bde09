// Norms and rotation of the heads of queries and keys, and the write of keys and values to the pool.
//
// A warp has a head of a row, in shared memory: of queries, of keys or of values.
#include "pages.hpp"

namespace ferrum::cuda {

namespace {

constexpr int kMostHead = 576;  // numbers of a head

struct Rope {
    const float* cosines;  // [positions, pairs], or null
    const float* sines;
    Int pairs;
};

struct RopeStoreArgs {
    const int* rows;
    const float* q;
    const float* k;  // or null, with v
    const float* v;
    float* out;
    Int heads, head_dim, value_dim;
    Rope rope;
    const float* q_norm;  // [head_dim] each, or null
    const float* k_norm;
    const float* v_norm;        // [value_dim], or null
    const float* temperature;  // [positions], or null
    Real eps;
    Int norm_last;
    Pages pages;
};

struct LatentStoreArgs {
    const int* rows;
    const float* q;       // [rows, heads, value_dim]
    const float* q_rope;  // [rows, heads, rope_dim]
    const float* latent;  // [rows, value_dim]
    const float* k_rope;  // [rows, rope_dim]
    float* out;           // [rows, heads, value_dim + rope_dim]
    Int heads, value_dim, rope_dim;
    Rope rope;
    Pages pages;
};

FERRUM_DEVICE void read_head(const float* from, int count, float* head) {
    for (int i = lane(); i < count; i += kWarp) head[i] = from[i];
    sync_warp();
}

FERRUM_DEVICE void norm_head(float* head, int count, const float* weight, float eps) {
    SquaresSum sum;
    sum.add(head, count);
    const float factor = divided(1.0f, square_root(divided(sum.folded(), static_cast<float>(count)) + eps));
    for (int i = lane(); i < count; i += kWarp) head[i] = (head[i] * factor) * weight[i];
    sync_warp();
}

// Rotate the pairs (i, i + pairs).
FERRUM_DEVICE void rotate_head(const Rope& rope, float* head, int position) {
    const int pairs = static_cast<int>(rope.pairs);
    const float *cosines = rope.cosines + position * rope.pairs, *sines = rope.sines + position * rope.pairs;
    for (int i = lane(); i < pairs; i += kWarp) {
        const float low = head[i], high = head[pairs + i], cosine = cosines[i], sine = sines[i];
        head[i] = fused(low, cosine, -(high * sine));
        head[pairs + i] = fused(high, cosine, low * sine);
    }
    sync_warp();
}

FERRUM_DEVICE unsigned code_byte(const WholeScale& scale, float x) { return static_cast<unsigned>(scale.code(x)) & 0xffu; }

FERRUM_DEVICE WholeScale scale_of(const float* head, int count) {
    unsigned largest = 0;
    for (int i = lane(); i < count; i += kWarp) {
        const unsigned size = as_bits(head[i]) & ~kSign;
        largest = size > largest ? size : largest;
    }
    return WholeScale(greatest(largest), 127.0f);
}

// The location of a row's token, for this KV head.
FERRUM_DEVICE Block row_block(const Pages& p, Int row, int kv_head) {
    return token_block(p, p.row_span[row], kv_head, p.positions[row]);
}

// Write a key, in whole words. Numbers behind its end are zeros.
template <class F>
FERRUM_DEVICE void write_key(const Pages& p, const Block& block, const float* head, int count) {
    const auto number = [=](int i) { return i < count ? head[i] : 0.0f; };
    auto* to = block.keys;
    const int words = static_cast<int>(p.key_words);
    if constexpr (F::kDepth == 4) {
        const WholeScale scale = scale_of(head, count);
        if (lane() == 0) key_scales(p, block)[block.token] = scale.scale;
        for (int word = lane(); word < words; word += kWarp) {
            unsigned codes = 0;
            for (int i = 0; i < 4; ++i) codes |= code_byte(scale, number(4 * word + i)) << (8 * i);
            *reinterpret_cast<unsigned*>(to + key_at(p, block.token, word)) = codes ^ F::kKeyFlip;
        }
    } else {
        for (int word = lane(); word < words; word += kWarp) {
            unsigned bits;
            if constexpr (F::kDepth == 2)
                bits = to_bf16(number(2 * word)) | to_bf16(number(2 * word + 1)) << 16;
            else
                bits = as_bits(head[word]);
            *reinterpret_cast<unsigned*>(to + key_at(p, block.token, word)) = bits;
        }
    }
}

// Write a value. Other tokens of its words belong to other warps, so it writes only its part of a word.
template <class F>
FERRUM_DEVICE void write_value(const Pages& p, const Block& block, const float* head, int count) {
    Byte* const to = block.values + block.token % F::kDepth * (4 / F::kDepth);
    if constexpr (F::kDepth == 4) {
        const WholeScale scale = scale_of(head, count);
        if (lane() == 0) value_scales(p, block)[block.token] = scale.scale;
        for (int d = lane(); d < count; d += kWarp)
            to[value_at(p, 4, block.token, d)] = static_cast<Byte>(code_byte(scale, head[d]));
    } else {
        for (int d = lane(); d < count; d += kWarp) {
            Byte* const at = to + value_at(p, F::kDepth, block.token, d);
            if constexpr (F::kDepth == 2)
                *reinterpret_cast<unsigned short*>(at) = static_cast<unsigned short>(to_bf16(head[d]));
            else
                *reinterpret_cast<float*>(at) = head[d];
        }
    }
}

// The heads of a row are those of queries, then those of keys, then those of values.
template <class F>
FERRUM_DEVICE void store_rope(const RopeStoreArgs& a, float* head) {
    const Int row = block_y();
    const int heads = static_cast<int>(a.heads), kv_heads = static_cast<int>(a.pages.kv_heads);
    const int index = static_cast<int>(block_x()) * kWarps + warp(), dim = static_cast<int>(a.head_dim);
    if (row >= *a.rows || index >= heads + (a.k == nullptr ? 0 : 2 * kv_heads)) return;
    if (index >= heads + kv_heads) {
        const int kv_head = index - heads - kv_heads, count = static_cast<int>(a.value_dim);
        read_head(a.v + (row * kv_heads + kv_head) * count, count, head);
        if (a.v_norm != nullptr) norm_head(head, count, a.v_norm, a.eps.value);
        return write_value<F>(a.pages, row_block(a.pages, row, kv_head), head, count);
    }
    const bool query = index < heads;
    const int position = a.pages.positions[row];
    const float* norm = query ? a.q_norm : a.k_norm;
    read_head(query ? a.q + (row * heads + index) * dim : a.k + (row * kv_heads + index - heads) * dim, dim, head);
    if (norm != nullptr && a.norm_last == 0) norm_head(head, dim, norm, a.eps.value);
    if (a.rope.cosines != nullptr) rotate_head(a.rope, head, position);
    if (norm != nullptr && a.norm_last != 0) norm_head(head, dim, norm, a.eps.value);
    if (!query) return write_key<F>(a.pages, row_block(a.pages, row, index - heads), head, dim);
    float* to = a.out + (row * heads + index) * dim;
    for (int i = lane(); i < dim; i += kWarp) to[i] = a.temperature == nullptr ? head[i] : head[i] * a.temperature[position];
}

// The heads of a row are those of queries, then the key.
template <class F>
FERRUM_DEVICE void store_latent(const LatentStoreArgs& a, float* head) {
    const Int row = block_y();
    const int heads = static_cast<int>(a.heads), index = static_cast<int>(block_x()) * kWarps + warp();
    if (row >= *a.rows || index > heads) return;
    const int first = static_cast<int>(a.value_dim), rest = static_cast<int>(a.rope_dim);
    const bool query = index < heads;
    const Int at = query ? row * heads + index : row;
    read_head((query ? a.q : a.latent) + at * first, first, head);
    read_head((query ? a.q_rope : a.k_rope) + at * rest, rest, head + first);
    rotate_head(a.rope, head + first, a.pages.positions[row]);
    if (!query) return write_key<F>(a.pages, row_block(a.pages, row, 0), head, first + rest);
    for (int i = lane(); i < first + rest; i += kWarp) a.out[at * (first + rest) + i] = head[i];
}

}  // namespace

FERRUM_KERNEL(rope_store, RopeStoreArgs) {
    FERRUM_SHARED(float, heads, kWarps * kMostHead);
    store_rope<formats::FERRUM_FORMAT>(a, heads + warp() * kMostHead);
}

FERRUM_KERNEL(latent_store, LatentStoreArgs) {
    FERRUM_SHARED(float, heads, kWarps * kMostHead);
    store_latent<formats::FERRUM_FORMAT>(a, heads + warp() * kMostHead);
}

}  // namespace ferrum::cuda
