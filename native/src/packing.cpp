#include "packing.hpp"

#include <atomic>
#include <cstring>
#include <mutex>

#include "block_types.hpp"
#include "format_names.hpp"

namespace nb = nanobind;

namespace ferrum {

namespace {

constexpr uintptr_t kLine = 64;

MatrixArgs matrix_of(const std::string& format, const Matrix& matrix) {
    require(matrix.ndim() == 2 && block_format(format_of(format)).inputs == 0, "expected a matrix of floats");
    const MatrixArgs args{format_of(format), static_cast<const std::byte*>(matrix.data()), static_cast<int64_t>(matrix.shape(0)),
                          static_cast<int64_t>(matrix.shape(1))};
    require(static_cast<int64_t>(matrix.itemsize()) == item_bytes(args.format), "element size does not match the format");
    return args;
}

// Call work(begin, end) for a contiguous part of `count` pieces on every thread of the team.
template <class Work>
void split(Runtime& runtime, int64_t count, Work work) {
    const nb::gil_scoped_release released;
    const std::lock_guard<std::mutex> lock(runtime.running);
    struct Call {
        Work& work;
        int64_t count, threads;  // set under the lock, because another thread may change the team's size before
    } call{work, count, runtime.team.size()};
    runtime.team.run_apart(
        [](void* context, int thread) {
            const Call& c = *static_cast<Call*>(context);
            c.work(c.count * thread / c.threads, c.count * (thread + 1) / c.threads);
        },
        &call);
}

// Make panels on all threads; each makes a contiguous part: make(panel_begin, panel_end, panels).
template <class Make>
Bytes made(Runtime& runtime, Format format, const MatrixArgs& m, Make make) {
    const int64_t count = panel_count(m.outputs), bytes = count * panel_bytes(format, m.inputs);
    auto* piece = new std::shared_ptr<std::byte>(runtime.heap.take(bytes));
    const nb::capsule owner(piece, [](void* p) noexcept { delete static_cast<std::shared_ptr<std::byte>*>(p); });
    split(runtime, count, [&](int64_t begin, int64_t end) { make(begin, end, piece->get()); });
    return Bytes(piece->get(), {static_cast<size_t>(bytes)}, owner);
}

}  // namespace

Bytes pack(Runtime& runtime, const std::string& format, const Matrix& matrix) {
    const MatrixArgs m = matrix_of(format, matrix);
    return made(runtime, m.format, m,
                [&](int64_t begin, int64_t end, std::byte* panels) { runtime.kernels.pack_panels(m, begin, end, panels); });
}

Bytes pack_blocks(Runtime& runtime, const std::string& type, const In<uint8_t>& blocks) {
    require(blocks.ndim() == 3, "expected rows of blocks");
    const auto rows = static_cast<int64_t>(blocks.shape(0)), count = static_cast<int64_t>(blocks.shape(1));
    const BlockType& from = block_type_of(type);
    require(static_cast<int64_t>(blocks.shape(2)) == from.bytes, "block size does not match the type");
    const MatrixArgs m{from.format, reinterpret_cast<const std::byte*>(blocks.data()), rows, count * block_format(from.format).inputs};
    return made(runtime, from.format, m,
                [&](int64_t begin, int64_t end, std::byte* panels) { lay_out_blocks(from, m, begin, end, panels); });
}

std::pair<Bytes, int> quantize(Runtime& runtime, const std::string& from, const Matrix& matrix, const std::string& to,
                               const In<float>& importance, bool thorough) {
    const MatrixArgs m = matrix_of(from, matrix);
    const Format format = format_of(to);
    const BlockFormat kind = block_format(format);
    const int64_t block = kind.inputs;
    require(block != 0 && kind.table == nullptr && kind.file_bytes == 0 && kind.scales != Scales::floats,
            "expected a format of blocks that has a quantiser");
    const auto given = static_cast<int64_t>(importance.size());
    require(given == 0 || given == (m.inputs + block - 1) / block * block, "expected the importance of each input");
    const QuantizeArgs args{format, given == 0 ? nullptr : importance.data(), thorough};
    std::atomic<int> worst{0};
    Bytes panels = made(runtime, format, m, [&](int64_t begin, int64_t end, std::byte* to_panels) {
        const int found = static_cast<int>(runtime.kernels.quantize(m, args, begin, end, to_panels));
        for (int known = worst; found > known && !worst.compare_exchange_weak(known, found);) {
        }
    });
    return {std::move(panels), worst};
}

std::shared_ptr<Weight> over_panels(Runtime& runtime, const std::string& format, const In<uint8_t>& panels, int64_t outputs, int64_t inputs) {
    const Format kind = format_of(format);
    require(outputs >= 0 && inputs >= 0, "negative matrix size");
    require(static_cast<int64_t>(panels.size()) == panel_count(outputs) * panel_bytes(kind, inputs), "panel bytes do not match the matrix size");
    const auto* data = reinterpret_cast<const std::byte*>(panels.data());
    if (reinterpret_cast<uintptr_t>(data) % kLine == 0)
        return std::make_shared<Weight>(kind, outputs, inputs, data, std::make_shared<In<uint8_t>>(panels));
    const std::shared_ptr<std::byte> copy = runtime.heap.take(static_cast<int64_t>(panels.size()));
    std::memcpy(copy.get(), data, panels.size());
    return std::make_shared<Weight>(kind, outputs, inputs, copy.get(), copy);
}

void sum_pages(Runtime& runtime, const In<uint8_t>& bytes, const Out<uint64_t>& sums) {
    const auto size = static_cast<int64_t>(bytes.size()), pages = (size + kSumPage - 1) / kSumPage;
    require(static_cast<int64_t>(sums.size()) == pages, "expected one sum per page");
    const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
    uint64_t* to = sums.data();
    const auto sum = runtime.kernels.page_sums;
    split(runtime, pages, [=](int64_t begin, int64_t end) { sum(data, size, begin, end, to + begin); });
}

}  // namespace ferrum
