#include "adapter_checks.hpp"
#include "case_inputs.hpp"
#include "row_norms.hpp"

namespace ferrum {

void check_norm(Runtime& runtime, const Case& from) {
    const auto site = from.has("slots") ? site_of(from) : nullptr;
    if (site != nullptr) begin(runtime, from, "");
    const int64_t rows = from.extent("x", 0), columns = from.extent("x", 1);
    std::vector<float> y(static_cast<size_t>(rows * columns)), total(y.size());
    const float* delta = from.maybe<float>("delta");
    const auto eps = static_cast<float>(from.real("eps"));
    const NormArgs args{from.data<float>("x"), delta, from.data<float>("weight"), from.maybe<float>("bias"),
                        delta != nullptr ? static_cast<float>(from.real("factor")) : 1, eps, from.integer("centred") != 0, columns,
                        delta != nullptr ? total.data() : nullptr, y.data()};
    run(runtime, std::make_shared<Norm>(args, rows, row_norms(runtime, site, 0, args.weight, args.bias)));
    if (delta != nullptr) expect(from, "total", total.data());
    expect(from, "y", y.data());
}

void check_adapted_heads(Runtime& runtime, const Case& from) {
    const int64_t dim = from.extent("q_norm", 0), heads = from.extent("q", 1) / dim, kv_heads = from.extent("k", 1) / dim;
    runtime.pool.add({kv_format_of(from.text("store")), from.integer("num_pages"), from.integer("page_size"), 1, kv_heads, dim, dim});
    begin(runtime, from, "");
    std::vector<float> turned(from.field("q").bytes.size() / sizeof(float));
    const RopeArgs rope = rope_of(from, heads, kv_heads, dim, turned.data());
    const auto site = site_of(from);
    run(runtime, std::make_shared<RopeStore>(rope, 0, kRows, row_norms(runtime, site, 0, rope.q_norm, nullptr),
                                             row_norms(runtime, site, 1, rope.k_norm, nullptr)));
    expect(from, "turned", turned.data());
    std::vector<uint8_t> page(from.field("page").bytes.size());
    runtime.pool.read_page(0, from.integer("read"), page.data());
    expect_bytes(from, "page", reinterpret_cast<const char*>(page.data()));
}

}  // namespace ferrum
