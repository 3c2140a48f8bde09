// What Python calls the formats.
#pragma once

#include <string>

#include "kernel_table.hpp"

namespace ferrum {

// The format of that name: "float32", "float16", "bfloat16", or integers with the size of their groups, "int8_32",
// "int4_64", "int4_zero_128". Throws std::invalid_argument.
Format format_of(const std::string& name);

// Of keys and values: "float32", "bfloat16" or "int8".
KvFormat kv_format_of(const std::string& name);

}  // namespace ferrum
