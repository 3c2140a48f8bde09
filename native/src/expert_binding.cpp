#include "expert_binding.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "experts.hpp"
#include "head_linear.hpp"

namespace ferrum {

namespace {

void check_vector(const MaybeFloats& vector, int64_t size) {
    require(!vector || static_cast<int64_t>(vector->size()) == size, "a vector of experts has another size");
}

Routing routing_of(const RoutingTuple& given, const ExpertVectors& vectors) {
    const auto& [experts, top_k, score, late, groups, kept, best, renormalise, eps, least, factor, on_input] = given;
    require(0 < top_k && top_k <= experts, "top_k must be at least 1 and at most the experts");
    require(0 < groups && experts % groups == 0, "experts must be a multiple of groups");
    require(0 < kept && kept <= groups && top_k <= experts / groups * kept, "kept groups have too few experts");
    require(0 < best && best <= experts / groups, "a group has too few experts");
    check_vector(std::get<0>(vectors), experts);
    check_vector(std::get<1>(vectors), experts);
    const float *bias = data_or_null(std::get<0>(vectors)), *scale = data_or_null(std::get<1>(vectors));
    return {experts, top_k, score_of(score), late, groups, kept, best, renormalise, eps, least, factor, on_input, bias, scale};
}

void check_matrices(const Weight& weight, int64_t count) {
    require(count > 0 && weight.outputs() % (count * kPanel) == 0, "each matrix needs a multiple of 32 rows");
}

}  // namespace

std::shared_ptr<Operation> experts(Runtime& runtime, const Out<float>& x, const In<float>& scores, const Out<float>& out,
                                   const RoutingTuple& routing, const WeightTriple& weights, const ExpertVectors& vectors,
                                   const ActivationTuple& activation, int64_t extent, int64_t max_rows,
                                   std::shared_ptr<AdapterSite> site, std::shared_ptr<Exchange> exchange, Starts starts) {
    const Routing made = routing_of(routing, vectors);
    const auto& [gate, up, down] = weights;
    for (const auto& weight : {gate, up, down}) check_matrices(*weight, made.experts);
    require(gate->outputs() == up->outputs() && gate->inputs() == up->inputs(), "gate and up differ in shape");
    if (starts.empty()) {  // no rank has a part
        exchange = nullptr;
        starts = {0, down->inputs()};
        require(down->outputs() == gate->inputs() * made.experts, "down gives other rows than gate and up take");
    }
    const char* wrong = refusal(exchange.get(), starts);
    require(wrong == nullptr, wrong);
    const size_t rank = exchange == nullptr ? 0 : static_cast<size_t>(exchange->rank());
    require((starts[rank + 1] - starts[rank]) * made.experts == gate->outputs(), "gate and up have other rows than their part");
    require(down->inputs() == starts.back(), "down takes other rows than gate and up give");
    const auto& [selection_bias, expert_scale, gate_bias, up_bias, down_bias] = vectors;
    for (const auto& bias : {gate_bias, up_bias}) check_vector(bias, gate->outputs());
    check_vector(down_bias, down->outputs());
    const ExpertWeights all{gate, up, down, data_or_null(gate_bias), data_or_null(up_bias), data_or_null(down_bias)};
    return std::make_shared<Experts>(runtime, Rows{x.data(), extent}, scores.data(), out.data(), made, all,
                                     activation_of(activation), max_rows, std::move(site), std::move(exchange), std::move(starts));
}

std::shared_ptr<Operation> head_linear(Runtime& runtime, const Out<float>& x, const Out<float>& out,
                                       std::shared_ptr<Weight> weight, int64_t heads, int64_t extent, int64_t max_rows) {
    check_matrices(*weight, heads);
    return std::make_shared<HeadLinear>(runtime, Rows{x.data(), extent}, out.data(), std::move(weight), heads, max_rows);
}

}  // namespace ferrum
