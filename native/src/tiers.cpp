#include "tiers.hpp"

#include <stdexcept>

namespace ferrum {

#if defined(FERRUM_X86)
namespace avx512 {
extern const KernelTable kTable;
}
namespace avx2 {
extern const KernelTable kTable;
}
#endif
namespace portable {
extern const KernelTable kTable;
}

std::vector<const KernelTable*> available_tiers() {
    std::vector<const KernelTable*> tiers;
#if defined(FERRUM_X86)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16"))
        tiers.push_back(&avx512::kTable);
    // Every processor with AVX2 and FMA has F16C; compilers know no name for it in this builtin before GCC 11.
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) tiers.push_back(&avx2::kTable);
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
