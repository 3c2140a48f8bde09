#include <algorithm>
#include <deque>

#include "adapters.hpp"
#include "experts.hpp"
#include "format_names.hpp"
#include "outcomes.hpp"

namespace ferrum {

namespace {

constexpr int64_t kSlots = 3, kTokens = 50;

// Random changes, and their memory.
class Changes {
public:
    Changes(Numbers& numbers, Format format, Style style) : numbers_(numbers), format_(format), style_(style) {}

    Floats matrix(int64_t rows, int64_t columns) {
        matrices_.push_back(elements(format_, numbers_.floats(rows * columns, style_)));
        return {format_, matrices_.back().data(), rows, columns};
    }
    const float* vector(int64_t count) {
        vectors_.push_back(numbers_.floats(count, style_));
        return vectors_.back().data();
    }
    // A low-rank product, of each group or by one A of all groups.
    AdapterChange low_rank(int64_t outputs, int64_t inputs, int64_t groups = 1) {
        AdapterChange change;
        change.rank = 1 + numbers_.below(numbers_.below(4) == 0 ? 70 : 20);
        change.a = matrix((groups > 1 && numbers_.below(3) == 0 ? 1 : groups) * change.rank, inputs);
        change.b = matrix(groups * panel_count(outputs) * change.rank, kPanel);
        change.scale = 0.25 + static_cast<double>(numbers_.below(4));
        return change;
    }
    // The same by the matrix A of another change.
    AdapterChange sharing(const AdapterChange& of, int64_t outputs, int64_t groups = 1) {
        AdapterChange change = of;
        change.b = matrix(groups * panel_count(outputs) * change.rank, kPanel);
        return change;
    }
    // Replace some rows of a matrix, or all of them.
    void replace(AdapterChange& change, int64_t outputs, int64_t inputs) {
        std::vector<int32_t> rows;
        for (int64_t row = 0; row < outputs; ++row)
            if (numbers_.below(3) == 0) rows.push_back(static_cast<int32_t>(row));
        const bool some = !rows.empty();
        change.replaced = matrix(some ? static_cast<int64_t>(rows.size()) : outputs, inputs);
        rows_.push_back(std::move(rows));
        change.replaced_rows = some ? rows_.back().data() : nullptr;
    }

private:
    Numbers& numbers_;
    Format format_;
    Style style_;
    std::deque<std::vector<std::byte>> matrices_;
    std::deque<std::vector<float>> vectors_;
    std::deque<std::vector<int32_t>> rows_;
};

// Begin a step whose rows have any number of adapters, or if `alone` one at most.
void begin(Runtime& runtime, int64_t rows, Numbers& numbers, bool alone) {
    Step& step = runtime.step;
    step.token_ids.clear();
    for (int64_t row = 0; row < rows; ++row) step.token_ids.push_back(static_cast<int32_t>(numbers.below(kTokens)));
    step.logit_rows = {0, static_cast<int32_t>(rows - 1)};
    step.adapters.clear();
    for (int64_t slot = kSlots - 1; slot >= 0; --slot) step.adapters.push_back({slot, slot == 0 ? 1.0 : 0.3, {}, {}});
    for (int32_t row = 0; row < rows; ++row) {
        const int64_t one = numbers.below(kSlots + 1);
        for (StepAdapter& each : step.adapters)
            if (alone ? each.slot == one : numbers.below(2) == 0) each.rows.push_back(row);
    }
}

// Changes of three products of one input, apart from the products and with them. Adapters may share a matrix A, replace
// rows, or have factors.
Outcome products(Runtime& runtime, Format format, int64_t rows, uint64_t seed) {
    Outcome outcome;
    Numbers numbers(seed);
    const Style style = style_of(seed);
    const bool alone = seed % 2 == 0;
    const int64_t heads = seed % 7 == 0 ? 3 : 1, inputs = 1 + numbers.below(150);
    const std::vector<int64_t> outputs(heads > 1 ? std::vector<int64_t>{64} : std::vector<int64_t>{1 + numbers.below(100), 37, 5});
    Changes changes(numbers, format, style);
    const auto site = std::make_shared<AdapterSite>();
    for (int64_t slot = 0; slot < kSlots; ++slot) {
        std::vector<std::optional<AdapterChange>> entry{changes.low_rank(outputs[0], inputs, heads)};
        if (heads == 1) {
            entry.push_back(numbers.below(2) == 0 ? changes.sharing(*entry[0], outputs[1]) : changes.low_rank(outputs[1], inputs));
            entry[1]->bias = numbers.below(2) == 0 ? changes.vector(outputs[1]) : nullptr;
            entry.push_back(std::nullopt);
            if (alone) {
                entry[2] = AdapterChange{};
                changes.replace(*entry[2], outputs[2], inputs);
                if (slot > 0) changes.replace(*entry[0], outputs[0], inputs);
                entry[1]->factor = changes.vector(outputs[1]);
                entry[1]->offset = changes.vector(outputs[1]);
            }
        }
        site->set(slot, entry_of(std::move(entry)));
    }
    begin(runtime, rows, numbers, alone);
    std::vector<float> x = numbers.floats(rows * heads * inputs, style);
    std::vector<std::vector<float>> results;
    std::vector<float*> ys;
    for (const int64_t each : outputs) results.push_back(numbers.floats(rows * heads * each, style));
    for (std::vector<float>& each : results) ys.push_back(each.data());
    run(runtime, std::make_shared<Adapt>(runtime, SiteJobs(site, heads), x.data(), inputs, ys, outputs));
    const Rows first{ys[0], rows};
    run(runtime, std::make_shared<Activate>(any_activation(seed), ys[0], seed % 3 == 0 ? results[0].data() : nullptr, first,
                                            heads * outputs[0]));
    for (const std::vector<float>& each : results) outcome.add(each);
    if (heads > 1) return outcome;
    std::vector<Product> all;
    for (size_t i = 0; i < outputs.size(); ++i) {
        const Format of_weight = i < 2 ? format : format_of("q8_0");
        all.push_back({weight_of(runtime, of_weight, outputs[i], inputs, numbers, style, outcome), nullptr, nullptr, ys[i]});
    }
    run(runtime, std::make_shared<AdaptedLinear>(runtime, Rows{x.data(), rows}, all, rows, SiteJobs(site)));
    for (const std::vector<float>& each : results) outcome.add(each);
    return outcome;
}

Outcome embeddings(Runtime& runtime, Format format, int64_t rows, uint64_t seed) {
    Outcome outcome;
    Numbers numbers(seed);
    const Style style = style_of(seed);
    const int64_t columns = 1 + numbers.below(150);
    Changes changes(numbers, format, style);
    const auto site = std::make_shared<AdapterSite>();
    for (int64_t slot = 0; slot < kSlots; ++slot) {
        AdapterChange change;
        if (slot != 1) change = changes.low_rank(columns, 1);
        if (slot != 1) change.a = changes.matrix(kTokens, change.rank);
        if (slot != 0) changes.replace(change, kTokens, columns);
        site->set(slot, entry_of({change}));
    }
    begin(runtime, rows, numbers, seed % 2 == 0);
    std::vector<float> y = numbers.floats(rows * columns, style);
    run(runtime, std::make_shared<AdaptEmbedding>(runtime, site, y.data(), columns, seed % 3 == 0 ? 1.0 : 6.1));
    outcome.add(y);
    return outcome;
}

// Experts of float weights and of blocks, with adapters of gate, up or down.
Outcome experts(Runtime& runtime, Format format, int64_t rows, uint64_t seed) {
    Outcome outcome;
    Numbers numbers(seed);
    constexpr int64_t kExperts = 6, kColumns = 96, kHidden = 64;
    const Style style = style_of(seed);
    const Format of_weights = seed % 2 == 0 ? format : format_of("q8_0");
    const auto weight = [&](int64_t outputs, int64_t inputs) {
        return weight_of(runtime, of_weights, kExperts * outputs, inputs, numbers, style, outcome);
    };
    const ExpertWeights weights{weight(kHidden, kColumns), weight(kHidden, kColumns), weight(kColumns, kHidden), nullptr, nullptr, nullptr};
    Changes changes(numbers, format, style);
    const auto site = std::make_shared<AdapterSite>();
    for (int64_t slot = 0; slot < kSlots; ++slot) {
        std::vector<std::optional<AdapterChange>> entry(3);
        if (slot != 2) entry[0] = changes.low_rank(kHidden, kColumns, kExperts);
        if (slot == 0) entry[1] = changes.low_rank(kHidden, kColumns, kExperts);
        if (slot == 1) entry[1] = changes.sharing(*entry[0], kHidden, kExperts);
        if (slot != 1) entry[2] = changes.low_rank(kColumns, kHidden, kExperts);
        site->set(slot, entry_of(std::move(entry)));
    }
    begin(runtime, rows, numbers, seed % 4 == 0);
    std::vector<float> x = numbers.floats(rows * kColumns, style), y(x.size());
    const auto scores = numbers.floats(rows * kExperts, Style::plain);
    const Routing routing{kExperts, 1 + numbers.below(4), static_cast<Score>(seed % 3), false, 1, 1, 1, true, 0, 0, 1,
                          seed % 3 == 0, nullptr, nullptr};
    const Rows from{x.data(), rows};
    run(runtime, std::make_shared<Experts>(runtime, from, scores.data(), y.data(), routing, weights, any_activation(seed), rows, site));
    outcome.add(y);
    return outcome;
}

}  // namespace

std::vector<Named> adapter_cases() {
    const std::pair<const char*, Outcome (*)(Runtime&, Format, int64_t, uint64_t)> all[] = {
        {"adapted products ", products}, {"adapted embeddings ", embeddings}, {"adapted experts ", experts}};
    std::vector<Named> cases;
    for (const auto& [kind, made] : all)
        for (const char* name : {"float32", "float16", "bfloat16"})
            cases.push_back({std::string(kind) + name, [run = made, format = format_of(name)](Runtime& runtime, int64_t size, uint64_t seed) {
                                 return run(runtime, format, size, seed);
                             }});
    return cases;
}

}  // namespace ferrum
