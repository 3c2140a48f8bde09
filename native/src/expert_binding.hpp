// Python bindings of the operations with experts and heads.
#pragma once

#include <memory>
#include <string>
#include <tuple>

#include "adapters.hpp"
#include "arrays.hpp"
#include "exchange.hpp"
#include "format_names.hpp"
#include "operations.hpp"

namespace ferrum {

// The fields of Routing in kernels/op_attributes.py, in order.
using RoutingTuple = std::tuple<int64_t, int64_t, std::string, bool, int64_t, int64_t, int64_t, bool, float, float, float, bool>;

using WeightTriple = std::tuple<std::shared_ptr<Weight>, std::shared_ptr<Weight>, std::shared_ptr<Weight>>;  // gate, up, down

// The selection bias, the scale of experts, and the biases of gate, up and down.
using ExpertVectors = std::tuple<MaybeFloats, MaybeFloats, MaybeFloats, MaybeFloats, MaybeFloats>;

std::shared_ptr<Operation> experts(Runtime& runtime, const Out<float>& x, const In<float>& scores, const Out<float>& out,
                                   const RoutingTuple& routing, const WeightTriple& weights, const ExpertVectors& vectors,
                                   const ActivationTuple& activation, int64_t extent, int64_t max_rows,
                                   std::shared_ptr<AdapterSite> site, std::shared_ptr<Exchange> exchange, Starts starts);

std::shared_ptr<Operation> head_linear(Runtime& runtime, const Out<float>& x, const Out<float>& out,
                                       std::shared_ptr<Weight> weight, int64_t heads, int64_t extent, int64_t max_rows);

}  // namespace ferrum
