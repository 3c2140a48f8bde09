#include "block.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>

namespace ferrum::cuda::emulation {

namespace {

constexpr size_t kStack = 256 << 10, kGuard = 64, kMostExchanged = 64;
constexpr int kLanes = 32;

enum class Wait { none, warp, block, forever };

// The stack of a context, which AddressSanitizer has to know.
struct Stack {
    const void* bottom = nullptr;
    size_t bytes = 0;
    void* fake = nullptr;
};

// A context of the processor that another can switch to.
#if defined(__x86_64__)
struct Context {
    void* stack_pointer = nullptr;
    Stack stack;
};

extern "C" void ferrum_switch(void** from, void* to);
asm(R"(
.globl ferrum_switch
.hidden ferrum_switch
ferrum_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

void jump(Context& from, Context& to) { ferrum_switch(&from.stack_pointer, to.stack_pointer); }

void prepare(Context& context, char* stack, void (*entry)()) {
    auto* top = reinterpret_cast<void**>(stack + kStack) - 3;  // as after a call: 8 bytes off a multiple of 16
    *--top = reinterpret_cast<void*>(entry);
    context.stack_pointer = top - 6;
    std::memset(context.stack_pointer, 0, 6 * sizeof(void*));
}
#else
struct Context {
    ucontext_t context;
    Stack stack;
};

void jump(Context& from, Context& to) { swapcontext(&from.context, &to.context); }

void prepare(Context& context, char* stack, void (*entry)()) {
    getcontext(&context.context);
    context.context.uc_stack.ss_sp = stack;
    context.context.uc_stack.ss_size = kStack;
    context.context.uc_link = nullptr;
    makecontext(&context.context, entry, 0);
}
#endif

#if defined(__SANITIZE_ADDRESS__)
void leave(Stack& from, const Stack& to) { __sanitizer_start_switch_fiber(&from.fake, to.bottom, to.bytes); }
void enter(const Stack& to) { __sanitizer_finish_switch_fiber(to.fake, nullptr, nullptr); }
void enter_first(Stack& from) { __sanitizer_finish_switch_fiber(nullptr, &from.bottom, &from.bytes); }
#else
void leave(Stack&, const Stack&) {}
void enter(const Stack&) {}
void enter_first(Stack&) {}
#endif

void switch_to(Context& from, Context& to) {
    leave(from.stack, to.stack);
    jump(from, to);
    enter(from.stack);
}

struct Fiber {
    Thread thread;
    Context context;
    Wait wait = Wait::none;
    int exchanges = 0;
    size_t exchanged = 0;  // bytes
};

// What the lanes of a warp exchange. A lane may be one exchange ahead of others that have not read the last one.
struct Exchange {
    alignas(16) std::byte data[2][kLanes * kMostExchanged];
};

struct Shared {
    std::unique_ptr<std::byte[]> memory;
    size_t bytes;
};

struct Block {
    const Kernel* kernel = nullptr;
    const void* argument = nullptr;
    std::vector<Fiber> fibers;
    std::vector<Exchange> exchanges;
    std::vector<char*> stacks;
    std::map<const void*, Shared> shared;
    Context scheduler;
    Fiber* running = nullptr;  // null: the scheduler
    std::string error;         // of a thread, which cannot raise it across stacks
    std::mt19937_64 random{1};
};

Block block;

void wait(Wait reason) {
    Fiber& fiber = *block.running;
    fiber.wait = reason;
    switch_to(fiber.context, block.scheduler);
}

void refuse(const std::string& reason) {
    if (block.running == nullptr) throw std::runtime_error(reason);
    block.error = reason;
    wait(Wait::forever);
}

void run_fiber() {
    enter_first(block.scheduler.stack);
    block.kernel->run(block.argument);
    wait(Wait::forever);
}

void run_until_it_waits(Fiber& fiber) {
    block.running = &fiber;
    switch_to(block.scheduler, fiber.context);
    block.running = nullptr;
    if (!block.error.empty()) throw std::runtime_error(std::exchange(block.error, {}));
}

void start(int threads, const int64_t (&at)[3], int64_t blocks_x) {
    const auto count = static_cast<size_t>(threads);
    while (block.stacks.size() < count) {
        void* stack = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (stack == MAP_FAILED) refuse("no memory for the stacks of threads");
        block.stacks.push_back(static_cast<char*>(stack));
    }
    block.fibers.resize(count);
    block.exchanges.resize(count / kLanes);
    for (size_t i = 0; i < count; ++i) {
        Fiber& fiber = block.fibers[i];
        fiber.thread.thread = static_cast<int>(i);
        std::copy(at, at + 3, fiber.thread.block);
        fiber.thread.blocks_x = blocks_x;
        fiber.thread.copies.clear();
        fiber.wait = Wait::none;
        fiber.exchanges = 0;
        fiber.context.stack = {block.stacks[i], kStack, nullptr};
        prepare(fiber.context, block.stacks[i], run_fiber);
    }
}

bool all(const Fiber* warp, Wait wait) {
    return std::all_of(warp, warp + kLanes, [=](const Fiber& lane) { return lane.wait == wait; });
}

// Run the lanes of a warp until each waits for the block or has ended.
void run_warp(Fiber* warp) {
    int order[kLanes];
    for (int i = 0; i < kLanes; ++i) order[i] = i;
    while (true) {
        std::shuffle(order, order + kLanes, block.random);
        for (const int lane : order)
            if (warp[lane].wait == Wait::none) run_until_it_waits(warp[lane]);
        const bool exchanges = std::any_of(warp, warp + kLanes, [](const Fiber& lane) { return lane.wait == Wait::warp; });
        if (!exchanges) return;
        if (!all(warp, Wait::warp)) refuse("some lanes of a warp exchange, and others wait for the block or have ended");
        for (int i = 0; i < kLanes; ++i) {
            if (warp[i].exchanged != warp[0].exchanged) refuse("lanes of a warp exchange different types");
            warp[i].wait = Wait::none;
        }
    }
}

void check_shared() {
    for (const auto& [declaration, piece] : block.shared)
        for (size_t i = 0; i < kGuard; ++i)
            if (piece.memory[piece.bytes + i] != std::byte{0xa5}) refuse("a kernel writes behind an array of shared memory");
}

}  // namespace

void Copies::add(void* to, const void* from) {
    if (reinterpret_cast<uintptr_t>(to) % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0)
        refuse("a copy of 16 bytes is not aligned to 16 bytes");
    batches_.back().emplace_back(to, from);
}

void Copies::close() { batches_.emplace_back(); }

void Copies::wait(int open) {
    while (static_cast<int>(batches_.size()) - 1 > open) {
        for (const auto& [to, from] : batches_.front()) std::memcpy(to, from, 16);
        batches_.erase(batches_.begin());
    }
}

Thread* current() { return &block.running->thread; }

void* shared(const void* declaration, size_t bytes) {
    Shared& piece = block.shared[declaration];
    if (piece.memory == nullptr) {
        piece = {std::make_unique<std::byte[]>(bytes + kGuard), bytes};
        std::memset(piece.memory.get(), 0xff, bytes);
        std::memset(piece.memory.get() + bytes, 0xa5, kGuard);
    }
    return piece.memory.get();
}

void wait_for_block() { wait(Wait::block); }

const void* exchange(const void* given, size_t bytes) {
    Fiber& fiber = *block.running;
    if (bytes > kMostExchanged) refuse("an exchange of more than 64 bytes");
    auto& data = block.exchanges[static_cast<size_t>(fiber.thread.thread / kLanes)].data[fiber.exchanges++ % 2];
    if (bytes != 0) std::memcpy(data + static_cast<size_t>(fiber.thread.thread % kLanes) * bytes, given, bytes);
    fiber.exchanged = bytes;
    wait(Wait::warp);
    return data;
}

void run_block(const Kernel& kernel, const void* argument, const int64_t (&at)[3], int64_t blocks_x, int threads) {
    if (threads % kLanes != 0) refuse("a block is not whole warps");
    block.kernel = &kernel, block.argument = argument;
    block.shared.clear();
    start(threads, at, blocks_x);
    const size_t warps = block.fibers.size() / kLanes;
    while (true) {
        std::vector<Fiber*> ready;
        for (size_t i = 0; i < warps; ++i) {
            Fiber* warp = &block.fibers[i * kLanes];
            if (std::any_of(warp, warp + kLanes, [](const Fiber& lane) { return lane.wait == Wait::none; })) ready.push_back(warp);
        }
        if (!ready.empty()) {
            run_warp(ready[block.random() % ready.size()]);
            continue;
        }
        bool waits = false;
        for (Fiber& fiber : block.fibers)
            if (fiber.wait == Wait::block) waits = true, fiber.wait = Wait::none;
        if (!waits) break;
    }
    check_shared();
}

void set_seed(uint64_t seed) { block.random.seed(seed); }

}  // namespace ferrum::cuda::emulation
