#include "state_checks.hpp"

#include "case_inputs.hpp"
#include "state_operations.hpp"

namespace ferrum {

namespace {

// The delta rule of a case, or of a trial.
DeltaArgs delta_of(int64_t heads, int64_t key_heads, int64_t key_dim, int64_t value_dim, float query_scale) {
    DeltaArgs args{};
    args.heads = heads;
    args.key_heads = key_heads;
    args.key_dim = key_dim;
    args.value_dim = value_dim;
    args.query_scale = query_scale;
    return args;
}

void allocate(Runtime& runtime, const ConvArgs& conv, const DeltaArgs& delta, int64_t slots, int64_t kept) {
    const StateShape taps{(conv.taps - 1) * conv.columns, conv.columns, 1};
    runtime.states.allocate(slots, {taps, {delta.heads * delta.key_dim * delta.value_dim, delta.row_numbers(), 1}}, kept);
}

// A step of spans of one length, which begin at `start` and read the slots from `read` on; the last rows are kept.
void begin(Runtime& runtime, int32_t spans, int32_t rows, int32_t start, int32_t read, int32_t write, int32_t waiting, int32_t kept) {
    Step& step = runtime.step;
    step = {};
    step.span_rows = {0};
    for (int32_t span = 0; span < spans; ++span) {
        for (int32_t row = 0; row < rows; ++row) step.positions.push_back(start + row);
        step.span_rows.push_back((span + 1) * rows);
        step.states.read.push_back(read < 0 ? -1 : read + span);
        step.states.write.push_back(write + span);
        step.states.waiting.push_back(waiting);
        step.states.kept.push_back(kept);
    }
    step.token_ids.assign(step.positions.size(), 0);
    runtime.states.check(step);
}

// Two spans of some rows, then as many again in place, with drafts of which one counts, then one row each.
Outcome states(Runtime& runtime, int64_t size, uint64_t seed) {
    Outcome outcome;
    Numbers numbers(seed);
    constexpr int64_t kSpans = 2, kKept = 3;
    const Style style = style_of(seed);
    ConvArgs conv{};
    conv.taps = 1 + numbers.below(5);
    conv.columns = 1 + numbers.below(700);
    conv.activation = any_activation(seed);
    const int64_t key_heads = 1 + numbers.below(2);
    DeltaArgs delta = delta_of(key_heads * (1 + numbers.below(3)), key_heads, 1 + numbers.below(70), 1 + numbers.below(70), 0.3f);
    allocate(runtime, conv, delta, 2 * kSpans, kKept);
    const int64_t rows = 1 + size % 40, all = rows * kSpans;
    const auto x = numbers.floats(all * conv.columns, style), z = numbers.floats(all * delta.columns(), style);
    const auto a = numbers.floats(all * delta.heads, style), b = numbers.floats(all * delta.heads, Style::plain);
    const auto weight = numbers.floats(conv.taps * conv.columns, style), bias = numbers.floats(conv.columns, style);
    const auto decay = numbers.floats(delta.heads, Style::plain), shift = numbers.floats(delta.heads, Style::plain);
    std::vector<float> y(x.size()), w(static_cast<size_t>(all * delta.heads * delta.value_dim));
    conv.x = x.data(), conv.weight = weight.data(), conv.bias = seed % 2 == 0 ? bias.data() : nullptr, conv.y = y.data();
    delta.x = z.data(), delta.a = a.data(), delta.b = b.data(), delta.decay = decay.data(), delta.shift = shift.data();
    delta.y = w.data();
    const auto step = [&](int64_t count, int64_t start, int32_t read, int32_t write, int64_t waiting, int64_t kept) {
        begin(runtime, kSpans, static_cast<int32_t>(count), static_cast<int32_t>(start), read, write, static_cast<int32_t>(waiting),
              static_cast<int32_t>(kept));
        run(runtime, std::make_shared<ShortConv>(runtime, StatePlace{0, 0}, conv));
        run(runtime, std::make_shared<DeltaRule>(runtime, StatePlace{1, 0}, delta));
        outcome.add(y);
        outcome.add(w);
    };
    const int64_t kept = std::min(kKept, rows - 1);
    step(rows, 0, -1, 0, 0, 0);
    step(rows, rows, 0, 0, 0, kept);
    const int64_t waiting = kept > 0 ? 1 : 0;
    step(1, 2 * rows - kept + waiting, 0, kSpans, waiting, 0);
    for (int64_t slot = 0; slot < 2 * kSpans; ++slot)
        for (int64_t group = 0; group < 2; ++group) {
            const float* state = runtime.states.state(group, 0, slot);
            outcome.add({state, state + runtime.states.shape(group).numbers});
        }
    return outcome;
}

Outcome gated_norm(Runtime& runtime, int64_t size, uint64_t seed) {
    Outcome outcome;
    Numbers numbers(seed);
    const Style style = style_of(seed);
    const int64_t heads = 1 + numbers.below(5), rows = 1 + numbers.below(9), dim = size;
    const auto x = numbers.floats(rows * heads * dim, style), gate = numbers.floats(rows * heads * dim, style);
    const auto weight = numbers.floats(dim, style);
    std::vector<float> y(x.size());
    const GatedNormArgs args{x.data(), gate.data(), weight.data(), 1e-6f, any_activation(seed), dim, y.data()};
    run(runtime, std::make_shared<GatedNorm>(args, heads, rows));
    outcome.add(y);
    return outcome;
}

}  // namespace

void check_states(Runtime& runtime, const Case& from) {
    ConvArgs conv{};
    conv.weight = from.data<float>("weight");
    conv.bias = from.maybe<float>("bias");
    conv.activation = activation_of(from);
    conv.taps = from.integer("taps");
    conv.columns = from.extent("weight", 0) / conv.taps;
    DeltaArgs delta = delta_of(from.integer("heads"), from.integer("key_heads"), from.integer("key_dim"), from.integer("value_dim"),
                               static_cast<float>(from.real("query_scale")));
    delta.decay = from.data<float>("decay");
    delta.shift = from.data<float>("shift");
    allocate(runtime, conv, delta, from.integer("slots"), from.integer("kept_rows"));
    for (int64_t i = 0; i < from.integer("steps"); ++i) {
        const std::string step = std::to_string(i) + " ";
        begin(runtime, from, step);
        runtime.states.check(runtime.step);
        conv.x = from.data<float>(step + "x");
        delta.x = from.data<float>(step + "z");
        delta.a = from.data<float>(step + "a");
        delta.b = from.data<float>(step + "b");
        std::vector<float> y(from.field(step + "convolved").bytes.size() / sizeof(float));
        std::vector<float> w(from.field(step + "advanced").bytes.size() / sizeof(float));
        conv.y = y.data();
        delta.y = w.data();
        run(runtime, std::make_shared<ShortConv>(runtime, StatePlace{0, 0}, conv));
        run(runtime, std::make_shared<DeltaRule>(runtime, StatePlace{1, 0}, delta));
        expect(from, step + "convolved", y.data());
        expect(from, step + "advanced", w.data());
    }
    std::vector<uint8_t> slot(static_cast<size_t>(runtime.states.slot_bytes()));
    for (int64_t i = 0; i < from.integer("slots"); ++i) {
        runtime.states.read_slot(i, slot.data());
        expect_bytes(from, "slot " + std::to_string(i), slot.data());
    }
}

void check_gated_norm(Runtime& runtime, const Case& from) {
    const int64_t dim = from.extent("weight", 0), heads = from.extent("x", 1) / dim;
    std::vector<float> y(from.field("y").bytes.size() / sizeof(float));
    const GatedNormArgs args{from.data<float>("x"), from.data<float>("gate"), from.data<float>("weight"), static_cast<float>(from.real("eps")),
                             activation_of(from),   dim,                      y.data()};
    run(runtime, std::make_shared<GatedNorm>(args, heads, from.extent("x", 0)));
    expect(from, "y", y.data());
}

std::vector<Named> state_cases() { return {{"states", states}, {"gated norm", gated_norm}}; }

}  // namespace ferrum
