// unique_rows by sorting, and updates of touched rows, which leave the rest of the table alone.
#include <cmath>
#include <cstring>

#include "core/device/scratch.h"
#include "ops/cpu/loops.h"
#include "ops/cpu/sort_keys.h"
#include "ops/touched_rows.h"

namespace oneflow_like::cpu {
namespace {

// Ids with their places, sorted; then each row adds up the gradients of its run, in their order.
template <typename I, typename T>
struct UniqueRows {
  using Key = std::make_unsigned_t<I>;
  struct Room {
    EntryOf<Key>* entries;  // sorted; and room
    int64_t* starts;        // of the runs
    int64_t bytes;
    explicit Room(int64_t count, void* memory = nullptr) {
      Scratch scratch(memory);
      entries = scratch.Take<EntryOf<Key>>(2 * count);
      starts = scratch.Take<int64_t>(count + 1);
      bytes = scratch.bytes();
    }
  };

  static Status Run(const KernelContext& context) {
    const TensorArg& ids = context.in[0];
    const ListParts parts = PartsOf(context.spec.attrs, ids, 0);
    const int64_t count = parts.places > 0 ? parts.places : ids.elements();
    for (int64_t first = 0; first < ids.elements(); first += count) SumPart(context, first, count);
    return Status();
  }

  // Of `count` places from `first` on.
  static void SumPart(const KernelContext& context, int64_t first, int64_t count) {
    const TensorArg& values = context.out[1];
    const int64_t width = values.extent[1];
    const I* ids = context.in[0].as<I>() + first;
    const T* grad = context.in[1].as<T>() + first * width;
    I* const rows = context.out[0].as<I>() + first;
    float* const sums = values.as<float>() + first * width;
    const Room room(count, context.scratch);
    EntryOf<Key>* const entries = room.entries;
    int64_t* const starts = room.starts;
    const auto row_of = [entries](int64_t i) { return static_cast<int64_t>(entries[i] >> kPlaceBits<Key>); };
    int64_t n = 0;
    for (int64_t i = 0; i < count; ++i) {
      const I id = ids[i];
      if (id >= 0) entries[n++] = (static_cast<EntryOf<Key>>(id) << kPlaceBits<Key>) | static_cast<Key>(i);
    }
    SortEntries<Key>(entries, entries + count, n);
    int64_t found = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (i == 0 || row_of(i) != row_of(i - 1)) starts[found++] = i;
    }
    starts[found] = n;
    ParallelFor(count, RowGrain(width), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        float* sum = sums + r * width;
        rows[r] = r < found ? static_cast<I>(row_of(starts[r])) : I{-1};
        if (r >= found) {
          std::memset(sum, 0, width * sizeof(float));
          continue;
        }
        for (int64_t i = starts[r]; i < starts[r + 1]; ++i) {
          const T* from = grad + static_cast<int64_t>(static_cast<Key>(entries[i])) * width;
          if (i == starts[r]) {
            for (int64_t c = 0; c < width; ++c) sum[c] = AsFloat(from[c]);
          } else {
            OFL_INDEPENDENT
            for (int64_t c = 0; c < width; ++c) sum[c] += AsFloat(from[c]);
          }
        }
      }
    });
  }
};

void CopyTo(const TensorArg& from, const TensorArg& to) {
  if (from.data != to.data)
    CopyRuns(to.data, 0, from.data, 0, 1, from.elements() * static_cast<int64_t>(SizeOf(from.dtype)));
}

// update(i, row) for the rows of the list that are held here, shared among the threads: each stands there
// once.
template <typename F>
void ForRowsHere(const TensorArg& rows, const TensorArg& table, const ListParts& parts, F update) {
  const int64_t begin = table.begin[0], extent = table.extent[0];
  ParallelFor(rows.elements(), RowGrain(2 * InnerOf(table.extent, 0)), [&](int64_t low, int64_t high) {
    for (int64_t i = low; i < high; ++i) {
      int64_t id = rows.dtype == DType::kInt32 ? rows.as<int32_t>()[i] : rows.as<int64_t>()[i];
      if (id >= begin && id < begin + extent && parts.Has(i, id)) update(i, id - begin);
    }
  });
}

template <typename I>
KernelPtr MakeUniqueRowsOf(const KernelSpec& spec) {
  return DispatchFloating(spec.in[1].dtype,
                          [&](auto t) { return MakeFunctionKernel(UniqueRows<I, decltype(t)>::Run)(spec); });
}

}  // namespace

KernelPtr MakeUniqueRows(const KernelSpec& spec) {
  return spec.in[0].dtype == DType::kInt32 ? MakeUniqueRowsOf<int32_t>(spec)
                                           : MakeUniqueRowsOf<int64_t>(spec);
}

int64_t UniqueRowsScratch(const KernelSpec& spec) {
  const int64_t count = spec.in[0].elements();
  return spec.in[0].dtype == DType::kInt32 ? UniqueRows<int32_t, float>::Room(count).bytes
                                           : UniqueRows<int64_t, float>::Room(count).bytes;
}

Status SgdRows(const KernelContext& context) {
  const TensorArg &rows = context.in[1], &table = context.out[0];
  return UpdateTouched(context, 3, CopyTo, [&](const RowsUpdate& update, const ListParts& parts) {
    const float rate = static_cast<float>(update.lr), factor = static_cast<float>(update.factor);
    const float decay = static_cast<float>(context.spec.attrs.Float("weight_decay", 0));
    const int64_t width = table.extent[1];
    ForRowsHere(rows, table, parts, [&](int64_t i, int64_t row) {
      const float* from = context.in[2].as<float>() + i * width;
      float* to = table.as<float>() + row * width;
      OFL_INDEPENDENT
      for (int64_t c = 0; c < width; ++c) to[c] -= rate * (factor * from[c] + decay * to[c]);
    });
  });
}

Status AddSquaresToRows(const KernelContext& context) {
  const TensorArg &rows = context.in[1], &state = context.out[0];
  return UpdateTouched(context, 3, CopyTo, [&](const RowsUpdate& update, const ListParts& parts) {
    const float factor = static_cast<float>(update.factor);
    ForRowsHere(rows, state, parts, [&](int64_t i, int64_t row) {
      state.as<float>()[row] += factor * factor * context.in[2].as<float>()[i];
    });
  });
}

Status AdagradRows(const KernelContext& context) {
  const TensorArg &rows = context.in[1], &state = context.in[3], &table = context.out[0];
  return UpdateTouched(context, 4, CopyTo, [&](const RowsUpdate& update, const ListParts& parts) {
    const float factor = static_cast<float>(update.factor);
    const float eps = static_cast<float>(context.spec.attrs.Float("eps", 1e-8));
    const int64_t width = table.extent[1];
    ForRowsHere(rows, table, parts, [&](int64_t i, int64_t row) {
      const float root = __builtin_sqrtf(state.as<float>()[row]);
      const float rate = static_cast<float>(update.lr) * factor / (root + eps);
      const float* from = context.in[2].as<float>() + i * width;
      float* to = table.as<float>() + row * width;
      OFL_INDEPENDENT
      for (int64_t c = 0; c < width; ++c) to[c] -= rate * from[c];
    });
  });
}

KernelFactory ForRowsUpdate(KernelFn fn) {
  return [fn](const KernelSpec& spec) {
    for (size_t i = 0; i < spec.in.size(); ++i) {
      if (i != 1 && IsFloating(spec.in[i].dtype) && spec.in[i].dtype != DType::kFloat32)
        return MakeReference(spec);
    }
    return MakeFunctionKernel(fn)(spec);
  };
}

}  // namespace oneflow_like::cpu
