// Few rows by weights of floats: a panel for each block of threads, a row or several for each warp.
//
// All threads copy the panel through a ring in shared memory, far ahead of the sums: a lane adds one number of a row in
// four cycles, about as fast as memory brings them.
#pragma once

#include "float_terms.hpp"

namespace ferrum::cuda {
namespace {

constexpr int kMostOfWarp = F::kScaled ? 2 : 4;  // rows; sums of blocks take more registers
constexpr int kFewRows = kMostOfWarp * kWarps;

template <int ROWS, int MATRICES>
struct FewRows {
    static constexpr int kStages = F::kSlots / MATRICES;
    static constexpr bool kEarly = ROWS * F::kInputs / kWarp <= 8;  // inputs are read a block ahead, in few registers

    const ProductArgs& a;
    const Int panel, matrix_bytes;  // before the panel
    const int blocks, panel_bytes;
    Byte* ring;
    float* x;  // of this warp: [ROWS][F::kInputs]
    const float* table;
    const float* inputs[ROWS];  // null: no row
    float next[ROWS][F::kInputs / kWarp];
    float total[MATRICES][ROWS];
    bool plain = true;

    FERRUM_DEVICE FewRows(const ProductArgs& given, Int part, Byte* memory, float* all_x, const float* numbers)
        : a(given), panel(part), matrix_bytes(block_z() * a.weight_step + panel * F::panel_bytes(a.depth)),
          blocks(static_cast<int>(ceil_divide(a.depth, F::kInputs))), panel_bytes(static_cast<int>(F::panel_bytes(a.depth))), ring(memory),
          x(all_x + warp() * kMostOfWarp * F::kInputs), table(numbers) {}

    FERRUM_DEVICE void request(int block, int slot) {
        if (block < blocks) {
            const int at = block * F::kBlockBytes, left = panel_bytes - at, bytes = left < F::kBlockBytes ? left : F::kBlockBytes;
            FERRUM_UNROLLED
            for (int m = 0; m < MATRICES; ++m)
                for (int i = thread() * 16; i < bytes; i += kThreads * 16)
                    copy_16(ring + (slot * MATRICES + m) * F::kBlockBytes + i, (m == 0 ? a.weight : a.up) + matrix_bytes + at + i);
        }
        close_copies();
    }

    FERRUM_DEVICE void load_inputs(int block) {
        FERRUM_UNROLLED
        for (int r = 0; r < ROWS; ++r)
            FERRUM_UNROLLED
            for (int i = 0; i < F::kInputs / kWarp; ++i) {
                const int k = block * F::kInputs + i * kWarp + lane();
                next[r][i] = inputs[r] != nullptr && k < a.depth ? inputs[r][k] : 0.0f;
            }
    }

    FERRUM_DEVICE void store_inputs() {
        bool small = false;
        sync_warp();
        FERRUM_UNROLLED
        for (int r = 0; r < ROWS; ++r)
            FERRUM_UNROLLED
            for (int i = 0; i < F::kInputs / kWarp; ++i)
                x[r * F::kInputs + place(i * kWarp + lane())] = rounded_input(next[r][i], small);
        if (F::kPairs && ballot(small) != 0) plain = false;
        sync_warp();
    }

    // Add term i of 8 by the rule for numbers below 2^-126.
    FERRUM_DEVICE void add_checked(float (&sum)[MATRICES][ROWS], const float (&w)[MATRICES][kTerms], int k, int i) {
        FERRUM_UNROLLED
        for (int m = 0; m < MATRICES; ++m) {
            const float weight = flushed(picked(w[m], i));
            FERRUM_UNROLLED
            for (int r = 0; r < ROWS; ++r) sum[m][r] = fused_flushed(x[r * F::kInputs + k + i], weight, sum[m][r]);
        }
    }

    // Add some of 8 terms; returns 0 if all weights are plain.
    template <bool WHOLE>
    FERRUM_DEVICE unsigned add_few(float (&sum)[MATRICES][ROWS], const float (&scale)[MATRICES], const Byte* slot, int k, int count,
                                   bool checked) {
        unsigned small = 0;
        float w[MATRICES][kTerms];
        FERRUM_UNROLLED
        for (int m = 0; m < MATRICES; ++m) {
            unsigned words[F::kWords];
            FERRUM_UNROLLED
            for (int i = 0; i < F::kWords; ++i) {
                words[i] = F::raw(slot + m * F::kBlockBytes, lane(), k, i);
                small |= F::small(words[i]);
            }
            F::numbers(words, scale[m], table, w[m]);
        }
        if (checked) {
            FERRUM_UNROLL(1)
            for (int i = 0; i < count; ++i) add_checked(sum, w, k, i);
            return small;
        }
        FERRUM_UNROLLED
        for (int r = 0; r < ROWS; ++r) {
            float own[kTerms];
            load_terms(x + r * F::kInputs + k, own);
            FERRUM_UNROLLED
            for (int m = 0; m < MATRICES; ++m) sum[m][r] = added<WHOLE>(sum[m][r], own, w[m], count);
        }
        return small;
    }

    // Add the terms of a block; returns whether its weights are plain.
    FERRUM_DEVICE bool add_terms(const Byte* slot, int terms, bool checked) {
        unsigned small = 0;
        float scale[MATRICES], sum[MATRICES][ROWS];
        FERRUM_UNROLLED
        for (int m = 0; m < MATRICES; ++m) {
            scale[m] = F::kScaled ? 1.0f : block_scale(slot + m * F::kBlockBytes, lane());
            FERRUM_UNROLLED
            for (int r = 0; r < ROWS; ++r) sum[m][r] = F::kScaled ? 0.0f : total[m][r];
        }
        int k = 0;
        FERRUM_UNROLL(ROWS * MATRICES < 4 ? 4 : 1)
        for (; k + kTerms <= terms; k += kTerms) small |= add_few<true>(sum, scale, slot, k, kTerms, checked);
        if (k < terms) small |= add_few<false>(sum, scale, slot, k, terms - k, checked);
        if (small != 0 && !checked) return false;
        FERRUM_UNROLLED
        for (int m = 0; m < MATRICES; ++m) {
            const float factor = flushed(block_scale(slot + m * F::kBlockBytes, lane()));
            FERRUM_UNROLLED
            for (int r = 0; r < ROWS; ++r) total[m][r] = F::kScaled ? fused_flushed(sum[m][r], factor, total[m][r]) : sum[m][r];
        }
        return true;
    }

    // The rows from `first` on: warp w has the rows first + w, first + w + 8, and so on.
    FERRUM_DEVICE void multiply(Int first, Int end) {
        FERRUM_UNROLLED
        for (int r = 0; r < ROWS; ++r) {
            const Int row = first + warp() + r * kWarps;
            inputs[r] = row < end ? reinterpret_cast<const float*>(inputs_of(a, row)) : nullptr;
            FERRUM_UNROLLED
            for (int m = 0; m < MATRICES; ++m) total[m][r] = 0.0f;
        }
        const bool works = inputs[0] != nullptr;
        for (int stage = 0; stage < kStages - 1; ++stage) request(stage, stage);
        if (works) load_inputs(0), store_inputs();
        for (int block = 0, slot = 0; block < blocks; ++block) {
            wait_for_copies<kStages - 2>();
            sync_block();
            request(block + kStages - 1, slot == 0 ? kStages - 1 : slot - 1);
            if (works) {
                const Byte* from = ring + slot * MATRICES * F::kBlockBytes;
                const int terms = static_cast<int>(least(F::kInputs, F::terms(a.depth) - block * F::kInputs));
                if (kEarly && block + 1 < blocks) load_inputs(block + 1);
                plain = plain && add_terms(from, terms, false);
                if (!plain) add_terms(from, terms, true);
                if (!kEarly && block + 1 < blocks) load_inputs(block + 1);
                if (block + 1 < blocks) store_inputs();
            }
            slot = slot + 1 == kStages ? 0 : slot + 1;
        }
        for (Int row = first + warp(), r = 0; r < ROWS && row < end; ++r, row += kWarps)
            finish(a, row, panel * kPanel + lane(), picked(total[0], r), picked(total[MATRICES - 1], r));
    }
};

template <int MATRICES>
FERRUM_DEVICE void multiply_few(const ProductArgs& a, Int panel, Int first, Int end, Byte* ring, float* x, const float* table) {
    const Int rows = end - first;
    if (rows <= kWarps) return FewRows<1, MATRICES>(a, panel, ring, x, table).multiply(first, end);
    if (rows <= 2 * kWarps && kMostOfWarp > 2) return FewRows<2, MATRICES>(a, panel, ring, x, table).multiply(first, end);
    FewRows<kMostOfWarp, MATRICES>(a, panel, ring, x, table).multiply(first, least(end, first + kFewRows));
}

}  // namespace
}  // namespace ferrum::cuda
