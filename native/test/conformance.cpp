// Conformance test without Python: every case of a vector file on every tier of this machine, with one and two threads; or
// the tiers compared with each other (agreement.hpp), every STRIDE-th number of rows.
//
//     conformance VECTORS
//     conformance --tiers STRIDE
//
// Prints a line per tier and per failing case; exits with 1 if a case fails.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>

#include "adapter_checks.hpp"
#include "agreement.hpp"
#include "attention.hpp"
#include "case_inputs.hpp"
#include "checks.hpp"
#include "format_names.hpp"
#include "sampler.hpp"
#include "state_checks.hpp"

namespace ferrum {
namespace {

void check_linear(Runtime& runtime, const Case& from) {
    const int64_t rows = from.extent("x", 0);
    std::vector<float> y(from.field("y").bytes.size() / sizeof(float));
    const WeightPointer up = from.has("up") ? weight_of(runtime, from, "up") : nullptr;
    const Product product{weight_of(runtime, from, "weight"), up,         from.maybe<float>("bias"), y.data(),
                          activation_of(from),                from.maybe<float>("up bias")};
    run(runtime, std::make_shared<Linear>(runtime, Rows{floats(from, "x"), rows}, std::vector<Product>{product}, rows));
    expect(from, "y", y.data());
}

void check_rows(Runtime& runtime, const Case& from) {
    begin(runtime, from, "");
    const int64_t columns = from.extent("x", 1);
    std::vector<float> embedded(runtime.step.token_ids.size() * static_cast<size_t>(columns)), gathered(embedded.size());
    run(runtime, std::make_shared<Embed>(weight_of(runtime, from, "table"), Rows{embedded.data(), kRows}));
    expect(from, "embedded", embedded.data());
    run(runtime, std::make_shared<Gather>(from.data<float>("x"), Rows{gathered.data(), kLogits}, columns));
    expect(from, "gathered", gathered.data());
    run(runtime, std::make_shared<Gather>(from.data<float>("x"), Rows{gathered.data(), kHidden}, columns));
    expect(from, "hidden", gathered.data());
    std::vector<char> flags(static_cast<size_t>(runtime.step.spans()));
    run(runtime, std::make_shared<Finite>(from.data<float>("x"), columns, reinterpret_cast<bool*>(flags.data())));
    expect_bytes(from, "finite", flags.data());
}

// Store whole sequences, copy a page, and attend with spans of them.
void check_attention(Runtime& runtime, const Case& from) {
    const int64_t heads = from.integer("heads"), kv_heads = from.integer("kv_heads"), dim = from.integer("dim");
    runtime.pool.add({kv_format_of(from.text("store")), from.integer("num_pages"), from.integer("page_size"), 2, kv_heads, dim,
                      from.integer("value_dim")});
    begin(runtime, from, "whole ");
    std::vector<float> turned(from.field("turned").bytes.size() / sizeof(float));
    RopeArgs rope = rope_of(from, heads, kv_heads, dim, turned.data());
    rope.layer = 1;
    run(runtime, std::make_shared<RopeStore>(rope, 0, kRows));
    expect(from, "turned", turned.data());
    runtime.pool.copy_page(0, from.integer("source"), from.integer("target"));
    begin(runtime, from, "");
    std::vector<float> out(from.field("out").bytes.size() / sizeof(float));
    AttentionArgs args{};
    args.q = from.data<float>("queries");
    args.out = out.data();
    args.num_heads = heads;
    args.num_kv_heads = kv_heads;
    args.head_dim = dim;
    args.scaling = activation_of(from);
    args.sinks = from.maybe<float>("sinks");
    args.window = from.integer("window");
    args.chunk = from.integer("chunk");
    args.layer = 1;
    run(runtime, std::make_shared<Attention>(runtime, args, 0));
    expect(from, "out", out.data());
}

void check_sampling(Runtime& runtime, const Case& from) {
    Sampler sampler(runtime.kernels);
    const float* logits = from.data<float>("logits");
    const int64_t count = from.extent("logits", 0);
    expect_integer(from, "greedy", sampler.greedy(logits, count));
    const DrawRules rules{static_cast<float>(from.real("temperature")), from.integer("top_k"), from.real("top_p"),
                          static_cast<float>(from.real("min_p"))};
    const DrawKey key{static_cast<uint64_t>(from.integer("seed")), static_cast<uint32_t>(from.integer("position")),
                      static_cast<uint32_t>(from.integer("choice"))};
    expect_integer(from, "drawn", sampler.draw(logits, count, rules, key));
    const float total = sampler.log_total(logits, count, runtime.kernels.largest(logits, count));
    expect(from, "log_total", &total);
    expect_bytes(from, "best", sampler.top(logits, count, from.extent("best", 0)).data());
}

using Check = void (*)(Runtime&, const Case&);
const std::map<std::string, Check> kChecks = {{"linear", check_linear},
                                              {"norm", check_norm},
                                              {"rows", check_rows},
                                              {"attention", check_attention},
                                              {"sampling", check_sampling},
                                              {"adapt", check_adapt},
                                              {"adapted linear", check_adapted_linear},
                                              {"adapt embedding", check_adapt_embedding},
                                              {"activate", check_activate},
                                              {"experts", check_experts},
                                              {"states", check_states},
                                              {"gated norm", check_gated_norm},
                                              {"adapted heads", check_adapted_heads}};

// Return the number of failing cases. Each runs on a new runtime, so that scratch memory has exactly its size.
int failures(const std::vector<Case>& cases, const std::string& tier_name, int threads) {
    int failed = 0;
    for (size_t i = 0; i < cases.size(); ++i) {
        try {
            Runtime runtime(tier_name, threads);
            kChecks.at(cases[i].name)(runtime, cases[i]);
        } catch (const std::exception& error) {
            std::printf("case %zu, %s: %s\n", i, cases[i].name.c_str(), error.what());
            ++failed;
        }
    }
    std::printf("%s, %d threads: %zu cases, %d failed\n", tier_name.c_str(), threads, cases.size(), failed);
    return failed;
}

}  // namespace
}  // namespace ferrum

int main(int argc, char** argv) {
    if (argc == 3 && std::string(argv[1]) == "--tiers" && std::atoi(argv[2]) > 0)
        return ferrum::disagreements(std::atoi(argv[2])) == 0 ? 0 : 1;
    if (argc != 2) return std::fprintf(stderr, "usage: conformance VECTORS | --tiers STRIDE\n"), 2;
    std::ifstream file(argv[1], std::ios::binary);
    const std::vector<ferrum::Case> cases = ferrum::read_cases(file);
    int failed = 0;
    for (const ferrum::KernelTable* tier : ferrum::available_tiers())
        for (const int threads : {1, 2}) failed += ferrum::failures(cases, tier->name, threads);
    return failed == 0 ? 0 : 1;
}
