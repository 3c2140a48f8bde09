// Products of many rows by weights in blocks, by tensor cores.
//
// A block has two panels and 64 rows. In turn, each warp unpacks a unit of a panel to shared memory; then each has 32
// outputs and 16 rows, whose sums of a group are exact fragments, and adds the groups in ascending order in registers.
// Inputs of the next units are copied meanwhile. A product with `up` is both weights in turn.
#pragma once

#include "block_products.hpp"

namespace ferrum::cuda {

constexpr int kTilePanels = 2, kTileOutputs = kTilePanels * kPanel, kTileRows = 64, kTileUnits = 4;
constexpr int kAhead = 4;  // steps of units from a request of weights to their use

template <Format FORMAT>
struct ManyRows {
    using P = Panels<FORMAT>;
    static constexpr BlockFormat kFormat = P::kFormat;
    static constexpr int kParts = P::kParts, kScales = P::kScales, kSums = kFormat.minima ? kParts : 0;
    static constexpr int kCodeBytes = kTileUnits * kTileOutputs * kUnitBytes, kNumbers = kTileUnits * kTileOutputs * kScales;
    static constexpr int kInputBytes = kTileUnits * kTileRows * (kUnitBytes + 4 + 4 * kSums);  // codes, scales, sums
    static constexpr int kPieces = kTileUnits * kUnitBytes / 16, kCopies = kTileRows * kPieces / kThreads;  // of a row; a thread's
    static_assert(2 * kInputBytes >= 16 * 4 * kThreads, "finish_all");
    static_assert(kCodeBytes + 4 * kNumbers + 2 * kInputBytes + 4 * P::Reader::kPoints <= kMostShared, "shared memory");

    struct Fragment {
        unsigned first, second;  // words at a lane's place of both halves of a unit
    };

    const ProductArgs& a;
    Int first;  // row
    int rows;
    Int panel;
    const unsigned* points;
    Byte* codes;
    float* scales;
    Byte* inputs;
    const Byte *copied[kCopies], *copied_numbers;  // the thread's first pieces of inputs, or null

    FERRUM_DEVICE ManyRows(const ProductArgs& given, Int first_row, int row_count, Int first_panel, const unsigned* codebook,
                           Byte* shared_codes, float* shared_scales, Byte* shared_inputs)
        : a(given),
          first(first_row),
          rows(row_count),
          panel(first_panel),
          points(codebook),
          codes(shared_codes),
          scales(shared_scales),
          inputs(shared_inputs) {
        FERRUM_UNROLLED
        for (int i = 0; i < kCopies; ++i) {
            const int row = thread() / kPieces + i * (kThreads / kPieces);
            copied[i] = row < rows ? inputs_of(a, first + row) + thread() % kPieces * 16 : nullptr;
        }
        const RoundedRow layout(a.depth);
        const int row = thread() % kTileRows, piece = thread() / kTileRows;
        const Int at = piece == 0 ? layout.scales() : kSums == 1 ? layout.sums() : layout.halves() + (piece - 1) * 16;
        copied_numbers = row < rows && piece <= kSums ? inputs_of(a, first + row) + at : nullptr;
    }

    // ---- Inputs ----

    FERRUM_DEVICE void copy(int unit, Byte* to) const {
        FERRUM_UNROLLED
        for (int i = 0; i < kCopies; ++i) {
            const int row = thread() / kPieces + i * (kThreads / kPieces), piece = thread() % kPieces;
            Byte* own = to + (piece / 2 * kTileRows + row) * kUnitBytes + piece % 2 * 16;
            if (copied[i] != nullptr) copy_16(own, copied[i] + unit * kUnitBytes);
        }
        const int width = kSums == 2 && thread() >= kTileRows ? 8 : 4;
        if (copied_numbers == nullptr) return;
        copy_16(to + kTileUnits * kTileRows * kUnitBytes + thread() * 16, copied_numbers + unit * width);
    }
    FERRUM_DEVICE static const float* numbers_of(const Byte* tile) {
        return reinterpret_cast<const float*>(tile + kTileUnits * kTileRows * kUnitBytes);
    }
    FERRUM_DEVICE static float scale_of(const Byte* tile, int row, int unit) { return numbers_of(tile)[row * 4 + unit]; }
    FERRUM_DEVICE static float sum_of(const Byte* tile, int row, int unit, int part) {
        if (kSums == 1) return numbers_of(tile)[(kTileRows + row) * 4 + unit];
        const int at = unit * 2 + part;
        return numbers_of(tile)[((1 + at / 4) * kTileRows + row) * 4 + at % 4];
    }

    // ---- Weights: the warp's unit of a panel ----

    // Ask for the weights of a step's units. Blocks that are larger than a step are asked for one step earlier than they must be.
    FERRUM_DEVICE void prefetch_step(const Byte* weight, int step) const {
        constexpr int kLine = 128, kStepBytes = kTileUnits * P::kBytes / P::kBlockUnits, kThreadsEach = kThreads / kTilePanels;
        static_assert(kStepBytes <= kThreadsEach * kLine, "a line for each thread");
        const Int own = panel + thread() / kThreadsEach, at = thread() % kThreadsEach * kLine, from = step * Int{kStepBytes} + at;
        if (at < kStepBytes && own * kPanel < a.outputs && from < P::blocks(a.depth) * P::kBytes)
            prefetch(panel_of<FORMAT>(a, weight, own) + P::kHeader + from);
    }

    FERRUM_DEVICE void store(const Unit& unit) const {
        const int at = warp() / kTilePanels * kTileOutputs + warp() % kTilePanels * kPanel + lane();
        auto* words = reinterpret_cast<Words*>(codes + at * kUnitBytes);
        words[0] = {{unit.words[0], unit.words[4], unit.words[1], unit.words[5]}};
        words[1] = {{unit.words[2], unit.words[6], unit.words[3], unit.words[7]}};
        FERRUM_UNROLLED
        for (int part = 0; part < kParts; ++part) {
            scales[at * kScales + part] = unit.scale[part];
            if (kFormat.minima) scales[at * kScales + kParts + part] = unit.minimum[part];
        }
    }

    // ---- Sums ----

    struct Totals {
        float of[2][2][4] = {};  // 16 outputs, 8 rows, and what a lane has of them
    };

    FERRUM_DEVICE int output_of(int i, int e) const { return warp() % kTilePanels * kPanel + 16 * i + e / 2 * 8 + lane() / 4; }
    FERRUM_DEVICE int first_row() const { return warp() / kTilePanels * 16; }
    FERRUM_DEVICE int row_of(int j, int e) const { return first_row() + 8 * j + lane() % 4 * 2 + e % 2; }
    FERRUM_DEVICE static Fragment fragment(const Byte* tile, int width, int unit, int at) {
        const Byte* from = tile + (unit * width + at) * kUnitBytes + lane() % 4 * 8;
        return {load<unsigned>(from), load<unsigned>(from + 4)};
    }

    // Add a group of all inputs of the tile. One of 16 inputs is half a fragment, next to zeros.
    FERRUM_DEVICE void add(const Byte* tile, int unit, int part, Totals& totals) const {
        const bool low = kParts == 1 || part == 0, high = kParts == 1 || part == 1;
        FERRUM_UNROLLED
        for (int i = 0; i < 2; ++i) {
            const Fragment upper = fragment(codes, kTileOutputs, unit, output_of(i, 0));
            const Fragment lower = fragment(codes, kTileOutputs, unit, output_of(i, 2));
            const unsigned words[4] = {low ? upper.first : 0, low ? lower.first : 0, high ? upper.second : 0,
                                       high ? lower.second : 0};
            FERRUM_UNROLLED
            for (int j = 0; j < 2; ++j) {
                const Fragment x = fragment(tile, kTileRows, unit, first_row() + 8 * j + lane() / 4);
                const unsigned b[2] = {x.first, x.second};
                int sums[4] = {};
                multiply_fragments(sums, words, b);
                FERRUM_UNROLLED
                for (int e = 0; e < 4; ++e) {
                    const float* own = scales + (unit * kTileOutputs + output_of(i, e)) * kScales + part;
                    float& y = totals.of[i][j][e];
                    y = fused(static_cast<float>(sums[e]), own[0] * scale_of(tile, row_of(j, e), unit), y);
                    if (kFormat.minima) y = fused(own[kParts], sum_of(tile, row_of(j, e), unit, part), y);
                }
            }
        }
    }

    // The sums of one weight, from its first panel here on.
    FERRUM_DEVICE void multiply(const Byte* weight, Totals& totals) const {
        const int units = static_cast<int>(P::blocks(a.depth) * P::kBlockUnits), steps = (units + kTileUnits - 1) / kTileUnits;
        const Int own_panel = panel + warp() % kTilePanels;
        const bool exists = own_panel * kPanel < a.outputs;
        const Byte* own = exists ? panel_of<FORMAT>(a, weight, own_panel) + P::kHeader : nullptr;
        const bool adds = exists && first_row() < rows;
        copy(0, inputs), close_copies();
        for (int step = 1; step < kAhead; ++step) prefetch_step(weight, step);
        FERRUM_UNROLL(1)
        for (int step = 0; step < steps; ++step) {
            const int at = step * kTileUnits, unit = at + warp() / kTilePanels, left = units - at;
            const bool reads = exists && unit < units;
            prefetch_step(weight, step + kAhead);
            Unit unpacked;
            if (reads) {
                const typename P::Reader reader{{own + unit / P::kBlockUnits * Int{P::kBytes}, points}};
                reader.unpack(unit % P::kBlockUnits, unpacked);
            }
            sync_block();  // all have added the last units
            if (reads) store(unpacked);
            wait_for_copies<0>();
            sync_block();
            const Byte* tile = inputs + step % 2 * kInputBytes;
            if (step + 1 < steps) copy(at + kTileUnits, inputs + (step + 1) % 2 * kInputBytes);
            close_copies();
            if (!adds) continue;
            FERRUM_UNROLL(1)
            for (int i = 0; i < kParts * (left < kTileUnits ? left : kTileUnits); ++i)
                add(tile, i / kParts, i % kParts, totals);
        }
        sync_block();  // before the first inputs are copied again
    }

    FERRUM_DEVICE float scaled(float sum, const Byte* weight, int output) const {
        if constexpr (!kFormat.output_scales) return sum;
        return P::scaled(sum, panel_of<FORMAT>(a, weight, panel + output / kPanel), output % kPanel);
    }

    // Finish the lane's numbers of 16 outputs, one after another: through its own places in shared memory, because arrays in
    // registers have no variable index.
    FERRUM_DEVICE void finish_all(int i, const float (&totals)[2][4], const float (&gates)[2][4]) const {
        auto* own = reinterpret_cast<float*>(inputs) + thread();
        FERRUM_UNROLLED
        for (int at = 0; at < 8; ++at) {
            own[at * kThreads] = totals[at / 4][at % 4];
            own[(8 + at) * kThreads] = gates[at / 4][at % 4];
        }
        FERRUM_UNROLL(1)
        for (int at = 0; at < 8; ++at) {
            const int output = output_of(i, at % 4), row = row_of(at / 4, at % 4);
            if (row >= rows || panel * kPanel + output >= a.outputs) continue;
            const float y = scaled(own[at * kThreads], a.up != nullptr ? a.up : a.weight, output);
            const float gate = a.up != nullptr ? scaled(own[(8 + at) * kThreads], a.weight, output) : y;
            finish(a, first + row, panel * kPanel + output, gate, y);
        }
    }

    FERRUM_DEVICE void run() const {
        Totals totals, gates;
        FERRUM_UNROLL(1)
        for (int i = 0; i < (a.up != nullptr ? 2 : 1); ++i) {
            gates = totals, totals = Totals{};
            multiply(i == 0 ? a.weight : a.up, totals);
        }
        FERRUM_UNROLLED
        for (int i = 0; i < 2; ++i) finish_all(i, totals.of[i], gates.of[i]);
    }
};

}  // namespace ferrum::cuda
