// Work stealing: each thread of a team owns a contiguous share of the pieces.
//
// A thread takes the pieces of its share in ascending order, as one stream through memory. When it is done it takes
// single pieces from the end of the fullest other share. So a slow or busy core delays the others by one piece at most.
// The thread that computes a piece changes no bit.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace ferrum {

class Shares {
public:
    // A piece: its number in the share of its owner. No owner: no piece is left.
    struct Piece {
        int owner;
        int64_t number;
    };

    explicit Shares(int threads) : rest_(static_cast<size_t>(threads)) {}

    // Set the thread's share to `count` pieces, below 2^32. The thread calls this, a barrier before the first take.
    void deal(int thread, int64_t count) { rest_of(thread).store(static_cast<uint64_t>(count), std::memory_order_relaxed); }

    Piece take(int thread) {
        if (const int64_t number = take_first(rest_of(thread)); number >= 0) return {thread, number};
        for (;;) {
            const int owner = fullest();
            if (owner < 0) return {-1, 0};
            if (const int64_t number = take_last(rest_of(owner)); number >= 0) return {owner, number};
        }
    }

private:
    // The rest of a share: [first, end) as the two halves of a word, on a separate cache line.
    struct alignas(64) Rest {
        std::atomic<uint64_t> range{0};
    };
    static constexpr uint64_t kFirst = uint64_t{1} << 32;

    std::atomic<uint64_t>& rest_of(int thread) { return rest_[static_cast<size_t>(thread)].range; }
    static int64_t first_of(uint64_t range) { return static_cast<int64_t>(range >> 32); }
    static int64_t end_of(uint64_t range) { return static_cast<int64_t>(range & (kFirst - 1)); }

    // Barriers around the work order all other memory, so relaxed order is enough for the range.
    static int64_t take_first(std::atomic<uint64_t>& rest) {
        uint64_t range = rest.load(std::memory_order_relaxed);
        while (first_of(range) < end_of(range))
            if (rest.compare_exchange_weak(range, range + kFirst, std::memory_order_relaxed)) return first_of(range);
        return -1;
    }

    static int64_t take_last(std::atomic<uint64_t>& rest) {
        uint64_t range = rest.load(std::memory_order_relaxed);
        while (first_of(range) < end_of(range))
            if (rest.compare_exchange_weak(range, range - 1, std::memory_order_relaxed)) return end_of(range) - 1;
        return -1;
    }

    int fullest() {
        int64_t most = 0;
        int owner = -1;
        for (int thread = 0; thread < static_cast<int>(rest_.size()); ++thread) {
            const uint64_t range = rest_of(thread).load(std::memory_order_relaxed);
            const int64_t left = end_of(range) - first_of(range);
            if (left > most) most = left, owner = thread;
        }
        return owner;
    }

    std::vector<Rest> rest_;
};

}  // namespace ferrum
