// For tests of single CUDA kernels on the emulator: a stream with its act state and work space, and operands
// that are copied to device memory before a launch and back after it.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <vector>

#include "ops/cuda/kernel.h"
#include "tests/cuda_emulator/emulator.h"

namespace oneflow_like::cuda {

class CudaBench {
 public:
  explicit CudaBench(cuda_emulator::Options options = {}) {
    options.at_once = true;
    cuda_emulator::Reset(options);
    EXPECT_EQ(cudaStreamCreateWithFlags(&launch.stream, cudaStreamNonBlocking), cudaSuccess);
    launch.workspace = Allocate(kWorkspaceBytes);
    launch.workspace_bytes = kWorkspaceBytes;
    launch.multiprocessors = 4;
    launch.architecture = 80;
    launch.number = 1;
    launch.fault = static_cast<Fault*>(Allocate(sizeof(Fault)));
    SetAct({});
  }
  ~CudaBench() {
    cudaStreamSynchronize(launch.stream);
    for (void* block : blocks_) cudaFree(block);
    cudaStreamDestroy(launch.stream);
  }
  CudaBench(const CudaBench&) = delete;

  void* Allocate(size_t bytes) {
    void* block = nullptr;
    EXPECT_EQ(cudaMalloc(&block, bytes > 0 ? bytes : 1), cudaSuccess);
    blocks_.push_back(block);
    return block;
  }
  void SetAct(const ActState& act) {
    if (launch.act == nullptr) launch.act = static_cast<ActState*>(Allocate(sizeof act));
    EXPECT_EQ(cudaMemcpy(const_cast<ActState*>(launch.act), &act, sizeof act, cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  void CopyIn(void* device, const void* host, size_t bytes) {
    EXPECT_EQ(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), cudaSuccess);
  }
  // After all that was enqueued.
  void CopyOut(void* host, const void* device, size_t bytes) {
    EXPECT_EQ(cudaStreamSynchronize(launch.stream), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
  }

  // Runs a kernel on operands of host memory, each in a block of its own that begins `shift` bytes past an
  // address of 256; what comes back are the outputs.
  Status Run(CudaKernel* kernel, KernelContext context, int64_t shift = 0) {
    std::vector<TensorArg> in(context.in.begin(), context.in.end()),
        out(context.out.begin(), context.out.end());
    auto move = [&](TensorArg* arg) {
      size_t bytes = static_cast<size_t>(arg->elements()) * SizeOf(arg->dtype);
      char* device = static_cast<char*>(Allocate(bytes + 256)) + shift;
      CopyIn(device, arg->data, bytes);
      arg->data = device;
    };
    for (TensorArg& arg : in) move(&arg);
    for (TensorArg& arg : out) move(&arg);
    SetAct({context.step, context.time});
    KernelContext there{context.spec, in,           out,           nullptr,
                        context.step, context.time, context.times, context.seed};
    Status status = kernel->Launch(there, launch);
    for (size_t i = 0; i < out.size(); ++i) {
      CopyOut(context.out[i].data, out[i].data,
              static_cast<size_t>(out[i].elements()) * SizeOf(out[i].dtype));
    }
    return status;
  }

  LaunchContext launch;

 private:
  std::vector<void*> blocks_;
};

}  // namespace oneflow_like::cuda
