// Elements and parts by index, and sums by index. Sums are cut between threads by where they go (outer axes,
// columns, or rows of the result), never by where they come from: every sum is made in the order of the
// indices, and its bits do not depend on the number of threads.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "ops/along_axis.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/loops.h"

namespace oneflow_like::cpu {
namespace {

// Calls f with the ids as the type they have.
template <typename F>
Status WithIds(const TensorArg& ids, F&& f) {
  return ids.dtype == DType::kInt32 ? f(ids.as<int32_t>()) : f(ids.as<int64_t>());
}

template <typename I>
Status CheckIndices(const I* ids, int64_t n, int64_t limit) {
  for (int64_t i = 0; i < n; ++i) {
    if (ids[i] < 0 || ids[i] >= limit) return IndexOutside(ids[i], limit);
  }
  return Status();
}

// The range of the axis that is held here. An index outside of it is looked at once more, whether it is
// outside of all: so one that is held costs one comparison.
struct Held {
  int64_t begin, extent, global;
  std::atomic<bool>* bad;

  // The row held here, or -1.
  template <typename I>
  int64_t Row(I id) const {
    auto row = static_cast<uint64_t>(static_cast<int64_t>(id) - begin);
    if (row < static_cast<uint64_t>(extent)) return static_cast<int64_t>(row);
    if (id < 0 || id >= global) bad->store(true, std::memory_order_relaxed);
    return -1;
  }
};

template <typename T>
struct TakeArgs {
  const T* x;
  T* y;
  AroundAxis at;
  int64_t count;  // indices for each outer one
  Held held;
  bool batched;  // of its own
};

// Calls body(o, begin, end) for runs of the parts [begin, end) of outer index o, shared among the threads.
template <typename F>
void ForRuns(int64_t outer, int64_t count, int64_t grain, F body) {
  ParallelFor(outer * count, grain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      int64_t o = begin / count, stop = std::min(end, (o + 1) * count);
      body(o, begin - o * count, stop - o * count);
      begin = stop;
    }
  });
}

// Indices are looked at in blocks first: where all of a block are held here, as they mostly are, none is
// asked about on its own. By signs, which any level of instructions joins in vectors: comparisons of 64 bits
// took as long as what follows. The loops after that are scalar on purpose (gathers of vectors are slower).
constexpr int64_t kTakeBlock = 1024;
template <typename I>
bool AllHere(const I* ids, int64_t n, const Held& held) {
  const auto begin = static_cast<uint64_t>(held.begin), last = static_cast<uint64_t>(held.extent - 1);
  uint64_t outside = 0;  // in its highest bit
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t row = static_cast<uint64_t>(static_cast<int64_t>(ids[i])) - begin;
    outside |= row | (last - row);
  }
  return static_cast<int64_t>(outside) >= 0;
}

template <typename T, typename I>
void TakeHere(const T* x, const I* ids, T* y, int64_t n, int64_t begin) {
  OFL_UNROLL(8)
  for (int64_t i = 0; i < n; ++i) y[i] = x[ids[i] - begin];
}

template <typename T, typename I>
void TakeLine(const T* x, const I* ids, T* y, int64_t n, const Held& held) {
  for (int64_t first = 0; first < n; first += kTakeBlock, ids += kTakeBlock, y += kTakeBlock) {
    const int64_t count = std::min(kTakeBlock, n - first);
    if (AllHere(ids, count, held)) {
      TakeHere(x, ids, y, count, held.begin);
      continue;
    }
    for (int64_t i = 0; i < count; ++i) {
      int64_t row = held.Row(ids[i]);
      y[i] = row >= 0 ? x[row] : T{};
    }
  }
}

// Parts of `inner` elements.
template <typename T, typename I>
void TakeParts(const TakeArgs<T>& args, const I* shared) {
  const AroundAxis at = args.at;
  const int64_t bytes = at.inner * static_cast<int64_t>(sizeof(T));
  // Lines that share their indices ask about them once.
  const bool here = !args.batched && at.inner == 1 && at.outer > 1 && AllHere(shared, args.count, args.held);
  ForRuns(at.outer, args.count, RowGrain(at.inner), [&](int64_t o, int64_t begin, int64_t end) {
    const T* x = args.x + o * at.along * at.inner;
    const I* ids = shared + (args.batched ? o * args.count : 0);
    T* y = args.y + o * args.count * at.inner;
    if (here) return TakeHere(x, ids + begin, y + begin, end - begin, args.held.begin);
    if (at.inner == 1) return TakeLine(x, ids + begin, y + begin, end - begin, args.held);
    for (int64_t j = begin; j < end; ++j) {
      int64_t row = args.held.Row(ids[j]);
      if (row >= 0) {
        std::memcpy(y + j * at.inner, x + row * at.inner, bytes);
      } else {
        std::memset(static_cast<void*>(y + j * at.inner), 0, bytes);
      }
    }
  });
}

// Element by element: `ids` has one for each.
template <typename T, typename I>
void TakeElements(const TakeArgs<T>& args, const I* ids) {
  const AroundAxis at = args.at;
  ForRuns(at.outer, args.count, RowGrain(at.inner), [&](int64_t o, int64_t begin, int64_t end) {
    const T* x = args.x + o * at.along * at.inner;
    const int64_t first = (o * args.count + begin) * at.inner, n = (end - begin) * at.inner;
    const I* id = ids + first;
    T* y = args.y + first;
    if (at.inner == 1) return TakeLine(x, id, y, n, args.held);
    for (int64_t i = 0; i < n; i += at.inner) {
      for (int64_t c = 0; c < at.inner; ++c) {
        int64_t row = args.held.Row(id[i + c]);
        y[i + c] = row >= 0 ? x[row * at.inner + c] : T{};
      }
    }
  });
}

template <bool kAlong>
Status TakeAny(const KernelContext& context) {
  const TensorArg &x = context.in[0], &ids = context.in[1], &y = context.out[0];
  int axis = AxisOf(context.spec);
  const AroundAxis at(x, axis);
  const bool batched = Batched(context.spec.attrs);
  const int64_t count = kAlong || batched ? ids.extent[axis] : ids.elements();
  return WithIds(ids, [&](const auto* id) {
    if (y.elements() == 0) return CheckIndices(id, ids.elements(), x.global[axis]);
    std::atomic<bool> bad = false;
    const Held held{x.begin[axis], x.extent[axis], x.global[axis], &bad};
    auto run = [&](auto t) {
      using T = decltype(t);
      const TakeArgs<T> args{x.as<T>(), y.as<T>(), at, count, held, batched};
      kAlong ? TakeElements(args, id) : TakeParts(args, id);
    };
    switch (SizeOf(x.dtype)) {
      case 1:
        run(uint8_t{});
        break;
      case 2:
        run(uint16_t{});
        break;
      case 4:
        run(uint32_t{});
        break;
      default:
        run(uint64_t{});
    }
    return bad ? CheckIndices(id, ids.elements(), x.global[axis]) : Status();
  });
}

// What becomes of a place to which an element goes.
struct Added {
  template <typename S, typename T>
  static void Join(S* place, T value) {
    if constexpr (std::is_integral_v<T>) {
      *place += value;
    } else {
      *place += AsFloat(value);
    }
  }
};
struct Greatest {  // a NaN stays
  template <typename T>
  static void Join(T* place, T value) {
    const float own = AsFloat(value);
    if (own > AsFloat(*place) || own != own) *place = value;
  }
};

// Sums (or what else How makes) into rows [low, high) and columns [left, right) of outer index o, which begin
// at x, or at 0 where it is null.
template <typename T, typename S, typename I, bool kAlong, typename How>
struct Sums {
  const T* from;
  const I* ids;
  const S* x;
  S* to;
  AroundAxis at;
  int64_t count;
  Held held;
  bool batched;

  // The beginning of `n` elements from `first` on: x, or 0.
  void Begin(int64_t first, int64_t n) const {
    if (x != nullptr) {
      std::memcpy(to + first, x + first, n * sizeof(S));
    } else {
      std::memset(to + first, 0, n * sizeof(S));
    }
  }

  void Run(int64_t o, int64_t low, int64_t high, int64_t left, int64_t right) const {
    const T* source = from + o * count * at.inner;
    const I* id = ids + (kAlong ? o * count * at.inner : batched ? o * count : 0);
    S* result = to + o * at.along * at.inner;
    // A caller that cuts columns begins them itself: a row's part is too short a run of memory.
    if (right - left == at.inner) Begin((o * at.along + low) * at.inner, (high - low) * at.inner);
    if (at.inner == 1 && low == 0 && high == at.along) {
      return AddLine(source, id, result);
    }
    const bool whole = low == 0 && high == at.along;
    for (int64_t j = 0; j < count; ++j) {
      const T* part = source + j * at.inner;
      if constexpr (kAlong) {
        const I* own = id + j * at.inner;
        for (int64_t c = left; c < right; ++c) {
          int64_t row = held.Row(own[c]);
          if (row >= low && row < high) How::Join(result + row * at.inner + c, part[c]);
        }
      } else {
        if (whole && j + kAhead < count) Ask(source, result, id[j + kAhead], j + kAhead, left, right);
        int64_t row = held.Row(id[j]);
        if (row < low || row >= high) continue;
        S* sum = result + row * at.inner;
        OFL_INDEPENDENT
        for (int64_t c = left; c < right; ++c) How::Join(sum + c, part[c]);
      }
    }
  }

  // The processor foresees neither the rows that indices name nor parts of rows. A row that does not
  // exist costs nothing.
  static constexpr int64_t kAhead = 8;
  void Ask(const T* source, const S* result, I index, int64_t j, int64_t left, int64_t right) const {
    const auto row = static_cast<uint64_t>(static_cast<int64_t>(index) - held.begin);
    const auto to_row =
        reinterpret_cast<uint64_t>(result) + row * static_cast<uint64_t>(at.inner) * sizeof(S);
    for (int64_t c = left; c < right; c += 64 / static_cast<int64_t>(sizeof(S)))
      __builtin_prefetch(reinterpret_cast<const void*>(to_row + static_cast<uint64_t>(c) * sizeof(S)), 1);
    if (right - left == at.inner) return;
    for (int64_t c = left; c < right; c += 64 / static_cast<int64_t>(sizeof(T)))
      __builtin_prefetch(source + j * at.inner + c);
  }

  void AddLine(const T* source, const I* id, S* result) const {
    const Held here = held;
    for (int64_t first = 0; first < count; first += kTakeBlock, id += kTakeBlock, source += kTakeBlock) {
      const int64_t n = std::min(kTakeBlock, count - first);
      if (AllHere(id, n, here)) {
        OFL_UNROLL(8)
        for (int64_t j = 0; j < n; ++j) How::Join(result + (id[j] - here.begin), source[j]);
        continue;
      }
      for (int64_t j = 0; j < n; ++j) {
        int64_t row = here.Row(id[j]);
        if (row >= 0) How::Join(result + row, source[j]);
      }
    }
  }

  void Run() const {
    const int64_t threads = ParallelThreads(), inner = at.inner;
    const int64_t work = std::max<int64_t>(1, count * inner + at.along * inner / 4);  // of an outer index
    // Few elements of a part take no longer to add than their index takes to look at.
    const bool narrow = inner < 4 || (kAlong && inner < 16 * threads);
    if (at.outer >= threads || at.outer * work < kGrain || narrow) {
      ParallelFor(at.outer, RowGrain(work), [&](int64_t b, int64_t e) {
        for (int64_t o = b; o < e; ++o) Run(o, 0, at.along, 0, inner);
      });
    } else if (inner >= 16 * threads) {
      int64_t grain = std::max<int64_t>(16, inner * kGrain / (at.outer * work));
      ParallelFor(at.outer * at.along * inner, kGrain, [&](int64_t b, int64_t e) { Begin(b, e - b); });
      ParallelFor(inner, grain, [&](int64_t b, int64_t e) {
        for (int64_t o = 0; o < at.outer; ++o) Run(o, 0, at.along, b, e);
      });
    } else {
      int64_t grain = std::max<int64_t>(1, at.along * kGrain / (at.outer * work));
      ParallelFor(at.along, grain, [&](int64_t b, int64_t e) {
        for (int64_t o = 0; o < at.outer; ++o) Run(o, b, e, 0, inner);
      });
    }
  }
};

template <typename T, typename S, bool kAlong, typename How = Added>
Status SumByIndex(const KernelContext& context) {
  const TensorArg &ids = context.in[0], &from = context.in[1], &y = context.out[0];
  const S* x = context.in.size() > 2 ? context.in[2].as<S>() : nullptr;
  int axis = AxisOf(context.spec);
  return WithIds(ids, [&](const auto* id) {
    using I = std::remove_const_t<std::remove_pointer_t<decltype(id)>>;
    if (y.elements() == 0) return CheckIndices(id, ids.elements(), y.global[axis]);
    const bool batched = Batched(context.spec.attrs);
    const int64_t count = kAlong || batched ? ids.extent[axis] : ids.elements();
    std::atomic<bool> bad = false;
    const Held held{y.begin[axis], y.extent[axis], y.global[axis], &bad};
    Sums<T, S, I, kAlong, How>{from.as<T>(), id, x, y.as<S>(), AroundAxis(y, axis), count, held, batched}
        .Run();
    return bad ? CheckIndices(id, ids.elements(), y.global[axis]) : Status();
  });
}

template <bool kAlong>
KernelPtr MakeSums(const KernelSpec& spec) {
  using enum DType;
  DType from = spec.in[1].dtype, to = spec.out[0].dtype;
  if (spec.in.size() > 2 && spec.in[2].dtype != to) return MakeReference(spec);
  if (from == kFloat32 && to == kFloat32) return MakeFunctionKernel(SumByIndex<float, float, kAlong>)(spec);
  if (from == kBFloat16 && to == kFloat32)
    return MakeFunctionKernel(SumByIndex<BFloat16, float, kAlong>)(spec);
  if (from == kFloat16 && to == kFloat32) return MakeFunctionKernel(SumByIndex<Float16, float, kAlong>)(spec);
  if (from == kInt32 && to == kInt32) return MakeFunctionKernel(SumByIndex<int32_t, int32_t, kAlong>)(spec);
  if (from == kInt64 && to == kInt64) return MakeFunctionKernel(SumByIndex<int64_t, int64_t, kAlong>)(spec);
  return MakeReference(spec);
}

template <bool kAlong>
KernelPtr MakeMaxima(const KernelSpec& spec) {
  switch (spec.out[0].dtype) {
    case DType::kFloat32:
      return MakeFunctionKernel(SumByIndex<float, float, kAlong, Greatest>)(spec);
    case DType::kBFloat16:
      return MakeFunctionKernel(SumByIndex<BFloat16, BFloat16, kAlong, Greatest>)(spec);
    case DType::kFloat16:
      return MakeFunctionKernel(SumByIndex<Float16, Float16, kAlong, Greatest>)(spec);
    default:
      return MakeReference(spec);
  }
}

}  // namespace

Status Take(const KernelContext& context) { return TakeAny<false>(context); }
Status TakeAlongAxis(const KernelContext& context) { return TakeAny<true>(context); }
KernelPtr MakeIndexSum(const KernelSpec& spec) { return MakeSums<false>(spec); }
KernelPtr MakeScatterSum(const KernelSpec& spec) { return MakeSums<true>(spec); }
KernelPtr MakeIndexMax(const KernelSpec& spec) { return MakeMaxima<false>(spec); }
KernelPtr MakeScatterMax(const KernelSpec& spec) { return MakeMaxima<true>(spec); }

}  // namespace oneflow_like::cpu
