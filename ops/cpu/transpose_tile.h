// Transposes of rows in tiles of 16 by 16, elements of any floating type to fp32.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cpu/kernels.h"
#include "ops/cpu/vectors.h"

namespace oneflow_like::cpu {

// Lanes of x (numbers 0 to 15) and y (16 to 31).
template <uint32_t... I>
[[gnu::always_inline]] inline Vector PickLanes(Vector x, Vector y) {
#if defined(__clang__)
  return __builtin_shufflevector(x, y, I...);
#else
  return __builtin_shuffle(x, y, Words{I...});
#endif
}

// to[column][row] = from[row][column], 16 of each.
template <typename T>
void TransposeTile(const T* from, int64_t from_row, float* to, int64_t to_row) {
  Vector a[16], b[16];
  for (int i = 0; i < 16; ++i) a[i] = LoadVector(from + i * from_row, FullVector());
  // Pairs of rows, then fours: a[4 g + j] has of rows 4 g to 4 g + 3 columns j, j + 4, j + 8 and j + 12.
  for (int i = 0; i < 16; i += 2) {
    b[i] = PickLanes<0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29>(a[i], a[i + 1]);
    b[i + 1] = PickLanes<2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31>(a[i], a[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; ++j) {
      const Vector x = b[i + j], y = b[i + j + 2];
      a[i + 2 * j] = PickLanes<0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29>(x, y);
      a[i + 2 * j + 1] = PickLanes<2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31>(x, y);
    }
  // Quarters of vectors, of eight rows and then of all.
  for (int j = 0; j < 4; ++j)
    for (int i = 0; i < 16; i += 8) {
      const Vector x = a[i + j], y = a[i + 4 + j];
      b[i + j] = PickLanes<0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27>(x, y);
      b[i + 4 + j] = PickLanes<4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31>(x, y);
    }
  for (int j = 0; j < 8; ++j) {
    const Vector x = b[j], y = b[8 + j];
    a[j] = PickLanes<0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23>(x, y);
    a[8 + j] = PickLanes<8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31>(x, y);
  }
  for (int i = 0; i < 16; ++i) StoreVector(a[i], FullVector(), to + i * to_row);
}

// to[column][row] = from[row][column] of `rows` rows, and 0 for rows up to the next multiple of 16.
template <typename T>
void TransposeRows(const T* from, int64_t from_row, int64_t rows, int64_t columns, float* to,
                   int64_t to_row) {
  for (int64_t r = 0; r < rows; r += 16) {
    const int64_t count = std::min<int64_t>(16, rows - r);
    int64_t c = 0;
    for (; count == 16 && c + 16 <= columns; c += 16)
      TransposeTile(from + r * from_row + c, from_row, to + c * to_row + r, to_row);
    for (; c < columns; ++c)
      for (int64_t i = 0; i < 16; ++i)
        to[c * to_row + r + i] = i < count ? AsFloat(from[(r + i) * from_row + c]) : 0.0f;
  }
}

}  // namespace oneflow_like::cpu
