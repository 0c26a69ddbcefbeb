// linear_recurrence in fp32: rows of neighbouring lines advance together, a block of them on each thread, so
// that the loop over the axis streams through memory; lines whose places are neighbours go one by one.
#include <algorithm>

#include "ops/along_axis.h"
#include "ops/cpu/kernels.h"

namespace oneflow_like::cpu {
namespace {

constexpr int64_t kLines = 64;  // that advance together

}  // namespace

Status LinearRecurrence(const KernelContext& context) {
  const TensorArg &a = context.in[0], &b = context.in[1], &first = context.in[2], &y = context.out[0];
  const AroundAxis at(a, AxisOf(context.spec));
  const bool reverse = context.spec.attrs.Int("reverse", 0) != 0;
  if (y.elements() == 0) return Status();
  const int64_t blocks = (at.inner + kLines - 1) / kLines;
  const int64_t of_block = std::min(at.inner, kLines) * at.along;
  ParallelFor(at.outer * blocks, RowGrain(of_block), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t o = i / blocks, c = i % blocks * kLines, n = std::min(kLines, at.inner - c);
      float h[kLines];
      std::copy_n(first.as<float>() + o * at.inner + c, n, h);
      for (int64_t s = 0; s < at.along; ++s) {
        const int64_t place = reverse ? at.along - 1 - s : s;
        const int64_t offset = (o * at.along + place) * at.inner + c;
        const float *pa = a.as<float>() + offset, *pb = b.as<float>() + offset;
        float* to = y.as<float>() + offset;
        for (int64_t j = 0; j < n; ++j) to[j] = h[j] = pa[j] * h[j] + pb[j];
      }
    }
  });
  return Status();
}

}  // namespace oneflow_like::cpu
