#include "sampling.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "float_mode.hpp"

namespace ferrum {

namespace {

constexpr int64_t kScan = 1024;  // logits read twice while they are in the cache

}  // namespace

Best::Best(const Runtime& runtime, const float* logits, int32_t* out, int64_t columns, int64_t extent, int64_t max_rows)
    : logits_(logits), out_(out), columns_(columns), extent_(extent), max_rows_(max_rows),
      found_(static_cast<size_t>(runtime.team.max_threads() * max_rows)) {}

void Best::run(Runtime& runtime, int thread) {
    const int64_t rows = runtime.step.count(extent_), threads = runtime.team.size();
    const int64_t scans = (columns_ + kScan - 1) / kScan;
    const int64_t begin = scans * thread / threads * kScan;
    const int64_t end = std::min(columns_, scans * (thread + 1) / threads * kScan);
    Found* own = found_.data() + thread * max_rows_;
    for (int64_t row = 0; row < rows; ++row) own[row] = find(runtime.kernels, logits_ + row * columns_, begin, end);
    runtime.team.barrier();
    for (int64_t row = rows * thread / threads; row < rows * (thread + 1) / threads; ++row) {
        Found best{-INFINITY, 0};
        for (int64_t part = 0; part < threads && best.token >= 0; ++part) {
            const Found& found = found_[static_cast<size_t>(part * max_rows_ + row)];
            if (found.token < 0 || found.value > best.value) best = found;  // in ascending order of tokens
        }
        out_[row] = best.token;
    }
}

Best::Found Best::find(const KernelTable& kernels, const float* row, int64_t begin, int64_t end) const {
    Found best{-INFINITY, 0};
    for (int64_t at = begin; at < end; at += kScan) {
        const int64_t count = std::min(kScan, end - at);
        if (!kernels.finite(row + at, count)) return {0.0f, -1};
        const float value = kernels.largest(row + at, count);
        if (value > best.value) best = {value, static_cast<int32_t>(at + kernels.first_equal(row + at, count, value))};
    }
    return best;
}

std::vector<int64_t> SamplerTeam::draw(const std::vector<DrawRequest>& requests) {
    std::vector<int64_t> tokens(requests.size());
    each(requests.size(), [&](Sampler& sampler, size_t i) {
        const DrawRequest& request = requests[i];
        tokens[i] = request.rules.temperature == 0.0f ? sampler.greedy(request.logits, request.count)
                                                   : sampler.draw(request.logits, request.count, request.rules, request.key);
    });
    return tokens;
}

std::vector<Description> SamplerTeam::describe(const std::vector<DescribeRequest>& requests) {
    std::vector<Description> found(requests.size());
    each(requests.size(), [&](Sampler& sampler, size_t i) {
        found[i] = sampler.describe(requests[i].logits, requests[i].count, requests[i].token, requests[i].most);
    });
    return found;
}

// An idle thread takes the next row, because rows differ much in cost. For one row it does not pay to wake threads.
void SamplerTeam::each(size_t count, const std::function<void(Sampler&, size_t)>& work) {
    struct Call {
        std::vector<Sampler>& samplers;
        const std::function<void(Sampler&, size_t)>& work;
        size_t count;
        std::atomic<size_t> next{0};

        void run(int thread) {
            if (static_cast<size_t>(thread) >= samplers.size()) return;
            for (size_t i = next.fetch_add(1); i < count; i = next.fetch_add(1))
                work(samplers[static_cast<size_t>(thread)], i);
        }
    } call{samplers_, work, count};
    const std::lock_guard<std::mutex> lock(runtime_.running);
    if (count < 2) {
        const FloatMode plain;
        call.run(0);
    } else {
        runtime_.team.run_apart([](void* context, int thread) { static_cast<Call*>(context)->run(thread); }, &call);
    }
}

}  // namespace ferrum
