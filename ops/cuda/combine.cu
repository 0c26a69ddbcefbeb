// Combining boxes: pieces that several ranks hold are added up (or the greatest or least taken) in the order
// given, in fp32 for 16-bit types and rounded once, so that every mesh and every device gives the same bits.
// Bound by memory or the link to it: each source is read once, each destination written once, 16 bytes at a
// time where runs allow.
#include <glog/logging.h>

#include <algorithm>

#include "ops/cuda/combine.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/move.h"
#include "ops/cuda/walk.h"

namespace oneflow_like::cuda {
namespace {

constexpr int kMostTargets = 8;

// Sources by value: 18 KB at most, of the 32 KB that a launch may bring.
template <int N>
struct CombineParams {
  Extents extents;  // in packs when `packed`
  int64_t count;
  int32_t sources, targets;
  int32_t packed;
  Reduce reduce;
  int32_t skip;         // sources left out in the first micro-batch
  const ActState* act;  // null: none is ever left out
  void* to[kMostTargets];
  Strides to_strides[kMostTargets];
  const void* from[N];
  Strides from_strides[N];
};

// --- Elements: memory type, accumulator, conversions

template <typename Memory, typename Accumulator = Memory>
struct Elements {
  using T = Memory;
  using A = Accumulator;
};
using AsF32 = Elements<float>;
using AsBF16 = Elements<BFloat16, float>;
using AsF16 = Elements<Float16, float>;
using AsI32 = Elements<int32_t>;
using AsI64 = Elements<int64_t>;
using AsU8 = Elements<uint8_t>;
using AsU16 = Elements<uint16_t>;  // bytes of 16-bit types, to copy them

OFL_DEVICE float Take(float x) { return x; }
OFL_DEVICE float Take(BFloat16 x) { return Load(x); }
OFL_DEVICE float Take(Float16 x) { return Load(x); }
OFL_DEVICE int32_t Take(int32_t x) { return x; }
OFL_DEVICE int64_t Take(int64_t x) { return x; }
OFL_DEVICE uint8_t Take(uint8_t x) { return x; }
OFL_DEVICE uint16_t Take(uint16_t x) { return x; }
OFL_DEVICE void Give(float* to, float x) { *to = x; }
OFL_DEVICE void Give(BFloat16* to, float x) { *to = Store<BFloat16>(x); }
OFL_DEVICE void Give(Float16* to, float x) { *to = Store<Float16>(x); }
OFL_DEVICE void Give(int32_t* to, int32_t x) { *to = x; }
OFL_DEVICE void Give(int64_t* to, int64_t x) { *to = x; }
OFL_DEVICE void Give(uint8_t* to, uint8_t x) { *to = x; }
OFL_DEVICE void Give(uint16_t* to, uint16_t x) { *to = x; }

OFL_DEVICE float Sum(float a, float b) { return a + b; }
OFL_DEVICE int32_t Sum(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}
OFL_DEVICE int64_t Sum(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
OFL_DEVICE uint8_t Sum(uint8_t a, uint8_t b) { return static_cast<uint8_t>(a + b); }
OFL_DEVICE uint16_t Sum(uint16_t a, uint16_t b) { return static_cast<uint16_t>(a + b); }

// A NaN on either side wins.
template <typename A>
OFL_DEVICE A Fold(Reduce reduce, A a, A b) {
  if (reduce == Reduce::kMax) return a < b || b != b ? b : a;
  if (reduce == Reduce::kMin) return b < a || b != b ? b : a;
  return Sum(a, b);
}

template <typename As, int N, int kWidth>
OFL_DEVICE void CombineAt(const CombineParams<N>& p, int first, int64_t i) {
  using T = typename As::T;
  using Words = Pack<T, kWidth>;
  Place place = PlaceOf(p.extents, i);
  typename As::A total[kWidth];
  Words words = static_cast<const Words*>(p.from[first])[OffsetAt(place, p.extents, p.from_strides[first])];
  OFL_UNROLL
  for (int e = 0; e < kWidth; ++e) total[e] = Take(words.at[e]);
  for (int s = first + 1; s < p.sources; ++s) {
    words = static_cast<const Words*>(p.from[s])[OffsetAt(place, p.extents, p.from_strides[s])];
    OFL_UNROLL
    for (int e = 0; e < kWidth; ++e) total[e] = Fold(p.reduce, total[e], Take(words.at[e]));
  }
  OFL_UNROLL
  for (int e = 0; e < kWidth; ++e) Give(&words.at[e], total[e]);
  for (int d = 0; d < p.targets; ++d) {
    static_cast<Words*>(p.to[d])[OffsetAt(place, p.extents, p.to_strides[d])] = words;
  }
}

template <typename As, int N>
OFL_KERNEL void CombineKernel(CombineParams<N> p) {
  int first = p.act != nullptr && p.act->time == 0 ? p.skip : 0;
  int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < p.count; i += step) {
    if (p.packed) {
      CombineAt<As, N, 16 / sizeof(typename As::T)>(p, first, i);
    } else {
      CombineAt<As, N, 1>(p, first, i);
    }
  }
}

// --- Launching

struct Job {
  DType dtype;
  Reduce reduce;
  Box box;
  std::span<const Piece> from;
  std::span<const Piece> to;  // at most kMostTargets
  int skip = 0;
  const ActState* act = nullptr;
};

int64_t ByteOffset(const Piece& piece, const Box& box, int64_t size) {
  int64_t offset = 0;
  for (int i = 0; i < box.begin.rank(); ++i) {
    offset = offset * piece.box.extent[i] + box.begin[i] - piece.box.begin[i];
  }
  return offset * size;
}

// Makes packs of 16 bytes the elements of the walk, where every piece has whole ones at every place.
template <int N>
void TryPacks(CombineParams<N>* p, Strides* strides, const void* const* data, int pieces, int64_t size) {
  int64_t width = 16 / size;
  int last = p->extents.rank - 1;
  if (p->extents.at[last] % width != 0) return;
  for (int i = 0; i < pieces; ++i) {
    if (strides[i].at[last] != 1 || reinterpret_cast<uintptr_t>(data[i]) % 16 != 0) return;
    for (int axis = 0; axis < last; ++axis) {
      if (strides[i].at[axis] % width != 0) return;
    }
  }
  p->packed = 1;
  p->extents.at[last] /= width;
  for (int i = 0; i < pieces; ++i) {
    for (int axis = 0; axis < last; ++axis) strides[i].at[axis] /= width;
  }
}

template <int N>
void LaunchJob(const Job& job, cudaStream_t stream, int multiprocessors) {
  int64_t size = static_cast<int64_t>(SizeOf(job.dtype));
  CombineParams<N> p{};
  Strides strides[N + kMostTargets];
  const void* data[N + kMostTargets];
  int pieces = 0;
  auto add = [&](const Piece& piece) {
    strides[pieces] = StridesOf(piece.box.extent);
    data[pieces++] = static_cast<const char*>(piece.data) + ByteOffset(piece, job.box, size);
  };
  for (const Piece& piece : job.from) add(piece);
  for (const Piece& piece : job.to) add(piece);
  p.sources = static_cast<int32_t>(job.from.size());
  p.targets = static_cast<int32_t>(job.to.size());
  p.reduce = job.dtype == DType::kBool && job.reduce == Reduce::kSum ? Reduce::kMax : job.reduce;
  p.skip = job.skip;
  p.act = job.act;
  p.extents = ExtentsOf(job.box.extent);
  MergeAxes(&p.extents, strides, pieces);
  TryPacks(&p, strides, data, pieces, size);
  p.count = p.extents.elements();
  for (int i = 0; i < p.sources; ++i) {
    p.from[i] = data[i];
    p.from_strides[i] = strides[i];
  }
  for (int i = 0; i < p.targets; ++i) {
    p.to[i] = const_cast<void*>(data[p.sources + i]);
    p.to_strides[i] = strides[p.sources + i];
  }
  Grid grid{BlocksFor(p.count, 256, multiprocessors), 1, 256, 0};
  if (size == 2 && p.sources == 1) return Launch(CombineKernel<AsU16, N>, grid, stream, p);
  switch (job.dtype) {
    case DType::kFloat32:
      return Launch(CombineKernel<AsF32, N>, grid, stream, p);
    case DType::kBFloat16:
      return Launch(CombineKernel<AsBF16, N>, grid, stream, p);
    case DType::kFloat16:
      return Launch(CombineKernel<AsF16, N>, grid, stream, p);
    case DType::kInt32:
      return Launch(CombineKernel<AsI32, N>, grid, stream, p);
    case DType::kInt64:
      return Launch(CombineKernel<AsI64, N>, grid, stream, p);
    default:
      return Launch(CombineKernel<AsU8, N>, grid, stream, p);
  }
}

void Run(const Job& job, cudaStream_t stream, int multiprocessors) {
  if (job.from.size() <= 8) {
    LaunchJob<8>(job, stream, multiprocessors);
  } else {
    LaunchJob<kMostCombined>(job, stream, multiprocessors);
  }
}

}  // namespace

void LaunchCombine(cudaStream_t stream, DType dtype, Reduce reduce, const Box& box,
                   std::span<const Piece> from, std::span<const Piece> to, int multiprocessors) {
  CHECK(reduce != Reduce::kNone || from.size() <= 1) << "pieces can be copied from one source only";
  CHECK_LE(from.size(), static_cast<size_t>(kMostCombined));
  if (box.empty() || to.empty()) return;
  LaunchContext launch;
  launch.stream = stream;
  launch.multiprocessors = multiprocessors;
  if (from.empty()) {
    for (const Piece& piece : to)
      LaunchFillBox(dtype, box, IdentityOf(dtype, reduce), piece, When::kAlways, launch);
    return;
  }
  std::span<const Piece> first = to;
  if (from.size() > 1) {
    first = to.first(std::min<size_t>(to.size(), kMostTargets));
    Run({dtype, reduce, box, from, first}, stream, multiprocessors);
    // The rest copy the result: a source may by now have been overwritten by it.
    for (const Piece& piece : to.subspan(first.size())) {
      LaunchCopyBox(dtype, box, to[0], piece, When::kAlways, launch);
    }
    return;
  }
  for (size_t done = 0; done < to.size(); done += kMostTargets) {
    std::span<const Piece> some = to.subspan(done, std::min<size_t>(kMostTargets, to.size() - done));
    if (some.size() == 1) {
      if (some[0].data != from[0].data || !(some[0].box == from[0].box)) {
        LaunchCopyBox(dtype, box, from[0], some[0], When::kAlways, launch);
      }
    } else {
      Run({dtype, reduce, box, from, some}, stream, multiprocessors);
    }
  }
}

void LaunchAccumulate(DType dtype, Reduce reduce, const Box& box, std::span<const Piece> from,
                      const Piece& to, const LaunchContext& launch) {
  if (box.empty()) return;
  Run({dtype, reduce, box, from, {&to, 1}, 1, launch.act}, launch.stream, launch.multiprocessors);
}

}  // namespace oneflow_like::cuda
