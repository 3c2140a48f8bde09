// The KV pool: one store per layer group. GroupStore in kernel_table.hpp describes the layout.
#pragma once

#include <vector>

#include "buffer.hpp"
#include "kernel_table.hpp"

namespace ferrum {

// The sizes of a layer group; see PoolGroup in kernels/interface.py.
struct GroupShape {
    KvFormat format;
    int64_t num_pages, page_size, num_layers, num_kv_heads, key_dim, value_dim;
};

// A store of that shape, without memory, and the bytes of a page of one layer.
GroupStore layout(const GroupShape& shape);
int64_t layer_page_bytes(const GroupStore& store);

class Pool {
public:
    void add(const GroupShape& shape);
    const GroupStore& group(int64_t index) const { return stores_.at(static_cast<size_t>(index)); }
    int64_t size() const { return static_cast<int64_t>(stores_.size()); }
    int64_t nbytes() const;
    // Copy the raw bytes of a page in every layer of the group.
    void copy_page(int64_t group, int64_t source, int64_t target);
    // Read or write a page of all layers as one run of bytes.
    int64_t page_bytes(int64_t group) const;
    void read_page(int64_t group, int64_t page, uint8_t* out) const;
    void write_page(int64_t group, int64_t page, const uint8_t* in);

private:
    std::vector<GroupStore> stores_;
    std::vector<Buffer> memory_;
};

}  // namespace ferrum
