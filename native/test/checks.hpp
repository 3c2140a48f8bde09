// Comparison of a kernel's result with the expected result of a case.
#pragma once

#include <cmath>
#include <cstring>
#include <string>

#include "vectors.hpp"

namespace ferrum {

// Compare the bits with the array under `key`; any NaN equals any other. Throws std::runtime_error with the first element
// that differs.
inline void expect(const Case& from, const std::string& key, const float* made) {
    const float* wanted = from.data<float>(key);
    const size_t count = from.field(key).bytes.size() / sizeof(float);
    for (size_t i = 0; i < count; ++i) {
        if (std::memcmp(made + i, wanted + i, sizeof *made) == 0 || (std::isnan(made[i]) && std::isnan(wanted[i]))) continue;
        throw std::runtime_error(key + "[" + std::to_string(i) + "] is " + std::to_string(made[i]) + ", not " +
                                 std::to_string(wanted[i]));
    }
}

inline void expect_bytes(const Case& from, const std::string& key, const void* made) {
    if (std::memcmp(made, from.data<std::byte>(key), from.field(key).bytes.size()) != 0) throw std::runtime_error(key + " differs");
}

inline void expect_integer(const Case& from, const std::string& key, int64_t made) {
    if (made != from.integer(key))
        throw std::runtime_error(key + " is " + std::to_string(made) + ", not " + std::to_string(from.integer(key)));
}

}  // namespace ferrum
