// Weights, tables of a step and other inputs of the cases of a vector file.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checks.hpp"
#include "format_names.hpp"
#include "run.hpp"

namespace ferrum {

inline WeightPointer weight_over(Runtime& runtime, Format format, int64_t outputs, int64_t inputs, const Field& panels) {
    const std::shared_ptr<std::byte> copy = runtime.heap.take(static_cast<int64_t>(panels.bytes.size()));
    std::memcpy(copy.get(), panels.bytes.data(), panels.bytes.size());
    return std::make_shared<Weight>(format, outputs, inputs, copy.get(), copy);
}

// Return the matrix under `key`: floats are packed here, panels of blocks come from the case, with their numbers.
inline WeightPointer weight_of(Runtime& runtime, const Case& from, const std::string& key) {
    const Format format = format_of(from.text(key + " format"));
    const int64_t outputs = from.extent(key, 0), inputs = from.extent(key, 1);
    if (!from.has(key + " panels")) {
        Field panels;
        panels.bytes.resize(static_cast<size_t>(panel_count(outputs) * panel_bytes(format, inputs)));
        const MatrixArgs matrix{format, from.data<std::byte>(key), outputs, inputs};
        runtime.kernels.pack_panels(matrix, 0, panel_count(outputs), panels.bytes.data());
        return weight_over(runtime, format, outputs, inputs, panels);
    }
    WeightPointer weight = weight_over(runtime, format, outputs, inputs, from.field(key + " panels"));
    std::vector<float> numbers(static_cast<size_t>(outputs * inputs));
    for (int64_t output = 0; output < outputs; ++output) weight->row(output, numbers.data() + output * inputs);
    expect(from, key, numbers.data());
    return weight;
}

inline float* floats(const Case& from, const std::string& key) { return const_cast<float*>(from.data<float>(key)); }

// Return the tables whose names begin with the prefix, as binding.cpp takes them from Python.
inline void begin(Runtime& runtime, const Case& from, const std::string& prefix) {
    Step& step = runtime.step;
    step.token_ids = from.vector<int32_t>(prefix + "token_ids");
    step.positions = from.vector<int32_t>(prefix + "positions");
    step.span_rows = from.vector<int32_t>(prefix + "span_rows");
    step.logit_rows = from.vector<int32_t>(prefix + "logit_rows");
    step.hidden_rows = from.vector<int32_t>(prefix + "hidden_rows");
    step.row_span.clear();
    for (int64_t span = 0; span < step.spans(); ++span)
        step.row_span.resize(static_cast<size_t>(step.span_rows[static_cast<size_t>(span) + 1]), static_cast<int32_t>(span));
    step.adapters.clear();
    for (int64_t i = 0; from.has(prefix + "adapter slots") && i < from.extent(prefix + "adapter slots", 0); ++i) {
        const std::string own = prefix + "adapter " + std::to_string(i);
        step.adapters.push_back({from.data<int64_t>(prefix + "adapter slots")[i], from.data<double>(prefix + "adapter scales")[i],
                                 from.vector<int32_t>(own + " rows"), from.vector<int32_t>(own + " logit rows")});
    }
    step.given_of = from.has(prefix + "given_of") ? from.vector<int32_t>(prefix + "given_of") : std::vector<int32_t>();
    step.given_columns = from.has(prefix + "given_of") ? from.integer(prefix + "given_columns") : 0;
    step.states = {};
    if (from.has(prefix + "states read"))
        step.states = {from.vector<int32_t>(prefix + "states read"), from.vector<int32_t>(prefix + "states write"),
                       from.vector<int32_t>(prefix + "states waiting"), from.vector<int32_t>(prefix + "states kept")};
    step.pages.clear();
    step.strides.clear();
    if (!from.has(prefix + "pages")) return;
    step.pages.push_back(from.vector<int32_t>(prefix + "pages"));
    step.strides.push_back(from.extent(prefix + "pages", 1));
}

// Return the curve of a case, with its numbers and its limit.
inline Activation activation_of(const Case& from) {
    Activation activation{from.has("curve") ? curve_of(from.text("curve")) : Curve::none};
    if (from.has("slope")) activation.slope = static_cast<float>(from.real("slope"));
    if (from.has("top")) activation.top = static_cast<float>(from.real("top"));
    if (from.has("span")) activation.span = static_cast<float>(from.real("span"));
    if (from.has("limit")) activation.limited = true, activation.limit = static_cast<float>(from.real("limit"));
    return activation;
}

// Return the rotation of heads of a case, whose queries go to `turned`.
inline RopeArgs rope_of(const Case& from, int64_t heads, int64_t kv_heads, int64_t dim, float* turned) {
    RopeArgs rope{};
    rope.q = from.data<float>("q");
    rope.k = from.data<float>("k");
    rope.v = from.data<float>("v");
    rope.q_out = turned;
    rope.num_heads = heads;
    rope.num_kv_heads = kv_heads;
    rope.head_dim = dim;
    rope.pairs = from.has("cosines") ? from.extent("cosines", 1) : 0;
    rope.cosines = from.maybe<float>("cosines");
    rope.sines = from.maybe<float>("sines");
    rope.q_norm = from.maybe<float>("q_norm");
    rope.k_norm = from.maybe<float>("k_norm");
    rope.v_norm = from.maybe<float>("v_norm");
    rope.temperature = from.maybe<float>("temperature");
    rope.norm_last = from.integer("norm_last") != 0;
    rope.eps = static_cast<float>(from.real("eps"));
    return rope;
}

}  // namespace ferrum
