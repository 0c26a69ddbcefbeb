// One product of matrices in bf16 as a oneDNN primitive, which sums in fp32. Made for one shape and layout,
// then run on any operands of that kind.
#pragma once

#include <cstdint>
#include <memory>

#include "core/dtype.h"
#include "ops/cpu/product_layout.h"

namespace oneflow_like::cpu {

class NarrowProduct {
 public:
  // Whether this machine multiplies operands of the type faster than fp32: bf16 with AVX-512 BF16 or AMX.
  // Without, they are better widened.
  static bool Worthwhile(DType dtype);
  // Bytes of scratch that a product may ask for, whatever the machine: of blocks of its operands, and of
  // sums.
  static int64_t MostBytes(const ProductLayout& layout, int threads);
  // Null where the library has no fast primitive for the layout, or none that does with so many bytes of
  // scratch. Made for the team size of the calling thread. `result` is kFloat32 or kBFloat16. `add`: Run adds
  // to y. REQUIRES: one stride of each matrix is 1 (or its extent is).
  static std::unique_ptr<NarrowProduct> Make(const ProductLayout& layout, DType result, bool add,
                                             int64_t most_bytes);
  ~NarrowProduct();
  // One thread at a time, which may have a team of other size by then. Takes less than 4 KB by itself.
  void Run(const void* a, const void* b, void* y, void* scratch);

 private:
  struct Impl;
  explicit NarrowProduct(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace oneflow_like::cpu
