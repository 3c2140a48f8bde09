#include "agreement.hpp"

#include <cmath>
#include <cstdio>
#include <string>

#include "attention.hpp"
#include "experts.hpp"
#include "format_names.hpp"
#include "head_linear.hpp"
#include "outcomes.hpp"
#include "sampler.hpp"
#include "state_checks.hpp"

namespace ferrum {

namespace {

constexpr int64_t kRowsMost = 600;

Outcome linear(Runtime& runtime, Format format, int64_t rows, uint64_t seed) {
    Outcome outcome;
    Numbers numbers(seed);
    const int64_t outputs = 37, inputs = 1 + numbers.below(150);
    const Style style = style_of(seed);
    const auto weight = weight_of(runtime, format, outputs, inputs, numbers, style, outcome);
    const auto up = weight_of(runtime, format, outputs, inputs, numbers, style, outcome);
    const Activation activation = any_activation(seed), none{};
    std::vector<float> x = numbers.floats(rows * inputs, style), bias = numbers.floats(outputs, style);
    std::vector<float> y(static_cast<size_t>(rows * outputs)), gated(y.size());
    const float* up_bias = seed % 2 == 0 ? bias.data() : nullptr;
    const std::vector<Product> products{{weight, nullptr, bias.data(), y.data(), seed % 4 == 0 ? activation : none},
                                        {weight, up, up_bias, gated.data(), activation, up_bias}};
    run(runtime, std::make_shared<Linear>(runtime, Rows{x.data(), rows}, products, rows));
    outcome.add(y);
    outcome.add(gated);
    return outcome;
}

// Experts with biases, and a product by heads.
Outcome experts(Runtime& runtime, Format format, int64_t rows, uint64_t seed) {
    Outcome outcome;
    Numbers numbers(seed);
    constexpr int64_t kExperts = 6, kColumns = 32, kHidden = 64;
    const Style style = style_of(seed);
    const auto matrix = [&](int64_t outputs, int64_t inputs) {
        return weight_of(runtime, format, outputs, inputs, numbers, style, outcome);
    };
    const auto gate = matrix(kExperts * kHidden, kColumns), up = matrix(kExperts * kHidden, kColumns);
    const auto down = matrix(kExperts * kColumns, kHidden), heads = matrix(2 * kHidden, kColumns);
    std::vector<float> x = numbers.floats(rows * 2 * kColumns, style), y(x.size() / 2), by_head(x.size() * 2);
    const auto scores = numbers.floats(rows * kExperts, style == Style::wild ? style : Style::plain);
    const auto bias = numbers.floats(kExperts * kHidden, style), scale = numbers.floats(kExperts, Style::plain);
    const int64_t groups = seed % 5 < 2 ? 3 : 1;
    const Routing routing{kExperts,        1 + numbers.below(3), static_cast<Score>(seed % 3), seed % 2 == 0, groups, groups / 2 + 1,
                          groups / 2 + 1,  seed % 4 < 2,         0,                            0.1f,          2,      seed % 7 == 0,
                          scale.data(),    scale.data()};
    const ExpertWeights weights{gate, up, down, bias.data(), bias.data(), bias.data()};
    const Rows from{x.data(), rows};
    run(runtime, std::make_shared<Experts>(runtime, from, scores.data(), y.data(), routing, weights, Activation{Curve::silu}, rows));
    run(runtime, std::make_shared<HeadLinear>(runtime, from, by_head.data(), heads, 2, rows));
    outcome.add(y);
    outcome.add(by_head);
    return outcome;
}

Outcome norm(Runtime& runtime, int64_t columns, uint64_t seed) {
    Outcome outcome;
    Numbers numbers(seed);
    const int64_t rows = 3;
    const Style style = style_of(seed);
    const auto x = numbers.floats(rows * columns, style), delta = numbers.floats(rows * columns, style);
    const auto weight = numbers.floats(columns, style);
    std::vector<float> y(x.size()), total(x.size()), sum(x.size());
    const bool adds = seed % 8 < 4;
    const float factor = seed % 3 == 0 ? 0.22f : 1.0f;
    run(runtime, std::make_shared<Norm>(NormArgs{x.data(), adds ? delta.data() : nullptr, weight.data(),
                                                 seed % 5 < 2 ? weight.data() : nullptr, factor, 1e-6f, seed % 2 == 0, columns,
                                                 adds ? total.data() : nullptr, y.data()},
                                        rows));
    const AddArgs args{x.data(), delta.data(), adds ? weight.data() : nullptr, factor, 0.7f, columns, sum.data()};
    if (columns >= rows || !adds) run(runtime, std::make_shared<Add>(args, rows));
    outcome.add(y);
    outcome.add(total);
    outcome.add(sum);
    return outcome;
}

// A step with one span of some rows at the end of its sequence.
void begin(Runtime& runtime, int64_t first, int64_t rows, int64_t pages) {
    Step& step = runtime.step;
    step.token_ids.assign(static_cast<size_t>(rows), 0);
    step.positions.clear();
    for (int64_t row = 0; row < rows; ++row) step.positions.push_back(static_cast<int32_t>(first + row));
    step.span_rows = {0, static_cast<int32_t>(rows)};
    step.row_span.assign(static_cast<size_t>(rows), 0);
    step.pages.resize(1);
    step.pages[0].clear();
    for (int64_t page = 0; page < pages; ++page) step.pages[0].push_back(static_cast<int32_t>(pages - 1 - page));
    step.strides = {pages};
}

void add_pages(Outcome& outcome, const Runtime& runtime, int64_t pages) {
    std::vector<uint8_t> page(static_cast<size_t>(runtime.pool.page_bytes(0)));
    for (int64_t i = 0; i < pages; ++i) {
        runtime.pool.read_page(0, i, page.data());
        outcome.bytes.insert(outcome.bytes.end(), page.begin(), page.end());
    }
}

// Store a sequence in two parts, and attend from the rows of the second.
Outcome attention(Runtime& runtime, KvFormat format, int64_t rows, uint64_t seed) {
    Outcome outcome;
    Numbers numbers(seed);
    constexpr int64_t kPageSizes[] = {16, 64, 5, 128}, kDims[] = {64, 20, 40, 128};
    const int64_t page_size = kPageSizes[numbers.below(4)], dim = kDims[numbers.below(4)], kv_heads = 1 + numbers.below(2);
    const int64_t heads = kv_heads * (1 + numbers.below(3)), before = numbers.below(200), all = before + rows;
    const int64_t pages = all / page_size + 1, pairs = dim / 2 - numbers.below(2) * 4;
    const int64_t value_dim = kDims[numbers.below(4)];
    const Style style = style_of(seed), of_value = style == Style::wild ? style : kStyles[numbers.below(3)];
    runtime.pool.add({format, pages, page_size, 1, kv_heads, dim, value_dim});
    const auto q = numbers.floats(all * heads * dim, style), k = numbers.floats(all * kv_heads * dim, style);
    auto v = numbers.floats(all * kv_heads * value_dim, of_value);
    // A value that is not finite may reach rows of its span that do not see it, by the weight 0.
    for (float& each : v) each = std::fabs(each) < 0x1p127f ? each : 0.0f;
    const auto scales = numbers.floats(128 + all, Style::plain);
    const auto cosines = numbers.floats(all * pairs, Style::plain), sines = numbers.floats(all * pairs, Style::plain);
    std::vector<float> turned(q.size());
    RopeArgs rope{0, q.data(), k.data(), v.data(), turned.data(), heads, kv_heads, dim, pairs, cosines.data(), sines.data(),
                  nullptr, nullptr, nullptr, nullptr, 1e-6f, false, nullptr, 0, {}};
    if (seed % 8 < 4) rope.q_norm = rope.k_norm = scales.data();
    if (seed % 3 == 0) rope.v_norm = rope.temperature = scales.data();
    rope.norm_last = seed % 5 < 2;
    begin(runtime, 0, all, pages);
    run(runtime, std::make_shared<RopeStore>(rope, 0, kRows));
    outcome.add(turned);
    begin(runtime, before, rows, pages);
    std::vector<float> out(static_cast<size_t>(rows * heads * value_dim));
    // Weights of a few tokens, and much smaller ones.
    const float scale = style == Style::tiny ? 0x1p122f : style == Style::huge ? 0x1p-120f : seed % 3 == 0 ? 1.0f : 24.0f;
    const int64_t window = numbers.below(3) == 0 ? 1 + numbers.below(100) : 0;
    const int64_t chunk = numbers.below(3) == 0 ? 1 + numbers.below(100) : 0;
    const Activation scaling{seed % 4 == 1 ? Curve::capped : Curve::scaled, scale, 20, 40};
    const float* sinks = seed % 5 == 0 ? scales.data() : nullptr;
    const AttentionArgs args{q.data() + before * heads * dim, out.data(), heads, kv_heads, dim, scaling, sinks, window, chunk,
                             nullptr, 0, {}, value_dim};
    run(runtime, std::make_shared<Attention>(runtime, args, 0));
    outcome.add(out);
    if (style != Style::wild) add_pages(outcome, runtime, pages);  // NaN has many patterns
    return outcome;
}

// The same for latent attention, whose values are parts of the keys.
Outcome latent_attention(Runtime& runtime, KvFormat format, int64_t rows, uint64_t seed) {
    Outcome outcome;
    Numbers numbers(seed);
    constexpr int64_t kPageSizes[] = {16, 64, 5, 128}, kDims[] = {64, 16, 40, 144};
    const int64_t page_size = kPageSizes[numbers.below(4)], dim = kDims[numbers.below(4)], pairs = 1 + numbers.below(20);
    const int64_t rope = 2 * pairs, heads = 1 + numbers.below(20), before = numbers.below(200), all = before + rows;
    const int64_t pages = all / page_size + 1, whole = dim + rope;
    const Style style = style_of(seed);
    runtime.pool.add({format, pages, page_size, 1, 1, whole, 0});
    const auto q = numbers.floats(all * heads * dim, style), q_rope = numbers.floats(all * heads * rope, style);
    const auto k_rope = numbers.floats(all * rope, style);
    auto latent = numbers.floats(all * dim, style);
    for (float& each : latent) each = std::fabs(each) < 0x1p127f ? each : 0.0f;
    const auto cosines = numbers.floats(all * pairs, Style::plain), sines = numbers.floats(all * pairs, Style::plain);
    std::vector<float> turned(static_cast<size_t>(all * heads * whole)), out(static_cast<size_t>(rows * heads * dim));
    const LatentArgs stored{0, q.data(), q_rope.data(), latent.data(), k_rope.data(), turned.data(), heads, dim, rope, pairs,
                            cosines.data(), sines.data(), nullptr, 0, {}};
    begin(runtime, 0, all, pages);
    run(runtime, std::make_shared<LatentStore>(stored, 0, kRows));
    outcome.add(turned);
    begin(runtime, before, rows, pages);
    const float scale = style == Style::tiny ? 0x1p122f : style == Style::huge ? 0x1p-120f : 1.0f;
    const float* queries = turned.data() + before * heads * whole;
    const AttentionArgs args{queries, out.data(), heads, 1, whole, {Curve::scaled, scale}, nullptr, 0, 0, nullptr, 0, {}, dim};
    run(runtime, std::make_shared<Attention>(runtime, args, 0));
    outcome.add(out);
    if (style != Style::wild) add_pages(outcome, runtime, pages);
    return outcome;
}

Outcome sampling(Runtime& runtime, int64_t size, uint64_t seed) {
    Outcome outcome;
    Numbers numbers(seed);
    const int64_t count = 1 + size * 3;
    std::vector<float> logits = numbers.floats(count, seed % 4 == 3 ? Style::wild : Style::plain);
    for (float& each : logits) each *= 20.0f;
    Sampler sampler(runtime.kernels);
    const DrawRules rules{0.5f + static_cast<float>(numbers.below(4)), numbers.below(2) * 40, seed % 2 == 0 ? 1.0 : 0.9,
                          seed % 3 == 0 ? 0.05f : 0.0f};
    outcome.add_whole({sampler.greedy(logits.data(), count), sampler.draw(logits.data(), count, rules, {numbers.word(), 7, 0})});
    if (seed % 4 == 3) return outcome;
    const Description found = sampler.describe(logits.data(), count, numbers.below(count), std::min<int64_t>(20, count));
    outcome.add({found.greatest, found.log_total});
    outcome.add_whole({found.rank, found.best.front(), found.best.back()});
    return outcome;
}

Outcome others(Runtime& runtime, int64_t size, uint64_t seed) {
    Outcome outcome;
    Numbers numbers(seed);
    const auto x = numbers.floats(size * 20, style_of(seed));
    std::vector<float> exponentials(x.size());
    runtime.kernels.exp_of(x.data(), size * 20, exponentials.data());
    const auto bytes = static_cast<int64_t>(x.size() * sizeof(float)), pages = (bytes + kSumPage - 1) / kSumPage;
    std::vector<uint64_t> sums(static_cast<size_t>(pages));
    runtime.kernels.page_sums(reinterpret_cast<const std::byte*>(x.data()), bytes, 0, pages, sums.data());
    for (const uint64_t sum : sums) outcome.add_whole({static_cast<int64_t>(sum), static_cast<int64_t>(sum >> 32)});
    outcome.add_whole({static_cast<int64_t>(runtime.kernels.finite(x.data(), size * 20))});
    if (style_of(seed) != Style::wild) outcome.add(exponentials);
    return outcome;
}

std::vector<Named> all_cases() {
    std::vector<Named> cases;
    std::vector<std::string> formats = block_format_names();
    formats.insert(formats.begin(), {"float32", "float16", "bfloat16"});
    for (const std::string& name : formats)
        cases.push_back({"linear " + name, [format = format_of(name)](Runtime& runtime, int64_t size, uint64_t seed) {
                             return linear(runtime, format, size, seed);
                         }});
    for (const char* name : {"float32", "bfloat16", "q8_0", "q5_1", "q6_k", "fp8"})
        cases.push_back({std::string("experts ") + name, [format = format_of(name)](Runtime& runtime, int64_t size, uint64_t seed) {
                             return experts(runtime, format, size, seed);
                         }});
    for (const char* name : {"float32", "bfloat16", "int8"})
        cases.push_back({std::string("attention ") + name, [format = kv_format_of(name)](Runtime& runtime, int64_t size, uint64_t seed) {
                             return attention(runtime, format, size, seed);
                         }});
    for (const char* name : {"float32", "bfloat16", "int8"})
        cases.push_back({std::string("latent attention ") + name,
                         [format = kv_format_of(name)](Runtime& runtime, int64_t size, uint64_t seed) {
                             return latent_attention(runtime, format, size, seed);
                         }});
    for (const Named& each : adapter_cases()) cases.push_back(each);
    for (const Named& each : state_cases()) cases.push_back(each);
    cases.push_back({"norm", norm});
    cases.push_back({"sampling", sampling});
    cases.push_back({"others", others});
    return cases;
}

Outcome outcome_of(const Named& of, const KernelTable& tier, int64_t size, uint64_t seed) {
    Runtime runtime(tier.name, 1 + static_cast<int>(seed % 2));
    return of.run(runtime, size, seed);
}

}  // namespace

int disagreements(int stride) {
    const std::vector<const KernelTable*> tiers = available_tiers();
    int all = 0;
    for (const Named& each : all_cases()) {
        int differ = 0, cases = 0;
        uint64_t seed = 0, hash = 0xcbf29ce484222325u;
        for (int64_t size = 1; size <= kRowsMost; size += stride, ++seed, ++cases) {
            const Outcome expected = outcome_of(each, *tiers.back(), size, seed);
            hash = expected.hash(hash);
            for (const KernelTable* tier : tiers) {
                if (tier == tiers.back() || outcome_of(each, *tier, size, seed) == expected) continue;
                if (differ++ < 8)
                    std::printf("%s differs in %s: size %d, seed %d\n", each.name.c_str(), tier->name, static_cast<int>(size),
                                static_cast<int>(seed));
            }
        }
        std::printf("%s: %d cases, %d differ, hash %016llx\n", each.name.c_str(), cases, differ,
                    static_cast<unsigned long long>(hash));
        std::fflush(stdout);
        all += differ;
    }
    return all;
}

}  // namespace ferrum
