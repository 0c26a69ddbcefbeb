// Copies of boxes on the device, for the movers (move.cu) and local boxing (boxing.cu).
#pragma once

#include "core/boxes/copy_box.h"
#include "ops/cuda/kernel.h"

namespace oneflow_like::cuda {

// Whether a launch does its work, decided on the device: in every act, in the first micro-batch of a step, in
// the others.
enum class When : int32_t { kAlways, kFirst, kLater };

// One element, up to 8 bytes.
struct ElementBits {
  uint64_t bits = 0;
};
// `value` as an element of this type, rounded as the reference kernels do.
ElementBits BitsOf(DType dtype, double value);
// The identity of a reduction: the result of CombineBox without a source.
ElementBits IdentityOf(DType dtype, Reduce reduce);

// to[box] = from[box]; `box` lies inside both pieces.
void LaunchCopyBox(DType dtype, const Box& box, const Piece& from, const Piece& to, When when,
                   const LaunchContext& launch);
// to[box] = element.
void LaunchFillBox(DType dtype, const Box& box, ElementBits element, const Piece& to, When when,
                   const LaunchContext& launch);
// The piece becomes zero in the first micro-batch of a step, and stays as it is in the others.
void LaunchZeroFirst(const TensorArg& piece, const LaunchContext& launch);

}  // namespace oneflow_like::cuda
