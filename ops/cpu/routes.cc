// Routes to experts, and the rows that go there and back. Rows are shared among the threads by where they go,
// each made by one thread from few others: no sum depends on the number of threads.
#include "ops/routes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/device/scratch.h"
#include "ops/along_axis.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/loops.h"
#include "ops/reference.h"

namespace oneflow_like::cpu {
namespace {

// A thread's memory for one pool.
struct RouteRoom {
  int32_t* starts;  // of each expert's choices in `sorted`, and behind the last
  int32_t* sorted;  // choices by expert, each expert's in the order of its queue
  int32_t* chosen;  // of an expert that is full
  RouteRoom(Scratch* scratch, int64_t experts, int64_t choices)
      : starts(scratch->Take<int32_t>(experts + 1)),
        sorted(scratch->Take<int32_t>(choices)),
        chosen(scratch->Take<int32_t>(choices)) {}
};

// Choices of a pool by where they go: to experts, or to ranks that have `each` of them.
struct PoolQueues {
  int64_t tokens, k, experts, room;
  int64_t each = 1;

  // A counting sort: choices of equal experts keep the order of the queue, first choices before second ones.
  template <typename I>
  void Sort(const I* ids, const RouteRoom& memory) const {
    std::fill(memory.starts, memory.starts + experts + 1, 0);
    for (int64_t i = 0; i < tokens * k; ++i) ++memory.starts[ids[i] / each + 1];
    for (int64_t e = 0; e < experts; ++e) memory.starts[e + 1] += memory.starts[e];
    for (int64_t j = 0; j < k; ++j)
      for (int64_t t = 0; t < tokens; ++t)
        memory.sorted[memory.starts[ids[t * k + j] / each]++] = static_cast<int32_t>(t * k + j);
    for (int64_t e = experts; e > 0; --e) memory.starts[e] = memory.starts[e - 1];
    memory.starts[0] = 0;
  }

  // Moves the choices of the greatest weights, the first of equal ones, to the front of [begin, begin + n),
  // in the order of the queue.
  template <typename W>
  void KeepHeaviest(const W* weights, int32_t* begin, int64_t n, int32_t* chosen) const {
    std::copy(begin, begin + n, chosen);
    auto weight = [&](int32_t i) {
      const float w = AsFloat(weights[i]);
      return std::isnan(w) ? -INFINITY : w;
    };
    auto earlier = [&](int32_t a, int32_t b) { return a % k != b % k ? a % k < b % k : a < b; };
    std::nth_element(chosen, chosen + room - 1, chosen + n, [&](int32_t a, int32_t b) {
      const float of_a = weight(a), of_b = weight(b);
      return of_a != of_b ? of_a > of_b : earlier(a, b);
    });
    std::sort(chosen, chosen + room, earlier);
    std::copy(chosen, chosen + room, begin);
  }

  // Calls keep(where, its choices that stay, how many these are, how many there were).
  template <typename I, typename W, typename Keep>
  void ForEachQueue(const I* ids, const W* weights, const RouteRoom& memory, Keep&& keep) const {
    Sort(ids, memory);
    for (int64_t e = 0; e < experts; ++e) {
      int32_t* const queue = memory.sorted + memory.starts[e];
      const int64_t wanted = memory.starts[e + 1] - memory.starts[e];
      if (wanted > room && weights != nullptr) KeepHeaviest(weights, queue, wanted, memory.chosen);
      keep(e, queue, std::min(wanted, room), wanted);
    }
  }
};

struct PoolRoute : PoolQueues {
  int32_t *slots, *places, *counts;  // of this pool

  template <typename I, typename W>
  void Run(const I* ids, const W* weights, const RouteRoom& memory) const {
    std::fill(slots, slots + experts * room, -1);
    std::fill(places, places + tokens * k, -1);
    ForEachQueue(ids, weights, memory, [&](int64_t e, const int32_t* queue, int64_t kept, int64_t wanted) {
      counts[e] = static_cast<int32_t>(wanted);
      for (int64_t slot = 0; slot < kept; ++slot) {
        slots[e * room + slot] = queue[slot];
        places[queue[slot]] = static_cast<int32_t>(e * room + slot);
      }
    });
  }
};

// To ranks: `experts` counts these, `all` the model's experts, `width` the places of a rank.
struct PoolRankRoute : PoolQueues {
  int64_t all, width;
  int32_t *slots, *places, *rows;
  float* kept;
  int32_t* counts;

  template <typename I, typename W>
  void Run(const I* ids, const W* weights, const RouteRoom& memory) const {
    std::fill(slots, slots + experts * width, -1);
    std::fill(places, places + tokens * k, -1);
    std::fill(kept, kept + tokens * k, 0.0f);
    std::fill(rows, rows + experts, 0);
    std::fill(counts, counts + all, 0);
    for (int64_t i = 0; i < tokens * k; ++i) ++counts[ids[i]];
    ForEachQueue(ids, weights, memory, [&](int64_t, const int32_t* queue, int64_t stay, int64_t) {
      for (int64_t q = 0; q < stay; ++q) kept[queue[q]] = static_cast<float>(ids[queue[q]] + 1);
    });
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t i = t * k; i < (t + 1) * k; ++i) {
        if (kept[i] == 0) continue;
        const int64_t rank = ids[i] / each, last = rows[rank] - 1;
        if (last >= 0 && slots[rank * width + last] >= t * k) continue;  // the token is there
        const int64_t place = rank * width + rows[rank]++;
        slots[place] = static_cast<int32_t>(i);
        places[i] = static_cast<int32_t>(place);
      }
  }
};

int64_t RouteThreads(const KernelSpec& spec) {
  return std::clamp<int64_t>(spec.in[0].extent[0], 1, spec.threads);
}

// run(pool, first choice of the pool, ids and weights of the pool or nullptr, a thread's memory), for all
// pools.
template <typename Run>
void ForEachPool(const KernelContext& context, Run&& run) {
  const TensorArg &experts = context.in[0], &slots = context.out[0];
  const TensorArg* weights = context.in.size() > 1 ? &context.in[1] : nullptr;
  const int64_t pools = experts.extent[0], choices = experts.extent[1] * experts.extent[2],
                count = slots.extent[1];
  Scratch one;
  RouteRoom(&one, count, choices);
  auto with = [&](const auto* ids, const auto* of_weights) {
    ParallelForParts(
        pools, RowGrain(8 * choices), context.spec.threads, [&](int64_t begin, int64_t end, int part) {
          Scratch scratch(static_cast<char*>(context.scratch) + part * one.bytes());
          const RouteRoom memory(&scratch, count, choices);
          for (int64_t p = begin; p < end; ++p)
            run(p, p * choices, ids + p * choices, of_weights ? of_weights + p * choices : nullptr, memory);
        });
  };
  auto typed = [&](const auto* ids) {
    if (weights == nullptr) return with(ids, static_cast<const float*>(nullptr));
    DispatchFloating(weights->dtype, [&](auto t) { with(ids, weights->as<decltype(t)>()); });
  };
  experts.dtype == DType::kInt32 ? typed(experts.as<int32_t>()) : typed(experts.as<int64_t>());
}

// y[e p c w] from x[p n w].
template <typename T>
Status TakeRowsOf(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  const TensorArg* weights = context.in.size() > 3 ? &context.in[3] : nullptr;
  const RouteTables tables = TablesOf(context.in[1], context.in[2]);
  const int64_t width = x.extent.back();
  if (y.elements() == 0) return Status();
  ParallelFor(tables.rows(), RowGrain(width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t choice = tables.ChoiceOf(row);
      T* to = y.as<T>() + row * width;
      if (choice < 0) {
        std::memset(static_cast<void*>(to), 0, width * sizeof(T));
        continue;
      }
      const T* from = x.as<T>() + choice / tables.k * width;
      if (weights == nullptr) {
        std::memcpy(to, from, width * sizeof(T));
        continue;
      }
      const float weight = static_cast<float>(LoadFloat(*weights, choice));
      OFL_INDEPENDENT
      for (int64_t c = 0; c < width; ++c) to[c] = FromFloat<T>(weight * AsFloat(from[c]));
    }
  });
  return Status();
}

// x[p n w] from y[e p c w]: sums in fp32, in the order of a token's choices.
template <typename T>
Status ReturnRowsOf(const KernelContext& context) {
  constexpr int64_t kColumns = 512;
  const TensorArg &y = context.in[0], &x = context.out[0];
  const TensorArg* weights = context.in.size() > 3 ? &context.in[3] : nullptr;
  const RouteTables tables = TablesOf(context.in[1], context.in[2]);
  const int64_t width = x.extent.back();
  if (x.elements() == 0) return Status();
  ParallelFor(tables.pools * tables.tokens, RowGrain(width * tables.k), [&](int64_t begin, int64_t end) {
    float sums[kColumns];
    for (int64_t token = begin; token < end; ++token) {
      for (int64_t first = 0; first < width; first += kColumns) {
        const int64_t n = std::min(kColumns, width - first);
        std::fill(sums, sums + n, 0.0f);
        for (int64_t choice = token * tables.k; choice < (token + 1) * tables.k; ++choice) {
          const int64_t row = tables.RowOf(choice);
          if (row < 0) continue;
          const float weight = weights ? static_cast<float>(LoadFloat(*weights, choice)) : 1.0f;
          const T* from = y.as<T>() + row * width + first;
          OFL_INDEPENDENT
          for (int64_t c = 0; c < n; ++c) sums[c] += weight * AsFloat(from[c]);
        }
        T* to = x.as<T>() + token * width + first;
        OFL_INDEPENDENT
        for (int64_t c = 0; c < n; ++c) to[c] = FromFloat<T>(sums[c]);
      }
    }
  });
  return Status();
}

// d[p n k] of x[p n w] and y[e p c w].
template <typename T>
Status DotRowsOf(const KernelContext& context) {
  constexpr int64_t kSums = 16;  // side by side
  const TensorArg &x = context.in[0], &y = context.in[1], &d = context.out[0];
  const RouteTables tables = TablesOf(context.in[2], context.in[3]);
  const int64_t width = x.extent.back();
  ParallelFor(d.elements(), RowGrain(width), [&](int64_t begin, int64_t end) {
    for (int64_t choice = begin; choice < end; ++choice) {
      const int64_t row = tables.RowOf(choice);
      float sums[kSums] = {};
      if (row >= 0) {
        const T* a = x.as<T>() + choice / tables.k * width;
        const T* b = y.as<T>() + row * width;
        int64_t c = 0;
        for (; c + kSums <= width; c += kSums)
          for (int64_t i = 0; i < kSums; ++i) sums[i] += AsFloat(a[c + i]) * AsFloat(b[c + i]);
        for (int64_t i = 0; c < width; ++c, ++i) sums[i] += AsFloat(a[c]) * AsFloat(b[c]);
      }
      for (int64_t half = kSums / 2; half > 0; half /= 2)
        for (int64_t i = 0; i < half; ++i) sums[i] += sums[i + half];
      d.as<float>()[choice] = sums[0];
    }
  });
  return Status();
}

// Of rows of one floating type.
template <typename Run>
KernelPtr ForRowsOf(const KernelSpec& spec, bool fits, Run&& run) {
  const DType dtype = spec.in[0].dtype;
  if (!fits || !IsFloating(dtype)) return MakeReference(spec);
  return DispatchFloating(dtype, [&](auto t) { return run(t); });
}

}  // namespace

Status Route(const KernelContext& context) {
  const TensorArg &experts = context.in[0], &counts = context.out[2];
  const int64_t count = context.out[0].extent[1], room = context.out[0].extent[2];
  if (Status checked = oneflow_like::CheckIndices(experts, count); !checked.ok()) return checked;
  ForEachPool(context,
              [&](int64_t p, int64_t first, const auto* ids, const auto* weights, const RouteRoom& memory) {
                PoolRoute{{experts.extent[1], experts.extent[2], count, room},
                          context.out[0].as<int32_t>() + p * count * room,
                          context.out[1].as<int32_t>() + first,
                          counts.as<int32_t>() + p * count}
                    .Run(ids, weights, memory);
              });
  if (context.spec.attrs.Int("error") == 0) return Status();
  for (int64_t i = 0; i < counts.elements(); ++i)
    if (const int64_t wanted = counts.as<int32_t>()[i]; wanted > room)
      return NoRoom(i % count, counts.begin[0] + i / count, wanted, room);
  return Status();
}

Status RouteRanks(const KernelContext& context) {
  const TensorArg &experts = context.in[0], &slots = context.out[0], &counts = context.out[4];
  const int64_t ranks = slots.extent[1], width = slots.extent[2], all = counts.extent[1], each = all / ranks,
                room = context.spec.attrs.Int("room");
  if (Status checked = oneflow_like::CheckIndices(experts, all); !checked.ok()) return checked;
  ForEachPool(context,
              [&](int64_t p, int64_t first, const auto* ids, const auto* weights, const RouteRoom& memory) {
                PoolRankRoute{{experts.extent[1], experts.extent[2], ranks, room, each},
                              all,
                              width,
                              slots.as<int32_t>() + p * ranks * width,
                              context.out[1].as<int32_t>() + first,
                              context.out[2].as<int32_t>() + p * ranks,
                              context.out[3].as<float>() + first,
                              counts.as<int32_t>() + p * all}
                    .Run(ids, weights, memory);
              });
  if (context.spec.attrs.Int("error") == 0) return Status();
  for (int64_t i = 0; i < counts.extent[0] * ranks; ++i) {
    int64_t wanted = 0;
    for (int64_t e = 0; e < each; ++e) wanted += counts.as<int32_t>()[i * each + e];
    if (wanted > room)
      return NoRoomAtRank(i % ranks * each, (i % ranks + 1) * each - 1, counts.begin[0] + i / ranks, wanted,
                          room);
  }
  return Status();
}

// Counts, then where each expert's run begins, then where it ends, in the place of counts.
Status SortChoices(const KernelContext& context) {
  const TensorArg &kept = context.in[0], &slots = context.out[0], &places = context.out[1],
                  &counts = context.out[2];
  const int64_t choices = kept.extent[2] * kept.extent[3], room = slots.extent[2], experts = counts.extent[2];
  ParallelFor(kept.extent[0] * kept.extent[1], RowGrain(4 * choices), [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin; pair < end; ++pair) {
      const int64_t rank = kept.begin[0] + pair / kept.extent[1];
      auto expert = [&](int64_t i) { return ExpertAt(LoadFloat(kept, pair * choices + i), rank, experts); };
      int32_t *slot = slots.as<int32_t>() + pair * room, *place = places.as<int32_t>() + pair * choices,
              *at = counts.as<int32_t>() + pair * experts;
      std::fill(slot, slot + room, -1);
      std::fill(at, at + experts, 0);
      for (int64_t i = 0; i < choices; ++i)
        if (const int64_t e = expert(i); e >= 0) ++at[e];
      int32_t before = 0;
      for (int64_t e = 0; e < experts; ++e) before += std::exchange(at[e], before);
      for (int64_t i = 0; i < choices; ++i) {
        const int64_t e = expert(i);
        place[i] = e >= 0 && at[e] < room ? at[e] : -1;
        if (e >= 0) ++at[e];
        if (place[i] >= 0) slot[place[i]] = static_cast<int32_t>(i);
      }
      const auto most = static_cast<int32_t>(room);
      for (int64_t e = experts - 1; e >= 0; --e)
        at[e] = std::min(at[e], most) - (e > 0 ? std::min(at[e - 1], most) : 0);
    }
  });
  return Status();
}

int64_t RouteScratch(const KernelSpec& spec) {
  Scratch one;
  RouteRoom(&one, spec.out[0].extent[1], spec.in[0].extent[1] * spec.in[0].extent[2]);
  return RouteThreads(spec) * one.bytes();
}

KernelPtr MakeTakeRows(const KernelSpec& spec) {
  return ForRowsOf(spec, spec.out[0].dtype == spec.in[0].dtype,
                   [&](auto t) { return MakeFunctionKernel(TakeRowsOf<decltype(t)>)(spec); });
}
KernelPtr MakeReturnRows(const KernelSpec& spec) {
  return ForRowsOf(spec, spec.out[0].dtype == spec.in[0].dtype,
                   [&](auto t) { return MakeFunctionKernel(ReturnRowsOf<decltype(t)>)(spec); });
}
KernelPtr MakeDotRows(const KernelSpec& spec) {
  return ForRowsOf(spec, spec.in[1].dtype == spec.in[0].dtype,
                   [&](auto t) { return MakeFunctionKernel(DotRowsOf<decltype(t)>)(spec); });
}

}  // namespace oneflow_like::cpu
