#include "adapters_binding.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

namespace ferrum {

namespace {

Floats floats_of(const FloatsTuple& given) {
    const auto& [name, matrix] = given;
    const Format format = format_of(name);
    require(format == Format::f32 || format == Format::f16 || format == Format::bf16, "adapters are floats");
    require(matrix.ndim() == 2 && static_cast<int64_t>(matrix.itemsize()) == item_bytes(format), "expected a matrix of this format");
    return {format, static_cast<const std::byte*>(matrix.data()), static_cast<int64_t>(matrix.shape(0)),
            static_cast<int64_t>(matrix.shape(1))};
}

AdapterChange change_of(const ChangeTuple& given) {
    const auto& [low_rank, bias, factor, offset, replaced] = given;
    require(factor.has_value() == offset.has_value(), "factor and offset must be given together");
    AdapterChange change;
    if (low_rank) {
        const auto& [a, b, rank, scale] = *low_rank;
        const Floats panels = floats_of(b);  // [panels x rank, kPanel]
        require(panels.columns == kPanel && rank > 0 && panels.rows % rank == 0, "B must be in panels");
        change.a = floats_of(a);
        change.b = panels;
        change.rank = rank;
        change.scale = scale;
    }
    change.bias = data_or_null(bias);
    change.factor = data_or_null(factor);
    change.offset = data_or_null(offset);
    if (replaced) {
        const auto& [values, rows] = *replaced;
        change.replaced = floats_of(values);
        require(!rows || static_cast<int64_t>(rows->size()) == change.replaced.rows, "expected one id per replaced row");
        change.replaced_rows = rows ? rows->data() : nullptr;
    }
    return change;
}

}  // namespace

void set_entry(AdapterSite& site, int64_t slot, const std::optional<std::vector<std::optional<ChangeTuple>>>& changes) {
    require(slot >= 0, "a slot is a number from 0 up");
    if (!changes) return site.set(slot, nullptr);
    std::vector<std::optional<AdapterChange>> made;
    for (const auto& given : *changes) made.push_back(given ? std::optional(change_of(*given)) : std::nullopt);
    site.set(slot, entry_of(std::move(made)));
}

void take_adapters(Step& step, const std::vector<StepAdapterTuple>& adapters) {
    step.adapters.clear();
    for (const auto& [slot, scale, rows, logit_rows] : adapters) {
        const auto inside = [](const In<int32_t>& of, size_t count) {
            return std::all_of(of.data(), of.data() + of.size(), [&](int32_t row) { return row >= 0 && static_cast<size_t>(row) < count; });
        };
        require(slot >= 0 && inside(rows, step.token_ids.size()) && inside(logit_rows, step.logit_rows.size()),
                "a row with an adapter is not in the step");
        step.adapters.push_back({slot, scale, {rows.data(), rows.data() + rows.size()}, {logit_rows.data(), logit_rows.data() + logit_rows.size()}});
    }
}

std::shared_ptr<Operation> adapt(Runtime& runtime, std::shared_ptr<AdapterSite> site, const Out<float>& x, int64_t inputs,
                                 const std::vector<Out<float>>& ys, const std::vector<int64_t>& outputs, int64_t heads) {
    require(heads > 0 && (heads == 1 || ys.size() == 1), "heads have one matrix");
    require(ys.size() == outputs.size(), "expected one result per matrix");
    std::vector<float*> data;
    for (const auto& y : ys) data.push_back(y.data());
    return std::make_shared<Adapt>(runtime, SiteJobs(std::move(site), heads), x.data(), inputs, std::move(data), outputs);
}

std::shared_ptr<Operation> adapt_embedding(Runtime& runtime, std::shared_ptr<AdapterSite> site, const Out<float>& y,
                                           int64_t columns, double scale) {
    return std::make_shared<AdaptEmbedding>(runtime, std::move(site), y.data(), columns, scale);
}

std::shared_ptr<Operation> activate(const In<float>& x, const MaybeFloats& others, const std::optional<ActivationTuple>& activation,
                                    int64_t columns, const Out<float>& out, int64_t extent) {
    return std::make_shared<Activate>(activation_of(activation), x.data(), data_or_null(others), Rows{out.data(), extent}, columns);
}

}  // namespace ferrum
