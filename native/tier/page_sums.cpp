// Checksums of pages, with which packed directories detect damage (defined in sources/packed.py).
#include "tier.hpp"

namespace ferrum::FERRUM_TIER {

namespace {

constexpr int64_t kWords = kSumPage / 8;
constexpr int64_t kPart = 128;  // words; the same part of the next page is prefetched, because hardware prefetch stops at pages

struct Keys {
    uint64_t of[kWords];
    constexpr Keys() : of() {
        for (uint64_t i = 0; i < kWords; ++i) of[i] = (i + 1) * 0x9e3779b97f4a7c15u;
    }
};

constexpr Keys kKeys;

// Sum some words. A separate function, so that the compiler vectorises the loop.
uint64_t sum_of(const std::byte* data, const uint64_t* keys) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < kPart; ++i) {
        uint64_t word;
        std::memcpy(&word, data + 8 * i, sizeof word);
        const uint64_t low = static_cast<uint32_t>(word + keys[i]);
        const uint64_t high = static_cast<uint32_t>((word >> 32) + (keys[i] >> 32));
        sum += low * high + word;
    }
    return sum;
}

uint64_t page_sum(const std::byte* page) {
    uint64_t sum = 0;
    for (int64_t part = 0; part < kWords; part += kPart) {
        prefetch_bytes(page + kSumPage + 8 * part, 8 * kPart);
        sum += sum_of(page + 8 * part, kKeys.of + part);
    }
    return sum;
}

}  // namespace

void page_sums(const std::byte* data, int64_t bytes, int64_t begin, int64_t end, uint64_t* sums) {
    for (int64_t page = begin; page < end; ++page) {
        const std::byte* at = data + page * kSumPage;
        const int64_t left = bytes - page * kSumPage;
        if (left >= kSumPage) {
            *sums++ = page_sum(at);
        } else {
            std::byte last[kSumPage] = {};
            std::memcpy(last, at, static_cast<size_t>(left));
            *sums++ = page_sum(last);
        }
    }
}

}  // namespace ferrum::FERRUM_TIER
