// Routes to experts, and the rows that go there and back. A warp walks the queue of one expert of one pool,
// 32 choices at a time, and numbers those that are the expert's by a ballot; where they are too many, a
// search over the bits of their weights finds the least that stays. Rows are gathered, a warp for each.
//
// Floor, bytes: each row is read and written once; of the tables, each expert's warp reads its pool's
// choices.
#include "ops/cuda/kernels.h"
#include "ops/cuda/operand.h"
#include "ops/routes.h"

namespace oneflow_like::cuda {
namespace {

// Operands of faults.
constexpr int kOutsideExperts = 0, kFullExpert = 1;

struct Queues {
  IndexView ids;
  FloatView weights;  // no data: the first of a queue stay
  int64_t pools, tokens, k, experts, room;
  int64_t first_pool;

  OFL_DEVICE int64_t Choices() const { return tokens * k; }
  // The choice that is number q in the queue: first choices of all tokens come before second ones.
  OFL_DEVICE int64_t Choice(int64_t q) const { return q % tokens * k + q / tokens; }
  // Greater for a greater weight; a NaN is as -infinity, and both zeros are equal.
  OFL_DEVICE uint32_t Key(int64_t i) const {
    float w = weights.At(i) + 0.0f;
    if (w != w) w = -INFINITY;
    uint32_t bits = 0;
    memcpy(&bits, &w, sizeof bits);
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  }
};

OFL_KERNEL void ClearPlaces(IndexView ids, int64_t count, int64_t experts, int32_t* places, FaultPort port) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    places[i] = -1;
    CheckIndex(ids, i, ids.At(i), true, experts, port);
  }
}

// How many choices of the expert `of` tells. All lanes of a warp get the number.
template <typename Of>
OFL_DEVICE int64_t CountChoices(const Queues& queues, int64_t pool, int64_t expert, Of of) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int64_t count = 0;
  for (int64_t q0 = 0; q0 < queues.Choices(); q0 += 32) {
    bool counts = false;
    if (q0 + lane < queues.Choices()) {
      const int64_t i = pool * queues.Choices() + queues.Choice(q0 + lane);
      counts = queues.ids.At(i) == expert && of(i);
    }
    count += __popc(__ballot_sync(0xFFFFFFFFu, counts));
  }
  return count;
}

OFL_KERNEL void FillQueues(Queues queues, int32_t* slots, int32_t* places, int32_t* counts, bool error,
                           FaultPort port) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t warps = int64_t{gridDim.x} * (blockDim.x / 32), choices = queues.Choices();
  for (int64_t own = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
       own < queues.pools * queues.experts; own += warps) {
    const int64_t pool = own / queues.experts, expert = own % queues.experts, room = queues.room;
    const int64_t wanted = CountChoices(queues, pool, expert, [](int64_t) { return true; });
    if (lane == 0) {
      counts[own] = static_cast<int32_t>(wanted);
      if (error && wanted > room)
        port.Raise(((queues.first_pool + pool) << 32) | expert, (wanted << 32) | room);
    }
    const bool by_weight = queues.weights.data != nullptr && wanted > room;
    uint32_t least = 0;  // the key of the least that stays
    int64_t ties = room;
    if (by_weight) {
      for (int bit = 31; bit >= 0; --bit) {
        const uint32_t higher = least | (1u << bit);
        if (CountChoices(queues, pool, expert, [&](int64_t i) { return queues.Key(i) >= higher; }) >= room)
          least = higher;
      }
      ties = room - CountChoices(queues, pool, expert, [&](int64_t i) { return queues.Key(i) > least; });
    }
    int64_t filled = 0, tied = 0;
    for (int64_t q0 = 0; q0 < choices; q0 += 32) {
      bool above = false, tie = false;
      const int64_t choice = q0 + lane < choices ? queues.Choice(q0 + lane) : 0;
      if (q0 + lane < choices && queues.ids.At(pool * choices + choice) == expert) {
        const uint32_t key = by_weight ? queues.Key(pool * choices + choice) : 0;
        above = key > least;
        tie = key == least;
      }
      const unsigned before = (1u << lane) - 1, equals = __ballot_sync(0xFFFFFFFFu, tie);
      const bool stays = above || (tie && tied + __popc(equals & before) < ties);
      const unsigned all = __ballot_sync(0xFFFFFFFFu, stays);
      if (stays) {
        const int64_t slot = filled + __popc(all & before);
        slots[own * room + slot] = static_cast<int32_t>(choice);
        places[pool * choices + choice] = static_cast<int32_t>(expert * room + slot);
      }
      tied += __popc(equals);
      filled += __popc(all);
    }
    for (int64_t slot = filled + lane; slot < room; slot += 32) slots[own * room + slot] = -1;
  }
}

Status RouteOnDevice(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &experts = context.in[0], &slots = context.out[0];
  const Queues queues{IndicesOf(experts), context.in.size() > 1 ? FloatsOf(context.in[1]) : FloatView{},
                      experts.extent[0],  experts.extent[1],
                      experts.extent[2],  slots.extent[1],
                      slots.extent[2],    experts.begin[0]};
  auto* places = context.out[1].as<int32_t>();
  Launch(ClearPlaces, Grid{.x = BlocksFor(experts.elements(), 256, launch.multiprocessors)}, launch.stream,
         queues.ids, experts.elements(), queues.experts, places, FaultOf(launch, kOutsideExperts));
  const int64_t lines = queues.pools * queues.experts;
  if (lines == 0) return Status();
  Launch(FillQueues, Grid{.x = BlocksFor(lines * 32, 256, launch.multiprocessors)}, launch.stream, queues,
         slots.as<int32_t>(), places, context.out[2].as<int32_t>(), context.spec.attrs.Int("error") != 0,
         FaultOf(launch, kFullExpert));
  return Status();
}

std::string ExplainRoute(const Fault& fault) {
  if (fault.operand == kOutsideExperts)
    return Cat("index ", fault.value, " is outside [0, ", fault.limit, ")");
  constexpr int64_t kLow = (int64_t{1} << 32) - 1;
  return NoRoom(fault.value & kLow, fault.value >> 32, fault.limit >> 32, fault.limit & kLow).message();
}

template <typename T>
OFL_KERNEL void GatherToExperts(RouteTables tables, const T* x, FloatView weights, T* y, int64_t width) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t warps = int64_t{gridDim.x} * (blockDim.x / 32);
  for (int64_t row = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32; row < tables.rows();
       row += warps) {
    const int64_t choice = tables.ChoiceOf(row);
    const bool weighed = weights.data != nullptr && choice >= 0;
    const float weight = weighed ? weights.At(choice) : 1.0f;
    const T* from = x + (choice < 0 ? 0 : choice / tables.k * width);
    for (int64_t c = lane; c < width; c += 32)
      y[row * width + c] = choice < 0 ? T{} : weighed ? Store<T>(weight * Load(from[c])) : from[c];
  }
}

template <typename T>
OFL_KERNEL void GatherFromExperts(RouteTables tables, const T* y, FloatView weights, T* x, int64_t width) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t warps = int64_t{gridDim.x} * (blockDim.x / 32);
  for (int64_t token = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
       token < tables.pools * tables.tokens; token += warps) {
    for (int64_t c = lane; c < width; c += 32) {
      float sum = 0;
      for (int64_t choice = token * tables.k; choice < (token + 1) * tables.k; ++choice) {
        const int64_t row = tables.RowOf(choice);
        if (row < 0) continue;
        const float weight = weights.data != nullptr ? weights.At(choice) : 1.0f;
        sum += weight * Load(y[row * width + c]);
      }
      x[token * width + c] = Store<T>(sum);
    }
  }
}

OFL_KERNEL void DotAtExperts(RouteTables tables, FloatView x, FloatView y, float* d, int64_t choices,
                             int64_t width) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t warps = int64_t{gridDim.x} * (blockDim.x / 32);
  for (int64_t choice = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32; choice < choices;
       choice += warps) {
    const int64_t row = tables.RowOf(choice);
    float sum = 0;
    for (int64_t c = lane; c < width && row >= 0; c += 32)
      sum += x.At(choice / tables.k * width + c) * y.At(row * width + c);
    sum = WarpSum(sum);
    if (lane == 0) d[choice] = sum;
  }
}

FloatView WeightsOf(const KernelContext& context) {
  return context.in.size() > 3 ? FloatsOf(context.in[3]) : FloatView{};
}

Status TakeRowsOnDevice(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  const RouteTables tables = TablesOf(context.in[1], context.in[2]);
  if (y.elements() == 0) return Status();
  const Grid grid{.x = BlocksFor(tables.rows() * 32, 256, launch.multiprocessors)};
  WithFloating(x.dtype, [&](auto t) {
    using T = decltype(t);
    Launch(GatherToExperts<T>, grid, launch.stream, tables, static_cast<const T*>(x.as<T>()),
           WeightsOf(context), y.as<T>(), x.extent[2]);
  });
  return Status();
}

Status ReturnRowsOnDevice(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &y = context.in[0], &x = context.out[0];
  const RouteTables tables = TablesOf(context.in[1], context.in[2]);
  if (x.elements() == 0) return Status();
  const Grid grid{.x = BlocksFor(tables.pools * tables.tokens * 32, 256, launch.multiprocessors)};
  WithFloating(y.dtype, [&](auto t) {
    using T = decltype(t);
    Launch(GatherFromExperts<T>, grid, launch.stream, tables, static_cast<const T*>(y.as<T>()),
           WeightsOf(context), x.as<T>(), x.extent[2]);
  });
  return Status();
}

Status DotRowsOnDevice(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &x = context.in[0], &d = context.out[0];
  const RouteTables tables = TablesOf(context.in[2], context.in[3]);
  if (d.elements() == 0) return Status();
  Launch(DotAtExperts, Grid{.x = BlocksFor(d.elements() * 32, 256, launch.multiprocessors)}, launch.stream,
         tables, FloatsOf(x), FloatsOf(context.in[1]), d.as<float>(), d.elements(), x.extent[2]);
  return Status();
}

}  // namespace

void AddRouteKernels(KernelRegistry* registry) {
  registry->Add("route", "cuda", MakeIndexKernel(RouteOnDevice, ExplainRoute));
  registry->Add("take_rows", "cuda", MakeLaunchKernel(TakeRowsOnDevice));
  registry->Add("return_rows", "cuda", MakeLaunchKernel(ReturnRowsOnDevice));
  registry->Add("dot_rows", "cuda", MakeLaunchKernel(DotRowsOnDevice));
}

}  // namespace oneflow_like::cuda
