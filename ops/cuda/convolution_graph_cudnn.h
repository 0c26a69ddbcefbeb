// Convolutions as cuDNN's operation graphs, and their plans: for the device of a handle, or for one that is
// only described.
#pragma once

#include <string>

#include "ops/cuda/convolution_library.h"
#include "ops/cuda/graph_cudnn.h"

namespace oneflow_like::cuda {

// Numbers of the tensors.
enum ConvolutionId : int64_t { kConvolutionX = 1, kConvolutionFilter, kConvolutionY, kNarrowFilter };

struct ConvolutionPlan {
  CudnnPtr plan;  // nullptr: cuDNN has none
  // Where it has none that writes a filter's gradient of 16-bit operands in fp32: `plan` writes it in their
  // type to the beginning of the work space, and this one widens it.
  CudnnPtr widen;
  int64_t narrow_bytes = 0;  // of it, before the plan's own work space
  std::string refused;       // why there is none
};

// The first deterministic plan advised within `room` bytes of work space. fp32 stays fp32 unless
// `convolution.tf32`.
ConvolutionPlan MakeConvolutionPlan(const LibraryConvolution& convolution, size_t room,
                                    const CudnnTarget& target);

}  // namespace oneflow_like::cuda
