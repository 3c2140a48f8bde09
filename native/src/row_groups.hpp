// Products of groups of rows, each by one matrix of a weight: rows by their experts, or all rows by each head.
#pragma once

#include <algorithm>

#include "runtime.hpp"
#include "weight.hpp"

namespace ferrum {

// Rows multiplied by one of the weight's matrices. They are `first` and the following of the rows of all groups.
struct RowGroup {
    int64_t matrix, first, count;
};

struct RowGroups {
    const RowGroup* all;
    int64_t count;

    // Whether a group has several rows, which share a tile.
    bool crowded() const {
        return std::any_of(all, all + count, [](const RowGroup& group) { return group.count > 1; });
    }
};

// A product of all groups; see ProductArgs. Biases are those of all matrices, one after another.
struct GroupedProduct {
    const Weight* weight = nullptr;
    const Weight* up = nullptr;
    int64_t outputs = 0;  // of a matrix
    const float* bias = nullptr;
    const float* up_bias = nullptr;
    Activation activation{};
    bool gates = false;
    const std::byte* x = nullptr;      // rows packed in tiles of their group
    const std::byte* alone = nullptr;  // or for groups of one row: the row number ids[first] of rows packed alone
    const int32_t* ids = nullptr;
    float* y = nullptr;  // row i of a group: y + first * row_step + matrix * matrix_step + i * stride
    int64_t stride = 0, row_step = 0, matrix_step = 0;
    int64_t begin = 0, columns = outputs;  // the outputs that are computed, whole panels
};

// Tiles of a group.
struct Tiles {
    TiledRows of;
    int64_t begin, end;
};

// Call work(group, tiles) with the thread's share of the tiles of groups with at least this number of rows.
template <class Work>
void for_tiles(const Runtime& runtime, const RowGroups& groups, Format format, int thread, int64_t least, Work work) {
    const auto tiles_of = [&](const RowGroup& g) { return g.count < least ? 0 : runtime.kernels.row_tiles({format, g.count}); };
    int64_t all = 0;
    for (int64_t i = 0; i < groups.count; ++i) all += tiles_of(groups.all[i]);
    const auto [begin, end] = share(runtime, all, thread);
    int64_t before = 0;
    for (int64_t i = 0; i < groups.count && before < end; ++i) {
        const RowGroup& group = groups.all[i];
        const int64_t tiles = tiles_of(group), from = std::max<int64_t>(begin - before, 0), to = std::min(end - before, tiles);
        if (from < to) work(group, Tiles{{format, group.count}, from, to});
        before += tiles;
    }
}

// The pieces of a product of groups: of each group in turn, every panel by every block of rows. Threads own contiguous
// runs of equal cost. Each thread computes the same lists, in its scratch memory.
class GroupPieces {
public:
    // Numbers that it needs.
    static int64_t room(int64_t groups, int64_t threads) { return groups + threads + 1; }

    GroupPieces(const RowGroups& groups, int64_t* room) : groups_(groups), ends_(room), begins_(room + groups.count) {}

    // Set the thread's share. Without a barrier before `multiply`, other threads may not find it.
    void deal(Runtime& runtime, const GroupedProduct& product, int thread);
    // Multiply until no piece is left.
    void multiply(Runtime& runtime, const GroupedProduct& product, int thread) const;

private:
    // A piece: its group, and its number in the group.
    struct Place {
        int64_t group, number;
    };

    Place find(int64_t piece, int64_t guess) const;

    RowGroups groups_;
    int64_t* ends_;    // of the pieces of each group
    int64_t* begins_;  // of the pieces of each thread, and their end
};

}  // namespace ferrum
