// The driver of an emulated device: the calls of libcuda that ferrum makes, under their own names and with their own
// arguments. ferrum opens this library in place of libcuda; images of modules are paths of libraries with kernels.
//
// Work on a stream waits until the host synchronises, as late as a device may begin it: memory that the host changes too
// early shows. Addresses are those of the process; copies outside of allocations are refused as a device does.
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "block.hpp"

namespace {

using namespace ferrum::cuda::emulation;

enum Result { kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kInvalidDevice = 101, kInvalidImage = 200, kNotFound = 500,
              kIllegalAddress = 700, kLaunchFailed = 719 };

using Work = std::function<void()>;

struct Graph {
    std::vector<Work> works;
};

// Work in order, on which nothing is done until the host waits.
struct Stream {
    std::vector<Work> queue;
    std::unique_ptr<Graph> captured;  // while it is captured
};

struct Event {
    std::chrono::steady_clock::time_point at;
    Stream* stream = nullptr;  // that it was recorded on
};

struct Function {
    const Kernel* kernel;
};

struct Device {
    size_t memory = size_t{1} << 33, used = 0;
    std::map<uintptr_t, size_t> allocations;  // address, bytes
    std::vector<std::unique_ptr<Stream>> streams;
    int lost = 0;                     // the error of all calls after one
    std::string message;
    std::mt19937_64 random{2};
    std::string failing;  // the call that fails, after some that do not
    int after = 0, failure = 0;
    int64_t launches = 0, graphs = 0;
    int version = 13000, count = 1;
};

Device device;

// The result of a call: that of a lost device, or of a call that a test lets fail.
int begin(const char* call) {
    if (device.lost != 0) return device.lost;
    if (device.failing != call || device.after-- > 0) return kSuccess;
    device.failing.clear();
    if (device.failure >= kIllegalAddress) device.lost = device.failure;  // after these a device is of no more use
    return device.failure;
}

bool holds(uintptr_t address, size_t bytes) {
    auto after = device.allocations.upper_bound(address);
    if (after == device.allocations.begin()) return bytes == 0;
    const auto& [start, size] = *std::prev(after);
    return address + bytes <= start + size;
}

int add(void* stream, Work work) {
    auto& to = *static_cast<Stream*>(stream);
    (to.captured != nullptr ? to.captured->works : to.queue).push_back(std::move(work));
    return kSuccess;
}

int run_queue(Stream& stream) {
    std::vector<Work> works;
    works.swap(stream.queue);
    try {
        for (const Work& work : works) work();
    } catch (const std::exception& error) {
        device.message = error.what();
        device.lost = kLaunchFailed;
    }
    return device.lost;
}

int run_all() {
    for (const auto& stream : device.streams) run_queue(*stream);
    return device.lost;
}

void run_grid(const Kernel& kernel, const std::vector<std::byte>& argument, const int64_t (&grid)[3], int threads) {
    std::vector<int64_t> blocks(static_cast<size_t>(grid[0] * grid[1] * grid[2]));
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<int64_t>(i);
    std::shuffle(blocks.begin(), blocks.end(), device.random);
    for (const int64_t block : blocks) {
        const int64_t at[3] = {block % grid[0], block / grid[0] % grid[1], block / grid[0] / grid[1]};
        run_block(kernel, argument.data(), at, grid[0], threads);
    }
}

int copy(void* stream, uintptr_t to, uintptr_t from, size_t bytes) {
    return add(stream, [=] { std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes); });
}

}  // namespace

extern "C" {
#pragma GCC visibility push(default)

// ---- What tests ask of the emulation ----

void ferrum_emulation_seed(uint64_t seed) { set_seed(seed), device.random.seed(seed); }
void ferrum_emulation_memory(size_t bytes) { device.memory = bytes; }
void ferrum_emulation_fail(const char* call, int after, int result) { device.failing = call, device.after = after, device.failure = result; }
void ferrum_emulation_lose(int result) { device.lost = result; }
const char* ferrum_emulation_message() { return device.message.c_str(); }
void ferrum_emulation_machine(int version, int devices) { device.version = version, device.count = devices; }
int64_t ferrum_emulation_launches() { return device.launches; }
int64_t ferrum_emulation_graphs() { return device.graphs; }

// ---- Devices ----

int cuInit(unsigned) { return begin("cuInit"); }
int cuDriverGetVersion(int* version) { return *version = device.version, begin("cuDriverGetVersion"); }
int cuDeviceGetCount(int* count) { return *count = device.count, begin("cuDeviceGetCount"); }
int cuDeviceGet(int* found, int ordinal) {
    if (ordinal < 0 || ordinal >= device.count) return kInvalidDevice;
    return *found = ordinal, begin("cuDeviceGet");
}
int cuDeviceGetName(char* name, int bytes, int) {
    std::snprintf(name, static_cast<size_t>(bytes), "emulated device");
    return kSuccess;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
    const std::map<int, int> known = {{75, 9}, {76, 0}, {16, 132}, {8, 49152}};  // capability 9.0, multiprocessors, shared
    const auto found = known.find(attribute);
    if (found == known.end()) return kInvalidValue;
    return *value = found->second, kSuccess;
}
int cuDevicePrimaryCtxRetain(void** context, int) { return *context = &device, begin("cuDevicePrimaryCtxRetain"); }
int cuCtxSetCurrent(void*) { return begin("cuCtxSetCurrent"); }
int cuGetErrorName(int error, const char** name) {
    const std::map<int, const char*> known = {{1, "CUDA_ERROR_INVALID_VALUE"}, {2, "CUDA_ERROR_OUT_OF_MEMORY"},
        {100, "CUDA_ERROR_NO_DEVICE"}, {101, "CUDA_ERROR_INVALID_DEVICE"}, {200, "CUDA_ERROR_INVALID_IMAGE"},
        {218, "CUDA_ERROR_INVALID_PTX"}, {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"}, {500, "CUDA_ERROR_NOT_FOUND"},
        {700, "CUDA_ERROR_ILLEGAL_ADDRESS"}, {719, "CUDA_ERROR_LAUNCH_FAILED"}};
    const auto found = known.find(error);
    if (found == known.end()) return kInvalidValue;
    return *name = found->second, kSuccess;
}
int cuGetErrorString(int, const char** text) { return *text = device.message.c_str(), kSuccess; }

// ---- Memory ----

int cuMemGetInfo_v2(size_t* left, size_t* total) {
    *total = device.memory, *left = device.memory - std::min(device.used, device.memory);
    return begin("cuMemGetInfo_v2");
}
int cuMemAlloc_v2(uintptr_t* address, size_t bytes) {
    if (const int result = begin("cuMemAlloc_v2")) return result;
    if (bytes == 0) return kInvalidValue;
    if (device.used + bytes > device.memory) return kOutOfMemory;
    void* memory = nullptr;
    if (posix_memalign(&memory, 256, bytes) != 0) return kOutOfMemory;
    std::memset(memory, 0xff, bytes);  // NaN
    *address = reinterpret_cast<uintptr_t>(memory);
    device.allocations[*address] = bytes;
    device.used += bytes;
    return kSuccess;
}
int cuMemFree_v2(uintptr_t address) {
    run_all();
    const auto found = device.allocations.find(address);
    if (found == device.allocations.end()) return kInvalidValue;
    device.used -= found->second;
    device.allocations.erase(found);
    std::free(reinterpret_cast<void*>(address));
    return kSuccess;
}
int cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
    *memory = std::malloc(bytes);
    return begin("cuMemHostAlloc");
}
int cuMemFreeHost(void* memory) { return std::free(memory), kSuccess; }
int cuMemcpyHtoDAsync_v2(uintptr_t to, const void* from, size_t bytes, void* stream) {
    if (const int result = begin("cuMemcpyHtoDAsync_v2")) return result;
    return holds(to, bytes) ? copy(stream, to, reinterpret_cast<uintptr_t>(from), bytes) : kInvalidValue;
}
int cuMemcpyDtoHAsync_v2(void* to, uintptr_t from, size_t bytes, void* stream) {
    if (const int result = begin("cuMemcpyDtoHAsync_v2")) return result;
    return holds(from, bytes) ? copy(stream, reinterpret_cast<uintptr_t>(to), from, bytes) : kInvalidValue;
}
int cuMemcpyDtoDAsync_v2(uintptr_t to, uintptr_t from, size_t bytes, void* stream) {
    if (const int result = begin("cuMemcpyDtoDAsync_v2")) return result;
    return holds(from, bytes) && holds(to, bytes) ? copy(stream, to, from, bytes) : kInvalidValue;
}
int cuMemsetD8Async(uintptr_t to, unsigned char value, size_t bytes, void* stream) {
    if (const int result = begin("cuMemsetD8Async")) return result;
    if (!holds(to, bytes)) return kInvalidValue;
    return add(stream, [=] { std::memset(reinterpret_cast<void*>(to), value, bytes); });
}

// ---- Streams, events and graphs ----

int cuStreamCreate(void** stream, unsigned) {
    device.streams.push_back(std::make_unique<Stream>());
    return *stream = device.streams.back().get(), begin("cuStreamCreate");
}
int cuStreamSynchronize(void* stream) {
    if (const int result = begin("cuStreamSynchronize")) return result;
    return run_queue(*static_cast<Stream*>(stream));
}
int cuEventCreate(void** event, unsigned) { return *event = new Event, begin("cuEventCreate"); }
int cuEventDestroy_v2(void*) { return kSuccess; }  // work that waits may still record it
int cuEventRecord(void* event, void* stream) {
    static_cast<Event*>(event)->stream = static_cast<Stream*>(stream);
    return add(stream, [=] { static_cast<Event*>(event)->at = std::chrono::steady_clock::now(); });
}
int cuEventSynchronize(void* event) {
    if (const int result = begin("cuEventSynchronize")) return result;
    Stream* stream = static_cast<Event*>(event)->stream;
    return stream == nullptr ? kSuccess : run_queue(*stream);
}
int cuEventElapsedTime(float* milliseconds, void* from, void* to) {
    const auto time = static_cast<Event*>(to)->at - static_cast<Event*>(from)->at;
    return *milliseconds = std::chrono::duration<float, std::milli>(time).count(), kSuccess;
}
int cuStreamBeginCapture_v2(void* stream, int) {
    if (const int result = begin("cuStreamBeginCapture_v2")) return result;
    static_cast<Stream*>(stream)->captured = std::make_unique<Graph>();
    return kSuccess;
}
int cuStreamEndCapture(void* stream, void** graph) {
    auto& captured = static_cast<Stream*>(stream)->captured;
    if (captured == nullptr) return kInvalidValue;
    *graph = captured.release();
    return kSuccess;
}
int cuGraphInstantiateWithFlags(void** executable, void* graph, uint64_t) {
    *executable = new Graph(*static_cast<Graph*>(graph));
    return begin("cuGraphInstantiateWithFlags");
}
int cuGraphDestroy(void* graph) { return delete static_cast<Graph*>(graph), kSuccess; }
int cuGraphExecDestroy(void* graph) { return run_all(), delete static_cast<Graph*>(graph), kSuccess; }
int cuGraphLaunch(void* graph, void* stream) {
    if (const int result = begin("cuGraphLaunch")) return result;
    ++device.graphs;
    for (const Work& work : static_cast<Graph*>(graph)->works) static_cast<Stream*>(stream)->queue.push_back(work);
    return kSuccess;
}

// ---- Kernels ----

int cuModuleLoadData(void** module, const void* image) {
    if (const int result = begin("cuModuleLoadData")) return result;
    *module = dlopen(static_cast<const char*>(image), RTLD_NOW | RTLD_LOCAL);
    if (*module != nullptr) return kSuccess;
    device.message = dlerror();
    return kInvalidImage;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
    *function = dlsym(module, name);
    return *function == nullptr ? kNotFound : begin("cuModuleGetFunction");
}
int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned, unsigned, unsigned, void* stream,
                   void** parameters, void** extra) {
    if (const int result = begin("cuLaunchKernel")) return result;
    // The sizes of arguments are checked here: a device reads whatever stands there.
    const auto& kernel = *static_cast<const Kernel*>(function);
    if (parameters != nullptr || x == 0 || y == 0 || z == 0 || y > 65535 || z > 65535) return kInvalidValue;
    const auto* data = static_cast<const std::byte*>(extra[1]);
    if (*static_cast<const size_t*>(extra[3]) != kernel.bytes) {
        device.message = "the argument of a kernel has another size";
        return kInvalidValue;
    }
    ++device.launches;
    std::vector<std::byte> argument(data, data + kernel.bytes);
    return add(stream, [&kernel, argument, x, y, z, threads] {
        const int64_t grid[3] = {x, y, z};
        run_grid(kernel, argument, grid, static_cast<int>(threads));
    });
}

#pragma GCC visibility pop
}
