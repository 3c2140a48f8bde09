// Python bindings of adapters: entries of sites, rows of a step, operations.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "adapters.hpp"
#include "arrays.hpp"
#include "format_names.hpp"

namespace ferrum {

// A float matrix: its format, and its elements as the library takes them.
using FloatsTuple = std::tuple<std::string, Matrix>;

// See AdapterChange: A and B with the rank and the scale, or nothing is added; the bias, the factor and the offset; replaced rows.
using LowRankTuple = std::tuple<FloatsTuple, FloatsTuple, int64_t, double>;
using ReplacedTuple = std::tuple<FloatsTuple, std::optional<In<int32_t>>>;
using ChangeTuple =
    std::tuple<std::optional<LowRankTuple>, MaybeFloats, MaybeFloats, MaybeFloats, std::optional<ReplacedTuple>>;

// A slot, a scale, rows and rows of logits.
using StepAdapterTuple = std::tuple<int64_t, double, In<int32_t>, In<int32_t>>;

void set_entry(AdapterSite& site, int64_t slot, const std::optional<std::vector<std::optional<ChangeTuple>>>& changes);

void take_adapters(Step& step, const std::vector<StepAdapterTuple>& adapters);

std::shared_ptr<Operation> adapt(Runtime& runtime, std::shared_ptr<AdapterSite> site, const Out<float>& x, int64_t inputs,
                                 const std::vector<Out<float>>& ys, const std::vector<int64_t>& outputs, int64_t heads);

std::shared_ptr<Operation> adapt_embedding(Runtime& runtime, std::shared_ptr<AdapterSite> site, const Out<float>& y,
                                           int64_t columns, double scale);

std::shared_ptr<Operation> activate(const In<float>& x, const MaybeFloats& others, const std::optional<ActivationTuple>& activation,
                                    int64_t columns, const Out<float>& out, int64_t extent);

}  // namespace ferrum
