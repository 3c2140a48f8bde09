#include "pool.hpp"

#include <cstring>

namespace ferrum {

namespace {

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

}  // namespace

// Blocks of a whole step if pages are a multiple of it: attention then reads them in place.
GroupStore layout(const GroupShape& shape) {
    const int64_t item = shape.format == KvFormat::f32 ? 4 : shape.format == KvFormat::bf16 ? 2 : 1, pair = 4 / item;
    const int64_t scale = shape.format == KvFormat::int8 ? 4 : 0;
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
    s.key_side = s.block % kKeySide == 0 ? kKeySide : s.block;
    s.blocks_per_page = round_up(shape.page_size, s.block) / s.block;
    s.key_bytes = s.block * (s.key_padded * item + scale);
    s.value_bytes = shape.value_dim == 0 ? 0 : s.block * (s.value_padded * item + scale);
    return s;
}

int64_t layer_page_bytes(const GroupStore& s) { return s.num_kv_heads * s.blocks_per_page * (s.key_bytes + s.value_bytes); }

void Pool::add(const GroupShape& shape) {
    GroupStore s = layout(shape);
    s.data = memory_.emplace_back(s.num_layers * s.num_pages * layer_page_bytes(s)).data();
    stores_.push_back(s);
}

int64_t Pool::nbytes() const {
    int64_t total = 0;
    for (const Buffer& buffer : memory_) total += buffer.size();
    return total;
}

void Pool::copy_page(int64_t group, int64_t source, int64_t target) {
    const GroupStore& s = stores_.at(static_cast<size_t>(group));
    const int64_t bytes = layer_page_bytes(s);
    for (int64_t layer = 0; layer < s.num_layers; ++layer) {
        std::byte* pages = s.data + layer * s.num_pages * bytes;
        std::memcpy(pages + target * bytes, pages + source * bytes, static_cast<size_t>(bytes));
    }
}

int64_t Pool::page_bytes(int64_t group) const {
    const GroupStore& s = this->group(group);
    return s.num_layers * layer_page_bytes(s);
}

void Pool::read_page(int64_t group, int64_t page, uint8_t* out) const {
    const GroupStore& s = this->group(group);
    const int64_t bytes = layer_page_bytes(s);
    for (int64_t layer = 0; layer < s.num_layers; ++layer) {
        std::memcpy(out + layer * bytes, s.data + (layer * s.num_pages + page) * bytes, static_cast<size_t>(bytes));
    }
}

void Pool::write_page(int64_t group, int64_t page, const uint8_t* in) {
    const GroupStore& s = this->group(group);
    const int64_t bytes = layer_page_bytes(s);
    for (int64_t layer = 0; layer < s.num_layers; ++layer) {
        std::memcpy(s.data + (layer * s.num_pages + page) * bytes, in + layer * bytes, static_cast<size_t>(bytes));
    }
}

}  // namespace ferrum
