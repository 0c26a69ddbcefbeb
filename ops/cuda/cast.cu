// Casts between fp32 and the 16-bit types. A step in 16 bits begins with those of all weights: casts that
// follow each other in a segment are one launch, whose blocks are dealt out to the tensors. Eight elements a
// thread, 16 bytes of the narrow side. Floor: 6 bytes an element.
#include <algorithm>

#include "ops/cuda/chain.h"
#include "ops/cuda/operand.h"
#include "ops/cuda/together.h"

namespace oneflow_like::cuda {
namespace {

constexpr int kWidth = 8;

struct CastItem {
  const void* x;
  void* y;
  int64_t count;
  bool packed;
};

constexpr size_t kMostTensors = 110;
struct CastList {
  CastItem items[kMostTensors];
  uint32_t first[kMostTensors];  // block of each tensor; rising
  int32_t size;
  int64_t stretch;  // elements of a block, a multiple of kWidth
};
static_assert(sizeof(CastList) <= kMostArgumentBytes);

template <typename From, typename To>
OFL_DEVICE void CastPack(const From* x, To* y) {
  constexpr int kRead = 16 / sizeof(From), kWrite = 16 / sizeof(To);
  Pack<From, kRead> in[kWidth / kRead];
  Pack<To, kWrite> out[kWidth / kWrite];
  for (int i = 0; i < kWidth / kRead; ++i) in[i] = LoadPack<kRead>(x + i * kRead);
  for (int k = 0; k < kWidth; ++k)
    out[k / kWrite].at[k % kWrite] = Store<To>(Load(in[k / kRead].at[k % kRead]));
  for (int i = 0; i < kWidth / kWrite; ++i) StorePack(y + i * kWrite, out[i]);
}

template <typename From, typename To>
OFL_KERNEL void CastElements(CastList list) {
  const int t = ItemOf(list, blockIdx.x);
  const CastItem& item = list.items[t];
  const From* x = static_cast<const From*>(item.x);
  To* y = static_cast<To*>(item.y);
  const int64_t begin = int64_t{blockIdx.x - list.first[t]} * list.stretch;
  const int64_t end = begin + list.stretch < item.count ? begin + list.stretch : item.count;
  const int64_t packs = (item.packed ? end : begin) / kWidth;
  for (int64_t p = begin / kWidth + threadIdx.x; p < packs; p += blockDim.x)
    CastPack(x + p * kWidth, y + p * kWidth);
  for (int64_t i = packs * kWidth + threadIdx.x; i < end; i += blockDim.x) y[i] = Store<To>(Load(x[i]));
}

template <typename From, typename To>
class FloatCast : public CudaKernel {
 public:
  Status Launch(const KernelContext& context, const LaunchContext& launch) override {
    KernelRun run{this, context};
    return LaunchTogether({&run, 1}, launch);
  }
  size_t Together(std::span<const KernelRun> runs) const override {
    size_t count = 1;
    while (count < std::min(runs.size(), kMostTensors) &&
           dynamic_cast<const FloatCast*>(runs[count].kernel) != nullptr) {
      ++count;
    }
    return count > 1 && Independent(runs.first(count)) ? count : 1;
  }
  Status LaunchTogether(std::span<const KernelRun> runs, const LaunchContext& launch) override {
    CastList list{};
    for (const KernelRun& run : runs) {
      const TensorArg &x = run.context.in[0], &y = run.context.out[0];
      if (y.elements() == 0) continue;
      list.items[list.size++] = {x.data, y.data, y.elements(), Aligned(x.data) && Aligned(y.data)};
    }
    const uint32_t blocks = DealOut(&list, kWidth * 256, launch.multiprocessors);
    cuda::Launch(CastElements<From, To>, Grid{.x = blocks}, launch.stream, list);
    return Status();
  }
};

}  // namespace

KernelPtr MakeFloatCast(DType from, DType to) {
  if (from == DType::kFloat32 && to == DType::kBFloat16)
    return std::make_unique<FloatCast<float, BFloat16>>();
  if (from == DType::kFloat32 && to == DType::kFloat16) return std::make_unique<FloatCast<float, Float16>>();
  if (from == DType::kBFloat16 && to == DType::kFloat32)
    return std::make_unique<FloatCast<BFloat16, float>>();
  if (from == DType::kFloat16 && to == DType::kFloat32) return std::make_unique<FloatCast<Float16, float>>();
  return nullptr;
}

}  // namespace oneflow_like::cuda
