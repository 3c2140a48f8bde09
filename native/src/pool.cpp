#include "pool.hpp"

#include <cstring>

#include "weight.hpp"

namespace ferrum {

namespace {

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Blocks of a whole step where pages divide into them: attention then reads them in place.
GroupStore layout(const GroupShape& shape) {
    const int64_t pair = shape.format == Format::f32 ? 1 : 2;
    GroupStore s{};
    s.format = shape.format;
    s.num_layers = shape.num_layers;
    s.num_pages = shape.num_pages;
    s.page_size = shape.page_size;
    s.num_kv_heads = shape.num_kv_heads;
    s.key_dim = shape.key_dim;
    s.value_dim = shape.value_dim;
    s.key_padded = round_up(shape.key_dim, pair);
    s.value_padded = round_up(shape.value_dim, 16);
    s.block = shape.page_size % kStep == 0 ? kStep : round_up(shape.page_size, pair);
    s.blocks_per_page = round_up(shape.page_size, s.block) / s.block;
    s.key_bytes = s.block * s.key_padded * item_bytes(shape.format);
    s.value_bytes = s.block * s.value_padded * item_bytes(shape.format);
    return s;
}

int64_t blocks(const GroupStore& s) { return s.num_kv_heads * s.blocks_per_page; }

}  // namespace

void Pool::add(const GroupShape& shape) {
    GroupStore s = layout(shape);
    const int64_t count = s.num_layers * s.num_pages * blocks(s);
    s.keys = memory_.emplace_back(count * s.key_bytes).data();
    s.values = memory_.emplace_back(count * s.value_bytes).data();
    stores_.push_back(s);
}

int64_t Pool::nbytes() const {
    int64_t total = 0;
    for (const Buffer& buffer : memory_) total += buffer.size();
    return total;
}

void Pool::copy_page(int64_t group, int64_t source, int64_t target) {
    const GroupStore& s = stores_.at(static_cast<size_t>(group));
    for (int64_t layer = 0; layer < s.num_layers; ++layer) {
        const int64_t from = (layer * s.num_pages + source) * blocks(s), to = (layer * s.num_pages + target) * blocks(s);
        std::memcpy(s.keys + to * s.key_bytes, s.keys + from * s.key_bytes, static_cast<size_t>(blocks(s) * s.key_bytes));
        std::memcpy(s.values + to * s.value_bytes, s.values + from * s.value_bytes,
                    static_cast<size_t>(blocks(s) * s.value_bytes));
    }
}

}  // namespace ferrum
