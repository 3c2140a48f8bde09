// Python bindings of the slots of states, and of the operations of recurrent layers.
#pragma once

#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "arrays.hpp"
#include "format_names.hpp"
#include "operations.hpp"

namespace ferrum {

// See StatePool in kernels/interface.py: the number of slots, the shapes (numbers, numbers of a row, layers), the rows kept.
using StateShapeTuple = std::tuple<int64_t, int64_t, int64_t>;
using StatePoolTuple = std::tuple<int64_t, std::vector<StateShapeTuple>, int64_t>;

// See StateTables in kernels/interface.py.
using StateTablesTuple = std::tuple<In<int32_t>, In<int32_t>, In<int32_t>, In<int32_t>>;

// Group and layer; heads, key heads, width of a key and of a value.
using DeltaShapeTuple = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool>;

void allocate_states(Runtime& runtime, const std::optional<StatePoolTuple>& pool);

// Keep the tables of the step whose other tables are there, after `States::check`.
void take_states(Runtime& runtime, const std::optional<StateTablesTuple>& tables);

void copy_slot(Runtime& runtime, int64_t source, int64_t target);
void read_slot(const Runtime& runtime, int64_t slot, const Out<uint8_t>& out);
void write_slot(Runtime& runtime, int64_t slot, const In<uint8_t>& in);

std::shared_ptr<Operation> short_conv(Runtime& runtime, const In<float>& x, const In<float>& weight, const MaybeFloats& bias,
                                      const std::optional<ActivationTuple>& activation, int64_t group, int64_t layer,
                                      int64_t columns, const Out<float>& out);

std::shared_ptr<Operation> delta_rule(Runtime& runtime, const In<float>& x, const In<float>& a, const In<float>& b,
                                      const In<float>& decay, const In<float>& shift, const DeltaShapeTuple& shape,
                                      float query_scale, const Out<float>& out);

std::shared_ptr<Operation> gated_norm(const In<float>& x, const In<float>& gate, const In<float>& weight, float eps, int64_t heads,
                                      const std::optional<ActivationTuple>& activation, const Out<float>& out, int64_t extent);

}  // namespace ferrum
