// The products of attention on tensor cores (attention_tensor.cu, attention_tensor_grad.cu). A block of four
// warps has a tile of 64 rows, 16 to a warp, and goes through tiles of C columns of the other sequence: rows
// are queries and columns keys, or the other way round for the gradients of keys and values. Every product
// has one of two forms:
//
//   AddDots      sums[row][column] += rows . columns, over a head's width
//   AddWeighted  out[row][element] += weights[row][column] * columns[column][element]
//
// with the rows of the first as fragments, in registers or loaded from shared memory, the weights of the
// second as sums of the first, which are rounded to 16 bits, and the columns in shared memory. W is the width
// of heads in registers and shared memory: 32, 64, 96 or 128, with zeros behind a narrower head. Wider heads
// go through shared memory in chunks of W for AddDots, and a block has W elements of a result row
// (blockIdx.y).
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

// Elements [from, from + W) of the rows to shared memory, zeros where there are none; to be waited for. A
// thread has the same packs of every kDown-th row: two pointers move.
template <typename T, int kRows, int W>
OFL_DEVICE void Stage(const HeadRows<T>& rows, int from, const SharedTile<T, kRows, W>& tile) {
  constexpr int kPacks = W / 8, kAcross = kPacks % 16 == 0 ? 16 : kPacks % 8 == 0 ? 8 : 4;
  constexpr int kDown = kTensorThreads / kAcross;
  // What permutes packs (SharedTile::Place) repeats every eight rows, and within four packs or all of a row.
  static_assert(kDown % 8 == 0 && kRows % kDown == 0);
  const int row = static_cast<int>(threadIdx.x) / kAcross,
            column = static_cast<int>(threadIdx.x) % kAcross * 8;
  const int left = rows.width - from - column;
  const T* source = rows.data + row * rows.pitch + from + column;
  T* const to = tile.At(row, column);
  if (rows.packed) {
    OFL_UNROLL
    for (int down = 0; down < kRows; down += kDown) {
      OFL_UNROLL
      for (int across = 0; across < W; across += 8 * kAcross)
        CopyPackLater(to + down * W + across, source + across, row + down < rows.count && across < left);
      source += kDown * rows.pitch;
    }
    return;
  }
  OFL_ROLLED
  for (int down = 0; down < kRows; down += kDown) {
    OFL_ROLLED
    for (int across = 0; across < W; across += 8 * kAcross) {
      Pack<T, 8> pack;
      OFL_UNROLL
      for (int e = 0; e < 8; ++e)
        pack.at[e] = row + down < rows.count && across + e < left ? source[across + e] : T{0};
      *reinterpret_cast<Pack<T, 8>*>(to + down * W + across) = pack;
    }
    source += kDown * rows.pitch;
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

template <typename T, int C>
OFL_DEVICE void RoundSums(const Sums<C>& sums, LeftFragment (&rounded)[C / 16]) {
  OFL_UNROLL
  for (int k = 0; k < C / 16; ++k) rounded[k] = AsLeft<T>(sums.Of(2 * k), sums.Of(2 * k + 1));
}

template <typename T, int C, int W>
OFL_DEVICE void AddWeighted(const LeftFragment (&weights)[C / 16], const SharedTile<T, C, W>& columns,
                            Sums<W>* out) {
  OFL_UNROLL
  for (int k = 0; k < C / 16; ++k) {
    const LeftFragment rows[1] = {weights[k]};
    OFL_UNROLL
    for (int g = 0; g < W / kRightColumns; ++g) {
      RightFragment right[4];
      LoadRightAcross(columns, 16 * k, kRightColumns * g, right);
      LoadRightAcross(columns, 16 * k, kRightColumns * g + 16, right + 2);
      MultiplyAdd<T>(rows, right, out->at[g]);
    }
  }
}

template <typename T, int C, int W>
OFL_DEVICE void AddWeighted(const Sums<C>& weights, const SharedTile<T, C, W>& columns, Sums<W>* out) {
  LeftFragment rounded[C / 16];
  RoundSums<T, C>(weights, rounded);
  AddWeighted<T, C, W>(rounded, columns, out);
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
// factor, through the warp's rows of `room`.
template <typename T, int W>
OFL_DEVICE void StoreRows(const Sums<W>& out, const float (&factor)[2], const HeadView& head, int64_t first,
                          int from, const SharedTile<T, kTensorRows, W>& room, T* to) {
  __syncwarp();  // other lanes may have read them
  OFL_UNROLL
  for (int half = 0; half < 2; ++half) {
    OFL_UNROLL
    for (int n = 0; n < W / 8; ++n)
      *reinterpret_cast<uint32_t*>(room.At(RowOfLane() + 8 * half, 8 * n + ColumnOfSum(0))) =
          PairOf<T>(out.Of(n).at[2 * half] * factor[half], out.Of(n).at[2 * half + 1] * factor[half]);
  }
  __syncwarp();
  OFL_UNROLL
  for (int i = static_cast<int>(threadIdx.x) % 32; i < 16 * W / 8; i += 32) {
    const int row = WarpOfThread() * 16 + i / (W / 8), column = i % (W / 8) * 8;
    const int left = head.width - from - column;
    if (first + row >= head.length || left <= 0) continue;
    const Pack<T, 8> pack = *reinterpret_cast<const Pack<T, 8>*>(room.At(row, column));
    T* const at = to + head.RowAt(first + row) + from + column;
    if (head.packed) {
      *reinterpret_cast<Pack<T, 8>*>(at) = pack;
      continue;
    }
    OFL_UNROLL
    for (int e = 0; e < 8; ++e)
      if (e < left) at[e] = pack.at[e];
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
