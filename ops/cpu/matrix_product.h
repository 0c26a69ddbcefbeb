// Products of two matrices of any floating types, with any strides, by panels.
#pragma once

#include <cstdint>
#include <span>

#include "core/dtype.h"
#include "ops/cpu/product_layout.h"

namespace oneflow_like::cpu {

// A sum over more than k: of products of matrices that lie these distances apart.
struct SummedAxis {
  int64_t extent = 1, a = 0, b = 0;
};

struct MatrixProduct {
  ProductLayout layout;
  std::span<const SummedAxis> summed = {};  // from the outermost to the innermost
  DType dtype = DType::kFloat32;            // of a and b
  DType result = DType::kFloat32;           // fp32, or that of a and b
  bool add = false;                         // to y, which is fp32

  int64_t depth() const;  // of the whole sum
  // Bytes of scratch of each thread (PanelBytes).
  int64_t bytes() const;
  // On at most `threads` threads with `room` bytes of scratch each. REQUIRES: k > 0.
  void Run(const void* a, const void* b, void* y, int threads, void* scratch, int64_t room) const;
};

}  // namespace oneflow_like::cpu
