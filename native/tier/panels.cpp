// Packing of floats into panels, unchanged (src/weight.hpp has the layouts).
#include "tier.hpp"
#include "transpose.hpp"

namespace ferrum::FERRUM_TIER {

namespace {

// kLanes words of a row with `left` more bytes; zeros after its end.
vf load_words(const std::byte* from, int64_t left) {
    vf words{};
    std::memcpy(&words, from, static_cast<size_t>(most(0, least(left, 4 * kLanes))));
    return words;
}

// A word of each of kLanes outputs: one input of f32, two of bf16 (kept together in a panel), two of f16 (separated).
void store_column(Format format, vf words, int64_t word, int64_t lane, int64_t inputs, std::byte* panel) {
    if (format != Format::f16) return store(panel + (word * kPanel + lane) * 4, words);
    const vu pairs = (vu)words;
    store(panel + (2 * word * kPanel + lane) * 2, __builtin_convertvector(pairs & 0xffffu, vh));
    if (2 * word + 1 < inputs) store(panel + ((2 * word + 1) * kPanel + lane) * 2, __builtin_convertvector(pairs >> 16, vh));
}

}  // namespace

void pack_panels(const MatrixArgs& m, int64_t panel_begin, int64_t panel_end, std::byte* panels) {
    const int64_t row_bytes = m.inputs * item_bytes(m.format), words = ceil_divide(row_bytes, 4);
    const int64_t panel_bytes = m.format == Format::f16 ? row_bytes * kPanel : words * 4 * kPanel;
    for (int64_t panel = panel_begin; panel < panel_end; ++panel)
        for (int64_t word = 0; word < words; word += kLanes)
            for (int64_t lane = 0; lane < kPanel; lane += kLanes) {
                const std::byte* from = m.values + (panel * kPanel + lane) * row_bytes + word * 4;
                vf columns[kLanes];
                turn_rows(m.outputs - panel * kPanel - lane, columns,
                          [&](int64_t row) { return load_words(from + row * row_bytes, row_bytes - word * 4); });
                for (int64_t i = 0; i < least(kLanes, words - word); ++i)
                    store_column(m.format, columns[i], word + i, lane, m.inputs, panels + panel * panel_bytes);
            }
}

}  // namespace ferrum::FERRUM_TIER
