// Copies and products of any strides. Neither is fast: layouts that models have go to the library as they
// are.
#include "ops/cuda/launch.h"
#include "ops/cuda/strided.h"

namespace oneflow_like::cuda {
namespace {

OFL_DEVICE float LoadAny(const void* from, DType type, int64_t at) {
  if (type == DType::kBFloat16) return Load(static_cast<const BFloat16*>(from)[at]);
  if (type == DType::kFloat16) return Load(static_cast<const Float16*>(from)[at]);
  return static_cast<const float*>(from)[at];
}

OFL_DEVICE void StoreAny(void* to, DType type, int64_t at, float value) {
  if (type == DType::kBFloat16) {
    static_cast<BFloat16*>(to)[at] = Store<BFloat16>(value);
  } else if (type == DType::kFloat16) {
    static_cast<Float16*>(to)[at] = Store<Float16>(value);
  } else {
    static_cast<float*>(to)[at] = value;
  }
}

OFL_DEVICE void Offsets(const StridedWalk& walk, int64_t index, int64_t* first, int64_t* second) {
  for (int axis = walk.rank - 1; axis >= 0; --axis) {
    int64_t at = index % walk.extent[axis];
    index /= walk.extent[axis];
    *first += at * walk.first[axis];
    *second += at * walk.second[axis];
  }
}

// `act`: null, or that of a kernel that adds to what earlier micro-batches have left.
OFL_DEVICE void StoreOrAdd(void* to, DType type, int64_t at, float value, const ActState* act) {
  if (act != nullptr && act->time > 0) value += LoadAny(to, type, at);
  StoreAny(to, type, at, value);
}

OFL_KERNEL void StridedCopyKernel(StridedWalk walk, int64_t count, void* to, DType to_type, const void* from,
                                  DType from_type, const ActState* act) {
  int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    int64_t t = 0, f = 0;
    Offsets(walk, i, &t, &f);
    StoreOrAdd(to, to_type, t, LoadAny(from, from_type, f), act);
  }
}

OFL_KERNEL void StridedProductKernel(StridedWalk kept, StridedWalk summed, int64_t count, int64_t terms,
                                     void* y, DType y_type, const void* a, const void* b, DType type,
                                     const ActState* act) {
  int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    int64_t at_a = 0, at_b = 0;
    Offsets(kept, i, &at_a, &at_b);
    float total = 0;
    for (int64_t j = 0; j < terms; ++j) {
      int64_t in_a = at_a, in_b = at_b;
      Offsets(summed, j, &in_a, &in_b);
      total += LoadAny(a, type, in_a) * LoadAny(b, type, in_b);
    }
    StoreOrAdd(y, y_type, i, total, act);
  }
}

}  // namespace

void LaunchStridedCopy(const StridedWalk& walk, void* to, DType to_type, const void* from, DType from_type,
                       bool accumulates, const LaunchContext& launch) {
  int64_t count = walk.elements();
  if (count == 0) return;
  Grid grid{BlocksFor(count, 256, launch.multiprocessors), 1, 256, 0};
  Launch(StridedCopyKernel, grid, launch.stream, walk, count, to, to_type, from, from_type,
         accumulates ? launch.act : nullptr);
}

void LaunchStridedProduct(const StridedWalk& kept, const StridedWalk& summed, void* y, DType y_type,
                          const void* a, const void* b, DType type, bool accumulates,
                          const LaunchContext& launch) {
  int64_t count = kept.elements(), terms = summed.elements();
  if (count == 0) return;
  Grid grid{BlocksFor(count, 128, launch.multiprocessors), 1, 128, 0};
  Launch(StridedProductKernel, grid, launch.stream, kept, summed, count, terms, y, y_type, a, b, type,
         accumulates ? launch.act : nullptr);
}

}  // namespace oneflow_like::cuda
