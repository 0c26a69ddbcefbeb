// The tile of product_tile.h by warpgroups (compute capability 9.0): a block of 256 threads, in steps of 64
// of the depth, three of which have 96 KiB, so that two blocks are on a multiprocessor. Each of the two
// warpgroups holds 64 by 128 sums, 16 by 128 in a warp.
//
// Per step: 2 * 128 * 128 * 64 = 2,097,152 operations, 512 cycles at 4,096 a cycle of a multiprocessor; 32
// KiB are copied to shared memory and 48 KiB read from it, 640 cycles at 128 bytes each: at most 80 % of an
// H100's peak.
#pragma once

#include "ops/cuda/product_tile.h"
#include "ops/cuda/warpgroup.h"

namespace oneflow_like::cuda {

// Both operands are packed.
template <typename T, bool kLeftAcross, bool kRightAcross>
class WarpgroupTile : public TileSums<T, 1, 16> {
  using Sums = TileSums<T, 1, 16>;
  using Sums::sum_;

 public:
  static constexpr int kDepth = 64, kThreads = Sums::kWarps * 32;
  using Left =
      TileSource<T, PanelTile<T, kLeftAcross ? kDepth : kProductRows, kLeftAcross ? kProductRows : kDepth>,
                 kThreads, true>;
  using Right = TileSource<
      T, PanelTile<T, kRightAcross ? kDepth : kProductColumns, kRightAcross ? kProductColumns : kDepth>,
      kThreads, true>;

 private:
  static constexpr int kStage = Left::Tile::kElements + Right::Tile::kElements, kAlignment = 1024;

 public:
  // What the runtime's alignment may take is included.
  static constexpr int kShared = kStage * 2 * kProductStages + kAlignment;

  // As ProductTile's.
  template <typename Load>
  OFL_DEVICE void Multiply(int rows, int /*columns*/, Load&& load) {
    T* const stages = Stages();
    const auto left_of = [&](int stage) { return typename Left::Tile{stages + stage * kStage}; };
    const auto right_of = [&](int stage) {
      return typename Right::Tile{stages + stage * kStage + Left::Tile::kElements};
    };
    const int group = static_cast<int>(threadIdx.x / 128);
    const bool used = rows > group * 64;
    int ahead = 0;  // steps that are loaded, or on their way
    OFL_UNROLL
    for (int stage = 0; stage < kProductStages - 1; ++stage) {
      if (load(left_of(stage), right_of(stage))) ++ahead;
      EndCopies();
    }
    int now = 0, later = kProductStages - 1;
    while (ahead != 0) {
      WaitForCopies<kProductStages - 2>();
      PublishCopies();
      WaitForProducts<0>(sum_[0]);  // of the step before, whose place the next one gets
      __syncthreads();
      if (used) MultiplyStep(left_of(now).data + group * kOfGroup, right_of(now).data);
      if (!load(left_of(later), right_of(later))) --ahead;
      EndCopies();
      now = now + 1 == kProductStages ? 0 : now + 1;
      later = later + 1 == kProductStages ? 0 : later + 1;
    }
    WaitForCopies<0>();
    WaitForProducts<0>(sum_[0]);
    __syncthreads();
  }

 private:
  static constexpr int kOfGroup = 64 * 64;  // elements: 64 rows, or the second panel
  static_assert(!kLeftAcross || Left::Tile::kPanel == kOfGroup);

  OFL_DEVICE static T* Stages() {
    auto* shared = DynamicShared<unsigned char>();
    return reinterpret_cast<T*>(shared + (kAlignment - SharedAddress(shared) % kAlignment) % kAlignment);
  }

  OFL_DEVICE void MultiplyStep(const T* left, const T* right) {
    BeginProducts(sum_[0]);
    OFL_UNROLL
    for (int depth = 0; depth < kDepth; depth += 16) {
      // Across, 16 rows further; else 16 elements, which the permutation of the address leaves in their row.
      AddProducts<T, kLeftAcross, kRightAcross, kOfGroup>(left + depth * (kLeftAcross ? 64 : 1),
                                                          right + depth * (kRightAcross ? 64 : 1), sum_[0]);
    }
    EndProducts();
  }
};

}  // namespace oneflow_like::cuda
