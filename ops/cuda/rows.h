// What kernels over rows share: a team of threads (a warp or a block) owns a row and walks it in packs of 16
// bytes, whatever the row's alignment; rows that are read more than once wait in shared memory, where every
// thread reads only what it wrote there itself, so that no barrier is needed.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "ops/cuda/operand.h"

namespace oneflow_like::cuda {

template <typename T>
constexpr int kPackOf = 16 / static_cast<int>(sizeof(T));

// How rows are given to teams; the same for all threads of a launch.
struct RowPlan {
  Grid grid;
  int64_t rows = 0;
  int width = 0;
  bool warps = false;   // a team is a warp, else a block
  bool packed = false;  // the main operands of a row start at equal distances from multiples of 16 bytes
  int slot = 0;         // bytes of shared memory for one row of one operand; 0: rows are read again instead
};

// `operands`: the main ones, each [rows, width] of elements of `size` bytes. `kept`: how many of them are
// read more than once. A row has fewer than 2^31 elements.
inline RowPlan PlanRows(int64_t rows, int64_t width, size_t size, std::initializer_list<const void*> operands,
                        int kept, int multiprocessors) {
  // A team's rows lie at equal distances from multiples of 16 bytes, whatever their width: where it has
  // several, they are a multiple of 8 rows apart, of elements of 2 bytes and more. So each thread finds in
  // shared memory what it wrote there itself.
  constexpr int64_t kShared = 46 << 10, kWarps = 8, kBlocks = 32;  // blocks of a multiprocessor
  static_assert(kWarps % 8 == 0 && kBlocks % 8 == 0);
  RowPlan plan;
  plan.rows = rows;
  plan.width = static_cast<int>(width);
  int64_t bytes = width * static_cast<int64_t>(size), slot = (bytes + 31) / 16 * 16;
  auto start = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16; };
  plan.packed = start(*operands.begin()) % size == 0;
  for (const void* at : operands) plan.packed = plan.packed && start(at) == start(*operands.begin());
  plan.warps = bytes <= 4096 && slot * kept * kWarps <= kShared;
  int64_t teams = plan.warps ? kWarps : 1;
  if (kept > 0 && slot * kept * teams <= kShared) plan.slot = static_cast<int>(slot);
  plan.grid.threads = plan.warps ? 32 * kWarps : bytes <= (16 << 10) ? 256 : 512;
  plan.grid.x =
      static_cast<unsigned>(std::min((rows + teams - 1) / teams, int64_t{multiprocessors} * kBlocks));
  plan.grid.shared = static_cast<size_t>(plan.slot) * kept * teams;
  return plan;
}

// This thread's place in its team, and its team's among all.
struct Team {
  int me, size;
  int64_t first, stride;  // rows: first, first + stride, ...
  int number;             // in the block

  OFL_DEVICE explicit Team(const RowPlan& plan) {
    int warps = static_cast<int>(blockDim.x / 32);
    size = plan.warps ? 32 : static_cast<int>(blockDim.x);
    me = static_cast<int>(threadIdx.x) % size;
    number = static_cast<int>(threadIdx.x) / size;
    first = plan.warps ? int64_t{blockIdx.x} * warps + number : blockIdx.x;
    stride = plan.warps ? int64_t{gridDim.x} * warps : gridDim.x;
  }
  OFL_DEVICE float Sum(float x, float* room) const { return size == 32 ? WarpSum(x) : BlockSum(x, room); }
  OFL_DEVICE float Max(float x, float* room) const { return size == 32 ? WarpMax(x) : BlockMax(x, room); }
};

// A row cut so that its middle is whole packs of 16 bytes, aligned.
struct Cut {
  int head = 0, end = 0, width = 0;  // packs are [head, end)
};
template <typename T>
OFL_DEVICE Cut CutRow(const T* row, const RowPlan& plan) {
  constexpr int N = kPackOf<T>;
  Cut cut;
  cut.width = plan.width;
  if (!plan.packed) return cut;  // all of it is the tail
  int past = static_cast<int>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(T));
  cut.head = past == 0 ? 0 : N - past;
  if (cut.head > cut.width) cut.head = cut.width;
  cut.end = cut.head + (cut.width - cut.head) / N * N;
  return cut;
}

// Room in shared memory for operand `operand` of `kept` of this team's row, with the row's own alignment.
template <typename T>
OFL_DEVICE T* RoomFor(const T* row, const RowPlan& plan, const Team& team, int operand, int kept) {
  unsigned char* slot = DynamicShared<unsigned char>() + (team.number * kept + operand) * plan.slot;
  return reinterpret_cast<T*>(slot + reinterpret_cast<uintptr_t>(row) % 16);
}

// A number of elements that the compiler knows.
template <int N>
struct Size {
  static constexpr int value = N;
};

// This thread's part of a row: `use(c, n, read(c, n))` for every n elements from c on. Up to four packs
// are on their way at once, so `read` must not depend on what an earlier `use` wrote.
template <typename T, typename Read, typename Use>
OFL_DEVICE void ForRow(const Cut& cut, const Team& team, Read read, Use use) {
  constexpr int N = kPackOf<T>;
  Size<1> one;
  Size<N> pack;
  for (int c = team.me; c < cut.head; c += team.size) use(c, one, read(c, one));
  int step = team.size * N, c = cut.head + team.me * N;
  for (; c < cut.end - 3 * step; c += 4 * step) {
    auto p0 = read(c, pack), p1 = read(c + step, pack), p2 = read(c + 2 * step, pack),
         p3 = read(c + 3 * step, pack);
    use(c, pack, p0);
    use(c + step, pack, p1);
    use(c + 2 * step, pack, p2);
    use(c + 3 * step, pack, p3);
  }
  if (c < cut.end) {  // up to three more
    const bool two = c + step < cut.end, three = c + 2 * step < cut.end;
    auto p0 = read(c, pack), p1 = p0, p2 = p0;
    if (two) p1 = read(c + step, pack);
    if (three) p2 = read(c + 2 * step, pack);
    use(c, pack, p0);
    if (two) use(c + step, pack, p1);
    if (three) use(c + 2 * step, pack, p2);
  }
  for (int t = cut.end + team.me; t < cut.width; t += team.size) use(t, one, read(t, one));
}

// Two packs that are read together.
template <typename T, int N>
struct PackPair {
  Pack<T, N> a, b;
};

}  // namespace oneflow_like::cuda
