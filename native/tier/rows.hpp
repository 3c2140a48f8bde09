// Where a token's key and value lie in the pool, and how they get there.
#pragma once

#include "products.hpp"

namespace ferrum::FERRUM_TIER {

// One token's place: its block's keys and values, and its number within the block.
struct Slot {
    std::byte* keys;
    std::byte* values;
    int64_t token;
};

inline Slot slot_of(const GroupStore& s, int64_t layer, int64_t page, int64_t head, int64_t offset) {
    const int64_t first = ((layer * s.num_pages + page) * s.num_kv_heads + head) * s.blocks_per_page;
    const int64_t block = first + offset / s.block;
    return {s.keys + block * s.key_bytes, s.values + block * s.value_bytes, offset % s.block};
}

// Element d of a token's key within its block, in elements; `tokens` is the block's length.
template <class P>
inline int64_t key_index(int64_t tokens, int64_t token, int64_t d) {
    return (d / P::kDepth * tokens + token) * P::kDepth + d % P::kDepth;
}

template <class P>
inline int64_t value_index(int64_t padded, int64_t token, int64_t d) {
    return (token / P::kDepth * padded + d) * P::kDepth + token % P::kDepth;
}

template <class P>
struct StoredType {
    using type = float;
};
template <>
struct StoredType<Bf16> {
    using type = uint16_t;
};
template <class P>
using Stored = typename StoredType<P>::type;

// A token's elements in the store's format, zeros up to a whole vector.
template <class P>
inline void to_stored(const float* x, int64_t count, Stored<P>* out) {
    for (int64_t d = 0; d < count; d += kLanes) {
        if constexpr (P::kItem == 2)
            store(out + d, round_bf16(load_part(x + d, count - d)));
        else
            store(out + d, load_part(x + d, count - d));
    }
}

// Keys go out as whole words, one per step of the product; values as the token's half of words that neighbours share.
template <class P>
inline void write_token(const GroupStore& s, const Slot& slot, const float* key, const float* value) {
    Stored<P> row[kMaxHead + kLanes];
    to_stored<P>(key, s.key_dim, row);
    uint32_t* keys = reinterpret_cast<uint32_t*>(slot.keys) + slot.token;
    for (int64_t step = 0; step < s.key_padded / P::kDepth; ++step)
        std::memcpy(keys + step * s.block, row + step * P::kDepth, sizeof(uint32_t));
    to_stored<P>(value, s.value_dim, row);
    auto* values = reinterpret_cast<Stored<P>*>(slot.values) + value_index<P>(s.value_padded, slot.token, 0);
    for (int64_t d = 0; d < s.value_dim; ++d) values[d * P::kDepth] = row[d];
}

}  // namespace ferrum::FERRUM_TIER
