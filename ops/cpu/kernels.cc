// Helpers shared by the CPU kernels: fallbacks, strided copies, blocks of random bits.
#include "ops/cpu/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/random.h"
#include "ops/op.h"

namespace oneflow_like::cpu {

KernelPtr MakeReference(const KernelSpec& spec) {
  return MakeFunctionKernel(BuiltinCatalog().Get(spec.name).reference)(spec);
}

bool AllFloat(const KernelSpec& spec) {
  auto is_float = [](const TensorArg& arg) { return arg.dtype == DType::kFloat32; };
  return std::all_of(spec.in.begin(), spec.in.end(), is_float) &&
         std::all_of(spec.out.begin(), spec.out.end(), is_float);
}

KernelFactory ForFloat(KernelFn fn) {
  return [fn](const KernelSpec& spec) { return AllFloat(spec) ? MakeFunctionKernel(fn)(spec) : MakeReference(spec); };
}

void CopyRuns(void* to, int64_t to_stride, const void* from, int64_t from_stride, int64_t rows, int64_t bytes) {
  if (bytes == 0 || rows == 0) return;
  char* out = static_cast<char*>(to);
  const char* in = static_cast<const char*>(from);
  if (rows == 1 || (to_stride == bytes && from_stride == bytes)) {
    ParallelFor(rows * bytes, 8 * kGrain, [&](int64_t b, int64_t e) { std::memcpy(out + b, in + b, e - b); });
    return;
  }
  ParallelFor(rows, RowGrain(bytes / 8), [&](int64_t b, int64_t e) {
    for (int64_t i = b; i < e; ++i) std::memcpy(out + i * to_stride, in + i * from_stride, bytes);
  });
}

void FillZero(void* data, int64_t bytes) {
  ParallelFor(bytes, 8 * kGrain,
              [&](int64_t b, int64_t e) { std::memset(static_cast<char*>(data) + b, 0, e - b); });
}

namespace {

// A permuted copy with extents of 1 dropped and axes merged that run through both sides alike.
struct Walk {
  int rank = 0;
  int64_t extent[Dims::kMaxRank], from[Dims::kMaxRank], to[Dims::kMaxRank];
};

Walk MakeWalk(const Dims& extent, const Dims& strides) {
  Walk w;
  for (int axis = 0; axis < extent.rank(); ++axis) {
    if (extent[axis] == 1) continue;
    if (w.rank > 0 && w.from[w.rank - 1] == strides[axis] * extent[axis]) {
      w.extent[w.rank - 1] *= extent[axis];
      w.from[w.rank - 1] = strides[axis];
      continue;
    }
    w.extent[w.rank] = extent[axis];
    w.from[w.rank] = strides[axis];
    ++w.rank;
  }
  if (w.rank == 0) {
    w.rank = 1;
    w.extent[0] = w.from[0] = 1;
  }
  int64_t stride = 1;
  for (int i = w.rank - 1; i >= 0; --i) {
    w.to[i] = stride;
    stride *= w.extent[i];
  }
  return w;
}

// A plane of a permuted copy: `rows` along one axis, `columns` along the last of `to`; in tiles, so that the lines of
// both sides stay in the first-level cache while they are used.
template <typename T>
void CopyPlane(T* to, int64_t to_row, const T* from, int64_t from_row, int64_t from_column, int64_t rows,
               int64_t columns) {
  constexpr int64_t kTile = 16;
  if (from_column == 1 || from_column == 0) {
    for (int64_t r = 0; r < rows; ++r) {
      if (from_column == 1) {
        std::memcpy(to + r * to_row, from + r * from_row, columns * sizeof(T));
      } else {
        std::fill_n(to + r * to_row, columns, from[r * from_row]);
      }
    }
    return;
  }
  for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
    int64_t r1 = std::min(rows, r0 + kTile);
    for (int64_t c0 = 0; c0 < columns; c0 += kTile) {
      int64_t c1 = std::min(columns, c0 + kTile);
      for (int64_t r = r0; r < r1; ++r) {
        for (int64_t c = c0; c < c1; ++c) to[r * to_row + c] = from[r * from_row + c * from_column];
      }
    }
  }
}

template <typename T>
void PermuteTyped(T* to, const T* from, const Dims& extent, const Dims& strides) {
  Walk w = MakeWalk(extent, strides);
  int last = w.rank - 1;
  // The plane's other axis is the one along which the source is densest; the rest are walked one by one.
  int row = -1;
  for (int i = 0; i < last; ++i) {
    if (row < 0 || (w.from[i] != 0 && w.from[i] < w.from[row])) row = i;
  }
  int64_t rows = row < 0 ? 1 : w.extent[row], columns = w.extent[last];
  constexpr int64_t kBand = 64;
  int64_t bands = (rows + kBand - 1) / kBand, planes = extent.elements() / std::max<int64_t>(1, rows * columns);
  ParallelFor(planes * bands, RowGrain(columns * std::min(rows, kBand)), [&](int64_t b, int64_t e) {
    for (int64_t i = b; i < e; ++i) {
      int64_t rest = i / bands, r0 = i % bands * kBand;
      T* t = to + (row < 0 ? 0 : r0 * w.to[row]);
      const T* f = from + (row < 0 ? 0 : r0 * w.from[row]);
      for (int axis = last - 1; axis >= 0; --axis) {
        if (axis == row) continue;
        int64_t index = rest % w.extent[axis];
        rest /= w.extent[axis];
        t += index * w.to[axis];
        f += index * w.from[axis];
      }
      CopyPlane(t, row < 0 ? 0 : w.to[row], f, row < 0 ? 0 : w.from[row], w.from[last], std::min(kBand, rows - r0),
                columns);
    }
  });
}

}  // namespace

void PermuteCopy(void* to, const void* from, const Dims& extent, const Dims& strides, int64_t size) {
  if (extent.elements() == 0) return;
  auto run = [&](auto t) {
    using T = decltype(t);
    PermuteTyped(static_cast<T*>(to), static_cast<const T*>(from), extent, strides);
  };
  switch (size) {
    case 1: return run(uint8_t{});
    case 2: return run(uint16_t{});
    case 4: return run(uint32_t{});
    default: return run(uint64_t{});
  }
}

void FillRandomBits(uint64_t key, uint64_t step, uint64_t first, int64_t n, uint32_t* bits) {
  constexpr int kBlocks = 32;  // Philox blocks of four at once: the rounds vectorise over them
  while (n > 0) {
    uint64_t base = first >> 2;
    int skip = static_cast<int>(first & 3);
    uint32_t v[kBlocks * 4];
#pragma omp simd
    for (int i = 0; i < kBlocks; ++i) {
      Philox4 p = Philox(key, base + i, step);
      v[i * 4] = p.v[0];
      v[i * 4 + 1] = p.v[1];
      v[i * 4 + 2] = p.v[2];
      v[i * 4 + 3] = p.v[3];
    }
    int64_t take = std::min<int64_t>(n, kBlocks * 4 - skip);
    std::memcpy(bits, v + skip, take * sizeof(uint32_t));
    bits += take;
    first += take;
    n -= take;
  }
}

uint32_t KeepThreshold(double p) {
  return static_cast<uint32_t>(std::ceil(static_cast<double>(static_cast<float>(p)) * 16777216.0));
}

}  // namespace oneflow_like::cpu
