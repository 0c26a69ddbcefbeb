// How products by panels are cut: blocks that fit a thread's scratch, and parts for several threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace oneflow_like::cpu {

inline constexpr int64_t kDepth = 256, kLeftRows = 96, kRightColumns = 512, kSumRows = 512;
inline constexpr double kWorthATeam = 5e5;  // multiplications

inline int64_t UpTo16(int64_t n) { return (n + 15) / 16 * 16; }
inline int64_t UpTo32(int64_t n) { return (n + 31) / 32 * 32; }

// Extents of blocks, and where they lie in a thread's scratch, in floats.
struct PanelSizes {
  int64_t depth, rows, columns, sum_rows;  // sum_rows: of sums in scratch, 0 in place
  int64_t left() const { return UpTo32(rows) * depth; }
  int64_t right() const { return UpTo32(columns) * depth; }
  int64_t floats() const { return left() + right() + sum_rows * UpTo16(columns); }
};

inline PanelSizes SizesFor(int64_t m, int64_t n, int64_t k, bool in_place) {
  PanelSizes s = {std::min(k, kDepth), std::min(m, kLeftRows), std::min(n, kRightColumns), 0};
  // Sums over one block of columns are stored as soon as they are made.
  if (!in_place) s.sum_rows = std::min(m, k <= kDepth ? kLeftRows : kSumRows);
  return s;
}

// Sizes that fit `bytes` of scratch.
inline PanelSizes FitSizes(int64_t m, int64_t n, int64_t k, bool in_place, int64_t bytes) {
  PanelSizes s = SizesFor(m, n, k, in_place);
  const auto halve = [](int64_t* size, int64_t least) {
    const int64_t half = std::max(least, *size / 2);
    const bool less = half < *size;
    *size = std::min(*size, half);
    return less;
  };
  while (s.floats() * static_cast<int64_t>(sizeof(float)) > bytes) {
    if (s.sum_rows > kLeftRows && halve(&s.sum_rows, kLeftRows)) continue;
    if (halve(&s.columns, 64)) continue;
    if (s.rows > 12) {
      halve(&s.rows, 12);
      s.sum_rows = std::min(s.sum_rows, s.rows);
      continue;
    }
    if (!halve(&s.depth, 16)) break;
  }
  return s;
}

struct PanelRange {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

// The numbers of parts, for at most `threads` threads, into which rows and columns are cut, in whole units:
// those with which a thread has least to multiply and to read.
inline std::pair<int, int> GridOf(int64_t m, int64_t n, int64_t k, int64_t unit_m, int64_t unit_n,
                                  int threads) {
  const double volume = static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  std::pair<int, int> best = {1, 1};
  if (threads <= 1 || volume < kWorthATeam) return best;
  double least = 0;
  for (int rows = threads; rows >= 1; --rows) {
    const int columns = threads / rows;
    const auto share = [](int64_t extent, int64_t unit, int parts) {
      const int64_t units = (extent + unit - 1) / unit;
      return static_cast<double>((units + parts - 1) / parts * unit);
    };
    const double height = share(m, unit_m, rows), width = share(n, unit_n, columns);
    const double cost = height * width + 16 * (height + width);
    if (least > 0 && cost >= least) continue;
    least = cost;
    best = {rows, columns};
  }
  return best;
}

inline PanelRange PartOf(int64_t extent, int64_t unit, int parts, int64_t part) {
  const int64_t units = (extent + unit - 1) / unit, each = (units + parts - 1) / parts * unit;
  return {std::min(extent, part * each), std::min(extent, (part + 1) * each)};
}

}  // namespace oneflow_like::cpu
