// Sums of 4 KiB pages, by which packed directories find damage (runtime/packed.py says what they are).
#pragma once

#include <cstddef>
#include <cstdint>

namespace ferrum {

constexpr int64_t kSumPage = 4096;

// Of the pages [begin, end) of `bytes` bytes, the last filled up with zeros.
void page_sums(const std::byte* data, int64_t bytes, int64_t begin, int64_t end, uint64_t* sums);

}  // namespace ferrum
