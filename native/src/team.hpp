// A thread team for a whole step: the caller and its workers run the same function, with barriers in between.
//
// Within a step a waiting thread spins, because a sleep costs hundreds of times a barrier. After a bounded number of
// pauses it sleeps, to leave a busy machine to others. Between steps all workers end up asleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace ferrum {

// A number with threads that wait for a change.
class Signal {
public:
    uint64_t read() const { return value_.load(std::memory_order_acquire); }
    // Set it to `value`; one thread at a time.
    void raise(uint64_t value);
    // Return the value once it differs from `seen`: spin for `pauses`, yield for `yields`, then sleep.
    uint64_t wait(uint64_t seen, int pauses, int yields);

private:
    std::atomic<uint64_t> value_{0};
    std::atomic<int> sleepers_{0};
    std::mutex mutex_;
    int waker_ = -1;  // processor of the thread that last raised it with sleepers
    std::condition_variable changed_;
};

class Team {
public:
    // The work of one thread in a step. It must not throw, because the others wait for it at the next barrier.
    using Work = void (*)(void* context, int thread);

    // Throws std::system_error, without leaving threads, if the system cannot start that many.
    explicit Team(int threads);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    // All threads of the team.
    int max_threads() const { return static_cast<int>(crew_->workers.size()) + 1; }
    // Threads that take part in a run: all by default; change it between runs. In a forked process only the caller,
    // because the workers do not exist there.
    int size() const { return forked() ? 1 : size_; }
    void use(int threads) { size_ = threads < 1 ? 1 : threads > max_threads() ? max_threads() : threads; }
    // Run work on every thread that takes part (the caller is thread 0), and return when all are done. One call at a
    // time.
    void run(Work work, void* context);
    // The same for work without barriers, which may throw: the caller gets the first exception once all are done.
    void run_apart(Work work, void* context);
    // Wait for all threads that take part. Each calls it within `run`.
    void barrier();

private:
    struct Crew {
        Signal started, passed;  // the low half of started is the number of threads that take part; 0 ends the team
        std::vector<std::thread> workers;
    };

    bool forked() const;
    void start(int threads);
    void dismiss();
    void serve(int thread);

    int size_ = 1;
    const int forks_;  // forks of the process and its ancestors when the team was made
    uint64_t runs_ = 0;
    Work work_ = nullptr;
    void* context_ = nullptr;
    std::atomic<int> arrived_{0};
    std::unique_ptr<Crew> crew_;
};

}  // namespace ferrum
