// within: a copy that looks at what it copies.
//
// Floor, bytes: every element is read and written once.
#include <cstring>
#include <memory>

#include "ops/cuda/kernels.h"
#include "ops/cuda/operand.h"
#include "ops/within.h"

namespace oneflow_like::cuda {
namespace {

OFL_DEVICE bool Lies(float value, float low, float high) { return value >= low && value <= high; }

// Of several elements outside the one of the lowest position is reported, in every run.
template <typename T>
OFL_KERNEL void CopyWithin(const T* x, T* y, int64_t count, float low, float high, FaultPort port) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const T element = x[i];
    y[i] = element;
    const float value = Load(element);
    if (Lies(value, low, high)) continue;
    bool first = true;
    for (int64_t j = 0; first && j < i; ++j) first = Lies(Load(x[j]), low, high);
    if (!first) continue;
    uint32_t bits = 0;
    memcpy(&bits, &value, sizeof bits);
    port.Raise(bits, 0);
  }
}

class WithinKernel final : public CudaKernel {
 public:
  explicit WithinKernel(const KernelSpec& spec) : range_(spec.attrs) {}

  Status Launch(const KernelContext& context, const LaunchContext& launch) override {
    const TensorArg &x = context.in[0], &y = context.out[0];
    const int64_t count = x.elements();
    if (count == 0) return Status();
    WithFloating(x.dtype, [&](auto t) {
      using T = decltype(t);
      cuda::Launch(CopyWithin<T>, Grid{.x = BlocksFor(count, 256, launch.multiprocessors)}, launch.stream,
                   static_cast<const T*>(x.as<T>()), y.as<T>(), count, static_cast<float>(range_.low),
                   static_cast<float>(range_.high), FaultOf(launch, 0));
    });
    return Status();
  }

  std::string Explain(const Fault& fault) const override {
    const auto bits = static_cast<uint32_t>(fault.value);
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    return range_.Outside(value);
  }

 private:
  const NumberRange range_;
};

}  // namespace

void AddWithinKernels(KernelRegistry* registry) {
  registry->Add("within", "cuda", [](const KernelSpec& spec) -> std::unique_ptr<Kernel> {
    return std::make_unique<WithinKernel>(spec);
  });
}

}  // namespace oneflow_like::cuda
