// Strided helpers of products (strided.cu): copies that bring operands into a layout a matrix product takes,
// and the product of anything, one thread per element, for what is too odd for a library and too large to be
// copied.
#pragma once

#include <cstdint>

#include "core/dims.h"
#include "core/dtype.h"
#include "ops/cuda/kernel.h"

namespace oneflow_like::cuda {

// Walks an index space, the last axis running fastest. Passed to kernels by value.
struct StridedWalk {
  static constexpr int kMostAxes = 2 * Dims::kMaxRank;  // labels of two operands
  int32_t rank = 0;
  int64_t extent[kMostAxes] = {};
  int64_t first[kMostAxes] = {};   // strides, in elements, of one operand
  int64_t second[kMostAxes] = {};  // and of another

  int64_t elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= extent[i];
    return n;
  }
  void Add(int64_t n, int64_t stride_first, int64_t stride_second) {
    if (n == 1) return;
    extent[rank] = n;
    first[rank] = stride_first;
    second[rank++] = stride_second;
  }
};

// to[first strides] = from[second strides], converted. Both of floating types. `accumulates`: added to what
// is there, but in the first micro-batch.
void LaunchStridedCopy(const StridedWalk& walk, void* to, DType to_type, const void* from, DType from_type,
                       bool accumulates, const LaunchContext& launch);

// y[kept] = sum over `summed` of a b, or added to it likewise. y is contiguous in the order of `kept`.
void LaunchStridedProduct(const StridedWalk& kept, const StridedWalk& summed, void* y, DType y_type,
                          const void* a, const void* b, DType type, bool accumulates,
                          const LaunchContext& launch);

}  // namespace oneflow_like::cuda
