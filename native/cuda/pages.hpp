// Pages of the KV pool on the device, [page][layer][KV head][block]{keys, values}: the layout of GroupStore in
// native/src/kernel_table.hpp, with the bytes of a page together.
#pragma once

#include "sums.hpp"

namespace ferrum::cuda {

// What a layer's kernels know of the pool and of the step's rows. All fields are of 8 bytes.
struct Pages {
    Byte* data;
    Int layers, layer, kv_heads;
    Int page_size, block, blocks_per_page;
    Int key_side;                 // adjacent tokens of keys
    Int key_words, value_padded;  // words of a key, dimensions of a value
    Int key_bytes, value_bytes;  // of a block; a latent store has no values
    const int* pages;            // [spans, stride]
    Int stride;
    const int* positions;  // [rows]
    const int* row_span;   // [rows]
    const int* last_seen;  // [rows]
};

constexpr int kValueSide = 64;  // adjacent dimensions of values

// The bytes of a block.
struct Block {
    Byte* keys;
    Byte* values;
    int token;  // index within the block of the token that was asked for
};

constexpr int kStep = 64;      // tokens of a block; a page that it does not divide is one block
constexpr int kKeySide = 16;  // adjacent tokens of keys; in a block that it does not divide all are

// The block of a token of a span, at a position. The keys are null if its page has been freed.
FERRUM_DEVICE Block token_block(const Pages& p, int span, int kv_head, int position) {
    const unsigned size = static_cast<unsigned>(p.page_size), index = static_cast<unsigned>(position) / size;
    const int page = p.pages[span * p.stride + index];
    if (page < 0) return {nullptr, nullptr, 0};
    const int offset = position - static_cast<int>(index * size);
    const Int head = (page * p.layers + p.layer) * p.kv_heads + kv_head, bytes = p.key_bytes + p.value_bytes;
    const bool whole = p.block != kStep;
    Byte* const at = p.data + (head * p.blocks_per_page + (whole ? 0 : offset / kStep)) * bytes;
    return {at, at + p.key_bytes, whole ? offset : offset % kStep};
}

// Bytes from a block's keys to word `word` of a token. The next tokens of the same side follow it.
FERRUM_DEVICE Int key_at(const Pages& p, int token, int word) {
    if (p.key_side != kKeySide) return (word * p.key_side + token) * 4;
    return ((token / kKeySide * p.key_words + word) * kKeySide + token % kKeySide) * 4;
}

// Bytes from a block's values to the word of dimension `d` that has a token, `depth` tokens a word. The next dimensions of
// the same 64 follow it.
FERRUM_DEVICE Int value_at(const Pages& p, int depth, int token, int d) {
    const int first = d / kValueSide * kValueSide, padded = static_cast<int>(p.value_padded);
    const int width = padded - first < kValueSide ? padded - first : kValueSide;
    return (first * (p.block / depth) + token / depth * width + (d - first)) * 4;
}

// The scales of a block's tokens stand behind its keys or values.
FERRUM_DEVICE float* key_scales(const Pages& p, const Block& block) {
    return reinterpret_cast<float*>(block.keys + p.key_bytes) - p.block;
}
FERRUM_DEVICE float* value_scales(const Pages& p, const Block& block) {
    return reinterpret_cast<float*>(block.values + p.value_bytes) - p.block;
}

// The formats of keys and values: elements of a word. Modules are compiled for FERRUM_FORMAT, one of them.
namespace formats {

struct float32 {
    static constexpr int kDepth = 1;
    static constexpr unsigned kEmpty = 0;  // a word of tokens that no row sees
};
struct bfloat16 {
    static constexpr int kDepth = 2;
    static constexpr unsigned kEmpty = 0x3f803f80u;  // ones: zeros would look like small numbers
};
struct int8 {
    static constexpr int kDepth = 4;
    static constexpr unsigned kEmpty = 0;
    static constexpr unsigned kKeyFlip = 0x80808080u;  // keys are stored as code + 128
};

}  // namespace formats

}  // namespace ferrum::cuda
