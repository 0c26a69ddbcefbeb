// The bodies that ops/cuda/tensor_core.h declares.
#pragma once

namespace oneflow_like::cuda {

// Four 8 by 8 matrices of 16-bit elements: lane i says at which element row i % 8 of matrix i / 8 is. word[m]
// is of matrix m: row lane / 4, columns 2 (lane % 4) and the next; kTransposed: of the transposed matrix.
// Addresses are added in 32 bits, so that constant parts become offsets of the instruction.
template <bool kTransposed, typename T>
OFL_DEVICE void LoadMatrices(const T* data, int place, uint32_t (&word)[4]) {
#if defined(__CUDACC__)
  const uint32_t at =
      static_cast<uint32_t>(__cvta_generic_to_shared(data)) + 2u * static_cast<uint32_t>(place);
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                 : "r"(at)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                 : "r"(at)
                 : "memory");
  }
#else
  cuda_emulator::LoadMatrices(data + place, kTransposed, word);
#endif
}

template <typename T>
OFL_DEVICE uint32_t PairOf(float low, float high) {
#if defined(__CUDACC__)
  uint32_t pair;
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
#else
  return static_cast<uint32_t>(Store<T>(high).bits) << 16 | Store<T>(low).bits;
#endif
}

// As a product with 1 or 0, of which the integer units, which have the more to do, make one instruction in
// three.
template <typename T>
OFL_DEVICE uint32_t KeepOfPair(uint32_t pair, uint32_t bits, int bit) {
#if defined(__CUDACC__)
  constexpr uint32_t kOne = std::is_same_v<T, BFloat16> ? 0x3F80 : 0x3C00;  // lower bits than 7 are 0
  const uint32_t factors = (bits & 0x00010001u << bit) * (kOne >> bit);
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(pair) : "r"(factors), "r"(0x80008000u));
  } else {
    asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(pair) : "r"(factors), "r"(0x80008000u));
  }
  return pair;
#else
  return ((bits >> bit & 1) != 0 ? pair & 0xFFFF : 0) |
         ((bits >> bit >> 16 & 1) != 0 ? pair & 0xFFFF0000 : 0);
#endif
}

// Which row and pack of a fragment's 16 by 16 elements a lane names: matrices follow each other down the rows
// first (Down), or along the columns first (Along).
OFL_DEVICE int RowDown() { return static_cast<int>(threadIdx.x % 16); }
OFL_DEVICE int ColumnDown() { return static_cast<int>(threadIdx.x % 32 / 16) * 8; }
OFL_DEVICE int RowAlong() { return static_cast<int>(threadIdx.x % 8 + threadIdx.x % 32 / 16 * 8); }
OFL_DEVICE int ColumnAlong() { return static_cast<int>(threadIdx.x % 16 / 8) * 8; }

template <typename T, int kRows, int kColumns>
OFL_DEVICE LeftFragment LoadLeft(const SharedTile<T, kRows, kColumns>& tile, int row, int depth) {
  LeftFragment left;
  LoadMatrices<false>(tile.data, tile.Place(row + RowDown(), depth + ColumnDown()), left.at);
  return left;
}
template <typename T, int kRows, int kColumns>
OFL_DEVICE LeftFragment LoadLeftAcross(const SharedTile<T, kRows, kColumns>& tile, int row, int depth) {
  LeftFragment left;
  LoadMatrices<true>(tile.data, tile.Place(depth + RowAlong(), row + ColumnAlong()), left.at);
  return left;
}
template <typename T, int kRows, int kColumns>
OFL_DEVICE void LoadRight(const SharedTile<T, kRows, kColumns>& tile, int depth, int column,
                          RightFragment* two) {
  uint32_t word[4];
  LoadMatrices<false>(tile.data, tile.Place(column + RowAlong(), depth + ColumnAlong()), word);
  two[0] = {{word[0], word[1]}};
  two[1] = {{word[2], word[3]}};
}
template <typename T, int kRows, int kColumns>
OFL_DEVICE void LoadRightAcross(const SharedTile<T, kRows, kColumns>& tile, int depth, int column,
                                RightFragment* two) {
  uint32_t word[4];
  LoadMatrices<true>(tile.data, tile.Place(depth + RowDown(), column + ColumnDown()), word);
  two[0] = {{word[0], word[1]}};
  two[1] = {{word[2], word[3]}};
}

template <typename T, int kDown, int kWide>
OFL_DEVICE void MultiplyAdd(const LeftFragment (&left)[kDown], const RightFragment (&right)[kWide],
                            SumFragment (&sum)[kDown][kWide]) {
  static_assert(std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>);
#if defined(__CUDACC__)
  OFL_UNROLL
  for (int i = 0; i < kDown; ++i) {
    OFL_UNROLL
    for (int j = 0; j < kWide; ++j) {
      const LeftFragment& a = left[i];
      const RightFragment& b = right[j];
      SumFragment& c = sum[i][j];
      if constexpr (std::is_same_v<T, BFloat16>) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c.at[0]), "+f"(c.at[1]), "+f"(c.at[2]), "+f"(c.at[3])
            : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b.at[0]), "r"(b.at[1]));
      } else {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c.at[0]), "+f"(c.at[1]), "+f"(c.at[2]), "+f"(c.at[3])
            : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b.at[0]), "r"(b.at[1]));
      }
    }
  }
#else
  cuda_emulator::MultiplyAdd(left[0].at, kDown, right[0].at, kWide, std::is_same_v<T, BFloat16>,
                             sum[0][0].at);
#endif
}

template <typename T>
OFL_DEVICE void CopyLater(T* to, const T* from, int elements) {
  static_assert(sizeof(T) == 2);
#if defined(__CUDACC__)
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(__cvta_generic_to_global(from)), "r"(elements * 2)
               : "memory");
#else
  cuda_emulator::CopyLater(to, from, elements * 2);
#endif
}
template <typename T>
OFL_DEVICE void CopyPackLater(T* to, const T* from, bool there) {
  static_assert(sizeof(T) == 2);
#if defined(__CUDACC__)
  asm volatile(
      "{\n"
      ".reg .pred absent;\n"
      "setp.eq.u32 absent, %2, 0;\n"
      "cp.async.cg.shared.global [%0], [%1], 16, absent;\n"
      "}" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
      "l"(__cvta_generic_to_global(from)), "r"(static_cast<uint32_t>(there))
      : "memory");
#else
  cuda_emulator::CopyLater(to, from, there ? 16 : 0);
#endif
}
OFL_DEVICE void EndCopies() {
#if defined(__CUDACC__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  cuda_emulator::EndCopies();
#endif
}
template <int kLeft>
OFL_DEVICE void WaitForCopies() {
#if defined(__CUDACC__)
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
#else
  cuda_emulator::WaitForCopies(kLeft);
#endif
}

}  // namespace oneflow_like::cuda
