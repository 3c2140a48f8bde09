// Declarations of the tier's functions, for table.cpp; kernel_table.hpp describes them.
#pragma once

#include "simd.hpp"

namespace ferrum::FERRUM_TIER {

int64_t packed_bytes(Format format, int64_t rows, int64_t depth);
int64_t row_tiles(const TiledRows& tiled);
Rounding quantize(const MatrixArgs& m, const QuantizeArgs& a, int64_t panel_begin, int64_t panel_end, std::byte* panels);
void pack_panels(const MatrixArgs& m, int64_t panel_begin, int64_t panel_end, std::byte* panels);
void pack(const TiledRows& tiled, const float* x, int64_t depth, int64_t tile_begin, int64_t tile_end, std::byte* out);
void read_row(Format format, const std::byte* panel, int64_t lane, int64_t depth, float* to);
int64_t row_blocks(const TiledRows& tiled);
void product(const ProductArgs& a, int64_t block, int64_t panel, const NextPanel& next);
void norm(const NormArgs& a, int64_t row_begin, int64_t row_end);
void add(const AddArgs& a, int64_t row_begin, int64_t row_end);
void activate_all(const Activation& a, const float* x, const float* others, int64_t count, float* y);
void dots(const DotArgs& a, int64_t row_begin, int64_t row_end, int64_t begin, int64_t end);
void expand(const ExpandArgs& a, int64_t panel_begin, int64_t panel_end);
void widen(Format format, const std::byte* from, int64_t count, float factor, float* out);
void rope_store(const RopeArgs& a, int64_t item_begin, int64_t item_end);
void latent_store(const LatentArgs& a, int64_t item_begin, int64_t item_end);
int64_t attention_scratch(const GroupStore& s);
void attention(const AttentionArgs& a, const AttentionItem& item, std::byte* scratch);
void convolve(const ConvArgs& a, const StateSpan& span, int64_t begin, int64_t end);
int64_t delta_scratch(const DeltaArgs& a);
void delta(const DeltaArgs& a, const StateSpan& span, const DeltaItem& item, std::byte* scratch);
void gated_norm(const GatedNormArgs& a, int64_t begin, int64_t end);
void page_sums(const std::byte* data, int64_t bytes, int64_t begin, int64_t end, uint64_t* sums);
bool finite(const float* x, int64_t count);
void scores(Score score, const float* x, int64_t count, float peak, float* out);
void gather_rows(const TiledRows& tiled, const std::byte* alone, const int32_t* ids, int64_t depth, int64_t tile_begin,
                 int64_t tile_end, std::byte* out);
void add_rows(const float* const* rows, const float* weights, int64_t count, int64_t begin, int64_t end, float* out);
float largest(const float* x, int64_t count);
float largest_of_strands(const float* x, int64_t count, float* strands);
int64_t first_equal(const float* x, int64_t count, float value);
void scale_below(const float* x, int64_t count, float peak, float divisor, float* out);
int64_t mass_of(const float* x, int64_t count, float peak, int64_t* each);
int64_t count_before(const float* x, int64_t count, int64_t token);
void exp_of(const float* x, int64_t count, float* out);
float log_of(float x);
int64_t collect_from(const float* x, int64_t count, float cut, int32_t* tokens);
int64_t draw_among(const float* x, const int32_t* tokens, int64_t count, const DrawKey& key);
int64_t draw_from_all(const float* x, int64_t count, const DrawKey& key);

extern const KernelTable kTable;

}  // namespace ferrum::FERRUM_TIER
