// What this machine can do at most, and where the time of a program goes: the two halves of a benchmark's receipt.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "operations.hpp"

namespace ferrum {

// Measures with a team of its own, on the instructions of one tier. Every figure is the best of a few short runs: a
// disturbed run tells of the disturbance, not of the machine.
class Probe {
public:
    // Throws std::invalid_argument for a tier that this machine does not have; `bytes` should be several times its caches.
    Probe(const std::string& tier_name, int threads, int64_t bytes);

    // Bytes per second, each thread streaming its half of the memory, which lies on huge pages as weights do.
    double read();
    // Operations per second of the tier's best instructions for products of "float32", "bfloat16", "int8" or "int4", out of
    // registers; a multiplication and its addition count as two. Where a tier has no dot product of the format, the
    // rate is that of float32. Throws std::invalid_argument for any other name.
    double peak(const std::string& format);

private:
    // Multiplies in registers for so many rounds.
    using Spin = void (*)(int64_t rounds);
    struct Peak {
        Spin spin;
        double operations;  // of one round
    };

    void each_part(void (*work)(std::byte* from, std::byte* to));  // each thread with its own part of the memory

    Team team_;
    Buffer memory_;
    std::map<std::string, Peak> peaks_;  // by format
};

// Runs the operations in order, as run_all does, and returns the seconds of each, its barrier included.
std::vector<double> time_all(Runtime& runtime, const std::vector<std::shared_ptr<Operation>>& operations);

}  // namespace ferrum
