// A preloaded library that counts allocations of a process on all threads: malloc and its relatives, operator new, and
// mmap. For glibc, because it calls the original functions by their internal names.
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>

extern "C" {

void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* from, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);

static std::atomic<bool> counting{false};
static std::atomic<long> counted{0};

static void count() {
    if (counting.load(std::memory_order_relaxed)) counted.fetch_add(1, std::memory_order_relaxed);
}

// Count from 0 until end_counting.
void begin_counting() {
    counted = 0;
    counting = true;
}

long end_counting() {
    counting = false;
    return counted;
}

void* malloc(size_t bytes) noexcept {
    count();
    return __libc_malloc(bytes);
}

void* calloc(size_t number, size_t bytes) noexcept {
    count();
    return __libc_calloc(number, bytes);
}

void* realloc(void* from, size_t bytes) noexcept {
    count();
    return __libc_realloc(from, bytes);
}

void* aligned_alloc(size_t alignment, size_t bytes) noexcept {
    count();
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void** to, size_t alignment, size_t bytes) noexcept {
    count();
    *to = __libc_memalign(alignment, bytes);
    return *to == nullptr ? ENOMEM : 0;
}

void* mmap(void* address, size_t bytes, int protection, int flags, int file, off_t offset) noexcept {
    count();
    return reinterpret_cast<void*>(syscall(SYS_mmap, address, bytes, protection, flags, file, offset));
}

}  // extern "C"
