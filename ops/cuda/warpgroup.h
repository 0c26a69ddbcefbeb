// Products by a warpgroup, four warps that follow each other in a block, on cards of compute capability 9.0
// (PTX ISA: wgmma, for sm_90a only): the tensor cores read both operands from shared memory, and work while
// the threads go on. The emulator decodes the same descriptors (tests/cuda_emulator/tensor_cores.cc).
//
// In the order of a step:
//   WaitForCopies, PublishCopies, a barrier     operands are there for the tensor cores, not only for threads
//   BeginProducts(sums)                         the sums may be added to
//   AddProducts(...), ..., EndProducts()        a group of products, which begins
//   WaitForProducts<n>(sums)                    until at most n groups are under way; sums of others are
//   there,
//                                               and their operands may be overwritten (by others: a barrier)
// All threads of a warpgroup call each together, with equal operands.
#pragma once

#include "ops/cuda/tensor_core.h"

namespace oneflow_like::cuda {

// A tile as SharedTile, with its columns in panels of 64, kRows by 64 each, one behind the other: rows of 128
// bytes, permuted as the tensor cores' "128-byte swizzle" has them.
// REQUIRES: the address in shared memory is a multiple of 1,024 bytes.
template <typename T, int kRows, int kColumns>
struct PanelTile {
  static_assert(kColumns % 64 == 0 && kRows % 8 == 0);
  static constexpr int kElements = kRows * kColumns, kBytes = kElements * 2, kStride = 64;
  static constexpr int kTall = kRows, kBroad = kColumns, kPanel = kRows * 64;
  T* data;

  OFL_DEVICE static int Place(int row, int column) {
    return column / 64 * kPanel + SharedTile<T, kRows, 64>::Place(row, column % 64);
  }
  OFL_DEVICE T* At(int row, int column) const { return data + Place(row, column); }
};

// 16 rows of a warp by 128 columns: fragments as of mma.sync, of warp i of the group rows 16 i and on.
using WarpgroupSums = SumFragment[16];

// sums[64 128] += left[64 16] right[16 128]. Operands begin at `left` and `right` in a PanelTile, by the
// first row's first element. kLeftAcross: the tile is [depth rows], else [rows depth]; kRightAcross: [depth
// columns], else [columns depth]; with panels of kPanel elements.
template <typename T, bool kLeftAcross, bool kRightAcross, int kPanel>
OFL_DEVICE void AddProducts(const T* left, const T* right, WarpgroupSums& sums);

OFL_DEVICE void PublishCopies();
OFL_DEVICE void BeginProducts(WarpgroupSums& sums);
OFL_DEVICE void EndProducts();
template <int kLeft>
OFL_DEVICE void WaitForProducts(WarpgroupSums& sums);

// --- Bodies

// The address in the window of shared memory, which descriptors and alignment go by.
OFL_DEVICE uint32_t SharedAddress(const void* at) {
#if defined(__CUDACC__)
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
#else
  return cuda_emulator::SharedAddress(at);
#endif
}

// PTX ISA, "Matrix descriptor": address, leading and stride offsets, all in 16 bytes, and the swizzle (1: of
// 128 bytes). Along the depth as it lies (rows of 64 depths) eight rows are 1,024 bytes apart and the leading
// offset is unused; across (rows of one depth), the stride is from eight depths to the next, and the leading
// offset from one panel of 64 to the next.
template <typename T>
OFL_DEVICE uint64_t DescribeOperand(const T* at, int panel) {
  constexpr uint64_t kEightRows = 1024 / 16, kSwizzled = uint64_t{1} << 62;
  return kSwizzled | kEightRows << 32 | static_cast<uint64_t>(panel * 2 / 16) << 16 |
         (SharedAddress(at) & 0x3FFFFu) >> 4;
}

#if defined(__CUDACC__)
#define OFL_SUMS_OF(i) "+f"(sums[i].at[0]), "+f"(sums[i].at[1]), "+f"(sums[i].at[2]), "+f"(sums[i].at[3])
#define OFL_ALL_SUMS                                                                                    \
  OFL_SUMS_OF(0), OFL_SUMS_OF(1), OFL_SUMS_OF(2), OFL_SUMS_OF(3), OFL_SUMS_OF(4), OFL_SUMS_OF(5),       \
      OFL_SUMS_OF(6), OFL_SUMS_OF(7), OFL_SUMS_OF(8), OFL_SUMS_OF(9), OFL_SUMS_OF(10), OFL_SUMS_OF(11), \
      OFL_SUMS_OF(12), OFL_SUMS_OF(13), OFL_SUMS_OF(14), OFL_SUMS_OF(15)
#define OFL_WGMMA(type)                                                                   \
  asm volatile(                                                                           \
      "{\n"                                                                               \
      ".reg .pred adds;\n"                                                                \
      "setp.ne.b32 adds, %66, 0;\n"                                                       \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                        \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "          \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "  \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "  \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, " \
      "%64, %65, adds, 1, 1, %67, %68;\n"                                                 \
      "}"                                                                                 \
      : OFL_ALL_SUMS                                                                      \
      : "l"(left_operand), "l"(right_operand), "r"(1), "n"(kLeftAcross), "n"(kRightAcross))
#endif

template <typename T, bool kLeftAcross, bool kRightAcross, int kPanel>
OFL_DEVICE void AddProducts(const T* left, const T* right, WarpgroupSums& sums) {
  static_assert(std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>);
  const uint64_t left_operand = DescribeOperand(left, kLeftAcross ? kPanel : 8);
  const uint64_t right_operand = DescribeOperand(right, kRightAcross ? kPanel : 8);
#if !defined(__CUDACC__)
  cuda_emulator::AddProducts(left_operand, kLeftAcross, right_operand, kRightAcross,
                             std::is_same_v<T, BFloat16>, sums[0].at);
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if constexpr (std::is_same_v<T, BFloat16>) {
    OFL_WGMMA("bf16");
  } else {
    OFL_WGMMA("f16");
  }
#else
  __trap();  // launched on another card than it is for
#endif
}

OFL_DEVICE void PublishCopies() {
#if !defined(__CUDACC__)
  cuda_emulator::PublishCopies();
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
OFL_DEVICE void BeginProducts(WarpgroupSums& sums) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("" : OFL_ALL_SUMS::"memory");  // the compiler moves nothing of them across
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
OFL_DEVICE void EndProducts() {
#if !defined(__CUDACC__)
  cuda_emulator::EndProducts();
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
template <int kLeft>
OFL_DEVICE void WaitForProducts(WarpgroupSums& sums) {
#if !defined(__CUDACC__)
  cuda_emulator::WaitForProducts(kLeft);
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
  asm volatile("" : OFL_ALL_SUMS::"memory");
#endif
}

}  // namespace oneflow_like::cuda
