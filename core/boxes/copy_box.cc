// Copying and combining boxes. Trailing axes that every piece holds whole are walked as one run: a run is a
// memcpy when copying, a vector loop over a block in the first-level cache when combining.
#include "core/boxes/copy_box.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/error.h"
#include "core/float16.h"

namespace oneflow_like {
namespace {

// Position in a piece's memory, in elements, of a global index.
int64_t Offset(const Piece& piece, const Dims& at) {
  int64_t offset = 0;
  for (int i = 0; i < at.rank(); ++i) offset = offset * piece.box.extent[i] + at[i] - piece.box.begin[i];
  return offset;
}

// Raises `outer`, the number of leading axes walked one index at a time, to what this piece needs: all axes
// from there on are one run of its memory.
int OuterAxes(const Box& box, const Piece& piece, int outer) {
  int rank = box.extent.rank(), needed = rank;
  while (needed > 0 && box.extent[needed - 1] == piece.box.extent[needed - 1]) --needed;
  // Axis needed-1 is held in part: its indices are still one run together with the whole axes behind it.
  return std::max(outer, std::max(0, needed - 1));
}

int64_t RunLength(const Box& box, int outer) {
  int64_t run = 1;
  for (int i = outer; i < box.extent.rank(); ++i) run *= box.extent[i];
  return run;
}

// Steps `at` to the next index of the leading `outer` axes of `box`; false after the last.
bool Next(const Box& box, int outer, Dims* at) {
  for (int i = outer - 1; i >= 0; --i) {
    if (++(*at)[i] < box.begin[i] + box.extent[i]) return true;
    (*at)[i] = box.begin[i];
  }
  return false;
}

// `count` runs of kBytes each (of `bytes` when kBytes is 0), at constant strides.
template <int kBytes>
void CopyRuns(const char* from, int64_t from_stride, char* to, int64_t to_stride, int64_t count,
              size_t bytes) {
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * to_stride, from + i * from_stride, kBytes == 0 ? bytes : kBytes);
  }
}

using CopyRunsFn = void (*)(const char*, int64_t, char*, int64_t, int64_t, size_t);

CopyRunsFn SelectCopyRuns(size_t bytes) {
  switch (bytes) {
    case 1:
      return CopyRuns<1>;
    case 2:
      return CopyRuns<2>;
    case 4:
      return CopyRuns<4>;
    case 8:
      return CopyRuns<8>;
    case 16:
      return CopyRuns<16>;
    case 32:
      return CopyRuns<32>;
    case 64:
      return CopyRuns<64>;
    default:
      return CopyRuns<0>;
  }
}

int64_t Stride(const Piece& piece, int axis) {
  int64_t stride = 1;
  for (int i = axis + 1; i < piece.box.extent.rank(); ++i) stride *= piece.box.extent[i];
  return stride;
}

void CheckInside(const Box& box, const Piece& piece) {
  CHECK_EQ(box.extent.rank(), piece.box.extent.rank());
  for (int i = 0; i < box.extent.rank(); ++i) {
    CHECK(box.begin[i] >= piece.box.begin[i] &&
          box.begin[i] + box.extent[i] <= piece.box.begin[i] + piece.box.extent[i])
        << "box " << box.str() << " is not inside piece " << piece.box.str();
  }
}

// How each element type is held in memory, added up, and rounded.
template <typename Stored, typename Sum>
struct Plain {
  using Memory = Stored;
  using Accumulator = Sum;
  static Sum Load(Stored value) { return static_cast<Sum>(value); }
  static Stored Store(Sum value) { return static_cast<Stored>(value); }
  static constexpr Sum kLeast = static_cast<Sum>(std::numeric_limits<Stored>::lowest());
  static constexpr Sum kGreatest = static_cast<Sum>(std::numeric_limits<Stored>::max());
};
struct AsF32 : Plain<float, float> {
  static constexpr float kLeast = -std::numeric_limits<float>::infinity();
  static constexpr float kGreatest = std::numeric_limits<float>::infinity();
};
struct AsBF16 : AsF32 {
  using Memory = BFloat16;
  static float Load(BFloat16 value) { return ToFloat(value); }
  static BFloat16 Store(float value) { return ToBFloat16(value); }
};
struct AsF16 : AsF32 {
  using Memory = Float16;
  static float Load(Float16 value) { return ToFloat(value); }
  static Float16 Store(float value) { return ToFloat16(value); }
};
using AsI32 = Plain<int32_t, int32_t>;
using AsI64 = Plain<int64_t, int64_t>;
using AsU8 = Plain<uint8_t, uint8_t>;
// A sum of truth values is "any": combined as the maximum of 0 and 1.
struct AsBool : Plain<uint8_t, uint8_t> {
  static constexpr uint8_t kGreatest = 1;
};

struct SumOp {
  static float Apply(float a, float b) { return a + b; }
  // Integers wrap around: added as unsigned, since signed overflow is undefined.
  static int32_t Apply(int32_t a, int32_t b) {
    return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
  }
  static int64_t Apply(int64_t a, int64_t b) {
    return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  }
  static uint8_t Apply(uint8_t a, uint8_t b) { return static_cast<uint8_t>(a + b); }
  template <typename As>
  static typename As::Accumulator Identity() {
    return 0;
  }
};
// A NaN on either side wins.
struct MaxOp {
  template <typename T>
  static T Apply(T a, T b) {
    return a < b || b != b ? b : a;
  }
  template <typename As>
  static typename As::Accumulator Identity() {
    return As::kLeast;
  }
};
struct MinOp {
  template <typename T>
  static T Apply(T a, T b) {
    return b < a || b != b ? b : a;
  }
  template <typename As>
  static typename As::Accumulator Identity() {
    return As::kGreatest;
  }
};

// Every block reads all sources before it writes any destination, so a destination may be a source's memory.
template <typename As, typename Op>
void CombineRuns(const Box& box, const Piece* from, int num_from, const Piece* to, int num_to) {
  using T = typename As::Memory;
  using A = typename As::Accumulator;
  constexpr int64_t kBlock = 1024;
  alignas(64) A sum[kBlock];
  int outer = 0;
  for (int i = 0; i < num_from; ++i) outer = OuterAxes(box, from[i], outer);
  for (int i = 0; i < num_to; ++i) outer = OuterAxes(box, to[i], outer);
  int64_t run = RunLength(box, outer);
  Dims at = box.begin;
  do {
    for (int64_t first = 0; first < run; first += kBlock) {
      int64_t n = std::min(kBlock, run - first);
      if (num_from == 0) std::fill(sum, sum + n, Op::template Identity<As>());
      for (int s = 0; s < num_from; ++s) {
        const T* in = static_cast<const T*>(from[s].data) + Offset(from[s], at) + first;
        if (s == 0) {
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) sum[i] = As::Load(in[i]);
        } else {
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) sum[i] = Op::Apply(sum[i], As::Load(in[i]));
        }
      }
      for (int d = 0; d < num_to; ++d) {
        T* out = static_cast<T*>(to[d].data) + Offset(to[d], at) + first;
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) out[i] = As::Store(sum[i]);
      }
    }
  } while (Next(box, outer, &at));
}

template <typename As>
void CombineAs(Reduce reduce, const Box& box, const Piece* from, int num_from, const Piece* to, int num_to) {
  switch (reduce) {
    case Reduce::kMax:
      return CombineRuns<As, MaxOp>(box, from, num_from, to, num_to);
    case Reduce::kMin:
      return CombineRuns<As, MinOp>(box, from, num_from, to, num_to);
    default:
      return CombineRuns<As, SumOp>(box, from, num_from, to, num_to);
  }
}

}  // namespace

const char* Name(Reduce reduce) {
  static const char* const names[] = {"", "sum", "max", "min"};
  return names[static_cast<int>(reduce)];
}

Reduce ParseReduce(const std::string& name) {
  for (Reduce reduce : {Reduce::kNone, Reduce::kSum, Reduce::kMax, Reduce::kMin}) {
    if (name == Name(reduce)) return reduce;
  }
  Fail("\"", name, "\" is no reduction: write sum, max or min");
}

void CopyBox(DType dtype, const Box& box, const Piece& from, const Piece& to) {
  CheckInside(box, from);
  CheckInside(box, to);
  if (box.empty()) return;
  int64_t size = static_cast<int64_t>(SizeOf(dtype));
  int outer = OuterAxes(box, to, OuterAxes(box, from, 0));
  size_t bytes = static_cast<size_t>(RunLength(box, outer) * size);
  const char* source = static_cast<const char*>(from.data);
  char* target = static_cast<char*>(to.data);
  // The innermost of the outer axes is a tight loop at constant strides.
  int walked = std::max(0, outer - 1);
  int64_t count = outer > 0 ? box.extent[walked] : 1;
  int64_t from_stride = outer > 0 ? Stride(from, walked) * size : 0;
  int64_t to_stride = outer > 0 ? Stride(to, walked) * size : 0;
  CopyRunsFn copy = SelectCopyRuns(bytes);
  Dims at = box.begin;
  do {
    const char* first = source + Offset(from, at) * size;
    char* destination = target + Offset(to, at) * size;
    if (first != destination) copy(first, from_stride, destination, to_stride, count, bytes);
  } while (Next(box, walked, &at));
}

void CombineBox(DType dtype, Reduce reduce, const Box& box, const Piece* from, int num_from, const Piece* to,
                int num_to) {
  CHECK(reduce != Reduce::kNone || num_from <= 1) << "pieces can be copied from one source only";
  if (num_from == 1) {
    for (int i = 0; i < num_to; ++i) CopyBox(dtype, box, from[0], to[i]);
    return;
  }
  for (int i = 0; i < num_from; ++i) CheckInside(box, from[i]);
  for (int i = 0; i < num_to; ++i) CheckInside(box, to[i]);
  if (box.empty()) return;
  switch (dtype) {
    case DType::kFloat32:
      return CombineAs<AsF32>(reduce, box, from, num_from, to, num_to);
    case DType::kBFloat16:
      return CombineAs<AsBF16>(reduce, box, from, num_from, to, num_to);
    case DType::kFloat16:
      return CombineAs<AsF16>(reduce, box, from, num_from, to, num_to);
    case DType::kInt32:
      return CombineAs<AsI32>(reduce, box, from, num_from, to, num_to);
    case DType::kInt64:
      return CombineAs<AsI64>(reduce, box, from, num_from, to, num_to);
    case DType::kUInt8:
      return CombineAs<AsU8>(reduce, box, from, num_from, to, num_to);
    case DType::kBool:
      if (reduce == Reduce::kSum) reduce = Reduce::kMax;
      return CombineAs<AsBool>(reduce, box, from, num_from, to, num_to);
  }
}

CountedBox CutAtCount(const Box& box, int axis, int64_t count) {
  CountedBox cut{box, box};
  const int64_t rows = std::clamp<int64_t>(count - box.begin[axis], 0, box.extent[axis]);
  cut.moved.extent[axis] = rows;
  cut.behind.begin[axis] += rows;
  cut.behind.extent[axis] -= rows;
  return cut;
}

}  // namespace oneflow_like
