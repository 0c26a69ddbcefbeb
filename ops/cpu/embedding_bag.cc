// embedding_bag and gradients. Forward every bag is one thread's: it adds up rows in registers, up to 128
// columns at a time, while the rows that come next are on their way from memory. Backward the columns or rows
// of the table are cut between threads, and each adds in the order of the bags: bits do not depend on the
// number of threads.
#include <atomic>
#include <cstring>
#include <limits>

#include "ops/bags.h"
#include "ops/cpu/convert.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/loops.h"

namespace oneflow_like::cpu {
namespace {

enum class Mode { kSum, kMean, kMax };

Mode ModeOf(const Attrs& attrs) {
  const std::string& mode = attrs.Str("mode");
  return mode == "sum" ? Mode::kSum : mode == "mean" ? Mode::kMean : Mode::kMax;
}

constexpr int64_t kAhead = 16;  // ids whose rows are asked for before they are added

// A bag of ids and its table, at columns from `first` on.
template <typename T, typename I>
struct BagOf {
  const T* table;
  const I* ids;
  const float* weights;  // may be null
  float factor;          // of all
  int64_t used, total;   // ids that count; ids that follow in memory, of later bags too
  int64_t begin, rows, global, width;
  std::atomic<bool>* bad;  // an id is outside the table

  const T* Row(int64_t j) const {
    auto row = static_cast<uint64_t>(static_cast<int64_t>(ids[j]) - begin);
    if (row < static_cast<uint64_t>(rows)) return table + static_cast<int64_t>(row) * width;
    if (ids[j] < 0 || ids[j] >= global) bad->store(true, std::memory_order_relaxed);
    return nullptr;
  }
  // Prefetching an address that is not there, as padding may name, costs nothing. A function of its own that
  // only prefetches would have no effects to GCC, which drops calls of such.
  [[gnu::always_inline]] void Ask(int64_t j, int64_t first, int64_t columns) const {
    if (j >= total) return;
    auto row = static_cast<uint64_t>(static_cast<int64_t>(ids[j]) - begin) * static_cast<uint64_t>(width);
    uint64_t at = reinterpret_cast<uint64_t>(table) + (row + static_cast<uint64_t>(first)) * sizeof(T);
    for (uint64_t byte = 0; byte < static_cast<uint64_t>(columns) * sizeof(T); byte += 64)
      __builtin_prefetch(reinterpret_cast<const void*>(at + byte));
  }
};

// 16 columns; one where the table's width leaves no more.
typedef float BagLanes __attribute__((vector_size(64)));

inline void Read(const float* from, BagLanes* to) { std::memcpy(to, from, sizeof(BagLanes)); }
template <typename T>
void Read(const T* from, BagLanes* to) {
  float wide[16];
  Widen(from, 16, wide);
  Read(wide, to);
}
template <typename T>
void Read(const T* from, float* to) {
  *to = AsFloat(*from);
}
inline void Write(const BagLanes& from, float* to) { std::memcpy(to, &from, sizeof(BagLanes)); }
template <typename T>
void Write(const BagLanes& from, T* to) {
  float wide[16];
  Write(from, wide);
  Narrow(wide, 16, to);
}
template <typename T>
void Write(float from, T* to) {
  *to = FromFloat<T>(from);
}
template <typename V>
constexpr int kColumnsOf = sizeof(V) / sizeof(float);

// N times the columns of V, whose sums stay in registers: so the loops over n are unrolled.
template <int N, typename V, bool kMax, typename T, typename I>
void AddColumns(const BagOf<T, I>& bag, int64_t first, T* y) {
  constexpr int kColumns = kColumnsOf<V>;
  V sum[N];
  const float* weights = bag.weights;
  const float start = kMax && bag.used > 0 ? -std::numeric_limits<float>::infinity() : 0.0f;
  OFL_UNROLL(8)
  for (int n = 0; n < N; ++n) sum[n] = V{} + start;
  for (int64_t j = 0; j < bag.used; ++j) {
    bag.Ask(j + kAhead, first, N * kColumns);
    const T* row = bag.Row(j);
    if (row == nullptr) continue;
    const float factor = weights ? weights[j] : bag.factor;
    OFL_UNROLL(8)
    for (int n = 0; n < N; ++n) {
      V value{};
      Read(row + first + n * kColumns, &value);
      if constexpr (kMax) {
        sum[n] = value > sum[n] ? value : sum[n];
        sum[n] = value != value ? value : sum[n];
      } else {
        sum[n] += factor * value;
      }
    }
  }
  OFL_UNROLL(8)
  for (int n = 0; n < N; ++n) Write(sum[n], y + first + n * kColumns);
}

template <bool kMax, typename T, typename I>
void AddBag(const BagOf<T, I>& bag, T* y) {
  int64_t c = 0;
  for (; c + 128 <= bag.width; c += 128) AddColumns<8, BagLanes, kMax>(bag, c, y);
  for (; c + 64 <= bag.width; c += 64) AddColumns<4, BagLanes, kMax>(bag, c, y);
  for (; c + 16 <= bag.width; c += 16) AddColumns<1, BagLanes, kMax>(bag, c, y);
  for (; c < bag.width; ++c) AddColumns<1, float, kMax>(bag, c, y);
}

template <typename T, typename I>
Status BagForward(const KernelContext& context) {
  const TensorArg &table = context.in[0], &y = context.out[0];
  const Bags bags{context.in[1], context.in[2]};
  const float* weights = context.in.size() > 3 ? context.in[3].as<float>() : nullptr;
  const Mode mode = ModeOf(context.spec.attrs);
  const int64_t width = table.extent[1], room = bags.room();
  if (width == 0) return bags.Check(table.global[0]);
  std::atomic<bool> bad = false;
  ParallelFor(bags.count(), RowGrain(width * room), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      int64_t used = bags.Used(b);
      int64_t length = LoadInt(bags.lengths, b);
      if (length < 0 || length > bags.ids.global[1]) {
        bad = true;
        return;
      }
      float factor = mode == Mode::kMean && length > 0 ? 1.0f / static_cast<float>(length) : 1.0f;
      BagOf<T, I> bag{table.as<T>(),
                      bags.ids.as<I>() + b * room,
                      weights ? weights + b * room : nullptr,
                      factor,
                      used,
                      (end - b) * room,
                      table.begin[0],
                      table.extent[0],
                      table.global[0],
                      width,
                      &bad};
      T* to = y.as<T>() + b * width;
      if (mode == Mode::kMax && used == 0 && length > 0) {  // its ids are held elsewhere
        for (int64_t c = 0; c < width; ++c) to[c] = FromFloat<T>(-std::numeric_limits<float>::infinity());
      } else if (mode == Mode::kMax) {
        AddBag<true>(bag, to);
      } else {
        AddBag<false>(bag, to);
      }
    }
  });
  return bad ? bags.Check(table.global[0]) : Status();
}

// --- Gradients -----------------------------------------------------------------------------------

// Zeroes dtable and calls add(bag, j, row, left, right) for the ids that count, in their order, on disjoint
// parts of dtable: its rows, or its columns [left, right).
template <typename I, typename F>
void AddToRows(const Bags& bags, const TensorArg& dtable, F add) {
  const int64_t width = dtable.extent[1], rows = dtable.extent[0], room = bags.room();
  auto part = [&](int64_t low, int64_t high, int64_t left, int64_t right) {
    float* to = dtable.as<float>();
    if (right - left == width) {
      std::memset(to + low * width, 0, (high - low) * width * sizeof(float));
    } else {
      for (int64_t row = low; row < high; ++row)
        std::memset(to + row * width + left, 0, (right - left) * sizeof(float));
    }
    for (int64_t b = 0; b < bags.count(); ++b) {
      const I* ids = bags.ids.as<I>() + b * room;
      for (int64_t j = 0, used = bags.Used(b); j < used; ++j) {
        int64_t row = static_cast<int64_t>(ids[j]) - dtable.begin[0];
        if (row >= low && row < high) add(b, j, row, left, right);
      }
    }
  };
  // Rows of a table much larger than the batch: its zeroes are the work.
  if (width >= 16 * ParallelThreads() && rows < bags.count() * room) {
    ParallelFor(width, 16, [&](int64_t b, int64_t e) { part(0, rows, b, e); });
  } else {
    ParallelFor(rows, RowGrain(width), [&](int64_t b, int64_t e) { part(b, e, 0, width); });
  }
}

template <typename T, typename I>
Status BagGrad(const KernelContext& context) {
  const Bags bags{context.in[0], context.in[1]};
  const TensorArg &dy = context.in[2], &dtable = context.out[0];
  const float* weights = context.in.size() > 3 ? context.in[3].as<float>() : nullptr;
  Status checked = bags.Check(dtable.global[0]);
  if (!checked.ok() || dtable.elements() == 0) return checked;
  const bool mean = ModeOf(context.spec.attrs) == Mode::kMean;
  const int64_t width = dtable.extent[1], room = bags.room();
  AddToRows<I>(bags, dtable, [&](int64_t b, int64_t j, int64_t row, int64_t left, int64_t right) {
    float factor = weights ? weights[b * room + j]
                   : mean  ? 1.0f / static_cast<float>(LoadInt(bags.lengths, b))
                           : 1.0f;
    const T* from = dy.as<T>() + b * width;
    float* to = dtable.as<float>() + row * width;
    OFL_INDEPENDENT
    for (int64_t c = left; c < right; ++c) to[c] += factor * AsFloat(from[c]);
  });
  return Status();
}

template <typename I>
Status BagMaxGrad(const KernelContext& context) {
  const TensorArg &table = context.in[0], &y = context.in[3], &dy = context.in[4], &dtable = context.out[0];
  const Bags bags{context.in[1], context.in[2]};
  Status checked = bags.Check(table.global[0]);
  if (!checked.ok() || dtable.elements() == 0) return checked;
  const int64_t width = dtable.extent[1], room = bags.room();
  const float* tables = table.as<float>();
  FillZero(dtable.data, dtable.elements() * static_cast<int64_t>(sizeof(float)));
  ParallelFor(width, std::max<int64_t>(16, RowGrain(bags.count() * room)), [&](int64_t left, int64_t right) {
    constexpr int64_t kChunk = 64;
    float rest[kChunk];  // of dy, that has found no row yet
    for (int64_t b = 0; b < bags.count(); ++b) {
      const I* ids = bags.ids.as<I>() + b * room;
      for (int64_t first = left; first < right; first += kChunk) {
        int64_t columns = std::min(kChunk, right - first);
        const float *top = y.as<float>() + b * width + first, *from = dy.as<float>() + b * width + first;
        std::memcpy(rest, from, columns * sizeof(float));
        for (int64_t j = 0, used = bags.Used(b); j < used; ++j) {
          int64_t at = static_cast<int64_t>(ids[j]) * width + first;
          const float* row = tables + at;
          float* to = dtable.as<float>() + at;
          OFL_INDEPENDENT
          for (int64_t c = 0; c < columns; ++c) {
            bool hit = row[c] == top[c];
            to[c] += hit ? rest[c] : 0.0f;
            rest[c] = hit ? 0.0f : rest[c];
          }
        }
      }
    }
  });
  return Status();
}

template <typename T, typename I>
Status BagWeightsGrad(const KernelContext& context) {
  const TensorArg &table = context.in[0], &dy = context.in[3], &dweights = context.out[0];
  const Bags bags{context.in[1], context.in[2]};
  if (Status checked = bags.Check(table.global[0]); !checked.ok()) return checked;
  const int64_t width = table.extent[1], room = bags.room();
  ParallelFor(bags.count(), RowGrain(width * room), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const I* ids = bags.ids.as<I>() + b * room;
      const float* from = dy.as<float>() + b * width;
      for (int64_t j = 0, used = bags.Used(b); j < room; ++j) {
        int64_t row = j < used ? static_cast<int64_t>(ids[j]) - table.begin[0] : -1;
        float sum = 0;
        if (row >= 0 && row < table.extent[0]) {
          const T* values = table.as<T>() + row * width;
#pragma omp simd reduction(+ : sum)
          for (int64_t c = 0; c < width; ++c) sum += AsFloat(values[c]) * from[c];
        }
        dweights.as<float>()[b * room + j] = sum;
      }
    }
  });
  return Status();
}

bool IsFloat(const TensorArg& arg) { return arg.dtype == DType::kFloat32; }

}  // namespace

KernelPtr MakeEmbeddingBag(const KernelSpec& spec) {
  bool fits = spec.out[0].dtype == spec.in[0].dtype && (spec.in.size() < 4 || IsFloat(spec.in[3]));
  if (!fits) return MakeReference(spec);
  return DispatchFloating(spec.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    return spec.in[1].dtype == DType::kInt32 ? MakeFunctionKernel(BagForward<T, int32_t>)(spec)
                                             : MakeFunctionKernel(BagForward<T, int64_t>)(spec);
  });
}

KernelPtr MakeEmbeddingBagGrad(const KernelSpec& spec) {
  bool fits = IsFloat(spec.out[0]) && (spec.in.size() < 4 || IsFloat(spec.in[3]));
  if (!fits) return MakeReference(spec);
  return DispatchFloating(spec.in[2].dtype, [&](auto t) {
    using T = decltype(t);
    return spec.in[0].dtype == DType::kInt32 ? MakeFunctionKernel(BagGrad<T, int32_t>)(spec)
                                             : MakeFunctionKernel(BagGrad<T, int64_t>)(spec);
  });
}

KernelPtr MakeEmbeddingBagMaxGrad(const KernelSpec& spec) {
  if (!IsFloat(spec.in[0]) || !IsFloat(spec.in[3]) || !IsFloat(spec.in[4]) || !IsFloat(spec.out[0]))
    return MakeReference(spec);
  return spec.in[1].dtype == DType::kInt32 ? MakeFunctionKernel(BagMaxGrad<int32_t>)(spec)
                                           : MakeFunctionKernel(BagMaxGrad<int64_t>)(spec);
}

KernelPtr MakeEmbeddingBagWeightsGrad(const KernelSpec& spec) {
  if (!IsFloat(spec.in[3])) return MakeReference(spec);
  return DispatchFloating(spec.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    return spec.in[1].dtype == DType::kInt32 ? MakeFunctionKernel(BagWeightsGrad<T, int32_t>)(spec)
                                             : MakeFunctionKernel(BagWeightsGrad<T, int64_t>)(spec);
  });
}

}  // namespace oneflow_like::cpu
