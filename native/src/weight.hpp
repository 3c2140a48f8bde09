// A matrix [N, K] in panels of 32 outputs, padded with zeros, with the same bytes in every tier.
//
//   f32       per k            32 floats
//   f16       per k            32 halves
//   bf16      per pair of k    32 words (k, k + 1)
//   blocks    per block of k   scales and codes: see block_format.hpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernel_table.hpp"

namespace ferrum {

int64_t panel_bytes(Format format, int64_t inputs);
int64_t panel_count(int64_t outputs);

class Weight {
public:
    // Panels in borrowed memory that `owner` keeps alive; they begin on a cache line.
    Weight(Format format, int64_t outputs, int64_t inputs, const std::byte* panels, std::shared_ptr<const void> owner);

    Format format() const { return format_; }
    int64_t outputs() const { return outputs_; }
    int64_t inputs() const { return inputs_; }
    int64_t panels() const { return panel_count(outputs_); }
    int64_t nbytes() const { return panels() * panel_bytes(format_, inputs_); }
    const std::byte* data() const { return data_; }

    // Outputs `begin` to `end` - 1, which are whole panels.
    std::shared_ptr<Weight> part(int64_t begin, int64_t end) const;

    // Row `output` as f32 [K].
    void row(const KernelTable& kernels, int64_t output, float* to) const;

private:
    Format format_;
    int64_t outputs_, inputs_;
    const std::byte* data_;
    std::shared_ptr<const void> owner_;
};

}  // namespace ferrum
