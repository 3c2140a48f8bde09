// The AVX-VNNI instruction of the kernels in plain C++: FERRUM_VNNI_STAND_IN tests its tier on any AVX2 processor.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

static inline __m256i stand_in_for_dpbusd(__m256i total, __m256i weights, __m256i inputs) {
    int32_t sums[8];
    uint8_t w[32];
    int8_t x[32];
    std::memcpy(sums, &total, sizeof sums);
    std::memcpy(w, &weights, sizeof w);
    std::memcpy(x, &inputs, sizeof x);
    for (int byte = 0; byte < 32; ++byte) sums[byte / 4] += w[byte] * x[byte];
    std::memcpy(&total, sums, sizeof total);
    return total;
}

#define _mm256_dpbusd_avx_epi32 stand_in_for_dpbusd
#define __AVXVNNI__ 1
