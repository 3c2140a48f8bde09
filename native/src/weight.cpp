#include "weight.hpp"

#include <cstring>

namespace ferrum {

namespace {

constexpr int64_t kScaleBytes = kPanel * 2;

int64_t depth_of(Format format) { return format == Format::bf16 ? 2 : 1; }
int64_t code_bytes(Format format) { return kPanel * kGroup / (format == Format::int4 ? 2 : 1); }
int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Where element (lane, k) of a panel of floats lies, in elements.
int64_t place(int64_t depth, int64_t lane, int64_t k) { return (k / depth * kPanel + lane) * depth + k % depth; }

// Where element k of a group of 32 lies: its byte, and for int4 by how much it is shifted in it.
int64_t code_byte(Format format, int64_t lane, int64_t k) {
    const int64_t row = format == Format::int4 ? k / 8 : k / 4;
    return (row * kPanel + lane) * 4 + k % 4;
}
int code_shift(Format format, int64_t k) { return format == Format::int4 && k / 4 % 2 == 1 ? 4 : 0; }

float from_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

float half_to_float(uint16_t bits) {
    const uint32_t sign = (bits & 0x8000u) << 16, magnitude = (bits & 0x7fffu) << 13;
    if ((bits & 0x7c00u) == 0x7c00u) return from_bits(sign | magnitude | 0x7f800000u);
    const float scaled = from_bits(magnitude) * 5.192296858534828e33f;  // 2^112: the two biases differ by that
    return sign != 0 ? -scaled : scaled;
}

// Element `index` of floats of the format.
float read_float(const std::byte* floats, Format format, int64_t index) {
    if (format == Format::f32) return reinterpret_cast<const float*>(floats)[index];
    const uint16_t bits = reinterpret_cast<const uint16_t*>(floats)[index];
    return format == Format::bf16 ? from_bits(static_cast<uint32_t>(bits) << 16) : half_to_float(bits);
}

template <class T>
void pack_panel(const T* matrix, int64_t rows, int64_t inputs, int64_t depth, T* panel) {
    constexpr int64_t kTile = 64;  // a few lines of every row at a time: reads and writes both stay in the first-level cache
    for (int64_t begin = 0; begin < inputs; begin += kTile)
        for (int64_t lane = 0; lane < rows; ++lane)
            for (int64_t k = begin; k < least(begin + kTile, inputs); ++k)
                panel[place(depth, lane, k)] = matrix[lane * inputs + k];
}

template <class T>
void pack_panels(const Weight& w, const void* matrix, int64_t begin, int64_t end, std::byte* memory) {
    for (int64_t panel = begin; panel < end; ++panel) {
        const int64_t first = panel * kPanel, rows = least(kPanel, w.outputs() - first);
        T* to = reinterpret_cast<T*>(memory + panel * w.panel_bytes());
        pack_panel(static_cast<const T*>(matrix) + first * w.inputs(), rows, w.inputs(), depth_of(w.format()), to);
    }
}

}  // namespace

int64_t item_bytes(Format format) { return format == Format::f32 ? 4 : 2; }

int64_t groups_of(int64_t inputs) { return (inputs + kGroup - 1) / kGroup; }

Weight::Weight(Format format, int64_t outputs, int64_t inputs, Heap& heap)
    : format_(format), outputs_(outputs), inputs_(inputs), memory_(heap.take(nbytes())) {}

int64_t Weight::panel_bytes() const {
    if (is_grouped(format_)) return groups_of(inputs_) * (code_bytes(format_) + kScaleBytes);
    const int64_t depth = depth_of(format_);
    return (inputs_ + depth - 1) / depth * depth * kPanel * item_bytes(format_);
}

void Weight::pack(const void* matrix, int64_t panel_begin, int64_t panel_end) {
    if (format_ == Format::f32)
        pack_panels<float>(*this, matrix, panel_begin, panel_end, memory_.get());
    else
        pack_panels<uint16_t>(*this, matrix, panel_begin, panel_end, memory_.get());
}

void Weight::pack_codes(const uint8_t* codes, const uint16_t* scales, int64_t panel_begin, int64_t panel_end) {
    const int64_t groups = groups_of(inputs_), bytes = code_bytes(format_);
    const bool nibbles = format_ == Format::int4;
    for (int64_t output = panel_begin * kPanel; output < least(panel_end * kPanel, outputs_); ++output) {
        const int64_t lane = output % kPanel;
        auto* at = reinterpret_cast<uint8_t*>(memory_.get() + output / kPanel * panel_bytes());
        for (int64_t group = output * groups; group < (output + 1) * groups; ++group, at += bytes + kScaleBytes) {
            for (int64_t k = 0; k < kGroup; ++k) {
                const int64_t index = group * kGroup + k;
                const int code = nibbles ? codes[index / 2] >> (index % 2 * 4) & 15 : codes[index] ^ 128;
                uint8_t& byte = at[code_byte(format_, lane, k)];
                byte = static_cast<uint8_t>(byte | code << code_shift(format_, k));
            }
            std::memcpy(at + bytes + lane * 2, scales + group, 2);
        }
    }
}

void Weight::row(int64_t output, float* to) const {
    const int64_t lane = output % kPanel;
    const std::byte* panel = memory_.get() + output / kPanel * panel_bytes();
    if (!is_grouped(format_)) {
        for (int64_t k = 0; k < inputs_; ++k) to[k] = read_float(panel, format_, place(depth_of(format_), lane, k));
        return;
    }
    const int64_t bytes = code_bytes(format_);
    const int offset = format_ == Format::int4 ? 8 : 128, mask = format_ == Format::int4 ? 15 : 255;
    for (int64_t k = 0; k < inputs_; ++k) {
        const auto* group = reinterpret_cast<const uint8_t*>(panel) + k / kGroup * (bytes + kScaleBytes);
        uint16_t scale;
        std::memcpy(&scale, group + bytes + lane * 2, sizeof scale);
        const int stored = group[code_byte(format_, lane, k % kGroup)] >> code_shift(format_, k % kGroup) & mask;
        to[k] = static_cast<float>(stored - offset) * half_to_float(scale);
    }
}

}  // namespace ferrum
