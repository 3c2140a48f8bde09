// Products of few rows by weights in blocks, as fast as the weights come from memory.
//
// A block has a panel. Copies in the background keep several chunks of 256 inputs in flight. Each warp has a unit of a
// chunk, each lane an output; the sums of groups and their scales go through shared memory to a warp per row, which adds
// them in ascending order while all warps work at the next chunk. A product with `up` is both panels in turn.
#pragma once

#include "block_products.hpp"

namespace ferrum::cuda {

template <Format FORMAT>
struct FewRows {
    using P = Panels<FORMAT>;
    static constexpr BlockFormat kFormat = P::kFormat;
    static constexpr int kParts = P::kParts, kRows = 4 / kParts, kScales = P::kScales;
    static constexpr int kSums = kWarps * kParts * kRows * kPanel, kFactors = kWarps * kScales * kPanel;  // of a chunk
    static constexpr int kSlot = P::kChunkBytes + kRows * kChunkInputs;                                   // weights, inputs
    static constexpr int kPieces = kChunkInputs / 16;  // of a row in a slot
    static constexpr int kFixed = 8 * (kSums + kFactors) + 4 * P::Reader::kPoints;
    static constexpr int kFitting = (kMostShared - kFixed) / kSlot, kSlots = kFitting < 8 ? kFitting : 8;
    static_assert(kSlots >= 3, "several chunks in flight");

    const ProductArgs& a;
    const Byte *panel, *up;  // of the weights of the product
    const unsigned* points;
    const Byte* copied;  // the thread's first piece of inputs, or null
    const Byte* row;     // rounded inputs of the warp's row, or null
    Int first;           // row of the block
    int rows, units, chunks, bytes;  // of the block; of a panel

    FERRUM_DEVICE FewRows(const ProductArgs& given, Int panel_number, Int first_row, int row_count, const unsigned* codebook)
        : a(given),
          panel(panel_of<FORMAT>(a, a.weight, panel_number)),
          up(panel_of<FORMAT>(a, a.up, panel_number)),
          points(codebook),
          first(first_row),
          rows(row_count),
          units(static_cast<int>(P::blocks(a.depth)) * P::kBlockUnits),
          chunks((units + kChunkUnits - 1) / kChunkUnits),
          bytes(static_cast<int>(P::blocks(a.depth)) * P::kBytes) {
        const int own = thread() / kPieces;
        copied = own < rows ? inputs_of(a, first + own) + thread() % kPieces * 16 : nullptr;
        row = warp() < rows ? inputs_of(a, first + warp()) : nullptr;
    }

    // ---- Copies ----

    // Copy chunk c of all that the block reads.
    FERRUM_DEVICE void copy(int c, Byte* slots) const {
        Byte* slot = slots + c % kSlots * kSlot + thread() * 16;
        const int chunk = c < chunks ? c : c - chunks, left = bytes - chunk * P::kChunkBytes - thread() * 16;
        const Byte* from = (c < chunks ? panel : up) + P::kHeader + chunk * Int{P::kChunkBytes} + thread() * 16;
        FERRUM_UNROLLED
        for (int at = 0; at < P::kChunkBytes; at += kThreads * 16)
            if (at < left && at < P::kChunkBytes - thread() * 16) copy_16(slot + at, from + at);
        if (copied != nullptr) copy_16(slot + P::kChunkBytes, copied + chunk * kChunkInputs);
    }

    // ---- Sums of groups ----

    FERRUM_DEVICE void multiply(const Byte* slot, int* sums, float* factors) const {
        Unit unit;
        typename P::Reader reader{{slot + warp() / P::kBlockUnits * P::kBytes, points}};
        reader.unpack(warp() % P::kBlockUnits, unit);
        float* own = factors + warp() * kScales * kPanel + lane();
        FERRUM_UNROLLED
        for (int part = 0; part < kParts; ++part) {
            own[part * kPanel] = unit.scale[part];
            if (kFormat.minima) own[(kParts + part) * kPanel] = unit.minimum[part];
        }
        const Byte* x = slot + P::kChunkBytes + warp() * kUnitBytes;
        FERRUM_UNROLLED
        for (int r = 0; r < kRows; ++r) {
            if (r >= rows) continue;
            const auto first = load<Words>(x + r * kChunkInputs), second = load<Words>(x + r * kChunkInputs + 16);
            int low = 0, high = 0;  // of both halves of the unit
            FERRUM_UNROLLED
            for (int i = 0; i < 4; ++i) {
                const Words& words = i < 2 ? first : second;
                low = dot4(unit.words[i], words.of[i % 2 * 2], low);
                high = dot4(unit.words[4 + i], words.of[i % 2 * 2 + 1], high);
            }
            int* sum = sums + (warp() * kParts * kRows + r) * kPanel + lane();
            sum[0] = kParts == 1 ? low + high : low;
            if (kParts == 2) sum[kRows * kPanel] = high;
        }
    }

    // ---- Additions of a row's groups, by its warp ----

    // What a lane has of the inputs' scales: those of a unit of four chunks.
    struct Factors {
        float scale, sums[2];
    };
    FERRUM_DEVICE Factors factors_of(int window) const {
        const RoundedRow layout(a.depth);
        const int unit = window * kWarp + lane();
        Factors f{};
        if (unit >= layout.units) return f;
        f.scale = load<float>(row + layout.scales() + unit * 4);
        if (!kFormat.minima) return f;
        f.sums[0] = load<float>(row + (kParts == 1 ? layout.sums() + unit * 4 : layout.halves() + unit * 8));
        if (kParts == 2) f.sums[1] = load<float>(row + layout.halves() + unit * 8 + 4);
        return f;
    }

    FERRUM_DEVICE float add(int chunk, const int* sums, const float* factors, const Factors& inputs, float y) const {
        const int left = units - chunk * kChunkUnits, from = chunk % 4 * kChunkUnits;
        FERRUM_UNROLLED
        for (int unit = 0; unit < kChunkUnits; ++unit) {
            const float scale = shuffle(inputs.scale, from + unit);
            FERRUM_UNROLLED
            for (int part = 0; part < kParts; ++part) {
                const float* own = factors + (unit * kScales + part) * kPanel + lane();
                const auto sum = static_cast<float>(sums[((unit * kParts + part) * kRows + warp()) * kPanel + lane()]);
                const float factor = own[0] * scale, code_sum = kFormat.minima ? shuffle(inputs.sums[part], from + unit) : 0.0f;
                const float minimum = kFormat.minima ? own[kParts * kPanel] : 0.0f;
                if (unit >= left) continue;
                y = fused(sum, factor, y);
                if (kFormat.minima) y = fused(minimum, code_sum, y);
            }
        }
        return y;
    }

    // Write the lane's output of the warp's row. The last panel fills up the rounded row.
    FERRUM_DEVICE void write(Int output, float sum, float other, Byte* rounded) const {
        const float y = finish(a, first + warp(), output, sum, other);
        if (rounded == nullptr) return;
        const RoundedRow layout(a.outputs);
        const Int own = output / kUnit, end = (own + 1) * kUnit >= a.outputs ? layout.units : own + 1;
        FERRUM_UNROLL(1)
        for (Int unit = own; unit < end; ++unit)
            round_unit(unit == own ? y : 0.0f, rounded + (first + warp()) * layout.bytes(), layout, unit);
    }

    FERRUM_DEVICE void run(Byte* slots, int* sums, float* factors, Int output, Byte* rounded) const {
        const int all = up != nullptr ? 2 * chunks : chunks, last_window = (chunks - 1) / 4;
        FERRUM_UNROLL(1)
        for (int c = 0; c < kSlots - 1; ++c) {
            if (c < all) copy(c, slots);
            close_copies();
        }
        const bool adds = row != nullptr;
        Factors now{}, next = adds ? factors_of(0) : Factors{};
        float y = 0, gate = 0;
        int chunk = 0;  // that is added
        FERRUM_UNROLL(1)
        for (int c = 0; c <= all; ++c) {
            wait_for_copies<kSlots - 2>();
            sync_block();  // all have chunk c, and have read the slot of chunk c - 1
            if (c + kSlots - 1 < all) copy(c + kSlots - 1, slots);
            close_copies();
            if (adds && c > 0) {
                if (chunk % 4 == 0) now = next, next = factors_of(chunk / 4 == last_window ? 0 : chunk / 4 + 1);
                const int buffer = (c - 1) % 2;
                y = add(chunk, sums + buffer * kSums, factors + buffer * kFactors, now, y);
                if (++chunk == chunks) {
                    y = P::scaled(y, c == all && up != nullptr ? up : panel, lane());
                    if (c == all) write(output, up != nullptr ? gate : y, y, rounded);
                    gate = y, y = 0, chunk = 0;
                }
            }
            if (c < all) multiply(slots + c % kSlots * kSlot, sums + c % 2 * kSums, factors + c % 2 * kFactors);
        }
    }
};

}  // namespace ferrum::cuda
