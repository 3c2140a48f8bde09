// Python bindings of the runtime, weights and operations. Arrays are borrowed: the caller (kernels/cpu) keeps the
// arrays of an operation alive. Arrays are never converted, because an operation would then use the copy. Contradictory
// arguments raise when an operation is made, not when it runs. The caller guarantees that matrices have enough rows for
// a step.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "adapters_binding.hpp"
#include "arrays.hpp"
#include "attention_binding.hpp"
#include "block_types.hpp"
#include "exchange.hpp"
#include "expert_binding.hpp"
#include "format_names.hpp"
#include "codebooks.hpp"
#include "fused_sums.hpp"
#include "operations.hpp"
#include "packing.hpp"
#include "sampling.hpp"
#include "probe.hpp"
#include "rope_table.hpp"
#include "row_norms.hpp"
#include "states_binding.hpp"

namespace nb = nanobind;

namespace ferrum {
namespace {

void check_page(const Runtime& runtime, int64_t group, int64_t page, int64_t bytes) {
    require(page >= 0 && page < runtime.pool.group(group).num_pages, "page out of range");
    require(bytes == runtime.pool.page_bytes(group), "array size is not the page size");
}

void read_rows(const Weight& weight, const Runtime& runtime, const In<int32_t>& ids, const Out<float>& out) {
    require(weight.data() != nullptr, "matrix is blank");
    require(static_cast<int64_t>(out.size()) == static_cast<int64_t>(ids.size()) * weight.inputs(), "output needs one row per id");
    for (size_t i = 0; i < ids.size(); ++i) {
        require(ids.data()[i] >= 0 && ids.data()[i] < weight.outputs(), "row id out of range");
        weight.row(runtime.kernels, ids.data()[i], out.data() + static_cast<int64_t>(i) * weight.inputs());
    }
}

// Set the points of a codebook; see codebooks.hpp.
void set_codebook(const std::string& name, const In<uint32_t>& points) {
    const auto set = [&](uint32_t* to, size_t count) {
        require(points.size() == count, "codebook of another size");
        std::copy(points.data(), points.data() + count, to);
    };
    if (name == "iq2_xxs") return set(codebooks.iq2_xxs, std::size(codebooks.iq2_xxs));
    if (name == "iq2_xs") return set(codebooks.iq2_xs, std::size(codebooks.iq2_xs));
    if (name == "iq2_s") return set(codebooks.iq2_s, std::size(codebooks.iq2_s));
    if (name == "iq3_xxs") return set(codebooks.iq3_xxs, std::size(codebooks.iq3_xxs));
    if (name == "iq3_s") return set(codebooks.iq3_s, std::size(codebooks.iq3_s));
    require(name == "iq1_s", "unknown codebook");
    set(codebooks.iq1_s, std::size(codebooks.iq1_s));
}

// The same matrix with an order of inputs [runs, inputs] for each of several equal runs of outputs.
std::shared_ptr<Weight> ordered(const Weight& weight, const In<int32_t>& order) {
    require(order.ndim() == 2 && order.shape(0) > 0, "expected rows of inputs");
    require(static_cast<int64_t>(order.shape(1)) == weight.inputs(), "expected the input of each column");
    const int32_t *begin = order.data(), *end = begin + order.size();
    require(std::all_of(begin, end, [&](int32_t input) { return input >= 0 && input < weight.inputs(); }), "input out of range");
    const auto runs = static_cast<int64_t>(order.shape(0));
    require(weight.outputs() > 0 && weight.outputs() % runs == 0, "each order needs as many outputs");
    return weight.ordered({std::make_shared<std::vector<int32_t>>(begin, end), weight.outputs() / runs});
}

// Make a matrix with a size but without numbers. Operations accept it, but must not run with it.
std::shared_ptr<Weight> blank(const std::string& format, int64_t outputs, int64_t inputs) {
    require(outputs >= 0 && inputs >= 0, "negative matrix size");
    return std::make_shared<Weight>(format_of(format), outputs, inputs, nullptr, nullptr);
}

using GroupTuple = std::tuple<std::string, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t>;

void allocate(Runtime& runtime, const std::vector<GroupTuple>& groups, const std::optional<StatePoolTuple>& states) {
    for (const auto& [format, pages, size, layers, heads, key_dim, value_dim] : groups) {
        require(key_dim <= kMaxHead && value_dim <= kMaxHead, "heads exceed MAX_HEAD_DIM");
        runtime.pool.add({kv_format_of(format), pages, size, layers, heads, key_dim, value_dim});
    }
    allocate_states(runtime, states);
}

void copy_page(Runtime& runtime, int64_t group, int64_t source, int64_t target) {
    const int64_t bytes = runtime.pool.page_bytes(group);
    check_page(runtime, group, source, bytes);
    check_page(runtime, group, target, bytes);
    runtime.pool.copy_page(group, source, target);
}

// Check that each span has rows and that all rows of the step belong to spans.
void check_spans(const In<int32_t>& span_rows, size_t rows) {
    const int32_t* at = span_rows.data();
    const size_t spans = span_rows.size() - 1;
    require(at[0] == 0 && at[spans] == static_cast<int64_t>(rows), "span_rows does not match the rows of the step");
    for (size_t span = 0; span < spans; ++span) require(at[span] < at[span + 1], "a span has no rows");
}

void assign(std::vector<int32_t>& to, const In<int32_t>& from) { to.assign(from.data(), from.data() + from.size()); }

// Keep the rows that are used in place of embeddings, which rows of the step they are, and what is added to them later.
void take_given(Step& step, const std::optional<In<int32_t>>& rows, const MaybeFloats& given, const MaybeFloats& added) {
    step.given_of.clear();
    step.added_columns = 0;
    if (!given) return;
    require(rows && given->ndim() == 2 && rows->size() == given->shape(0), "expected one row of numbers per given row");
    step.given_of.assign(step.token_ids.size(), -1);
    for (size_t index = 0; index < rows->size(); ++index) {
        const int32_t row = rows->data()[index];
        require(row >= 0 && static_cast<size_t>(row) < step.given_of.size(), "a given row is not in the step");
        step.given_of[static_cast<size_t>(row)] = static_cast<int32_t>(index);
    }
    step.given_columns = static_cast<int64_t>(given->shape(1));
    step.given.assign(given->data(), given->data() + given->size());
    if (!added) return;
    require(added->ndim() == 2 && rows->size() == added->shape(0), "expected one row of added numbers per given row");
    step.added_columns = static_cast<int64_t>(added->shape(1));
    step.added.assign(added->data(), added->data() + added->size());
}

// Keep the places of rows that rotations are by; return the greatest of their numbers.
int32_t take_places(Step& step, const std::optional<In<int32_t>>& places) {
    step.places.clear();
    if (!places || places->size() == 0) return 0;
    require(places->ndim() == 2 && places->shape(0) == step.token_ids.size() && places->shape(1) == kPlaceAxes,
            "expected a place per row of the step");
    const auto [least, most] = std::minmax_element(places->data(), places->data() + places->size());
    require(*least >= 0, "a place is negative");
    assign(step.places, *places);
    return *most;
}

// A row sees no key that is not written, and a tile of rows takes the last row's as the last of all.
void take_last_seen(Step& step, const std::optional<In<int32_t>>& last_seen) {
    step.last_seen.clear();
    if (!last_seen.has_value()) return;
    require(last_seen->size() == step.positions.size(), "last_seen has another size than positions");
    assign(step.last_seen, *last_seen);
    for (size_t row = 0; row < step.last_seen.size(); ++row) {
        const auto span = static_cast<size_t>(step.row_span[row]);
        const int32_t last = step.positions[static_cast<size_t>(step.span_rows[span + 1]) - 1];
        require(step.last_seen[row] >= step.positions[row] && step.last_seen[row] <= last, "last_seen is not in the span");
        require(row == static_cast<size_t>(step.span_rows[span]) || step.last_seen[row] >= step.last_seen[row - 1], "last_seen falls");
    }
}

// Return the greatest position, or number of a place.
int32_t begin(Runtime& runtime, const In<int32_t>& token_ids, const In<int32_t>& positions, const In<int32_t>& span_rows,
              const std::vector<In<int32_t>>& pages, const In<int32_t>& logit_rows, const In<int32_t>& hidden_rows,
              const std::optional<In<int32_t>>& given_rows, const MaybeFloats& given, const MaybeFloats& added,
              const std::vector<StepAdapterTuple>& adapters, const std::optional<StateTablesTuple>& states,
              const std::optional<In<int32_t>>& places, const std::optional<In<int32_t>>& last_seen) {
    require(static_cast<int64_t>(pages.size()) == runtime.pool.size(), "number of page tables is not the number of groups");
    require(token_ids.size() == positions.size() && span_rows.size() > 0, "token_ids, positions and span_rows have contradictory sizes");
    check_spans(span_rows, token_ids.size());
    for (const auto& table : pages) require(table.ndim() == 2 && table.shape(0) + 1 == span_rows.size(), "expected one row of pages per span");
    Step& step = runtime.step;
    assign(step.token_ids, token_ids);
    assign(step.positions, positions);
    assign(step.span_rows, span_rows);
    assign(step.logit_rows, logit_rows);
    assign(step.hidden_rows, hidden_rows);
    step.row_span.resize(step.token_ids.size());
    for (int64_t span = 0; span < step.spans(); ++span)
        std::fill(step.row_span.begin() + step.span_rows[static_cast<size_t>(span)],
                  step.row_span.begin() + step.span_rows[static_cast<size_t>(span) + 1], static_cast<int32_t>(span));
    step.pages.resize(pages.size());
    step.strides.resize(pages.size());
    for (size_t group = 0; group < pages.size(); ++group) {
        assign(step.pages[group], pages[group]);
        step.strides[group] = static_cast<int64_t>(pages[group].shape(1));
    }
    take_given(step, given_rows, given, added);
    take_adapters(step, adapters);
    take_states(runtime, states);
    take_last_seen(step, last_seen);
    const int32_t place = take_places(step, places);
    return step.positions.empty() ? 0 : std::max(place, *std::max_element(step.positions.begin(), step.positions.end()));
}

OperationPointer embed(std::shared_ptr<Weight> table, float scale, int64_t stride, int64_t offset, const Out<float>& out,
                       int64_t extent) {
    require(stride > 0 && offset >= 0 && offset < stride, "offset must be below the stride");
    return std::make_shared<Embed>(std::move(table), Rows{out.data(), extent}, scale, stride, offset);
}

OperationPointer add_given(const Out<float>& x, int64_t columns, int64_t offset, int64_t extent) {
    require(columns > 0 && offset >= 0, "columns out of range");
    return std::make_shared<AddGiven>(Rows{x.data(), extent}, columns, offset);
}

OperationPointer embed_positions(std::shared_ptr<Weight> table, const Out<float>& out, int64_t extent) {
    return std::make_shared<EmbedPositions>(std::move(table), Rows{out.data(), extent});
}

OperationPointer multiply(const In<float>& x, const In<float>& y, int64_t columns, const Out<float>& out, int64_t extent) {
    return std::make_shared<Multiply>(x.data(), y.data(), Rows{out.data(), extent}, columns);
}

OperationPointer norm(const Runtime& runtime, const In<float>& x, const MaybeFloats& delta, const In<float>& weight,
                      const MaybeFloats& bias, float factor, float eps, bool centred, const std::optional<Out<float>>& total,
                      const Out<float>& out, int64_t extent, std::shared_ptr<AdapterSite> site) {
    require(delta.has_value() == total.has_value(), "delta and total must be given together");
    require(!bias || bias->size() == weight.size(), "weight and bias differ in size");
    const auto columns = static_cast<int64_t>(weight.size());
    const NormArgs args{x.data(), data_or_null(delta), weight.data(), data_or_null(bias), factor, eps, centred, columns,
                        total ? total->data() : nullptr, out.data()};
    return std::make_shared<Norm>(args, extent, row_norms(runtime, std::move(site), 0, args.weight, args.bias));
}

OperationPointer add(const In<float>& x, const In<float>& y, const MaybeFloats& gate, float factor, float scale, int64_t columns,
                     const Out<float>& out, int64_t extent) {
    const AddArgs args{x.data(), y.data(), data_or_null(gate), factor, scale, columns, out.data()};
    return std::make_shared<Add>(args, extent);
}

using WeightHolder = std::shared_ptr<Weight>;
using ProductTuple = std::tuple<WeightHolder, WeightHolder, MaybeFloats, MaybeFloats, Out<float>>;  // weight, up, their biases, y

OperationPointer linear(Runtime& runtime, const Out<float>& x, const std::vector<ProductTuple>& products,
                        const std::optional<ActivationTuple>& applied, int64_t extent, int64_t max_rows,
                        std::shared_ptr<AdapterSite> site) {
    const Activation activation = activation_of(applied);
    std::vector<Product> all;
    for (const auto& [weight, up, bias, up_bias, y] : products) {
        require(weight->inputs() == std::get<0>(products.front())->inputs(), "weights have different input sizes");
        require(weight->orders() < 2 && (up == nullptr || up->orders() < 2), "each part of a weight needs its order of inputs");
        require(up == nullptr || (up->outputs() == weight->outputs() && up->inputs() == weight->inputs()), "gate and up differ in shape");
        check_size(bias, weight->outputs(), "expected one bias per output");
        check_size(up_bias, weight->outputs(), "expected one bias per output");
        if (up != nullptr && !up->packs_like(*weight)) {
            require(products.size() == 1, "gate and up of two formats or orders must be alone");
            all.push_back({up, nullptr, data_or_null(up_bias), y.data()});
            all.push_back({weight, nullptr, data_or_null(bias), y.data(), activation, nullptr, true});
        } else {
            all.push_back({weight, up, data_or_null(bias), y.data(), activation, data_or_null(up_bias)});
        }
    }
    if (site == nullptr) return std::make_shared<Linear>(runtime, Rows{x.data(), extent}, std::move(all), max_rows);
    for (const Product& p : all)
        require(p.up == nullptr && !p.gates && p.activation.curve == Curve::none, "adapters change plain products only");
    return std::make_shared<AdaptedLinear>(runtime, Rows{x.data(), extent}, std::move(all), max_rows, SiteJobs(std::move(site)));
}

// Fill rows of a rope table from the position `begin` on.
void fill_rope(const In<float>& frequencies, double scaling, int64_t begin, const Out<float>& cosines, const Out<float>& sines) {
    const auto pairs = static_cast<int64_t>(frequencies.size());
    require(cosines.ndim() == 2 && static_cast<int64_t>(cosines.shape(1)) == pairs && sines.size() == cosines.size(),
            "expected a cosine and a sine per frequency");
    const int64_t end = begin + static_cast<int64_t>(cosines.shape(0));
    rope_rows(frequencies.data(), pairs, scaling, begin, end, cosines.data(), sines.data());
}

OperationPointer gather(const In<float>& x, const Out<float>& out, int64_t columns, int64_t extent) {
    return std::make_shared<Gather>(x.data(), Rows{out.data(), extent}, columns);
}

// An exchange over shared memory; see exchange.hpp.
std::shared_ptr<Exchange> exchange(const Out<uint8_t>& memory, int64_t rank, int64_t ranks) {
    const int64_t slots = static_cast<int64_t>(memory.size()) - Exchange::memory_bytes(ranks, 0);
    require(rank >= 0 && rank < ranks, "rank out of range");
    require(slots > 0 && slots % (2 * Exchange::kLine) == 0, "the memory does not hold two slots of whole lines");
    return std::make_shared<Exchange>(reinterpret_cast<std::byte*>(memory.data()), slots / 2, rank, ranks);
}

OperationPointer join(std::shared_ptr<Exchange> exchange, const In<float>& x, Starts starts, int64_t tiles, bool rounded,
                      const Out<float>& out, int64_t extent) {
    require(tiles > 0, "a row has no tiles");
    const char* wrong = refusal(exchange.get(), starts, rounded);
    require(wrong == nullptr, wrong);
    return std::make_shared<Join>(std::move(exchange), x.data(), Rows{out.data(), extent}, std::move(starts), tiles, rounded);
}

OperationPointer finite_spans(const In<float>& x, const Out<bool>& out, int64_t columns) {
    return std::make_shared<Finite>(x.data(), columns, out.data());
}

OperationPointer best(const Runtime& runtime, const In<float>& x, const Out<int32_t>& out, int64_t columns, int64_t extent,
                      int64_t max_rows) {
    return std::make_shared<Best>(runtime, x.data(), out.data(), columns, extent, max_rows);
}

using Row = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

using DrawTuple = std::tuple<Row, float, int64_t, double, float, uint64_t, uint32_t, uint32_t>;

std::vector<int64_t> draw(SamplerTeam& team, const std::vector<DrawTuple>& requests) {
    std::vector<DrawRequest> all;
    for (const auto& [row, temperature, top_k, top_p, min_p, seed, position, choice] : requests)
        all.push_back({row.data(), static_cast<int64_t>(row.size()), {temperature, top_k, top_p, min_p}, {seed, position, choice}});
    const nb::gil_scoped_release release;
    return team.draw(all);
}

using DescribeTuple = std::tuple<Row, int64_t, int64_t>;
using DescriptionTuple = std::tuple<float, float, int64_t, std::vector<int32_t>>;

std::vector<DescriptionTuple> describe(SamplerTeam& team, const std::vector<DescribeTuple>& requests) {
    std::vector<DescribeRequest> all;
    for (const auto& [row, token, most] : requests) {
        const auto count = static_cast<int64_t>(row.size());
        require(token >= 0 && token < count, "token out of range");
        all.push_back({row.data(), count, token, most});
    }
    std::vector<DescriptionTuple> results;
    const nb::gil_scoped_release release;
    for (Description& each : team.describe(all)) results.emplace_back(each.greatest, each.log_total, each.rank, std::move(each.best));
    return results;
}

void fuse_arrays(const In<float>& a, const In<float>& b, const In<float>& c, const Out<float>& out) {
    require(a.size() == out.size() && b.size() == out.size() && c.size() == out.size(), "arrays differ in size");
    fuse(a.data(), b.data(), c.data(), static_cast<int64_t>(out.size()), out.data());
}

// Add x [rows, depth] by w [depth, columns] to total [rows, columns].
void add_matrix_product(const In<float>& x, const In<float>& w, const Out<float>& total, bool pairs) {
    require(x.ndim() == 2 && w.ndim() == 2 && total.ndim() == 2, "expected matrices");
    const auto rows = static_cast<int64_t>(x.shape(0)), depth = static_cast<int64_t>(x.shape(1));
    const auto columns = static_cast<int64_t>(w.shape(1));
    require(static_cast<int64_t>(w.shape(0)) == depth, "x and w differ in depth");
    require(static_cast<int64_t>(total.shape(0)) == rows && static_cast<int64_t>(total.shape(1)) == columns, "total has another shape");
    require(!pairs || depth % 2 == 0, "pairs need an even depth");
    (pairs ? add_pairs : add_products)(x.data(), w.data(), total.data(), rows, depth, columns);
}

std::vector<std::string> tier_names() {
    std::vector<std::string> names;
    for (const KernelTable* table : available_tiers()) names.emplace_back(table->name);
    return names;
}

}  // namespace
}  // namespace ferrum

NB_MODULE(_native, module) {
    using namespace ferrum;
    module.doc() = "ferrum's CPU kernels";
    nb::set_leak_warnings(false);  // objects that live until the program ends are no leak
    const nb::call_guard<nb::gil_scoped_release> released;
    const auto as_is = nb::arg().noconvert();
    const auto as_is_or_none = nb::arg().noconvert().none();
    module.attr("NUMERICS") = kNumerics;
    module.attr("MAX_HEAD_DIM") = kMaxHead;
    module.attr("BLOCK_FORMATS") = block_format_names();
    module.attr("BLOCK_TYPES") = block_type_names();
    module.def("set_codebook", &set_codebook);
    module.def("tiers", &tier_names);
    module.def("blank", &blank);
    nb::class_<Weight>(module, "Weight")
        .def_prop_ro("outputs", &Weight::outputs)
        .def_prop_ro("inputs", &Weight::inputs)
        .def_prop_ro("nbytes", &Weight::nbytes)
        .def("part", [](const Weight& weight, int64_t begin, int64_t end) {
            require(begin >= 0 && begin % kPanel == 0 && begin <= end && end <= weight.outputs(), "a part begins with a panel");
            return weight.part(begin, end);
        })
        .def("ordered", &ordered, as_is)
        .def("rows", &read_rows, nb::arg(), as_is, as_is);
    nb::class_<Operation>(module, "Operation").def_prop_ro("experts_read", &Operation::experts_read);
    nb::class_<Program>(module, "Program").def("__init__", [](Program* self, Operations all) {
        link_adapted(all);
        new (self) Program{std::move(all)};
    });
    nb::class_<Runtime>(module, "Runtime")
        .def(nb::init<const std::string&, int>())
        .def_prop_ro("tier", [](const Runtime& r) { return r.kernels.name; })
        .def_prop_ro("threads", [](const Runtime& r) { return r.team.max_threads(); })
        .def("use", [](Runtime& r, int threads) {
            const std::lock_guard<std::mutex> lock(r.running);
            r.team.use(threads);
        })
        .def_prop_ro("pool_bytes", [](const Runtime& r) { return r.pool.nbytes(); })
        .def_prop_ro("scratch_bytes", &Runtime::scratch_bytes)
        .def("pack", &pack)
        .def("pack_blocks", &pack_blocks)
        .def("quantize", &quantize)
        .def("over_panels", &over_panels)
        .def("sum_pages", &sum_pages, as_is, as_is)
        .def("allocate", &allocate, nb::arg(), nb::arg("states").none() = nb::none())
        .def("copy_page", &copy_page, released)
        .def("page_bytes", [](const Runtime& r, int64_t group) { return r.pool.page_bytes(group); })
        .def("read_page", [](const Runtime& r, int64_t group, int64_t page, const Out<uint8_t>& out) {
            check_page(r, group, page, static_cast<int64_t>(out.size()));
            r.pool.read_page(group, page, out.data());
        }, nb::arg(), nb::arg(), as_is, released)
        .def("write_page", [](Runtime& r, int64_t group, int64_t page, const In<uint8_t>& in) {
            check_page(r, group, page, static_cast<int64_t>(in.size()));
            r.pool.write_page(group, page, in.data());
        }, nb::arg(), nb::arg(), as_is, released)
        .def_prop_ro("state_bytes", [](const Runtime& r) { return r.states.nbytes(); })
        .def_prop_ro("slot_bytes", [](const Runtime& r) { return r.states.slot_bytes(); })
        .def("copy_slot", &copy_slot, released)
        .def("read_slot", &read_slot, nb::arg(), as_is, released)
        .def("write_slot", &write_slot, nb::arg(), as_is, released)
        .def("begin", &begin, nb::arg("token_ids").noconvert(), nb::arg("positions").noconvert(), nb::arg("span_rows").noconvert(),
             nb::arg("pages").noconvert(), nb::arg("logit_rows").noconvert(), nb::arg("hidden_rows").noconvert(),
             nb::arg("given_rows").noconvert().none(), nb::arg("given").noconvert().none(), nb::arg("added").noconvert().none(),
             nb::arg("adapters"), nb::arg("states").none() = nb::none(), nb::arg("places").noconvert().none() = nb::none(),
             nb::arg("last_seen").noconvert().none() = nb::none())
        .def("run", [](Runtime& r, const Program& program) { run_all(r, program.operations); },
             released)
        .def("run", &run_all, released);
    nb::class_<AdapterSite>(module, "AdapterSite")
        .def(nb::init<bool>())
        .def("set", &set_entry, nb::arg(), nb::arg().none());
    nb::class_<SamplerTeam>(module, "SamplerTeam")
        .def(nb::init<Runtime&>(), nb::keep_alive<1, 2>())
        .def("held_bytes", &SamplerTeam::held_bytes)
        .def("draw", &draw)
        .def("describe", &describe);
    nb::class_<Probe>(module, "Probe")
        .def(nb::init<const std::string&, int, int64_t>())
        .def("read", &Probe::read, released)
        .def("peak", &Probe::peak, released);
    nb::class_<Exchange>(module, "Exchange")
        .def("begin", &Exchange::begin)
        .def("end", &Exchange::end)
        .def_prop_ro("ended", &Exchange::ended)
        .def_prop_ro("bytes_read", &Exchange::bytes_read);
    module.def("exchange", &exchange, as_is, nb::arg(), nb::arg());
    module.def("join", &join, nb::arg().none(), as_is, nb::arg(), nb::arg(), nb::arg(), as_is, nb::arg());
    module.def("time_all", &time_all, released);
    module.def("embed", &embed, nb::arg(), nb::arg(), nb::arg(), nb::arg(), as_is, nb::arg());
    module.def("add_given", &add_given, as_is, nb::arg(), nb::arg(), nb::arg());
    module.def("embed_positions", &embed_positions, nb::arg(), as_is, nb::arg());
    module.def("multiply", &multiply, as_is, as_is, nb::arg(), as_is, nb::arg());
    module.def("norm", &norm, nb::arg(), as_is, as_is_or_none, as_is, as_is_or_none, nb::arg(), nb::arg(), nb::arg(), as_is_or_none, as_is,
               nb::arg(), nb::arg().none());
    module.def("add", &add, as_is, as_is, as_is_or_none, nb::arg(), nb::arg(), nb::arg(), as_is, nb::arg());
    module.def("adapt", &adapt, nb::arg(), nb::arg(), as_is, nb::arg(), as_is, nb::arg(), nb::arg());
    module.def("adapt_embedding", &adapt_embedding, nb::arg(), nb::arg(), as_is, nb::arg(), nb::arg());
    module.def("activate", &activate, as_is, as_is_or_none, nb::arg().none(), nb::arg(), as_is, nb::arg());
    module.def("linear", &linear, nb::arg(), as_is, as_is, nb::arg().none(), nb::arg(), nb::arg(), nb::arg().none());
    module.def("experts", &experts, nb::arg(), as_is, as_is, as_is, nb::arg(), nb::arg(), as_is, nb::arg(), nb::arg(), nb::arg(),
               nb::arg().none(), nb::arg().none(), nb::arg());
    module.def("head_linear", &head_linear, nb::arg(), as_is, as_is, nb::arg(), nb::arg(), nb::arg(), nb::arg());
    module.def("rope_store", &rope_store, nb::arg(), as_is, as_is_or_none, as_is_or_none, as_is, nb::arg(), as_is_or_none,
               as_is_or_none, as_is, nb::arg(), nb::arg(), as_is_or_none, nb::arg(), nb::arg().none(), nb::arg());
    module.def("fill_rope", &fill_rope, as_is, nb::arg(), nb::arg(), as_is, as_is);
    module.def("latent_store", &latent_store, nb::arg(), as_is, as_is, as_is, as_is, as_is, nb::arg(), as_is, as_is, nb::arg());
    module.def("attention", &attention, nb::arg(), as_is, as_is, nb::arg(), nb::arg().none(), as_is_or_none, nb::arg(), nb::arg(), nb::arg());
    module.def("rotate", &rotate, as_is, nb::arg(), nb::arg(), as_is_or_none, as_is_or_none, as_is_or_none, nb::arg(), as_is, nb::arg(), nb::arg());
    module.def("attend_all", &attend_all, nb::arg(), as_is, as_is, as_is, as_is, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg());
    module.def("short_conv", &short_conv, nb::arg(), as_is, as_is, as_is_or_none, nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), as_is);
    module.def("delta_rule", &delta_rule, nb::arg(), as_is, as_is, as_is, as_is, as_is, nb::arg(), nb::arg(), as_is);
    module.def("gated_norm", &gated_norm, as_is, as_is, as_is, nb::arg(), nb::arg(), nb::arg().none(), as_is, nb::arg());
    module.def("gather", &gather, as_is, as_is, nb::arg(), nb::arg());
    module.def("finite", &finite_spans, as_is, as_is, nb::arg());
    module.def("fuse", &fuse_arrays, as_is, as_is, as_is, as_is, released);
    module.def("add_products", &add_matrix_product, as_is, as_is, as_is, nb::arg(), released);
    module.def("best", &best, nb::arg(), as_is, as_is, nb::arg(), nb::arg(), nb::arg());
}
