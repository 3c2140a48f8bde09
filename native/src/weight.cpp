#include "weight.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "block_format.hpp"

namespace ferrum {

namespace {

int64_t depth_of(Format format) { return format == Format::bf16 ? 2 : 1; }

float from_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

float half_to_float(uint16_t bits) {
    const uint32_t sign = (bits & 0x8000u) << 16, magnitude = (bits & 0x7fffu) << 13;
    if ((bits & 0x7c00u) == 0x7c00u) return from_bits(sign | magnitude | 0x7f800000u);
    const float scaled = from_bits(magnitude) * 5.192296858534828e33f;  // 2^112, the difference of the two biases
    return sign != 0 ? -scaled : scaled;
}

// Element `index` of a float format.
float read_float(const std::byte* floats, Format format, int64_t index) {
    if (format == Format::f32) return reinterpret_cast<const float*>(floats)[index];
    const uint16_t bits = reinterpret_cast<const uint16_t*>(floats)[index];
    return format == Format::bf16 ? from_bits(static_cast<uint32_t>(bits) << 16) : half_to_float(bits);
}

// A number of FP8 (E4M3); NaN counts as 480.
float float8(int code) {
    const float scaled = from_bits(static_cast<uint32_t>(code & 127) << 20) * 0x1p120f;  // the difference of the two biases
    return (code & 128) != 0 ? -scaled : scaled;
}

uint16_t read_u16(const std::byte* numbers, int64_t index) {
    uint16_t value;
    std::memcpy(&value, numbers + 2 * index, sizeof value);
    return value;
}

// The stored code of input k of a group.
int stored_code(const uint8_t* rows, const BlockFormat& f, int64_t lane, int64_t k) {
    const auto at = [&](int64_t row) { return rows[(row * kPanel + lane) * 4 + k % 4]; };
    if (f.bits == 8) return at(k / 4);
    const int low = (k / 4 % 2 == 1 ? at(k / 8) >> 4 : at(k / 8)) & 15, width = f.bits - 4;
    if (width == 0) return low;
    return low | (at(f.code_rows()) >> (k / 4 * width) & ((1 << width) - 1)) << 4;
}

void float8_row(const std::byte* block, const BlockFormat& f, int64_t lane, int64_t count, float* to) {
    const float scale = reinterpret_cast<const float*>(block)[lane];
    const auto* rows = reinterpret_cast<const uint8_t*>(block) + f.header_bytes();
    constexpr int64_t kPlaces[] = {0, 2, 1, 3};  // of four inputs in their word
    for (int64_t k = 0; k < count; ++k) to[k] = float8(stored_code(rows, f, lane, k / 4 * 4 + kPlaces[k % 4])) * scale;
}

void block_row(const std::byte* block, const BlockFormat& f, int64_t lane, int64_t count, float* to) {
    const auto half = [&](int64_t index) {
        const uint16_t bits = read_u16(block, index);
        return f.wide_range ? from_bits(static_cast<uint32_t>(bits) << 16) : half_to_float(bits);
    };
    const auto byte = [&](int64_t at) { return static_cast<uint8_t>(block[at + lane]); };
    const float d = half(lane), m = f.minima ? half(kPanel + lane) : 0.0f;
    for (int64_t k = 0; k < count; ++k) {
        const int64_t group = k / f.group, sub = f.sub_at() + group * kPanel;
        const auto* rows = reinterpret_cast<const uint8_t*>(block) + f.header_bytes() + group * f.code_bytes();
        const int code = stored_code(rows, f, lane, k % f.group), number = f.table != nullptr ? f.table[code] : code - f.offset;
        float scale = d, minimum = m;
        if (f.scales == Scales::unsigned_subs) {
            scale = d * static_cast<float>(byte(sub));
            minimum = -(m * static_cast<float>(byte(f.sub_m_at() + group * kPanel)));
        } else if (f.scales == Scales::signed_subs) {
            scale = d * static_cast<float>(static_cast<int8_t>(byte(sub)));
        }
        to[k] = static_cast<float>(number) * scale;
        if (f.minima) to[k] += minimum;
    }
}

}  // namespace

int64_t panel_count(int64_t outputs) { return (outputs + kPanel - 1) / kPanel; }

int64_t panel_bytes(Format format, int64_t inputs) {
    if (const BlockFormat f = block_format(format); f.inputs != 0)
        return f.panel_header() + (inputs + f.inputs - 1) / f.inputs * f.bytes();
    const int64_t depth = depth_of(format);
    return (inputs + depth - 1) / depth * depth * kPanel * item_bytes(format);
}

Weight::Weight(Format format, int64_t outputs, int64_t inputs, const std::byte* panels, std::shared_ptr<const void> owner,
               InputOrder order, int64_t first)
    : format_(format), outputs_(outputs), inputs_(inputs), data_(panels), owner_(std::move(owner)), order_(std::move(order)), first_(first) {}

int64_t Weight::nbytes() const {
    return panels() * panel_bytes(format_, inputs_) + orders() * inputs_ * static_cast<int64_t>(sizeof(int32_t));
}

int64_t Weight::orders() const {
    return order_.numbers == nullptr ? 0 : (first_ % order_.outputs + outputs_ + order_.outputs - 1) / order_.outputs;
}

const int32_t* Weight::order(int64_t output) const {
    return order_.numbers == nullptr ? nullptr : order_.numbers->data() + (first_ + output) / order_.outputs * inputs_;
}

bool Weight::packs_like(const Weight& other) const {
    if (format_ != other.format_ || inputs_ != other.inputs_ || orders() != other.orders()) return false;
    const int32_t *ours = order(), *theirs = other.order();
    return ours == theirs || std::equal(ours, ours + orders() * inputs_, theirs);
}

std::shared_ptr<Weight> Weight::part(int64_t begin, int64_t end) const {
    const std::byte* from = data_ == nullptr ? nullptr : data_ + begin / kPanel * panel_bytes(format_, inputs_);
    return std::make_shared<Weight>(format_, end - begin, inputs_, from, owner_, order_, first_ + begin);
}

std::shared_ptr<Weight> Weight::ordered(InputOrder order) const {
    return std::make_shared<Weight>(format_, outputs_, inputs_, data_, owner_, std::move(order));
}

void Weight::row(const KernelTable& kernels, int64_t output, float* to) const {
    const int32_t* own = order(output);
    if (own == nullptr) return stored_row(kernels, output, to);
    std::vector<float> columns(static_cast<size_t>(inputs_));
    stored_row(kernels, output, columns.data());
    for (int64_t k = 0; k < inputs_; ++k) to[own[k]] = columns[static_cast<size_t>(k)];
}

void Weight::stored_row(const KernelTable& kernels, int64_t output, float* to) const {
    const int64_t lane = output % kPanel;
    const std::byte* panel = data_ + output / kPanel * panel_bytes(format_, inputs_);
    if (const BlockFormat f = block_format(format_); f.inputs != 0) {
        if (f.file_bytes != 0) return kernels.read_row(format_, panel, lane, inputs_, to);
        const auto read = f.scales == Scales::floats ? float8_row : block_row;
        for (int64_t k = 0; k < inputs_; k += f.inputs, panel += f.bytes())
            read(panel, f, lane, std::min(f.inputs, inputs_ - k), to + k);
        return;
    }
    const int64_t depth = depth_of(format_);
    for (int64_t k = 0; k < inputs_; ++k) to[k] = read_float(panel, format_, (k / depth * kPanel + lane) * depth + k % depth);
}

}  // namespace ferrum
