// A block of the right operand, up to 256 rows of 512 columns, lies in stripes in the second-level cache
// while blocks of rows of the left one go by; the innermost product has six rows by four vectors of sums in
// AVX-512's registers. Measured on a core of Zen 5 beside oneDNN's sgemm, medians of the ratio of both
// speeds, own to its: 2048 512 512 1.14, 2048 2048 512 0.97, 2048 512 2048 (right transposed) 1.02, 512 2048
// 2048 (left transposed) 1.09, 1024 8192 512 (right transposed) 1.03, 64 64 64 0.99.
#include "ops/cpu/panel_product.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/device/parallel_for.h"
#include "ops/cpu/loops.h"
#include "ops/cpu/narrow_tile.h"
#include "ops/cpu/panel_sizes.h"
#include "ops/cpu/tile_product.h"

namespace oneflow_like::cpu {
namespace {

// Registers of sums: kTileRows rows of kTileVectors vectors of kWords floats each.
#if defined(__AVX512F__)
constexpr int kTileRows = 6, kTileVectors = 4, kWords = 16;
#elif defined(__AVX__)
constexpr int kTileRows = 6, kTileVectors = 2, kWords = 8;
#else
constexpr int kTileRows = 2, kTileVectors = 4, kWords = 4;
#endif
typedef float Sums __attribute__((vector_size(kWords * 4), aligned(4), may_alias));

constexpr int64_t kStripe = std::max(16, kTileVectors* kWords);  // columns
constexpr int64_t kStep = std::min<int64_t>(16, kStripe);        // widths are multiples of it

// c[R][columns] (+)= a[R][depth] b[depth][V vectors].
template <int R, int V>
void PanelTile(int64_t depth, const PanelBlock& a, const float* b, int64_t b_row, float* c, int64_t c_row,
               int64_t columns, bool add) {
  Sums sum[R * V];
  Unrolled<R * V>([&](auto i) __attribute__((always_inline)) { sum[i] = Sums{}; });
  for (int64_t k = 0; k < depth; ++k) {
    Sums line[V];
    Unrolled<V>([&](auto v) __attribute__((always_inline)) {
      line[v] = *reinterpret_cast<const Sums*>(b + k * b_row + kWords * v);
    });
    Unrolled<R>([&](auto r) __attribute__((always_inline)) {
      const float factor = a.data[r * a.row + k * a.column];
      Unrolled<V>([&](auto v) __attribute__((always_inline)) { sum[r * V + v] += factor * line[v]; });
    });
  }
  if (columns == V * kWords) {
    Unrolled<R * V>([&](auto i) __attribute__((always_inline)) {
      Sums* to = reinterpret_cast<Sums*>(c + i / V * c_row + kWords * (i % V));
      *to = add ? *to + sum[i] : sum[i];
    });
    return;
  }
  alignas(64) float block[R * V * kWords];  // sums themselves stay in registers
  Unrolled<R * V>([&](auto i) __attribute__((always_inline)) {
    *reinterpret_cast<Sums*>(block + kWords * i) = sum[i];
  });
  const float* from = block;
  for (int r = 0; r < R; ++r, from += V * kWords, c += c_row)
    for (int64_t i = 0; i < columns; ++i) c[i] = add ? c[i] + from[i] : from[i];
}

#if defined(OFL_NARROW_TILES)
// The same of pairs.
template <int R, int V>
void PairTile(int64_t depth, const PanelBlock& a, const float* b, int64_t b_row, float* c, int64_t c_row,
              int64_t columns, bool add) {
  const Pair* left = reinterpret_cast<const Pair*>(a.data);
  const uint32_t* right = reinterpret_cast<const uint32_t*>(b);
  if (columns == 16 * V)
    return PairKernel<R, V>(depth, left, a.row, a.column, right, b_row, c, c_row, 1, add);
  alignas(64) float sums[R * 16 * V];
  PairKernel<R, V>(depth, left, a.row, a.column, right, b_row, sums, 16 * V, 1, false);
  for (int r = 0; r < R; ++r, c += c_row)
    for (int64_t i = 0; i < columns; ++i) c[i] = add ? c[i] + sums[r * 16 * V + i] : sums[r * 16 * V + i];
}
#endif

using TileFn = void (*)(int64_t, const PanelBlock&, const float*, int64_t, float*, int64_t, int64_t, bool);
// By rows, and by steps of kStep columns.
template <int R, int... W>
constexpr std::array<TileFn, sizeof...(W)> TilesOf(std::integer_sequence<int, W...>) {
  return {PanelTile<R, (W + 1) * kStep / kWords>...};
}
template <int... R>
constexpr std::array<std::array<TileFn, kStripe / kStep>, sizeof...(R)> AllTiles(
    std::integer_sequence<int, R...>) {
  return {TilesOf<R + 1>(std::make_integer_sequence<int, kStripe / kStep>())...};
}
constexpr auto kTiles = AllTiles(std::make_integer_sequence<int, kTileRows>());
#if defined(OFL_NARROW_TILES)
template <int R, int... W>
constexpr std::array<TileFn, sizeof...(W)> PairTilesOf(std::integer_sequence<int, W...>) {
  return {PairTile<R, W + 1>...};
}
template <int... R>
constexpr std::array<std::array<TileFn, kStripe / kStep>, sizeof...(R)> AllPairTiles(
    std::integer_sequence<int, R...>) {
  return {PairTilesOf<R + 1>(std::make_integer_sequence<int, kStripe / kStep>())...};
}
constexpr auto kPairTiles = AllPairTiles(std::make_integer_sequence<int, kTileRows>());
#else
constexpr auto& kPairTiles = kTiles;  // never used
#endif

// One thread's part of the result.
class PanelPart {
 public:
  PanelPart(const PanelProduct& p, const PanelSizes& sizes, float* scratch)
      : p_(p), sizes_(sizes), left_(scratch), right_(left_ + sizes.left()), sums_(right_ + sizes.right()) {}

  void Run(PanelRange rows, PanelRange columns) {
    const int64_t at_once = p_.in_place ? rows.end - rows.begin : sizes_.sum_rows;
    for (int64_t n = columns.begin; n < columns.end; n += sizes_.columns)
      for (int64_t m = rows.begin; m < rows.end; m += at_once)
        SumUp({m, std::min(rows.end, m + at_once)}, n, std::min(sizes_.columns, columns.end - n));
  }

 private:
  // All of k, for some rows and columns of the result.
  void SumUp(PanelRange rows, int64_t n, int64_t columns) {
    const int64_t run = p_.run > 0 ? p_.run : p_.k;
    for (int64_t k = 0, depth = 0; k < p_.k; k += depth) {
      depth = std::min({sizes_.depth, run - k % run, p_.k - k});
      ReadRight(k, depth, n, columns);
      for (int64_t m = rows.begin; m < rows.end; m += sizes_.rows)
        Multiply(rows, m, std::min(sizes_.rows, rows.end - m), k, depth, n);
    }
    if (!p_.in_place) p_.result->Store(rows.begin, rows.end - rows.begin, n, columns, sums_, UpTo16(columns));
  }

  void ReadRight(int64_t k, int64_t depth, int64_t n, int64_t columns) {
    stripes_ = 0;
    for (int64_t c = 0; c < columns; c += kStripe) {
      const int64_t width = std::min(kStripe, columns - c);
      stripe_[stripes_++] = {p_.right->Read(k, depth, n + c, width, right_ + c * depth), width};
    }
    sum_row_ = p_.in_place ? p_.result->row() : UpTo16(columns);
  }

  void Multiply(PanelRange rows, int64_t m, int64_t count, int64_t k, int64_t depth, int64_t n) {
    const PanelBlock a = p_.left->Read(m, count, k, depth, left_);
    float* c = p_.in_place ? p_.result->Row(m) + n : sums_ + (m - rows.begin) * sum_row_;
    const bool add = k > 0 || (p_.in_place && p_.add);
    const auto& tiles = p_.pairs ? kPairTiles : kTiles;
    for (int64_t r = 0; r < count; r += kTileRows) {
      const int64_t height = std::min<int64_t>(kTileRows, count - r);
      const PanelBlock part = {a.data + r * a.row, a.row, a.column};
      for (int s = 0; s < stripes_; ++s) {
        const auto& [block, width] = stripe_[s];
        tiles[height - 1][(width - 1) / kStep](depth, part, block.data, block.row,
                                               c + r * sum_row_ + s * kStripe, sum_row_, width, add);
      }
    }
  }

  struct Stripe {
    PanelBlock block;
    int64_t width;
  };

  const PanelProduct& p_;
  const PanelSizes sizes_;
  float* const left_;
  float* const right_;
  float* const sums_;
  Stripe stripe_[kRightColumns / kStripe + 1];
  int stripes_ = 0;
  int64_t sum_row_ = 0;
};

}  // namespace

int64_t PanelBytes(int64_t m, int64_t n, int64_t k, bool in_place) {
  return SizesFor(std::max<int64_t>(1, m), std::max<int64_t>(1, n), std::max<int64_t>(1, k), in_place)
             .floats() *
         static_cast<int64_t>(sizeof(float));
}

int PanelParts(int64_t m, int64_t n, int64_t k, int threads) {
  if (static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) < kWorthATeam) return 1;
  const int64_t parts = (m + 1) / 2 * ((n + 15) / 16);  // of the smallest tiles that any level has
  return static_cast<int>(std::min<int64_t>(threads, parts));
}

void RunPanels(const PanelProduct& p, int threads, void* scratch, int64_t bytes) {
#if defined(OFL_AMX_TILES)
  if (p.tiles) return RunTiles<AmxTiles>(p, threads, scratch, bytes);
#endif
  const PanelSizes sizes = FitSizes(p.m, p.n, p.k, p.in_place, bytes);
  const auto [rows, columns] = GridOf(p.m, p.n, p.pairs ? 2 * p.k : p.k, kTileRows, kStripe, threads);
  ParallelForParts(int64_t{rows} * columns, 1, threads,
                   [&, rows = rows, columns = columns](int64_t begin, int64_t end, int part) {
                     float* own = reinterpret_cast<float*>(static_cast<char*>(scratch) + part * bytes);
                     for (int64_t i = begin; i < end; ++i)
                       PanelPart(p, sizes, own)
                           .Run(PartOf(p.m, kTileRows, rows, i / columns),
                                PartOf(p.n, kStripe, columns, i % columns));
                   });
}

}  // namespace oneflow_like::cpu
