// Plans a product of two labelled operands: which labels are rows, columns, summed and batches, which of them
// are contiguous in memory and so merge, and whether the library accepts the operands in their layout. Host
// arithmetic only.
#pragma once

#include <vector>

#include "ops/cuda/gemm.h"
#include "ops/cuda/strided.h"
#include "ops/equation.h"

namespace oneflow_like::cuda {

// A copy before or after the product: `walk.first` is the place in the packed operand.
struct Packing {
  bool needed = false;
  StridedWalk walk;
  int64_t elements = 0;
  DType dtype = DType::kFloat32;  // of the packed operand
};

struct ContractionPlan {
  enum Kind {
    kZero,     // nothing to sum: y is zero
    kDirect,   // `gemm` at each of `outer`
    kPacked,   // the same on packed copies of some operands
    kGeneral,  // a thread for each element
  };
  Kind kind = kZero;
  GemmDescriptor gemm;
  struct Place {
    int64_t a, b, y;  // elements
  };
  std::vector<Place> outer;
  Packing a, b, y;
  StridedWalk kept, summed;  // kGeneral: strides in a and in b
};

struct ContractionTypes {
  DType in, out;
  bool tf32 = false;
};

// For pieces of these extents. Packed copies take at most `packed_bytes`; below 0: the library is not to be
// used. Not `as_they_lie`: operands are packed before the library has them.
ContractionPlan PlanContraction(const std::vector<LabelAxes>& labels, const Dims& a, const Dims& b,
                                const ContractionTypes& types, int64_t packed_bytes, bool as_they_lie = true);

}  // namespace oneflow_like::cuda
