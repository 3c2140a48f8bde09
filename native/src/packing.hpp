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

// Make panels of a float matrix on the whole team: unchanged, or quantised with a Rounding code.
Bytes pack(Runtime& runtime, const std::string& format, const Matrix& matrix);
std::pair<Bytes, int> quantize(Runtime& runtime, const std::string& from, const Matrix& matrix, const std::string& to);

// Make a weight over panels and keep them alive. Copies them only if they do not begin on a cache line.
std::shared_ptr<Weight> over_panels(Runtime& runtime, const std::string& format, const In<uint8_t>& panels, int64_t outputs, int64_t inputs);

// Sum each page of some bytes: see KernelTable.
void sum_pages(Runtime& runtime, const In<uint8_t>& bytes, const Out<uint64_t>& sums);

}  // namespace ferrum
