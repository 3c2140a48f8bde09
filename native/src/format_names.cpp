#include "format_names.hpp"

#include <stdexcept>
#include <utility>

#include "block_format.hpp"

namespace ferrum {

namespace {

struct Name {
    const char* name;
    Format format;
};

#define FERRUM_FLOAT(name, in_python, ...) {in_python, Format::name},
#define FERRUM_BLOCK(name, ...) {#name, Format::name},
constexpr Name kNames[] = {FERRUM_FLOAT_FORMATS(FERRUM_FLOAT) FERRUM_BLOCK_FORMATS(FERRUM_BLOCK)};
#undef FERRUM_FLOAT
#undef FERRUM_BLOCK

constexpr std::pair<const char*, Curve> kCurves[] = {{"scaled", Curve::scaled}, {"capped", Curve::capped},
                                                     {"silu", Curve::silu},     {"gelu", Curve::gelu},
                                                     {"gelu_tanh", Curve::gelu_tanh}, {"relu2", Curve::relu2},
                                                     {"sigmoid", Curve::sigmoid}, {"clip", Curve::clip}};

}  // namespace

Format format_of(const std::string& name) {
    for (const Name& known : kNames)
        if (name == known.name) return known.format;
    throw std::invalid_argument("unknown weight format: " + name);
}

std::vector<std::string> block_format_names() {
    std::vector<std::string> names;
    for (const Name& known : kNames)
        if (block_format(known.format).inputs != 0) names.emplace_back(known.name);
    return names;
}

KvFormat kv_format_of(const std::string& name) {
    if (name == "float32") return KvFormat::f32;
    if (name == "int8") return KvFormat::int8;
    if (name == "bfloat16") return KvFormat::bf16;
    throw std::invalid_argument("unknown KV format: " + name);
}

Curve curve_of(const std::string& name) {
    for (const auto& [known, curve] : kCurves)
        if (name == known) return curve;
    throw std::invalid_argument("unknown activation: " + name);
}

Activation activation_of(const std::optional<ActivationTuple>& given) {
    if (!given) return {};
    const auto& [curve, slope, top, span, limit] = *given;
    return {curve_of(curve), slope, top, span, limit.has_value(), limit.value_or(0.0f)};
}

Score score_of(const std::string& name) {
    if (name == "softmax") return Score::softmax;
    if (name == "sigmoid") return Score::sigmoid;
    if (name == "sqrt_softplus") return Score::sqrt_softplus;
    throw std::invalid_argument("unknown score: " + name);
}

}  // namespace ferrum
