// cuDNN's plans by shape, device and work space: kernels of equal shape (the layers of a model) share what was
// made for the first. Only where cuDNN is.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>
#include <vector>

#include "ops/cuda/graph_cudnn.h"
#include "ops/cuda/kernel.h"

namespace oneflow_like::cuda {

// What one kernel holds of the plans that all kernels of its kind share. `Made` is what a shape's plans are.
template <typename Shape, typename Made>
class CachedPlan {
 public:
  // What serves the shape on the current device within the launch's work space; nullptr if there is no handle.
  // make(target, room) is called for the first kernel that asks.
  template <typename Make>
  const Made* For(const Shape& shape, const LaunchContext& launch, Make&& make) {
    int device = -1;
    if (cudaGetDevice(&device) != cudaSuccess) return nullptr;
    const auto serves = [&](const Entry& entry) {
      return entry.shape == shape && entry.device == device && entry.room == launch.workspace_bytes;
    };
    if (entry_ && serves(*entry_)) return &entry_->made;
    cudnnHandle_t handle = nullptr;
    if (!CudnnHandle(device, &handle).ok()) return nullptr;
    static std::mutex mutex;  // threads of several ranks make plans
    static auto* entries = new std::vector<std::shared_ptr<const Entry>>;
    std::lock_guard lock(mutex);
    for (const auto& entry : *entries) {
      if (!serves(*entry)) continue;
      entry_ = entry;
      return &entry_->made;
    }
    auto fresh = std::make_shared<Entry>();
    fresh->shape = shape;
    fresh->device = device;
    fresh->room = launch.workspace_bytes;
    fresh->made = make(CudnnTarget{handle, nullptr}, launch.workspace_bytes);
    entries->push_back(fresh);
    entry_ = fresh;
    return &entry_->made;
  }

  // enqueue(handle, made), with a handle of the calling thread on the launch's stream. Launches are made by the
  // threads of all ranks that share the device; a plan is not said to bear two at once, and enqueueing takes
  // microseconds, so they take turns. REQUIRES: For was called.
  template <typename Enqueue>
  Status Launch(const LaunchContext& launch, Enqueue&& enqueue) const {
    cudnnHandle_t handle = nullptr;
    if (Status status = CudnnHandle(entry_->device, &handle); !status.ok()) return status;
    if (cudnnStatus_t status = cudnnSetStream(handle, launch.stream); status != CUDNN_STATUS_SUCCESS)
      return Status(Cat("cudnnSetStream: ", cudnnGetErrorString(status)));
    std::lock_guard lock(entry_->launching);
    return enqueue(handle, entry_->made);
  }

 private:
  struct Entry {
    Shape shape;
    int device = 0;
    size_t room = 0;  // of work space it was made for
    Made made;
    mutable std::mutex launching;
  };
  std::shared_ptr<const Entry> entry_;  // of the last shape
};

}  // namespace oneflow_like::cuda
