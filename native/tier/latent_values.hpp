// The values of latent attention: the first numbers of a step's keys, moved to the layout of values.
#pragma once

#include "rows.hpp"

namespace ferrum::FERRUM_TIER {

// Words of one dimension from words of S::kDepth tokens: tokens[t] holds kLanes words of token t, and word i of
// dimensions[v] becomes dimension v x kLanes + i of all these tokens.
template <class S>
inline void words_of_dimensions(const vu* tokens, vf (&dimensions)[S::kDepth]) {
    if constexpr (S::kDepth == 1) {
        dimensions[0] = (vf)tokens[0];
    } else if constexpr (S::kDepth == 2) {
        const vf even = (vf)((tokens[0] & 0xffffu) | tokens[1] << 16), odd = (vf)(tokens[0] >> 16 | (tokens[1] & 0xffff0000u));
        dimensions[0] = pick<LowInTurns>(even, odd);
        dimensions[1] = pick<HighInTurns>(even, odd);
    } else {
        vu even[2], odd[2];  // bytes 0 and 2, and bytes 1 and 3, of two tokens in turns
        for (int i = 0; i < 2; ++i) {
            const vu a = tokens[2 * i], b = tokens[2 * i + 1];
            even[i] = (a & 0x00ff00ffu) | (b & 0x00ff00ffu) << 8;
            odd[i] = (a >> 8 & 0x00ff00ffu) | (b & 0xff00ff00u);
        }
        const vf zero = (vf)((even[0] & 0xffffu) | even[1] << 16), two = (vf)(even[0] >> 16 | (even[1] & 0xffff0000u));
        const vf one = (vf)((odd[0] & 0xffffu) | odd[1] << 16), three = (vf)(odd[0] >> 16 | (odd[1] & 0xffff0000u));
        const vf even_low = pick<LowInTurns>(zero, two), even_high = pick<HighInTurns>(zero, two);
        const vf odd_low = pick<LowInTurns>(one, three), odd_high = pick<HighInTurns>(one, three);
        dimensions[0] = pick<LowInTurns>(even_low, odd_low);
        dimensions[1] = pick<HighInTurns>(even_low, odd_low);
        dimensions[2] = pick<LowInTurns>(even_high, odd_high);
        dimensions[3] = pick<HighInTurns>(even_high, odd_high);
    }
}

// Write the values of the first `tokens` tokens of a step from its keys, and their scales. Keys and values are blocks of
// kStep tokens.
template <class S>
inline void values_of_keys(const GroupStore& s, const std::byte* keys, int64_t tokens, std::byte* values) {
    const int64_t words = s.key_padded / S::kDepth;
    for (int64_t token = 0; token < tokens; token += kLanes) {
        const std::byte* from = keys + (token / kKeySide * words * kKeySide + token % kKeySide) * 4;
        for (int64_t word = 0; word * S::kDepth < s.value_padded; word += kLanes) {
            vf columns[kLanes];
            turn_rows(words - word, columns, [&](int64_t i) { return load<vf>(from + (word + i) * kKeySide * 4); });
            vu rows[kLanes];
            for (int t = 0; t < kLanes; ++t) rows[t] = (vu)columns[t] ^ S::kKeyFlip;
            for (int t = 0; t < kLanes; t += S::kDepth) {
                vf dimensions[S::kDepth];
                words_of_dimensions<S>(rows + t, dimensions);
                for (int v = 0; v < S::kDepth; ++v) {
                    const int64_t d = word * S::kDepth + v * kLanes, first = d / kSide * kSide;
                    if (d >= s.value_padded) break;
                    auto* to = reinterpret_cast<typename S::Element*>(values) +
                               value_index<S>(kStep, s.value_padded, token + t, first);
                    store(to + (d - first) * S::kDepth, dimensions[v]);
                }
            }
        }
    }
    if constexpr (S::kScaled)
        std::memcpy(values + kStep * s.value_padded, keys + kStep * s.key_padded, kStep * sizeof(float));
}

}  // namespace ferrum::FERRUM_TIER
