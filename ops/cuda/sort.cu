// argsort by merging. Tiles of 512 entries are sorted by a block each in shared memory; then runs are merged
// two by two, every entry finding its place by a binary search in the other run, until a line is one run. Of
// a run only the first k entries go on, so the first few of a long line cost little more than its tiles.
//
// Floor, bytes: each pass reads and writes 16 bytes of an entry; a line of n takes log2(n / 512) of them.
#include <algorithm>

#include "ops/cuda/kernels.h"
#include "ops/cuda/sort.h"
#include "ops/cuda/typed.h"

namespace oneflow_like::cuda {
namespace {

constexpr int kTile = 512;

OFL_DEVICE bool Before(const SortEntry& a, const SortEntry& b) {
  return a.key < b.key || (a.key == b.key && a.place < b.place);
}

// How many of the n sorted entries stand before `entry`.
OFL_DEVICE int64_t CountBefore(const SortEntry* run, int64_t n, const SortEntry& entry) {
  int64_t low = 0;
  while (low < n) {
    int64_t middle = (low + n) / 2;
    if (Before(run[middle], entry)) {
      low = middle + 1;
    } else {
      n = middle;
    }
  }
  return low;
}

// blockIdx.x: the tile of a line.
OFL_KERNEL void SortTiles(SortEntry* entries, int64_t tiles, int64_t n) {
  OFL_SHARED SortEntry tile[2][kTile];
  const int64_t number = blockIdx.x, begin = number % tiles * kTile;
  SortEntry* line = entries + number / tiles * n;
  const int count = static_cast<int>(n - begin < kTile ? n - begin : kTile);
  for (int i = threadIdx.x; i < count; i += blockDim.x) tile[0][i] = line[begin + i];
  __syncthreads();
  int from = 0;
  for (int width = 1; width < count; width *= 2) {
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
      const SortEntry own = tile[from][i];
      const int run = i / width, pair = run / 2 * 2 * width, other = (run ^ 1) * width;
      int length = count - other < width ? count - other : width;
      if (length < 0) length = 0;
      const auto before = static_cast<int>(CountBefore(tile[from] + other, length, own));
      tile[1 - from][pair + (i - run * width) + before] = own;
    }
    from = 1 - from;
    __syncthreads();
  }
  for (int i = threadIdx.x; i < count; i += blockDim.x) line[begin + i] = tile[from][i];
}

// Runs of `width`, of which the first `kept` are looked at, to runs of twice that.
OFL_KERNEL void MergeRuns(const SortEntry* from, SortEntry* to, int64_t lines, int64_t n, int64_t width,
                          int64_t k) {
  const int64_t kept = width < k ? width : k, runs = (n + width - 1) / width, total = lines * runs * kept;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < total; at += step) {
    const int64_t offset = at % kept, run = at / kept % runs, line = at / kept / runs * n;
    const int64_t own = run * width + offset, other = (run ^ 1) * width;
    if (own >= n) continue;
    int64_t length = n - other < kept ? n - other : kept;
    const SortEntry entry = from[line + own];
    const int64_t place = offset + (length > 0 ? CountBefore(from + line + other, length, entry) : 0);
    if (place < k) to[line + run / 2 * 2 * width + place] = entry;
  }
}

// Element `at` of a line: its key, all bits turned where the order falls.
struct Elements {
  const void* data;
  DType dtype;
  int64_t along, inner;
  bool descending;

  OFL_DEVICE uint64_t Key(int64_t line, int64_t at) const {
    int64_t offset = (line / inner * along + at) * inner + line % inner;
    uint64_t key =
        IsFloat(dtype) ? SortKey(LoadReal(data, dtype, offset)) : SortKey(LoadInteger(data, dtype, offset));
    return descending ? ~key : key;
  }
};

OFL_KERNEL void MakeEntries(Elements x, int64_t first, int64_t lines, SortEntry* entries) {
  const int64_t total = lines * x.along, step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < total; i += step)
    entries[i] = {x.Key(first + i / x.along, i % x.along), i % x.along};
}

OFL_KERNEL void PutPlaces(const SortEntry* entries, int64_t first, int64_t lines, int64_t n, int64_t k,
                          int64_t inner, int64_t* y) {
  const int64_t total = lines * k, step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < total; i += step) {
    const int64_t line = first + i / k;
    y[(line / inner * k + i % k) * inner + line % inner] = entries[i / k * n + i % k].place;
  }
}

Status Argsort(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  const int axis = static_cast<int>(context.spec.attrs.Int("axis"));
  Elements elements{x.data, x.dtype, x.extent[axis], 1, context.spec.attrs.Int("descending", 0) != 0};
  for (int i = axis + 1; i < x.extent.rank(); ++i) elements.inner *= x.extent[i];
  const int64_t n = elements.along, k = y.extent[axis];
  if (y.elements() == 0) return Status();
  const int64_t most = static_cast<int64_t>(launch.workspace_bytes / (2 * sizeof(SortEntry)));
  if (n > most)
    return Status(Cat("axis ", axis, " has ", n, " elements, but a GPU sorts at most ", most, " of a line"));
  const int64_t lines = x.elements() / n, batch = most / n;
  auto* entries = static_cast<SortEntry*>(launch.workspace);
  for (int64_t first = 0; first < lines; first += batch) {
    const int64_t count = std::min(batch, lines - first);
    Launch(MakeEntries, Grid{.x = BlocksFor(count * n, 256, launch.multiprocessors)}, launch.stream, elements,
           first, count, entries);
    const SortEntry* sorted = SortLines(entries, entries + most, count, n, k, launch);
    Launch(PutPlaces, Grid{.x = BlocksFor(count * k, 256, launch.multiprocessors)}, launch.stream, sorted,
           first, count, n, k, elements.inner, y.as<int64_t>());
  }
  return Status();
}

}  // namespace

const SortEntry* SortLines(SortEntry* entries, SortEntry* room, int64_t lines, int64_t n, int64_t k,
                           const LaunchContext& launch) {
  const int64_t tiles = (n + kTile - 1) / kTile;
  Launch(SortTiles, Grid{.x = static_cast<unsigned>(lines * tiles)}, launch.stream, entries, tiles, n);
  for (int64_t width = kTile; width < n; width *= 2) {
    const int64_t total = lines * ((n + width - 1) / width) * std::min(width, k);
    Launch(MergeRuns, Grid{.x = BlocksFor(total, 256, launch.multiprocessors)}, launch.stream, entries, room,
           lines, n, width, k);
    std::swap(entries, room);
  }
  return entries;
}

void AddSortKernels(KernelRegistry* registry) { registry->Add("argsort", "cuda", MakeLaunchKernel(Argsort)); }

}  // namespace oneflow_like::cuda
