// Small matrix products on tiles, for kernels that keep their operands in the first-level caches (attention).
#pragma once

#include <cstdint>

namespace oneflow_like::cpu {

// 16 floats, any alignment. A typedef, as all such types here: clang leaves the alignment out of a `using`.
typedef float Vector __attribute__((vector_size(64), aligned(4), may_alias));

// c[R x 16 W] (+)= a[R x depth] b[depth x 16 W]. a is read element by element, so both its strides are free.
// Six rows by four vectors fill the registers of AVX-512.
template <int R, int W>
void TileKernel(int64_t depth, const float* a, int64_t a_row, int64_t a_column, const float* b, int64_t ldb,
                float* c, int64_t ldc, bool add) {
  Vector sum[R][W];
  for (int r = 0; r < R; ++r) {
    for (int w = 0; w < W; ++w) {
      sum[r][w] = add ? *reinterpret_cast<const Vector*>(c + r * ldc + 16 * w) : Vector{};
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    Vector bk[W];
    for (int w = 0; w < W; ++w) bk[w] = *reinterpret_cast<const Vector*>(b + k * ldb + 16 * w);
    for (int r = 0; r < R; ++r) {
      float factor = a[r * a_row + k * a_column];
      for (int w = 0; w < W; ++w) sum[r][w] += factor * bk[w];
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int w = 0; w < W; ++w) *reinterpret_cast<Vector*>(c + r * ldc + 16 * w) = sum[r][w];
  }
}

template <int W>
void TileColumns(int64_t rows, int64_t depth, const float* a, int64_t a_row, int64_t a_column, const float* b,
                 int64_t ldb, float* c, int64_t ldc, bool add) {
  int64_t r = 0;
  for (; r + 6 <= rows; r += 6) {
    TileKernel<6, W>(depth, a + r * a_row, a_row, a_column, b, ldb, c + r * ldc, ldc, add);
  }
  for (; r + 2 <= rows; r += 2) {
    TileKernel<2, W>(depth, a + r * a_row, a_row, a_column, b, ldb, c + r * ldc, ldc, add);
  }
  if (r < rows) TileKernel<1, W>(depth, a + r * a_row, a_row, a_column, b, ldb, c + r * ldc, ldc, add);
}

// c[rows x columns] (+)= a[rows x depth] b[depth x columns]; b and c have dense rows, nothing past them is
// touched.
inline void TileProduct(int64_t rows, int64_t columns, int64_t depth, const float* a, int64_t a_row,
                        int64_t a_column, const float* b, int64_t ldb, float* c, int64_t ldc, bool add) {
  int64_t n = 0;
  for (; n + 64 <= columns; n += 64)
    TileColumns<4>(rows, depth, a, a_row, a_column, b + n, ldb, c + n, ldc, add);
  for (; n + 32 <= columns; n += 32)
    TileColumns<2>(rows, depth, a, a_row, a_column, b + n, ldb, c + n, ldc, add);
  for (; n + 16 <= columns; n += 16)
    TileColumns<1>(rows, depth, a, a_row, a_column, b + n, ldb, c + n, ldc, add);
  if (n == columns) return;
  for (int64_t r = 0; r < rows; ++r) {
    float sum[16] = {};
    for (int64_t k = 0; k < depth; ++k) {
      float factor = a[r * a_row + k * a_column];
      for (int64_t i = 0; i < columns - n; ++i) sum[i] += factor * b[k * ldb + n + i];
    }
    for (int64_t i = 0; i < columns - n; ++i) c[r * ldc + n + i] = (add ? c[r * ldc + n + i] : 0.0f) + sum[i];
  }
}

}  // namespace oneflow_like::cpu
