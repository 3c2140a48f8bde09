#include "team.hpp"

#include <cstring>
#include <exception>

#include "float_mode.hpp"

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif
#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ferrum {

namespace {

// Within a step a thread spins for about 50 us, then yields for about 200 us before it sleeps, as long as a wake-up
// takes. A thread that sleeps earlier is late at the next barrier, where the other one then sleeps too, until the end
// of the step.
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

// Number of forks between the process that loaded the library and this one.
int forks = 0;

#if defined(__unix__) || defined(__APPLE__)
[[maybe_unused]] const int counting_forks = pthread_atfork(nullptr, nullptr, [] { ++forks; });
#endif

// The processor that runs this thread; -1 if unknown.
int processor() {
#if defined(__linux__)
    return sched_getcpu();
#else
    return -1;
#endif
}

// Move this thread to another processor by briefly forbidding this one, if it may run on any.
void leave(int current) {
#if defined(__linux__)
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2) return;
    cpu_set_t others = allowed;
    CPU_CLR(current, &others);
    if (sched_setaffinity(0, sizeof others, &others) != 0) return;
    // Then allow all processors again, unless the affinity was set: the set that a control group allows now would
    // become fixed.
    cpu_set_t all, now;
    std::memset(&all, 0xff, sizeof all);
    const bool free = sched_setaffinity(0, sizeof all, &all) == 0 && sched_getaffinity(0, sizeof now, &now) == 0;
    if (!free || CPU_EQUAL(&now, &allowed) == 0) sched_setaffinity(0, sizeof allowed, &allowed);
#else
    (void)current;
#endif
}

}  // namespace

void Signal::raise(uint64_t value) {
    // Both sides are sequentially consistent: either the waiter sees the new value, or this thread sees the sleeper.
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
    // The system often wakes a thread on the processor of its waker. Threads that sleep and wake in turns may then
    // share a processor for long while others are idle, because the scheduler never sees both as runnable.
    if (waker >= 0 && processor() == waker) leave(waker);
    return read();
}

Team::Team(int threads) : forks_(forks), crew_(std::make_unique<Crew>()) {
    try {
        for (int thread = 1; thread < threads; ++thread) crew_->workers.emplace_back([this, thread] { serve(thread); });
    } catch (...) {
        dismiss();
        throw;
    }
    use(threads);
}

// In a forked process the workers do not exist: joining them or destroying their signals would wait forever.
Team::~Team() { forked() ? static_cast<void>(crew_.release()) : dismiss(); }

bool Team::forked() const { return forks_ != forks; }

void Team::dismiss() {
    start(0);
    for (std::thread& worker : crew_->workers) worker.join();
}

void Team::start(int threads) { crew_->started.raise(++runs_ << kSizeBits | static_cast<uint64_t>(threads)); }

void Team::run(Work work, void* context) {
    const FloatMode plain;
    work_ = work;
    context_ = context;
    if (size() > 1) start(size());
    work(context, 0);
    barrier();
}

void Team::run_apart(Work work, void* context) {
    struct Call {
        Work work;
        void* context;
        std::mutex mutex{};
        std::exception_ptr thrown{};
    } call{work, context};
    run(
        [](void* context, int thread) {
            Call& c = *static_cast<Call*>(context);
            try {
                c.work(c.context, thread);
            } catch (...) {
                const std::lock_guard<std::mutex> lock(c.mutex);
                if (!c.thrown) c.thrown = std::current_exception();
            }
        },
        &call);
    if (call.thrown) std::rethrow_exception(call.thrown);
}

void Team::barrier() {
    const int size = this->size();  // read before arriving: the last thread may go on, end the run and change it
    if (size == 1) return;
    const uint64_t seen = crew_->passed.read();
    if (arrived_.fetch_add(1) + 1 == size) {
        arrived_.store(0);
        crew_->passed.raise(seen + 1);
    } else {
        crew_->passed.wait(seen, kStepPauses, kStepYields);
    }
}

// No one waits for a thread that does not take part. It may miss runs, and reads a run only from the signal.
void Team::serve(int thread) {
    const FloatMode plain;
    int pauses = kIdlePauses;
    for (uint64_t seen = 0;;) {
        seen = crew_->started.wait(seen, pauses, 0);
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
