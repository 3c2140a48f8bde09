#include "team.hpp"

#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ferrum {

namespace {

// Within a step a thread spins for about 50 us, then lets others run for about 200 us before it sleeps: as long as waking
// takes. Who sleeps sooner is late at the next barrier, where the other one falls asleep in turn, to the end of the step.
constexpr int kStepPauses = 2000;
constexpr int kStepYields = 300;
constexpr int kIdlePauses = 10000;  // between steps: as long as sampling a few tokens takes

void pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// The processor that this thread runs on; -1 where nobody knows.
int processor() {
#if defined(__linux__)
    return sched_getcpu();
#else
    return -1;
#endif
}

// Moves this thread to another processor, if it may run on any: for a moment it may not run on this one.
void leave(int current) {
#if defined(__linux__)
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2) return;
    cpu_set_t others = allowed;
    CPU_CLR(current, &others);
    if (sched_setaffinity(0, sizeof others, &others) == 0) sched_setaffinity(0, sizeof allowed, &allowed);
#else
    (void)current;
#endif
}

}  // namespace

void Signal::raise() {
    // Both sides are sequentially consistent: either the waiter sees the new value, or this sees the sleeper.
    value_.fetch_add(1);
    if (sleepers_.load() == 0) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    waker_ = processor();
    changed_.notify_all();
}

void Signal::wait(uint64_t seen, int pauses, int yields) {
    for (int i = 0; i < pauses; ++i) {
        if (read() != seen) return;
        pause();
    }
    for (int i = 0; i < yields; ++i) {
        if (read() != seen) return;
        std::this_thread::yield();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_.fetch_add(1);
    changed_.wait(lock, [&] { return value_.load() != seen; });
    sleepers_.fetch_sub(1);
    const int waker = waker_;
    lock.unlock();
    // A thread is often woken on the processor of the one that wakes it, and threads that sleep and wake in turns may
    // share a processor for long, others being idle: no scheduler sees two that want to run.
    if (waker >= 0 && processor() == waker) leave(waker);
}

Team::Team(int threads) : size_(threads < 1 ? 1 : threads) {
    for (int thread = 1; thread < size_; ++thread) workers_.emplace_back([this, thread] { serve(thread); });
}

Team::~Team() {
    stopping_ = true;
    started_.raise();
    for (std::thread& worker : workers_) worker.join();
}

void Team::run(Work work, void* context) {
    work_ = work;
    context_ = context;
    started_.raise();
    work(context, 0);
    barrier();
}

void Team::barrier() {
    if (size_ == 1) return;
    const uint64_t seen = passed_.read();
    if (arrived_.fetch_add(1) + 1 == size_) {
        arrived_.store(0);
        passed_.raise();
    } else {
        passed_.wait(seen, kStepPauses, kStepYields);
    }
}

void Team::serve(int thread) {
    for (uint64_t seen = 0;; ++seen) {
        started_.wait(seen, kIdlePauses, 0);
        if (stopping_) return;
        work_(context_, thread);
        barrier();
    }
}

}  // namespace ferrum
