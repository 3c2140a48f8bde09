#include "tiers.hpp"

#include <stdexcept>

#if defined(FERRUM_X86)
#include <cpuid.h>
#elif defined(FERRUM_ARM64) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(FERRUM_ARM64) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace ferrum {

#if defined(FERRUM_X86)
namespace avx512 {
extern const KernelTable kTable;
}
namespace avx512_vnni {
extern const KernelTable kTable;
}
#if defined(FERRUM_AVX2_VNNI)
namespace avx2_vnni {
extern const KernelTable kTable;
}
#endif
namespace avx2 {
extern const KernelTable kTable;
}
#endif
#if defined(FERRUM_ARM64)
namespace neon_dot {
extern const KernelTable kTable;
}
namespace neon {
extern const KernelTable kTable;
}
#endif
namespace portable {
extern const KernelTable kTable;
}

namespace {

#if defined(FERRUM_X86)
bool is_amd() {
    __builtin_cpu_init();
    return __builtin_cpu_is("amd");
}
#endif

#if defined(FERRUM_AVX2_VNNI)
// Some compilers know the instruction but have no name for it in their builtin.
bool has_avx_vnni() {
#if defined(FERRUM_VNNI_STAND_IN)
    return true;
#else
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax >> 4 & 1) != 0;
#endif
}
#endif

#if defined(FERRUM_ARM64)
// Whether the processor has FEAT_DotProd.
bool has_dot_products() {
#if defined(__APPLE__)
    int has = 0;
    size_t size = sizeof has;
    return sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &size, nullptr, 0) == 0 && has != 0;
#elif defined(__linux__)
    constexpr unsigned long kDotProducts = 1ul << 20;  // HWCAP_ASIMDDP, which old headers lack
    return (getauxval(AT_HWCAP) & kDotProducts) != 0;
#else
    return false;
#endif
}
#endif

}  // namespace

std::vector<const KernelTable*> available_tiers() {
    std::vector<const KernelTable*> tiers;
#if defined(FERRUM_X86)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni")) {
        tiers.push_back(&avx512_vnni::kTable);
        // The bfloat16 dot products of AMD are twice as fast as fused multiply-adds, those of Intel half as fast (on
        // Emerald Rapids a prefill takes 1.6 times as long with them).
        if (__builtin_cpu_supports("avx512bf16")) tiers.insert(is_amd() ? tiers.begin() : tiers.end(), &avx512::kTable);
    }
    // Every processor with AVX2 and FMA has F16C; this builtin knows its name only since GCC 11.
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
#if defined(FERRUM_AVX2_VNNI)
        if (has_avx_vnni()) tiers.push_back(&avx2_vnni::kTable);
#endif
        tiers.push_back(&avx2::kTable);
    }
#endif
#if defined(FERRUM_ARM64)
    if (has_dot_products()) tiers.push_back(&neon_dot::kTable);
    tiers.push_back(&neon::kTable);
#endif
    tiers.push_back(&portable::kTable);
    return tiers;
}

const KernelTable& tier(const std::string& name) {
    std::string known = "auto";
    for (const KernelTable* table : available_tiers()) {
        if (name == "auto" || name == table->name) return *table;
        known += std::string(", ") + table->name;
    }
    throw std::invalid_argument("this machine has no instruction tier \"" + name + "\"; it has " + known);
}

}  // namespace ferrum
