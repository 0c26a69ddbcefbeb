// Products on tensor cores: a warp multiplies tiles of 16-bit operands (BFloat16, Float16) and adds to fp32
// sums, reads its fragments from shared memory, and copies global memory there while it computes. nvcc gets
// PTX (compute capability 8.0 and later, which actor/cuda/gpu.cc requires of a card); the emulator runs the
// same layouts as plain C++ (tests/cuda_emulator/tensor_cores.cc).
//
// All 32 lanes of a warp call LoadLeft, LoadRight and MultiplyAdd together, with equal coordinates. They
// order nothing in memory: shared memory that other lanes wrote needs a barrier first.
//
// Fragments (PTX ISA, mma.sync.m16n8k16): lane = 4 * group + pair, group 0 to 7, pair 0 to 3. A word has two
// neighbouring elements along the depth, the lower one in its lower half.
//
//   LeftFragment   16 rows, depth 16   at[i]: row group + 8 (i % 2), depth 2 pair + 8 (i / 2) and the next
//   RightFragment  depth 16, 8 columns at[i]: depth 2 pair + 8 i and the next, column group
//   SumFragment    16 rows, 8 columns  at[i]: row group + 8 (i / 2), column 2 pair + i % 2
//
// So a row of sums lies in the four lanes of a group (reduce it by shuffles over lanes 1 and 2), and two
// SumFragments side by side, rounded, are a LeftFragment (AsLeft): what a product gave is an operand of the
// next one without shared memory.
//
// Peak of dense 16-bit products by these instructions: A100 312 TFLOP/s, which is all of the card's; H100 SXM
// about 0.63 of its 989 by published measurements of others (the rest needs wgmma), not measured here. One
// product of 16 x 8 x 16 is 4,096 operations; a warp that holds 64 by 32 sums loads 3 KiB of fragments for
// each 16 of depth, 16 products.
#pragma once

#include <cstdint>

#include "ops/cuda/launch.h"
#include "ops/cuda/walk.h"  // OFL_UNROLL

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error \
    "ops/cuda needs compute capability 8.0 (tensor cores for bf16): set CMAKE_CUDA_ARCHITECTURES to 80 or later"
#endif

namespace oneflow_like::cuda {

struct LeftFragment {
  uint32_t at[4];
};
struct RightFragment {
  uint32_t at[2];
};
struct SumFragment {
  float at[4];
};
// Of SumFragment::at[i], or the row and depth of the lower half of LeftFragment::at[i].
OFL_DEVICE int RowOfSum(int i) { return static_cast<int>(threadIdx.x % 32 / 4) + i / 2 * 8; }
OFL_DEVICE int ColumnOfSum(int i) { return static_cast<int>(threadIdx.x % 4) * 2 + i % 2; }

// Two floats, rounded to nearest even, as the word of a fragment.
template <typename T>
OFL_DEVICE uint32_t PairOf(float low, float high);
// Such a word, of finite elements, with 0 for the lower one if bit `bit` of `bits` is not set, and for the
// upper one if bit + 16 is not. REQUIRES: bit < 8.
template <typename T>
OFL_DEVICE uint32_t KeepOfPair(uint32_t pair, uint32_t bits, int bit);
// The sums of columns 0 to 7 and 8 to 15 as a left operand of depth 16.
template <typename T>
OFL_DEVICE LeftFragment AsLeft(const SumFragment& low, const SumFragment& high) {
  return {{PairOf<T>(low.at[0], low.at[1]), PairOf<T>(low.at[2], low.at[3]),
           PairOf<T>(high.at[0], high.at[1]), PairOf<T>(high.at[2], high.at[3])}};
}

// A tile of kRows by kColumns elements in shared memory; kColumns is a multiple of 8. Packs of 8 elements are
// permuted within a row so that eight rows of one pack, which a fragment is loaded from, lie in eight
// different groups of four banks. Element (r, c) is at At(r, c), with c / 8 permuted: neighbours within a
// pack stay so.
// REQUIRES: `data` is aligned to 16 bytes.
template <typename T, int kRows, int kColumns>
struct SharedTile {
  static_assert(sizeof(T) == 2 && kColumns % 8 == 0);
  static constexpr int kElements = kRows * kColumns, kBytes = kElements * 2, kStride = kColumns;
  static constexpr int kTall = kRows, kBroad = kColumns;
  T* data;

  OFL_DEVICE static int Place(int row, int column) {
    constexpr int kPacks = kColumns / 8;
    // Rows follow each other at kPacks of the eight groups of banks: every kApart-th begins at the same one.
    constexpr int kSame = kPacks % 8 == 0 ? 8 : kPacks % 4 == 0 ? 4 : kPacks % 2 == 0 ? 2 : 1;
    constexpr int kApart = 8 / kSame;
    const int pack = column / 8 ^ row / kApart % kSame;
    return (row * kPacks + pack) * 8 + column % 8;
  }
  OFL_DEVICE T* At(int row, int column) const { return data + Place(row, column); }
};

// --- Fragments from a tile. "Across": the tile has the transposed operand.
// Rows [row, row + 16), depth [depth, depth + 16) of a tile [rows depth]; multiples of 8.
template <typename T, int kRows, int kColumns>
OFL_DEVICE LeftFragment LoadLeft(const SharedTile<T, kRows, kColumns>& tile, int row, int depth);
// The same of a tile [depth rows].
template <typename T, int kRows, int kColumns>
OFL_DEVICE LeftFragment LoadLeftAcross(const SharedTile<T, kRows, kColumns>& tile, int row, int depth);
// Depth [depth, depth + 16), columns [column, column + 16) of a tile [columns depth], as two fragments of 8
// columns: q k^T with k as it lies.
template <typename T, int kRows, int kColumns>
OFL_DEVICE void LoadRight(const SharedTile<T, kRows, kColumns>& tile, int depth, int column,
                          RightFragment* two);
// The same of a tile [depth columns]: x w, p v with w, v as they lie.
template <typename T, int kRows, int kColumns>
OFL_DEVICE void LoadRightAcross(const SharedTile<T, kRows, kColumns>& tile, int depth, int column,
                                RightFragment* two);

// sum[i][j] += left[i] right[j]. Products of two elements are exact; the order of the sixteen additions and
// their rounding are the card's (the emulator: in order, in fp32), the same in every run.
template <typename T, int kDown, int kWide>
OFL_DEVICE void MultiplyAdd(const LeftFragment (&left)[kDown], const RightFragment (&right)[kWide],
                            SumFragment (&sum)[kDown][kWide]);

// --- Copies from global to shared memory that go on while the thread computes
// 8 elements of 16 bits to `to`: the first `elements` of `from`, then zeros; with 0 nothing is read. The
// thread sees them after WaitForCopies, others after a barrier that follows it.
// REQUIRES: `from`, `to` are aligned to 16 bytes, 0 <= elements <= 8.
template <typename T>
OFL_DEVICE void CopyLater(T* to, const T* from, int elements);
// The same of all 8 elements, or, if not `there`, zeros: fewer instructions.
template <typename T>
OFL_DEVICE void CopyPackLater(T* to, const T* from, bool there);
// Ends a group of copies; it may be empty.
OFL_DEVICE void EndCopies();
// Until at most the last kLeft groups are under way.
template <int kLeft>
OFL_DEVICE void WaitForCopies();

}  // namespace oneflow_like::cuda

#include "ops/cuda/tensor_core_detail.h"
