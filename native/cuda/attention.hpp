// What the kernels of attention share: their argument, the rows of a block, and the copies of keys and values to shared
// memory.
//
// A tile has some query rows of one KV head: positions of one span, each with query heads that share the KV head. Keys
// are processed in steps of 64, in ascending order; see "Attention" in docs/numerics.md.
#pragma once

#include "pages.hpp"

namespace ferrum::cuda {

constexpr int kWords = 32;  // words of keys or values that are copied at once: of 64 tokens, or of 64 dimensions

struct AttentionArgs {
    const int* rows;
    const int* span_rows;
    const float* q;      // [rows, heads, head_dim]
    const float* sinks;  // [heads], or null
    float* out;          // [rows, heads, value_dim]
    Int heads, head_dim, value_dim;
    Int window, chunk;                // 0: all keys
    Int tile_positions, tile_heads;  // most of a tile
    float* steps;                     // scratch of the kernels that spread the keys over blocks
    float* totals;                    // [rows, heads]
    Int most_steps;                   // of a row
    Int step_blocks;                  // over which the scores of a tile are spread
    Activation scaling;  // of q . k to an exponent of 2
    Pages pages;
};

// The first key that a query at this position sees.
FERRUM_DEVICE int first_seen(const AttentionArgs& a, int position) {
    const int window = static_cast<int>(a.window), chunk = static_cast<int>(a.chunk);
    const int by_window = window > 0 ? position - window + 1 : 0, by_chunk = chunk > 0 ? position / chunk * chunk : 0;
    const int first = by_window > by_chunk ? by_window : by_chunk;
    return first > 0 ? first : 0;
}

// The rows of a block: grid.x counts rows of the step, of which the first one of each tile has a block with work, and
// grid.y counts runs of query heads.
struct Tile {
    int count = 0;  // rows of queries; 0: this block has no work
    int row, span, kv_head, head, heads;
    int low, last;    // the first key that a row sees, and the last
    int begin, end;   // steps

    FERRUM_DEVICE explicit Tile(const AttentionArgs& a) {
        row = static_cast<int>(block_x());
        if (row >= *a.rows) return;
        const int most = static_cast<int>(a.tile_positions), run = static_cast<int>(a.tile_heads);
        const int share = static_cast<int>(a.heads) / static_cast<int>(a.pages.kv_heads), runs = (share + run - 1) / run;
        span = a.pages.row_span[row];
        if ((row - a.span_rows[span]) % most != 0) return;
        const int left = a.span_rows[span + 1] - row, positions = left < most ? left : most;
        const int index = static_cast<int>(block_y()), from = index % runs * run;
        kv_head = index / runs;
        head = kv_head * share + from;
        heads = share - from < run ? share - from : run;
        count = positions * heads;
        low = first_seen(a, a.pages.positions[row]);
        last = a.pages.last_seen[row + positions - 1];
        begin = low / kStep;
        end = last / kStep + 1;
    }
    // Tokens of a step that exist.
    FERRUM_DEVICE int tokens(int step) const { return last + 1 - step * kStep < kStep ? last + 1 - step * kStep : kStep; }
    // Row i of the tile: its row of the step, and its query head. Rows behind the last are copies of it.
    FERRUM_DEVICE int row_of(int i) const { return row + (i < count ? i : count - 1) / heads; }
    FERRUM_DEVICE int head_of(int i) const { return head + (i < count ? i : count - 1) % heads; }
    FERRUM_DEVICE Int index_of(const AttentionArgs& a, int i) const { return row_of(i) * a.heads + head_of(i); }
};

FERRUM_DEVICE Block token_block(const Pages& p, const Tile& tile, int token) {
    return token_block(p, tile.span, tile.kv_head, token);
}

// Whether four adjacent tokens are in one page, and their words adjacent.
FERRUM_DEVICE bool in_fours(const Pages& p) { return p.page_size % 4 == 0; }

FERRUM_DEVICE unsigned word_at(const Byte* from) { return *reinterpret_cast<const unsigned*>(from); }

FERRUM_DEVICE void clear_16(unsigned* to) {
    for (int i = 0; i < 4; ++i) to[i] = formats::FERRUM_FORMAT::kEmpty;
}

// Copy WORDS words of the keys of a step, from word `first` on, to [word][COLUMNS]. Words and tokens that there are not
// become numbers that change no sum.
template <int WORDS, int COLUMNS>
FERRUM_DEVICE void copy_keys(const Pages& p, const Tile& tile, int step, int first, unsigned* to) {
    const int four = thread() % 16 * 4, token = step * kStep + four, left = tile.tokens(step) - four;
    const bool fours = in_fours(p);
    const Block block = left > 0 && fours ? token_block(p, tile, token) : Block{nullptr, nullptr, 0};
    for (int word = thread() / 16; word < WORDS; word += kThreads / 16) {
        unsigned* const at = to + word * COLUMNS + four;
        const bool there = first + word < p.key_words;
        if (there && block.keys != nullptr) {
            copy_16(at, block.keys + key_at(p, block.token, first + word));
            continue;
        }
        clear_16(at);
        for (int i = 0; i < 4 && there && !fours && i < left; ++i) {
            const Block each = token_block(p, tile, token + i);
            if (each.keys != nullptr) at[i] = word_at(each.keys + key_at(p, each.token, first + word));
        }
    }
}

// The word of a dimension of values for tokens that may be in several pages.
template <int DEPTH>
FERRUM_DEVICE unsigned gathered_word(const Pages& p, const Tile& tile, int token, int count, int d) {
    constexpr int kBits = 32 / DEPTH;
    unsigned word = 0;
    for (int i = 0; i < DEPTH && i < count; ++i) {
        const Block block = token_block(p, tile, token + i);
        if (block.keys == nullptr) continue;
        const unsigned found = word_at(block.values + value_at(p, DEPTH, block.token, d));
        const unsigned element = found >> (block.token % DEPTH * kBits) & (0xffffffffu >> (32 - kBits));
        word |= element << (i * kBits);
    }
    return word;
}

// Copy the values of some tokens of a step, WIDTH dimensions from `first` on, to [token / DEPTH][COLUMNS].
template <int DEPTH, int WIDTH, int COLUMNS>
FERRUM_DEVICE void copy_values(const Pages& p, const Tile& tile, int step, int from, int first, unsigned* to) {
    constexpr int kFours = WIDTH / 4, kCount = kStep / DEPTH < kWords ? kStep / DEPTH : kWords;
    const int four = thread() % kFours * 4, d = first + four;
    const bool fours = in_fours(p);
    for (int word = thread() / kFours; word < kCount && d < p.value_padded; word += kThreads / kFours) {
        unsigned* const at = to + word * COLUMNS + four;
        const int token = from + word * DEPTH, left = tile.tokens(step) - token;
        const Block block = left > 0 && fours ? token_block(p, tile, step * kStep + token) : Block{nullptr, nullptr, 0};
        if (block.keys != nullptr) {
            copy_16(at, block.values + value_at(p, DEPTH, block.token, d));
            continue;
        }
        clear_16(at);
        for (int i = 0; i < 4 && !fours && left > 0; ++i) at[i] = gathered_word<DEPTH>(p, tile, step * kStep + token, left, d + i);
    }
}

// Compute `count` items in order, each from a copy in shared memory, while the copies of the next BUFFERS - 1 are on
// their way. `copy` and `compute` take an item and the number of its buffer.
template <int BUFFERS, class Copy, class Compute>
FERRUM_DEVICE void pipeline(int count, Copy copy, Compute compute) {
    for (int i = 0; i < BUFFERS - 1; ++i) {
        if (i < count) copy(i, i);
        close_copies();
    }
    for (int i = 0; i < count; ++i) {
        wait_for_copies<BUFFERS - 2>();
        sync_block();
        const int next = i + BUFFERS - 1;
        if (next < count) copy(next, next % BUFFERS);
        close_copies();
        compute(i, i % BUFFERS);
    }
}

}  // namespace ferrum::cuda
