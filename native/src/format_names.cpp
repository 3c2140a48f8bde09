#include "format_names.hpp"

#include <stdexcept>

namespace ferrum {

namespace {

struct Name {
    const char* name;
    Format format;
};

constexpr Name kNames[] = {{"float32", Format::f32},
                           {"float16", Format::f16},
                           {"bfloat16", Format::bf16},
                           {"int8_32", Format::int8},
                           {"int8_64", Format::int8_64},
                           {"int8_128", Format::int8_128},
                           {"int4_32", Format::int4},
                           {"int4_64", Format::int4_64},
                           {"int4_128", Format::int4_128},
                           {"int4_zero_32", Format::int4_zero_32},
                           {"int4_zero_64", Format::int4_zero_64},
                           {"int4_zero_128", Format::int4_zero_128}};

}  // namespace

Format format_of(const std::string& name) {
    for (const Name& known : kNames)
        if (name == known.name) return known.format;
    throw std::invalid_argument("unknown weight format: " + name);
}

KvFormat kv_format_of(const std::string& name) {
    if (name == "float32") return KvFormat::f32;
    if (name == "int8") return KvFormat::int8;
    if (name == "bfloat16") return KvFormat::bf16;
    throw std::invalid_argument("unknown KV format: " + name);
}

}  // namespace ferrum
