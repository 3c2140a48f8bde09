// The resources of operations: kernels of a tier, a team, the pool, states, tables of the step and scratch memory.
#pragma once

#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "buffer.hpp"
#include "checked.hpp"
#include "pool.hpp"
#include "shares.hpp"
#include "states.hpp"
#include "step.hpp"
#include "team.hpp"
#include "tiers.hpp"

namespace ferrum {

class Runtime {
public:
    Runtime(const std::string& tier_name, int threads) : kernels(tier(tier_name)), team(threads), shares(team.max_threads()) {}

    // Scratch memory of one operation at a time: packed rows shared by all threads, and memory per thread. It grows
    // when operations are made, never while they run.
    void reserve(int64_t shared, int64_t per_thread) {
        if (shared > shared_.size()) shared_ = Buffer(shared);
        if (per_thread > thread_bytes_) {
            thread_bytes_ = (per_thread + 4095) / 4096 * 4096 + 64;
            own_ = Buffer(thread_bytes_ * team.max_threads());
            std::memset(own_.data(), 0, static_cast<size_t>(own_.size()));  // touch the memory now, for any number of threads
            for (int thread = 0; thread < team.max_threads(); ++thread) poison(own(thread) + per_thread, own(thread) + thread_bytes_);
        }
    }
    int64_t scratch_bytes() const { return shared_.size() + own_.size(); }
    std::byte* shared() const { return shared_.data(); }
    std::byte* own(int thread) const { return own_.data() + thread * thread_bytes_; }

    const KernelTable& kernels;
    Team team;
    Shares shares;
    Pool pool;
    States states;
    Heap heap;  // for weights
    Step step;
    std::mutex running;

private:
    Buffer shared_, own_;
    int64_t thread_bytes_ = 0;
};

struct Share {
    int64_t begin, end;

    int64_t count() const { return end - begin; }
};

// A thread's contiguous part of `count` pieces of work. Contiguous parts stream through memory.
inline Share share(const Runtime& runtime, int64_t count, int thread) {
    const int64_t size = runtime.team.size();
    return {count * thread / size, count * (thread + 1) / size};
}

}  // namespace ferrum
