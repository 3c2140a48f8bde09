// The kernel table of the tier.
#include "tier.hpp"

#define FERRUM_NAME(tier) #tier
#define FERRUM_NAME_OF(tier) FERRUM_NAME(tier)

namespace ferrum::FERRUM_TIER {

const KernelTable kTable = {
    FERRUM_NAME_OF(FERRUM_TIER), packed_bytes, row_tiles, pack_panels, quantize, pack, read_row, row_blocks, product, norm, add,
    activate_all, dots, expand, widen, rope_store, latent_store, attention_scratch, attention, convolve, delta_scratch, delta, gated_norm, page_sums, finite, scores, gather_rows, add_rows, largest,
    largest_of_strands, first_equal, scale_below, mass_of, count_before, exp_of, log_of, collect_from, draw_among,
    draw_from_all};

}  // namespace ferrum::FERRUM_TIER
