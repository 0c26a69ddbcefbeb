// Opening a GPU, and access between GPUs.
#include "actor/cuda/gpu.h"

#include <glog/logging.h>

#include "actor/cuda/error.h"
#include "ops/cuda/driver_turn.h"

namespace oneflow_like::cuda {
namespace {

constexpr int kOldestArchitecture = 80;

}  // namespace

Gpu::Gpu(int ordinal) : ordinal_(ordinal) {
  DriverCall call;
  cudaDeviceProp properties;
  Require(cudaGetDeviceProperties(&properties, ordinal), "GPU ", ordinal, " cannot be used");
  name_ = Cat("GPU ", ordinal, " (", properties.name, ")");
  uuid_ = "GPU-";
  for (char byte : properties.uuid.bytes) {
    for (int digit : {(byte >> 4) & 15, byte & 15}) uuid_ += "0123456789abcdef"[digit];
  }
  multiprocessors_ = properties.multiProcessorCount;
  architecture_ = properties.major * 10 + properties.minor;
  if (architecture_ < kOldestArchitecture) {
    Fail(name_, " has compute capability ", properties.major, ".", properties.minor,
         ", but the kernels here need ", kOldestArchitecture / 10, ".", kOldestArchitecture % 10,
         " or newer");
  }
  Require(cudaSetDevice(ordinal), name_, " cannot be used");
  Require(cudaFree(nullptr), name_, " cannot be used");  // makes the context, if it can be made
  size_t free = 0, total = 0;
  Require(cudaMemGetInfo(&free, &total), name_, " does not say what memory is free");
  free_at_first_ = static_cast<int64_t>(free);
  completion_ = std::make_unique<Completion>(ordinal, name_, &health_);
}

// A failure shows in the call that follows.
void Gpu::Use() const { cudaSetDevice(ordinal_); }

int64_t Gpu::OtherBytes() const {
  DriverCall call;
  Use();
  size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return free_at_first_ - static_cast<int64_t>(free) - allocated_bytes();
}

bool Gpu::Reaches(const Gpu& other) {
  if (other.ordinal_ == ordinal_) return true;
  DriverCall call;
  std::lock_guard<std::mutex> lock(mutex_);
  if (peers_.count(other.ordinal_) > 0) return true;
  if (strangers_.count(other.ordinal_) > 0) return false;
  int can = 0;
  cudaError_t error = cudaDeviceCanAccessPeer(&can, ordinal_, other.ordinal_);
  if (error == cudaSuccess && can != 0) {
    Use();
    error = cudaDeviceEnablePeerAccess(other.ordinal_, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {  // by a library
      cudaGetLastError();
      error = cudaSuccess;
    }
  }
  if (error != cudaSuccess) {
    cudaGetLastError();
    LOG(WARNING) << name_ << " does not reach the memory of " << other.name_ << ": " << Say(error);
  }
  bool reached = error == cudaSuccess && can != 0;
  (reached ? peers_ : strangers_).insert(other.ordinal_);
  return reached;
}

}  // namespace oneflow_like::cuda
