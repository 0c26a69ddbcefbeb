// The runtime API's errors and devices.
#include <algorithm>
#include <cstdio>

#include "tests/cuda_emulator/state.h"

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
  if (cudaError_t error = Look(); error != cudaSuccess) return error;
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
  return Look();
}
cudaError_t cudaSetDeviceFlags(unsigned) { return Look(); }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (cudaError_t error = Look(); error != cudaSuccess) return error;
  if (!Exists(device)) return Tell(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "Emulated device");
  properties->uuid.bytes[0] = static_cast<char>(device + 1);
  properties->totalGlobalMem = TheWorld().options.memory;
  properties->sharedMemPerBlock = 48 << 10;
  properties->sharedMemPerBlockOptin = 99 << 10;
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
  return Look();
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (!Exists(device) || !Exists(peer)) return Tell(cudaErrorInvalidDevice);
  *can = device != peer && TheWorld().options.peers;
  return Look();
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
  MayWait("cudaDeviceEnablePeerAccess");
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
  for (cudaStream_t stream : streams) Wake(stream);  // all run, before one is waited for
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

}  // extern "C"
