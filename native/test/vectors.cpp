// Recorded inputs and results of the numpy reference, read from a file for a program without Python.
#include "vectors.hpp"

namespace ferrum {

namespace {

constexpr char kMagic[] = "ferrum vectors 1\n";

template <class T>
T read(std::istream& from) {
    T value;
    if (!from.read(reinterpret_cast<char*>(&value), sizeof value)) throw std::runtime_error("unexpected end of the vector file");
    return value;
}

std::string read_text(std::istream& from, size_t length) {
    std::string text(length, '\0');
    if (!from.read(text.data(), static_cast<std::streamsize>(length))) throw std::runtime_error("unexpected end of the vector file");
    return text;
}

size_t item_size(char type) {
    switch (type) {
        case 'f':
        case 'i': return 4;
        case 'd':
        case 'q': return 8;
        case 'h': return 2;
        case 'B': return 1;
        default: throw std::runtime_error("unknown type in the vector file");
    }
}

// Reads a type, the rank, the extents, the elements.
Field read_field(std::istream& from) {
    Field field;
    field.type = read<char>(from);
    field.shape.resize(read<uint32_t>(from));
    size_t bytes = item_size(field.type);
    for (int64_t& extent : field.shape) {
        extent = read<int64_t>(from);
        bytes *= static_cast<size_t>(extent);
    }
    field.bytes.resize(bytes);
    if (!from.read(reinterpret_cast<char*>(field.bytes.data()), static_cast<std::streamsize>(bytes)))
        throw std::runtime_error("unexpected end of the vector file");
    return field;
}

}  // namespace

std::vector<Case> read_cases(std::istream& from) {
    if (read_text(from, sizeof kMagic - 1) != kMagic) throw std::runtime_error("not a vector file");
    std::vector<Case> cases;
    while (from.peek() != std::istream::traits_type::eof()) {
        Case made;
        made.name = read_text(from, read<uint32_t>(from));
        for (uint32_t left = read<uint32_t>(from); left > 0; --left) {
            const std::string key = read_text(from, read<uint32_t>(from));
            made.fields[key] = read_field(from);
        }
        cases.push_back(std::move(made));
    }
    return cases;
}

}  // namespace ferrum
