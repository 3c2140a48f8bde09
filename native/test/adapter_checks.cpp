#include "adapter_checks.hpp"

#include "adapters.hpp"
#include "case_inputs.hpp"
#include "experts.hpp"

namespace ferrum {

namespace {

std::string numbered(const std::string& name, int64_t number) { return name + " " + std::to_string(number); }

Floats matrix_of(const Case& from, const std::string& key) {
    return {format_of(from.text(key + " format")), from.data<std::byte>(key), from.extent(key, 0), from.extent(key, 1)};
}

// Return the change of matrix `index` by the adapter of a slot, or none.
std::optional<AdapterChange> change_of(const Case& from, const std::string& slot, int64_t index) {
    const std::string key = numbered(slot, index) + " ";
    AdapterChange change;
    if (from.has(key + "b")) {
        const std::string a = numbered(slot, from.integer(key + "owner of a")) + " a";
        change.a = matrix_of(from, a);
        change.b = matrix_of(from, key + "b");
        change.rank = from.integer(key + "rank");
        change.scale = from.real(key + "scale");
    }
    change.bias = from.maybe<float>(key + "bias");
    change.factor = from.maybe<float>(key + "factor");
    change.offset = from.maybe<float>(key + "offset");
    if (from.has(key + "replaced")) {
        change.replaced = matrix_of(from, key + "replaced");
        change.replaced_rows = from.maybe<int32_t>(key + "replaced rows");
    }
    const bool adds = change.b.data != nullptr || change.bias != nullptr;
    return adds || change.factor != nullptr || change.replaced.data != nullptr ? std::optional(change) : std::nullopt;
}

}  // namespace

std::shared_ptr<AdapterSite> site_of(const Case& from) {
    auto site = std::make_shared<AdapterSite>(from.has("logits") && from.integer("logits") != 0);
    for (int64_t slot = 0; slot < from.integer("slots"); ++slot) {
        std::vector<std::optional<AdapterChange>> changes;
        for (int64_t i = 0; i < from.integer("matrices"); ++i) changes.push_back(change_of(from, numbered("slot", slot), i));
        site->set(slot, entry_of(std::move(changes)));
    }
    return site;
}

void check_adapt(Runtime& runtime, const Case& from) {
    begin(runtime, from, "");
    const int64_t heads = from.integer("heads");
    std::vector<std::vector<float>> results;
    std::vector<float*> ys;
    std::vector<int64_t> outputs;
    for (int64_t i = 0; i < from.integer("matrices"); ++i) {
        results.push_back(from.vector<float>(numbered("y", i)));
        ys.push_back(results.back().data());
        outputs.push_back(from.extent(numbered("y", i), 1) / heads);
    }
    const SiteJobs jobs(site_of(from), heads);
    run(runtime, std::make_shared<Adapt>(runtime, jobs, from.data<float>("x"), from.extent("x", 1) / heads, ys, outputs));
    for (size_t i = 0; i < results.size(); ++i) expect(from, numbered("changed", static_cast<int64_t>(i)), ys[i]);
}

// Two such operations, the first of which prefetches matrices of the second.
void check_adapted_linear(Runtime& runtime, const Case& from) {
    begin(runtime, from, "");
    const Rows x{floats(from, "x"), from.extent("x", 0)};
    std::vector<std::vector<float>> results;
    std::vector<Product> products;
    for (int64_t i = 0; i < from.integer("matrices"); ++i) {
        const WeightPointer weight = weight_of(runtime, from, numbered("weight", i));
        results.emplace_back(static_cast<size_t>(x.extent * weight->outputs()));
        products.push_back({weight, nullptr, from.maybe<float>(numbered("bias", i)), results.back().data()});
    }
    const SiteJobs jobs(site_of(from));
    Operations operations;
    for (int i = 0; i < 2; ++i) operations.push_back(std::make_shared<AdaptedLinear>(runtime, x, products, x.extent, jobs));
    link_adapted(operations);
    run_all(runtime, operations);
    for (size_t i = 0; i < results.size(); ++i) expect(from, numbered("changed", static_cast<int64_t>(i)), results[i].data());
}

void check_adapt_embedding(Runtime& runtime, const Case& from) {
    begin(runtime, from, "");
    std::vector<float> y = from.vector<float>("y");
    run(runtime, std::make_shared<AdaptEmbedding>(runtime, site_of(from), y.data(), from.extent("y", 1), from.real("scale")));
    expect(from, "changed", y.data());
}

void check_activate(Runtime& runtime, const Case& from) {
    const int64_t rows = from.extent("x", 0), columns = from.extent("x", 1);
    std::vector<float> y(static_cast<size_t>(rows * columns));
    run(runtime, std::make_shared<Activate>(activation_of(from), from.data<float>("x"), from.maybe<float>("others"),
                                            Rows{y.data(), rows}, columns));
    expect(from, "y", y.data());
}

void check_experts(Runtime& runtime, const Case& from) {
    begin(runtime, from, "");
    const Routing routing{from.integer("num_experts"),
                          from.integer("top_k"),
                          score_of(from.text("score")),
                          from.integer("late") != 0,
                          from.integer("groups"),
                          from.integer("kept_groups"),
                          from.integer("group_best"),
                          from.integer("renormalise") != 0,
                          static_cast<float>(from.real("eps")),
                          static_cast<float>(from.real("least")),
                          static_cast<float>(from.real("factor")),
                          from.integer("on_input") != 0,
                          nullptr,
                          nullptr};
    const ExpertWeights weights{weight_of(runtime, from, "gate"),     weight_of(runtime, from, "up"),
                                weight_of(runtime, from, "down"),     from.data<float>("gate bias"),
                                from.data<float>("up bias"), from.data<float>("down bias")};
    std::vector<float> y(from.field("x").bytes.size() / sizeof(float));
    const Rows x{floats(from, "x"), from.extent("x", 0)};
    const float* scores = from.data<float>("scores");
    const Activation activation = activation_of(from);
    run(runtime, std::make_shared<Experts>(runtime, x, scores, y.data(), routing, weights, activation, x.extent));
    expect(from, "plain", y.data());
    run(runtime, std::make_shared<Experts>(runtime, x, scores, y.data(), routing, weights, activation, x.extent, site_of(from)));
    expect(from, "changed", y.data());
}

}  // namespace ferrum
