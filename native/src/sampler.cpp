#include "sampler.hpp"

#include <algorithm>
#include <cmath>

namespace ferrum {

namespace {

// The order of tokens: greater first, then lower ids.
struct Better {
    const float* x;
    bool operator()(int32_t a, int32_t b) const { return x[a] > x[b] || (x[a] == x[b] && a < b); }
};

// Bins of values from 0 down, the greatest first. The last bin has all values with almost no mass.
constexpr int kDrawers = 1024;

int64_t strands_of(int64_t count) { return (count + kStretch - 1) / kStretch * kStrands; }

int drawer_of(float value) { return static_cast<int>(std::min(-value, 24.0f) * (static_cast<float>(kDrawers - 1) / 24.0f)); }

}  // namespace

int64_t Sampler::held_bytes(int64_t count) {
    const size_t a_token = 3 * sizeof(float) + 4 * sizeof(int32_t) + sizeof(int64_t), a_strand = sizeof(float);
    return count * static_cast<int64_t>(a_token) + strands_of(count) * static_cast<int64_t>(a_strand);
}

void Sampler::prepare(int64_t count) {
    const auto room = static_cast<size_t>(count);
    if (scaled_.capacity() >= room) return;
    for (std::vector<float>* each : {&scaled_, &values_, &exponentials_}) each->reserve(room);
    for (std::vector<int32_t>* each : {&found_, &tokens_, &near_[0], &near_[1]}) each->reserve(room);
    masses_.reserve(room);
    strands_.reserve(static_cast<size_t>(strands_of(count)));
}

int64_t Sampler::greedy(const float* logits, int64_t count) const {
    const float peak = kernels_.largest(logits, count);
    return peak > -INFINITY ? kernels_.first_equal(logits, count, peak) : -1;
}

int64_t Sampler::draw(const float* logits, int64_t count, const DrawRules& rules, const DrawKey& key) {
    prepare(count);
    const bool by_count = rules.top_k > 0 && rules.top_k < count;
    const float peak = by_count ? look_over(logits, count) : kernels_.largest(logits, count);
    if (!std::isfinite(peak)) return -1;  // distances below a peak that is not finite have no bin
    scaled_.resize(static_cast<size_t>(count));
    float* x = scaled_.data();
    const bool by_mass = rules.top_p < 1.0, by_share = rules.min_p > 0.0f;
    if (by_count)
        keep_top_k_scaled(logits, count, peak, rules.temperature, rules.top_k);
    else
        kernels_.scale_below(logits, count, peak, rules.temperature, x);
    if (!by_count && !by_mass && !by_share) return kernels_.draw_from_all(x, count, key);
    if (by_mass) keep_top_p(x, count, rules.top_p, !by_count);
    if (by_share) keep_min_p(x, count, rules.min_p, !by_count && !by_mass);
    return kernels_.draw_among(x, tokens_.data(), static_cast<int64_t>(tokens_.size()), key);
}

std::vector<int32_t> Sampler::top(const float* logits, int64_t count, int64_t most) {
    look_over(logits, count);
    return first(logits, count, most);
}

float Sampler::look_over(const float* logits, int64_t count) {
    prepare(count);
    strands_.resize(static_cast<size_t>(strands_of(count)));
    return kernels_.largest_of_strands(logits, count, strands_.data());
}

std::vector<int32_t> Sampler::first(const float* logits, int64_t count, int64_t most) {
    keep_top_k(logits, count, most);
    std::vector<int32_t> best = tokens_;
    std::sort(best.begin(), best.end(), Better{logits});
    return best;
}

// The `most`-th greatest of the strand maxima is a threshold that at least `most` tokens reach, and few others.
float Sampler::reached_by(int64_t most) {
    if (most > static_cast<int64_t>(strands_.size())) return -INFINITY;
    std::nth_element(strands_.begin(), strands_.begin() + most - 1, strands_.end(), std::greater<float>());
    return strands_[static_cast<size_t>(most) - 1];
}

void Sampler::collect(const float* x, int64_t count, float cut) {
    found_.resize(static_cast<size_t>(count));  // never shrinks, so that `tokens_` is not cleared for every row
    tokens_.assign(found_.data(), found_.data() + kernels_.collect_from(x, count, cut, found_.data()));
}

void Sampler::gather(const float* x) {
    values_.resize(tokens_.size());
    for (size_t i = 0; i < tokens_.size(); ++i) values_[i] = x[tokens_[i]];
}

void Sampler::cut_to(const float* x, int64_t most) {
    if (most >= static_cast<int64_t>(tokens_.size())) return;
    std::nth_element(tokens_.begin(), tokens_.begin() + most - 1, tokens_.end(), Better{x});
    tokens_.resize(static_cast<size_t>(most));
    std::sort(tokens_.begin(), tokens_.end());
}

void Sampler::keep_top_k(const float* x, int64_t count, int64_t most) {
    tokens_.clear();
    if (most <= 0) return;
    collect(x, count, reached_by(most));
    cut_to(x, most);
}

// Equivalent to scaling all logits first, but only the tokens that may be among the first are scaled. Scaling keeps the
// order but may make neighbours equal, so the threshold is lowered by more than the rounding errors.
void Sampler::keep_top_k_scaled(const float* logits, int64_t count, float peak, float temperature, int64_t most) {
    const double cut = reached_by(most), margin = 1e-6 * (static_cast<double>(peak) - cut);
    collect(logits, count, std::nextafter(static_cast<float>(cut - margin), -INFINITY));
    gather(logits);
    kernels_.scale_below(values_.data(), static_cast<int64_t>(values_.size()), peak, temperature, values_.data());
    for (size_t i = 0; i < tokens_.size(); ++i) scaled_[static_cast<size_t>(tokens_[i])] = values_[i];
    cut_to(scaled_.data(), most);
}

// Values and masses of the tokens; returns the sum of the masses.
int64_t Sampler::weigh(const float* x) {
    gather(x);
    masses_.resize(tokens_.size());
    return kernels_.mass_of(values_.data(), static_cast<int64_t>(tokens_.size()), 0.0f, masses_.data());
}

// Keep the smallest set of best tokens whose mass reaches the share. Most sets are small, so candidates are taken from
// the top of the row, in growing numbers.
void Sampler::keep_top_p(const float* x, int64_t count, double share, bool all) {
    const int64_t total = all ? kernels_.mass_of(x, count, 0.0f, nullptr) : weigh(x);
    const int64_t needed = std::min(static_cast<int64_t>(std::ceil(share * static_cast<double>(total))), total);
    if (all)
        for (const float cut : {-2.0f, -6.0f, -10.0f, -14.0f, -20.0f, -INFINITY}) {
            collect(x, count, cut);
            if (weigh(x) >= needed) break;
        }
    auto [least, equals] = edge_of(needed);
    size_t kept = 0;
    for (size_t i = 0; i < tokens_.size(); ++i) {  // without branches, which the processor could not predict
        tokens_[kept] = tokens_[i];
        const int64_t level = static_cast<int64_t>(values_[i] == least) & static_cast<int64_t>(equals > 0);
        equals -= level;
        kept += static_cast<size_t>(values_[i] > least) | static_cast<size_t>(level);
    }
    tokens_.resize(kept);
}

// Find the edge of the nucleus without sorting: quickselect by mass, in the bin of values with the edge. Tokens of
// equal value have equal mass.
Sampler::Edge Sampler::edge_of(int64_t needed) {
    int64_t drawers[kDrawers] = {};
    size_t sizes[kDrawers] = {};
    for (size_t i = 0; i < tokens_.size(); ++i) {
        const int drawer = drawer_of(values_[i]);
        drawers[drawer] += masses_[i];
        ++sizes[drawer];
    }
    int edge = 0;
    for (; drawers[edge] < needed; ++edge) needed -= drawers[edge];
    for (std::vector<int32_t>& each : near_) each.resize(std::min(sizes[edge] + 1, tokens_.size()));
    int32_t *from = near_[0].data(), *to = near_[1].data();
    size_t count = 0;
    for (size_t i = 0; i < tokens_.size() && count < sizes[edge]; ++i) {
        from[count] = static_cast<int32_t>(i);
        count += drawer_of(values_[i]) == edge;
    }
    for (int turn = 0;; turn = 1 - turn) {
        const auto value = [&](size_t i) { return values_[static_cast<size_t>(from[i])]; };
        const float a = value(0), b = value(count / 2), c = value(count - 1);
        const float pivot = std::max(std::min(a, b), std::min(std::max(a, b), c));
        size_t high = 0, low = count;  // values above the pivot go to the front, values below it to the back
        int64_t above = 0, level = 0, one = 1;
        for (size_t i = 0; i < count; ++i) {
            const int64_t mass = masses_[static_cast<size_t>(from[i])];
            if (value(i) > pivot) {
                to[high++] = from[i];
                above += mass;
            } else if (value(i) < pivot) {
                to[--low] = from[i];
            } else {
                level += one = mass;
            }
        }
        if (above < needed && (above + level >= needed || low == count))
            return {pivot, one > 0 ? (needed - above + one - 1) / one : static_cast<int64_t>(count)};
        const bool below = above < needed;
        if (below) needed -= above + level;
        from = below ? to + low : to;
        count = below ? count - low : high;
        to = near_[static_cast<size_t>(turn)].data();
    }
}

void Sampler::keep_min_p(const float* x, int64_t count, float least, bool all) {
    if (all) collect(x, count, std::log(least) - 0.01f);  // slightly more than needed; the exact test follows
    gather(x);
    exponentials_.resize(tokens_.size());
    kernels_.exp_of(values_.data(), static_cast<int64_t>(tokens_.size()), exponentials_.data());
    size_t kept = 0;
    for (size_t i = 0; i < tokens_.size(); ++i)
        if (exponentials_[i] >= least) tokens_[kept++] = tokens_[i];
    tokens_.resize(kept);
}

float Sampler::log_total(const float* logits, int64_t count, float peak) const {
    const int64_t total = kernels_.mass_of(logits, count, peak, nullptr);
    return kernels_.log_of(static_cast<float>(total) / 1099511627776.0f);
}

Description Sampler::describe(const float* logits, int64_t count, int64_t token, int64_t most) {
    const float peak = look_over(logits, count);
    if (!std::isfinite(peak)) return {peak, peak, 0, {}};  // refused: a row with a NaN has neither an order nor a total
    return {peak, log_total(logits, count, peak), 1 + kernels_.count_before(logits, count, token), first(logits, count, most)};
}

}  // namespace ferrum
