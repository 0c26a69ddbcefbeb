// embedding and its gradient. The gradient is cut by columns between threads: every thread adds rows in the
// order of the ids, so its bits do not depend on the number of threads.
#include <algorithm>
#include <cstring>

#include "ops/cpu/kernels.h"
#include "ops/cpu/loops.h"
#include "ops/list_parts.h"
#include "ops/reference.h"

namespace oneflow_like::cpu {
namespace {

int64_t IdAt(const TensorArg& ids, int64_t n) {
  return ids.dtype == DType::kInt32 ? ids.as<int32_t>()[n] : ids.as<int64_t>()[n];
}

Status CheckIds(const TensorArg& ids, int64_t rows, const ListParts& parts) {
  if (parts.places > 0) return Status();
  for (int64_t n = 0; n < ids.elements(); ++n) {
    int64_t id = IdAt(ids, n);
    if (id < 0 || id >= rows) return Status(Cat("id ", id, " is outside the table of ", rows, " rows"));
  }
  return Status();
}

// The table and the rows have one type; of what size does not matter.
Status Embedding(const KernelContext& context) {
  const TensorArg &table = context.in[0], &ids = context.in[1];
  const ListParts parts = PartsOf(context.spec.attrs, ids, table.global[0]);
  if (Status checked = CheckIds(ids, table.global[0], parts); !checked.ok()) return checked;
  int64_t width = table.extent[1], rows = table.extent[0], first = table.begin[0];
  char* y = context.out[0].as<char>();
  const char* from = table.as<char>();
  int64_t bytes = width * static_cast<int64_t>(SizeOf(table.dtype));
  ParallelFor(ids.elements(), RowGrain(width), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      int64_t row = IdAt(ids, n) - first;
      if (row >= 0 && row < rows && parts.Has(n, first + row)) {
        std::memcpy(y + n * bytes, from + row * bytes, bytes);
      } else {
        std::memset(y + n * bytes, 0, bytes);
      }
    }
  });
  return Status();
}

// dy of type T, dtable fp32.
template <typename T>
Status EmbeddingGrad(const KernelContext& context) {
  const TensorArg &ids = context.in[0], &dy = context.in[1], &dtable = context.out[0];
  const ListParts parts = PartsOf(context.spec.attrs, ids, dtable.global[0]);
  if (Status checked = CheckIds(ids, dtable.global[0], parts); !checked.ok()) return checked;
  int64_t width = dtable.extent[1], rows = dtable.extent[0], first = dtable.begin[0], count = ids.elements();
  FillZero(dtable.data, dtable.elements() * static_cast<int64_t>(sizeof(float)));
  int64_t grain = std::max<int64_t>(16, RowGrain(count));
  ParallelFor(width, grain, [&](int64_t begin, int64_t end) {
    for (int64_t n = 0; n < count; ++n) {
      int64_t row = IdAt(ids, n) - first;
      if (row < 0 || row >= rows || !parts.Has(n, first + row)) continue;
      const T* from = dy.as<T>() + n * width;
      float* to = dtable.as<float>() + row * width;
      OFL_INDEPENDENT
      for (int64_t c = begin; c < end; ++c) to[c] += AsFloat(from[c]);
    }
  });
  return Status();
}

}  // namespace

KernelPtr MakeEmbedding(const KernelSpec& spec) {
  bool fits = spec.in[0].dtype == spec.out[0].dtype && spec.in[0].extent.rank() == 2;
  return fits ? MakeFunctionKernel(Embedding)(spec) : MakeReference(spec);
}
KernelPtr MakeEmbeddingGrad(const KernelSpec& spec) {
  bool fits =
      IsFloating(spec.in[1].dtype) && spec.out[0].dtype == DType::kFloat32 && spec.out[0].extent.rank() == 2;
  if (!fits) return MakeReference(spec);
  return DispatchFloating(spec.in[1].dtype,
                          [&](auto t) { return MakeFunctionKernel(EmbeddingGrad<decltype(t)>)(spec); });
}

}  // namespace oneflow_like::cpu
