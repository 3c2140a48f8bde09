// Kernels with faults, each of which the emulation must find, and `careful` without any. Every block turns the numbers of
// its 256 threads around: y[i] = x[255 - i].
#include "device.hpp"

namespace ferrum::cuda {

struct TurnArgs {
    const float* x;  // [blocks, 256]
    float* y;
};

FERRUM_KERNEL(careful, TurnArgs) {
    FERRUM_SHARED(float, all, kThreads);
    all[thread()] = a.x[block_x() * kThreads + thread()];
    sync_block();
    a.y[block_x() * kThreads + thread()] = all[kThreads - 1 - thread()];
}

FERRUM_KERNEL(without_barrier, TurnArgs) {
    FERRUM_SHARED(float, all, kThreads);
    all[thread()] = a.x[block_x() * kThreads + thread()];
    a.y[block_x() * kThreads + thread()] = all[kThreads - 1 - thread()];
}

// The copies of a thread are awaited, but by the thread alone: the barrier stands before.
FERRUM_KERNEL(fence_after_barrier, TurnArgs) {
    FERRUM_SHARED(float, all, kThreads);
    if (thread() < kThreads / 4) copy_16(all + 4 * thread(), a.x + block_x() * kThreads + 4 * thread());
    close_copies();
    sync_block();
    wait_for_copies<0>();
    a.y[block_x() * kThreads + thread()] = all[kThreads - 1 - thread()];
}

FERRUM_KERNEL(late_copies, TurnArgs) {
    FERRUM_SHARED(float, all, kThreads);
    if (thread() < kThreads / 4) copy_16(all + 4 * thread(), a.x + block_x() * kThreads + 4 * thread());
    close_copies();
    wait_for_copies<0>();
    sync_block();
    a.y[block_x() * kThreads + thread()] = all[kThreads - 1 - thread()];
}

FERRUM_KERNEL(behind_shared, TurnArgs) {
    FERRUM_SHARED(float, all, kThreads);
    all[thread() + 1] = a.x[block_x() * kThreads + thread()];
    sync_block();
    a.y[block_x() * kThreads + thread()] = all[kThreads - 1 - thread()];
}

FERRUM_KERNEL(some_lanes, TurnArgs) {
    const float mine = a.x[block_x() * kThreads + thread()];
    a.y[block_x() * kThreads + thread()] = lane() < 31 ? shuffle(mine, 31 - lane()) : mine;
}

// Reads one number behind x: only AddressSanitizer sees it.
FERRUM_KERNEL(behind_input, TurnArgs) {
    a.y[block_x() * kThreads + thread()] = a.x[(block_x() + 1) * kThreads - thread()];
}

// x x - x, which contraction would round once.
FERRUM_KERNEL(contracted, TurnArgs) {
    const float x = a.x[block_x() * kThreads + thread()];
    a.y[block_x() * kThreads + thread()] = x * x - x;
}

}  // namespace ferrum::cuda
