// The operator on NVIDIA GPUs.
#include "distance.h"
#include "ops/cuda/kernel.h"

using namespace oneflow_like;

// What stands between these two lines is in oneflow_like/README.md.
// [operator]
__global__ void Distances(const float* x, const float* c, float* y, int64_t count, int64_t rows,
                          int64_t width) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float *a = x + i / rows * width, *b = c + i % rows * width;
  float sum = 0;
  for (int64_t d = 0; d < width; ++d) sum += (a[d] - b[d]) * (a[d] - b[d]);
  y[i] = sum;
}

class DistanceCudaKernel final : public cuda::CudaKernel {
  // Enqueues on the rank's stream and never waits; what it enqueues is recorded and replayed.
  Status Launch(const KernelContext& context, const cuda::LaunchContext& launch) override {
    const TensorArg &x = context.in[0], &c = context.in[1], &y = context.out[0];  // in the device's memory
    if (y.elements() == 0) return {};
    const auto blocks = static_cast<unsigned>((y.elements() + 255) / 256);
    Distances<<<blocks, 256, 0, launch.stream>>>(x.as<float>(), c.as<float>(), y.as<float>(), y.elements(),
                                                 c.extent[0], c.extent[1]);
    const cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? Status() : Status(cudaGetErrorString(error));
  }
};

void AddDistanceCuda(KernelRegistry* registry) {  // for ModelOptions::kernels
  registry->Add("distance", "cuda", [](const KernelSpec&) { return std::make_unique<DistanceCudaKernel>(); });
}
// [operator]
