// Many rows by weights of floats: a tile of rows and outputs for each block of threads, 8 rows and 4 outputs for each thread.
//
// Numbers become float32 on their way to shared memory, from where all threads read them.
#pragma once

#include "float_terms.hpp"

namespace ferrum::cuda {
namespace {

constexpr int kManyRows = 64, kManyOutputs = 128, kChunk = 16;  // of a tile; inputs at a time
constexpr int kRowsStride = kManyRows + 4;
constexpr int kOwnRows = 8, kOwnOutputs = 4;

// Outputs of a tile: those of `weight`, or each two of them next to the same two of `up`.
template <int MATRICES>
struct ManyRows {
    static constexpr int kOutputs = kManyOutputs / MATRICES;

    const ProductArgs& a;
    const Int tile, first, end, terms, chunks, panel_bytes;
    const float* table;
    float* const w;  // [2][kChunk][kManyOutputs]
    float* const x;  // [2][kChunk][kRowsStride]
    unsigned* const small;  // [2][kWarps]: whether a number of a chunk is not plain
    const Byte* panel = nullptr;  // of the output that this thread loads; null: beyond the last one
    const float* inputs = nullptr;  // of the row that this thread loads
    unsigned words[F::kWords];
    float row[4], scale = 1;
    float total[kOwnRows][kOwnOutputs], sum[kOwnRows][kOwnOutputs];
    bool plain = true;

    FERRUM_DEVICE ManyRows(const ProductArgs& given, Int part, Int begin, Int last, float* all_w, float* all_x, unsigned* flags, const float* numbers)
        : a(given), tile(part), first(begin), end(last), terms(F::terms(a.depth)), chunks(ceil_divide(terms, kChunk)),
          panel_bytes(F::panel_bytes(a.depth)), table(numbers), w(all_w), x(all_x), small(flags) {
        const int output = thread() % kManyOutputs, own = output % kOutputs;
        const Int at = tile * (kOutputs / kPanel) + own / kPanel;
        const Byte* matrix = MATRICES == 2 && output >= kOutputs ? a.up : a.weight;
        if (at < ceil_divide(a.outputs, kPanel)) panel = matrix + block_z() * a.weight_step + at * panel_bytes;
        if (first + thread() / 4 < end) inputs = reinterpret_cast<const float*>(inputs_of(a, first + thread() / 4));
        FERRUM_UNROLLED
        for (int r = 0; r < kOwnRows; ++r)
            FERRUM_UNROLLED
            for (int c = 0; c < kOwnOutputs; ++c) total[r][c] = sum[r][c] = 0.0f;
    }

    // 8 inputs of an output, and 4 of a row.
    FERRUM_DEVICE void load(Int chunk) {
        const Int at = chunk * kChunk + thread() / kManyOutputs * kTerms, block = at / F::kInputs;
        const int output = thread() % kPanel, k = static_cast<int>(at - block * F::kInputs);
        const Byte* from = panel + block * F::kBlockBytes;
        const bool loads = panel != nullptr && at < terms;
        if (loads) scale = block_scale(from, output);
        FERRUM_UNROLLED
        for (int i = 0; i < F::kWords; ++i) words[i] = loads && F::holds(a.depth, at, i) ? F::raw(from, output, k, i) : 0u;
        FERRUM_UNROLLED
        for (int i = 0; i < 4; ++i) {
            const Int input = chunk * kChunk + thread() % 4 * 4 + i;
            row[i] = inputs != nullptr && input < a.depth ? inputs[input] : 0.0f;
        }
    }

    FERRUM_DEVICE void store(int half) {
        bool found = false;
        float numbers[kTerms];
        FERRUM_UNROLLED
        for (int i = 0; i < F::kWords; ++i) found = found || F::small(words[i]) != 0;
        F::numbers(words, scale, table, numbers);
        const int output = thread() % kManyOutputs, own = output % kOutputs;
        const int column = MATRICES == 1 ? output : own / 2 * 4 + output / kOutputs * 2 + own % 2;
        const int k = thread() / kManyOutputs * kTerms;
        FERRUM_UNROLLED
        for (int i = 0; i < kTerms; ++i) w[(half * kChunk + k + i) * kManyOutputs + column] = numbers[i];
        FERRUM_UNROLLED
        for (int i = 0; i < 4; ++i)
            x[(half * kChunk + place(thread() % 4 * 4 + i)) * kRowsStride + thread() / 4] = rounded_input(row[i], found);
        if constexpr (F::kPairs) {
            const unsigned lanes = ballot(found);
            if (lane() == 0) small[half * kWarps + warp()] = lanes;
        }
    }

    FERRUM_DEVICE int own_row() const { return warp() / 4 * 32 + lane() / 8 * kOwnRows; }
    FERRUM_DEVICE int own_column() const { return warp() % 4 * 32 + lane() % 8 * kOwnOutputs; }

    FERRUM_DEVICE void add(int half, int k, bool checked) {
        const float* from = x + (half * kChunk + k) * kRowsStride + own_row();
        const Four low = *reinterpret_cast<const Four*>(from), high = *reinterpret_cast<const Four*>(from + 4);
        const Four weights = *reinterpret_cast<const Four*>(w + (half * kChunk + k) * kManyOutputs + own_column());
        FERRUM_UNROLLED
        for (int c = 0; c < kOwnOutputs; ++c) {
            const float weight = checked ? flushed(weights.value[c]) : weights.value[c];
            FERRUM_UNROLLED
            for (int r = 0; r < kOwnRows; ++r) {
                const float input = r < 4 ? low.value[r % 4] : high.value[r % 4];
                sum[r][c] = checked ? fused_flushed(input, weight, sum[r][c]) : fused(input, weight, sum[r][c]);
            }
        }
    }

    FERRUM_DEVICE void add_chunk(int half, int count) {
        if constexpr (F::kPairs)
            FERRUM_UNROLLED
            for (int i = 0; i < kWarps; ++i) plain = plain && small[half * kWarps + i] == 0;
        if (!plain)
            for (int k = 0; k < count; ++k) add(half, k, true);
        else if (count == kChunk)
            FERRUM_UNROLLED
            for (int k = 0; k < kChunk; ++k) add(half, k, false);
        else
            for (int k = 0; k < count; ++k) add(half, k, false);
    }

    FERRUM_DEVICE Int output_of(int c) const {
        return tile * kOutputs + (MATRICES == 1 ? own_column() + c : own_column() / 2 + c % 2);
    }

    // Add the sums of a block of inputs to the totals.
    FERRUM_DEVICE void join(Int block) {
        FERRUM_UNROLLED
        for (int c = 0; c < kOwnOutputs; ++c) {
            const Int output = output_of(c), at = output / kPanel * panel_bytes + block * F::kBlockBytes;
            const Byte* matrix = (MATRICES == 2 && c >= 2 ? a.up : a.weight) + block_z() * a.weight_step;
            const float factor = output < a.outputs ? flushed(block_scale(matrix + at, static_cast<int>(output % kPanel))) : 0.0f;
            FERRUM_UNROLLED
            for (int r = 0; r < kOwnRows; ++r) total[r][c] = fused_flushed(sum[r][c], factor, total[r][c]), sum[r][c] = 0.0f;
        }
    }

    FERRUM_DEVICE void multiply() {
        load(0), store(0);
        sync_block();
        for (Int chunk = 0; chunk < chunks; ++chunk) {
            const int half = static_cast<int>(chunk % 2);
            if (chunk + 1 < chunks) load(chunk + 1);
            add_chunk(half, static_cast<int>(least(kChunk, terms - chunk * kChunk)));
            if (F::kScaled && (chunk + 1) * kChunk % F::kInputs == 0) join(chunk * kChunk / F::kInputs);
            if (chunk + 1 < chunks) store(1 - half);
            sync_block();
        }
        write();
    }

    // Write the outputs, a row of each thread at a time: in shared memory they come together to runs.
    FERRUM_DEVICE void write() {
        for (int r = 0; r < kOwnRows; ++r) {
            FERRUM_UNROLLED
            for (int c = 0; c < kOwnOutputs; ++c) {
                float column[kOwnRows];
                FERRUM_UNROLLED
                for (int i = 0; i < kOwnRows; ++i) column[i] = F::kScaled ? total[i][c] : sum[i][c];
                w[own_row() / kOwnRows * kManyOutputs + own_column() + c] = picked(column, r);
            }
            sync_block();
            for (int i = thread(); i < kManyRows / kOwnRows * kOutputs; i += kThreads) {
                const int group = i / kOutputs, output = i % kOutputs;
                const float* found = w + group * kManyOutputs + (MATRICES == 1 ? output : output / 2 * 4 + output % 2);
                const Int at = first + group * kOwnRows + r;
                if (at < end) finish(a, at, tile * kOutputs + output, found[0], found[2 * (MATRICES - 1)]);
            }
            sync_block();
        }
    }
};

}  // namespace
}  // namespace ferrum::cuda
