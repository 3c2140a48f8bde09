// Memory for weights and pages: zeroed, aligned to cache lines, on huge pages if the system has them.
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

// Arrays in one piece of memory, each on a cache line. Without memory, only their bytes are counted.
class Parts {
public:
    explicit Parts(std::byte* from) : from_(from) {}

    template <class T>
    T* take(int64_t count) {
        const int64_t at = used_;
        used_ += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
        return from_ == nullptr ? nullptr : reinterpret_cast<T*>(from_ + at);
    }
    int64_t used() const { return used_; }

private:
    std::byte* from_;
    int64_t used_ = 0;
};

// Allocator of pieces within a few large buffers, so that small matrices also use huge pages. A piece is zeroed,
// aligned to cache lines, and keeps its buffer alive. A buffer is reused when all its pieces are freed.
class Heap {
public:
    std::shared_ptr<std::byte> take(int64_t bytes);  // throws std::bad_alloc

private:
    std::shared_ptr<Buffer> buffer_ = std::make_shared<Buffer>();
    int64_t used_ = 0;
    int64_t touched_ = 0;  // bytes that were part of a piece and may be dirty
};

}  // namespace ferrum
