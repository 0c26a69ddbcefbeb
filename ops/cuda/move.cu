// Kernels that move elements of any type without looking at them: reshape, transpose, slice, concat, pad,
// broadcast_to, and copies of boxes. Bound by memory: each byte is read once and written once; runs that are
// aligned go in words of 16 bytes, transposes through tiles of 32 by 32 in shared memory, so that both sides
// are runs.
#include <algorithm>
#include <limits>

#include "ops/cuda/kernel.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/move.h"
#include "ops/cuda/walk.h"

namespace oneflow_like::cuda {
namespace {

// --- Device code ---------------------------------------------------------------------------------

struct Word16 {
  uint4 at;
};

struct WalkParams {
  Extents extents;
  Strides from_strides, to_strides;  // in words
  int64_t count;                     // of words
  const void* from;                  // null: `fill` everywhere
  void* to;
  uint4 fill;
  When when;
  const ActState* act;
};

OFL_DEVICE bool IsNow(When when, const ActState* act) {
  return when == When::kAlways || (act->time == 0) == (when == When::kFirst);
}

template <typename W>
OFL_KERNEL void WalkWords(WalkParams p) {
  if (!IsNow(p.when, p.act)) return;
  const W* from = static_cast<const W*>(p.from);
  W* to = static_cast<W*>(p.to);
  W fill = *reinterpret_cast<const W*>(&p.fill);
  int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < p.count; i += step) {
    Place place = PlaceOf(p.extents, i);
    W word = fill;
    if (from != nullptr) word = from[OffsetAt(place, p.extents, p.from_strides)];
    to[OffsetAt(place, p.extents, p.to_strides)] = word;
  }
}

// A matrix of `rows` contiguous in `from` and `columns` contiguous in `to`, for every place of `batch`.
struct TileParams {
  Extents batch;
  Strides from_batch, to_batch;
  int64_t rows, columns, from_stride,
      to_stride;  // from[row + column * from_stride], to[row * to_stride + column]
  int64_t row_tiles, column_tiles, tiles;
  const void* from;
  void* to;
};

constexpr int kTile = 32, kTileRows = 8;

template <typename W>
OFL_KERNEL void TransposeTiles(TileParams p) {
  OFL_SHARED W tile[kTile][kTile + 1];
  int x = static_cast<int>(threadIdx.x) % kTile, y = static_cast<int>(threadIdx.x) / kTile;
  for (int64_t t = blockIdx.x; t < p.tiles; t += gridDim.x) {
    int64_t column_tile, row_tile;
    int64_t rest = Divide(t, p.column_tiles, &column_tile);
    rest = Divide(rest, p.row_tiles, &row_tile);
    Place place = PlaceOf(p.batch, rest);
    const W* from = static_cast<const W*>(p.from) + OffsetAt(place, p.batch, p.from_batch);
    W* to = static_cast<W*>(p.to) + OffsetAt(place, p.batch, p.to_batch);
    int64_t row = row_tile * kTile, column = column_tile * kTile;
    for (int k = y; k < kTile; k += kTileRows) {
      if (row + x < p.rows && column + k < p.columns)
        tile[k][x] = from[row + x + (column + k) * p.from_stride];
    }
    __syncthreads();
    for (int k = y; k < kTile; k += kTileRows) {
      if (row + k < p.rows && column + x < p.columns) to[(row + k) * p.to_stride + column + x] = tile[x][k];
    }
    __syncthreads();
  }
}

// --- Launching -----------------------------------------------------------------------------------

// One copy or fill: to[i . to_strides] = from[i . from_strides] for all indices i of `extents`, in elements.
struct Copy {
  Extents extents;
  Strides strides[2];  // from, to
  const char* from = nullptr;
  char* to = nullptr;
  int64_t size = 1;  // bytes of an element
  uint64_t fill = 0;
  When when = When::kAlways;
};

bool Multiple(const void* data, int64_t of) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(of) == 0;
}

// The widest word, up to 16 bytes, that all runs are made of. REQUIRES: axes are merged.
int64_t WordOf(const Copy& c) {
  int last = c.extents.rank - 1;
  bool runs = c.strides[1].at[last] == 1 && (c.from == nullptr || c.strides[0].at[last] == 1);
  if (!runs) return c.size;
  for (int64_t word = 16; word > c.size; word /= 2) {
    bool fits = c.extents.at[last] * c.size % word == 0 && Multiple(c.to, word) && Multiple(c.from, word);
    for (int axis = 0; fits && axis < last; ++axis) {
      fits = c.strides[1].at[axis] * c.size % word == 0 &&
             (c.from == nullptr || c.strides[0].at[axis] * c.size % word == 0);
    }
    if (fits) return word;
  }
  return c.size;
}

// The pattern of 16 bytes that an element repeats to.
uint4 Repeat(uint64_t element, int64_t size) {
  uint64_t word = element;
  for (int64_t bytes = size; bytes < 8; bytes *= 2) {
    uint64_t low = word & ((uint64_t{1} << (8 * bytes)) - 1);
    word = low | low << (8 * bytes);
  }
  unsigned lo = static_cast<unsigned>(word), hi = static_cast<unsigned>(word >> 32);
  return {lo, hi, lo, hi};
}

void LaunchWords(int64_t word, const WalkParams& p, const LaunchContext& launch) {
  Grid grid{BlocksFor(p.count, 256, launch.multiprocessors), 1, 256, 0};
  switch (word) {
    case 1:
      return Launch(WalkWords<uint8_t>, grid, launch.stream, p);
    case 2:
      return Launch(WalkWords<uint16_t>, grid, launch.stream, p);
    case 4:
      return Launch(WalkWords<uint32_t>, grid, launch.stream, p);
    case 8:
      return Launch(WalkWords<uint64_t>, grid, launch.stream, p);
    default:
      return Launch(WalkWords<Word16>, grid, launch.stream, p);
  }
}

// What the library's copy engine does as well: one run, unconditionally.
bool RunPlain(const Copy& c, const LaunchContext& launch) {
  bool one_run = c.extents.rank == 1 && c.strides[1].at[0] == 1 && c.when == When::kAlways;
  size_t bytes = static_cast<size_t>(c.extents.at[0] * c.size);
  if (!one_run) return false;
  if (c.from != nullptr) {
    if (c.strides[0].at[0] != 1) return false;
    if (c.from != c.to) cudaMemcpyAsync(c.to, c.from, bytes, cudaMemcpyDefault, launch.stream);
    return true;
  }
  uint4 pattern = Repeat(c.fill, c.size);
  unsigned byte = pattern.x & 0xFF;
  if (pattern.x != byte * 0x01010101u || pattern.y != pattern.x) return false;
  cudaMemsetAsync(c.to, static_cast<int>(byte), bytes, launch.stream);
  return true;
}

// Of shorter sides most of a tile's threads would be idle: pictures' three channels.
constexpr int64_t kLeastSide = 8;

// Where the last axis runs in `to` but not in `from`: tiles over it and the axis that runs in `from`.
bool RunTiled(const Copy& c, const LaunchContext& launch) {
  int last = c.extents.rank - 1, run = -1;
  if (c.from == nullptr || c.when != When::kAlways || c.strides[0].at[last] <= 1 ||
      c.strides[1].at[last] != 1)
    return false;
  for (int axis = 0; axis < last; ++axis) {
    if (c.strides[0].at[axis] == 1) run = axis;
  }
  if (run < 0) return false;
  TileParams p{};
  for (int axis = 0; axis < last; ++axis) {
    if (axis == run) continue;
    p.batch.at[p.batch.rank] = c.extents.at[axis];
    p.from_batch.at[p.batch.rank] = c.strides[0].at[axis];
    p.to_batch.at[p.batch.rank++] = c.strides[1].at[axis];
  }
  if (p.batch.rank == 0) p.batch.at[p.batch.rank++] = 1;
  p.rows = c.extents.at[run];
  p.columns = c.extents.at[last];
  if (std::min(p.rows, p.columns) < kLeastSide) return false;
  p.from_stride = c.strides[0].at[last];
  p.to_stride = c.strides[1].at[run];
  p.row_tiles = (p.rows + kTile - 1) / kTile;
  p.column_tiles = (p.columns + kTile - 1) / kTile;
  p.tiles = p.row_tiles * p.column_tiles * p.batch.elements();
  p.from = c.from;
  p.to = c.to;
  Grid grid{BlocksFor(p.tiles, 1, launch.multiprocessors), 1, kTile * kTileRows, 0};
  switch (c.size) {
    case 1:
      Launch(TransposeTiles<uint8_t>, grid, launch.stream, p);
      break;
    case 2:
      Launch(TransposeTiles<uint16_t>, grid, launch.stream, p);
      break;
    case 4:
      Launch(TransposeTiles<uint32_t>, grid, launch.stream, p);
      break;
    default:
      Launch(TransposeTiles<uint64_t>, grid, launch.stream, p);
  }
  return true;
}

void Run(Copy c, const LaunchContext& launch) {
  if (c.extents.elements() == 0) return;
  if (c.from == nullptr) c.strides[0] = c.strides[1];
  MergeAxes(&c.extents, c.strides, 2);
  if (RunPlain(c, launch) || RunTiled(c, launch)) return;
  int64_t word = WordOf(c);
  WalkParams p{};
  p.extents = c.extents;
  p.from_strides = c.strides[0];
  p.to_strides = c.strides[1];
  int last = p.extents.rank - 1;
  if (word != c.size) {
    p.extents.at[last] = p.extents.at[last] * c.size / word;
    for (int axis = 0; axis < last; ++axis) {
      p.from_strides.at[axis] = p.from_strides.at[axis] * c.size / word;
      p.to_strides.at[axis] = p.to_strides.at[axis] * c.size / word;
    }
  }
  p.count = p.extents.elements();
  p.from = c.from;
  p.to = c.to;
  p.fill = Repeat(c.fill, c.size);
  p.when = c.when;
  p.act = launch.act;
  LaunchWords(word, p, launch);
}

int64_t Bytes(const TensorArg& arg) { return static_cast<int64_t>(SizeOf(arg.dtype)); }

// `count` indices of one axis, from index `from_at` of x (or zeros, without x) to index `to_at` of y;
// neighbours are `from_step` apart in x, `to_step` in y.
void CopyAlong(const TensorArg* x, const TensorArg& y, int axis, int64_t from_at, int64_t to_at,
               int64_t count, const LaunchContext& launch, int64_t from_step = 1, int64_t to_step = 1) {
  Copy c;
  c.size = Bytes(y);
  c.extents = ExtentsOf(y.extent);
  c.extents.at[axis] = count;
  c.strides[1] = StridesOf(y.extent);
  c.to = y.as<char>() + to_at * c.strides[1].at[axis] * c.size;
  if (x != nullptr) {
    c.strides[0] = StridesOf(x->extent);
    c.from = x->as<char>() + from_at * c.strides[0].at[axis] * c.size;
    c.strides[0].at[axis] *= from_step;
  }
  c.strides[1].at[axis] *= to_step;
  Run(c, launch);
}

// --- Kernels -------------------------------------------------------------------------------------

Status CopyAll(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  Copy c{{1, {y.elements()}}, {{{1}}, {{1}}}, x.as<char>(), y.as<char>(), Bytes(y)};
  Run(c, launch);
  return Status();
}

// y's index space with strides of x for each of its axes.
Status CopyWith(const KernelContext& context, const Strides& from, const LaunchContext& launch) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  Run({ExtentsOf(y.extent), {from, StridesOf(y.extent)}, x.as<char>(), y.as<char>(), Bytes(y)}, launch);
  return Status();
}

Status Transpose(const KernelContext& context, const LaunchContext& launch) {
  Strides own = StridesOf(context.in[0].extent), from{};
  const std::vector<int64_t>& order = context.spec.attrs.Ints("order");
  for (size_t axis = 0; axis < order.size(); ++axis) from.at[axis] = own.at[order[axis]];
  return CopyWith(context, from, launch);
}

Status BroadcastTo(const KernelContext& context, const LaunchContext& launch) {
  return CopyWith(context, BroadcastStrides(context.in[0].extent, context.out[0].extent.rank()), launch);
}

int AxisOf(const KernelContext& context) { return static_cast<int>(context.spec.attrs.Int("axis")); }

Status SliceAxis(const KernelContext& context, const LaunchContext& launch) {
  int axis = AxisOf(context);
  CopyAlong(&context.in[0], context.out[0], axis, context.spec.attrs.Int("begin"), 0,
            context.out[0].extent[axis], launch, context.spec.attrs.Int("step", 1));
  return Status();
}

Status Concat(const KernelContext& context, const LaunchContext& launch) {
  int axis = AxisOf(context);
  int64_t at = 0;
  for (const TensorArg& x : context.in) {
    CopyAlong(&x, context.out[0], axis, 0, at, x.extent[axis], launch);
    at += x.extent[axis];
  }
  return Status();
}

Status Pad(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  int axis = AxisOf(context);
  int64_t before = context.spec.attrs.Int("before"), held = x.extent[axis];
  if (int64_t step = context.spec.attrs.Int("step", 1); step != 1) {
    CopyAlong(nullptr, y, axis, 0, 0, y.extent[axis], launch);
    CopyAlong(&x, y, axis, 0, before, held, launch, 1, step);
    return Status();
  }
  CopyAlong(nullptr, y, axis, 0, 0, before, launch);
  CopyAlong(&x, y, axis, 0, before, held, launch);
  CopyAlong(nullptr, y, axis, 0, before + held, y.extent[axis] - before - held, launch);
  return Status();
}

template <typename T>
ElementBits BitsOfValue(T value) {
  ElementBits element;
  __builtin_memcpy(&element.bits, &value, sizeof(T));
  return element;
}

int64_t OffsetIn(const Piece& piece, const Box& box) {
  int64_t offset = 0;
  for (int i = 0; i < box.begin.rank(); ++i) {
    offset = offset * piece.box.extent[i] + box.begin[i] - piece.box.begin[i];
  }
  return offset;
}

}  // namespace

ElementBits BitsOf(DType dtype, double value) {
  switch (dtype) {
    case DType::kBFloat16:
      return BitsOfValue(ToBFloat16(static_cast<float>(value)));
    case DType::kFloat16:
      return BitsOfValue(ToFloat16(static_cast<float>(value)));
    case DType::kInt32:
      return BitsOfValue(static_cast<int32_t>(value));
    case DType::kInt64:
      return BitsOfValue(static_cast<int64_t>(value));
    case DType::kUInt8:
      return BitsOfValue(static_cast<uint8_t>(value));
    case DType::kBool:
      return BitsOfValue(static_cast<uint8_t>(value != 0));
    default:
      return BitsOfValue(static_cast<float>(value));
  }
}

ElementBits IdentityOf(DType dtype, Reduce reduce) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (reduce != Reduce::kMax && reduce != Reduce::kMin) return {};
  bool max = reduce == Reduce::kMax;
  switch (dtype) {
    case DType::kInt32:
      return BitsOfValue(max ? std::numeric_limits<int32_t>::lowest() : std::numeric_limits<int32_t>::max());
    case DType::kInt64:
      return BitsOfValue(max ? std::numeric_limits<int64_t>::lowest() : std::numeric_limits<int64_t>::max());
    case DType::kUInt8:
      return BitsOf(dtype, max ? 0 : 255);
    case DType::kBool:
      return BitsOf(dtype, max ? 0 : 1);
    default:
      return BitsOf(dtype, max ? -kInfinity : kInfinity);
  }
}

void LaunchCopyBox(DType dtype, const Box& box, const Piece& from, const Piece& to, When when,
                   const LaunchContext& launch) {
  int64_t size = static_cast<int64_t>(SizeOf(dtype));
  Copy c{ExtentsOf(box.extent),
         {StridesOf(from.box.extent), StridesOf(to.box.extent)},
         static_cast<const char*>(from.data) + OffsetIn(from, box) * size,
         static_cast<char*>(to.data) + OffsetIn(to, box) * size,
         size,
         0,
         when};
  Run(c, launch);
}

void LaunchFillBox(DType dtype, const Box& box, ElementBits element, const Piece& to, When when,
                   const LaunchContext& launch) {
  int64_t size = static_cast<int64_t>(SizeOf(dtype));
  Copy c{ExtentsOf(box.extent),
         {{}, StridesOf(to.box.extent)},
         nullptr,
         static_cast<char*>(to.data) + OffsetIn(to, box) * size,
         size,
         element.bits,
         when};
  Run(c, launch);
}

void LaunchZeroFirst(const TensorArg& piece, const LaunchContext& launch) {
  const Box box{piece.begin, piece.extent};
  LaunchFillBox(piece.dtype, box, {}, {piece.data, box}, When::kFirst, launch);
}

void AddMoveKernels(KernelRegistry* registry) {
  auto add = [registry](const char* name, LaunchFn fn) { registry->Add(name, "cuda", MakeLaunchKernel(fn)); };
  add("identity", CopyAll);
  add("stop_gradient", CopyAll);
  add("copy", CopyAll);
  add("to_host", CopyAll);
  add("from_host", CopyAll);
  add("reshape", CopyAll);
  add("whole_batch", CopyAll);
  add("exchange", CopyAll);
  add("transpose", Transpose);
  add("broadcast_to", BroadcastTo);
  add("slice", SliceAxis);
  add("concat", Concat);
  add("pad", Pad);
}

}  // namespace oneflow_like::cuda
