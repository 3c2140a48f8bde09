// Test cases exported by tests/support/native_vectors.py: a name, inputs and expected results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <istream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace ferrum {

// A number or an array, in memory of exactly its size, so that a sanitizer detects reads past the end.
struct Field {
    char type = 0;  // 'f' f32, 'd' f64, 'i' i32, 'q' i64, 'h' halves of any kind, 'B' bytes
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
};

struct Case {
    std::string name;
    std::map<std::string, Field> fields;

    bool has(const std::string& key) const { return fields.count(key) != 0; }

    const Field& field(const std::string& key) const {
        const auto found = fields.find(key);
        if (found == fields.end()) throw std::runtime_error(name + " has no " + key);
        return found->second;
    }

    int64_t extent(const std::string& key, size_t axis) const { return field(key).shape.at(axis); }

    template <class T>
    const T* data(const std::string& key) const {
        return reinterpret_cast<const T*>(field(key).bytes.data());
    }

    // Null if there is no such array.
    template <class T>
    const T* maybe(const std::string& key) const {
        return has(key) ? data<T>(key) : nullptr;
    }

    template <class T>
    std::vector<T> vector(const std::string& key) const {
        return {data<T>(key), data<T>(key) + field(key).bytes.size() / sizeof(T)};
    }

    int64_t integer(const std::string& key) const { return *data<int64_t>(key); }
    double real(const std::string& key) const { return *data<double>(key); }
    std::string text(const std::string& key) const {
        return {data<char>(key), field(key).bytes.size()};
    }
};

// Read all cases of a file. Throws std::runtime_error for an invalid file.
std::vector<Case> read_cases(std::istream& from);

}  // namespace ferrum
