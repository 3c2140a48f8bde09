// Where a token's key and value lie in the pool, in each format, and how they get there.
#pragma once

#include <type_traits>

#include "bytes.hpp"
#include "products.hpp"
#include "transpose.hpp"

namespace ferrum::FERRUM_TIER {

// A format of keys and values: the type of an element, of which kDepth fill a word; whether a token has a scale; what is
// flipped in a word of keys; and how a token's elements are rounded, with zeros up to a whole vector.
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

    // kLanes elements, their bits alone.
    static vu widen(const Element* from) {
        if constexpr (P::kItem == 2) return __builtin_convertvector(load<vh>(from), vu);
        return load<vu>(from);
    }
};

// Bytes with a scale for all elements of a head; keys are offset by 128, as weights are: see dots.hpp.
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

// One token's place: its block's keys and values, and its number within the block.
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

// Element d of a token's key within its block, in elements; keys have `padded` of them, `side` tokens lie side by side.
template <class S>
inline int64_t key_index(int64_t side, int64_t padded, int64_t token, int64_t d) {
    return (token / side * (padded / S::kDepth) + d / S::kDepth) * side * S::kDepth + token % side * S::kDepth + d % S::kDepth;
}

// Where the vectors of a step's keys of so many words lie: those of kKeySide tokens side by side. It holds from the first vector
// of a part on, too (see step_parts), since parts begin where a side does, or end with it.
struct KeyVectors {
    int64_t words;

    int64_t at(int vector) const { return (vector * kLanes / kKeySide * words * kKeySide + vector * kLanes % kKeySide) * 4; }
};

// The first word of a token's key; its next words are s.key_side words apart.
inline std::byte* key_of(const GroupStore& s, const Slot& slot, int64_t words) {
    return slot.keys + (slot.token / s.key_side * words * s.key_side + slot.token % s.key_side) * 4;
}

// Dimensions of values that lie side by side from `first` on.
inline int64_t value_width(int64_t padded, int64_t first) { return least(kSide, padded - first); }

// The first of those dimensions of a token.
template <class S>
inline int64_t value_index(int64_t tokens, int64_t padded, int64_t token, int64_t first) {
    return (first * (tokens / S::kDepth) + token / S::kDepth * value_width(padded, first)) * S::kDepth + token % S::kDepth;
}

// The block that is gone over after another one: so many bytes behind it, and its first `tokens` will be read. None: nothing is.
struct NextBlock {
    int64_t distance = 0, tokens = 0;

    // What NV vectors of keys, from `part` on, fetch of it: the sides that lie where theirs do, a line of each side in turn, or,
    // of fewer sides, one line after the other. A side has a line for each word.
    template <int NV>
    Ahead keys(const std::byte* keys, int part, const KeyVectors& vectors) const {
        const std::byte* from = keys + vectors.at(part) + distance;
        const int64_t sides = ceil_divide(tokens, kKeySide) - part * kLanes / kKeySide;
        if (sides >= kLinesOf<NV>) return {from, 64, vectors.words, vectors.words * 64};
        return {from, kLinesOf<NV> * 64, ceil_divide(sides * vectors.words, kLinesOf<NV>)};
    }

    // What vectors of values, in rows of `depth` tokens, fetch of it: those that lie where they do.
    Ahead values(const std::byte* values, int64_t stride, int depth) const {
        return {values + distance, stride, ceil_divide(tokens, depth)};
    }

    // Fetches the scales of its keys or values, behind those.
    void fetch_scales(const std::byte* scales) const { prefetch_bytes(scales + distance, tokens * 4); }
};

// The scales of a block's tokens, behind its keys or its values.
inline float* scales_of(std::byte* keys, int64_t bytes, int64_t tokens) {
    return reinterpret_cast<float*>(keys + bytes) - tokens;
}

// Fetches the lines of a block that `count` tokens from `slot` on are written to, all side by side.
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

// Some tokens that follow each other within a block, rounded to the store's elements: kRowBlock at most.
template <class S>
struct RoundedTokens {
    typename S::Element rows[kRowBlock][kMaxHead + kLanes];
    float scales[kRowBlock];

    RoundedTokens(const float* x, int64_t stride, int64_t dim, int64_t count) {
        for (int64_t t = 0; t < count; ++t) scales[t] = S::round(x + t * stride, dim, rows[t]);
    }
};

// Keys go out as whole words, one per step of the product. Of several tokens a step's words lie side by side.
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

// The same for one token, whose words are nowhere side by side.
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

// The values of token `t` of some. Those that share its words may be another thread's: it writes no more than its own part.
template <class S>
inline void write_value(const GroupStore& s, const Slot& slot, int64_t t, const RoundedTokens<S>& values) {
    for (int64_t first = 0; first < s.value_dim; first += kSide) {
        auto* to = reinterpret_cast<typename S::Element*>(slot.values) +
                   value_index<S>(s.block, s.value_padded, slot.token + t, first);
        for (int64_t d = 0; d < least(kSide, s.value_dim - first); ++d) to[d * S::kDepth] = values.rows[t][first + d];
    }
}

// The values of the tokens that fill whole words, from token `t` of some on.
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

// `count` tokens from `slot` on, whose keys lie side by side.
template <class S>
inline void write_tokens(const GroupStore& s, const Slot& slot, int64_t count, const float* keys, const float* values,
                         int64_t value_stride) {
    const RoundedTokens<S> rounded_keys(keys, s.key_dim, s.key_dim, count);
    count == 1 ? write_key<S>(s, slot, rounded_keys) : write_keys<S>(s, slot, count, rounded_keys);
    const RoundedTokens<S> rounded_values(values, value_stride, s.value_dim, count);
    for (int64_t t = 0; t < count;) {
        const bool whole = (slot.token + t) % S::kDepth == 0 && t + S::kDepth <= count;
        whole ? write_value_words<S>(s, slot, t, rounded_values) : write_value<S>(s, slot, t, rounded_values);
        t += whole ? S::kDepth : 1;
    }
    if constexpr (S::kScaled) {
        std::memcpy(scales_of(slot.keys, s.key_bytes, s.block) + slot.token, rounded_keys.scales, count * sizeof(float));
        std::memcpy(scales_of(slot.values, s.value_bytes, s.block) + slot.token, rounded_values.scales, count * sizeof(float));
    }
}

}  // namespace ferrum::FERRUM_TIER
