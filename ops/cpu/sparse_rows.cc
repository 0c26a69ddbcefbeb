// unique_rows by sorting, and updates of touched rows, which leave the rest of the table alone.
#include <cmath>
#include <cstring>

#include "ops/cpu/loops.h"
#include "ops/cpu/sort_keys.h"
#include "ops/touched_rows.h"

namespace oneflow_like::cpu {
namespace {

// Ids with their places, sorted; then each row adds up the gradients of its run, in their order.
template <typename I, typename T>
class UniqueRows : public Kernel {
 public:
  explicit UniqueRows(const KernelSpec& spec)
      : entries_(2 * spec.in[0].elements()), starts_(spec.in[0].elements() + 1) {}

  Status Run(const KernelContext& context) override {
    const TensorArg &ids = context.in[0], &grad = context.in[1], &values = context.out[1];
    const int64_t count = ids.elements(), width = values.extent[1];
    int64_t n = 0;
    for (int64_t i = 0; i < count; ++i) {
      I id = ids.as<I>()[i];
      if (id >= 0) entries_[n++] = (static_cast<EntryOf<Key>>(id) << kPlaceBits<Key>) | static_cast<Key>(i);
    }
    SortEntries<Key>(entries_.data(), entries_.data() + count, n);
    int64_t found = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (i == 0 || Row(i) != Row(i - 1)) starts_[found++] = i;
    }
    starts_[found] = n;
    ParallelFor(count, RowGrain(width), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        float* sum = values.as<float>() + r * width;
        context.out[0].as<I>()[r] = r < found ? static_cast<I>(Row(starts_[r])) : I{-1};
        if (r >= found) {
          std::memset(sum, 0, width * sizeof(float));
          continue;
        }
        for (int64_t i = starts_[r]; i < starts_[r + 1]; ++i) {
          const T* from = grad.as<T>() + static_cast<int64_t>(static_cast<Key>(entries_[i])) * width;
          if (i == starts_[r]) {
            for (int64_t c = 0; c < width; ++c) sum[c] = AsFloat(from[c]);
          } else {
            OFL_INDEPENDENT
            for (int64_t c = 0; c < width; ++c) sum[c] += AsFloat(from[c]);
          }
        }
      }
    });
    return Status();
  }

 private:
  using Key = std::make_unsigned_t<I>;
  int64_t Row(int64_t i) const { return static_cast<int64_t>(entries_[i] >> kPlaceBits<Key>); }

  std::vector<EntryOf<Key>> entries_;  // sorted; and room
  std::vector<int64_t> starts_;        // of the runs
};

void CopyTo(const TensorArg& from, const TensorArg& to) {
  if (from.data != to.data)
    CopyRuns(to.data, 0, from.data, 0, 1, from.elements() * static_cast<int64_t>(SizeOf(from.dtype)));
}

// update(i, row) for the rows of the list that are held here, shared among the threads: each stands there
// once.
template <typename F>
void ForRowsHere(const TensorArg& rows, const TensorArg& table, F update) {
  const int64_t begin = table.begin[0], extent = table.extent[0];
  ParallelFor(rows.elements(), RowGrain(2 * InnerOf(table.extent, 0)), [&](int64_t low, int64_t high) {
    for (int64_t i = low; i < high; ++i) {
      int64_t id = rows.dtype == DType::kInt32 ? rows.as<int32_t>()[i] : rows.as<int64_t>()[i];
      if (id >= begin && id < begin + extent) update(i, id - begin);
    }
  });
}

template <typename I>
KernelPtr MakeUniqueRowsOf(const KernelSpec& spec) {
  return DispatchFloating(spec.in[1].dtype, [&](auto t) -> KernelPtr {
    return std::make_unique<UniqueRows<I, decltype(t)>>(spec);
  });
}

}  // namespace

KernelPtr MakeUniqueRows(const KernelSpec& spec) {
  return spec.in[0].dtype == DType::kInt32 ? MakeUniqueRowsOf<int32_t>(spec)
                                           : MakeUniqueRowsOf<int64_t>(spec);
}

Status SgdRows(const KernelContext& context) {
  const TensorArg &rows = context.in[1], &table = context.out[0];
  Status checked = CheckTouched(rows, table.global[0]);
  if (!checked.ok()) return checked;
  CopyTo(context.in[0], table);
  const RowsUpdate update(context, 3);
  if (update.skipped) return Status();
  const float rate = static_cast<float>(update.lr), factor = static_cast<float>(update.factor);
  const float decay = static_cast<float>(context.spec.attrs.Float("weight_decay", 0));
  const int64_t width = table.extent[1];
  ForRowsHere(rows, table, [&](int64_t i, int64_t row) {
    const float* from = context.in[2].as<float>() + i * width;
    float* to = table.as<float>() + row * width;
    OFL_INDEPENDENT
    for (int64_t c = 0; c < width; ++c) to[c] -= rate * (factor * from[c] + decay * to[c]);
  });
  return Status();
}

Status AddSquaresToRows(const KernelContext& context) {
  const TensorArg &rows = context.in[1], &state = context.out[0];
  Status checked = CheckTouched(rows, state.global[0]);
  if (!checked.ok()) return checked;
  CopyTo(context.in[0], state);
  const RowsUpdate update(context, 3);
  if (update.skipped) return Status();
  const float factor = static_cast<float>(update.factor);
  ForRowsHere(rows, state, [&](int64_t i, int64_t row) {
    state.as<float>()[row] += factor * factor * context.in[2].as<float>()[i];
  });
  return Status();
}

Status AdagradRows(const KernelContext& context) {
  const TensorArg &rows = context.in[1], &state = context.in[3], &table = context.out[0];
  Status checked = CheckTouched(rows, table.global[0]);
  if (!checked.ok()) return checked;
  CopyTo(context.in[0], table);
  const RowsUpdate update(context, 4);
  if (update.skipped) return Status();
  const float factor = static_cast<float>(update.factor);
  const float eps = static_cast<float>(context.spec.attrs.Float("eps", 1e-8));
  const int64_t width = table.extent[1];
  ForRowsHere(rows, table, [&](int64_t i, int64_t row) {
    const float root = __builtin_sqrtf(state.as<float>()[row]);
    const float rate = static_cast<float>(update.lr) * factor / (root + eps);
    const float* from = context.in[2].as<float>() + i * width;
    float* to = table.as<float>() + row * width;
    OFL_INDEPENDENT
    for (int64_t c = 0; c < width; ++c) to[c] -= rate * from[c];
  });
  return Status();
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
