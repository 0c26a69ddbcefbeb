// cross_entropy fused with its log-softmax, and its gradient from the log-sum-exp: no probabilities are
// stored.
//
// Floor, bytes per logit of type T: forward sizeof(T), gradient 2 sizeof(T); a row to which no gradient comes
// is not read by the gradient. Rows of odd length (50257 classes) are walked in aligned packs like all
// others.
#include "ops/class_blocks.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/online_sum.h"

namespace oneflow_like::cuda {
namespace {

template <typename T>
OFL_KERNEL void CrossEntropyRows(const T* logits, IndexView target, FloatView loss, FloatView lse,
                                 RowPlan plan, FaultPort port) {
  OFL_SHARED float room[32];
  Team team(plan);
  for (int64_t row = team.first; row < plan.rows; row += team.stride) {
    const T* x = logits + row * plan.width;
    OnlineSum mine;
    ForRow<T>(
        CutRow(x, plan), team, [&](int c, auto n) { return LoadPack<n.value>(x + c); },
        [&](int, auto, const auto& pack) { mine.Add(pack); });
    OnlineSum sum = mine.Combined(team, room);
    if (team.me != 0) continue;
    int64_t wanted = target.At(row);
    float total = logf(sum.total), value = 0.0f;
    CheckIndex(target, row, wanted, false, plan.width, port);
    if (wanted >= 0 && wanted < plan.width) {
      // The greatest is taken off first: the difference of two large numbers would lose the small loss.
      value = total + (sum.greatest - Load(x[wanted]));
    }
    loss.Put(row, value);
    lse.Put(row, total + sum.greatest);
  }
}

struct HeldClasses {
  int64_t width = 0, begin = 0, all = 0;  // classes held here, the first one, and of all ranks
};

// A team for each block of classes of each row.
template <typename T>
OFL_KERNEL void ClassStatisticsBlocks(const T* logits, IndexView target, HeldClasses held, FloatView greatest,
                                      FloatView total, FloatView own, int64_t blocks, RowPlan plan,
                                      FaultPort port) {
  OFL_SHARED float room[32];
  Team team(plan);
  for (int64_t at = team.first; at < plan.rows; at += team.stride) {
    const int64_t row = at / blocks, block = at % blocks, first = FirstOfBlock(held.width, blocks, block);
    const T* x = logits + row * held.width + first;
    RowPlan part = plan;
    part.width = static_cast<int>(FirstOfBlock(held.width, blocks, block + 1) - first);
    OnlineSum mine;
    ForRow<T>(
        CutRow(x, part), team, [&](int c, auto n) { return LoadPack<n.value>(x + c); },
        [&](int, auto, const auto& pack) { mine.Add(pack); });
    OnlineSum sum = mine.Joined(team, room);
    if (team.me != 0) continue;
    greatest.Put(at, sum.greatest);
    total.Put(at, sum.total);
    if (block != 0) continue;
    const int64_t wanted = target.At(row), here = wanted - held.begin;
    CheckIndex(target, row, wanted, false, held.all, port);
    own.Put(row,
            wanted >= 0 && here >= 0 && here < held.width ? Load(logits[row * held.width + here]) : 0.0f);
  }
}

struct RowInputs {
  IndexView target;
  FloatView lse, dloss, dlse;  // dlse: without memory where no gradient comes to lse
  int64_t begin, classes;      // first class held here; classes of all
};

template <typename T>
OFL_KERNEL void CrossEntropyGradRows(const T* logits, RowInputs in, T* dlogits, RowPlan plan,
                                     FaultPort port) {
  Team team(plan);
  for (int64_t row = team.first; row < plan.rows; row += team.stride) {
    const T* x = logits + row * plan.width;
    T* dx = dlogits + row * plan.width;
    Cut cut = CutRow(x, plan);
    int64_t wanted = in.target.At(row), here = wanted - in.begin;
    if (team.me == 0) CheckIndex(in.target, row, wanted, false, in.classes, port);
    const float of_lse = in.dlse.data != nullptr ? in.dlse.At(row) : 0.0f;
    if (wanted < 0 && of_lse == 0.0f) {
      auto zeros = [](int, auto n) {
        Pack<T, n.value> pack;
        for (int i = 0; i < n.value; ++i) pack.at[i] = Store<T>(0.0f);
        return pack;
      };
      ForRow<T>(cut, team, zeros, [&](int c, auto, const auto& pack) { StorePack(dx + c, pack); });
      continue;
    }
    const float lse = in.lse.At(row), dloss = wanted < 0 ? 0.0f : in.dloss.At(row), both = dloss + of_lse;
    ForRow<T>(
        cut, team, [&](int c, auto n) { return LoadPack<n.value>(x + c); },
        [&](int c, auto n, auto pack) {
          for (int i = 0; i < n.value; ++i) {
            float probability = expf(Load(pack.at[i]) - lse);
            const float slope = both * probability;
            pack.at[i] = Store<T>(
                wanted >= 0 && c + i == here ? dloss * (probability - 1.0f) + of_lse * probability : slope);
          }
          StorePack(dx + c, pack);
        });
  }
}

Status CrossEntropy(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &logits = context.in[0], &target = context.in[1];
  int64_t width = logits.extent.back();
  RowPlan plan =
      PlanRows(target.elements(), width, SizeOf(logits.dtype), {logits.data}, 0, launch.multiprocessors);
  WithFloating(logits.dtype, [&](auto t) {
    using T = decltype(t);
    Launch(CrossEntropyRows<T>, plan.grid, launch.stream, logits.as<T>(), IndicesOf(target),
           FloatsOf(context.out[0]), FloatsOf(context.out[1]), plan, FaultOf(launch, 1));
  });
  return Status();
}

Status ClassStatisticsOf(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &logits = context.in[0], &target = context.in[1], &own = context.out[2];
  const HeldClasses held = {logits.extent.back(), logits.begin.back(), logits.global.back()};
  const int64_t blocks = context.out[0].extent.back();
  if (blocks == 0 && held.width > 0) return TooFewBlocks(context.out[0].global.back());
  if (blocks == 0) {
    const size_t bytes = static_cast<size_t>(own.elements()) * SizeOf(own.dtype);
    const cudaError_t error = cudaMemsetAsync(own.data, 0, bytes, launch.stream);
    return error == cudaSuccess ? Status() : Status(Cat("cudaMemsetAsync: ", cudaGetErrorString(error)));
  }
  RowPlan plan = PlanRows(target.elements() * blocks, (held.width + blocks - 1) / blocks,
                          SizeOf(logits.dtype), {logits.data}, 0, launch.multiprocessors);
  WithFloating(logits.dtype, [&](auto t) {
    using T = decltype(t);
    Launch(ClassStatisticsBlocks<T>, plan.grid, launch.stream, logits.as<T>(), IndicesOf(target), held,
           FloatsOf(context.out[0]), FloatsOf(context.out[1]), FloatsOf(own), blocks, plan,
           FaultOf(launch, 1));
  });
  return Status();
}

Status CrossEntropyGrad(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &logits = context.in[0], &target = context.in[1], &dlogits = context.out[0];
  RowInputs in = {IndicesOf(target),       FloatsOf(context.in[2]),
                  FloatsOf(context.in[3]), context.in.size() > 4 ? FloatsOf(context.in[4]) : FloatView(),
                  logits.begin.back(),     logits.global.back()};
  RowPlan plan = PlanRows(target.elements(), logits.extent.back(), SizeOf(logits.dtype),
                          {logits.data, dlogits.data}, 0, launch.multiprocessors);
  WithFloating(logits.dtype, [&](auto t) {
    using T = decltype(t);
    Launch(CrossEntropyGradRows<T>, plan.grid, launch.stream, logits.as<T>(), in, dlogits.as<T>(), plan,
           FaultOf(launch, 1));
  });
  return Status();
}

std::string OutOfRange(const Fault& fault) {
  return Cat("target ", fault.value, " is outside the ", fault.limit, " classes");
}

}  // namespace

void AddCrossEntropyKernels(KernelRegistry* registry) {
  registry->Add("cross_entropy", "cuda", MakeIndexKernel(CrossEntropy, OutOfRange));
  registry->Add("class_statistics", "cuda", MakeIndexKernel(ClassStatisticsOf, OutOfRange));
  registry->Add("cross_entropy_grad", "cuda", MakeIndexKernel(CrossEntropyGrad, OutOfRange));
}

}  // namespace oneflow_like::cuda
