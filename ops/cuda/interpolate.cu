// interpolate and its gradient: a thread for each element of the result, neighbouring threads on neighbouring
// channels. Floor, bytes: x and y once each, since a row is read again while the caches have it; the gradient
// likewise. It gathers, so there are no atomics.
#include "ops/cuda/kernels.h"
#include "ops/cuda/operand.h"
#include "ops/interpolate.h"

namespace oneflow_like::cuda {
namespace {

template <typename T>
OFL_KERNEL void ResizeElements(ResizeShape s, const T* x, T* y, int64_t count) {
  int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    int64_t position = i / s.channels, channel = i - position * s.channels;
    int64_t line = position / s.columns.out, n = line / s.rows.out;
    ResizeSource row = s.rows.Source(line - n * s.rows.out);
    ResizeSource column = s.columns.Source(position - line * s.columns.out);
    const T* plane = x + n * s.rows.in * s.columns.in * s.channels + channel;
    auto at = [&](int64_t h, int64_t w) { return Load(plane[(h * s.columns.in + w) * s.channels]); };
    if (!s.rows.bilinear) {
      y[i] = plane[(row.first * s.columns.in + column.first) * s.channels];
      continue;
    }
    float above =
        at(row.first, column.first) * (1.0f - column.weight) + at(row.first, column.second) * column.weight;
    float below =
        at(row.second, column.first) * (1.0f - column.weight) + at(row.second, column.second) * column.weight;
    y[i] = Store<T>(above * (1.0f - row.weight) + below * row.weight);
  }
}

template <typename T>
OFL_KERNEL void ResizeGradElements(ResizeShape s, const T* dy, T* dx, int64_t count) {
  int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    int64_t position = i / s.channels, channel = i - position * s.channels;
    int64_t line = position / s.columns.in, n = line / s.rows.in;
    int64_t h = line - n * s.rows.in, w = position - line * s.columns.in;
    const T* plane = dy + n * s.rows.out * s.columns.out * s.channels + channel;
    ResizeRange rows = s.rows.Results(h), columns = s.columns.Results(w);
    float total = 0.0f;
    for (int64_t p = rows.begin; p < rows.end; ++p) {
      float of_row = s.rows.Part(h, p);
      if (of_row == 0.0f) continue;
      for (int64_t q = columns.begin; q < columns.end; ++q) {
        float part = of_row * s.columns.Part(w, q);
        if (part != 0.0f) total += Load(plane[(p * s.columns.out + q) * s.channels]) * part;
      }
    }
    dx[i] = Store<T>(total);
  }
}

template <bool kGrad>
Status Resize(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &from = context.in[0], &to = context.out[0];
  int64_t count = to.elements();
  if (count == 0) return Status();
  ResizeShape shape =
      kGrad ? ShapeOfResize(context.spec.attrs, to, from) : ShapeOfResize(context.spec.attrs, from, to);
  Grid grid{.x = BlocksFor(count, 256, launch.multiprocessors)};
  WithFloating(from.dtype, [&](auto t) {
    using T = decltype(t);
    Launch(kGrad ? ResizeGradElements<T> : ResizeElements<T>, grid, launch.stream, shape, from.as<T>(),
           to.as<T>(), count);
  });
  return Status();
}

}  // namespace

void AddInterpolateKernels(KernelRegistry* registry) {
  registry->Add("interpolate", "cuda", MakeLaunchKernel(Resize<false>));
  registry->Add("interpolate_grad", "cuda", MakeLaunchKernel(Resize<true>));
}

}  // namespace oneflow_like::cuda
