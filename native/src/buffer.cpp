#include "buffer.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "checked.hpp"

namespace ferrum {

namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;

// Kernels read whole vectors past the end of the last panel, and prefetch; they do not use those bytes.
constexpr int64_t kSlack = 4096;

constexpr int64_t kHeapBuffer = int64_t{256} << 20;  // address space; untouched pages take no memory
constexpr int64_t kLine = 64;

}  // namespace

// Large buffers begin on a huge page. Otherwise half of a matrix of a few megabytes could be on small pages.
Buffer::Buffer(int64_t bytes) : size_(bytes) {
    const int64_t alignment = bytes >= kHugePage ? kHugePage : 1;
    mapped_ = static_cast<size_t>(bytes + kSlack + alignment - 1);
    mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping_ == MAP_FAILED) throw std::bad_alloc();
    const auto address = reinterpret_cast<uintptr_t>(mapping_), unit = static_cast<uintptr_t>(alignment);
    data_ = reinterpret_cast<std::byte*>((address + unit - 1) / unit * unit);
#if defined(MADV_HUGEPAGE)
    // Only advice: a refusal costs speed, not bits. The remainder stays on small pages to save memory.
    if (bytes >= kHugePage) madvise(data_, static_cast<size_t>(bytes / kHugePage * kHugePage), MADV_HUGEPAGE);
#endif
    const auto* begin = static_cast<const std::byte*>(mapping_);
    poison(begin, data_);
    poison(data_ + bytes, begin + mapped_);
}

Buffer::~Buffer() {
    if (mapping_ == nullptr) return;
    unpoison(static_cast<const std::byte*>(mapping_), static_cast<const std::byte*>(mapping_) + mapped_);
    munmap(mapping_, mapped_);
}

Buffer::Buffer(Buffer&& other) noexcept { *this = std::move(other); }

Buffer& Buffer::operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(mapping_, other.mapping_);
    std::swap(mapped_, other.mapped_);
    return *this;
}

std::shared_ptr<std::byte> Heap::take(int64_t bytes) {
    if (buffer_.use_count() == 1) {
        poison(buffer_->data(), buffer_->data() + used_);
        used_ = 0;
    }
    if (used_ + bytes > buffer_->size()) {
        buffer_ = std::make_shared<Buffer>(bytes > kHeapBuffer ? bytes : kHeapBuffer);
        poison(buffer_->data(), buffer_->data() + buffer_->size());
        used_ = touched_ = 0;
    }
    std::byte* piece = buffer_->data() + used_;
    unpoison(piece, piece + bytes);
    if (touched_ > used_) std::memset(piece, 0, static_cast<size_t>(std::min(bytes, touched_ - used_)));
    used_ += (bytes + kLine - 1) / kLine * kLine;
    touched_ = std::max(touched_, used_);
    return {buffer_, piece};
}

}  // namespace ferrum
