// Where a token's key and value lie in the pool, in each format, and how they get there.
#pragma once

#include <type_traits>

#include "bytes.hpp"
#include "products.hpp"

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
};

// Bytes with a scale for all elements of a head; keys are offset by 128, as weights are: see groups.hpp.
struct ByteStore {
    using Element = int8_t;
    static constexpr int kDepth = 4;
    static constexpr bool kScaled = true;
    static constexpr uint32_t kKeyFlip = 0x80808080u;

    static float round(const float* x, int64_t count, Element* out) { return round_bytes(x, count, out); }
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

// Element d of a token's key within its block, in elements; `tokens` is the block's length.
template <class S>
inline int64_t key_index(int64_t tokens, int64_t token, int64_t d) {
    return (d / S::kDepth * tokens + token) * S::kDepth + d % S::kDepth;
}

// Dimensions of values that lie side by side from `first` on.
inline int64_t value_width(int64_t padded, int64_t first) { return least(kSide, padded - first); }

// The first of those dimensions of a token.
template <class S>
inline int64_t value_index(int64_t tokens, int64_t padded, int64_t token, int64_t first) {
    return (first * (tokens / S::kDepth) + token / S::kDepth * value_width(padded, first)) * S::kDepth + token % S::kDepth;
}

// The scales of a block's tokens, behind its keys or its values.
inline float* scales_of(std::byte* keys, int64_t bytes, int64_t tokens) {
    return reinterpret_cast<float*>(keys + bytes) - tokens;
}

// Keys go out as whole words, one per step of the product; values as the token's part of words that neighbours share.
template <class S>
inline void write_token(const GroupStore& s, const Slot& slot, const float* key, const float* value) {
    typename S::Element row[kMaxHead + kLanes];
    const float key_scale = S::round(key, s.key_dim, row);
    uint32_t* keys = reinterpret_cast<uint32_t*>(slot.keys) + slot.token;
    for (int64_t step = 0; step < s.key_padded / S::kDepth; ++step) {
        uint32_t word;
        std::memcpy(&word, row + step * S::kDepth, sizeof word);
        keys[step * s.block] = word ^ S::kKeyFlip;
    }
    const float value_scale = S::round(value, s.value_dim, row);
    for (int64_t first = 0; first < s.value_dim; first += kSide) {
        auto* values = reinterpret_cast<typename S::Element*>(slot.values) +
                       value_index<S>(s.block, s.value_padded, slot.token, first);
        const int64_t width = least(kSide, s.value_dim - first);
        for (int64_t d = 0; d < width; ++d) values[d * S::kDepth] = row[first + d];
    }
    if constexpr (S::kScaled) {
        scales_of(slot.keys, s.key_bytes, s.block)[slot.token] = key_scale;
        scales_of(slot.values, s.value_bytes, s.block)[slot.token] = value_scale;
    }
}

}  // namespace ferrum::FERRUM_TIER
