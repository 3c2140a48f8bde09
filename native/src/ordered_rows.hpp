// Rows packed for a weight whose inputs have an order: they are gathered first, a tile at a time.
#pragma once

#include "row_groups.hpp"

namespace ferrum {

// Bytes of a gathered tile, of a step of at most `max_rows` rows; 0 without an order.
int64_t tile_bytes(const Runtime& runtime, const Weight& weight, int64_t max_rows);

// Pack tiles of the rows x [rows, depth] to their places in `out`. With an order, which may be null, input order[k] takes the
// place k of a row, and `room` holds a gathered tile.
void pack_tiles(const Runtime& runtime, const Tiles& tiles, const float* x, int64_t depth, const int32_t* order, std::byte* room,
                std::byte* out);

}  // namespace ferrum
