// A matrix [N, K] in panels of 32 outputs, padded with zeros, with the same bytes in every tier.
//
//   f32       per k            32 floats
//   f16       per k            32 halves
//   bf16      per pair of k    32 words (k, k + 1)
//   blocks    per block of k   scales and codes: see block_format.hpp
//
// Stored columns may be in another order than the inputs: InputOrder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernel_table.hpp"

namespace ferrum {

int64_t panel_bytes(Format format, int64_t inputs);
int64_t panel_count(int64_t outputs);

// The input of each stored column [inputs], for each run of `outputs` rows. Without numbers, column k belongs to input k.
struct InputOrder {
    std::shared_ptr<const std::vector<int32_t>> numbers;
    int64_t outputs = 1;
};

class Weight {
public:
    // Panels in borrowed memory that `owner` keeps alive; they begin on a cache line.
    Weight(Format format, int64_t outputs, int64_t inputs, const std::byte* panels, std::shared_ptr<const void> owner,
           InputOrder order = {}, int64_t first = 0);

    Format format() const { return format_; }
    int64_t outputs() const { return outputs_; }
    int64_t inputs() const { return inputs_; }
    int64_t panels() const { return panel_count(outputs_); }
    int64_t nbytes() const;
    const std::byte* data() const { return data_; }

    // The inputs of the columns in the row of an output; null if they are in order.
    const int32_t* order(int64_t output = 0) const;
    int64_t orders() const;
    // Whether rows of inputs are packed alike for both: in one format, by equal orders.
    bool packs_like(const Weight& other) const;

    // Outputs `begin` to `end` - 1, which are whole panels.
    std::shared_ptr<Weight> part(int64_t begin, int64_t end) const;
    // The same panels with an order of inputs, or another one.
    std::shared_ptr<Weight> ordered(InputOrder order) const;

    // Row `output` as f32 [K].
    void row(const KernelTable& kernels, int64_t output, float* to) const;

private:
    void stored_row(const KernelTable& kernels, int64_t output, float* to) const;

    Format format_;
    int64_t outputs_, inputs_;
    const std::byte* data_;
    std::shared_ptr<const void> owner_;
    InputOrder order_;
    int64_t first_;  // of the outputs in the whole matrix
};

}  // namespace ferrum
