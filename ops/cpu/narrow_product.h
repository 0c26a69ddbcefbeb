// One product of matrices in bf16 as a oneDNN primitive, which sums in fp32. Made for one shape and layout,
// then run on any operands of that kind.
#pragma once

#include <cstdint>
#include <memory>

#include "core/dtype.h"

namespace oneflow_like::cpu {

// y[m n] = a[m k] b[k n]. Strides in elements; one of each matrix's is 1 (or its extent is).
struct ProductLayout {
  int64_t m = 0, n = 0, k = 0;
  int64_t a_row = 0, a_column = 0, b_row = 0, b_column = 0, y_row = 0, y_column = 0;
};

class NarrowProduct {
 public:
  // Whether this machine multiplies operands of the type faster than fp32: bf16 with AVX-512 BF16 or AMX.
  // Without, they are better widened.
  static bool Worthwhile(DType dtype);
  // Null where the library has no fast primitive for the layout. Made for the team size of the calling
  // thread. `result` is kFloat32 or kBFloat16. `add`: Run adds to y.
  static std::unique_ptr<NarrowProduct> Make(const ProductLayout& layout, DType result, bool add = false);
  ~NarrowProduct();
  // One thread at a time.
  void Run(const void* a, const void* b, void* y);

 private:
  struct Impl;
  explicit NarrowProduct(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace oneflow_like::cpu
