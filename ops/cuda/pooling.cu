// Pooling: a thread for each element of the result, neighbouring threads on neighbouring channels, so that a
// warp reads and writes dense runs. Floor, bytes: max_pool2d reads x and writes y and the places once where
// windows do not overlap (the caches serve what they share); gradients read dy (and the places) once for each
// window an element is of, and write dx once. Gradients gather, so there are no atomics.
#include "ops/cuda/kernels.h"
#include "ops/cuda/operand.h"
#include "ops/pooling.h"

namespace oneflow_like::cuda {
namespace {

// Element i of a plane [n rows columns channels].
struct Element {
  int64_t n, row, column, channel;
};
OFL_DEVICE Element ElementOf(int64_t i, int64_t rows, int64_t columns, int64_t channels) {
  int64_t position = i / channels, line = position / columns;
  return {line / rows, line % rows, position - line * columns, i - position * channels};
}

// kPlaces: the greatest, and where it stands; else the mean.
template <typename T, bool kPlaces>
OFL_KERNEL void Pool(PoolShape s, const T* x, T* y, int32_t* places, int64_t count) {
  int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    Element e = ElementOf(i, s.rows.out, s.columns.out, s.channels);
    const T* plane = x + e.n * s.rows.in * s.columns.in * s.channels + e.channel;
    PoolRange rows = s.rows.Window(e.row), columns = s.columns.Window(e.column);
    int64_t where = -1;
    float value = 0.0f;
    for (int64_t h = rows.begin; h < rows.end; ++h) {
      for (int64_t w = columns.begin; w < columns.end; ++w) {
        int64_t at = h * s.columns.in + w;
        float next = Load(plane[at * s.channels]);
        if (!kPlaces) {
          value += next;
        } else if (where < 0 || next > value || next != next) {
          value = next;
          where = at;
        }
      }
    }
    y[i] = Store<T>(kPlaces ? value : value * s.Share(e.row, e.column));
    if (kPlaces) places[i] = static_cast<int32_t>(where);
  }
}

template <typename T, bool kPlaces>
OFL_KERNEL void PoolGrad(PoolShape s, const T* dy, const int32_t* places, T* dx, int64_t count) {
  int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    Element e = ElementOf(i, s.rows.in, s.columns.in, s.channels);
    int64_t here = e.row * s.columns.in + e.column, plane = e.n * s.rows.out * s.columns.out;
    PoolRange rows = s.rows.Results(e.row), columns = s.columns.Results(e.column);
    float total = 0.0f;
    for (int64_t p = rows.begin; p < rows.end; ++p) {
      for (int64_t q = columns.begin; q < columns.end; ++q) {
        int64_t from = (plane + p * s.columns.out + q) * s.channels + e.channel;
        if (!kPlaces) {
          total += Load(dy[from]) * s.Share(p, q);
        } else if (places[from] == here) {
          total += Load(dy[from]);
        }
      }
    }
    dx[i] = Store<T>(total);
  }
}

template <bool kPlaces>
Status Forward(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  int64_t count = y.elements();
  if (count == 0) return Status();
  Grid grid{.x = BlocksFor(count, 256, launch.multiprocessors)};
  WithFloating(x.dtype, [&](auto t) {
    using T = decltype(t);
    Launch(Pool<T, kPlaces>, grid, launch.stream, ShapeOfPool(context.spec.attrs, x, y), x.as<T>(), y.as<T>(),
           kPlaces ? context.out[1].as<int32_t>() : nullptr, count);
  });
  return Status();
}

template <bool kPlaces>
Status Backward(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &dy = context.in[0], &dx = context.out[0];
  int64_t count = dx.elements();
  if (count == 0) return Status();
  Grid grid{.x = BlocksFor(count, 256, launch.multiprocessors)};
  WithFloating(dy.dtype, [&](auto t) {
    using T = decltype(t);
    Launch(PoolGrad<T, kPlaces>, grid, launch.stream, ShapeOfPool(context.spec.attrs, dx, dy), dy.as<T>(),
           kPlaces ? context.in[1].as<int32_t>() : nullptr, dx.as<T>(), count);
  });
  return Status();
}

}  // namespace

void AddPoolingKernels(KernelRegistry* registry) {
  registry->Add("max_pool2d", "cuda", MakeLaunchKernel(Forward<true>));
  registry->Add("max_pool2d_grad", "cuda", MakeLaunchKernel(Backward<true>));
  registry->Add("avg_pool2d", "cuda", MakeLaunchKernel(Forward<false>));
  registry->Add("avg_pool2d_grad", "cuda", MakeLaunchKernel(Backward<false>));
}

}  // namespace oneflow_like::cuda
