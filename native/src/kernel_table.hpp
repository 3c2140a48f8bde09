// What an instruction tier offers: plain structures in, plain loops over a range of work. Every tier compiles the same
// sources (native/tier) and exports one table; everything that decides who does what lives above it (native/src).
//
// Letters: R rows, K inputs and N outputs of a product. A panel is 32 outputs with all their inputs, contiguous.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ferrum {

// int8 and int4: integers in groups of 32 inputs, or of the number in the name (see grouping.hpp).
enum class Format { f32, bf16, f16, int8, int4, int8_64, int8_128, int4_64, int4_128, int4_zero_32, int4_zero_64, int4_zero_128 };

constexpr int kNumerics = 4;  // counts on with every change of a bit that comes out, or of the raw pages

constexpr int64_t kPanel = 32;  // outputs of a panel: every format's step is then a whole number of cache lines
constexpr int64_t kStep = 64;   // keys per step of attention, whatever the page size
constexpr int64_t kSide = 64;   // dimensions of values that lie side by side
constexpr int64_t kKeySide = 16;  // tokens of keys that do: a word of each is a cache line
constexpr int64_t kMaxHead = 512;
constexpr int64_t kSumPage = 4096;  // bytes that share a checksum

// Bytes of an element of floats. Internal linkage: every tier compiles this with instructions of its own.
static constexpr int64_t item_bytes(Format format) { return format == Format::f32 ? 4 : 2; }

// A row-major matrix of floats.
struct MatrixArgs {
    Format format;
    const std::byte* values;
    int64_t outputs, inputs;
};

// What was wrong with the numbers of a matrix that was rounded to integers, the worst last.
enum class Rounding { fine, too_large, not_finite };

// Rows for products with weights of a format, cut into tiles, whose height makes no difference to any bit.
struct TiledRows {
    Format format;
    int64_t rows;
};

// A product y = x w^T + bias of rows already packed by the same tier; with `up`, y = silu(x w^T) * (x up^T).
struct ProductArgs {
    TiledRows tiled;
    const std::byte* x;
    int64_t depth;
    const std::byte* weight;
    const std::byte* up;
    const float* bias;
    int64_t outputs;
    float* y;
};

// The panels of weight and up that a thread multiplies after the current ones, or null: it fetches them meanwhile.
struct NextPanel {
    const std::byte* weight;
    const std::byte* up;
};

// y = RMSNorm(x + delta) * weight; the sum goes to `total`. Without a delta, of x alone.
struct NormArgs {
    const float* x;
    const float* delta;
    const float* weight;
    float eps;
    int64_t columns;
    float* total;
    float* y;
};

enum class KvFormat { f32, bf16, int8 };

// Keys and values of a layer group. Per (layer, page, head) lie blocks of `block` tokens, each with its keys before its values:
//   keys   [block / side][dim / pair][side][pair]   values [padded dim / 64][block / pair][64, or what is left][pair]
// with as many elements in a pair as fill a word of 4 bytes: both are panels of a product whose lanes are tokens (scores) or
// dimensions (output), and both are read from one end to the other. A new token's key goes to lines that follow each other:
// among 64 tokens side by side it would go to every fourth, which memory gives at a third of the speed. In int8 each is
// followed by a scale in f32 per token; keys are stored as code + 128.
struct GroupStore {
    std::byte* data;
    KvFormat format;
    int64_t num_layers, num_pages, page_size, num_kv_heads;
    int64_t key_dim, value_dim;        // of the model
    int64_t key_padded, value_padded;  // of the store
    int64_t block, blocks_per_page;
    int64_t key_side;                // kKeySide, or the whole block where that does not divide it
    int64_t key_bytes, value_bytes;  // of one block, scales included
};

// Where the rows of a step stand; see StepTables in kernels/interface.py.
struct RowTables {
    const int32_t* positions;
    const int32_t* span_rows;
    const int32_t* row_span;  // [R] the span of each row
    const int32_t* pages;     // [S, pages_stride] of the layer's group
    int64_t pages_stride;
};

constexpr int64_t kRowBlock = kKeySide;  // rows whose keys of a head are stored in turn: they may fill whole lines

struct RopeArgs {
    int64_t rows;
    const float* q;
    const float* k;
    const float* v;
    float* q_out;
    int64_t num_heads, num_kv_heads, head_dim, pairs;
    const float* cosines;  // [positions, pairs], or null
    const float* sines;
    const float* q_norm;  // [head_dim], or null
    const float* k_norm;
    float eps;
    const GroupStore* store;
    int64_t layer;
    RowTables tables;
};

struct AttentionArgs {
    const float* q;
    float* out;
    int64_t num_heads, num_kv_heads, head_dim;
    float scale;     // of q . k, times log2 e
    int64_t window;  // 0 sees all
    const GroupStore* store;
    int64_t layer;
    RowTables tables;
};

// One piece of attention: a span's queries `begin` to `end`, counted [position][head of the share], of each of some KV heads.
struct AttentionItem {
    int64_t span, head_begin, head_end, begin, end;
};

constexpr int64_t kItemRows = 96;  // query rows of an item, over its heads: their state stays in the second-level cache

// What a draw depends on besides the logits (sampling/philox.py).
struct DrawKey {
    uint64_t seed;
    uint32_t position, choice;
};

// A row is looked at in stretches; every sixteenth number of one makes a strand. An empty strand's largest is minus infinity.
constexpr int64_t kStretch = 1024, kStrands = 16;

struct KernelTable {
    const char* name;
    int64_t (*packed_bytes)(Format, int64_t rows, int64_t depth);
    int64_t (*row_tiles)(const TiledRows&);
    void (*pack_panels)(const MatrixArgs&, int64_t panel_begin, int64_t panel_end, std::byte* panels);
    Rounding (*quantize)(const MatrixArgs&, Format, int64_t panel_begin, int64_t panel_end, std::byte* panels);
    void (*pack)(const TiledRows&, const float* x, int64_t depth, int64_t tile_begin, int64_t tile_end, std::byte* out);
    // A piece of a product: a block of rows, as many as the second-level cache holds, by one panel.
    int64_t (*row_blocks)(const TiledRows&);
    void (*product)(const ProductArgs&, int64_t block, int64_t panel, const NextPanel&);
    void (*norm)(const NormArgs&, int64_t row_begin, int64_t row_end);
    void (*rope_store)(const RopeArgs&, int64_t item_begin, int64_t item_end);  // items: row blocks x (heads + kv heads)
    int64_t (*attention_scratch)(const GroupStore&);                            // bytes a thread needs
    void (*attention)(const AttentionArgs&, const AttentionItem&, std::byte* scratch);
    // Of the pages [begin, end) of `bytes` bytes, the last filled up with zeros.
    void (*page_sums)(const std::byte* data, int64_t bytes, int64_t begin, int64_t end, uint64_t* sums);
    bool (*finite)(const float* x, int64_t count);

    // Over a row of logits; `x` are distances below the greatest, divided by the temperature.
    float (*largest)(const float* x, int64_t count);                             // NaN where there is one
    float (*largest_of_strands)(const float* x, int64_t count, float* strands);  // the same, and the largest of each strand
    int64_t (*first_equal)(const float* x, int64_t count, float value);
    void (*scale_below)(const float* x, int64_t count, float peak, float divisor, float* out);
    int64_t (*mass_of)(const float* x, int64_t count, float peak, int64_t* each);  // of x - peak: sum; `each` may be null
    int64_t (*count_before)(const float* x, int64_t count, int64_t token);         // those greater, and its equals of lower id
    void (*exp_of)(const float* x, int64_t count, float* out);
    float (*log_of)(float x);
    int64_t (*collect_from)(const float* x, int64_t count, float cut, int32_t* tokens);  // x >= cut, ascending
    int64_t (*draw_among)(const float* x, const int32_t* tokens, int64_t count, const DrawKey& key);
    int64_t (*draw_from_all)(const float* x, int64_t count, const DrawKey& key);
};

}  // namespace ferrum
