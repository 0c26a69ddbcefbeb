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
constexpr int kOutsideExperts = 0, kFullExpert = 1, kFullRank = 2;  // kFullRank + the experts of a rank

struct Queues {
  IndexView ids;
  FloatView weights;  // no data: the first of a queue stay
  int64_t pools, tokens, k, experts, room;
  int64_t first_pool;
  int64_t each = 1;  // of a rank, where queues are those of ranks: `experts` counts these

  OFL_DEVICE int64_t Where(int64_t i) const { return ids.At(i) / each; }

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
      counts = queues.Where(i) == expert && of(i);
    }
    count += __popc(__ballot_sync(0xFFFFFFFFu, counts));
  }
  return count;
}

// Of the queue of an expert, or a rank, that is wanted so often: the key of the least that stays, and how
// many choices of that key do.
struct Least {
  uint32_t key = 0;
  int64_t ties = 0;
  bool by_weight = false;
  OFL_DEVICE uint32_t KeyOf(const Queues& queues, int64_t i) const { return by_weight ? queues.Key(i) : 0; }
};
OFL_DEVICE Least FindLeast(const Queues& queues, int64_t pool, int64_t expert, int64_t wanted) {
  const int64_t room = queues.room;
  Least least;
  least.by_weight = queues.weights.data != nullptr && wanted > room;
  least.ties = room;
  if (!least.by_weight) return least;
  for (int bit = 31; bit >= 0; --bit) {
    const uint32_t higher = least.key | (1u << bit);
    if (CountChoices(queues, pool, expert, [&](int64_t i) { return queues.Key(i) >= higher; }) >= room)
      least.key = higher;
  }
  const uint32_t found = least.key;
  least.ties = room - CountChoices(queues, pool, expert, [&](int64_t i) { return queues.Key(i) > found; });
  return least;
}

// Calls stays(choice, its number among those that stay) by the lane that has it, in the order of the queue.
template <typename Stays>
OFL_DEVICE int64_t WalkQueue(const Queues& queues, int64_t pool, int64_t expert, const Least& least,
                             Stays stays_there) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t choices = queues.Choices();
  int64_t filled = 0, tied = 0;
  for (int64_t q0 = 0; q0 < choices; q0 += 32) {
    bool above = false, tie = false;
    const int64_t choice = q0 + lane < choices ? queues.Choice(q0 + lane) : 0;
    if (q0 + lane < choices && queues.Where(pool * choices + choice) == expert) {
      const uint32_t key = least.KeyOf(queues, pool * choices + choice);
      above = key > least.key;
      tie = key == least.key;
    }
    const unsigned before = (1u << lane) - 1, equals = __ballot_sync(0xFFFFFFFFu, tie);
    const bool stays = above || (tie && tied + __popc(equals & before) < least.ties);
    const unsigned all = __ballot_sync(0xFFFFFFFFu, stays);
    if (stays) stays_there(choice, filled + __popc(all & before));
    tied += __popc(equals);
    filled += __popc(all);
  }
  return filled;
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
    const int64_t filled = WalkQueue(
        queues, pool, expert, FindLeast(queues, pool, expert, wanted), [&](int64_t choice, int64_t slot) {
          slots[own * room + slot] = static_cast<int32_t>(choice);
          places[pool * choices + choice] = static_cast<int32_t>(expert * room + slot);
        });
    for (int64_t slot = filled + lane; slot < room; slot += 32) slots[own * room + slot] = -1;
  }
}

// How often each expert is chosen: a warp for each of a pool.
OFL_KERNEL void CountExperts(Queues queues, int64_t experts, int32_t* counts) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t warps = int64_t{gridDim.x} * (blockDim.x / 32);
  queues.each = 1;
  for (int64_t own = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32; own < queues.pools * experts;
       own += warps) {
    const int64_t count = CountChoices(queues, own / experts, own % experts, [](int64_t) { return true; });
    if (lane == 0) counts[own] = static_cast<int32_t>(count);
  }
}

// Of each rank's queue the choices that stay, then its tokens in their order: 32 at a time, those that are
// there are numbered by a ballot.
OFL_KERNEL void FillRanks(Queues queues, int64_t width, int32_t* slots, int32_t* places, int32_t* rows,
                          float* kept, bool error, FaultPort port) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t warps = int64_t{gridDim.x} * (blockDim.x / 32), choices = queues.Choices(), k = queues.k;
  for (int64_t own = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
       own < queues.pools * queues.experts; own += warps) {
    const int64_t pool = own / queues.experts, rank = own % queues.experts, first = pool * choices;
    const int64_t wanted = CountChoices(queues, pool, rank, [](int64_t) { return true; });
    if (lane == 0 && error && wanted > queues.room)
      port.Raise(((queues.first_pool + pool) << 32) | rank, (wanted << 32) | queues.room);
    WalkQueue(queues, pool, rank, FindLeast(queues, pool, rank, wanted), [&](int64_t choice, int64_t) {
      kept[first + choice] = static_cast<float>(queues.ids.At(first + choice) + 1);
    });
    __syncwarp();  // lanes read what others have kept
    int64_t filled = 0;
    for (int64_t t0 = 0; t0 < queues.tokens; t0 += 32) {
      int64_t found = -1;
      if (t0 + lane < queues.tokens)
        for (int64_t i = (t0 + lane) * k; i < (t0 + lane + 1) * k && found < 0; ++i)
          if (queues.Where(first + i) == rank && kept[first + i] != 0) found = i;
      const unsigned all = __ballot_sync(0xFFFFFFFFu, found >= 0);
      if (found >= 0) {
        const int64_t place = rank * width + filled + __popc(all & ((1u << lane) - 1));
        slots[pool * queues.experts * width + place] = static_cast<int32_t>(found);
        places[first + found] = static_cast<int32_t>(place);
      }
      filled += __popc(all);
    }
    if (lane == 0) rows[own] = static_cast<int32_t>(filled);
    for (int64_t slot = filled + lane; slot < width; slot += 32) slots[own * width + slot] = -1;
  }
}

// The runs of a rank's experts in one pool, by a warp: expert after expert, 32 choices at a time.
OFL_KERNEL void FillRuns(FloatView kept, int64_t pairs, int64_t pools, int64_t first_rank, int64_t choices,
                         int64_t experts, int64_t room, int32_t* slots, int32_t* places, int32_t* counts) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t warps = int64_t{gridDim.x} * (blockDim.x / 32);
  for (int64_t pair = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32; pair < pairs;
       pair += warps) {
    const int64_t rank = first_rank + pair / pools;
    int64_t filled = 0;
    for (int64_t e = -1; e < experts; ++e) {  // -1: choices of none
      const int64_t before = filled < room ? filled : room;
      for (int64_t i0 = 0; i0 < choices; i0 += 32) {
        const int64_t i = i0 + lane;
        const bool mine = i < choices && ExpertAt(kept.At(pair * choices + i), rank, experts) == e;
        if (e < 0) {
          if (mine) places[pair * choices + i] = -1;
          continue;
        }
        const unsigned all = __ballot_sync(0xFFFFFFFFu, mine);
        if (mine) {
          const int64_t place = filled + __popc(all & ((1u << lane) - 1));
          places[pair * choices + i] = place < room ? static_cast<int32_t>(place) : -1;
          if (place < room) slots[pair * room + place] = static_cast<int32_t>(i);
        }
        filled += __popc(all);
      }
      if (lane == 0 && e >= 0)
        counts[pair * experts + e] = static_cast<int32_t>((filled < room ? filled : room) - before);
    }
    for (int64_t slot = filled + lane; slot < room; slot += 32) slots[pair * room + slot] = -1;
  }
}

Queues QueuesOf(const KernelContext& context, int64_t lines, int64_t room, int64_t each) {
  const TensorArg& experts = context.in[0];
  return {IndicesOf(experts),
          context.in.size() > 1 ? FloatsOf(context.in[1]) : FloatView{},
          experts.extent[0],
          experts.extent[1],
          experts.extent[2],
          lines,
          room,
          experts.begin[0],
          each};
}

Status RouteRanksOnDevice(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &experts = context.in[0], &slots = context.out[0], &kept = context.out[3],
                  &counts = context.out[4];
  const int64_t ranks = slots.extent[1], all = counts.extent[1], each = all / ranks;
  const Queues queues = QueuesOf(context, ranks, context.spec.attrs.Int("room"), each);
  auto* places = context.out[1].as<int32_t>();
  Launch(ClearPlaces, Grid{.x = BlocksFor(experts.elements(), 256, launch.multiprocessors)}, launch.stream,
         queues.ids, experts.elements(), all, places, FaultOf(launch, kOutsideExperts));
  const cudaError_t error =
      cudaMemsetAsync(kept.data, 0, kept.elements() * SizeOf(kept.dtype), launch.stream);
  if (error != cudaSuccess) return Status(Cat("cudaMemsetAsync: ", cudaGetErrorString(error)));
  if (queues.pools == 0) return Status();
  Launch(CountExperts, Grid{.x = BlocksFor(queues.pools * all * 32, 256, launch.multiprocessors)},
         launch.stream, queues, all, counts.as<int32_t>());
  Launch(FillRanks, Grid{.x = BlocksFor(queues.pools * ranks * 32, 256, launch.multiprocessors)},
         launch.stream, queues, slots.extent[2], slots.as<int32_t>(), places, context.out[2].as<int32_t>(),
         kept.as<float>(), context.spec.attrs.Int("error") != 0,
         FaultOf(launch, kFullRank + static_cast<int>(each)));
  return Status();
}

Status SortChoicesOnDevice(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &kept = context.in[0], &slots = context.out[0], &counts = context.out[2];
  const int64_t pairs = kept.extent[0] * kept.extent[1];
  if (pairs == 0) return Status();
  Launch(FillRuns, Grid{.x = BlocksFor(pairs * 32, 256, launch.multiprocessors)}, launch.stream,
         FloatsOf(kept), pairs, kept.extent[1], kept.begin[0], kept.extent[2] * kept.extent[3],
         counts.extent[2], slots.extent[2], slots.as<int32_t>(), context.out[1].as<int32_t>(),
         counts.as<int32_t>());
  return Status();
}

Status RouteOnDevice(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &experts = context.in[0], &slots = context.out[0];
  const Queues queues = QueuesOf(context, slots.extent[1], slots.extent[2], 1);
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
  const int64_t where = fault.value & kLow, pool = fault.value >> 32, wanted = fault.limit >> 32,
                room = fault.limit & kLow;
  if (fault.operand == kFullExpert) return NoRoom(where, pool, wanted, room).message();
  const int64_t each = fault.operand - kFullRank;
  return NoRoomAtRank(where * each, (where + 1) * each - 1, pool, wanted, room).message();
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
           WeightsOf(context), y.as<T>(), x.extent.back());
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
           WeightsOf(context), x.as<T>(), x.extent.back());
  });
  return Status();
}

Status DotRowsOnDevice(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &x = context.in[0], &d = context.out[0];
  const RouteTables tables = TablesOf(context.in[2], context.in[3]);
  if (d.elements() == 0) return Status();
  Launch(DotAtExperts, Grid{.x = BlocksFor(d.elements() * 32, 256, launch.multiprocessors)}, launch.stream,
         tables, FloatsOf(x), FloatsOf(context.in[1]), d.as<float>(), d.elements(), x.extent.back());
  return Status();
}

}  // namespace

void AddRouteKernels(KernelRegistry* registry) {
  registry->Add("route", "cuda", MakeIndexKernel(RouteOnDevice, ExplainRoute));
  registry->Add("route_ranks", "cuda", MakeIndexKernel(RouteRanksOnDevice, ExplainRoute));
  registry->Add("sort_choices", "cuda", MakeLaunchKernel(SortChoicesOnDevice));
  registry->Add("take_rows", "cuda", MakeLaunchKernel(TakeRowsOnDevice));
  registry->Add("return_rows", "cuda", MakeLaunchKernel(ReturnRowsOnDevice));
  registry->Add("dot_rows", "cuda", MakeLaunchKernel(DotRowsOnDevice));
}

}  // namespace oneflow_like::cuda
