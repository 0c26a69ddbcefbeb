// Rows of b lie along n, or along k. Along n the sum over k is made in parts, which are added up at the end:
// a part is one run of memory, however few columns there are. Several rows at a time are added to sums that
// stay in the first-level cache. Along k each row is multiplied with those of a.
#include "ops/cpu/few_rows.h"

#include <algorithm>
#include <type_traits>

#include "core/device/parallel_for.h"
#include "core/device/scratch.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/vectors.h"
#include "ops/reference.h"

namespace oneflow_like::cpu {
namespace {

constexpr int64_t kLeastFewRows = 1 << 14;   // of n k; below, a product is made by a general one
constexpr int64_t kFewRowsGrain = 64 << 10;  // bytes that a thread reads at least
constexpr int64_t kFewColumns = 4096;        // whose sums are kept while rows go by, at most
constexpr int kSideBySide = 8;               // rows of b read at a time
constexpr int64_t kDepthParts = 8;           // of the sum over k, whatever the threads

// GB/s of RunFewRows for one row of a, one thread of a core of Zen 5 that reads 44 to 53 from memory; before
// rows of fp32 went by two vectors at a time without being asked for ahead, blocks of columns held 2048, and
// rows along k went by four at a time:
//
//              [768, 256]   [768, 3328]    [3328, 768]    [32000, 768] along k
//   fp32        38    43     32    43       34    44       37    42
//   bf16        44    44     39    42       42    42       26    49
//
// The processor sees runs of fp32 by itself, and asking for them disturbs it. 16-bit lines take twice the
// instructions, so fewer of them are under way, and asking helps.

// sums[m][columns] += a[m][0 .. L) * L rows of b.
template <int M, int L, typename T>
void AddLines(const float* a, int64_t a_row, const T* b, int64_t b_row, int64_t columns, float* sums,
              int64_t sums_row) {
  constexpr bool kAhead = !std::is_same_v<T, float>;
  int64_t done = 0;
  if constexpr (!kAhead) {
    constexpr int64_t kWide = 32;  // a line each of two that the processor reads together
    for (; done + kWide <= columns; done += kWide) {
      Vector sum[M][2];
      for (int m = 0; m < M; ++m)
        for (int w = 0; w < 2; ++w) sum[m][w] = LoadVector(sums + m * sums_row + done + 16 * w, FullVector());
      for (int l = 0; l < L; ++l)
        for (int w = 0; w < 2; ++w) {
          const Vector line = LoadVector(b + l * b_row + done + 16 * w, FullVector());
          for (int m = 0; m < M; ++m) sum[m][w] += a[m * a_row + l] * line;
        }
      for (int m = 0; m < M; ++m)
        for (int w = 0; w < 2; ++w) StoreVector(sum[m][w], FullVector(), sums + m * sums_row + done + 16 * w);
    }
  }
  ForVectors(columns - done, [&](int64_t more, auto lanes) {
    const int64_t c = done + more;
    Vector sum[M];
    for (int m = 0; m < M; ++m) sum[m] = LoadVector(sums + m * sums_row + c, lanes);
    for (int l = 0; l < L; ++l) {
      const T* at = b + l * b_row + c;
      if (kAhead) __builtin_prefetch(at + L * b_row);
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
  const int64_t width = ((p.n + blocks - 1) / blocks + 63) / 64 * 64;  // of a block
  const int64_t bytes = p.k * p.n * static_cast<int64_t>(sizeof(T)) / (kDepthParts * blocks);
  ParallelFor(kDepthParts * blocks, kFewRowsGrain / std::max<int64_t>(1, bytes) + 1,
              [&](int64_t i, int64_t end) {
                for (; i < end; ++i) {
                  const int64_t part = i / blocks, n = i % blocks * width;
                  SumPart<M>(p, a, b, part, n, std::min(width, p.n - n), parts + part * M * p.n);
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

// The dot products of rows [begin, end) of b, k long, with each row of a.
template <int M, typename T, typename Y>
void AlongDepth(const ProductLayout& p, const float* a, const T* b, int64_t begin, int64_t end, Y* y,
                bool add) {
  constexpr int kSums = 4;
  constexpr int64_t kLanes = 16, kAhead = 6144 / static_cast<int64_t>(sizeof(T));
  for (int64_t n = begin; n < end; ++n) {
    const T* row = b + n * p.b_column;
    Vector sum[M][kSums] = {};
    int64_t k = 0;
    for (; k + kLanes * kSums <= p.k; k += kLanes * kSums)
      for (int i = 0; i < kSums; ++i) {
        const int64_t at = k + kLanes * i;
        if (!std::is_same_v<T, float>) __builtin_prefetch(row + at + kAhead);
        const Vector line = LoadVector(row + at, FullVector());
        for (int m = 0; m < M; ++m) sum[m][i] += LoadVector(a + m * p.k + at, FullVector()) * line;
      }
    ForVectors(p.k - k, [&](int64_t more, auto lanes) {
      const Vector line = LoadVector(row + k + more, lanes);
      for (int m = 0; m < M; ++m) sum[m][0] += LoadVector(a + m * p.k + k + more, lanes) * line;
    });
    for (int m = 0; m < M; ++m) {
      Y& to = y[m * p.y_row + n * p.y_column];
      const float dot = SumOfHalves((sum[m][0] + sum[m][1]) + (sum[m][2] + sum[m][3]));
      to = FromFloat<Y>(add ? AsFloat(to) + dot : dot);
    }
  }
}

template <int M, typename T, typename Y>
void RunLayout(const ProductLayout& p, const float* a, const T* b, float* parts, Y* y, bool add) {
  if (p.b_column == 1) return AlongColumns<M>(p, a, b, parts, y, add);
  const int64_t bytes = p.k * static_cast<int64_t>(sizeof(T));
  ParallelFor(p.n, kFewRowsGrain / std::max<int64_t>(1, bytes) + 4,
              [&](int64_t begin, int64_t end) { AlongDepth<M>(p, a, b, begin, end, y, add); });
}

// The rows of a in fp32, and the parts of the sums along columns.
struct FewRowsRoom {
  float *rows, *parts;
  int64_t bytes;
  FewRowsRoom(const ProductLayout& p, void* memory) {
    Scratch scratch(memory);
    rows = scratch.Take<float>(p.m * p.k);
    parts = scratch.Take<float>(p.b_column == 1 ? kDepthParts * p.m * p.n : 0);
    bytes = scratch.bytes();
  }
};

}  // namespace

bool HasFewRows(const ProductLayout& p, DType dtype) {
  // Along columns a general product of several fp32 rows is as fast; 16-bit ones it would widen, or reorder.
  const int64_t most = p.b_column == 1 && dtype == DType::kFloat32 ? 1 : kFewRows;
  return p.m >= 1 && p.m <= most && p.n * p.k >= kLeastFewRows && p.n >= 2 && p.k >= 2 &&
         (p.b_column == 1 || p.b_row == 1);
}

int64_t FewRowsBytes(const ProductLayout& p) { return FewRowsRoom(p, nullptr).bytes; }

void RunFewRows(const ProductLayout& p, DType dtype, const void* a, const void* b, DType result, void* y,
                bool add, void* scratch) {
  const FewRowsRoom room(p, scratch);
  float *const rows = room.rows, *const parts = room.parts;
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
