// A block of threads on a processor. Each thread is a fiber that runs until it waits for others.
//
// The order is adversarial: one warp, chosen at random, runs as far as it gets, with its lanes in random order; only then
// another one does. Without a barrier that it needs, a warp then reads what another has not written yet, or has
// overwritten. Copies in the background arrive at the last legal moment; shared memory begins with NaN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace ferrum::cuda::emulation {

// What the driver reads of a kernel: how to run it as one thread, and the bytes of its argument.
struct Kernel {
    void (*run)(const void* argument);
    size_t bytes;
};

// Copies of a thread to shared memory, in batches.
class Copies {
public:
    void add(void* to, const void* from);
    void close();
    void wait(int open);
    void clear() { batches_.assign(1, {}); }

private:
    std::vector<std::vector<std::pair<void*, const void*>>> batches_{1};  // the last one is not closed
};

// The thread that runs.
struct Thread {
    int thread;
    int64_t block[3], blocks_x;
    Copies copies;
};

Thread* current();
// The memory of a declaration in this block, the same for all its threads.
void* shared(const void* declaration, size_t bytes);
void wait_for_block();
// Wait for all lanes of the warp, and return what each has given, one after another.
const void* exchange(const void* given, size_t bytes);

// Run one block. Raises std::runtime_error if a thread waits for one that has ended.
void run_block(const Kernel& kernel, const void* argument, const int64_t (&block)[3], int64_t blocks_x, int threads);
void set_seed(uint64_t seed);

}  // namespace ferrum::cuda::emulation
