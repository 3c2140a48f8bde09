// One team of threads for a whole step: the caller and its workers run the same function, with barriers in between.
//
// Within a step a thread that waits spins, because a sleep costs hundreds of times a barrier. After a bounded number of
// pauses it sleeps all the same, so that a busy machine is not made busier; between steps all workers end up asleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace ferrum {

// A number that threads wait on to change.
class Signal {
public:
    uint64_t read() const { return value_.load(std::memory_order_acquire); }
    // Changes it to `value`; one thread at a time.
    void raise(uint64_t value);
    // Returns the value once it differs from `seen`: spins for `pauses`, gives way to others for `yields`, then sleeps.
    uint64_t wait(uint64_t seen, int pauses, int yields);

private:
    std::atomic<uint64_t> value_{0};
    std::atomic<int> sleepers_{0};
    std::mutex mutex_;
    int waker_ = -1;  // the processor of who raised last while somebody slept
    std::condition_variable changed_;
};

class Team {
public:
    // A step's work for one of the team's threads. It must not throw: the others wait for it at the next barrier.
    using Work = void (*)(void* context, int thread);

    // Throws std::system_error, and no thread is left, where the system does not start so many.
    explicit Team(int threads);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    // The threads that there are.
    int most() const { return static_cast<int>(crew_->workers.size()) + 1; }
    // Those that take part in a run: all, unless told otherwise between runs. In a process forked from the team's the caller is
    // alone: the others stayed behind.
    int size() const { return forked() ? 1 : size_; }
    void use(int threads) { size_ = threads < 1 ? 1 : threads > most() ? most() : threads; }
    // Runs work on every thread that takes part, the caller being thread 0; returns when all are done. One call at a time.
    void run(Work work, void* context);
    // The same for work without barriers, which may throw: what was thrown first reaches the caller once all are done.
    void run_apart(Work work, void* context);
    // Called by every thread that takes part, within `run`: nobody goes on before all have come.
    void barrier();

private:
    struct Crew {
        Signal started, passed;  // the first one's value tells, in its low half, how many take part; none: the end
        std::vector<std::thread> workers;
    };

    bool forked() const;
    void start(int threads);
    void dismiss();
    void serve(int thread);

    int size_ = 1;
    const int forks_;  // of the process and those before it, when the team was made
    uint64_t runs_ = 0;
    Work work_ = nullptr;
    void* context_ = nullptr;
    std::atomic<int> arrived_{0};
    std::unique_ptr<Crew> crew_;
};

}  // namespace ferrum
