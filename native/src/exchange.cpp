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

void Join::run(Runtime& runtime, int thread) {
    const int64_t rows = runtime.step.count(out_.extent), columns = starts_.back();
    const auto copy = [](float* to, const float* from, int64_t numbers) { std::memcpy(to, from, static_cast<size_t>(numbers) * sizeof(float)); };
    if (exchange_ == nullptr) {
        const auto [begin, end] = share(runtime, rows, thread);
        return copy(out_.data + begin * columns, x_ + begin * columns, (end - begin) * columns);
    }
    const auto rank = static_cast<size_t>(exchange_->rank());
    const int64_t own = starts_[rank + 1] - starts_[rank];
    const int64_t most = exchange_->slot_bytes() / (columns * static_cast<int64_t>(sizeof(float)));  // rows
    for (int64_t first = 0; first < rows; first += most) {
        const int64_t count = std::min(most, rows - first);
        auto* slot = reinterpret_cast<float*>(exchange_->slot());  // of each rank in turn, its rows
        const auto [begin, end] = share(runtime, count, thread);
        copy(slot + count * starts_[rank] + begin * own, x_ + (first + begin) * own, (end - begin) * own);
        runtime.team.barrier();
        if (thread == 0) {
            exchange_->meet();
            exchange_->count(count * (columns - own) * static_cast<int64_t>(sizeof(float)));
        }
        runtime.team.barrier();
        for (int64_t row = begin; row < end; ++row)
            for (size_t each = 0; each + 1 < starts_.size(); ++each) {
                const int64_t width = starts_[each + 1] - starts_[each];
                const float* from = each == rank ? x_ + (first + row) * own : slot + count * starts_[each] + row * width;
                copy(out_.data + (first + row) * columns + starts_[each], from, width);
            }
    }
}

}  // namespace ferrum
