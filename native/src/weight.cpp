#include "weight.hpp"

#include <cstring>

namespace ferrum {

namespace {

int64_t depth_of(Format format) { return format == Format::bf16 ? 2 : 1; }

int64_t panel_items(Format format, int64_t inputs) {
    const int64_t depth = depth_of(format);
    return (inputs + depth - 1) / depth * depth * kPanel;
}

// Where element (lane, k) of a panel lies, in elements.
int64_t place(int64_t depth, int64_t lane, int64_t k) { return (k / depth * kPanel + lane) * depth + k % depth; }

template <class T>
void pack_panel(const T* matrix, int64_t rows, int64_t inputs, int64_t depth, T* panel) {
    constexpr int64_t kTile = 64;  // a few lines of every row at a time: reads and writes both stay in the first-level cache
    for (int64_t begin = 0; begin < inputs; begin += kTile) {
        const int64_t end = begin + kTile < inputs ? begin + kTile : inputs;
        for (int64_t lane = 0; lane < rows; ++lane)
            for (int64_t k = begin; k < end; ++k) panel[place(depth, lane, k)] = matrix[lane * inputs + k];
    }
}

template <class T>
void pack_panels(const Weight& w, const void* matrix, int64_t begin, int64_t end, std::byte* memory) {
    const int64_t items = panel_items(w.format(), w.inputs());
    for (int64_t panel = begin; panel < end; ++panel) {
        const int64_t first = panel * kPanel, rows = first + kPanel < w.outputs() ? kPanel : w.outputs() - first;
        const T* from = static_cast<const T*>(matrix) + first * w.inputs();
        pack_panel(from, rows, w.inputs(), depth_of(w.format()), reinterpret_cast<T*>(memory) + panel * items);
    }
}

float from_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

float widen(float x, Format) { return x; }

float widen(uint16_t bits, Format format) {
    if (format == Format::bf16) return from_bits(static_cast<uint32_t>(bits) << 16);
    const uint32_t sign = (bits & 0x8000u) << 16, magnitude = (bits & 0x7fffu) << 13;
    if ((bits & 0x7c00u) == 0x7c00u) return from_bits(sign | magnitude | 0x7f800000u);
    const float scaled = from_bits(magnitude) * 5.192296858534828e33f;  // 2^112: the two biases differ by that
    return sign != 0 ? -scaled : scaled;
}

template <class T>
void read_row(const Weight& w, int64_t output, float* to) {
    const int64_t depth = depth_of(w.format());
    const T* panel = reinterpret_cast<const T*>(w.data()) + output / kPanel * panel_items(w.format(), w.inputs());
    for (int64_t k = 0; k < w.inputs(); ++k) to[k] = widen(panel[place(depth, output % kPanel, k)], w.format());
}

}  // namespace

int64_t item_bytes(Format format) { return format == Format::f32 ? 4 : 2; }

Weight::Weight(Format format, int64_t outputs, int64_t inputs)
    : format_(format), outputs_(outputs), inputs_(inputs),
      memory_(panels() * panel_items(format, inputs) * item_bytes(format)) {}

void Weight::pack(const void* matrix, int64_t panel_begin, int64_t panel_end) {
    if (format_ == Format::f32)
        pack_panels<float>(*this, matrix, panel_begin, panel_end, memory_.data());
    else
        pack_panels<uint16_t>(*this, matrix, panel_begin, panel_end, memory_.data());
}

void Weight::row(int64_t output, float* to) const {
    if (format_ == Format::f32)
        read_row<float>(*this, output, to);
    else
        read_row<uint16_t>(*this, output, to);
}

}  // namespace ferrum
