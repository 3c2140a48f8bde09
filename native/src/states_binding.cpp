#include "states_binding.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "state_operations.hpp"

namespace ferrum {

namespace {

void check_slot(const Runtime& runtime, int64_t slot) {
    require(slot >= 0 && slot < runtime.states.num_slots(), "slot out of range");
}

// Check that a layer's state has these numbers, and its rows those.
void check_place(const Runtime& runtime, int64_t group, int64_t layer, int64_t numbers, int64_t row_numbers) {
    require(group >= 0 && group < runtime.states.groups(), "state group out of range");
    const StateShape& shape = runtime.states.shape(group);
    require(layer >= 0 && layer < shape.num_layers, "layer out of range of the state group");
    require(shape.numbers == numbers && shape.row_numbers == row_numbers, "the sizes of a state do not match the slots");
}

void assign(std::vector<int32_t>& to, const In<int32_t>& from) { to.assign(from.data(), from.data() + from.size()); }

}  // namespace

void allocate_states(Runtime& runtime, const std::optional<StatePoolTuple>& pool) {
    if (!pool) return;
    const auto& [num_slots, shapes, kept_rows] = *pool;
    require(num_slots >= 0 && kept_rows >= 0, "negative size of the slots");
    std::vector<StateShape> sizes;
    for (const auto& [numbers, row_numbers, num_layers] : shapes) {
        require(numbers >= 0 && row_numbers >= 0 && num_layers >= 0, "negative size of a state");
        sizes.push_back({numbers, row_numbers, num_layers});
    }
    runtime.states.allocate(num_slots, sizes, kept_rows);
}

void take_states(Runtime& runtime, const std::optional<StateTablesTuple>& tables) {
    StepStates& states = runtime.step.states;
    states.read.clear();
    if (!tables) return;
    const auto& [read, write, waiting, kept] = *tables;
    const auto spans = static_cast<size_t>(runtime.step.spans());
    require(read.size() == spans && write.size() == spans && waiting.size() == spans && kept.size() == spans,
            "expected a slot to read and one to write per span");
    assign(states.read, read);
    assign(states.write, write);
    assign(states.waiting, waiting);
    assign(states.kept, kept);
    try {
        runtime.states.check(runtime.step);
    } catch (...) {
        states.read.clear();  // so that no operation runs
        throw;
    }
}

void copy_slot(Runtime& runtime, int64_t source, int64_t target) {
    check_slot(runtime, source);
    check_slot(runtime, target);
    if (source != target) runtime.states.copy_slot(source, target);
}

void read_slot(const Runtime& runtime, int64_t slot, const Out<uint8_t>& out) {
    check_slot(runtime, slot);
    require(static_cast<int64_t>(out.size()) == runtime.states.slot_bytes(), "array size is not the slot size");
    runtime.states.read_slot(slot, out.data());
}

void write_slot(Runtime& runtime, int64_t slot, const In<uint8_t>& in) {
    check_slot(runtime, slot);
    require(static_cast<int64_t>(in.size()) == runtime.states.slot_bytes(), "array size is not the slot size");
    runtime.states.write_slot(slot, in.data());
}

std::shared_ptr<Operation> short_conv(Runtime& runtime, const In<float>& x, const In<float>& weight, const MaybeFloats& bias,
                                      const std::optional<ActivationTuple>& activation, int64_t group, int64_t layer,
                                      int64_t columns, const Out<float>& out) {
    const auto size = static_cast<int64_t>(weight.size());
    require(columns > 0 && size > 0 && size % columns == 0, "expected a weight per tap and column");
    check_size(bias, columns, "expected one bias per column");
    check_place(runtime, group, layer, size - columns, columns);
    const ConvArgs args{x.data(), weight.data(), data_or_null(bias), activation_of(activation), size / columns, columns, out.data()};
    return std::make_shared<ShortConv>(runtime, StatePlace{group, layer}, args);
}

std::shared_ptr<Operation> delta_rule(Runtime& runtime, const In<float>& x, const In<float>& a, const In<float>& b,
                                      const In<float>& decay, const In<float>& shift, const DeltaShapeTuple& shape,
                                      float query_scale, const Out<float>& out) {
    const auto& [group, layer, heads, key_heads, key_dim, value_dim, interleaved] = shape;
    require(key_heads > 0 && heads > 0 && heads % key_heads == 0, "value heads must be a multiple of key heads");
    require(key_dim > 0 && value_dim > 0, "heads have no width");
    require(static_cast<int64_t>(decay.size()) == heads && static_cast<int64_t>(shift.size()) == heads, "expected one decay and one shift per head");
    const DeltaArgs args{x.data(),      a.data(), b.data(),  decay.data(), shift.data(), heads,
                         key_heads, key_dim,  value_dim, interleaved,  query_scale,  out.data()};
    check_place(runtime, group, layer, heads * key_dim * value_dim, args.row_numbers());
    return std::make_shared<DeltaRule>(runtime, StatePlace{group, layer}, args);
}

std::shared_ptr<Operation> gated_norm(const In<float>& x, const In<float>& gate, const In<float>& weight, float eps, int64_t heads,
                                      const std::optional<ActivationTuple>& activation, const Out<float>& out, int64_t extent) {
    const GatedNormArgs args{x.data(),   gate.data(), weight.data(), eps, activation_of(activation), static_cast<int64_t>(weight.size()),
                             out.data()};
    return std::make_shared<GatedNorm>(args, heads, extent);
}

}  // namespace ferrum
