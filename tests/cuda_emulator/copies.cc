// The runtime API's allocations and copies.
#include <algorithm>
#include <cstring>

#include "tests/cuda_emulator/state.h"

namespace cuda_emulator {
namespace {

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
  if (const int delay = TheWorld().copy_delay_us; delay > 0)
    std::this_thread::sleep_for(std::chrono::microseconds(delay));
  unsigned before = OpenAllDevices();
  if (bytes > 0) std::memmove(to, from, bytes);
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

cudaError_t cudaMalloc(void** data, size_t bytes) {
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  if (cudaError_t error = EnterUnsafe(); error != cudaSuccess) return error;
  MayWait("cudaMalloc");
  return Allocate(data, bytes);
}

// Waits for the device, as the real one does: what is still enqueued may use the block.
cudaError_t cudaFree(void* data) {
  cudaError_t error = Enter();
  if (data == nullptr) return error;
  if (!IsBlock(data, false)) return Tell(cudaErrorInvalidValue);
  if (cudaError_t unsafe = EnterUnsafe(); unsafe != cudaSuccess) return unsafe;
  MayWait("cudaFree");
  int before = ThisThread().device;
  ThisThread().device = FindMemory(data).device;
  DeviceState& state = DeviceOf(ThisThread().device);
  std::vector<cudaStream_t> streams = {state.legacy.get()};
  {
    std::lock_guard lock(TheWorld().mutex);
    streams.insert(streams.end(), state.streams.begin(), state.streams.end());
  }
  for (cudaStream_t stream : streams) Wake(stream);  // all run, before one is waited for
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
  MayWait("cudaHostAlloc");
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
  if (!IsBlock(data, true) || FindMemory(data).mapping == nullptr) return Tell(cudaErrorInvalidValue);
  if (cudaError_t unsafe = EnterUnsafe(); unsafe != cudaSuccess) return unsafe;
  MayWait("cudaFreeHost");
  TheWorld().host_bytes -= static_cast<int64_t>(FindMemory(data).bytes);
  FreeDevice(data);
  return error;
}
cudaError_t cudaHostRegister(void* data, size_t bytes, unsigned) {
  MayWait("cudaHostRegister");
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  if (data == nullptr || bytes == 0) return Tell(cudaErrorInvalidValue);
  return RegisterMemory(data, bytes) ? cudaSuccess : Tell(cudaErrorInvalidValue);
}
cudaError_t cudaHostUnregister(void* data) {
  MayWait("cudaHostUnregister");
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  return UnregisterMemory(data) ? cudaSuccess : Tell(cudaErrorInvalidValue);
}
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
