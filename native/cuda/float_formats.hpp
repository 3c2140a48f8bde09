// Formats of floats in panels (native/src/weight.hpp, quant/panels.py): how a lane reads the numbers of its output.
//
// A format is a structure with
//   kInputs      inputs of a block, the unit in which panels are read
//   kBlockBytes  bytes of a block of a panel: kBlockRows rows of a word for each output
//   kSlots       blocks of a panel on their way to a block of threads that multiplies few rows
//   kPairs       whether inputs are bfloat16, and of each pair of terms the second one is added first
//   kHasScales   whether a block begins with the scales of its outputs, in float32
//   kScaled      whether each block has a sum, which joins the output by its scale
//   terms        how many terms an output of a depth adds: zeros complete pairs and blocks
//   kWords, raw  words with 8 inputs of an output, and one of them
//   number_at    an input of an output in a block, as an embedding takes it
//   numbers      8 numbers of such words, in the order of their addition
//
// A word of numbers of bfloat16 is plain if each number is 0 or at least 2^-55. A product of plain numbers with inputs of at
// least 2^-56 is a multiple of 2^-125, and so are sums of such products: none is subnormal, and none needs a check.
#pragma once

#include "numbers.hpp"

namespace ferrum::cuda {

constexpr int kTerms = 8;  // read at once
constexpr float kPlainInput = 1.3877787807814457e-17f;  // 2^-56

struct alignas(16) Four {
    float value[4];
};

FERRUM_DEVICE Int least(Int a, Int b) { return a < b ? a : b; }
FERRUM_DEVICE Int ceil_divide(Int a, Int b) { return (a + b - 1) / b; }
FERRUM_DEVICE unsigned word_at(const Byte* from) { return *reinterpret_cast<const unsigned*>(from); }

// The sixteen numbers of NF4 (quant/normal_floats.py).
FERRUM_CONSTANT float kNormalFloats[16] = {-1,           -0.6961928f, -0.52507305f, -0.3949175f, -0.28444138f, -0.18477343f,
                                           -0.091050036f, 0,          0.0795803f,   0.1609302f,  0.2461123f,   0.33791524f,
                                           0.44070983f,   0.562617f,  0.72295684f,  1};

namespace formats {

constexpr int kRow = kPanel * 4;  // bytes of a row of words

struct Floats {
    static constexpr bool kPairs = false, kHasScales = false, kScaled = false;
    static constexpr int kSlots = 8;

    static FERRUM_DEVICE Int terms(Int depth) { return depth; }
    static FERRUM_DEVICE unsigned small(unsigned) { return 0; }
};

struct f32 : Floats {
    static constexpr int kInputs = 32, kBlockBytes = kInputs * kRow, kWords = 8;

    static FERRUM_DEVICE Int panel_bytes(Int depth) { return depth * kRow; }
    static FERRUM_DEVICE unsigned raw(const Byte* block, int output, int k, int word) {
        return word_at(block + (k + word) * kRow + output * 4);
    }
    static FERRUM_DEVICE bool holds(Int depth, Int k, int word) { return k + word < depth; }
    static FERRUM_DEVICE void numbers(const unsigned (&words)[kWords], float, const float*, float (&out)[kTerms]) {
        for (int i = 0; i < kTerms; ++i) out[i] = as_float(words[i]);
    }
    static FERRUM_DEVICE float number_at(const Byte* block, int output, int k) { return as_float(raw(block, output, k, 0)); }
};

struct f16 : Floats {
    static constexpr int kInputs = 64, kBlockBytes = kInputs * kRow / 2, kWords = 8;

    static FERRUM_DEVICE Int panel_bytes(Int depth) { return depth * kRow / 2; }
    static FERRUM_DEVICE unsigned raw(const Byte* block, int output, int k, int word) {
        return *reinterpret_cast<const unsigned short*>(block + (k + word) * kRow / 2 + output * 2);
    }
    static FERRUM_DEVICE bool holds(Int depth, Int k, int word) { return k + word < depth; }
    static FERRUM_DEVICE void numbers(const unsigned (&words)[kWords], float, const float*, float (&out)[kTerms]) {
        for (int i = 0; i < kTerms; ++i) out[i] = half_to_float(words[i]);
    }
    static FERRUM_DEVICE float number_at(const Byte* block, int output, int k) { return half_to_float(raw(block, output, k, 0)); }
};

struct bf16 : Floats {
    static constexpr bool kPairs = true;
    static constexpr int kInputs = 64, kBlockBytes = kInputs / 2 * kRow, kWords = 4;

    static FERRUM_DEVICE Int terms(Int depth) { return (depth + 1) / 2 * 2; }
    static FERRUM_DEVICE Int panel_bytes(Int depth) { return terms(depth) / 2 * kRow; }
    static FERRUM_DEVICE unsigned raw(const Byte* block, int output, int k, int word) {
        return word_at(block + (k / 2 + word) * kRow + output * 4);
    }
    static FERRUM_DEVICE bool holds(Int depth, Int k, int word) { return k + 2 * word < depth; }
    // Not 0 if a number of the word is neither 0 nor plain. In each half, one sum has bit 15 where the magnitude is not 0,
    // the other one where it is at least 2^-55.
    static FERRUM_DEVICE unsigned small(unsigned word) {
        const unsigned sizes = word & 0x7fff7fffu;
        return (sizes + 0x7fff7fffu) & ~(sizes + 0x5c005c00u) & 0x80008000u;
    }
    static FERRUM_DEVICE void numbers(const unsigned (&words)[kWords], float, const float*, float (&out)[kTerms]) {
        for (int i = 0; i < kWords; ++i) {
            out[2 * i] = as_float(words[i] & 0xffff0000u);
            out[2 * i + 1] = as_float(words[i] << 16);
        }
    }
    static FERRUM_DEVICE float number_at(const Byte* block, int output, int k) {
        return bf16_to_float(raw(block, output, k, 0) >> (k % 2 * 16) & 0xffffu);
    }
};

// A block has the scales of its outputs, and words of the inputs k, k + 2, k + 1 and k + 3.
struct fp8 : Floats {
    static constexpr bool kPairs = true, kHasScales = true, kScaled = true;
    static constexpr int kInputs = 128, kBlockBytes = kRow + kInputs * kPanel, kSlots = 7, kWords = 2;

    static FERRUM_DEVICE Int terms(Int depth) { return ceil_divide(depth, kInputs) * kInputs; }
    static FERRUM_DEVICE Int panel_bytes(Int depth) { return ceil_divide(depth, kInputs) * kBlockBytes; }
    static FERRUM_DEVICE unsigned raw(const Byte* block, int output, int k, int word) {
        return word_at(block + kRow + (k / 4 + word) * kRow + output * 4);
    }
    static FERRUM_DEVICE bool holds(Int, Int, int) { return true; }
    // The number of the byte at a bit of a word; 2^120 is the difference of the biases.
    static FERRUM_DEVICE float number(unsigned word, int bit) {
        const unsigned byte = word >> bit;
        return as_float((byte & 127u) << 20 | (byte & 128u) << 24) * 1.329227995784916e36f;
    }
    static FERRUM_DEVICE void numbers(const unsigned (&words)[kWords], float, const float*, float (&out)[kTerms]) {
        for (int i = 0; i < kWords; ++i) {
            out[4 * i] = number(words[i], 16);
            out[4 * i + 1] = number(words[i], 0);
            out[4 * i + 2] = number(words[i], 24);
            out[4 * i + 3] = number(words[i], 8);
        }
    }
    static FERRUM_DEVICE float number_at(const Byte* block, int output, int k) {
        const int place = k % 4 == 1 ? 2 : k % 4 == 2 ? 1 : k % 4;
        return number(raw(block, output, k, 0), place * 8) * as_float(word_at(block + output * 4));
    }
};

// A block has the scales of its outputs, and words of 8 codes.
struct nf4 : Floats {
    static constexpr bool kHasScales = true;
    static constexpr int kInputs = 64, kBlockBytes = kRow + kInputs * kPanel / 2, kSlots = 24, kWords = 1;

    static FERRUM_DEVICE Int panel_bytes(Int depth) { return ceil_divide(depth, kInputs) * kBlockBytes; }
    static FERRUM_DEVICE unsigned raw(const Byte* block, int output, int k, int) {
        return word_at(block + kRow + k / 8 * kRow + output * 4);
    }
    static FERRUM_DEVICE bool holds(Int, Int, int) { return true; }
    static FERRUM_DEVICE void numbers(const unsigned (&words)[kWords], float scale, const float* table, float (&out)[kTerms]) {
        for (int i = 0; i < kTerms; ++i) out[i] = table[words[0] >> (4 * i) & 15u] * scale;
    }
    static FERRUM_DEVICE float number_at(const Byte* block, int output, int k) {
        return kNormalFloats[raw(block, output, k, 0) >> (k % 8 * 4) & 15u] * as_float(word_at(block + output * 4));
    }
};

}  // namespace formats
}  // namespace ferrum::cuda
