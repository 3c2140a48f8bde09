// A matrix [N, K] packed into panels of 32 outputs, padded with zeros, the same bytes in every tier.
//
//   f32   per k            32 floats
//   f16   per k            32 halves
//   bf16  per pair of k    32 words (k, k + 1)
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "buffer.hpp"
#include "kernel_table.hpp"

namespace ferrum {

int64_t item_bytes(Format format);

class Weight {
public:
    Weight(Format format, int64_t outputs, int64_t inputs);

    Format format() const { return format_; }
    int64_t outputs() const { return outputs_; }
    int64_t inputs() const { return inputs_; }
    int64_t panels() const { return (outputs_ + kPanel - 1) / kPanel; }
    int64_t nbytes() const { return memory_.size(); }
    const std::byte* data() const { return memory_.data(); }

    // Packs the panels [begin, end) from the whole row-major matrix of the weight's own type.
    void pack(const void* matrix, int64_t panel_begin, int64_t panel_end);
    // Row `output` as f32, [K].
    void row(int64_t output, float* to) const;

private:
    Format format_;
    int64_t outputs_, inputs_;
    Buffer memory_;
};

}  // namespace ferrum
