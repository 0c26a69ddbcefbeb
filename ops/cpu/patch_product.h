// Convolutions and their gradients as products of matrices, whose rows are gathered from x (or from y's
// gradient) as blocks of them are read. For what the library has no convolution for: operands of 16-bit types
// where the machine does not multiply them, and shapes that it refuses or for which it wants too much
// scratch.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "ops/convolution.h"
#include "ops/cpu/product_layout.h"

namespace oneflow_like::cpu {

struct PatchProduct {
  ConvolutionKind kind;
  ConvolutionShape shape;
  DType dtype = DType::kFloat32;   // of the operands
  DType result = DType::kFloat32;  // fp32, or that of the operands

  // Bytes of scratch of each of at most `threads` threads; and how many of these there are.
  int64_t bytes() const;
  int slots(int threads) const;
  // In the order of the relation of ops/convolution.h. On at most `threads` threads with `room` bytes of
  // scratch each. REQUIRES: no extent is 0.
  void Run(void* x, void* filter, void* y, int threads, void* scratch, int64_t room) const;

 private:
  ProductLayout layout() const;
};

}  // namespace oneflow_like::cpu
