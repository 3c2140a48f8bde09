#include "page_sums.hpp"

#include <cstring>

namespace ferrum {

namespace {

constexpr int kWords = kSumPage / 8;

struct Keys {
    uint64_t of[kWords];
    Keys() {
        for (uint64_t i = 0; i < kWords; ++i) of[i] = (i + 1) * 0x9e3779b97f4a7c15u;
    }
};

uint64_t page_sum(const std::byte* page) {
    static const Keys keys;
    uint64_t sum = 0;
    for (int i = 0; i < kWords; ++i) {
        uint64_t word;
        std::memcpy(&word, page + 8 * i, sizeof word);
        const uint64_t low = static_cast<uint32_t>(word + keys.of[i]);
        const uint64_t high = static_cast<uint32_t>((word >> 32) + (keys.of[i] >> 32));
        sum += low * high + word;
    }
    return sum;
}

}  // namespace

void page_sums(const std::byte* data, int64_t bytes, int64_t begin, int64_t end, uint64_t* sums) {
    for (int64_t page = begin; page < end; ++page) {
        const std::byte* at = data + page * kSumPage;
        const int64_t left = bytes - page * kSumPage;
        std::byte last[kSumPage] = {};
        if (left < kSumPage) {
            std::memcpy(last, at, static_cast<size_t>(left));
            at = last;
        }
        *sums++ = page_sum(at);
    }
}

}  // namespace ferrum
