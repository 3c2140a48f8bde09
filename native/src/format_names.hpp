// Names of the formats and of activations in Python.
#pragma once

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "kernel_table.hpp"

namespace ferrum {

// Return a format by name: "float32", "float16", "bfloat16", or a name of quant/block_format.py. Throws
// std::invalid_argument.
Format format_of(const std::string& name);

// Names of the formats of quantised weights.
std::vector<std::string> block_format_names();

// Return a KV format by name: "float32", "bfloat16" or "int8".
KvFormat kv_format_of(const std::string& name);

// A curve's name, its slope, top and span, and the limit of a gated product; see Activation.
using ActivationTuple = std::tuple<std::string, float, float, float, std::optional<float>>;

Activation activation_of(const std::optional<ActivationTuple>& given);

// Return the form of an expert's score by its name in kernels/op_attributes.py.
Score score_of(const std::string& name);

// Return a curve by name: a kind of kernels/op_attributes.py, "scaled" or "capped".
Curve curve_of(const std::string& name);

}  // namespace ferrum
