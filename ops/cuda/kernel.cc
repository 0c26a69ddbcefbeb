// Kernels without state.
#include "ops/cuda/kernel.h"

namespace oneflow_like::cuda {
namespace {

class FunctionKernel : public CudaKernel {
 public:
  explicit FunctionKernel(LaunchFn fn) : fn_(fn) {}
  Status Launch(const KernelContext& context, const LaunchContext& launch) override {
    return fn_(context, launch);
  }

 private:
  LaunchFn fn_;
};

}  // namespace

KernelFactory MakeLaunchKernel(LaunchFn fn) {
  return [fn](const KernelSpec&) -> std::unique_ptr<Kernel> { return std::make_unique<FunctionKernel>(fn); };
}

}  // namespace oneflow_like::cuda
