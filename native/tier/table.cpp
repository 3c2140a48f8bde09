// The tier's table.
#include "tier.hpp"

#define FERRUM_NAME(tier) #tier
#define FERRUM_NAME_OF(tier) FERRUM_NAME(tier)

namespace ferrum::FERRUM_TIER {

const KernelTable kTable = {FERRUM_NAME_OF(FERRUM_TIER), packed_bytes, row_tiles, pack,      product,
                            norm,                        rope_store,   attention_scratch, attention, finite};

}  // namespace ferrum::FERRUM_TIER
