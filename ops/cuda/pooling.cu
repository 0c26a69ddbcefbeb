// Pooling: a thread for each 4 neighbouring channels of a result where their number is a multiple of 4, else
// for each element, so that a warp reads and writes dense runs. Floor, bytes: max_pool2d reads x and writes y
// and the places once where windows do not overlap (the caches serve what they share); gradients read dy (and
// the places) once for each window an element is of, and write dx once. Gradients gather, so there are no
// atomics.
#include <algorithm>

#include "ops/cuda/kernels.h"
#include "ops/cuda/operand.h"
#include "ops/cuda/walk.h"
#include "ops/pooling.h"

namespace oneflow_like::cuda {
namespace {

// Pack i of a plane [n rows columns channels], and its first channel.
struct Element {
  int64_t n, row, column, channel;
};
template <int kPack>
OFL_DEVICE Element ElementOf(int64_t i, int64_t rows, int64_t columns, int64_t channels) {
  Element e;
  const int64_t position = Divide(i, channels / kPack, &e.channel),
                line = Divide(position, columns, &e.column);
  e.channel *= kPack;
  e.n = Divide(line, rows, &e.row);
  return e;
}

// kPlaces: the greatest, and where it stands; else the mean.
template <typename T, bool kPlaces, int kPack>
OFL_KERNEL void Pool(PoolShape s, const T* x, T* y, int32_t* places, int64_t count) {
  int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const Element e = ElementOf<kPack>(i, s.rows.out, s.columns.out, s.channels);
    const T* plane = x + e.n * s.rows.in * s.columns.in * s.channels + e.channel;
    const PoolRange rows = s.rows.Window(e.row), columns = s.columns.Window(e.column);
    Pack<int32_t, kPack> where;
    float value[kPack] = {};
    OFL_UNROLL
    for (int j = 0; j < kPack; ++j) where.at[j] = -1;
    for (int64_t h = rows.begin; h < rows.end; ++h) {
      for (int64_t w = columns.begin; w < columns.end; ++w) {
        const int64_t at = h * s.columns.in + w;
        const Pack<T, kPack> pack = LoadPack<kPack>(plane + at * s.channels);
        OFL_UNROLL
        for (int j = 0; j < kPack; ++j) {
          const float next = Load(pack.at[j]);
          if (!kPlaces) {
            value[j] += next;
          } else if (where.at[j] < 0 || next > value[j] || next != next) {
            value[j] = next;
            where.at[j] = static_cast<int32_t>(at);
          }
        }
      }
    }
    const float share = kPlaces ? 1.0f : s.Share(e.row, e.column);
    Pack<T, kPack> result;
    OFL_UNROLL
    for (int j = 0; j < kPack; ++j) result.at[j] = Store<T>(value[j] * share);
    StorePack(y + i * kPack, result);
    if (kPlaces) StorePack(places + i * kPack, where);
  }
}

template <typename T, bool kPlaces, int kPack>
OFL_KERNEL void PoolGrad(PoolShape s, const T* dy, const int32_t* places, T* dx, int64_t count) {
  int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const Element e = ElementOf<kPack>(i, s.rows.in, s.columns.in, s.channels);
    const int64_t here = e.row * s.columns.in + e.column, plane = e.n * s.rows.out * s.columns.out;
    const PoolRange rows = s.rows.Results(e.row), columns = s.columns.Results(e.column);
    float total[kPack] = {};
    for (int64_t p = rows.begin; p < rows.end; ++p) {
      for (int64_t q = columns.begin; q < columns.end; ++q) {
        const int64_t from = (plane + p * s.columns.out + q) * s.channels + e.channel;
        const Pack<T, kPack> pack = LoadPack<kPack>(dy + from);
        Pack<int32_t, kPack> where = {};
        if (kPlaces) where = LoadPack<kPack>(places + from);
        const float share = kPlaces ? 1.0f : s.Share(p, q);
        OFL_UNROLL
        for (int j = 0; j < kPack; ++j)
          if (!kPlaces || where.at[j] == here) total[j] += Load(pack.at[j]) * share;
      }
    }
    Pack<T, kPack> result;
    OFL_UNROLL
    for (int j = 0; j < kPack; ++j) result.at[j] = Store<T>(total[j]);
    StorePack(dx + i * kPack, result);
  }
}

// f(T{}, kPack): a pack of places is 16 bytes.
template <typename F>
void ForPacks(DType dtype, int64_t channels, std::initializer_list<const void*> operands, F&& f) {
  constexpr int kMost = 4;
  const bool packs = channels % kMost == 0 && std::all_of(operands.begin(), operands.end(), Aligned);
  WithFloating(dtype, [&](auto t) {
    if (packs) {
      f(t, std::integral_constant<int, kMost>());
    } else {
      f(t, std::integral_constant<int, 1>());
    }
  });
}

template <bool kPlaces>
Status Forward(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  if (y.elements() == 0) return Status();
  int32_t* const places = kPlaces ? context.out[1].as<int32_t>() : nullptr;
  const PoolShape shape = ShapeOfPool(context.spec.attrs, x, y);
  ForPacks(x.dtype, shape.channels, {x.data, y.data, places}, [&](auto t, auto pack) {
    using T = decltype(t);
    const int64_t count = y.elements() / pack;
    Launch(Pool<T, kPlaces, pack>, {.x = BlocksFor(count, 256, launch.multiprocessors)}, launch.stream, shape,
           x.as<T>(), y.as<T>(), places, count);
  });
  return Status();
}

template <bool kPlaces>
Status Backward(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &dy = context.in[0], &dx = context.out[0];
  if (dx.elements() == 0) return Status();
  const int32_t* const places = kPlaces ? context.in[1].as<int32_t>() : nullptr;
  const PoolShape shape = ShapeOfPool(context.spec.attrs, dx, dy);
  ForPacks(dy.dtype, shape.channels, {dy.data, dx.data, places}, [&](auto t, auto pack) {
    using T = decltype(t);
    const int64_t count = dx.elements() / pack;
    Launch(PoolGrad<T, kPlaces, pack>, {.x = BlocksFor(count, 256, launch.multiprocessors)}, launch.stream,
           shape, dy.as<T>(), places, dx.as<T>(), count);
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
