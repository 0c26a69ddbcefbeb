// Kernels compiled at run time. A real build compiles CUDA C++ with NVRTC (jit.cc); the emulator compiles the
// same text as host C++ (tests/cuda_emulator/jit_emulated.cc).
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "core/error.h"
#include "ops/cuda/grid.h"

namespace oneflow_like::cuda {

// A function of one parameter, a struct passed by value. Any thread may use it.
class Launchable {
 public:
  virtual ~Launchable() = default;
  virtual int architecture() const = 0;
  // Waits until it is compiled; returns the error otherwise, with the compiler's log.
  virtual const Status& Wait() = 0;
  // Enqueues it; `args` (a multiple of 8 bytes) is copied before this returns. Waits for the compiler the
  // first time.
  virtual Status Launch(const Grid& grid, cudaStream_t stream, const void* args, size_t bytes) = 0;
};

// Compiles `function` of `source` for an architecture (80, 90, ...), in the background; the same text is
// compiled once per process. Never throws: Wait and Launch return errors.
//
// The text is self-contained (no #include) and defines an extern "C" function: on a device
//   __global__ void function(Args args)
// and as host C++, one call per thread of a grid that needs no barrier,
//   void function(const void* args, unsigned block, unsigned blocks, unsigned thread, unsigned threads)
std::shared_ptr<Launchable> CompileKernel(const std::string& source, const std::string& function,
                                          int architecture);

// Of the calling thread's device; 80 when there is none.
int CurrentArchitecture();

}  // namespace oneflow_like::cuda
