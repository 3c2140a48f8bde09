// The location of a token's key and value in the pool, and how they are written, per format.
#pragma once

#include <type_traits>

#include "bytes.hpp"
#include "products.hpp"
#include "transpose.hpp"

namespace ferrum::FERRUM_TIER {

// A KV format: the type of an element (kDepth fill a word), whether a token has a scale, the bits flipped in a word of
// keys, and the rounding of a token's elements, padded with zeros to a whole vector.
template <class P>
struct FloatStore {
    using Element = std::conditional_t<P::kItem == 2, uint16_t, float>;
    static constexpr int kDepth = P::kDepth;
    static constexpr bool kScaled = false;
    static constexpr uint32_t kKeyFlip = 0;

    static float round(const float* x, int64_t count, Element* out) {
        for (int64_t d = 0; d < count; d += kLanes) {
            if constexpr (P::kItem == 2)
                store(out + d, round_bf16(load_part(x + d, count - d)));
            else
                store(out + d, load_part(x + d, count - d));
        }
        return 1;
    }

    // The bits of kLanes elements.
    static vu widen(const Element* from) {
        if constexpr (P::kItem == 2) return widen_words(from);
        return load<vu>(from);
    }
};

// Bytes with one scale per head; keys are offset by 128, like weights (dots.hpp).
struct ByteStore {
    using Element = int8_t;
    static constexpr int kDepth = 4;
    static constexpr bool kScaled = true;
    static constexpr uint32_t kKeyFlip = 0x80808080u;

    static float round(const float* x, int64_t count, Element* out) { return round_bytes(x, count, out); }
    static vu widen(const Element* from) {
        using Bytes = uint8_t __attribute__((vector_size(kLanes)));
        return __builtin_convertvector(load<Bytes>(from), vu);
    }
};

// The location of a token: its block's keys and values, and its index in the block.
struct Slot {
    std::byte* keys;
    std::byte* values;
    int64_t token;
};

inline Slot slot_of(const GroupStore& s, int64_t layer, int64_t page, int64_t head, int64_t offset) {
    const int64_t first = ((layer * s.num_pages + page) * s.num_kv_heads + head) * s.blocks_per_page;
    std::byte* block = s.data + (first + offset / s.block) * (s.key_bytes + s.value_bytes);
    return {block, block + s.key_bytes, offset % s.block};
}

// Index of element d of a token's key in its block; keys have `padded` elements, `side` tokens are adjacent.
template <class S>
inline int64_t key_index(int64_t side, int64_t padded, int64_t token, int64_t d) {
    return (token / side * (padded / S::kDepth) + d / S::kDepth) * side * S::kDepth + token % side * S::kDepth + d % S::kDepth;
}

// The key vectors of a step: those of kKeySide adjacent tokens. Also valid from the first vector of a part on (see
// step_parts), because parts begin with a side or end with it.
struct KeyVectors {
    int64_t words;

    int64_t at(int vector) const { return (vector * kLanes / kKeySide * words * kKeySide + vector * kLanes % kKeySide) * 4; }
};

// The first word of a token's key; the next words are s.key_side words apart.
inline std::byte* key_of(const GroupStore& s, const Slot& slot, int64_t words) {
    return slot.keys + (slot.token / s.key_side * words * s.key_side + slot.token % s.key_side) * 4;
}

// Number of adjacent dimensions of values from `first` on.
inline int64_t value_width(int64_t padded, int64_t first) { return least(kSide, padded - first); }

// The first of those dimensions of a token.
template <class S>
inline int64_t value_index(int64_t tokens, int64_t padded, int64_t token, int64_t first) {
    return (first * (tokens / S::kDepth) + token / S::kDepth * value_width(padded, first)) * S::kDepth + token % S::kDepth;
}

// The block after the current one: its distance in bytes, and the number of first tokens to read. None: no prefetch.
struct NextBlock {
    int64_t distance = 0, tokens = 0;

    // The prefetch for NV vectors of keys from `part` on: the same sides of the next block, one line of each side in
    // turn, or with fewer sides one line after the other. A side has a line per word.
    template <int NV>
    Ahead keys(const std::byte* keys, int part, const KeyVectors& vectors) const {
        const std::byte* from = keys + vectors.at(part) + distance;
        const int64_t sides = ceil_divide(tokens, kKeySide) - part * kLanes / kKeySide;
        if (sides >= kLinesOf<NV>) return {from, 64, vectors.words, vectors.words * 64};
        return {from, kLinesOf<NV> * 64, ceil_divide(sides * vectors.words, kLinesOf<NV>)};
    }

    // The prefetch for vectors of values in rows of `depth` tokens: the same vectors of the next block.
    Ahead values(const std::byte* values, int64_t stride, int depth) const {
        return {values + distance, stride, ceil_divide(tokens, depth)};
    }

    // Prefetch the scales after its keys or values.
    void fetch_scales(const std::byte* scales) const { prefetch_bytes(scales + distance, tokens * 4); }
};

// The scales of a block's tokens, after its keys or its values.
inline float* scales_of(std::byte* keys, int64_t bytes, int64_t tokens) {
    return reinterpret_cast<float*>(keys + bytes) - tokens;
}

// Prefetch the lines of a block for `count` adjacent tokens from `slot` on.
inline void prefetch_tokens(const GroupStore& s, const Slot& slot, int64_t count) {
    const int64_t depth = s.format == KvFormat::f32 ? 1 : s.format == KvFormat::bf16 ? 2 : 4, words = s.key_padded / depth;
    const std::byte* key = key_of(s, slot, words);
    for (int64_t word = 0; word < words; ++word) prefetch(key + word * s.key_side * 4);
    for (int64_t first = 0; first < s.value_padded; first += kSide) {
        const int64_t bytes = value_width(s.value_padded, first) * 4;
        const std::byte* part = slot.values + first * s.block / depth * 4;
        for (int64_t row = slot.token / depth; row <= (slot.token + count - 1) / depth; ++row)
            for (int64_t byte = 0; byte < bytes; byte += 64) prefetch(part + row * bytes + byte);
    }
}

// Some consecutive tokens of a block, rounded to the store's elements: kRowBlock at most.
template <class S>
struct RoundedTokens {
    typename S::Element rows[kRowBlock][kMaxHead + kLanes];
    float scales[kRowBlock];

    RoundedTokens(const float* x, int64_t stride, int64_t dim, int64_t count) {
        for (int64_t t = 0; t < count; ++t) scales[t] = S::round(x + t * stride, dim, rows[t]);
    }
};

// Keys are written as whole words, one per step of the product. The words of a step of several tokens are adjacent.
template <class S>
inline void write_keys(const GroupStore& s, const Slot& slot, int64_t count, const RoundedTokens<S>& keys) {
    const int64_t words = s.key_padded / S::kDepth;
    auto* to = reinterpret_cast<uint32_t*>(key_of(s, slot, words));
    for (int64_t first = 0; first < count; first += kLanes)
        for (int64_t word = 0; word < words; word += kLanes) {
            vf columns[kLanes];
            turn_rows(count - first, columns,
                      [&](int64_t row) { return load<vf>(keys.rows[first + row] + word * S::kDepth); });
            for (int64_t i = 0; i < least(kLanes, words - word); ++i)
                store_part(reinterpret_cast<float*>(to + (word + i) * s.key_side + first),
                           (vf)((vu)columns[i] ^ S::kKeyFlip), count - first);
        }
}

// The same for one token, whose words are never adjacent.
template <class S>
inline void write_key(const GroupStore& s, const Slot& slot, const RoundedTokens<S>& keys) {
    const int64_t words = s.key_padded / S::kDepth;
    auto* to = reinterpret_cast<uint32_t*>(key_of(s, slot, words));
    for (int64_t word = 0; word < words; ++word) {
        uint32_t elements;
        std::memcpy(&elements, keys.rows[0] + word * S::kDepth, sizeof elements);
        to[word * s.key_side] = elements ^ S::kKeyFlip;
    }
}

// The value of token `t`. Other tokens of its words may belong to another thread, so it writes only its part.
template <class S>
inline void write_value(const GroupStore& s, const Slot& slot, int64_t t, const RoundedTokens<S>& values) {
    for (int64_t first = 0; first < s.value_dim; first += kSide) {
        auto* to = reinterpret_cast<typename S::Element*>(slot.values) +
                   value_index<S>(s.block, s.value_padded, slot.token + t, first);
        for (int64_t d = 0; d < least(kSide, s.value_dim - first); ++d) to[d * S::kDepth] = values.rows[t][first + d];
    }
}

// The values of the tokens that fill whole words, from token `t` on.
template <class S>
inline void write_value_words(const GroupStore& s, const Slot& slot, int64_t t, const RoundedTokens<S>& values) {
    for (int64_t first = 0; first < s.value_dim; first += kSide) {
        auto* to = reinterpret_cast<typename S::Element*>(slot.values) +
                   value_index<S>(s.block, s.value_padded, slot.token + t, first);
        for (int64_t d = 0; d < least(kSide, s.value_dim - first); d += kLanes) {
            vu words{};
            for (int i = 0; i < S::kDepth; ++i)
                words |= S::widen(values.rows[t + i] + first + d) << (32 / S::kDepth * i);
            store(to + d * S::kDepth, words);
        }
    }
}

// Write the keys of `count` tokens from `slot` on, which are adjacent.
template <class S>
inline void write_keys_of(const GroupStore& s, const Slot& slot, int64_t count, const float* keys) {
    const RoundedTokens<S> rounded(keys, s.key_dim, s.key_dim, count);
    count == 1 ? write_key<S>(s, slot, rounded) : write_keys<S>(s, slot, count, rounded);
    if constexpr (S::kScaled)
        std::memcpy(scales_of(slot.keys, s.key_bytes, s.block) + slot.token, rounded.scales, count * sizeof(float));
}

// Write `count` tokens from `slot` on, with adjacent keys.
template <class S>
inline void write_tokens(const GroupStore& s, const Slot& slot, int64_t count, const float* keys, const float* values,
                         int64_t value_stride) {
    write_keys_of<S>(s, slot, count, keys);
    const RoundedTokens<S> rounded_values(values, value_stride, s.value_dim, count);
    for (int64_t t = 0; t < count;) {
        const bool whole = (slot.token + t) % S::kDepth == 0 && t + S::kDepth <= count;
        whole ? write_value_words<S>(s, slot, t, rounded_values) : write_value<S>(s, slot, t, rounded_values);
        t += whole ? S::kDepth : 1;
    }
    if constexpr (S::kScaled)
        std::memcpy(scales_of(slot.values, s.value_bytes, s.block) + slot.token, rounded_values.scales, count * sizeof(float));
}

}  // namespace ferrum::FERRUM_TIER
