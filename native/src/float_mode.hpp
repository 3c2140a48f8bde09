// The default floating-point mode of IEEE 754: round to nearest, with subnormal numbers.
//
// Some libraries set the processor to flush subnormal numbers to zero, in the threads that load them and their child
// threads. Results would then depend on the thread and on other loaded libraries.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ferrum {

// Set the mode of this thread for the lifetime of the object.
class FloatMode {
public:
    FloatMode() : before_(read()) { write(kDefault); }
    ~FloatMode() { write(before_); }
    FloatMode(const FloatMode&) = delete;
    FloatMode& operator=(const FloatMode&) = delete;

private:
#if defined(__x86_64__)
    using Word = uint32_t;
    static constexpr Word kDefault = 0x1f80;  // no exception traps
    static Word read() { return _mm_getcsr(); }
    static void write(Word word) { _mm_setcsr(word); }
#elif defined(__aarch64__)
    using Word = uint64_t;
    static constexpr Word kDefault = 0;
    static Word read() {
        Word word;
        asm volatile("mrs %0, fpcr" : "=r"(word));
        return word;
    }
    static void write(Word word) { asm volatile("msr fpcr, %0" : : "r"(word)); }
#else
    using Word = int;
    static constexpr Word kDefault = 0;
    static Word read() { return 0; }
    static void write(Word) {}
#endif

    const Word before_;
};

}  // namespace ferrum
