// softmax, log_softmax and their gradients over the last axis. A team of threads per row; the row waits in
// shared memory between its sum and its result, so each element crosses device memory once each way.
//
// Floor, bytes per element of type T: forward 2 sizeof(T), gradient 3 sizeof(T). Rows too long for shared
// memory (46 KiB, of the gradient half of that) are read twice.
#include "ops/cuda/kernels.h"
#include "ops/cuda/online_sum.h"

namespace oneflow_like::cuda {
namespace {

template <typename T>
OFL_KERNEL void SoftmaxRows(const T* x, T* y, RowPlan plan, bool log) {
  OFL_SHARED float room[32];
  Team team(plan);
  for (int64_t row = team.first; row < plan.rows; row += team.stride) {
    const T* from = x + row * plan.width;
    T* to = y + row * plan.width;
    T* kept = plan.slot > 0 ? RoomFor(from, plan, team, 0, 1) : nullptr;
    Cut cut = CutRow(from, plan);
    OnlineSum mine;
    ForRow<T>(
        cut, team, [&](int c, auto n) { return LoadPack<n.value>(from + c); },
        [&](int c, auto, const auto& pack) {
          if (kept != nullptr) StorePack(kept + c, pack);
          mine.Add(pack);
        });
    OnlineSum sum = mine.Combined(team, room);
    float factor = 1.0f / sum.total, less = logf(sum.total);
    const T* again = kept != nullptr ? kept : from;
    ForRow<T>(
        cut, team, [&](int c, auto n) { return LoadPack<n.value>(again + c); },
        [&](int c, auto n, auto pack) {
          for (int i = 0; i < n.value; ++i) {
            float above = Load(pack.at[i]) - sum.greatest;
            pack.at[i] = Store<T>(log ? above - less : expf(above) * factor);
          }
          StorePack(to + c, pack);
        });
  }
}

// softmax: (dy - sum(dy y)) y. log_softmax: dy - exp(y) sum(dy).
template <typename T>
OFL_KERNEL void SoftmaxGradRows(const T* dy, const T* y, T* dx, RowPlan plan, bool log) {
  OFL_SHARED float room[32];
  Team team(plan);
  for (int64_t row = team.first; row < plan.rows; row += team.stride) {
    const T *from_dy = dy + row * plan.width, *from_y = y + row * plan.width;
    T* to = dx + row * plan.width;
    bool keep = plan.slot > 0;
    T* kept_dy = keep ? RoomFor(from_dy, plan, team, 0, 2) : nullptr;
    T* kept_y = keep ? RoomFor(from_y, plan, team, 1, 2) : nullptr;
    Cut cut = CutRow(from_dy, plan);
    float mine = 0.0f;
    ForRow<T>(
        cut, team,
        [&](int c, auto n) {
          return PackPair<T, n.value>{LoadPack<n.value>(from_dy + c), LoadPack<n.value>(from_y + c)};
        },
        [&](int c, auto n, const auto& both) {
          if (keep) {
            StorePack(kept_dy + c, both.a);
            StorePack(kept_y + c, both.b);
          }
          for (int i = 0; i < n.value; ++i) mine += Load(both.a.at[i]) * (log ? 1.0f : Load(both.b.at[i]));
        });
    float total = team.Sum(mine, room);
    const T *again_dy = keep ? kept_dy : from_dy, *again_y = keep ? kept_y : from_y;
    ForRow<T>(
        cut, team,
        [&](int c, auto n) {
          return PackPair<T, n.value>{LoadPack<n.value>(again_dy + c), LoadPack<n.value>(again_y + c)};
        },
        [&](int c, auto n, auto both) {
          for (int i = 0; i < n.value; ++i) {
            float d = Load(both.a.at[i]), v = Load(both.b.at[i]);
            both.a.at[i] = Store<T>(log ? d - expf(v) * total : (d - total) * v);
          }
          StorePack(to + c, both.a);
        });
  }
}

template <bool kLog>
Status Softmax(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  if (x.elements() == 0) return Status();
  int64_t width = x.extent.back();
  RowPlan plan =
      PlanRows(x.elements() / width, width, SizeOf(x.dtype), {x.data, y.data}, 1, launch.multiprocessors);
  WithFloating(x.dtype, [&](auto t) {
    using T = decltype(t);
    Launch(SoftmaxRows<T>, plan.grid, launch.stream, x.as<T>(), y.as<T>(), plan, kLog);
  });
  return Status();
}

template <bool kLog>
Status SoftmaxGrad(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &dy = context.in[0], &y = context.in[1], &dx = context.out[0];
  if (y.elements() == 0) return Status();
  int64_t width = y.extent.back();
  RowPlan plan = PlanRows(y.elements() / width, width, SizeOf(y.dtype), {dy.data, y.data, dx.data}, 2,
                          launch.multiprocessors);
  WithFloating(y.dtype, [&](auto t) {
    using T = decltype(t);
    Launch(SoftmaxGradRows<T>, plan.grid, launch.stream, dy.as<T>(), y.as<T>(), dx.as<T>(), plan, kLog);
  });
  return Status();
}

}  // namespace

void AddSoftmaxKernels(KernelRegistry* registry) {
  registry->Add("softmax", "cuda", MakeLaunchKernel(Softmax<false>));
  registry->Add("log_softmax", "cuda", MakeLaunchKernel(Softmax<true>));
  registry->Add("softmax_grad", "cuda", MakeLaunchKernel(SoftmaxGrad<false>));
  registry->Add("log_softmax_grad", "cuda", MakeLaunchKernel(SoftmaxGrad<true>));
  AddCrossEntropyKernels(registry);
}

}  // namespace oneflow_like::cuda
