// The products of attention on tensor cores (attention_tensor.cu, attention_tensor_grad.cu). A block of four
// warps has a tile of 64 rows, 16 to a warp, and goes through tiles of C columns of the other sequence: rows
// are queries and columns keys, or the other way round for the gradients of keys and values. Every product
// has one of two forms:
//
//   AddDots      sums[row][column] += rows . columns, over a head's width
//   AddWeighted  out[row][element] += weights[row][column] * columns[column][element]
//
// with the rows of the first as fragments in registers, the weights of the second as sums of the first, which
// are rounded to 16 bits, and the columns in shared memory. W is the width of heads in registers and shared
// memory: 32, 64, 96 or 128, with zeros behind a narrower head. Wider heads go through shared memory in
// chunks of W for AddDots, and a block has W elements of a result row (blockIdx.y).
#pragma once

#include "ops/cuda/attention_shape.h"
#include "ops/cuda/tensor_core.h"

namespace oneflow_like::cuda {

constexpr int kTensorWarps = 4, kTensorThreads = 32 * kTensorWarps;
constexpr int kTensorRows = 16 * kTensorWarps;  // of a block
// Blocks of a multiprocessor, which limit the registers of a thread to 168 or 255.
template <int W>
constexpr int kTensorBlocks = W <= 64 ? 3 : 2;
constexpr int kRightColumns = 32;  // by one MultiplyAdd

OFL_DEVICE int WarpOfThread() { return static_cast<int>(threadIdx.x) / 32; }
// The lane's first row in the block's tile; the other one is 8 further.
OFL_DEVICE int RowOfLane() { return WarpOfThread() * 16 + RowOfSum(0); }

// Sums of a warp's 16 rows over C columns: element i of SumFragment n is of row RowOfSum(i) and column
// 8 n + ColumnOfSum(i).
template <int C>
struct Sums {
  SumFragment at[C / kRightColumns][1][4];
  OFL_DEVICE SumFragment& Of(int n) { return at[n / 4][0][n % 4]; }
  OFL_DEVICE const SumFragment& Of(int n) const { return at[n / 4][0][n % 4]; }
};

// Elements [column, column + 2) of a row as a word of a fragment, 0 where there is none.
template <typename T>
OFL_DEVICE uint32_t LoadPair(const HeadRows<T>& rows, int row, int column) {
  if (row >= rows.count || column >= rows.width) return 0;
  const T* const at = rows.data + row * rows.pitch + column;
  if (rows.packed) return *reinterpret_cast<const uint32_t*>(at);
  const uint32_t high = column + 1 < rows.width ? at[1].bits : 0u;
  return high << 16 | at[0].bits;
}

// The warp's rows, elements [from, from + W), from global memory.
template <typename T, int W>
OFL_DEVICE void LoadRows(const HeadRows<T>& rows, int from, LeftFragment (&left)[W / 16]) {
  OFL_UNROLL
  for (int k = 0; k < W / 16; ++k) {
    OFL_UNROLL
    for (int i = 0; i < 4; ++i)
      left[k].at[i] = LoadPair(rows, RowOfLane() + i % 2 * 8, from + 16 * k + i / 2 * 8 + ColumnOfSum(0));
  }
}

// Elements [from, from + W) of the rows to shared memory, zeros where there are none; to be waited for.
template <typename T, int kRows, int W>
OFL_DEVICE void Stage(const HeadRows<T>& rows, int from, const SharedTile<T, kRows, W>& tile) {
  OFL_UNROLL
  for (int i = static_cast<int>(threadIdx.x); i < kRows * W / 8; i += kTensorThreads) {
    const int row = i / (W / 8), column = i % (W / 8) * 8, left = rows.width - from - column;
    const bool here = row < rows.count && left > 0;
    const T* const source = here ? rows.data + row * rows.pitch + from + column : rows.data;
    if (rows.packed) {
      CopyLater(tile.At(row, column), source, here ? 8 : 0);
      continue;
    }
    Pack<T, 8> pack;
    for (int e = 0; e < 8; ++e) pack.at[e] = here && e < left ? source[e] : T{0};
    *reinterpret_cast<Pack<T, 8>*>(tile.At(row, column)) = pack;
  }
}

// `left(k)`: elements [16 k, 16 k + 16) of the warp's rows.
template <typename T, int C, int W, typename Left>
OFL_DEVICE void AddDots(const Left& left, const SharedTile<T, C, W>& columns, Sums<C>* sums) {
  OFL_UNROLL
  for (int k = 0; k < W / 16; ++k) {
    const LeftFragment rows[1] = {left(k)};
    OFL_UNROLL
    for (int g = 0; g < C / kRightColumns; ++g) {
      RightFragment right[4];
      LoadRight(columns, 16 * k, kRightColumns * g, right);
      LoadRight(columns, 16 * k, kRightColumns * g + 16, right + 2);
      MultiplyAdd<T>(rows, right, sums->at[g]);
    }
  }
}

template <typename T, int C, int W>
OFL_DEVICE void AddWeighted(const Sums<C>& weights, const SharedTile<T, C, W>& columns, Sums<W>* out) {
  OFL_UNROLL
  for (int k = 0; k < C / 16; ++k) {
    const LeftFragment rows[1] = {AsLeft<T>(weights.Of(2 * k), weights.Of(2 * k + 1))};
    OFL_UNROLL
    for (int g = 0; g < W / kRightColumns; ++g) {
      RightFragment right[4];
      LoadRightAcross(columns, 16 * k, kRightColumns * g, right);
      LoadRightAcross(columns, 16 * k, kRightColumns * g + 16, right + 2);
      MultiplyAdd<T>(rows, right, out->at[g]);
    }
  }
}

// The columns' elements [from, from + W), there for all threads; `room` was read by them before.
template <typename T, int C, int W>
OFL_DEVICE void StageNow(const HeadRows<T>& columns, int from, const SharedTile<T, C, W>& room) {
  __syncthreads();
  Stage(columns, from, room);
  EndCopies();
  WaitForCopies<0>();
  __syncthreads();
}

// AddDots of heads of any width, through `room`.
template <typename T, int C, int W>
OFL_DEVICE void AddWideDots(const HeadRows<T>& rows, const HeadRows<T>& columns,
                            const SharedTile<T, C, W>& room, Sums<C>* sums) {
  for (int from = 0; from < rows.width; from += W) {
    LeftFragment left[W / 16];
    LoadRows<T, W>(rows, from, left);
    StageNow(columns, from, room);
    AddDots([&](int k) { return left[k]; }, room, sums);
  }
}

// Elements [from, from + W) of the warp's rows, of the tile that begins at `first`, each row times its
// factor.
template <typename T, int W>
OFL_DEVICE void StoreRows(const Sums<W>& out, const float (&factor)[2], const HeadView& head, int64_t first,
                          int from, T* to) {
  OFL_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int64_t row = first + RowOfLane() + 8 * half;
    if (row >= head.length) continue;
    T* const at = to + head.RowAt(row);
    OFL_UNROLL
    for (int n = 0; n < W / 8; ++n) {
      const int column = from + 8 * n + ColumnOfSum(0);
      const float low = out.Of(n).at[2 * half] * factor[half],
                  high = out.Of(n).at[2 * half + 1] * factor[half];
      if (column >= head.width) continue;
      if (head.packed) {
        *reinterpret_cast<uint32_t*>(at + column) = PairOf<T>(low, high);
      } else {
        at[column] = Store<T>(low);
        if (column + 1 < head.width) at[column + 1] = Store<T>(high);
      }
    }
  }
}

// --- The host's side
// Calls f(T{}, width) with the type and the width W of an instance; wide: heads are wider than it.
template <typename F>
void ForTensorInstance(DType dtype, int width, F&& f) {
  const auto of_type = [&](auto t) {
    using std::integral_constant;
    if (width <= 32) return f(t, integral_constant<int, 32>{}, std::false_type{});
    if (width <= 64) return f(t, integral_constant<int, 64>{}, std::false_type{});
    if (width <= 96) return f(t, integral_constant<int, 96>{}, std::false_type{});
    if (width <= 128) return f(t, integral_constant<int, 128>{}, std::false_type{});
    f(t, integral_constant<int, 128>{}, std::true_type{});
  };
  if (dtype == DType::kBFloat16) return of_type(BFloat16{});
  of_type(Float16{});
}
inline int64_t TensorTiles(int64_t rows) { return (rows + kTensorRows - 1) / kTensorRows; }
// Blocks that share a row of a result.
inline unsigned TensorParts(int width, int of_block) {
  return static_cast<unsigned>(width <= of_block ? 1 : (width + of_block - 1) / of_block);
}

}  // namespace oneflow_like::cuda
