// One product of two matrices, as it lies in memory.
#pragma once

#include <cstdint>

namespace oneflow_like::cpu {

// y[m n] = a[m k] b[k n]. Strides in elements.
struct ProductLayout {
  int64_t m = 0, n = 0, k = 0;
  int64_t a_row = 0, a_column = 0, b_row = 0, b_column = 0, y_row = 0, y_column = 0;

  // y^T = b^T a^T: the same product.
  ProductLayout Turned() const { return {n, m, k, b_column, b_row, a_column, a_row, y_column, y_row}; }
};

}  // namespace oneflow_like::cpu
