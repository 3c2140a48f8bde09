#include "weight.hpp"

#include <cstring>
#include <utility>

#include "grouping.hpp"

namespace ferrum {

namespace {

int64_t depth_of(Format format) { return format == Format::bf16 ? 2 : 1; }

float from_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

float half_to_float(uint16_t bits) {
    const uint32_t sign = (bits & 0x8000u) << 16, magnitude = (bits & 0x7fffu) << 13;
    if ((bits & 0x7c00u) == 0x7c00u) return from_bits(sign | magnitude | 0x7f800000u);
    const float scaled = from_bits(magnitude) * 5.192296858534828e33f;  // 2^112, the difference of the two biases
    return sign != 0 ? -scaled : scaled;
}

// Element `index` of a float format.
float read_float(const std::byte* floats, Format format, int64_t index) {
    if (format == Format::f32) return reinterpret_cast<const float*>(floats)[index];
    const uint16_t bits = reinterpret_cast<const uint16_t*>(floats)[index];
    return format == Format::bf16 ? from_bits(static_cast<uint32_t>(bits) << 16) : half_to_float(bits);
}

// Element k of an output's group, as stored in a panel.
int stored_code(const uint8_t* group, const Grouping& g, int64_t lane, int64_t k) {
    const int64_t row = g.nibbles ? k / 8 : k / 4;
    const int byte = group[(row * kPanel + lane) * 4 + k % 4];
    if (!g.nibbles) return byte;
    return k / 4 % 2 == 1 ? byte >> 4 : byte & 15;
}

uint16_t read_u16(const uint8_t* numbers, int64_t index) {
    uint16_t value;
    std::memcpy(&value, numbers + 2 * index, sizeof value);
    return value;
}

void grouped_row(const std::byte* panel, const Grouping& g, int64_t lane, int64_t inputs, float* to) {
    for (int64_t k = 0; k < inputs; ++k) {
        const auto* group = reinterpret_cast<const uint8_t*>(panel) + k / g.inputs * g.bytes;
        const uint8_t* scales = group + g.code_bytes;
        const int zero = g.zero_points ? read_u16(scales + kPanel * 2, lane) : g.nibbles ? 8 : 128;
        to[k] = static_cast<float>(stored_code(group, g, lane, k % g.inputs) - zero) * half_to_float(read_u16(scales, lane));
    }
}

}  // namespace

int64_t panel_count(int64_t outputs) { return (outputs + kPanel - 1) / kPanel; }

int64_t panel_bytes(Format format, int64_t inputs) {
    if (const Grouping g = grouping(format); g.inputs != 0) return (inputs + g.inputs - 1) / g.inputs * g.bytes;
    const int64_t depth = depth_of(format);
    return (inputs + depth - 1) / depth * depth * kPanel * item_bytes(format);
}

Weight::Weight(Format format, int64_t outputs, int64_t inputs, const std::byte* panels, std::shared_ptr<const void> owner)
    : format_(format), outputs_(outputs), inputs_(inputs), data_(panels), owner_(std::move(owner)) {}

void Weight::row(int64_t output, float* to) const {
    const int64_t lane = output % kPanel;
    const std::byte* panel = data_ + output / kPanel * panel_bytes(format_, inputs_);
    if (const Grouping g = grouping(format_); g.inputs != 0) return grouped_row(panel, g, lane, inputs_, to);
    const int64_t depth = depth_of(format_);
    for (int64_t k = 0; k < inputs_; ++k) to[k] = read_float(panel, format_, (k / depth * kPanel + lane) * depth + k % depth);
}

}  // namespace ferrum
