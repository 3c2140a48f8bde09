// Poisoning of unused memory inside a buffer in builds with the address sanitizer (FERRUM_SANITIZE in CMakeLists.txt),
// so that kernels that touch it fail. Other builds do nothing here.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace ferrum {

inline void poison([[maybe_unused]] const std::byte* begin, [[maybe_unused]] const std::byte* end) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_poison_memory_region(begin, static_cast<size_t>(end - begin));
#endif
}

inline void unpoison([[maybe_unused]] const std::byte* begin, [[maybe_unused]] const std::byte* end) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(begin, static_cast<size_t>(end - begin));
#endif
}

}  // namespace ferrum
