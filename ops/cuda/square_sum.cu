// square_sum: what the norm of gradients is made of. Sums of many tensors that follow each other in a segment
// are done together, by two launches: a block for each part of each tensor, then a warp for each tensor of
// several parts. The parts, and so the bits, follow from a tensor's size alone: the same together, alone, and
// on every device. Floor: each element is read once.
#include <algorithm>

#include "ops/cuda/kernels.h"
#include "ops/cuda/operand.h"
#include "ops/cuda/together.h"

namespace oneflow_like::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr int64_t kMostParts = 1024;

struct SumItem {
  const void* x;
  void* y;
  int64_t count;
  int64_t part;  // elements of one part, a multiple of 64
  DType result;
  bool packed;
};

constexpr size_t kMostTensors = 80;
struct SumList {
  SumItem items[kMostTensors];
  uint32_t first[kMostTensors];  // part of each tensor, counted over all; rising
  uint32_t parts;                // of all
  int32_t size;
  float* sums;  // of the parts
};
static_assert(sizeof(SumList) <= kMostArgumentBytes);

template <typename T>
OFL_DEVICE float SquaresOf(const T* x, int64_t begin, int64_t end, bool packed) {
  constexpr int kWidth = 16 / sizeof(T);
  float total = 0, lane[kWidth] = {};
  const int64_t self = threadIdx.x, all = blockDim.x;
  const int64_t packs = (packed ? end : begin) / kWidth;
  for (int64_t p = begin / kWidth + self; p < packs; p += all) {
    Pack<T, kWidth> pack = LoadPack<kWidth>(x + p * kWidth);
    for (int k = 0; k < kWidth; ++k) {
      float value = Load(pack.at[k]);
      lane[k] += value * value;
    }
  }
  for (int64_t i = packs * kWidth + self; i < end; i += all) {
    float value = Load(x[i]);
    total += value * value;
  }
  for (int k = 0; k < kWidth; ++k) total += lane[k];
  return total;
}

template <typename T>
OFL_KERNEL void SumParts(SumList list) {
  OFL_SHARED float room[32];
  const int t = ItemOf(list, blockIdx.x);
  const SumItem& item = list.items[t];
  const int64_t begin = int64_t{blockIdx.x - list.first[t]} * item.part;
  const int64_t end = begin + item.part < item.count ? begin + item.part : item.count;
  float sum = BlockSum(SquaresOf(static_cast<const T*>(item.x), begin, end, item.packed), room);
  if (threadIdx.x != 0) return;
  if (item.count <= item.part) {
    FloatView{item.y, item.result}.Put(0, sum);
  } else {
    list.sums[blockIdx.x] = sum;
  }
}

// A warp, and a block, for each tensor of several parts.
OFL_KERNEL void JoinSums(SumList list) {
  const int t = static_cast<int>(blockIdx.x);
  const uint32_t end = t + 1 < list.size ? list.first[t + 1] : list.parts;
  if (end - list.first[t] == 1) return;
  float total = 0;
  for (uint32_t part = list.first[t] + threadIdx.x; part < end; part += 32) total += list.sums[part];
  total = WarpSum(total);
  if (threadIdx.x == 0) FloatView{list.items[t].y, list.items[t].result}.Put(0, total);
}

class SquareSum : public CudaKernel {
 public:
  Status Launch(const KernelContext& context, const LaunchContext& launch) override {
    KernelRun run{this, context};
    return LaunchTogether({&run, 1}, launch);
  }
  size_t Together(std::span<const KernelRun> runs) const override {
    const DType dtype = runs[0].context.in[0].dtype;
    auto joins = [&](const KernelRun& run) {
      return dynamic_cast<const SquareSum*>(run.kernel) != nullptr && run.context.in[0].dtype == dtype;
    };
    size_t count = 1;
    while (count < std::min(runs.size(), kMostTensors) && joins(runs[count])) ++count;
    return count > 1 && Independent(runs.first(count)) ? count : 1;
  }
  Status LaunchTogether(std::span<const KernelRun> runs, const LaunchContext& launch) override;
};

Status SquareSum::LaunchTogether(std::span<const KernelRun> runs, const LaunchContext& launch) {
  SumList list{};
  list.sums = static_cast<float*>(launch.workspace);
  for (const KernelRun& run : runs) {
    const TensorArg &x = run.context.in[0], &y = run.context.out[0];
    SumItem& item = list.items[list.size];
    item = {x.data, y.data, x.elements(), 64, y.dtype, Aligned(x.data)};
    const int64_t wanted = std::clamp<int64_t>((item.count + 8191) / 8192, 1, kMostParts);
    item.part = std::max<int64_t>(64, ((item.count + wanted - 1) / wanted + 63) / 64 * 64);
    list.first[list.size++] = list.parts;
    // Nothing is one part as well, whose sum is 0.
    list.parts += static_cast<uint32_t>(std::max<int64_t>(1, (item.count + item.part - 1) / item.part));
  }
  WithFloating(runs[0].context.in[0].dtype, [&](auto x) {
    cuda::Launch(SumParts<decltype(x)>, Grid{.x = list.parts, .threads = kThreads}, launch.stream, list);
  });
  if (list.parts == static_cast<uint32_t>(list.size)) return Status();
  cuda::Launch(JoinSums, Grid{.x = static_cast<unsigned>(list.size), .threads = 32}, launch.stream, list);
  return Status();
}

}  // namespace

void AddSquareSumKernels(KernelRegistry* registry) {
  registry->Add("square_sum", "cuda",
                [](const KernelSpec&) -> std::unique_ptr<Kernel> { return std::make_unique<SquareSum>(); });
}

}  // namespace oneflow_like::cuda
