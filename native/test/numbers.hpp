// Numbers of test cases: the same everywhere, because they come from a counter.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace ferrum {

// Magnitudes of the numbers of a case. Products of two tiny numbers are near 2^-126 and those of two huge ones near
// 2^128, the limits of normal numbers; wild numbers are any bits, NaN and infinities among them. Products of edge numbers
// are about 2^-126 or 2^-150, so that many sums lie within half a unit of the least normal number.
enum class Style { plain, tiny, huge, wild, edge };

constexpr Style kStyles[] = {Style::plain, Style::tiny, Style::huge, Style::wild, Style::edge};
constexpr uint64_t kStyleCount = sizeof kStyles / sizeof *kStyles;

class Numbers {
public:
    explicit Numbers(uint64_t seed) : counter_(seed << 32) {}

    // Mix a counter (Steele, Lea and Flood 2014, SplitMix64).
    uint64_t word() {
        uint64_t x = (counter_ += 0x9e3779b97f4a7c15u);
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        return x ^ (x >> 31);
    }
    int64_t below(int64_t count) { return static_cast<int64_t>(word() % static_cast<uint64_t>(count)); }

    float number(Style style) {
        const auto bits = static_cast<uint32_t>(word());
        switch (style) {
            case Style::plain: return static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-31f;
            case Style::tiny: return of_bits((bits & 0x807fffffu) | static_cast<uint32_t>(56 + below(16)) << 23);
            case Style::huge: return of_bits((bits & 0x807fffffu) | static_cast<uint32_t>(184 + below(8)) << 23);
            case Style::edge: return of_bits((bits & 0x80030000u) | static_cast<uint32_t>(below(5) == 0 ? 64 : 51 + below(2)) << 23);
            default: return of_bits(below(8) == 0 ? bits : (bits & 0x807fffffu) | static_cast<uint32_t>(below(160)) << 23);
        }
    }
    std::vector<float> floats(int64_t count, Style style) {
        std::vector<float> all(static_cast<size_t>(count));
        for (float& each : all) each = number(style);
        return all;
    }

private:
    static float of_bits(uint32_t bits) {
        float number;
        std::memcpy(&number, &bits, sizeof number);
        return number;
    }

    uint64_t counter_;
};

}  // namespace ferrum
