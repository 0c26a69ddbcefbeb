// Rows of dy added up by index, the same bits in every run. Positions are sorted by their row of the table
// (radix sort of 8-bit digits, stable, integers only); then blocks take chunks of the sorted positions and
// add each run of equal rows; the parts of a run that crosses chunks wait in the workspace and are added in
// the order of chunks, so that a row which thousands of positions name does not wait for one block.
//
// Floor, bytes: dy once, the table once (zeroes, or a copy of x), used rows once more. The sort moves 8 bytes
// per position and pass.
#include <algorithm>
#include <bit>

#include "ops/cuda/row_sums.h"

namespace oneflow_like::cuda {
namespace {

constexpr int kDigits = 256, kDigitBits = 8;
constexpr int kSortWarps = 4;                 // per block
constexpr int64_t kBatch = int64_t{2} << 20;  // positions that are sorted together
constexpr int64_t kMostUnits = 2048;          // warps that count and scatter
constexpr int kStage = 128;                   // positions of a chunk that wait in shared memory

// The row that position i of a batch names; `rows` for none.
struct Keys : RowKeys {
  int64_t base = 0;  // of the batch
  int rows = 0;

  OFL_DEVICE int At(int i) const { return Row(base + i, rows); }
};

struct SortPass {
  const int* from;  // positions in their order so far; nullptr: 0, 1, 2, ...
  int* to;
  int count;  // positions
  int each;   // positions of a unit (a warp), a multiple of 32
  int units;
  int shift;    // of the digit
  int* counts;  // [digit][unit]; scanned: of earlier units
  int* totals;  // [digit]

  OFL_DEVICE int Position(int i) const { return from == nullptr ? i : from[i]; }
};

// Lanes whose digit is this lane's. A lane that is not there gets an empty set.
OFL_DEVICE unsigned SameDigit(int digit, bool there) {
  unsigned same = __ballot_sync(0xFFFFFFFFu, there);
  for (int bit = 0; bit < kDigitBits; ++bit) {
    bool one = (digit >> bit & 1) != 0;
    unsigned ones = __ballot_sync(0xFFFFFFFFu, one);
    same &= one ? ones : ~ones;
  }
  return there ? same : 0u;
}
OFL_DEVICE int FirstOf(unsigned lanes) { return __ffs(static_cast<int>(lanes)) - 1; }

// How often each digit occurs among a unit's positions. `check`: ids are looked at for the first time.
OFL_KERNEL void CountDigits(Keys keys, SortPass pass, bool check, FaultPort port) {
  OFL_SHARED int bins[kSortWarps][kDigits];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, unit = blockIdx.x * kSortWarps + warp;
  for (int d = lane; d < kDigits; d += 32) bins[warp][d] = 0;
  __syncwarp();
  int64_t begin = int64_t{unit} * pass.each;
  for (int64_t at = begin; at < begin + pass.each && at < pass.count; at += 32) {
    bool there = at + lane < pass.count;
    int digit = 0;
    if (there) {
      int position = pass.Position(static_cast<int>(at) + lane);
      digit = keys.At(position) >> pass.shift & (kDigits - 1);
      int64_t at = keys.Id(keys.base + position);
      if (check) CheckIndex(keys.ids, at, keys.ids.At(at), true, keys.global, port);
    }
    unsigned same = SameDigit(digit, there);
    if (same != 0 && lane == FirstOf(same)) bins[warp][digit] += __popc(same);
    __syncwarp();
  }
  for (int d = lane; d < kDigits && unit < pass.units; d += 32)
    pass.counts[int64_t{d} * pass.units + unit] = bins[warp][d];
}

OFL_DEVICE int WarpPrefix(int x) {  // of this lane and those before it
  int lane = threadIdx.x % 32;
  for (int by = 1; by < 32; by <<= 1) {
    int before = __shfl_up_sync(0xFFFFFFFFu, x, by);
    if (lane >= by) x += before;
  }
  return x;
}

// Of each digit (a warp's) the counts of earlier units, and the total.
OFL_KERNEL void ScanUnits(SortPass pass) {
  int lane = threadIdx.x % 32, digit = static_cast<int>(blockIdx.x) * kSortWarps + threadIdx.x / 32,
      carry = 0;
  int* counts = pass.counts + int64_t{digit} * pass.units;
  for (int u = 0; u < pass.units; u += 32) {
    int own = u + lane < pass.units ? counts[u + lane] : 0, sum = WarpPrefix(own);
    if (u + lane < pass.units) counts[u + lane] = carry + sum - own;
    carry += __shfl_sync(0xFFFFFFFFu, sum, 31);
  }
  if (lane == 0) pass.totals[digit] = carry;
}

// Every position to its place: after smaller digits, earlier units and earlier positions of this unit.
OFL_KERNEL void Scatter(Keys keys, SortPass pass) {
  OFL_SHARED int next[kSortWarps][kDigits];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, unit = blockIdx.x * kSortWarps + warp, carry = 0;
  for (int d = lane; d < kDigits; d += 32) {
    int own = pass.totals[d], sum = WarpPrefix(own);
    int before = unit < pass.units ? pass.counts[int64_t{d} * pass.units + unit] : 0;
    next[warp][d] = carry + sum - own + before;
    carry += __shfl_sync(0xFFFFFFFFu, sum, 31);
  }
  __syncwarp();
  int64_t begin = int64_t{unit} * pass.each;
  for (int64_t at = begin; at < begin + pass.each && at < pass.count; at += 32) {
    bool there = at + lane < pass.count;
    int position = there ? pass.Position(static_cast<int>(at) + lane) : 0;
    int digit = there ? keys.At(position) >> pass.shift & (kDigits - 1) : 0;
    unsigned same = SameDigit(digit, there);
    if (there) pass.to[next[warp][digit] + __popc(same & ((1u << lane) - 1))] = position;
    __syncwarp();
    if (same != 0 && lane == FirstOf(same)) next[warp][digit] += __popc(same);
    __syncwarp();
  }
}

// Sorted positions in chunks of `each`; sums of the parts of runs that cross chunks are in `parts`.
struct Chunks {
  const int* order;
  int count;     // positions
  int64_t each;  // positions of a chunk
  int chunks;
  int width;     // of a row
  bool add;      // to what the table has from x or earlier batches
  float* parts;  // [chunk][at its begin, at its end][width]

  OFL_DEVICE int64_t End(int64_t chunk) const {
    int64_t end = (chunk + 1) * each;
    return end < count ? end : count;
  }
  OFL_DEVICE float* Part(int64_t chunk, int which) const { return parts + (chunk * 2 + which) * width; }
};

// N sums to columns c, ... of row `row` of the table.
template <int N>
OFL_DEVICE void PutRow(const FloatView& table, const Chunks& chunks, int row, int c, const float* sum) {
  int64_t at = int64_t{row} * chunks.width + c;
  if (N > 1 && table.dtype == DType::kFloat32) {
    float* to = static_cast<float*>(table.data) + at;
    for (int i = 0; i < N; i += 4) {
      Pack<float, 4> four{};
      if (chunks.add) four = LoadPack<4>(to + i);
      for (int k = 0; k < 4; ++k) four.at[k] = chunks.add ? four.at[k] + sum[(i + k) % N] : sum[(i + k) % N];
      StorePack(to + i, four);
    }
    return;
  }
  for (int i = 0; i < N; ++i) table.Put(at + i, chunks.add ? table.At(at + i) + sum[i] : sum[i]);
}

// Rows of dy, N columns at once.
template <typename T, int N>
struct PlainSource {
  static constexpr int kColumns = N;
  using Part = Pack<T, N>;
  const T* dy;
  int64_t width;

  OFL_DEVICE Part Fetch(int64_t position, int c) const { return LoadPack<N>(dy + position * width + c); }
  OFL_DEVICE static float Value(const Part& part, int i) { return Load(part.at[i]); }
};

// Of bags: rows of dy by bag, times a factor.
template <typename T, int N>
struct BagSource {
  static constexpr int kColumns = N;
  struct Part {
    Pack<T, N> row;
    float factor;
  };
  const T* dy;
  int64_t width, room;
  IndexView lengths;
  FloatView weights;
  bool mean;

  OFL_DEVICE Part Fetch(int64_t position, int c) const {
    const int64_t bag = position / room;
    float factor = mean ? 1.0f / static_cast<float>(lengths.At(bag)) : 1.0f;
    if (weights.data != nullptr) factor = weights.At(position);
    return {LoadPack<N>(dy + bag * width + c), factor};
  }
  OFL_DEVICE static float Value(const Part& part, int i) { return part.factor * Load(part.row.at[i]); }
};

// Of bags: dy where the position is the first of its bag whose row is y.
struct GreatestSource {
  static constexpr int kColumns = 1;
  using Part = float;
  FloatView dy, table, y;
  IndexView ids;
  int64_t width, room;

  OFL_DEVICE bool Hit(int64_t position, int64_t result) const {
    return table.At(ids.At(position) * width + result % width) == y.At(result);
  }
  OFL_DEVICE float Fetch(int64_t position, int c) const {
    const int64_t bag = position / room, result = bag * width + c;
    if (!Hit(position, result)) return 0.0f;
    for (int64_t earlier = bag * room; earlier < position; ++earlier) {
      if (Hit(earlier, result)) return 0.0f;
    }
    return dy.At(result);
  }
  OFL_DEVICE static float Value(float part, int) { return part; }
};

// blockIdx.x: the chunk; a thread owns Source::kColumns columns.
template <typename Source>
OFL_KERNEL void SumChunks(Source source, Keys keys, Chunks chunks, FloatView table) {
  constexpr int N = Source::kColumns;
  OFL_SHARED int where[kStage];
  OFL_SHARED int row[kStage];
  constexpr int kAhead = 4;
  int c = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * N;
  int64_t begin = blockIdx.x * chunks.each, end = chunks.End(blockIdx.x);
  int before = begin > 0 ? keys.At(chunks.order[begin - 1]) : -1;
  int after = end < chunks.count ? keys.At(chunks.order[end]) : -1;
  float sum[N] = {};
  int current = -1;
  bool first = true;
  auto finish = [&](bool last) {
    if (current < 0 || current == keys.rows || c >= chunks.width) return;
    bool open_before = first && before == current, open_after = last && after == current;
    if (!open_before && !open_after) return PutRow<N>(table, chunks, current, c, sum);
    float* part = chunks.Part(blockIdx.x, open_before ? 0 : 1) + c;
    for (int i = 0; i < N; ++i) part[i] = sum[i];
  };
  for (int64_t stage = begin; stage < end; stage += kStage) {
    int staged = static_cast<int>(end - stage < kStage ? end - stage : kStage);
    __syncthreads();
    for (int j = threadIdx.x; j < staged; j += blockDim.x) {
      where[j] = chunks.order[stage + j];
      row[j] = keys.At(where[j]);
    }
    __syncthreads();
    for (int j = 0; j < staged; j += kAhead) {
      typename Source::Part part[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        if (j + k < staged && row[j + k] != keys.rows && c < chunks.width)
          part[k] = source.Fetch(keys.base + where[j + k], c);
      }
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        if (j + k >= staged) continue;
        if (row[j + k] != current) {
          finish(false);
          first = current < 0;
          current = row[j + k];
          for (int i = 0; i < N; ++i) sum[i] = 0.0f;
        }
        if (current == keys.rows || c >= chunks.width) continue;
        for (int i = 0; i < N; ++i) sum[i] += Source::Value(part[k], i);
      }
    }
  }
  finish(true);
}

// The runs that begin in chunk blockIdx.x and go on in the next: the parts in their order.
template <int N>
OFL_KERNEL void JoinParts(Keys keys, Chunks chunks, FloatView table) {
  int64_t chunk = blockIdx.x, begin = chunk * chunks.each, end = chunks.End(chunk);
  if (end >= chunks.count) return;
  int run = keys.At(chunks.order[end - 1]);
  if (run == keys.rows || keys.At(chunks.order[end]) != run) return;
  bool whole = keys.At(chunks.order[begin]) == run;
  if (whole && begin > 0 && keys.At(chunks.order[begin - 1]) == run) return;  // began earlier

  int64_t last = chunk + 1;  // the first chunk after which the run does not go on
  for (;;) {
    int64_t mine = last + threadIdx.x;
    bool on = mine < chunks.chunks && chunks.End(mine) < chunks.count &&
              keys.At(chunks.order[chunks.End(mine)]) == run;
    int more = __syncthreads_count(on);
    last += more;
    if (more < static_cast<int>(blockDim.x)) break;
  }
  int c = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * N;
  if (c >= chunks.width) return;
  float sum[N];
  for (int i = 0; i < N; ++i) sum[i] = chunks.Part(chunk, 1)[c + i];
  for (int64_t other = chunk + 1; other <= last; ++other) {
    const float* part = chunks.Part(other, 0) + c;
    for (int i = 0; i < N; ++i) sum[i] += part[i];
  }
  PutRow<N>(table, chunks, run, c, sum);
}

// Takes what it is asked for from the workspace, in turn.
struct Room {
  char* at;
  size_t left;
  int* Ints(int64_t count) {
    size_t bytes = (static_cast<size_t>(count) * sizeof(int) + 15) / 16 * 16;
    auto* taken = reinterpret_cast<int*>(at);
    at += bytes;
    left -= bytes;
    return taken;
  }
};

// Enqueues the sort and returns where the positions are.
const int* SortPositions(const Keys& keys, int count, Room* room, const LaunchContext& launch) {
  SortPass pass;
  pass.from = nullptr;
  pass.count = count;
  pass.each =
      static_cast<int>(std::max<int64_t>(256, (count + kMostUnits * 32 - 1) / (kMostUnits * 32) * 32));
  pass.units = (count + pass.each - 1) / pass.each;
  pass.counts = room->Ints(int64_t{kDigits} * pass.units);
  pass.totals = room->Ints(kDigits);
  int* turns[2] = {room->Ints(count), room->Ints(count)};
  int bits = std::bit_width(static_cast<unsigned>(keys.rows)), turn = 0;
  Grid units{.x = static_cast<unsigned>((pass.units + kSortWarps - 1) / kSortWarps),
             .threads = 32 * kSortWarps};
  Grid digits{.x = kDigits / kSortWarps, .threads = 32 * kSortWarps};
  for (pass.shift = 0; pass.shift == 0 || pass.shift < bits; pass.shift += kDigitBits, turn ^= 1) {
    pass.to = turns[turn];
    Launch(CountDigits, units, launch.stream, keys, pass, keys.check && pass.shift == 0, FaultOf(launch, 0));
    Launch(ScanUnits, digits, launch.stream, pass);
    Launch(Scatter, units, launch.stream, keys, pass);
    pass.from = pass.to;
  }
  return pass.from;
}

// Sorts the positions, and adds up what `source` has for them, to x where it is not null.
template <typename Source>
Status SumSorted(const Source& source, const RowKeys& row_keys, int64_t width, const TensorArg* x,
                 const TensorArg& to, const LaunchContext& launch) {
  constexpr int N = Source::kColumns;
  if (Status begun = x ? CopyTo(*x, to, launch) : FillZeros(to, launch); !begun.ok()) return begun;
  const int64_t rows = width > 0 ? to.elements() / width : 0;
  if (rows > INT32_MAX)
    return Status(Cat("sums into ", rows, " places, but a GPU adds to at most ", INT32_MAX));
  Keys keys{row_keys};
  keys.rows = static_cast<int>(rows);
  for (; keys.base < keys.positions; keys.base += kBatch) {
    int count = static_cast<int>(std::min(kBatch, keys.positions - keys.base));
    Room room{static_cast<char*>(launch.workspace), launch.workspace_bytes};
    Chunks chunks;
    chunks.order = SortPositions(keys, count, &room, launch);
    if (to.elements() == 0) continue;
    chunks.count = count;
    chunks.width = static_cast<int>(width);
    chunks.add = x != nullptr || keys.base > 0;
    chunks.parts = reinterpret_cast<float*>(room.at);
    int64_t most = std::max<int64_t>(1, static_cast<int64_t>(room.left / (2 * sizeof(float) * width)));
    chunks.each = std::max<int64_t>(32, (count + most - 1) / most);
    chunks.chunks = static_cast<int>((count + chunks.each - 1) / chunks.each);
    int64_t packs = (width + N - 1) / N;
    Grid grid{.x = static_cast<unsigned>(chunks.chunks)};
    grid.threads = static_cast<unsigned>(std::min<int64_t>(256, (packs + 31) / 32 * 32));
    grid.y = static_cast<unsigned>((packs + grid.threads - 1) / grid.threads);
    Launch(SumChunks<Source>, grid, launch.stream, source, keys, chunks, FloatsOf(to));
    if (chunks.chunks > 1) Launch(JoinParts<N>, grid, launch.stream, keys, chunks, FloatsOf(to));
  }
  return Status();
}

bool Packed(const TensorArg& from, int64_t width, const TensorArg& to) {
  return width * SizeOf(from.dtype) % 16 == 0 && Aligned(from.data) && Aligned(to.data);
}

}  // namespace

RowKeys PlainKeys(const TensorArg& ids, const TensorArg& table) {
  RowKeys keys;
  keys.ids = IndicesOf(ids);
  keys.positions = ids.elements();
  keys.begin = table.begin[0];
  keys.extent = table.extent[0];
  keys.global = table.global[0];
  return keys;
}

Status SumRows(const RowKeys& keys, const TensorArg& from, int64_t width, const TensorArg* x,
               const TensorArg& to, const LaunchContext& launch) {
  Status status;
  WithFloating(from.dtype, [&](auto t) {
    using T = decltype(t);
    if (Packed(from, width, to)) {
      const PlainSource<T, 16 / sizeof(T)> source{from.as<T>(), width};
      status = SumSorted(source, keys, width, x, to, launch);
    } else {
      status = SumSorted(PlainSource<T, 1>{from.as<T>(), width}, keys, width, x, to, launch);
    }
  });
  return status;
}

Status SumBags(const RowKeys& keys, const TensorArg& from, const BagTerms& terms, int64_t width,
               const TensorArg& to, const LaunchContext& launch) {
  if (terms.y.data != nullptr) {
    const GreatestSource source{FloatsOf(from), terms.table, terms.y, keys.ids, width, keys.room};
    return SumSorted(source, keys, width, nullptr, to, launch);
  }
  Status status;
  WithFloating(from.dtype, [&](auto t) {
    using T = decltype(t);
    auto sum = [&](auto source) {
      source.dy = from.as<T>();
      source.width = width;
      source.room = keys.room;
      source.lengths = keys.lengths;
      source.weights = terms.weights;
      source.mean = terms.mean;
      status = SumSorted(source, keys, width, nullptr, to, launch);
    };
    if (Packed(from, width, to)) {
      sum(BagSource<T, 16 / sizeof(T)>{});
    } else {
      sum(BagSource<T, 1>{});
    }
  });
  return status;
}

Status SumRowsByIndex(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &ids = context.in[0], &dtable = context.out[0];
  int64_t width = 1;
  for (int axis = 1; axis < dtable.extent.rank(); ++axis) width *= dtable.extent[axis];
  RowKeys keys = PlainKeys(ids, dtable);
  keys.parts = PartsOf(context.spec.attrs, ids, dtable.global[0]);
  keys.check = keys.parts.places == 0;
  return SumRows(keys, context.in[1], width, nullptr, dtable, launch);
}

}  // namespace oneflow_like::cuda
