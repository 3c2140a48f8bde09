// A matrix [N, K] packed into panels of 32 outputs, padded with zeros, the same bytes in every tier.
//
//   f32   per k            32 floats
//   f16   per k            32 halves
//   bf16  per pair of k    32 words (k, k + 1)
//   int8  per 32 k         8 rows of 32 words of 4 k, bytes w + 128; then 32 scales in f16
//   int4  per 32 k         4 rows of 32 words: in byte i, low nibble k = 8 j + i, high nibble k = 8 j + 4 + i of w + 8 in
//                          row j; then 32 scales in f16
#pragma once

#include <cstddef>
#include <cstdint>

#include "buffer.hpp"
#include "kernel_table.hpp"

namespace ferrum {

inline bool is_grouped(Format format) { return format == Format::int8 || format == Format::int4; }
int64_t item_bytes(Format format);  // of one element of a format of floats
int64_t groups_of(int64_t inputs);

class Weight {
public:
    Weight(Format format, int64_t outputs, int64_t inputs, Heap& heap);

    Format format() const { return format_; }
    int64_t outputs() const { return outputs_; }
    int64_t inputs() const { return inputs_; }
    int64_t panels() const { return (outputs_ + kPanel - 1) / kPanel; }
    int64_t panel_bytes() const;
    int64_t nbytes() const { return panels() * panel_bytes(); }
    const std::byte* data() const { return memory_.get(); }

    // Pack the panels [begin, end) from a whole row-major matrix: of the weight's own type of floats; or, of an integer
    // format, from f16 scales [N, groups] and codes [N, 32 groups], int8 as they are (two's complement), int4 as w + 8, two
    // to a byte, the first in the low nibble.
    void pack(const void* matrix, int64_t panel_begin, int64_t panel_end);
    void pack_codes(const uint8_t* codes, const uint16_t* scales, int64_t panel_begin, int64_t panel_end);
    // Row `output` as f32, [K].
    void row(int64_t output, float* to) const;

private:
    Format format_;
    int64_t outputs_, inputs_;
    std::shared_ptr<std::byte> memory_;
};

}  // namespace ferrum
