// A tile of a product of 16-bit matrices on tensor cores: 128 rows by 128 columns of the result. Three steps
// share the shared memory: two are on their way while the third is multiplied. ProductTile is for every card:
// a block of 128 threads, in steps of 32 of the depth, 48 KiB, 64 by 64 sums for each of the four warps.
// WarpgroupTile (warpgroup_tile.h) is Hopper's.
//
// Per step: 2 * 128 * 128 * 32 = 1,048,576 operations, 512 cycles of an A100's tensor cores (of a
// multiprocessor) and, as published measurements have it, about 400 of an H100's with these instructions; 16
// KiB are copied to shared memory and 32 KiB of fragments read from it, 384 cycles at 128 bytes each.
// Padding at the edges is filled with zeros without a load, and a warp leaves out what is beyond the last
// row, in steps of 32 rows, or column.
//
// REQUIRES: blockDim.x is kThreads of the tile, DynamicShared has its kShared bytes, and all threads of a
// block call each function together.
#pragma once

#include "ops/cuda/operand.h"
#include "ops/cuda/tensor_core.h"

namespace oneflow_like::cuda {

constexpr int kProductRows = 128, kProductColumns = 128, kProductStages = 3;

// A row-major matrix, of which each step takes a tile. A thread copies rows Number(0), Number(1), ... of it.
// kPacked: the matrix begins at a multiple of 16 bytes, and its rows and columns are multiples of 8; else its
// elements are read one by one, before the step that multiplies them.
template <typename T, typename TileOf, int kThreads, bool kPacked>
class TileSource {
 public:
  using Tile = TileOf;
  static constexpr int kPacks = Tile::kBroad / 8, kRowsApart = kThreads / kPacks,
                       kEach = Tile::kTall / kRowsApart;

  // `stride`: elements from row to row, `columns` of which count from `data` on.
  OFL_DEVICE TileSource(const T* data, int stride, int columns)
      : from_(data + Column()), stride_(stride), columns_(columns - Column()) {}
  OFL_DEVICE static int Number(int i) { return static_cast<int>(threadIdx.x) / kPacks + i * kRowsApart; }
  // On to the next columns.
  OFL_DEVICE void Next() {
    from_ += Tile::kBroad;
    columns_ -= Tile::kBroad;
  }
  // row_of(i): which row of the matrix is number Number(i) of the step; -1: none, its elements are zero, as
  // are those beyond the last column. They are there after WaitForCopies and a barrier.
  template <typename RowOf>
  OFL_DEVICE void Load(const Tile& tile, RowOf&& row_of) const {
    T* to = tile.At(Number(0), Column());
    OFL_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const int row = row_of(i);
      const T* from = from_ + static_cast<int64_t>(row) * stride_;
      if constexpr (kPacked) {
        CopyPackLater(to + i * kRowsApart * Tile::kStride, from, row >= 0 && columns_ > 0);
      } else {
        CopyNow(to + i * kRowsApart * Tile::kStride, from, row >= 0 ? columns_ : 0);
      }
    }
  }

 private:
  static_assert(Tile::kTall % kRowsApart == 0 &&
                kRowsApart % 8 == 0);  // these rows are permuted in the same way
  OFL_DEVICE static int Column() { return static_cast<int>(threadIdx.x) % kPacks * 8; }

  // Rows that are not aligned: element by element.
  OFL_DEVICE static void CopyNow(T* to, const T* from, int count) {
    uint32_t word[4];
    OFL_UNROLL
    for (int i = 0; i < 4; ++i) {
      const uint32_t low = 2 * i < count ? from[2 * i].bits : 0;
      const uint32_t high = 2 * i + 1 < count ? from[2 * i + 1].bits : 0;
      word[i] = high << 16 | low;
    }
    *reinterpret_cast<uint4*>(to) = make_uint4(word[0], word[1], word[2], word[3]);
  }

  const T* from_;
  int stride_, columns_;  // from the thread's pack on
};

// Where a tile of the result goes: its first column of a row-major matrix, of which `columns` follow.
// `packs`: `to` is aligned to 16 bytes, `stride` and `columns` are multiples of 8.
struct TileTarget {
  FloatView to;
  int stride, columns;
  bool packs;
};

// Where a lane's rows of fragments are in a tile [side depth], or kAcross [depth side], as elements from its
// first: computed once, since the permutation of packs repeats itself every 16 rows. `side`: the warp's
// first; row and column: of the lane, in 16 by 16 elements as they are stored.
template <typename Tile, int kDepth, bool kAcross>
class FragmentPlaces {
 public:
  OFL_DEVICE FragmentPlaces(int side, int row, int column) {
    OFL_UNROLL
    for (int i = 0; i < kDifferent; ++i)
      offset_[i] =
          kAcross ? Tile::Place(row, side + i * 16 + column) : Tile::Place(side + row, i * 16 + column);
  }
  // Of the i-th 16 along the side.
  OFL_DEVICE int At(int i, int depth) const {
    return kAcross ? offset_[i] + depth * Tile::kStride : offset_[depth / 16] + i * 16 * Tile::kStride;
  }

 private:
  static constexpr int kDifferent = kAcross ? 4 : kDepth / 16;
  int offset_[kDifferent];
};

// The sums of a tile, of which each warp holds 16 kDown rows by 8 kWide columns.
template <typename T, int kDown, int kWide>
class TileSums {
 public:
  // Stores the sums, in fp32 or rounded once to the target's type. Needs the shared memory. A copy of
  // `row_of` is asked for a thread's rows of the tile in ascending order, and says which rows of the target
  // these are; -1: none.
  template <typename RowOf>
  OFL_DEVICE void Put(TileTarget target, const RowOf& row_of) const {
    target.columns -= WarpColumn();
    target.to = target.to.From(WarpColumn());
    if (target.packs && target.to.dtype == kType) {
      PutPacks(target, row_of);
    } else {
      PutEach(target, row_of);
    }
  }

 protected:
  static constexpr int kWarpRows = kDown * 16, kWarpColumns = kWide * 8,
                       kAcross = kProductColumns / kWarpColumns, kWarps = kProductRows / kWarpRows * kAcross;

  OFL_DEVICE static int WarpRow() { return static_cast<int>(threadIdx.x / 32 / kAcross) * kWarpRows; }
  OFL_DEVICE static int WarpColumn() { return static_cast<int>(threadIdx.x / 32 % kAcross) * kWarpColumns; }

  SumFragment sum_[kDown][kWide] = {};

 private:
  static constexpr DType kType = std::is_same_v<T, BFloat16> ? DType::kBFloat16 : DType::kFloat16;

  // By way of shared memory, a room for each warp, so that a warp stores whole lines.
  template <typename RowOf>
  OFL_DEVICE void PutPacks(const TileTarget& target, RowOf row_of) const {
    const SharedTile<T, kWarpRows, kWarpColumns> tile{DynamicShared<T>() +
                                                      threadIdx.x / 32 * (kWarpRows * kWarpColumns)};
    OFL_UNROLL
    for (int i = 0; i < kDown; ++i) {
      OFL_UNROLL
      for (int j = 0; j < kWide; ++j) {
        OFL_UNROLL
        for (int at = 0; at < 4; at += 2)
          *reinterpret_cast<uint32_t*>(tile.At(i * 16 + RowOfSum(at), j * 8 + ColumnOfSum(at))) =
              PairOf<T>(sum_[i][j].at[at], sum_[i][j].at[at + 1]);
      }
    }
    __syncwarp();
    constexpr int kPacks = kWarpColumns / 8;
    for (int i = static_cast<int>(threadIdx.x % 32); i < kWarpRows * kPacks; i += 32) {
      const int column = i % kPacks * 8, row = row_of(WarpRow() + i / kPacks);
      if (row >= 0 && column < target.columns)
        StorePack(static_cast<T*>(target.to.data) + static_cast<int64_t>(row) * target.stride + column,
                  LoadPack<8>(static_cast<const T*>(tile.At(i / kPacks, column))));
    }
  }

  // The same with sums in fp32, 32 columns at a time, whose banks a row's number permutes.
  template <typename RowOf>
  OFL_DEVICE void PutEach(const TileTarget& target, const RowOf& row_of) const {
    constexpr int kPart = 32, kFragments = kPart / 8;
    auto* room = DynamicShared<float>() + threadIdx.x / 32 * (kWarpRows * kPart);
    const auto place = [](int row, int column) { return row * kPart + (column ^ row % 4 * 8); };
    OFL_UNROLL
    for (int part = 0; part < kWarpColumns / kPart; ++part) {
      OFL_UNROLL
      for (int i = 0; i < kDown; ++i) {
        OFL_UNROLL
        for (int j = 0; j < kFragments; ++j) {
          OFL_UNROLL
          for (int at = 0; at < 4; at += 2) {
            const SumFragment& sum = sum_[i][part * kFragments + j];
            *reinterpret_cast<float2*>(room + place(i * 16 + RowOfSum(at), j * 8 + ColumnOfSum(at))) =
                make_float2(sum.at[at], sum.at[at + 1]);
          }
        }
      }
      __syncwarp();
      const int in_part = static_cast<int>(threadIdx.x % 32), column = part * kPart + in_part;
      RowOf rows = row_of;
      for (int i = 0; i < kWarpRows && column < target.columns; ++i) {
        const int row = rows(WarpRow() + i);
        if (row < 0) break;
        target.to.Put(static_cast<int64_t>(row) * target.stride + column, room[place(i, in_part)]);
      }
      __syncwarp();
    }
  }
};

// Both operands are packed or not. kLeftAcross: the left operand is stored [depth rows], else [rows depth];
// kRightAcross: the right one is [depth columns], else [columns depth].
template <typename T, bool kLeftAcross, bool kRightAcross, bool kPacked>
class ProductTile : public TileSums<T, 4, 8> {
  static constexpr int kDown = 4, kWide = 8;  // fragments of a warp
  using Sums = TileSums<T, kDown, kWide>;
  using Sums::sum_, Sums::WarpRow, Sums::WarpColumn;

 public:
  static constexpr int kDepth = 32, kThreads = Sums::kWarps * 32;
  using Left =
      TileSource<T, SharedTile<T, kLeftAcross ? kDepth : kProductRows, kLeftAcross ? kProductRows : kDepth>,
                 kThreads, kPacked>;
  using Right = TileSource<
      T, SharedTile<T, kRightAcross ? kDepth : kProductColumns, kRightAcross ? kProductColumns : kDepth>,
      kThreads, kPacked>;
  static constexpr int kShared = (Left::Tile::kBytes + Right::Tile::kBytes) * kProductStages;

  // Adds the product of all steps: load(left_tile, right_tile) loads the next one, and is false where there
  // is none, for all threads. Of the result `rows` by `columns` are wanted.
  template <typename Load>
  OFL_DEVICE void Multiply(int rows, int columns, Load&& load) {
    const int used = WarpColumn() < columns ? rows - WarpRow() : 0;  // rows of the warp
    int ahead = 0;                                                   // steps that are loaded, or on their way
    OFL_UNROLL
    for (int stage = 0; stage < kProductStages - 1; ++stage) {
      if (load(LeftOf(stage), RightOf(stage))) ++ahead;
      EndCopies();
    }
    int now = 0, later = kProductStages - 1;
    while (ahead != 0) {
      WaitForCopies<kProductStages - 2>();
      __syncthreads();
      if (!load(LeftOf(later), RightOf(later))) --ahead;  // all have multiplied what is there
      EndCopies();
      if (used > Sums::kWarpRows / 2) {
        MultiplyStep<kDown>(now);
      } else if (used > 0) {
        MultiplyStep<kDown / 2>(now);
      }
      now = now + 1 == kProductStages ? 0 : now + 1;
      later = later + 1 == kProductStages ? 0 : later + 1;
    }
    WaitForCopies<0>();
    __syncthreads();
  }

 private:
  OFL_DEVICE static typename Left::Tile LeftOf(int stage) {
    return {DynamicShared<T>() + stage * Left::Tile::kElements};
  }
  OFL_DEVICE static typename Right::Tile RightOf(int stage) {
    return {DynamicShared<T>() + kProductStages * Left::Tile::kElements + stage * Right::Tile::kElements};
  }

  // Of the first kUsed fragments of rows.
  template <int kUsed>
  OFL_DEVICE void MultiplyStep(int stage) {
    const T* left_tile = LeftOf(stage).data;
    const T* right_tile = RightOf(stage).data;
    OFL_UNROLL
    for (int depth = 0; depth < kDepth; depth += 16) {
      LeftFragment left[kUsed];
      RightFragment right[kWide];
      OFL_UNROLL
      for (int i = 0; i < kUsed; ++i)
        LoadMatrices<kLeftAcross>(left_tile + left_.At(i, depth), 0, left[i].at);
      OFL_UNROLL
      for (int j = 0; j < kWide; j += 2) {
        uint32_t word[4];
        LoadMatrices<kRightAcross>(right_tile + right_.At(j / 2, depth), 0, word);
        right[j] = {{word[0], word[1]}};
        right[j + 1] = {{word[2], word[3]}};
      }
      MultiplyAdd<T>(left, right, reinterpret_cast<SumFragment(&)[kUsed][kWide]>(sum_));
    }
  }

  FragmentPlaces<typename Left::Tile, kDepth, kLeftAcross> left_{
      WarpRow(), kLeftAcross ? RowAlong() : RowDown(), kLeftAcross ? ColumnAlong() : ColumnDown()};
  FragmentPlaces<typename Right::Tile, kDepth, kRightAcross> right_{
      WarpColumn(), kRightAcross ? RowDown() : RowAlong(), kRightAcross ? ColumnDown() : ColumnAlong()};
};

}  // namespace oneflow_like::cuda
