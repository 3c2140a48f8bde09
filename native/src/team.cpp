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

constexpr int kSizeBits = 32;
constexpr uint64_t kSizeMask = (uint64_t{1} << kSizeBits) - 1;

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

void Signal::raise(uint64_t value) {
    // Both sides are sequentially consistent: either the waiter sees the new value, or this sees the sleeper.
    value_.store(value);
    if (sleepers_.load() == 0) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    waker_ = processor();
    changed_.notify_all();
}

uint64_t Signal::wait(uint64_t seen, int pauses, int yields) {
    for (int i = 0; i < pauses; ++i) {
        if (const uint64_t value = read(); value != seen) return value;
        pause();
    }
    for (int i = 0; i < yields; ++i) {
        if (const uint64_t value = read(); value != seen) return value;
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
    return read();
}

Team::Team(int threads) {
    for (int thread = 1; thread < threads; ++thread) workers_.emplace_back([this, thread] { serve(thread); });
    use(threads);
}

Team::~Team() {
    start(0);
    for (std::thread& worker : workers_) worker.join();
}

void Team::start(int threads) { started_.raise(++runs_ << kSizeBits | static_cast<uint64_t>(threads)); }

void Team::run(Work work, void* context) {
    work_ = work;
    context_ = context;
    if (size_ > 1) start(size_);
    work(context, 0);
    barrier();
}

void Team::barrier() {
    const int size = size_;  // once this thread has arrived, the last one may go on, end the run and change it
    if (size == 1) return;
    const uint64_t seen = passed_.read();
    if (arrived_.fetch_add(1) + 1 == size) {
        arrived_.store(0);
        passed_.raise(seen + 1);
    } else {
        passed_.wait(seen, kStepPauses, kStepYields);
    }
}

// Nobody waits for a thread that does not take part: it may miss runs, and knows of one only what the signal says.
void Team::serve(int thread) {
    int pauses = kIdlePauses;
    for (uint64_t seen = 0;;) {
        seen = started_.wait(seen, pauses, 0);
        const uint64_t size = seen & kSizeMask;
        if (size == 0) return;
        const bool takes_part = static_cast<uint64_t>(thread) < size;
        pauses = takes_part ? kIdlePauses : 0;
        if (!takes_part) continue;
        work_(context_, thread);
        barrier();
    }
}

}  // namespace ferrum
