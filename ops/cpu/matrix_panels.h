// Matrices as the operands and the result of a product by panels. Of a left operand a block keeps the order
// in which it lies, dense rows or dense columns; a right one is always read to dense rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "ops/cpu/convert.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/matrix_product.h"
#include "ops/cpu/panel_product.h"
#include "ops/cpu/transpose_tile.h"
#include "ops/cpu/vectors.h"

namespace oneflow_like::cpu {

// Few rows are multiplied with the right operand where it lies: it would be copied for too little.
inline constexpr int64_t kRowsInPlace = 12;

// Where element 0 of row (or column) k of an operand lies: k runs through all summed axes.
struct DepthWalk {
  std::span<const SummedAxis> summed;
  int64_t SummedAxis::*stride;
  int64_t k = 0, step = 0;  // extent and stride of the innermost

  int64_t At(int64_t index) const {
    int64_t offset = index % k * step;
    index /= k;
    for (auto axis = summed.rbegin(); axis != summed.rend() && index > 0; ++axis) {
      offset += index % axis->extent * ((*axis).*stride);
      index /= axis->extent;
    }
    return offset;
  }
};

// A row in fp32, 0 from `columns` on.
template <typename T>
void CopyPanelRow(const T* from, int64_t columns, int64_t width, float* to) {
  ForVectors(columns,
             [&](int64_t c, auto lanes) { StoreVector(LoadVector(from + c, lanes), lanes, to + c); });
  std::fill(to + columns, to + width, 0.0f);
}

template <typename T>
class MatrixLeft : public LeftPanels {
 public:
  MatrixLeft(const MatrixProduct& p, const void* a)
      : a_(static_cast<const T*>(a)),
        row_(p.layout.a_row),
        walk_{p.summed, &SummedAxis::a, p.layout.k, p.layout.a_column} {}

  PanelBlock Read(int64_t m, int64_t rows, int64_t k, int64_t depth, float* room) const override {
    const T* from = a_ + m * row_ + walk_.At(k);
    const int64_t step = walk_.step;
    if (step == 1 || depth == 1) {
      if constexpr (std::is_same_v<T, float>) return {from, row_, 1};
      for (int64_t i = 0; i < rows; ++i) Widen(from + i * row_, depth, room + i * depth);
      return {room, depth, 1};
    }
    if (row_ == 1) {
      for (int64_t j = 0; j < depth; ++j) Widen(from + j * step, rows, room + j * rows);
      return {room, 1, rows};
    }
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < depth; ++j) room[i * depth + j] = AsFloat(from[i * row_ + j * step]);
    return {room, depth, 1};
  }

 private:
  const T* a_;
  int64_t row_;
  DepthWalk walk_;
};

template <typename T>
class MatrixRight : public RightPanels {
 public:
  MatrixRight(const MatrixProduct& p, const void* b)
      : b_(static_cast<const T*>(b)),
        column_(p.layout.b_column),
        in_place_(std::is_same_v<T, float> && p.layout.m <= kRowsInPlace),
        walk_{p.summed, &SummedAxis::b, p.layout.k, p.layout.b_row} {}

  PanelBlock Read(int64_t k, int64_t depth, int64_t n, int64_t columns, float* room) const override {
    const T* from = b_ + walk_.At(k) + n * column_;
    const int64_t step = walk_.step, width = (columns + 15) / 16 * 16;
    if (column_ == 1) {
      if constexpr (std::is_same_v<T, float>)
        if (in_place_ && columns == width) return {from, step, 1};
      for (int64_t i = 0; i < depth; ++i) CopyPanelRow(from + i * step, columns, width, room + i * width);
    } else if (step == 1) {
      TransposeRows(from, column_, columns, depth, room, width);
    } else {
      for (int64_t i = 0; i < depth; ++i)
        for (int64_t j = 0; j < width; ++j)
          room[i * width + j] = j < columns ? AsFloat(from[i * step + j * column_]) : 0.0f;
    }
    return {room, width, 1};
  }

 private:
  const T* b_;
  int64_t column_;
  bool in_place_;
  DepthWalk walk_;
};

template <typename Y>
class MatrixResult : public ProductResult {
 public:
  MatrixResult(const MatrixProduct& p, void* y)
      : y_(static_cast<Y*>(y)), row_(p.layout.y_row), column_(p.layout.y_column), add_(p.add) {}

  float* Row(int64_t m) const override { return reinterpret_cast<float*>(y_) + m * row_; }
  int64_t row() const override { return row_; }
  void Store(int64_t m, int64_t rows, int64_t n, int64_t columns, const float* from,
             int64_t from_row) const override {
    for (int64_t i = 0; i < rows; ++i, from += from_row) {
      Y* to = y_ + (m + i) * row_ + n * column_;
      if (column_ == 1 && !add_) {
        Narrow(from, columns, to);
        continue;
      }
      for (int64_t j = 0; j < columns; ++j)
        to[j * column_] = FromFloat<Y>(add_ ? AsFloat(to[j * column_]) + from[j] : from[j]);
    }
  }

 private:
  Y* y_;
  int64_t row_, column_;
  bool add_;
};

}  // namespace oneflow_like::cpu
