// The data that changes per step, in buffers with fixed addresses; see StepTables in kernels/interface.py.
#pragma once

#include <cstdint>
#include <vector>

#include "kernel_table.hpp"

namespace ferrum {

// Row counts that vary by step; values from 0 up are constants.
enum Extent : int64_t { kRows = -1, kLogits = -2, kHidden = -3 };

// Rows of a step that use an adapter; see AdapterRows in kernels/interface.py.
struct StepAdapter {
    int64_t slot;
    double scale;
    std::vector<int32_t> rows, logit_rows;
};

// What a step does to the states of its spans; see StateTables in kernels/interface.py. Empty: nothing.
struct StepStates {
    std::vector<int32_t> read, write, waiting, kept;
};

struct Step {
    std::vector<int32_t> token_ids, positions, span_rows, row_span, logit_rows, hidden_rows;
    std::vector<int32_t> last_seen;  // per row; empty: its position
    std::vector<std::vector<int32_t>> pages;  // per group [S, stride]
    std::vector<int64_t> strides;
    std::vector<float> given;       // rows used in place of embeddings
    std::vector<int32_t> given_of;  // per row of the step, its row in `given` or -1; empty if no row is given
    int64_t given_columns = 0;
    std::vector<float> added;  // per row in `given`, numbers that are added later
    int64_t added_columns = 0;
    std::vector<int32_t> places;  // per row of the step, kPlaceAxes numbers; empty: rotations are by position
    std::vector<StepAdapter> adapters;  // in the order in which their results are added
    StepStates states;

    int64_t spans() const { return static_cast<int64_t>(span_rows.size()) - 1; }

    int64_t count(int64_t extent) const {
        switch (extent) {
            case kRows: return static_cast<int64_t>(token_ids.size());
            case kLogits: return static_cast<int64_t>(logit_rows.size());
            case kHidden: return static_cast<int64_t>(hidden_rows.size());
            default: return extent;
        }
    }

    RowTables rows_of(int64_t group) const {
        const auto index = static_cast<size_t>(group);
        const std::vector<int32_t>& seen = last_seen.empty() ? positions : last_seen;
        return {positions.data(), seen.data(), span_rows.data(), row_span.data(), pages.at(index).data(), strides.at(index)};
    }
};

}  // namespace ferrum
