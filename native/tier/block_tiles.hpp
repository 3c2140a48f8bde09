// The tiles of each format of blocks.
#pragma once

#include <type_traits>

#include "float8.hpp"
#include "normal_floats.hpp"
#include "units.hpp"

namespace ferrum::FERRUM_TIER {

// Tiles of a format whose panels begin with the scales of outputs: y = y * factor / divisor.
template <class Tiles>
struct OutputScaled : Tiles {
    static constexpr int64_t kDivisors = kPanel * 4, kHeader = 2 * kDivisors;

    static int64_t panel_bytes(int64_t depth) { return kHeader + Tiles::panel_bytes(depth); }
    static void unpack(const std::byte* panel, int blocks, Slab& to) { Tiles::unpack(panel + kHeader, blocks, to); }
    static vf scaled(vf y, const std::byte* panel, int vector) {
        const std::byte* factors = panel + vector * kLanes * 4;
        return y * load<vf>(factors) / load<vf>(factors + kDivisors);
    }

    template <int MR, int NV>
    static void multiply(vf (&total)[MR][NV], const std::byte* panel, int vector, const typename Tiles::X* x, int64_t depth,
                         const Fetch& fetch) {
        Tiles::multiply(total, panel + kHeader, vector, x, depth, fetch);
        for (int v = 0; v < NV; ++v)
            for (int r = 0; r < MR; ++r) total[r][v] = scaled(total[r][v], panel, vector + v);
    }

    static void read_row(const std::byte* panel, int64_t lane, int64_t depth, float* to) {
        const auto* scales = reinterpret_cast<const float*>(panel);
        Tiles::read_row(panel + kHeader, lane, depth, to, scales[lane], scales[kPanel + lane]);
    }
};

template <class T, class = void>
constexpr bool kScalesOutputs = false;
template <class T>
constexpr bool kScalesOutputs<T, std::void_t<decltype(&T::scaled)>> = true;

// Whether tiles read rows of panels, which keep the bytes of files.
template <class T, class = void>
constexpr bool kReadsRows = false;
template <class T>
constexpr bool kReadsRows<T, std::void_t<decltype(&T::read_row)>> = true;

template <Format FORMAT>
constexpr auto tiles_of() {
    constexpr BlockFormat kFormat = block_format(FORMAT);
    if constexpr (kFormat.scales == Scales::floats)
        return Float8Tiles<Bf16>{};
    else if constexpr (FORMAT == Format::nf4)
        return NormalTiles{};
    else if constexpr (kFormat.output_scales)
        return OutputScaled<UnitTiles<Format::nvfp4>>{};
    else if constexpr (kFormat.file_bytes != 0)
        return UnitTiles<FORMAT>{};
    else
        return GroupTiles<FORMAT>{};
}

template <Format FORMAT>
using BlockTiles = decltype(tiles_of<FORMAT>());

}  // namespace ferrum::FERRUM_TIER
