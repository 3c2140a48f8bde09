// Types of numpy arrays at the library's interface: contiguous, on the host, borrowed for a call.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <optional>
#include <stdexcept>

namespace ferrum {

template <class T>
using In = nanobind::ndarray<const T, nanobind::c_contig, nanobind::device::cpu>;
template <class T>
using Out = nanobind::ndarray<T, nanobind::c_contig, nanobind::device::cpu>;
using MaybeFloats = std::optional<In<float>>;
using Matrix = nanobind::ndarray<nanobind::ro, nanobind::c_contig, nanobind::device::cpu>;

inline void require(bool holds, const char* error) {
    if (!holds) throw std::invalid_argument(error);
}

inline void check_size(const MaybeFloats& vector, int64_t size, const char* error) {
    require(!vector || static_cast<int64_t>(vector->size()) == size, error);
}

inline const float* data_or_null(const MaybeFloats& array) { return array ? array->data() : nullptr; }

}  // namespace ferrum
