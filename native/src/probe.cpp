#include "probe.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>

namespace ferrum {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRuns = 3;
constexpr int64_t kRounds = 300000;  // one to two milliseconds
constexpr int64_t kAhead = 3072;     // bytes of prefetch into the second-level cache, as in the products

double seconds_since(Clock::time_point begun) { return std::chrono::duration<double>(Clock::now() - begun).count(); }

using Words = uint64_t __attribute__((vector_size(16)));

Words load_words(const std::byte* from) {
    Words words;
    std::memcpy(&words, from, sizeof words);
    return words;
}

// Fold all lines of [from, to) into one number. The caller must prevent the compiler from removing the reads.
uint64_t fold_lines(const std::byte* from, const std::byte* to) {
    Words a{}, b{}, c{}, d{};
    for (; from + 64 <= to; from += 64) {
        __builtin_prefetch(from + kAhead, 0, 2);
        a ^= load_words(from);
        b ^= load_words(from + 16);
        c ^= load_words(from + 32);
        d ^= load_words(from + 48);
    }
    const Words all = a ^ b ^ c ^ d;
    return all[0] ^ all[1];
}

#if defined(__x86_64__)

// Twelve chains hide the latency of every such instruction. Registers have names, because compilers spill arrays of
// accumulators and then measure half the rate. This is a macro, because a template cannot take the text of an
// instruction.
#define FERRUM_SPIN(body)                                                                                              \
    asm volatile(".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n vpxor %%xmm\\r,%%xmm\\r,%%xmm\\r\n.endr\n"            \
                 "1:\n.irp r,0,1,2,3,4,5,6,7,8,9,10,11\n" body "\n.endr\n"                                             \
                 "dec %0\njnz 1b\nvzeroupper\n"                                                                        \
                 : "+r"(rounds)                                                                                        \
                 :                                                                                                     \
                 : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",      \
                   "xmm11", "xmm12", "xmm13", "xmm14", "xmm15")

constexpr int kChains = 12;

void spin_f32_avx512(int64_t rounds) { FERRUM_SPIN("vfmadd231ps %%zmm14,%%zmm15,%%zmm\\r"); }
void spin_bf16_avx512(int64_t rounds) { FERRUM_SPIN("vdpbf16ps %%zmm14,%%zmm15,%%zmm\\r"); }
void spin_int8_avx512(int64_t rounds) { FERRUM_SPIN("vpdpbusd %%zmm14,%%zmm15,%%zmm\\r"); }
void spin_int8_avx2_vnni(int64_t rounds) { FERRUM_SPIN("%{vex%} vpdpbusd %%ymm14,%%ymm15,%%ymm\\r"); }
void spin_f32_avx2(int64_t rounds) { FERRUM_SPIN("vfmadd231ps %%ymm14,%%ymm15,%%ymm\\r"); }
// As products of bytes run (native/tier/dots.hpp); int4 is summed in 16 bits.
void spin_int8_avx2(int64_t rounds) {
    FERRUM_SPIN("vpsignb %%ymm14,%%ymm15,%%ymm13\nvpmaddubsw %%ymm13,%%ymm15,%%ymm13\nvpmaddwd %%ymm12,%%ymm13,%%ymm13\n"
                "vpaddd %%ymm13,%%ymm\\r,%%ymm\\r");
}
void spin_int4_avx2(int64_t rounds) { FERRUM_SPIN("vpmaddubsw %%ymm14,%%ymm15,%%ymm13\nvpaddw %%ymm13,%%ymm\\r,%%ymm\\r"); }

#undef FERRUM_SPIN

#elif defined(__aarch64__)

// As above: four instructions a cycle, each of four cycles, need sixteen chains.
#define FERRUM_SPIN(body)                                                                                              \
    asm volatile(".irp r,0,1,2,3,4,5,6,7,16,17,18,19,20,21,22,23,30,31\n movi v\\r\\().4s,#0\n.endr\n"               \
                 "1:\n.irp r,0,1,2,3,4,5,6,7,16,17,18,19,20,21,22,23\n" body "\n.endr\n"                             \
                 "subs %0,%0,#1\nb.ne 1b\n"                                                                           \
                 : "+r"(rounds)                                                                                        \
                 :                                                                                                     \
                 : "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16", "v17", "v18", "v19", "v20", "v21",     \
                   "v22", "v23", "v30", "v31")

constexpr int kChains = 16;

void spin_f32_neon(int64_t rounds) { FERRUM_SPIN("fmla v\\r\\().4s,v30.4s,v31.4s"); }
// sdot of the same registers, by its code: assemblers may not know it without a flag.
void spin_int8_neon_dot(int64_t rounds) { FERRUM_SPIN(".inst 0x4e9f97c0+\\r"); }

#undef FERRUM_SPIN

#endif

using Quad = float __attribute__((vector_size(16)));

constexpr int kQuads = 8;
volatile float sink = 0;

void spin_portable(int64_t rounds) {
    const Quad factor = Quad{} + sink, addend = Quad{} - sink;
    Quad a{}, b{}, c{}, d{}, e{}, f{}, g{}, h{};
    for (; rounds > 0; --rounds) {
        a = a * factor + addend;
        b = b * factor + addend;
        c = c * factor + addend;
        d = d * factor + addend;
        e = e * factor + addend;
        f = f * factor + addend;
        g = g * factor + addend;
        h = h * factor + addend;
    }
    const Quad all = a + b + c + d + e + f + g + h;
    sink = all[0] + all[1] + all[2] + all[3];
}

}  // namespace

Probe::Probe(const std::string& tier_name, int threads, int64_t bytes) : team_(threads), memory_(bytes) {
    // Unwritten memory is one cached page of zeros. On NUMA machines the first writer of a part has it local.
    each_part([](std::byte* from, std::byte* to) { std::memset(from, 1, static_cast<size_t>(to - from)); });
    for (const char* format : {"float32", "bfloat16", "int8", "int4"}) peaks_[format] = {spin_portable, 2.0 * 4 * kQuads};
#if defined(__x86_64__)
    const std::string name = tier(tier_name).name;
    if (name == "avx512" || name == "avx512_vnni") {
        peaks_["float32"] = peaks_["bfloat16"] = {spin_f32_avx512, 2.0 * 16 * kChains};
        peaks_["int8"] = peaks_["int4"] = {spin_int8_avx512, 2.0 * 64 * kChains};
    } else if (name == "avx2" || name == "avx2_vnni") {
        peaks_["float32"] = peaks_["bfloat16"] = {spin_f32_avx2, 2.0 * 8 * kChains};
        peaks_["int8"] = {name == "avx2" ? spin_int8_avx2 : spin_int8_avx2_vnni, 2.0 * 32 * kChains};
        peaks_["int4"] = {name == "avx2" ? spin_int4_avx2 : spin_int8_avx2_vnni, 2.0 * 32 * kChains};
    }
    if (name == "avx512") peaks_["bfloat16"] = {spin_bf16_avx512, 2.0 * 32 * kChains};
#elif defined(__aarch64__)
    const std::string name = tier(tier_name).name;
    if (name != "portable")
        for (auto& [format, peak] : peaks_) peak = {spin_f32_neon, 2.0 * 4 * kChains};
    if (name == "neon_dot") peaks_["int8"] = peaks_["int4"] = {spin_int8_neon_dot, 2.0 * 16 * kChains};
#else
    static_cast<void>(tier(tier_name));  // throws for an unknown tier
#endif
}

void Probe::each_part(void (*work)(std::byte* from, std::byte* to)) {
    struct Call {
        Buffer& memory;
        int64_t threads;
        void (*work)(std::byte* from, std::byte* to);
    } call{memory_, team_.size(), work};
    team_.run(
        [](void* context, int thread) {
            const Call& c = *static_cast<Call*>(context);
            const int64_t size = c.memory.size();
            c.work(c.memory.data() + size * thread / c.threads, c.memory.data() + size * (thread + 1) / c.threads);
        },
        &call);
}

double Probe::read() {
    double best = 0;
    for (int run = 0; run < kRuns; ++run) {
        const auto begun = Clock::now();
        each_part([](std::byte* from, std::byte* to) {
            const volatile uint64_t folded = fold_lines(from, to);
            static_cast<void>(folded);
        });
        best = std::max(best, static_cast<double>(memory_.size()) / seconds_since(begun));
    }
    return best;
}

double Probe::peak(const std::string& format) {
    const auto found = peaks_.find(format);
    if (found == peaks_.end()) throw std::invalid_argument("no peak rate for format " + format);
    Peak& peak = found->second;
    double best = 0;
    for (int run = 0; run < kRuns; ++run) {
        const auto begun = Clock::now();
        team_.run([](void* context, int) { static_cast<const Peak*>(context)->spin(kRounds); }, &peak);
        best = std::max(best, peak.operations * kRounds * team_.size() / seconds_since(begun));
    }
    return best;
}

std::vector<double> time_all(Runtime& runtime, const std::vector<std::shared_ptr<Operation>>& operations) {
    struct Call {
        Runtime& runtime;
        const std::vector<std::shared_ptr<Operation>>& operations;
        std::vector<double> seconds;
    } call{runtime, operations, std::vector<double>(operations.size())};
    const std::lock_guard<std::mutex> lock(runtime.running);
    for (const auto& operation : operations) operation->prepare();
    runtime.team.run(
        [](void* context, int thread) {
            Call& c = *static_cast<Call*>(context);
            auto begun = Clock::now();
            for (size_t i = 0; i < c.operations.size(); ++i) {
                c.operations[i]->run(c.runtime, thread);
                c.runtime.team.barrier();
                if (thread != 0) continue;
                const auto ended = Clock::now();
                c.seconds[i] = std::chrono::duration<double>(ended - begun).count();
                begun = ended;
            }
        },
        &call);
    return call.seconds;
}

}  // namespace ferrum
