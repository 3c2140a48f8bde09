// Memory for weights and pages: zeroed, aligned to cache lines, on huge pages where the system has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace ferrum {

class Buffer {
public:
    Buffer() = default;
    explicit Buffer(int64_t bytes);  // throws std::bad_alloc
    ~Buffer();
    Buffer(Buffer&& other) noexcept;
    Buffer& operator=(Buffer&& other) noexcept;

    std::byte* data() const { return data_; }
    int64_t size() const { return size_; }

private:
    std::byte* data_ = nullptr;
    int64_t size_ = 0;
    void* mapping_ = nullptr;
    size_t mapped_ = 0;
};

// Memory in pieces of a few large buffers: a matrix smaller than a huge page lies on one all the same. A piece is zeroed,
// aligned to cache lines, and keeps its buffer alive; a buffer all of whose pieces were given back begins anew.
class Heap {
public:
    std::shared_ptr<std::byte> take(int64_t bytes);  // throws std::bad_alloc

private:
    std::shared_ptr<Buffer> buffer_ = std::make_shared<Buffer>();
    int64_t used_ = 0;
    int64_t touched_ = 0;  // so many of its bytes were in pieces, and may be written
};

}  // namespace ferrum
