// Helpers for device code, for nvcc and for the emulator of tests/cuda_emulator, which compiles the same
// files as host C++: launches, shared memory, vectors of 16 bytes, element types.
//
// Rules that keep both happy: kernels are launched with Launch (no <<<>>>); shared arrays are declared
// OFL_SHARED or come from DynamicShared; every thread of a block reaches every __syncthreads(), every lane of
// a warp every shuffle (mask of all); blockDim.x is a multiple of 32 where shuffles are used.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/float16.h"
#include "ops/cuda/grid.h"

namespace oneflow_like::cuda {

// What a block has of dynamic shared memory without asking; the rest up to 48 KiB is left for shared arrays.
// A launch asks for more itself: blocks of kMostShared run on every GPU from compute capability 8.0 on.
constexpr size_t kUnaskedShared = size_t{32} << 10, kMostShared = size_t{96} << 10;

#if defined(__CUDACC__)
#define OFL_KERNEL __global__
#define OFL_DEVICE __device__ __forceinline__
#define OFL_SHARED __shared__
template <typename... Params, typename... Args>
void Launch(void (*kernel)(Params...), const Grid& grid, cudaStream_t stream, Args... args) {
  if (grid.x == 0 || grid.y == 0) return;
  if (grid.shared > kUnaskedShared)
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(grid.shared));
  kernel<<<dim3(grid.x, grid.y), grid.threads, grid.shared, stream>>>(static_cast<Params>(args)...);
}
template <typename T>
__device__ T* DynamicShared() {
  extern __shared__ __align__(16) unsigned char ofl_dynamic_shared[];
  return reinterpret_cast<T*>(ofl_dynamic_shared);
}
#else
#define OFL_KERNEL
#define OFL_DEVICE inline
#define OFL_SHARED static thread_local  // a grid runs on one thread, its stream's
template <typename... Params, typename... Args>
void Launch(void (*kernel)(Params...), const Grid& grid, cudaStream_t stream, Args... args) {
  if (grid.x == 0 || grid.y == 0) return;
  if (grid.shared > kUnaskedShared)
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(grid.shared));
  cuda_emulator::LoadCode(reinterpret_cast<const void*>(kernel));
  cuda_emulator::Enqueue(stream, [=] {
    cuda_emulator::RunGrid(grid.x, grid.y, grid.threads, grid.shared,
                           [=] { kernel(static_cast<Params>(args)...); });
  });
}
template <typename T>
T* DynamicShared() {
  return static_cast<T*>(cuda_emulator::Shared());
}
#endif

// --- Elements: storage types T are float, BFloat16, Float16, bool, int32_t, int64_t; mathematics is in float
OFL_DEVICE float Load(float x) { return x; }
OFL_DEVICE float Load(bool x) { return x ? 1.0f : 0.0f; }
OFL_DEVICE float Load(int32_t x) { return static_cast<float>(x); }
OFL_DEVICE float Load(int64_t x) { return static_cast<float>(x); }
OFL_DEVICE float Load(BFloat16 x);
OFL_DEVICE float Load(Float16 x);
template <typename T>
OFL_DEVICE T Store(float x);  // rounds to nearest even as core/float16.h does; bool: whether it is not 0

// N elements moved by one instruction where they are 16 bytes and aligned.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T at[N];
};

// --- Sums over a warp and a block, in a fixed order: the same bits in every run. All threads get the result.
OFL_DEVICE float WarpSum(float x) {
  for (int lane = 16; lane > 0; lane >>= 1) x += __shfl_xor_sync(0xFFFFFFFFu, x, lane);
  return x;
}
OFL_DEVICE float WarpMax(float x) {
  for (int lane = 16; lane > 0; lane >>= 1) {
    float other = __shfl_xor_sync(0xFFFFFFFFu, x, lane);
    x = other > x || other != other ? other : x;  // a NaN stays
  }
  return x;
}
// `room`: 32 floats of shared memory, free again when this returns to all threads.
OFL_DEVICE float BlockSum(float x, float* room);
OFL_DEVICE float BlockMax(float x, float* room);

}  // namespace oneflow_like::cuda

#include "ops/cuda/launch_detail.h"
