// linear_cross_entropy and its sum, linear_class_statistics and linear_cross_entropy_grad: for each tile of
// rows the library's products and the kernels of cross_entropy.cu, one after another on the stream
// (ops/logit_tiles.h).
#include "ops/cuda/kernel.h"
#include "ops/cuda/kernels.h"
#include "ops/logit_tiles.h"

namespace oneflow_like::cuda {
namespace {

// On the stream of one launch. What adds to earlier tiles reads an ActState that is no first micro-batch's.
class StreamTiles : public TileDevice {
 public:
  StreamTiles(const LaunchContext& launch, void* state) : launch_(launch), later_(launch) {
    later_.act = static_cast<const ActState*>(state);
  }
  static_assert(sizeof(ActState) <= LogitTiles::kDeviceBytes);

  Status Run(Kernel* kernel, const KernelContext& context, bool adds) override {
    return static_cast<CudaKernel*>(kernel)->Launch(context, adds ? later_ : launch_);
  }

 private:
  const LaunchContext& launch_;
  LaunchContext later_;
};

class TilesKernel : public CudaKernel {
 public:
  TilesKernel(const KernelSpec& spec, const InnerKernels& kernels) : tiles_(spec, kernels) {}
  Status Launch(const KernelContext& context, const LaunchContext& launch) override {
    const cudaError_t error = cudaMemsetAsync(context.scratch, 1, sizeof(ActState), launch.stream);
    if (error != cudaSuccess) return Status(Cat("cudaMemsetAsync: ", cudaGetErrorString(error)));
    StreamTiles device(launch, context.scratch);
    return tiles_.Run(context, &device);
  }
  bool Recordable() const override {
    for (Kernel* kernel : tiles_.kernels())
      if (!static_cast<CudaKernel*>(kernel)->Recordable()) return false;
    return true;
  }
  std::string Explain(const Fault& fault) const override {
    return Cat("target ", fault.value, " is outside the ", fault.limit, " classes");
  }

 private:
  LogitTiles tiles_;
};

}  // namespace

void AddLinearCrossEntropyKernels(KernelRegistry* registry) {
  for (const char* name : {"linear_cross_entropy", "linear_class_statistics", "linear_cross_entropy_sum",
                           "linear_cross_entropy_grad"})
    registry->AddComposed(
        name, "cuda",
        [](const KernelSpec& spec, const InnerKernels& kernels) -> std::unique_ptr<Kernel> {
          return std::make_unique<TilesKernel>(spec, kernels);
        },
        LogitTiles::Scratch);
}

}  // namespace oneflow_like::cuda
