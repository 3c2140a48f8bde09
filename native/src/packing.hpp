// Conversion of matrices to panels and of panels to weights, for Python.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "arrays.hpp"
#include "runtime.hpp"
#include "weight.hpp"

namespace ferrum {

using Bytes = nanobind::ndarray<nanobind::numpy, uint8_t, nanobind::ndim<1>>;

// Make panels on the whole team: of a float matrix, or of rows of blocks of a GGUF type [rows, blocks, bytes].
Bytes pack(Runtime& runtime, const std::string& format, const Matrix& matrix);
Bytes pack_blocks(Runtime& runtime, const std::string& type, const In<uint8_t>& blocks);

// Quantise a float matrix [N, K] to panels on the whole team, with a Rounding code. `importance` has a number per input
// up to the end of the last block, or none.
std::pair<Bytes, int> quantize(Runtime& runtime, const std::string& from, const Matrix& matrix, const std::string& to,
                               const In<float>& importance, bool thorough);

// Make a weight over panels and keep them alive. Copies them only if they do not begin on a cache line.
std::shared_ptr<Weight> over_panels(Runtime& runtime, const std::string& format, const In<uint8_t>& panels, int64_t outputs, int64_t inputs);

// Sum each page of some bytes: see KernelTable.
void sum_pages(Runtime& runtime, const In<uint8_t>& bytes, const Out<uint64_t>& sums);

}  // namespace ferrum
