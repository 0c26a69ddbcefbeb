// Rows of b lie along n, or along k. Along n the sum over k is made in parts, which are added up at the end:
// a part is one run of memory, however few columns there are. Eight rows at a time are added to sums that
// stay in the first-level cache; the next eight are asked for meanwhile, because several rows of a page at
// once are no run that the processor would recognise. Along k each row is multiplied with those of a.
#include "ops/cpu/few_rows.h"

#include <algorithm>
#include <vector>

#include "core/parallel_for.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/vectors.h"
#include "ops/reference.h"

namespace oneflow_like::cpu {
namespace {

constexpr int64_t kLeastFewRows = 1 << 14;   // of n k; below, a product is made by a general one
constexpr int64_t kFewRowsGrain = 64 << 10;  // bytes that a thread reads at least
constexpr int64_t kFewColumns = 2048;        // whose sums are kept while rows go by
constexpr int kSideBySide = 8;               // rows of b read at a time
constexpr int64_t kDepthParts = 8;           // of the sum over k, whatever the threads

// sums[m][columns] += a[m][0 .. L) * L rows of b.
template <int M, int L, typename T>
void AddLines(const float* a, int64_t a_row, const T* b, int64_t b_row, int64_t columns, float* sums,
              int64_t sums_row) {
  ForVectors(columns, [&](int64_t c, auto lanes) {
    Vector sum[M];
    for (int m = 0; m < M; ++m) sum[m] = LoadVector(sums + m * sums_row + c, lanes);
    for (int l = 0; l < L; ++l) {
      const T* at = b + l * b_row + c;
      __builtin_prefetch(at + L * b_row);
      const Vector line = LoadVector(at, lanes);
      for (int m = 0; m < M; ++m) sum[m] += a[m * a_row + l] * line;
    }
    for (int m = 0; m < M; ++m) StoreVector(sum[m], lanes, sums + m * sums_row + c);
  });
}

// One part of the sum over k, of columns [n, n + columns).
template <int M, typename T>
void SumPart(const ProductLayout& p, const float* a, const T* b, int64_t part, int64_t n, int64_t columns,
             float* sums) {
  const int64_t begin = p.k * part / kDepthParts, end = p.k * (part + 1) / kDepthParts;
  for (int m = 0; m < M; ++m) std::fill_n(sums + m * p.n + n, columns, 0.0f);
  int64_t k = begin;
  for (; k + kSideBySide <= end; k += kSideBySide)
    AddLines<M, kSideBySide>(a + k, p.k, b + k * p.b_row + n, p.b_row, columns, sums + n, p.n);
  for (; k < end; ++k) AddLines<M, 1>(a + k, p.k, b + k * p.b_row + n, p.b_row, columns, sums + n, p.n);
}

template <int M, typename T, typename Y>
void AlongColumns(const ProductLayout& p, const float* a, const T* b, float* parts, Y* y, bool add) {
  const int64_t blocks = (p.n + kFewColumns - 1) / kFewColumns;
  const int64_t bytes = p.k * p.n * static_cast<int64_t>(sizeof(T)) / (kDepthParts * blocks);
  ParallelFor(kDepthParts * blocks, kFewRowsGrain / std::max<int64_t>(1, bytes) + 1,
              [&](int64_t i, int64_t end) {
                for (; i < end; ++i) {
                  const int64_t part = i / blocks, n = i % blocks * kFewColumns;
                  SumPart<M>(p, a, b, part, n, std::min(kFewColumns, p.n - n), parts + part * M * p.n);
                }
              });
  ParallelFor(p.n, kGrain, [&](int64_t begin, int64_t end) {
    for (int m = 0; m < M; ++m)
      ForVectors(end - begin, [&](int64_t c, auto lanes) {
        Vector sum{};
        for (int64_t part = 0; part < kDepthParts; ++part)
          sum += LoadVector(parts + (part * M + m) * p.n + begin + c, lanes);
        for (int64_t i = 0; i < lanes; ++i) {
          Y& to = y[m * p.y_row + (begin + c + i) * p.y_column];
          to = FromFloat<Y>(add ? AsFloat(to) + sum[i] : sum[i]);
        }
      });
  });
}

// The dot products of R lines of b, k long, with each row of a.
template <int M, int R, typename T, typename Y>
void DotLines(const ProductLayout& p, const float* a, const T* b, Y* y, bool add) {
  Vector sum[R][M] = {};
  ForVectors(p.k, [&](int64_t k, auto lanes) {
    Vector of_a[M];
    for (int m = 0; m < M; ++m) of_a[m] = LoadVector(a + m * p.k + k, lanes);
    for (int r = 0; r < R; ++r) {
      const Vector line = LoadVector(b + r * p.b_column + k, lanes);
      for (int m = 0; m < M; ++m) sum[r][m] += line * of_a[m];
    }
  });
  for (int r = 0; r < R; ++r)
    for (int m = 0; m < M; ++m) {
      Y& to = y[m * p.y_row + r * p.y_column];
      to = FromFloat<Y>(add ? AsFloat(to) + SumOfHalves(sum[r][m]) : SumOfHalves(sum[r][m]));
    }
}

template <int M, typename T, typename Y>
void AlongDepth(const ProductLayout& p, const float* a, const T* b, int64_t begin, int64_t end, Y* y,
                bool add) {
  int64_t n = begin;
  for (; n + 4 <= end; n += 4) DotLines<M, 4>(p, a, b + n * p.b_column, y + n * p.y_column, add);
  for (; n < end; ++n) DotLines<M, 1>(p, a, b + n * p.b_column, y + n * p.y_column, add);
}

template <int M, typename T, typename Y>
void RunLayout(const ProductLayout& p, const float* a, const T* b, float* parts, Y* y, bool add) {
  if (p.b_column == 1) return AlongColumns<M>(p, a, b, parts, y, add);
  const int64_t bytes = p.k * static_cast<int64_t>(sizeof(T));
  ParallelFor(p.n, kFewRowsGrain / std::max<int64_t>(1, bytes) + 4,
              [&](int64_t begin, int64_t end) { AlongDepth<M>(p, a, b, begin, end, y, add); });
}

}  // namespace

bool HasFewRows(const ProductLayout& p, DType dtype) {
  // Along columns a general product of several fp32 rows is as fast; 16-bit ones it would widen, or reorder.
  const int64_t most = p.b_column == 1 && dtype == DType::kFloat32 ? 1 : kFewRows;
  return p.m >= 1 && p.m <= most && p.n * p.k >= kLeastFewRows && p.n >= 2 && p.k >= 2 &&
         (p.b_column == 1 || p.b_row == 1);
}

void RunFewRows(const ProductLayout& p, DType dtype, const void* a, const void* b, DType result, void* y,
                bool add) {
  static thread_local std::vector<float> packed, sums;
  packed.resize(std::max<size_t>(packed.size(), p.m * p.k));
  if (p.b_column == 1) sums.resize(std::max<size_t>(sums.size(), kDepthParts * p.m * p.n));
  float *const rows = packed.data(), *const parts = sums.data();
  DispatchFloating(dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t m = 0; m < p.m; ++m)
      for (int64_t k = 0; k < p.k; ++k)
        rows[m * p.k + k] = AsFloat(static_cast<const T*>(a)[m * p.a_row + k * p.a_column]);
    const T* from = static_cast<const T*>(b);
    auto run = [&](auto* to) {
      switch (p.m) {
        case 1:
          return RunLayout<1>(p, rows, from, parts, to, add);
        case 2:
          return RunLayout<2>(p, rows, from, parts, to, add);
        case 3:
          return RunLayout<3>(p, rows, from, parts, to, add);
        default:
          return RunLayout<4>(p, rows, from, parts, to, add);
      }
    };
    if (result == DType::kFloat32) return run(static_cast<float*>(y));
    run(static_cast<T*>(y));
  });
}

}  // namespace oneflow_like::cpu
