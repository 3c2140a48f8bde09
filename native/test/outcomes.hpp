// Cases whose results every tier must agree on, and their inputs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "block_format.hpp"
#include "numbers.hpp"
#include "run.hpp"

namespace ferrum {

// The results of a case: numbers as bits, every NaN as one NaN, and bytes.
struct Outcome {
    std::vector<uint32_t> numbers;
    std::vector<uint8_t> bytes;

    void add(const std::vector<float>& values) {
        for (const float value : values) {
            uint32_t bits;
            std::memcpy(&bits, &value, sizeof bits);
            numbers.push_back((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : bits);
        }
    }
    void add_whole(const std::vector<int64_t>& values) {
        for (const int64_t value : values) numbers.push_back(static_cast<uint32_t>(value));
    }
    // FNV-1a, from the hash of earlier outcomes.
    uint64_t hash(uint64_t from) const {
        for (const uint32_t number : numbers) from = (from ^ number) * 0x100000001b3u;
        for (const uint8_t byte : bytes) from = (from ^ byte) * 0x100000001b3u;
        return from;
    }
    bool operator==(const Outcome& other) const { return numbers == other.numbers && bytes == other.bytes; }
};

// A case, by its size and seed; what it returns may not depend on the tier.
using Trial = std::function<Outcome(Runtime&, int64_t size, uint64_t seed)>;

inline Style style_of(uint64_t seed) { return kStyles[seed % kStyleCount]; }

// A matrix of the format's elements, which may be 16 bits of a float32 or of a float16.
inline std::vector<std::byte> elements(Format format, const std::vector<float>& values) {
    const bool half = format == Format::bf16 || format == Format::f16;
    std::vector<std::byte> all(values.size() * (half ? 2 : 4));
    for (size_t i = 0; i < values.size(); ++i) {
        uint32_t bits;
        std::memcpy(&bits, &values[i], sizeof bits);
        const auto upper = static_cast<uint16_t>(bits >> 16);
        half ? std::memcpy(&all[i * 2], &upper, 2) : std::memcpy(&all[i * 4], &bits, 4);
    }
    return all;
}

// Panels of any codes and integer scales; d and m are numbers of the style as 16 bits of a float.
inline WeightPointer blocks_of(Runtime& runtime, Format format, int64_t outputs, int64_t inputs, Numbers& numbers, Style style) {
    const BlockFormat f = block_format(format);
    const int64_t bytes = panel_count(outputs) * panel_bytes(format, inputs);
    const std::shared_ptr<std::byte> memory = runtime.heap.take(bytes);
    for (int64_t at = 0; at < bytes; ++at) {
        memory.get()[at] = static_cast<std::byte>(numbers.word());
        if (at % f.bytes() >= f.sub_at() || at % 2 == 0) continue;
        float number = numbers.number(style);
        if (!f.wide_range && f.scales != Scales::floats && style == Style::plain) number *= 0x1p-112f;  // whose upper half is a small float16
        std::memcpy(memory.get() + at - 1, reinterpret_cast<const char*>(&number) + 2, 2);
    }
    return std::make_shared<Weight>(format, outputs, inputs, memory.get(), memory);
}

inline WeightPointer weight_of(Runtime& runtime, Format format, int64_t outputs, int64_t inputs, Numbers& numbers, Style style,
                               Outcome& outcome) {
    if (format > Format::f16) return blocks_of(runtime, format, outputs, inputs, numbers, style);
    const int64_t panels = panel_count(outputs), bytes = panels * panel_bytes(format, inputs);
    const std::shared_ptr<std::byte> memory = runtime.heap.take(bytes);
    const std::vector<std::byte> from = elements(format, numbers.floats(outputs * inputs, style));
    runtime.kernels.pack_panels({format, from.data(), outputs, inputs}, 0, panels, memory.get());
    const auto* packed = reinterpret_cast<const uint8_t*>(memory.get());
    outcome.bytes.insert(outcome.bytes.end(), packed, packed + bytes);
    return std::make_shared<Weight>(format, outputs, inputs, memory.get(), memory);
}

// Any activation, often of a limited product.
inline Activation any_activation(uint64_t seed) {
    constexpr Curve kCurves[] = {Curve::none, Curve::silu, Curve::gelu, Curve::gelu_tanh, Curve::relu2, Curve::capped, Curve::scaled, Curve::sigmoid};
    return {kCurves[seed % 8], seed % 2 == 0 ? 1.0f : 1.7f, 3, 6, seed % 3 == 0, 0.7f};
}

struct Named {
    std::string name;
    Trial run;
};

// Products, embeddings and experts that adapters change.
std::vector<Named> adapter_cases();

}  // namespace ferrum
