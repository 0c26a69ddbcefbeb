// The world of emulated devices: what there is, what goes wrong, what was counted; devices, memory and copies
// of the runtime API.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/cuda_emulator/state.h"

namespace cuda_emulator {
namespace {

std::mutex faults_mutex;  // faults come from threads of streams
bool catching = false;
std::vector<std::string> caught;

}  // namespace

World& TheWorld() {
  static auto* world = [] {
    auto* made = new World;
    return made;
  }();
  return *world;
}

ThreadState& ThisThread() {
  static thread_local ThreadState state;
  return state;
}

void TellFault(const std::string& sentence) {
  std::lock_guard lock(faults_mutex);
  if (!catching) {
    std::fprintf(stderr, "CUDA emulator: %s\n", sentence.c_str());
    std::abort();
  }
  caught.push_back(sentence);
}

void KernelFailed() {
  if (ThisThread().running != nullptr) LoseDevice(ThisThread().running->device, cudaErrorLaunchFailure);
}

Order CurrentOrder() { return TheWorld().order; }
void CountKernel() { ++TheWorld().kernels; }

CatchFaults::CatchFaults() {
  std::lock_guard lock(faults_mutex);
  catching = true;
  caught.clear();
}
CatchFaults::~CatchFaults() {
  std::lock_guard lock(faults_mutex);
  catching = false;
}
std::vector<std::string> CatchFaults::faults() const {
  std::lock_guard lock(faults_mutex);
  return caught;
}

DeviceState& DeviceOf(int device) {
  static std::mutex mutex;  // devices are made by the first call that asks, on any thread
  std::lock_guard lock(mutex);
  std::unique_ptr<DeviceState>& state = TheWorld().devices[device];
  if (state == nullptr) {
    state = std::make_unique<DeviceState>();
    state->legacy = std::make_unique<CUstream_st>();
    state->legacy->device = device;
    state->legacy->number = -1 - device;
    StartStream(state->legacy.get());
  }
  return *state;
}

cudaStream_t StreamOf(cudaStream_t stream) {
  if (stream != nullptr && stream != cudaStreamLegacy && stream != cudaStreamPerThread) return stream;
  return DeviceOf(ThisThread().device).legacy.get();
}

cudaError_t Tell(cudaError_t error) {
  if (error != cudaSuccess) ThisThread().last = error;
  return error;
}

cudaError_t Enter() {
  World& world = TheWorld();
  if (ThisThread().host_function) return Tell(cudaErrorNotPermitted);
  if (world.options.start != cudaSuccess) return Tell(world.options.start);
  if (world.options.driver == 0 || world.options.driver < CUDART_VERSION / 1000 * 1000)
    return Tell(cudaErrorInsufficientDriver);
  if (world.options.devices == 0) return Tell(cudaErrorNoDevice);
  return Tell(DeviceOf(ThisThread().device).sticky);
}

void Reset(const Options& options) {
  World& world = TheWorld();
  {
    std::lock_guard lock(world.mutex);
    world.pauses = 0;
    world.resumed.notify_all();
  }
  for (auto& [number, device] : world.devices) {
    for (cudaStream_t stream : device->streams) {
      StopStream(stream);
      delete stream;
    }
    StopStream(device->legacy.get());
  }
  world.devices.clear();
  FreeAllMemory();
  for (cudaEvent_t event : world.events) delete event;
  for (cudaGraph_t graph : world.graphs) delete graph;
  for (cudaGraphExec_t exec : world.execs) delete exec;
  world.events.clear();
  world.graphs.clear();
  world.execs.clear();
  world.captures.clear();
  world.options = options;
  world.next_stream = 1;
  world.fail_allocation = world.fail_capture = -1;
  world.longest_delay_us = options.longest_delay_us;
  world.seed = options.seed;
  world.order = options.order;
  for (auto* count : {&world.host_synchronisations, &world.operations, &world.kernels, &world.instantiated,
                      &world.launches, &world.allocations, &world.host_bytes})
    *count = 0;
  ThisThread() = {};
}

void SetOrder(Order order) { TheWorld().order = order; }
void SetDelays(int longest_delay_us, uint64_t seed) {
  TheWorld().longest_delay_us = longest_delay_us;
  TheWorld().seed = seed;
}
void FailAllocation(int after) {
  std::lock_guard lock(TheWorld().mutex);
  TheWorld().fail_allocation = after;
}
void FailCapture(int after) {
  std::lock_guard lock(TheWorld().mutex);
  TheWorld().fail_capture = after;
}
void LoseDevice(int device, cudaError_t error) {
  cudaError_t none = cudaSuccess;
  DeviceOf(device).sticky.compare_exchange_strong(none, error);
}
void FailOperation(cudaStream_t stream, int after, cudaError_t error) {
  stream = StreamOf(stream);
  std::lock_guard lock(stream->mutex);
  stream->fail_at = stream->enqueued + after;
  stream->fail_with = error;
}

Pause::Pause() {
  std::lock_guard lock(TheWorld().mutex);
  ++TheWorld().pauses;
}
Pause::~Pause() {
  std::lock_guard lock(TheWorld().mutex);
  --TheWorld().pauses;
  TheWorld().resumed.notify_all();
}

Counts GetCounts() {
  World& world = TheWorld();
  Counts counts;
  counts.host_synchronisations = world.host_synchronisations;
  counts.operations = world.operations;
  counts.kernels = world.kernels;
  counts.graphs_instantiated = world.instantiated;
  counts.graph_launches = world.launches;
  counts.allocations = world.allocations;
  counts.host_bytes = world.host_bytes;
  std::lock_guard lock(world.mutex);
  counts.events = static_cast<int64_t>(world.events.size());
  counts.graphs = static_cast<int64_t>(world.graphs.size() + world.execs.size());
  for (auto& [number, device] : world.devices) {
    counts.bytes += static_cast<int64_t>(device->used.load());
    counts.streams += static_cast<int64_t>(device->streams.size());
  }
  return counts;
}

namespace {

bool Exists(int device) { return device >= 0 && device < TheWorld().options.devices; }

// Whether there is room for the bytes; the failure that a test asked for comes here too.
bool Room(size_t bytes) {
  World& world = TheWorld();
  ++world.allocations;
  std::lock_guard lock(world.mutex);
  return world.fail_allocation < 0 || world.fail_allocation-- != 0;
}

cudaError_t Allocate(void** data, size_t bytes) {
  *data = nullptr;
  int device = ThisThread().device;
  if (!Room(bytes)) return Tell(cudaErrorMemoryAllocation);
  if (bytes == 0) return cudaSuccess;
  DeviceState& state = DeviceOf(device);
  if (state.used.fetch_add(bytes) + bytes > TheWorld().options.memory) {
    state.used -= bytes;
    return Tell(cudaErrorMemoryAllocation);
  }
  *data = AllocateDevice(device, bytes);
  if (*data != nullptr) return cudaSuccess;
  state.used -= bytes;
  return Tell(cudaErrorMemoryAllocation);
}

void Free(void* data) {
  BlockOfMemory block = FindMemory(data);
  DeviceOf(block.device).used -= block.bytes;
  FreeDevice(data);
}

bool IsBlock(const void* data, bool pinned) {
  BlockOfMemory block = FindMemory(data);
  return block.data != nullptr && block.data == data && (block.device < 0) == pinned;
}

// Copies of a stream reach every device, as the copy engines do.
void Copy(void* to, const void* from, size_t bytes) {
  unsigned before = OpenAllDevices();
  std::memmove(to, from, bytes);
  OpenDevices(before);
}

// Both ends lie inside one block each where they are known, and the kind of copy says where they are.
bool Fits(const void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  auto inside = [&](const void* data, bool device) {
    BlockOfMemory block = FindMemory(data);
    if (block.data == nullptr || block.device < 0) {
      if (device) return false;
      return block.data == nullptr || static_cast<const char*>(data) + bytes <= block.data + block.bytes;
    }
    if (!device && kind != cudaMemcpyDefault) return false;
    return static_cast<const char*>(data) + bytes <= block.data + block.bytes;
  };
  if (bytes == 0) return true;
  return inside(to, kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) &&
         inside(from, kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice);
}

}  // namespace
}  // namespace cuda_emulator

using namespace cuda_emulator;

extern "C" {

cudaError_t cudaGetLastError() {
  cudaError_t error = ThisThread().last;
  ThisThread().last = cudaSuccess;
  if (error == cudaSuccess && !ThisThread().host_function && Exists(ThisThread().device) &&
      TheWorld().options.start == cudaSuccess && TheWorld().options.driver != 0)
    error = DeviceOf(ThisThread().device).sticky;
  return error;
}
cudaError_t cudaPeekAtLastError() {
  cudaError_t error = cudaGetLastError();
  ThisThread().last = error;
  return error;
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define OFL_NAME(name) \
  case name:           \
    return #name;
    OFL_NAME(cudaSuccess)
    OFL_NAME(cudaErrorInvalidValue)
    OFL_NAME(cudaErrorMemoryAllocation)
    OFL_NAME(cudaErrorInitializationError)
    OFL_NAME(cudaErrorCudartUnloading)
    OFL_NAME(cudaErrorInvalidConfiguration)
    OFL_NAME(cudaErrorInsufficientDriver)
    OFL_NAME(cudaErrorDevicesUnavailable)
    OFL_NAME(cudaErrorNoDevice)
    OFL_NAME(cudaErrorInvalidDevice)
    OFL_NAME(cudaErrorECCUncorrectable)
    OFL_NAME(cudaErrorPeerAccessUnsupported)
    OFL_NAME(cudaErrorInvalidResourceHandle)
    OFL_NAME(cudaErrorIllegalState)
    OFL_NAME(cudaErrorNotReady)
    OFL_NAME(cudaErrorIllegalAddress)
    OFL_NAME(cudaErrorLaunchTimeout)
    OFL_NAME(cudaErrorPeerAccessAlreadyEnabled)
    OFL_NAME(cudaErrorPeerAccessNotEnabled)
    OFL_NAME(cudaErrorAssert)
    OFL_NAME(cudaErrorLaunchFailure)
    OFL_NAME(cudaErrorNotPermitted)
    OFL_NAME(cudaErrorNotSupported)
    OFL_NAME(cudaErrorStreamCaptureUnsupported)
    OFL_NAME(cudaErrorStreamCaptureInvalidated)
    OFL_NAME(cudaErrorStreamCaptureMerge)
    OFL_NAME(cudaErrorStreamCaptureUnmatched)
    OFL_NAME(cudaErrorStreamCaptureUnjoined)
    OFL_NAME(cudaErrorStreamCaptureIsolation)
    OFL_NAME(cudaErrorStreamCaptureImplicit)
    OFL_NAME(cudaErrorCapturedEvent)
    OFL_NAME(cudaErrorStreamCaptureWrongThread)
    OFL_NAME(cudaErrorGraphExecUpdateFailure)
    OFL_NAME(cudaErrorUnknown)
#undef OFL_NAME
  }
  return "unrecognized error code";
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    case cudaErrorNotReady:
      return "device not ready";
    default:
      return cudaGetErrorName(error);
  }
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = TheWorld().options.driver;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  *count = TheWorld().options.devices;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (ThisThread().host_function) return Tell(cudaErrorNotPermitted);
  if (!Exists(device)) return Tell(cudaErrorInvalidDevice);
  ThisThread().device = device;
  return Enter();
}
cudaError_t cudaGetDevice(int* device) {
  *device = ThisThread().device;
  return Enter();
}
cudaError_t cudaSetDeviceFlags(unsigned) { return Enter(); }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  if (!Exists(device)) return Tell(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "Emulated device %d", device);
  properties->uuid.bytes[0] = static_cast<char>(device + 1);
  properties->totalGlobalMem = TheWorld().options.memory;
  properties->sharedMemPerBlock = 48 << 10;
  properties->sharedMemPerBlockOptin = 227 << 10;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->major = 9;
  properties->multiProcessorCount = TheWorld().options.multiprocessors;
  properties->pciBusID = device + 1;
  properties->memoryBusWidth = 5120;
  properties->l2CacheSize = 50 << 20;
  properties->unifiedAddressing = 1;
  properties->asyncEngineCount = 3;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties;
  if (cudaError_t error = cudaGetDeviceProperties(&properties, device); error != cudaSuccess) return error;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = properties.maxThreadsPerBlock;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(properties.sharedMemPerBlock);
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(properties.sharedMemPerBlockOptin);
      break;
    case cudaDevAttrWarpSize:
      *value = 32;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      break;
    case cudaDevAttrPciBusId:
      *value = properties.pciBusID;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = properties.minor;
      break;
    case cudaDevAttrGlobalMemoryBusWidth:
      *value = properties.memoryBusWidth;
      break;
    case cudaDevAttrL2CacheSize:
      *value = properties.l2CacheSize;
      break;
    case cudaDevAttrClockRate:
      *value = 1'700'000;
      break;
    case cudaDevAttrMemoryClockRate:
      *value = 2'600'000;
      break;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrMemoryPoolsSupported:
      *value = 1;
      break;
    default:
      *value = 0;
  }
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  if (!Exists(device)) return Tell(cudaErrorInvalidDevice);
  std::snprintf(text, static_cast<size_t>(bytes), "0000:%02X:00.0", device + 1);
  return Enter();
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (!Exists(device) || !Exists(peer)) return Tell(cudaErrorInvalidDevice);
  *can = device != peer && TheWorld().options.peers;
  return Enter();
}
cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute, int from, int to) {
  cudaError_t error = cudaDeviceCanAccessPeer(value, from, to);
  if (attribute == cudaDevP2PAttrPerformanceRank) *value = 0;
  return error;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  if (!Exists(peer) || peer == ThisThread().device || flags != 0) return Tell(cudaErrorInvalidDevice);
  if (!TheWorld().options.peers) return Tell(cudaErrorPeerAccessUnsupported);
  DeviceState& state = DeviceOf(ThisThread().device);
  std::lock_guard lock(TheWorld().mutex);
  return state.peers.insert(peer).second ? cudaSuccess : Tell(cudaErrorPeerAccessAlreadyEnabled);
}
cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  DeviceState& state = DeviceOf(ThisThread().device);
  std::lock_guard lock(TheWorld().mutex);
  return state.peers.erase(peer) != 0 ? cudaSuccess : Tell(cudaErrorPeerAccessNotEnabled);
}
cudaError_t cudaDeviceSynchronize() {
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  if (cudaError_t error = EnterUnsafe(); error != cudaSuccess) return error;
  ++TheWorld().host_synchronisations;
  DeviceState& state = DeviceOf(ThisThread().device);
  std::vector<cudaStream_t> streams = {state.legacy.get()};
  {
    std::lock_guard lock(TheWorld().mutex);
    streams.insert(streams.end(), state.streams.begin(), state.streams.end());
  }
  for (cudaStream_t stream : streams) WaitForStream(stream);
  return Tell(state.sticky);
}
cudaError_t cudaDeviceReset() { return Enter(); }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return Enter();
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  *pool = reinterpret_cast<cudaMemPool_t>(static_cast<uintptr_t>(device) + 1);
  return Enter();
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return Enter(); }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return Enter(); }

cudaError_t cudaMalloc(void** data, size_t bytes) {
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  if (cudaError_t error = EnterUnsafe(); error != cudaSuccess) return error;
  return Allocate(data, bytes);
}

// Waits for the device, as the real one does: what is still enqueued may use the block.
cudaError_t cudaFree(void* data) {
  cudaError_t error = Enter();
  if (data == nullptr) return error;
  if (!IsBlock(data, false)) return Tell(cudaErrorInvalidValue);
  if (cudaError_t unsafe = EnterUnsafe(); unsafe != cudaSuccess) return unsafe;
  int before = ThisThread().device;
  ThisThread().device = FindMemory(data).device;
  DeviceState& state = DeviceOf(ThisThread().device);
  std::vector<cudaStream_t> streams = {state.legacy.get()};
  {
    std::lock_guard lock(TheWorld().mutex);
    streams.insert(streams.end(), state.streams.begin(), state.streams.end());
  }
  for (cudaStream_t stream : streams) WaitForStream(stream);
  ThisThread().device = before;
  Free(data);
  return error;
}

cudaError_t cudaMallocAsync(void** data, size_t bytes, cudaStream_t stream) {
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  if (StreamOf(stream)->capture != nullptr) return Tell(cudaErrorNotSupported);
  return Allocate(data, bytes);
}
cudaError_t cudaFreeAsync(void* data, cudaStream_t stream) {
  cudaError_t error = Enter();
  if (data == nullptr) return error;
  if (!IsBlock(data, false)) return Tell(cudaErrorInvalidValue);
  if (StreamOf(stream)->capture != nullptr) return Tell(cudaErrorNotSupported);
  ++TheWorld().operations;
  Push(StreamOf(stream), [data] { Free(data); });
  return error;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  *total = TheWorld().options.memory;
  *free = *total - std::min<size_t>(*total, DeviceOf(ThisThread().device).used);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) {
  *data = nullptr;
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  if (cudaError_t error = EnterUnsafe(); error != cudaSuccess) return error;
  if (!Room(bytes)) return Tell(cudaErrorMemoryAllocation);
  if (bytes == 0) return cudaSuccess;
  *data = AllocatePinned(bytes);
  if (*data == nullptr) return Tell(cudaErrorMemoryAllocation);
  TheWorld().host_bytes += static_cast<int64_t>(bytes);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** data, size_t bytes) { return cudaHostAlloc(data, bytes, 0); }
cudaError_t cudaFreeHost(void* data) {
  cudaError_t error = Enter();
  if (data == nullptr) return error;
  if (!IsBlock(data, true)) return Tell(cudaErrorInvalidValue);
  if (cudaError_t unsafe = EnterUnsafe(); unsafe != cudaSuccess) return unsafe;
  TheWorld().host_bytes -= static_cast<int64_t>(FindMemory(data).bytes);
  FreeDevice(data);
  return error;
}
cudaError_t cudaHostRegister(void*, size_t, unsigned) { return Enter(); }
cudaError_t cudaHostUnregister(void*) { return Enter(); }
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  BlockOfMemory block = FindMemory(host);
  if (block.data == nullptr || block.device >= 0) return Tell(cudaErrorInvalidValue);
  *device = host;
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  BlockOfMemory block = FindMemory(data);
  void* address = const_cast<void*>(data);
  bool pinned = block.data != nullptr && block.device < 0;
  attributes->type = block.data == nullptr ? cudaMemoryTypeUnregistered
                     : pinned              ? cudaMemoryTypeHost
                                           : cudaMemoryTypeDevice;
  attributes->device = std::max(0, block.device);
  attributes->devicePointer = block.data == nullptr ? nullptr : address;
  attributes->hostPointer = pinned ? address : nullptr;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  if (!Fits(to, from, bytes, kind)) return Tell(cudaErrorInvalidValue);
  stream = StreamOf(stream);
  bool from_pageable = FindMemory(from).data == nullptr, to_pageable = FindMemory(to).data == nullptr;
  if (from_pageable && stream->capture == nullptr) {  // staged before the call returns
    auto staged = std::make_shared<std::vector<char>>(static_cast<const char*>(from),
                                                      static_cast<const char*>(from) + bytes);
    Submit(stream, [=] { Copy(to, staged->data(), bytes); });
    return cudaSuccess;
  }
  Submit(stream, [=] { Copy(to, from, bytes); });
  if (to_pageable && stream->capture == nullptr) {  // the real one waits too
    ++TheWorld().host_synchronisations;
    WaitForStream(stream);
  }
  return cudaSuccess;
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind, cudaStream_t stream) {
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  if (width > to_pitch || width > from_pitch) return Tell(cudaErrorInvalidValue);
  Submit(StreamOf(stream), [=] {
    for (size_t row = 0; row < height; ++row)
      Copy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
  });
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  if (cudaError_t error = EnterUnsafe(); error != cudaSuccess) return Tell(cudaErrorStreamCaptureImplicit);
  if (!Fits(to, from, bytes, kind)) return Tell(cudaErrorInvalidValue);
  ++TheWorld().host_synchronisations;
  cudaStream_t stream = StreamOf(nullptr);
  Submit(stream, [=] { Copy(to, from, bytes); });
  WaitForStream(stream);
  return Tell(DeviceOf(ThisThread().device).sticky);
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  if (!Fits(data, data, bytes, cudaMemcpyDefault)) return Tell(cudaErrorInvalidValue);
  Submit(StreamOf(stream), [=] {
    unsigned before = OpenAllDevices();
    std::memset(data, value, bytes);
    OpenDevices(before);
  });
  return cudaSuccess;
}
cudaError_t cudaMemset(void* data, int value, size_t bytes) {
  cudaError_t error = cudaMemsetAsync(data, value, bytes, nullptr);
  if (error == cudaSuccess) WaitForStream(StreamOf(nullptr));
  return error;
}

}  // extern "C"
