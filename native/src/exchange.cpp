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

// Numbers that are rounded together, as in quant/block_weight.py: their codes and greatest magnitude. 127 x (1 / 127) is 1, so
// numbers made from both have the same magnitude, and with it the same codes and scale.
struct Rounded {
    static constexpr int64_t kNumbers = 32;

    float largest;
    int8_t codes[kNumbers];
};
static_assert(sizeof(Rounded) == 36);

constexpr float kLevels = 127, kShare = 1 / kLevels;
constexpr float kWhole = 12582912;  // 1.5 x 2^23: a sum with it is rounded to an integer, halves to even

void round_numbers(const float* x, int64_t numbers, Rounded* to) {
    for (; numbers > 0; numbers -= Rounded::kNumbers, x += Rounded::kNumbers, ++to) {
        int32_t bits[Rounded::kNumbers], top = 0;
        std::memcpy(bits, x, sizeof bits);
        for (const int32_t each : bits) top = std::max(top, each & 0x7fffffff);
        std::memcpy(&to->largest, &top, sizeof top);
        const bool used = top >= 0x1f800000 && top < 0x7f800000;  // as WholeScale in tier/bytes.hpp
        if (!used) {
            std::memset(to->codes, 0, sizeof to->codes);
            continue;
        }
        const float factor = kLevels / to->largest;
        for (int64_t i = 0; i < Rounded::kNumbers; ++i) {
            const float whole = x[i] * factor + kWhole;
            std::memcpy(&bits[i], &whole, sizeof whole);  // the code is in its low byte
        }
        for (int64_t i = 0; i < Rounded::kNumbers; ++i) to->codes[i] = static_cast<int8_t>(bits[i]);
    }
}

void restore_numbers(const Rounded* from, int64_t numbers, float* to) {
    for (; numbers > 0; numbers -= Rounded::kNumbers, to += Rounded::kNumbers, ++from)
        for (int64_t i = 0; i < Rounded::kNumbers; ++i) to[i] = from->largest * (static_cast<float>(from->codes[i]) * kShare);
}

// How a slot holds numbers.
struct Carrier {
    bool rounded;

    int64_t bytes(int64_t numbers) const {
        return rounded ? numbers / Rounded::kNumbers * static_cast<int64_t>(sizeof(Rounded)) : numbers * static_cast<int64_t>(sizeof(float));
    }
    void put(const float* x, int64_t numbers, std::byte* slot) const {
        if (rounded) return round_numbers(x, numbers, reinterpret_cast<Rounded*>(slot));
        std::memcpy(slot, x, static_cast<size_t>(numbers) * sizeof(float));
    }
    void take(const std::byte* slot, int64_t numbers, float* out) const {
        if (rounded) return restore_numbers(reinterpret_cast<const Rounded*>(slot), numbers, out);
        std::memcpy(out, slot, static_cast<size_t>(numbers) * sizeof(float));
    }
};

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

const char* refusal(const Exchange* exchange, const Starts& starts, bool rounded) {
    if (starts.size() != (exchange == nullptr ? 2 : static_cast<size_t>(exchange->ranks()) + 1)) return "expected a start for each rank";
    if (starts.front() != 0 || !std::is_sorted(starts.begin(), starts.end())) return "starts must ascend from 0";
    const auto cuts = [](int64_t start) { return start % Rounded::kNumbers != 0; };
    if (rounded && std::any_of(starts.begin(), starts.end(), cuts)) return "a start is within numbers that are rounded together";
    const bool holds = exchange == nullptr || starts.back() * static_cast<int64_t>(sizeof(float)) <= exchange->slot_bytes();
    return holds ? nullptr : "a slot does not hold a row";
}

void join_columns(Exchange& exchange, Runtime& runtime, int thread, int64_t rows, const Starts& starts, const float* x, float* out,
                  bool rounded) {
    const Carrier carrier{rounded};
    const auto rank = static_cast<size_t>(exchange.rank());
    const int64_t columns = starts.back(), own = starts[rank + 1] - starts[rank];
    const int64_t most = exchange.slot_bytes() / (columns * static_cast<int64_t>(sizeof(float)));  // rows
    for (int64_t first = 0; first < rows; first += most) {
        const int64_t count = std::min(most, rows - first);
        std::byte* slot = exchange.slot();  // of each rank in turn, its rows
        const auto [begin, end] = share(runtime, count, thread);
        carrier.put(x + (first + begin) * own, (end - begin) * own, slot + carrier.bytes(count * starts[rank] + begin * own));
        runtime.team.barrier();
        if (thread == 0) {
            exchange.meet();
            exchange.count(carrier.bytes(count * (columns - own)));
        }
        runtime.team.barrier();
        for (int64_t row = begin; row < end; ++row)
            for (size_t each = 0; each + 1 < starts.size(); ++each) {
                const int64_t width = starts[each + 1] - starts[each];
                float* to = out + (first + row) * columns + starts[each];
                if (each == rank)
                    copy(to, x + (first + row) * own, width);
                else
                    carrier.take(slot + carrier.bytes(count * starts[each] + row * width), width, to);
            }
    }
}

void Join::run(Runtime& runtime, int thread) {
    const int64_t rows = tiles_ * runtime.step.count(out_.extent), columns = starts_.back();
    if (exchange_ != nullptr) return join_columns(*exchange_, runtime, thread, rows, starts_, x_, out_.data, rounded_);
    const auto [begin, end] = share(runtime, rows, thread);
    copy(out_.data + begin * columns, x_ + begin * columns, (end - begin) * columns);
}

}  // namespace ferrum
