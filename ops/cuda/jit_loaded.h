// The part of compiling kernels at run time that differs between a real build and the emulator.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "core/error.h"
#include "ops/cuda/grid.h"

namespace oneflow_like::cuda {

// NVRTC's options beside the architecture.
constexpr const char* kNvrtcOptions[] = {"--std=c++17", "--device-as-default-execution-space"};

class LoadedKernel {
 public:
  virtual ~LoadedKernel() = default;
  virtual Status Launch(const Grid& grid, cudaStream_t stream, const void* args, size_t bytes) = 0;
};

// Compiles, or finds what was compiled before, and loads; any thread. jit_nvrtc.cc, or the emulator's.
Status CompileAndLoad(const std::string& source, const std::string& function, int architecture,
                      std::unique_ptr<LoadedKernel>* loaded);

}  // namespace oneflow_like::cuda
