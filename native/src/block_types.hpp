// Blocks of GGUF files to panels, without a change of any number (quant/gguf_blocks.py).
#pragma once

#include <string>
#include <vector>

#include "block_format.hpp"

namespace ferrum {

// A block of one output as its format stores it.
struct StoredBlock {
    uint16_t d, m;
    uint8_t subs[16], sub_minima[8], codes[256];
};

// Fields of a block in a file, one after another.
struct Fields {
    int width, count;
};

// A type of GGUF blocks: the format that holds its numbers, bytes of a block, and its reader; or its fields, whose bytes
// panels keep.
struct BlockType {
    const char* name;
    Format format;
    int64_t bytes;
    void (*read)(const uint8_t* block, StoredBlock& out);
    Fields fields[5];
};

// Throws std::invalid_argument.
const BlockType& block_type_of(const std::string& name);

// Names of the types that the library lays out; others come in panels.
std::vector<std::string> block_type_names();

// Write the panels [begin, end) of a matrix of blocks: matrix.values are its rows.
void lay_out_blocks(const BlockType& type, const MatrixArgs& matrix, int64_t begin, int64_t end, std::byte* panels);

}  // namespace ferrum
