#include "buffer.hpp"

#include <sys/mman.h>

#include <new>
#include <utility>

namespace ferrum {

namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;

// Kernels read a little past the last panel's end in whole vectors, and prefetch: nothing of it is used.
constexpr int64_t kSlack = 4096;

}  // namespace

Buffer::Buffer(int64_t bytes) : size_(bytes) {
    const size_t length = static_cast<size_t>(bytes + kSlack);
    void* memory = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<std::byte*>(memory);
#if defined(MADV_HUGEPAGE)
    if (bytes >= kHugePage) madvise(memory, length, MADV_HUGEPAGE);  // advice: a refusal costs speed, not bits
#endif
}

Buffer::~Buffer() {
    if (data_ != nullptr) munmap(data_, static_cast<size_t>(size_ + kSlack));
}

Buffer::Buffer(Buffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

}  // namespace ferrum
