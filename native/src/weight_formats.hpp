// The formats of weights, one line each: the library's enumeration, names, sizes and products follow from these lists.
// BLOCK_FORMATS in quant/block_format.py has the same blocks; tests/house/test_one_list.py compares both.
#pragma once

namespace ferrum {

// Floats: an enumerator, the name in Python, the elements of its tiles (tier/products.hpp).
#define FERRUM_FLOAT_FORMATS(X)   \
    X(f32, "float32", F32)        \
    X(bf16, "bfloat16", Bf16)     \
    X(f16, "float16", F16)

// Blocks: an enumerator, which is also the name in Python, and the members of BlockFormat (block_format.hpp): inputs,
// group, bits, offset, table, minima, scales, wide range, the bytes of a block that panels keep as they are in a file, and
// whether outputs have scales.
#define FERRUM_BLOCK_FORMATS(X)                                           \
    X(q8_0, 32, 32, 8, 128, nullptr, false, Scales::whole, false)         \
    X(q4_0, 32, 32, 4, 8, nullptr, false, Scales::whole, false)           \
    X(q4_1, 32, 32, 4, 0, nullptr, true, Scales::whole, false)            \
    X(q5_0, 32, 32, 5, 16, nullptr, false, Scales::whole, false)          \
    X(q5_1, 32, 32, 5, 0, nullptr, true, Scales::whole, false)            \
    X(q4_k, 256, 32, 4, 0, nullptr, true, Scales::unsigned_subs, false)   \
    X(q5_k, 256, 32, 5, 0, nullptr, true, Scales::unsigned_subs, false)   \
    X(q6_k, 256, 16, 6, 32, nullptr, false, Scales::signed_subs, false)   \
    X(iq4_nl, 32, 32, 4, 0, kIq4, false, Scales::whole, false)            \
    X(iq4_xs, 256, 32, 4, 0, kIq4, false, Scales::signed_subs, false)     \
    X(mxfp4, 32, 32, 4, 0, kFp4, false, Scales::whole, true)              \
    X(q4_128, 128, 32, 4, 8, nullptr, false, Scales::whole, false)        \
    X(q4_m64, 64, 32, 4, 0, nullptr, true, Scales::whole, false)          \
    X(q4_m128, 128, 32, 4, 0, nullptr, true, Scales::whole, false)        \
    X(fp8, 128, 128, 8, 0, nullptr, false, Scales::floats, false)         \
    X(q2_k, 256, 16, 2, 0, nullptr, true, Scales::own, false, 84)         \
    X(q3_k, 256, 16, 3, 4, nullptr, false, Scales::own, false, 110)       \
    X(iq2_xxs, 256, 32, 8, 128, nullptr, false, Scales::own, false, 66)   \
    X(iq2_xs, 256, 16, 8, 128, nullptr, false, Scales::own, false, 74)    \
    X(iq2_s, 256, 16, 8, 128, nullptr, false, Scales::own, false, 82)     \
    X(iq3_xxs, 256, 32, 8, 128, nullptr, false, Scales::own, false, 98)   \
    X(iq3_s, 256, 32, 8, 128, nullptr, false, Scales::own, false, 110)    \
    X(iq1_s, 256, 32, 8, 128, nullptr, false, Scales::own, false, 50)     \
    X(iq1_m, 256, 16, 8, 128, nullptr, false, Scales::own, false, 56)     \
    X(tq1_0, 256, 32, 2, 1, nullptr, false, Scales::own, false, 54)       \
    X(tq2_0, 256, 32, 2, 1, nullptr, false, Scales::own, false, 66)       \
    X(nvfp4, 64, 16, 8, 128, nullptr, false, Scales::own, false, 36)      \
    X(q4_z32, 128, 32, 5, 16, nullptr, false, Scales::own, false, 74)     \
    X(q4_z64, 128, 32, 5, 16, nullptr, false, Scales::own, false, 70)     \
    X(q4_z128, 128, 32, 5, 16, nullptr, false, Scales::own, false, 68)    \
    X(q3_z32, 128, 32, 4, 8, nullptr, false, Scales::own, false, 58)      \
    X(q3_z64, 128, 32, 4, 8, nullptr, false, Scales::own, false, 54)      \
    X(q3_z128, 128, 32, 4, 8, nullptr, false, Scales::own, false, 52)     \
    X(q2_z32, 128, 32, 3, 4, nullptr, false, Scales::own, false, 42)      \
    X(q2_z64, 128, 32, 3, 4, nullptr, false, Scales::own, false, 38)      \
    X(q2_z128, 128, 32, 3, 4, nullptr, false, Scales::own, false, 36)     \
    X(nf4, 64, 64, 4, 0, nullptr, false, Scales::own, false, 36)          \
    X(nvfp4_scaled, 64, 16, 8, 128, nullptr, false, Scales::own, false, 36, true)

#define FERRUM_FORMATS(X) FERRUM_FLOAT_FORMATS(X) FERRUM_BLOCK_FORMATS(X)

#define FERRUM_ENUMERATOR(name, ...) name,
enum class Format { FERRUM_FORMATS(FERRUM_ENUMERATOR) };
#undef FERRUM_ENUMERATOR

}  // namespace ferrum
