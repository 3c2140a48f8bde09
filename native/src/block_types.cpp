#include "block_types.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace ferrum {

namespace {

uint16_t half_at(const uint8_t* block, int64_t at) {
    uint16_t bits;
    std::memcpy(&bits, block + at, sizeof bits);
    return bits;
}

// Codes of 32 inputs from 16 bytes: the low halves first, then the high ones.
void nibbles(const uint8_t* from, uint8_t* codes, int count = 16) {
    for (int i = 0; i < count; ++i) codes[i] = from[i] & 15, codes[count + i] = static_cast<uint8_t>(from[i] >> 4);
}

void fifth_bits(const uint8_t* from, uint8_t* codes) {
    for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(codes[i] | (from[i / 8] >> i % 8 & 1) << 4);
}

void q8_0(const uint8_t* b, StoredBlock& out) {
    out.d = half_at(b, 0);
    for (int i = 0; i < 32; ++i) out.codes[i] = b[2 + i] ^ 128;
}

void q4_0(const uint8_t* b, StoredBlock& out) {
    out.d = half_at(b, 0);
    nibbles(b + 2, out.codes);
}

void q4_1(const uint8_t* b, StoredBlock& out) {
    out.d = half_at(b, 0), out.m = half_at(b, 2);
    nibbles(b + 4, out.codes);
}

void q5_0(const uint8_t* b, StoredBlock& out) {
    out.d = half_at(b, 0);
    nibbles(b + 6, out.codes);
    fifth_bits(b + 2, out.codes);
}

void q5_1(const uint8_t* b, StoredBlock& out) {
    out.d = half_at(b, 0), out.m = half_at(b, 2);
    nibbles(b + 8, out.codes);
    fifth_bits(b + 4, out.codes);
}

// Eight scales and eight minima of six bits from 12 bytes.
void scales_and_minima(const uint8_t* b, StoredBlock& out) {
    out.d = half_at(b, 0), out.m = half_at(b, 2);
    const uint8_t* packed = b + 4;
    for (int i = 0; i < 4; ++i) {
        out.subs[i] = packed[i] & 63;
        out.sub_minima[i] = packed[4 + i] & 63;
        out.subs[4 + i] = static_cast<uint8_t>((packed[8 + i] & 15) | (packed[i] >> 2 & 48));
        out.sub_minima[4 + i] = static_cast<uint8_t>(packed[8 + i] >> 4 | (packed[4 + i] >> 2 & 48));
    }
}

void q4_k(const uint8_t* b, StoredBlock& out) {
    scales_and_minima(b, out);
    for (int run = 0; run < 4; ++run) nibbles(b + 16 + run * 32, out.codes + run * 64, 32);
}

void q5_k(const uint8_t* b, StoredBlock& out) {
    scales_and_minima(b, out);
    for (int run = 0; run < 4; ++run) nibbles(b + 48 + run * 32, out.codes + run * 64, 32);
    for (int group = 0; group < 8; ++group)
        for (int i = 0; i < 32; ++i)
            out.codes[group * 32 + i] = static_cast<uint8_t>(out.codes[group * 32 + i] | (b[16 + i] >> group & 1) << 4);
}

void q6_k(const uint8_t* b, StoredBlock& out) {
    out.d = half_at(b, 208);
    std::memcpy(out.subs, b + 192, 16);
    for (int half = 0; half < 2; ++half) {
        nibbles(b + half * 64, out.codes + half * 128, 64);
        for (int part = 0; part < 4; ++part)
            for (int i = 0; i < 32; ++i) {
                uint8_t& code = out.codes[half * 128 + part * 32 + i];
                code = static_cast<uint8_t>(code | (b[128 + half * 32 + i] >> 2 * part & 3) << 4);
            }
    }
}

void iq4_xs(const uint8_t* b, StoredBlock& out) {
    out.d = half_at(b, 0);
    const int high = half_at(b, 2);
    for (int i = 0; i < 8; ++i) {
        const int low = b[4 + i / 2] >> 4 * (i % 2) & 15;
        out.subs[i] = static_cast<uint8_t>((low | (high >> 2 * i & 3) << 4) - 32);
        nibbles(b + 8 + i * 16, out.codes + i * 32);
    }
}

// The scale is half of the power of two, since the table has twice the numbers.
void mxfp4(const uint8_t* b, StoredBlock& out) {
    out.d = static_cast<uint16_t>(b[0] < 2 ? 0x20 << b[0] : (b[0] - 1) << 7);
    nibbles(b + 1, out.codes);
}

constexpr BlockType kTypes[] = {
    {"Q8_0", Format::q8_0, 34, q8_0, {}},
    {"Q4_0", Format::q4_0, 18, q4_0, {}},
    {"Q4_1", Format::q4_1, 20, q4_1, {}},
    {"Q5_0", Format::q5_0, 22, q5_0, {}},
    {"Q5_1", Format::q5_1, 24, q5_1, {}},
    {"Q4_K", Format::q4_k, 144, q4_k, {}},
    {"Q5_K", Format::q5_k, 176, q5_k, {}},
    {"Q6_K", Format::q6_k, 210, q6_k, {}},
    {"IQ4_NL", Format::iq4_nl, 18, q4_0, {}},
    {"IQ4_XS", Format::iq4_xs, 136, iq4_xs, {}},
    {"MXFP4", Format::mxfp4, 17, mxfp4, {}},
    {"Q2_K", Format::q2_k, 84, nullptr, {{1, 16}, {4, 16}, {2, 2}}},
    {"Q3_K", Format::q3_k, 110, nullptr, {{4, 24}, {1, 12}, {2, 1}}},
    {"IQ2_XXS", Format::iq2_xxs, 66, nullptr, {{2, 1}, {4, 16}}},
    {"IQ2_XS", Format::iq2_xs, 74, nullptr, {{2, 33}, {1, 8}}},
    {"IQ2_S", Format::iq2_s, 82, nullptr, {{2, 1}, {4, 16}, {1, 16}}},
    {"IQ3_XXS", Format::iq3_xxs, 98, nullptr, {{2, 1}, {4, 24}}},
    {"IQ3_S", Format::iq3_s, 110, nullptr, {{2, 1}, {4, 16}, {1, 8}, {4, 8}, {1, 4}}},
    {"IQ1_S", Format::iq1_s, 50, nullptr, {{2, 1}, {4, 8}, {2, 8}}},
    {"IQ1_M", Format::iq1_m, 56, nullptr, {{4, 8}, {2, 12}}},
    {"TQ1_0", Format::tq1_0, 54, nullptr, {{4, 13}, {2, 1}}},
    {"TQ2_0", Format::tq2_0, 66, nullptr, {{4, 16}, {2, 1}}},
    {"NVFP4", Format::nvfp4, 36, nullptr, {{1, 4}, {4, 8}}},
    {"Q4_Z32", Format::q4_z32, 74, nullptr, {{4, 16}, {2, 5}}},
    {"Q4_Z64", Format::q4_z64, 70, nullptr, {{4, 16}, {2, 3}}},
    {"Q4_Z128", Format::q4_z128, 68, nullptr, {{4, 16}, {2, 2}}},
    {"Q3_Z32", Format::q3_z32, 58, nullptr, {{4, 12}, {2, 5}}},
    {"Q3_Z64", Format::q3_z64, 54, nullptr, {{4, 12}, {2, 3}}},
    {"Q3_Z128", Format::q3_z128, 52, nullptr, {{4, 12}, {2, 2}}},
    {"Q2_Z32", Format::q2_z32, 42, nullptr, {{4, 8}, {2, 5}}},
    {"Q2_Z64", Format::q2_z64, 38, nullptr, {{4, 8}, {2, 3}}},
    {"Q2_Z128", Format::q2_z128, 36, nullptr, {{4, 8}, {2, 2}}},
    {"NF4", Format::nf4, 36, nullptr, {{4, 9}}},
};

uint32_t word_at(const uint8_t* codes) {
    uint32_t word;
    std::memcpy(&word, codes, sizeof word);
    return word;
}

// Write an output's block into its lane of a panel's block.
void store_block(const StoredBlock& from, const BlockFormat& f, int64_t lane, std::byte* block) {
    std::memcpy(block + lane * 2, &from.d, 2);
    if (f.minima) std::memcpy(block + (kPanel + lane) * 2, &from.m, 2);
    for (int64_t i = 0; i < f.subs(); ++i) {
        block[f.sub_at() + i * kPanel + lane] = std::byte{from.subs[i]};
        if (f.minima) block[f.sub_m_at() + i * kPanel + lane] = std::byte{from.sub_minima[i]};
    }
    for (int64_t group = 0; group < f.groups(); ++group) {
        const uint8_t* codes = from.codes + group * f.group;
        std::byte* rows = block + f.header_bytes() + group * f.code_bytes() + lane * 4;
        uint32_t upper = 0;
        for (int row = 0; row < f.code_rows(); ++row) {
            uint32_t word = word_at(codes + row * (f.bits == 8 ? 4 : 8));
            if (f.bits != 8) {
                const uint32_t next = word_at(codes + row * 8 + 4);
                upper |= (word >> 4 & 0x03030303u) << (2 * row * (f.bits - 4)) | (next >> 4 & 0x03030303u) << ((2 * row + 1) * (f.bits - 4));
                word = (word & 0x0f0f0f0fu) | (next & 0x0f0f0f0fu) << 4;
            }
            std::memcpy(rows + row * kPanel * 4, &word, 4);
        }
        if (f.bits == 5 || f.bits == 6) std::memcpy(rows + f.code_rows() * kPanel * 4, &upper, 4);
    }
}

// Copy an output's block into its lane of a panel's block, field by field.
void copy_fields(const BlockType& type, const uint8_t* from, int64_t lane, std::byte* block) {
    int64_t at = 0;
    for (const Fields& fields : type.fields)
        for (int i = 0; i < fields.count; ++i, at += fields.width)
            std::memcpy(block + at * kPanel + lane * fields.width, from + at, static_cast<size_t>(fields.width));
}

}  // namespace

const BlockType& block_type_of(const std::string& name) {
    for (const BlockType& known : kTypes)
        if (name == known.name) return known;
    throw std::invalid_argument("unknown type of blocks: " + name);
}

std::vector<std::string> block_type_names() {
    std::vector<std::string> names;
    for (const BlockType& known : kTypes) names.emplace_back(known.name);
    return names;
}

void lay_out_blocks(const BlockType& type, const MatrixArgs& m, int64_t begin, int64_t end, std::byte* panels) {
    const BlockFormat f = block_format(type.format);
    const int64_t blocks = m.inputs / f.inputs;
    const uint8_t zeros[256] = {};
    StoredBlock stored{}, none{};
    std::fill(std::begin(none.codes), std::end(none.codes), static_cast<uint8_t>(f.offset));
    for (int64_t at = begin * blocks; at < end * blocks; ++at)
        for (int64_t lane = 0; lane < kPanel; ++lane) {
            const int64_t output = at / blocks * kPanel + lane, from = output * blocks + at % blocks;
            const auto* block = reinterpret_cast<const uint8_t*>(m.values) + from * type.bytes;
            if (type.read == nullptr) {
                copy_fields(type, output < m.outputs ? block : zeros, lane, panels + at * f.bytes());
                continue;
            }
            if (output < m.outputs) type.read(block, stored);
            store_block(output < m.outputs ? stored : none, f, lane, panels + at * f.bytes());
        }
}

}  // namespace ferrum
