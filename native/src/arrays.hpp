// Types of numpy arrays at the library's interface: contiguous, on the host, borrowed for a call.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>

namespace ferrum {

template <class T>
using In = nanobind::ndarray<const T, nanobind::c_contig, nanobind::device::cpu>;
template <class T>
using Out = nanobind::ndarray<T, nanobind::c_contig, nanobind::device::cpu>;
using Matrix = nanobind::ndarray<nanobind::ro, nanobind::c_contig, nanobind::device::cpu>;

inline void require(bool holds, const char* error) {
    if (!holds) throw std::invalid_argument(error);
}

}  // namespace ferrum
