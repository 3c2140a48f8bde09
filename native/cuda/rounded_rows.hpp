// Rows of inputs as integers, for weights in blocks: what computes the inputs writes them, or kernel round_rows. Rounding is
// round_whole of kernels/reference/reference_math.py with 127 levels.
//
// A row has units of 32 inputs, filled up with zeros to whole chunks of 8 units, and four parts of all its units in turn:
// 8 words of codes, the scale, and the sum of codes x scale (rounded) of the 32 inputs, and of either half. The words of a
// unit have the order 0, 4, 1, 5, 2, 6, 3, 7, so that a lane loads its two words of a fragment at once.
#pragma once

#include "units.hpp"

namespace ferrum::cuda {

constexpr float kLeastRounded = 5.421010862427522e-20f;  // 2^-64
constexpr int kChunkUnits = 8, kChunkInputs = kChunkUnits * kUnit, kUnitBytes = kUnit;

// Where the parts of a row are.
struct RoundedRow {
    Int units;

    FERRUM_DEVICE explicit RoundedRow(Int depth) : units((depth + kChunkInputs - 1) / kChunkInputs * kChunkUnits) {}
    FERRUM_DEVICE Int bytes() const { return units * 48; }
    FERRUM_DEVICE Int scales() const { return units * kUnitBytes; }
    FERRUM_DEVICE Int sums() const { return units * (kUnitBytes + 4); }
    FERRUM_DEVICE Int halves() const { return units * (kUnitBytes + 8); }
};

// Write a unit of a row. Each lane of a warp has one of its inputs.
FERRUM_DEVICE void round_unit(float x, Byte* row, const RoundedRow& layout, Int unit) {
    unsigned largest = as_bits(x) & ~kSign;  // NaN is the largest
    FERRUM_UNROLLED
    for (int step = 1; step < kUnit; step *= 2) {
        const auto other = static_cast<unsigned>(shuffle(static_cast<int>(largest), lane() ^ step));
        largest = other > largest ? other : largest;
    }
    const float most = as_float(largest);
    const bool finite = largest < kInfinity, used = finite && most >= kLeastRounded;
    const int code = used ? static_cast<int>(nearest(x * divided(127.0f, most))) : 0;
    const float scale = used ? divided(most, 127.0f) : finite ? 0.0f : as_float(0x7fc00000u);
    int half = code;
    FERRUM_UNROLLED
    for (int step = 1; step < kUnit / 2; step *= 2) half += shuffle(half, lane() ^ step);
    const int low = shuffle(half, 0), high = shuffle(half, kUnit / 2), word = lane() / 4;
    row[unit * kUnitBytes + (word % 4 * 2 + word / 4) * 4 + lane() % 4] = static_cast<Byte>(code & 255);
    auto* floats = reinterpret_cast<float*>(row + layout.scales());
    if (lane() == 0) floats[unit] = scale;
    if (lane() == 1) floats[layout.units + unit] = static_cast<float>(low + high) * scale;
    if (lane() == 2) floats[2 * layout.units + 2 * unit] = static_cast<float>(low) * scale;
    if (lane() == 3) floats[2 * layout.units + 2 * unit + 1] = static_cast<float>(high) * scale;
}

}  // namespace ferrum::cuda
