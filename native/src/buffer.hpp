// Memory for weights and pages: zeroed, aligned to cache lines, on huge pages where the system has them.
#pragma once

#include <cstddef>
#include <cstdint>

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

}  // namespace ferrum
