// Sums per channel over the rows of a band, for statistics over rows that run through all channels
// (batch and group norms).
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cpu/vectors.h"

namespace oneflow_like::cpu {

// Bands of rows: a function of their number alone, so the sums' bits do not depend on the threads. At most
// `most` of them.
struct Bands {
  int64_t count = 0, length = 0;
  Bands(int64_t rows, int64_t most) {
    length = std::max<int64_t>(64, (rows + most - 1) / most);
    count = (rows + length - 1) / length;
  }
  // The most that there are of so many rows or fewer.
  static int64_t Most(int64_t rows, int64_t most) { return std::min(most, (rows + 63) / 64); }
};

// total[i] = the sum over the bands of sums[band * stride + i], in double, for i in [0, width).
inline void JoinBands(const float* sums, int64_t bands, int64_t stride, int64_t width, double* total) {
  auto join = [=](int64_t first, auto lanes) {  // registers hold them while the bands go by
    double some[16] = {};
    for (int64_t band = 0; band < bands; ++band) {
      const float* from = sums + band * stride + first;
      for (int64_t i = 0; i < lanes; ++i) some[i] += from[i];
    }
    std::copy_n(some, static_cast<int64_t>(lanes), total + first);
  };
  ForVectors(width, join);
}

// Whether rows are read one by one, or four at a time, which then share each access to the sums. Of rows of
// 256 bytes to 3 KiB in fp32 four begin in one page or two: from memory they are read 1.2 to 1.9 times faster
// one by one, but from a cache, which `bytes` fit, 1.4 times faster together. Of rows of 4 KiB and more four
// at a time are 1.4 to 2.4 times faster (measured on one AVX-512 core with 32 MiB of third-level cache).
inline bool OneByOne(int64_t width, int64_t bytes) {
  return width > 64 && width < 768 && bytes >= int64_t{16} << 20;
}

// body(row, how many).
template <typename F>
void ForRowGroups(int64_t rows, bool one_by_one, F&& body) {
  int64_t row = 0;
  for (; row + 4 <= rows && !one_by_one; row += 4) body(row, std::integral_constant<int, 4>());
  for (; row < rows; ++row) body(row, std::integral_constant<int, 1>());
}

// sums[0][c], sums[1][c] = the sums over the rows of two functions of (row, c): f(row, how many, c, lanes, a,
// b) adds those of some rows to the vectors a and b.
template <typename F>
void SumBand(int64_t rows, int64_t width, bool one_by_one, float* sums, F&& f) {
  std::fill_n(sums, 2 * width, 0.0f);
  ForRowGroups(rows, one_by_one, [&](int64_t row, auto group) {
    ForVectors(width, [&](int64_t c, auto lanes) {
      Vector a = {}, b = {};
      f(row, group, c, lanes, a, b);
      StoreVector(LoadVector(sums + c, lanes) + a, lanes, sums + c);
      StoreVector(LoadVector(sums + width + c, lanes) + b, lanes, sums + width + c);
    });
  });
}

// Sums of x - centre and of its square. `centre` has a number for each channel.
template <typename T>
void SumMoments(const T* x, const float* centre, int64_t rows, int64_t width, bool one_by_one, float* sums) {
  SumBand(rows, width, one_by_one, sums,
          [=](int64_t row, auto group, int64_t c, auto lanes, Vector& a, Vector& b) {
            Vector middle = LoadVector(centre + c, lanes);
            for (int r = 0; r < group.value; ++r) {
              Vector away = LoadVector(x + (row + r) * width + c, lanes) - middle;
              a += away;
              b += away * away;
            }
          });
}

// Sums of dy and of dy (x - centre).
template <typename D, typename T>
void SumProducts(const D* dy, const T* x, const float* centre, int64_t rows, int64_t width, bool one_by_one,
                 float* sums) {
  SumBand(rows, width, one_by_one, sums,
          [=](int64_t row, auto group, int64_t c, auto lanes, Vector& a, Vector& b) {
            Vector middle = LoadVector(centre + c, lanes);
            for (int r = 0; r < group.value; ++r) {
              Vector d = LoadVector(dy + (row + r) * width + c, lanes);
              a += d;
              b += d * (LoadVector(x + (row + r) * width + c, lanes) - middle);
            }
          });
}

}  // namespace oneflow_like::cpu
