// Sums over the rows or the columns of a matrix, for kernels that need them beside a product.
#pragma once

#include "core/dtype.h"
#include "ops/cuda/kernel.h"

namespace oneflow_like::cuda {

// Term j of sum i lies at data[i * to_next_result + j * to_next_term]. REQUIRES: one of the two strides is 1;
// the type is floating; there are results and terms.
struct SummedMatrix {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  int64_t results = 0, terms = 0;
  int64_t to_next_result = 1, to_next_term = 1;
};

// y[i] = sum i, in fp32, rounded once to a floating type; y is contiguous. Few sums of many terms leave parts
// in the work space, which a second launch joins. The order of additions follows from the extents alone.
void LaunchMatrixSums(const SummedMatrix& x, void* y, DType y_type, const LaunchContext& launch);

}  // namespace oneflow_like::cuda
