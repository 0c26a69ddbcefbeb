// The device of one rank: memory and streams on a GPU that other ranks may share.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "actor/cuda/gpu.h"
#include "core/device/backend.h"

namespace oneflow_like::cuda {

// A stream's memory beside its operands. It is reused by later streams, because a store creates a stream for
// each variable that it initialises.
struct StreamMemory {
  std::unique_ptr<Memory> state;      // device: ActState, Fault
  std::unique_ptr<Memory> faults;     // host: of kFaults notifications
  std::unique_ptr<Memory> workspace;  // device: kWorkspaceBytes, or none yet
  static constexpr int kFaults = 16;
};

class CudaDevice : public Device {
 public:
  // `gpu` and `host_memory` must outlive the device. Host memory is taken from `host_memory` unless it is
  // nullptr. Throws Error.
  CudaDevice(int rank, Gpu* gpu, MemorySource* host_memory = nullptr);
  ~CudaDevice() override;
  const std::string& kind() const override;
  int index() const override { return rank_; }
  Gpu& gpu() const { return *gpu_; }
  // "device cuda:1 on GPU 0 (NVIDIA H100 80GB HBM3)"
  const std::string& name() const { return name_; }

  // First compares with the free memory of the moment, because other processes may use the GPU, too. Memory
  // is not cleared: write it before reading.
  std::unique_ptr<Memory> Allocate(size_t bytes, const std::string& what) override;
  std::unique_ptr<Memory> AllocateHost(size_t bytes, const std::string& what) override;
  // Waits for the copy, not for other streams. Throws Error when the device is lost.
  void CopyIn(void* device, const void* host, size_t bytes) override;
  void CopyOut(void* host, const void* device, size_t bytes) override;
  // "link ..." (exchange between ranks) has priority over others on the device. "compute" gets its work space
  // now, others when they first run a kernel.
  std::unique_ptr<DeviceStream> MakeStream(const std::string& name) override;
  std::string hardware() const override { return gpu_->uuid(); }
  // Whether kernels can use the memory of another CUDA device of this process: if the GPUs are connected.
  bool Reaches(const Device& other) const override;

  // For streams. Has a work space if `workspace` is true, and may have one otherwise. Throws Error.
  StreamMemory TakeStreamMemory(bool workspace);
  std::unique_ptr<Memory> AllocateWorkspace();
  void GiveBack(StreamMemory memory);  // REQUIRES: nothing enqueued uses it any more

 private:
  void Copy(void* to, const void* from, size_t bytes);

  const int rank_;
  Gpu* const gpu_;
  MemorySource* const host_memory_;
  const std::string name_;
  cudaStream_t copies_ = nullptr;
  std::mutex mutex_;        // copies_: callers on several threads wait for their own copy
  std::mutex spare_mutex_;  // spare_: streams are made on the threads of a store and of a runtime
  std::vector<StreamMemory> spare_;
};

}  // namespace oneflow_like::cuda
