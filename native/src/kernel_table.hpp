// The interface of an instruction tier: plain structures and loops over a range of work. Every tier compiles the same
// sources (native/tier) and exports one table. Code that distributes work is in native/src.
//
// Letters: R rows, K inputs and N outputs of a product. A panel is 32 outputs with all their inputs, contiguous.
#pragma once

#include <cstddef>
#include <cstdint>

#include "weight_formats.hpp"

namespace ferrum {

constexpr int kNumerics = 2;  // equals VERSION in kernels/numerics.py

constexpr int64_t kPanel = 32;  // outputs of a panel: a step of every format is a whole number of cache lines
constexpr int64_t kStep = 64;   // keys per step of attention, for any page size
constexpr int64_t kSide = 64;   // adjacent dimensions of values
constexpr int64_t kKeySide = 16;  // adjacent tokens of keys: one word of each fills a cache line
constexpr int64_t kMaxHead = 576;  // the keys of DeepSeek
constexpr int64_t kSumPage = 4096;  // bytes that share a checksum

// Functions here have internal linkage, because every tier compiles them with its instruction set.

// Bytes of a float element.
static constexpr int64_t item_bytes(Format format) { return format == Format::f32 ? 4 : 2; }

// A row-major matrix of floats.
struct MatrixArgs {
    Format format;
    const std::byte* values;
    int64_t outputs, inputs;
};

// The error of a matrix in quantisation, the worst last.
enum class Rounding { fine, too_large, not_finite };

// Quantisation to a format of blocks: with the importance of each input up to the end of the last block, or null.
struct QuantizeArgs {
    Format format;
    const float* importance;
    bool thorough;
};

// Rows packed for products with weights of a format. The tile height changes no bit.
struct TiledRows {
    Format format;
    int64_t rows;
};

enum class Curve { none, scaled, capped, silu, gelu, gelu_tanh, relu2, sigmoid, clip };

// A function of each number of a product; see Activation in kernels/op_attributes.py. Of a gated product, it is applied
// to the gate. If the product is `limited`, gates are at most `limit`, and the other factor is limited to +-limit, plus 1.
struct Activation {
    Curve curve = Curve::none;
    float slope = 1;  // a factor of x: of the result if scaled, of the exponent if capped or silu
    float top = 0;    // capped: top - span / (1 + exp(slope x)); clip: the largest result
    float span = 0;   // clip: the least result
    bool limited = false;
    float limit = 0;
};

// A product y = activation(x w^T + bias) of rows packed by the same tier. With `up`, or if it gates, y is the activated
// x w^T + bias times x up^T + up_bias, or times the y that is there. Each bias may be null.
struct ProductArgs {
    TiledRows tiled;
    const std::byte* x;
    int64_t depth;
    const std::byte* weight;
    const std::byte* up;
    const float* bias;
    const float* up_bias;
    Activation activation;
    int64_t outputs;
    float* y;
    bool gates;
};

// The panels of weight and up that a thread multiplies next, or null. The kernel prefetches them.
struct NextPanel {
    const std::byte* weight;
    const std::byte* up;
};

// total = x + factor delta; y = RMSNorm(total) * weight + bias, of total minus its mean if it is centred. Without a delta
// (null), the norm of x. The bias may be null. With weights, each row has its weight and bias.
struct NormArgs {
    const float* x;
    const float* delta;
    const float* weight;
    const float* bias;
    float factor, eps;
    bool centred;
    int64_t columns;
    float* total;
    float* y;
    const float* const* weights = nullptr;  // [rows], or null
    const float* const* biases = nullptr;
};

// out = (x + factor y) scale; with a gate [R] (or null), its sigmoid is the factor.
struct AddArgs {
    const float* x;
    const float* y;
    const float* gate;
    float factor, scale;
    int64_t columns;
    float* out;
};

// Dot products of rows of x [.., depth] with rows of a matrix of floats [outputs, depth], summed in 64 accumulators. They are
// written to the rows 0.. of out [count, stride], or to the rows of x; output j to column j, or to columns[j].
struct DotArgs {
    Format format;
    const std::byte* matrix;
    int64_t outputs, depth;
    const float* x;
    const int32_t* rows;  // of x
    float* out;
    int64_t stride;
    bool in_rows;
    const int32_t* columns;  // or null
    bool prefetches;         // the next rows of the matrix
};

// Of rows of y [.., outputs]: y = factor (y + scale (t b^T + bias)) + offset, where b is in panels [panel][rank][kPanel].
// Without t (null) nothing is added. The bias may be null, and so may factor and offset together.
struct ExpandArgs {
    Format format;
    const std::byte* b;
    const std::byte* next;  // panels that are read after these, or null; the kernel prefetches some if it reads several
    int64_t rank, outputs;
    const float* t;  // [count, stride]
    int64_t stride;
    const int32_t* rows;  // of y
    int64_t count;
    float scale;
    const float* bias;
    const float* factor;
    const float* offset;
    float* y;
};

enum class KvFormat { f32, bf16, int8 };

// Keys and values of a layer group. Each (layer, page, head) has blocks of `block` tokens, with the keys before the values:
//   keys   [block / side][dim / pair][side][pair]   values [padded dim / 64][block / pair][64, or the remainder][pair]
// where a pair fills a word of 4 bytes. Both are panels of a product with tokens (scores) or dimensions (output) as lanes,
// and both are read sequentially. The key of a new token fills consecutive lines; with 64 adjacent tokens it would fill
// every fourth line, at a third of the memory speed. In int8, one f32 scale per token follows each; keys are stored as
// code + 128. In latent attention, values are the first numbers of their keys: a block has keys only, and the width of
// values is that of the operation.
struct GroupStore {
    std::byte* data;
    KvFormat format;
    int64_t num_layers, num_pages, page_size, num_kv_heads;
    int64_t key_dim, value_dim;        // of the model
    int64_t key_padded, value_padded;  // of the store
    int64_t block, blocks_per_page;
    int64_t key_side;                // kKeySide, or the whole block if kKeySide does not divide it
    int64_t key_bytes, value_bytes;  // of one block, scales included

    bool latent() const { return value_bytes == 0; }
};

// Positions of the rows of a step; see StepTables in kernels/interface.py.
struct RowTables {
    const int32_t* positions;
    const int32_t* last_seen;  // [R] last position that each row sees
    const int32_t* span_rows;
    const int32_t* row_span;  // [R] span of each row
    const int32_t* pages;     // [S, pages_stride] of the layer's group
    int64_t pages_stride;
};

constexpr int64_t kPlaceAxes = 3;  // time, row and column

constexpr int64_t kRowBlock = kKeySide;  // rows whose keys of a head are stored together, so that they fill whole lines

// Without k and v (null), only queries are turned. Norms are of heads, each [head size] or null, of q and k after the
// rotation if `norm_last`. With q_norms or k_norms, each row has its norm.
struct RopeArgs {
    int64_t rows;
    const float* q;
    const float* k;
    const float* v;
    float* q_out;
    int64_t num_heads, num_kv_heads, head_dim, pairs;
    const float* cosines;  // [positions, pairs], or null
    const float* sines;
    const float* q_norm;
    const float* k_norm;
    const float* v_norm;
    const float* temperature;  // [positions], a factor of q, or null
    float eps;
    bool norm_last;
    const GroupStore* store;
    int64_t layer;
    RowTables tables;
    const float* const* q_norms = nullptr;  // [rows], or null
    const float* const* k_norms = nullptr;
    const int32_t* places = nullptr;  // [rows, kPlaceAxes], or null; see StepTables in kernels/interface.py
    const int32_t* axes = nullptr;    // [pairs], the number in `places` that turns each pair; or null
};

// Heads of a row, each an item of work.
static inline int64_t items_per_row(const RopeArgs& a) { return a.num_heads + (a.k != nullptr ? a.num_kv_heads : 0); }

// Keys and queries of latent attention: numbers without a position, then rotated ones. One KV head.
struct LatentArgs {
    int64_t rows;
    const float* q;       // [rows, num_heads, value_dim]
    const float* q_rope;  // [rows, num_heads, rope_dim]
    const float* latent;  // [rows, value_dim]
    const float* k_rope;  // [rows, rope_dim]
    float* q_out;         // [rows, num_heads, value_dim + rope_dim]
    int64_t num_heads, value_dim, rope_dim, pairs;
    const float* cosines;  // [positions, pairs]
    const float* sines;
    const GroupStore* store;
    int64_t layer;
    RowTables tables;
};

struct AttentionArgs {
    const float* q;
    float* out;
    int64_t num_heads, num_kv_heads, head_dim;
    Activation scaling;     // of q . k to an exponent of 2: scaled or capped
    const float* sinks;     // [num_heads] logits without values, or null
    int64_t window, chunk;  // 0: all keys
    const GroupStore* store;
    int64_t layer;
    RowTables tables;
    int64_t value_dim;    // of a latent store
    bool causal = false;  // rows see no key after their own, whatever the step's tables say
};

// The first key that a query at this position sees.
static inline int64_t first_seen(const AttentionArgs& a, int64_t position) {
    const int64_t by_window = a.window > 0 ? position - a.window + 1 : 0, by_chunk = a.chunk > 0 ? position / a.chunk * a.chunk : 0;
    const int64_t first = by_window > by_chunk ? by_window : by_chunk;
    return first > 0 ? first : 0;
}

// A work item of attention: queries `begin` to `end` of a span, counted [position][head of the group], for some KV
// heads.
struct AttentionItem {
    int64_t span, head_begin, head_end, begin, end;
};

constexpr int64_t kItemRows = 96;  // query rows of an item over its heads; their state fits in the second-level cache

// What a step does to the state of a span in one layer: rows waiting next to the state read, then those of the step are
// applied, but the last `kept` ones, whose effect is not in the state written. They may be the same memory.
struct StateSpan {
    const float* read;     // null: zeros
    float* write;
    const float* waiting;  // [waiting_rows, numbers of a row]
    int64_t waiting_rows, first, rows, kept;  // `first` is the first row of the step

    int64_t all() const { return waiting_rows + rows; }
    int64_t applied() const { return all() - kept; }
};

// Each column of a row: the products of the last `taps` rows of a span with the weight, added, plus the bias, activated.
// A state has the rows before the next one, oldest first. A waiting row is one of x.
struct ConvArgs {
    const float* x;       // [rows, columns]
    const float* weight;  // [taps, columns]
    const float* bias;    // [columns], or null
    Activation activation;
    int64_t taps, columns;
    float* y;
};

// Heads of the gated delta rule; see DeltaShape in kernels/op_attributes.py. A state is [heads, key_dim, value_dim]. A waiting
// row is one of x, one of a and one of b.
struct DeltaArgs {
    const float* x;  // [rows, columns()]: queries and keys of key heads, then values
    const float* a;  // [rows, heads]
    const float* b;
    const float* decay;  // [heads]
    const float* shift;
    int64_t heads, key_heads, key_dim, value_dim;
    bool interleaved;  // value head h uses key head h mod key_heads
    float query_scale;
    float* y;  // [rows, heads, value_dim]

    int64_t key_head(int64_t head) const { return interleaved ? head % key_heads : head / (heads / key_heads); }
    int64_t columns() const { return 2 * key_heads * key_dim + heads * value_dim; }
    int64_t row_numbers() const { return columns() + 2 * heads; }
};

// A work item of the delta rule: a head of a span, and the columns of its values. `next` is the state of the item that the
// thread computes next, or null; the kernel prefetches it.
struct DeltaItem {
    int64_t head, begin, end;
    const float* next;
};

constexpr int64_t kDeltaColumns = 32;  // an item begins with a multiple of them

// Items: [rows x heads, dim]. y = norm(x) * weight * activation(gate).
struct GatedNormArgs {
    const float* x;
    const float* gate;
    const float* weight;  // [dim]
    float eps;
    Activation activation;
    int64_t dim;
    float* y;
};

// Inputs of a draw besides the logits (sampling/philox.py).
struct DrawKey {
    uint64_t seed;
    uint32_t position, choice;
};

// A row is read in stretches; every sixteenth number of a stretch belongs to a strand. The maximum of an empty strand
// is minus infinity.
constexpr int64_t kStretch = 1024, kStrands = 16;

// How scores of experts become weights; the softmax is e^(x - peak), before its sum.
enum class Score { softmax, sigmoid, sqrt_softplus };

struct KernelTable {
    const char* name;
    int64_t (*packed_bytes)(Format, int64_t rows, int64_t depth);
    int64_t (*row_tiles)(const TiledRows&);
    void (*pack_panels)(const MatrixArgs&, int64_t panel_begin, int64_t panel_end, std::byte* panels);
    Rounding (*quantize)(const MatrixArgs&, const QuantizeArgs&, int64_t panel_begin, int64_t panel_end, std::byte* panels);
    void (*pack)(const TiledRows&, const float* x, int64_t depth, int64_t tile_begin, int64_t tile_end, std::byte* out);
    // The numbers of an output of a panel, of a format whose panels keep the bytes of files.
    void (*read_row)(Format, const std::byte* panel, int64_t lane, int64_t depth, float* to);
    // A part of a product: one panel by a block of rows that fits in the second-level cache.
    int64_t (*row_blocks)(const TiledRows&);
    void (*product)(const ProductArgs&, int64_t block, int64_t panel, const NextPanel&);
    void (*norm)(const NormArgs&, int64_t row_begin, int64_t row_end);
    void (*add)(const AddArgs&, int64_t row_begin, int64_t row_end);
    // y of activated x, or with others of activated x times others.
    void (*activate_all)(const Activation&, const float* x, const float* others, int64_t count, float* y);
    void (*dots)(const DotArgs&, int64_t row_begin, int64_t row_end, int64_t begin, int64_t end);  // rows by outputs
    void (*expand)(const ExpandArgs&, int64_t panel_begin, int64_t panel_end);
    void (*widen)(Format, const std::byte* from, int64_t count, float factor, float* out);  // floats times a factor
    void (*rope_store)(const RopeArgs&, int64_t item_begin, int64_t item_end);  // items: row blocks x items_per_row()
    void (*latent_store)(const LatentArgs&, int64_t item_begin, int64_t item_end);  // items: row blocks x (heads + 1)
    int64_t (*attention_scratch)(const GroupStore&);                            // bytes per thread
    void (*attention)(const AttentionArgs&, const AttentionItem&, std::byte* scratch);
    void (*convolve)(const ConvArgs&, const StateSpan&, int64_t begin, int64_t end);  // columns
    int64_t (*delta_scratch)(const DeltaArgs&);                                      // bytes per thread
    void (*delta)(const DeltaArgs&, const StateSpan&, const DeltaItem&, std::byte* scratch);
    void (*gated_norm)(const GatedNormArgs&, int64_t begin, int64_t end);  // items
    // Sums of the pages [begin, end) of `bytes` bytes; zeros pad the last page.
    void (*page_sums)(const std::byte* data, int64_t bytes, int64_t begin, int64_t end, uint64_t* sums);
    bool (*finite)(const float* x, int64_t count);
    void (*scores)(Score score, const float* x, int64_t count, float peak, float* out);
    // The tiles of rows that were packed one by one: row i is number ids[i] of `alone`.
    void (*gather_rows)(const TiledRows&, const std::byte* alone, const int32_t* ids, int64_t depth, int64_t tile_begin,
                        int64_t tile_end, std::byte* out);
    // The columns [begin, end) of a sum of weights x rows, from 0 in their order; null: weights of 1.
    void (*add_rows)(const float* const* rows, const float* weights, int64_t count, int64_t begin, int64_t end, float* out);

    // Functions over a row of logits; `x` are distances below the greatest, divided by the temperature.
    float (*largest)(const float* x, int64_t count);                             // NaN if there is one
    float (*largest_of_strands)(const float* x, int64_t count, float* strands);  // the same, and the largest of each strand
    int64_t (*first_equal)(const float* x, int64_t count, float value);
    void (*scale_below)(const float* x, int64_t count, float peak, float divisor, float* out);
    int64_t (*mass_of)(const float* x, int64_t count, float peak, int64_t* each);  // mass of x - peak; `each` may be null
    int64_t (*count_before)(const float* x, int64_t count, int64_t token);         // greater ones, and equals of lower id
    void (*exp_of)(const float* x, int64_t count, float* out);
    float (*log_of)(float x);
    int64_t (*collect_from)(const float* x, int64_t count, float cut, int32_t* tokens);  // x >= cut, ascending
    int64_t (*draw_among)(const float* x, const int32_t* tokens, int64_t count, const DrawKey& key);
    int64_t (*draw_from_all)(const float* x, int64_t count, const DrawKey& key);
};

}  // namespace ferrum
