// Names of the formats in Python.
#pragma once

#include <string>
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

}  // namespace ferrum
