// The interface of operators' CUDA kernels to the stream that runs them: they enqueue work, and read values
// that change from act to act from device memory, so that a recorded launch serves every step.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/device/device.h"
#include "core/device/kernel.h"
#include "ops/attention_library.h"

namespace oneflow_like::cuda {

// Written by the stream, in its order, before the kernels of an act.
struct ActState {
  int64_t step = 0;
  int64_t time = 0;  // micro-batch
};

// A failure that data causes (an index out of range). The first one is kept; the stream reports it when what
// has been enqueued is done. Lies in host memory that the device writes.
struct Fault {
  int32_t kernel = 0;  // LaunchContext::number of the kernel that failed; 0: none
  int32_t operand = 0;
  int64_t value = 0;
  int64_t limit = 0;
};

struct LaunchContext {
  cudaStream_t stream = nullptr;
  const ActState* act = nullptr;  // device memory
  Fault* fault = nullptr;         // as the device sees it
  int number = 0;                 // of this kernel on this stream, from 1
  void* workspace = nullptr;      // device memory of the stream, its kernels' in turn
  size_t workspace_bytes = 0;     // kWorkspaceBytes
  int multiprocessors = 1;
  int architecture = 80;  // 80, 90, ...
};
constexpr size_t kWorkspaceBytes = size_t{kStreamWorkspaceBytes};

class CudaKernel : public Kernel {
 public:
  // Enqueues; never waits. Step and micro-batch are context.step and context.time only in the call that is
  // recorded: kernels read launch.act instead. Operands, their extents, seed and times are what they are.
  virtual Status Launch(const KernelContext& context, const LaunchContext& launch) = 0;
  // How many of `runs`, consecutive kernels of a segment of which this is the first, can run in one launch of
  // this kernel with the same bits as one after another, or, of products, with those of a way that was chosen
  // when plans were loaded (products_together.h). Called whenever they are not replayed.
  virtual size_t Together(std::span<const KernelRun> /*runs*/) const { return 1; }
  // Enqueues all of them, as Launch does for each. REQUIRES: runs.size() is at most the result of Together. A
  // fault is reported, and explained, as this kernel's.
  virtual Status LaunchTogether(std::span<const KernelRun> runs, const LaunchContext& launch) {
    return Launch(runs[0].context, launch);
  }
  // Whether a recorded launch may be replayed: not when it depends on anything else of the host.
  virtual bool Recordable() const { return true; }
  // The sentence for a fault of this kernel's.
  virtual std::string Explain(const Fault&) const { return "a value is out of range"; }
  Status Run(const KernelContext&) final { return Status("a CUDA kernel needs a CUDA stream"); }
};

// Whether none of `runs` writes what another of them reads or writes: only such kernels are launched
// together.
bool Independent(std::span<const KernelRun> runs);

using KernelPtr = std::unique_ptr<Kernel>;
using LaunchFn = Status (*)(const KernelContext&, const LaunchContext&);
// A kernel without state.
KernelFactory MakeLaunchKernel(LaunchFn fn);

}  // namespace oneflow_like::cuda
