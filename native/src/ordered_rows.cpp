#include "ordered_rows.hpp"

namespace ferrum {

int64_t tile_bytes(const Runtime& runtime, const Weight& weight, int64_t max_rows) {
    if (weight.order() == nullptr) return 0;
    int64_t height = 1;
    while (height < max_rows && runtime.kernels.row_tiles({weight.format(), height + 1}) == 1) ++height;
    return height * weight.inputs() * static_cast<int64_t>(sizeof(float));
}

void pack_tiles(const Runtime& runtime, const Tiles& tiles, const float* x, int64_t depth, const int32_t* order, std::byte* room,
                std::byte* out) {
    const KernelTable& kernels = runtime.kernels;
    if (tiles.begin >= tiles.end) return;
    if (order == nullptr) return kernels.pack(tiles.of, x, depth, tiles.begin, tiles.end, out);
    auto* gathered = reinterpret_cast<float*>(room);
    const int64_t bytes = kernels.packed_bytes(tiles.of.format, 1, depth), count = kernels.row_tiles(tiles.of);
    for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
        const int64_t first = tile * tiles.of.rows / count, end = (tile + 1) * tiles.of.rows / count;  // as tile_rows()
        for (int64_t row = first; row < end; ++row) {
            const float* from = x + row * depth;
            float* to = gathered + (row - first) * depth;
            for (int64_t k = 0; k < depth; ++k) to[k] = from[order[k]];
        }
        kernels.pack({tiles.of.format, end - first}, gathered, depth, 0, 1, out + first * bytes);
    }
}

}  // namespace ferrum
