// Memory inside a buffer that belongs to nobody, told to the address sanitizer where the library is built with it
// (FERRUM_SANITIZE in CMakeLists.txt): a kernel that touches it is caught. Other builds know nothing of this.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace ferrum {

inline void forbid([[maybe_unused]] const std::byte* begin, [[maybe_unused]] const std::byte* end) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_poison_memory_region(begin, static_cast<size_t>(end - begin));
#endif
}

inline void permit([[maybe_unused]] const std::byte* begin, [[maybe_unused]] const std::byte* end) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(begin, static_cast<size_t>(end - begin));
#endif
}

}  // namespace ferrum
