// Floating-point arithmetic as IEEE 754 has it by default: rounded to nearest, with subnormal numbers.
//
// A library built for speed alone may tell the processor to take subnormal numbers for zeros, and does so for the threads that
// load it and those they start. Bits would depend on which thread computes what, and on what else a program loads.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ferrum {

// For this thread, for as long as it lives.
class FloatMode {
public:
    FloatMode() : before_(read()) { write(kDefault); }
    ~FloatMode() { write(before_); }
    FloatMode(const FloatMode&) = delete;
    FloatMode& operator=(const FloatMode&) = delete;

private:
#if defined(__x86_64__)
    using Word = uint32_t;
    static constexpr Word kDefault = 0x1f80;  // no exception is a trap
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
