// One team of threads for a whole step: the caller and its workers run the same function, with barriers in between.
//
// Within a step a thread that waits spins, because a sleep costs hundreds of times a barrier. After a bounded number of
// pauses it sleeps all the same, so that a busy machine is not made busier; between steps all workers end up asleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace ferrum {

// A number that threads wait on to change.
class Signal {
public:
    uint64_t read() const { return value_.load(std::memory_order_acquire); }
    void raise();
    // Returns once the value differs from `seen`: spins for `pauses`, gives way to others for `yields`, then sleeps.
    void wait(uint64_t seen, int pauses, int yields);

private:
    std::atomic<uint64_t> value_{0};
    std::atomic<int> sleepers_{0};
    std::mutex mutex_;
    int waker_ = -1;  // the processor of who raised last while somebody slept
    std::condition_variable changed_;
};

class Team {
public:
    // A step's work for one of the team's threads.
    using Work = void (*)(void* context, int thread);

    explicit Team(int threads);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int size() const { return size_; }
    // Runs work on every thread, the caller being thread 0; returns when all are done. One call at a time.
    void run(Work work, void* context);
    // Called by every thread of the team within `run`: nobody goes on before all have come.
    void barrier();

private:
    void serve(int thread);

    const int size_;
    Work work_ = nullptr;
    void* context_ = nullptr;
    bool stopping_ = false;
    Signal started_, passed_;
    std::atomic<int> arrived_{0};
    std::vector<std::thread> workers_;
};

}  // namespace ferrum
