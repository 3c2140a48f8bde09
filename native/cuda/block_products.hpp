// What the products of few and of many rows by weights in blocks share: their argument, and panels.
//
// An output starts at 0 and adds its groups in ascending order: y = fused(sum, scale x input scale, y), then with minima
// y = fused(minimum, sum of codes x input scale, y). Sums of integers are exact, so that each kernel takes them in any order.
#pragma once

#include "file_units.hpp"
#include "products.hpp"
#include "rounded_rows.hpp"

namespace ferrum::cuda {

constexpr int kMostProducts = 4;
constexpr int kMostShared = 48 << 10;

// Products by weights of one format and depth, whose panels are one after another in the grid's y.
struct BlockProducts {
    ProductArgs of[kMostProducts];
    Int count;
    const unsigned* points;  // of the format's codebook, or null
    Byte* rounded;  // of few rows: the results of the only product are written here too, rounded for the next one; or null
};

// Layout of a format's panels.
template <Format FORMAT>
struct Panels {
    using Reader = Units<FORMAT>;
    static constexpr BlockFormat kFormat = block_format(FORMAT);
    static constexpr int kHeader = kFormat.output_scales ? kPanel * 8 : 0, kBytes = kPanel * Reader::kFileBytes;  // of a block
    static constexpr int kBlockUnits = kFormat.inputs / kUnit, kChunkBytes = kChunkInputs / kFormat.inputs * kBytes;
    static constexpr int kParts = Reader::kParts;  // groups of a unit
    static constexpr int kScales = kParts * (kFormat.minima ? 2 : 1);  // numbers of a unit: scales, then minima

    FERRUM_DEVICE static Int blocks(Int depth) { return (depth + kFormat.inputs - 1) / kFormat.inputs; }
    // Sums of an output: its number.
    FERRUM_DEVICE static float scaled(float sum, const Byte* panel, int output) {
        if constexpr (!kFormat.output_scales) return sum;
        const auto* scales = reinterpret_cast<const float*>(panel);
        return divided(sum * scales[output], scales[kPanel + output]);
    }
};

// The product that has a number of panels (or of pairs of them) at this place of the grid, and the first panel there.
struct Place {
    int product = 0;
    Int panel = 0;

    FERRUM_DEVICE Place(const BlockProducts& a, int width) {
        Int at = block_y();
        FERRUM_UNROLLED
        for (int i = 0; i + 1 < kMostProducts; ++i) {
            const Int own = (a.of[i].outputs + kPanel * width - 1) / (kPanel * width);
            if (product == i && i + 1 < a.count && at >= own) at -= own, ++product;
        }
        panel = at * width;
    }
};

template <Format FORMAT>
FERRUM_DEVICE const Byte* panel_of(const ProductArgs& a, const Byte* weight, Int panel) {
    using P = Panels<FORMAT>;
    if (weight == nullptr) return nullptr;
    return weight + block_z() * a.weight_step + panel * (P::kHeader + P::blocks(a.depth) * P::kBytes);
}

// The codebook in shared memory, if the format has one.
template <Format FORMAT>
FERRUM_DEVICE const unsigned* shared_points(const BlockProducts& a) {
    constexpr int kPoints = Units<FORMAT>::kPoints;
    if constexpr (kPoints == 0) {
        return nullptr;
    } else {
        FERRUM_SHARED(unsigned, points, kPoints);
        for (int i = thread(); i < kPoints; i += kThreads) points[i] = a.points[i];
        sync_block();
        return points;
    }
}

}  // namespace ferrum::cuda
