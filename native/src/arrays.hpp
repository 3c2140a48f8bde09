// How numpy's arrays come into the library: contiguous, on the host, borrowed for a call.
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

inline void require(bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(what);
}

}  // namespace ferrum
