// Instructions that a warp or four of them execute as one, and copies to shared memory that go on while a
// thread computes: what inline PTX does in a real build (ops/cuda/tensor_core.h). Included by cuda_runtime.h.
#pragma once

#include <cstdint>

namespace cuda_emulator {

// What a lane brings to, and takes from, an instruction of its warp. All lanes bring equal shapes.
struct MatrixLoad {
  uint4 row;  // 8 elements of 16 bits: row lane % 8 of matrix lane / 8
  bool transposed;
  uint32_t* word;  // of each of the four matrices
};
struct MatrixProduct {
  const uint32_t* left;   // [down 4]
  const uint32_t* right;  // [wide 2]
  float* sum;             // [down wide 4]
  int down, wide;
  bool bf16;  // else fp16
};

// ldmatrix.x4: the lane itself reads the row it names, which is aligned to 16 bytes.
inline void LoadMatrices(const void* row, bool transposed, uint32_t* word) {
  MatrixLoad load = {*static_cast<const uint4*>(row), transposed, word};
  ExchangeInWarp(WarpOperation::kLoadMatrices, ~0u, reinterpret_cast<uintptr_t>(&load), 0);
}
// mma.sync.m16n8k16, down * wide of them at once.
inline void MultiplyAdd(const uint32_t* left, int down, const uint32_t* right, int wide, bool bf16,
                        float* sum) {
  MatrixProduct product = {left, right, sum, down, wide, bf16};
  ExchangeInWarp(WarpOperation::kMultiply, ~0u, reinterpret_cast<uintptr_t>(&product), 0);
}
// What the last lane to arrive does, for all; false: the lanes brought different shapes.
bool DoForWarp(WarpOperation operation, const uint64_t (&of_lane)[32]);

// --- cp.async: bytes arrive when the thread waits for them, no sooner; until then they are NaN
struct LateCopy {
  void* to;
  const void* from;
  int bytes;  // of 16; zeros follow
};
void KeepCopy(const LateCopy& copy);
bool NextCopy(int left, LateCopy* copy);  // of a group that is to be waited for; false: there is none
void EndCopies();
int64_t UnfinishedCopies();  // of the block
void ForgetCopies();
void BeginCopies();  // of a block
inline void CopyLater(void* to, const void* from, int bytes) {
  *static_cast<uint4*>(to) = {~0u, ~0u, ~0u, ~0u};
  KeepCopy({to, from, bytes});
}
inline void WaitForCopies(int left) {
  for (LateCopy copy; NextCopy(left, &copy);) {
    uint4 words = {0, 0, 0, 0};
    if (copy.bytes == 16) {
      words = *static_cast<const uint4*>(copy.from);
    } else if (copy.bytes != 0) {
      if (reinterpret_cast<uintptr_t>(copy.from) % 16 != 0)
        Trap("cp.async from an address that is not aligned");
      std::memcpy(&words, copy.from, static_cast<size_t>(copy.bytes));
    }
    *static_cast<uint4*>(copy.to) = words;
  }
}

// fence.proxy.async: what this thread's copies wrote is there for tensor cores too.
void PublishCopies();

// --- wgmma: products of operands that lie in shared memory, by descriptors as in PTX. Sums arrive when the
// thread waits for them, no sooner, and operands are read then, no sooner. The address in the window of
// shared memory: what Shared() points to begins at 16 past a multiple of 1,024.
uint32_t SharedAddress(const void* at);
// sums: of the lane, [16][4].
void AddProducts(uint64_t left, bool left_across, uint64_t right, bool right_across, bool bf16, float* sums);
void EndProducts();
void WaitForProducts(int left);
int64_t UnfinishedProducts();  // of the block
void ForgetProducts();

}  // namespace cuda_emulator
