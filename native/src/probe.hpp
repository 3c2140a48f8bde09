// Peak rates of this machine, and the time per operation of a program, for benchmarks.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "operations.hpp"

namespace ferrum {

// Measures with a separate team on the instructions of one tier. Every figure is the best of a few short runs, because
// other processes only slow a run down.
class Probe {
public:
    // Throws std::invalid_argument if this machine lacks the tier; `bytes` should be several times its caches.
    Probe(const std::string& tier_name, int threads, int64_t bytes);

    // Bytes per second; each thread streams its part of the memory, on huge pages as weights are.
    double read();
    // Operations per second of the tier's best instructions for products of "float32", "bfloat16", "int8" or "int4",
    // out of registers. A multiplication and its addition count as two. Without a dot product of the format, the rate
    // is that of float32. Throws std::invalid_argument for any other name.
    double peak(const std::string& format);

private:
    // Multiply in registers for that number of rounds.
    using Spin = void (*)(int64_t rounds);
    struct Peak {
        Spin spin;
        double operations;  // per round
    };

    void each_part(void (*work)(std::byte* from, std::byte* to));  // call work on each thread with its part of the memory

    Team team_;
    Buffer memory_;
    std::map<std::string, Peak> peaks_;  // by format
};

// Run the operations in order, as run_all, and return the seconds of each, with its barrier.
std::vector<double> time_all(Runtime& runtime, const std::vector<std::shared_ptr<Operation>>& operations);

}  // namespace ferrum
