#include "exchange.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ferrum {

namespace {

// As in team.cpp a rank spins, then yields, and then sleeps, in case that ranks share processors.
constexpr int kPauses = 2000;
constexpr int kYields = 300;
constexpr std::chrono::microseconds kSleep{50};

int64_t load(const int64_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

void pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

void copy(float* to, const float* from, int64_t numbers) { std::memcpy(to, from, static_cast<size_t>(numbers) * sizeof(float)); }

}  // namespace

void Exchange::begin(int64_t step) { now_ = step << kStepShift; }

void Exchange::end(int64_t step) {
    int64_t before = load(word(0));
    while (before < step && !__atomic_compare_exchange_n(word(0), &before, step, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    }
}

bool Exchange::ended() const { return load(word(0)) >= now_ >> kStepShift; }

void Exchange::meet() {
    if (ended()) return;
    ++now_;
    __atomic_store_n(word(1 + rank_), now_, __ATOMIC_RELEASE);
    for (int64_t other = 0; other < ranks_; ++other) {
        for (int tries = 0; load(word(1 + other)) < now_; ++tries) {
            if (tries < kPauses) {
                pause();
                continue;
            }
            if (ended()) return;
            if (tries < kPauses + kYields)
                std::this_thread::yield();
            else
                std::this_thread::sleep_for(kSleep);
        }
    }
}

const char* refusal(const Exchange* exchange, const Starts& starts) {
    if (starts.size() != (exchange == nullptr ? 2 : static_cast<size_t>(exchange->ranks()) + 1)) return "expected a start for each rank";
    if (starts.front() != 0 || !std::is_sorted(starts.begin(), starts.end())) return "starts must ascend from 0";
    const bool holds = exchange == nullptr || starts.back() * static_cast<int64_t>(sizeof(float)) <= exchange->slot_bytes();
    return holds ? nullptr : "a slot does not hold a row";
}

void join_columns(Exchange& exchange, Runtime& runtime, int thread, int64_t rows, const Starts& starts, const float* x, float* out) {
    const auto rank = static_cast<size_t>(exchange.rank());
    const int64_t columns = starts.back(), own = starts[rank + 1] - starts[rank];
    const int64_t most = exchange.slot_bytes() / (columns * static_cast<int64_t>(sizeof(float)));  // rows
    for (int64_t first = 0; first < rows; first += most) {
        const int64_t count = std::min(most, rows - first);
        auto* slot = reinterpret_cast<float*>(exchange.slot());  // of each rank in turn, its rows
        const auto [begin, end] = share(runtime, count, thread);
        copy(slot + count * starts[rank] + begin * own, x + (first + begin) * own, (end - begin) * own);
        runtime.team.barrier();
        if (thread == 0) {
            exchange.meet();
            exchange.count(count * (columns - own) * static_cast<int64_t>(sizeof(float)));
        }
        runtime.team.barrier();
        for (int64_t row = begin; row < end; ++row)
            for (size_t each = 0; each + 1 < starts.size(); ++each) {
                const int64_t width = starts[each + 1] - starts[each];
                const float* from = each == rank ? x + (first + row) * own : slot + count * starts[each] + row * width;
                copy(out + (first + row) * columns + starts[each], from, width);
            }
    }
}

void Join::run(Runtime& runtime, int thread) {
    const int64_t rows = tiles_ * runtime.step.count(out_.extent), columns = starts_.back();
    if (exchange_ != nullptr) return join_columns(*exchange_, runtime, thread, rows, starts_, x_, out_.data);
    const auto [begin, end] = share(runtime, rows, thread);
    copy(out_.data + begin * columns, x_ + begin * columns, (end - begin) * columns);
}

}  // namespace ferrum
