// Copies of columns between the ranks of a model. Nothing is added, so results do not depend on the number of ranks.
//
// All ranks share one piece of memory, as threads of a process or as processes of a machine: a word that ends a step early,
// a counter of each rank, and two slots that exchanges use in turns. A rank writes its columns into the slot, raises its
// counter, and reads those of the others once their counters are as high. A rank that is in exchange n + 1 has read all
// of exchange n - 1, so the slot of n - 1 is free when n + 1 has begun.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "operations.hpp"

namespace ferrum {

class Exchange {
public:
    static constexpr int64_t kLine = 64;        // bytes of each word and counter
    static constexpr int kStepShift = 32;       // an exchange is step << kStepShift | number within the step

    // The bytes of memory for slots of that size.
    static int64_t memory_bytes(int64_t ranks, int64_t slot_bytes) { return kLine * (1 + ranks) + 2 * slot_bytes; }

    Exchange(std::byte* memory, int64_t slot_bytes, int64_t rank, int64_t ranks)
        : memory_(memory), slot_bytes_(slot_bytes), rank_(rank), ranks_(ranks) {}

    int64_t rank() const { return rank_; }
    int64_t ranks() const { return ranks_; }
    int64_t slot_bytes() const { return slot_bytes_; }
    // Begin a step, whose number all ranks know. No rank is in an earlier step.
    void begin(int64_t step);
    // End this and all earlier steps on all ranks: a rank has failed. Any thread may call it.
    void end(int64_t step);
    // Whether the step has ended early. What was exchanged since then is undefined.
    bool ended() const;
    // The slot of the next exchange.
    std::byte* slot() const { return memory_ + kLine * (1 + ranks_) + ((now_ + 1) % 2) * slot_bytes_; }
    // Wait until all ranks have written to the slot. One thread calls it.
    void meet();
    // Bytes that this rank has read from others so far.
    int64_t bytes_read() const { return bytes_read_; }
    void count(int64_t bytes) { bytes_read_ += bytes; }

private:
    int64_t* word(int64_t index) const { return reinterpret_cast<int64_t*>(memory_ + kLine * index); }

    std::byte* memory_;
    int64_t slot_bytes_, rank_, ranks_;
    int64_t now_ = 0;
    int64_t bytes_read_ = 0;
};

// Where the columns of each rank begin, and the number of all.
using Starts = std::vector<int64_t>;

// Why starts do not fit an exchange, or null; without an exchange there is one rank.
const char* refusal(const Exchange* exchange, const Starts& starts, bool rounded = false);

// Copy the columns of all ranks to `out`, from the own ones. All threads call it, after a barrier if others wrote to x. If they
// are for products that round 32 adjacent inputs, ranks exchange bytes, and those of others become numbers that round alike.
void join_columns(Exchange& exchange, Runtime& runtime, int thread, int64_t rows, const Starts& starts, const float* x, float* out,
                  bool rounded = false);

// The columns of all ranks, from the own ones.
class Join final : public Operation {
public:
    Join(std::shared_ptr<Exchange> exchange, const float* x, Rows out, Starts starts, int64_t tiles, bool rounded)
        : exchange_(std::move(exchange)), x_(x), out_(out), starts_(std::move(starts)), tiles_(tiles), rounded_(rounded) {}
    void run(Runtime& runtime, int thread) override;

private:
    std::shared_ptr<Exchange> exchange_;  // null with one rank
    const float* x_;
    Rows out_;
    Starts starts_;
    int64_t tiles_;  // of a row, each joined
    bool rounded_;
};

}  // namespace ferrum
