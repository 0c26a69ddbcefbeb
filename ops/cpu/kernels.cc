// Helpers shared by the CPU kernels: fallbacks, strided copies, blocks of random bits.
#include "ops/cpu/kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/random.h"
#include "ops/op.h"

namespace oneflow_like::cpu {

KernelPtr MakeReference(const KernelSpec& spec) {
  return MakeFunctionKernel(BuiltinCatalog().Get(spec.name).reference)(spec);
}

int64_t ReferenceScratch(const KernelSpec& spec) {
  const OpDef& def = BuiltinCatalog().Get(spec.name);
  return def.scratch ? def.scratch(spec) : 0;
}

bool AllFloat(const KernelSpec& spec) {
  auto is_float = [](const TensorArg& arg) { return arg.dtype == DType::kFloat32; };
  return std::all_of(spec.in.begin(), spec.in.end(), is_float) &&
         std::all_of(spec.out.begin(), spec.out.end(), is_float);
}

KernelFactory ForFloat(KernelFn fn) {
  return [fn](const KernelSpec& spec) {
    return AllFloat(spec) ? MakeFunctionKernel(fn)(spec) : MakeReference(spec);
  };
}

void CopyRuns(void* to, int64_t to_stride, const void* from, int64_t from_stride, int64_t rows,
              int64_t bytes) {
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

// A plane of a permuted copy: `rows` along one axis, `columns` along the last of `to`; in tiles, so that the
// lines of both sides stay in the first-level cache while they are used.
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
  int64_t bands = (rows + kBand - 1) / kBand,
          planes = extent.elements() / std::max<int64_t>(1, rows * columns);
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
      CopyPlane(t, row < 0 ? 0 : w.to[row], f, row < 0 ? 0 : w.from[row], w.from[last],
                std::min(kBand, rows - r0), columns);
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
    case 1:
      return run(uint8_t{});
    case 2:
      return run(uint16_t{});
    case 4:
      return run(uint32_t{});
    default:
      return run(uint64_t{});
  }
}

namespace {

// The draws of the Philox blocks [first, first + kPhiloxBlocks): the rounds go through all of them lane by
// lane, so that they vectorise.
constexpr int kPhiloxBlocks = 16;
void DrawBlocks(uint64_t key, uint64_t step, uint64_t first, uint16_t* bits) {
  uint32_t c[4][kPhiloxBlocks];
  for (int i = 0; i < kPhiloxBlocks; ++i) {
    uint64_t at = first + static_cast<uint64_t>(i);
    c[0][i] = static_cast<uint32_t>(at);
    c[1][i] = static_cast<uint32_t>(at >> 32);
    c[2][i] = static_cast<uint32_t>(step);
    c[3][i] = static_cast<uint32_t>(step >> 32);
  }
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
#pragma omp simd
    for (int i = 0; i < kPhiloxBlocks; ++i) {
      uint64_t p0 = uint64_t{0xD2511F53u} * c[0][i], p1 = uint64_t{0xCD9E8D57u} * c[2][i];
      c[0][i] = static_cast<uint32_t>(p1 >> 32) ^ c[1][i] ^ k0;
      c[2][i] = static_cast<uint32_t>(p0 >> 32) ^ c[3][i] ^ k1;
      c[1][i] = static_cast<uint32_t>(p1);
      c[3][i] = static_cast<uint32_t>(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  static_assert(std::endian::native == std::endian::little, "halves of words lie in their order");
  uint32_t words[kPhiloxBlocks * 4];
  for (int i = 0; i < kPhiloxBlocks; ++i) {
    for (int j = 0; j < 4; ++j) words[i * 4 + j] = c[j][i];
  }
  std::memcpy(bits, words, sizeof(words));
}

}  // namespace

void FillDropBits(uint64_t key, uint64_t step, uint64_t first, int64_t n, uint16_t* bits) {
  while (n > 0) {
    int64_t skip = static_cast<int64_t>(first & 7), take = kPhiloxBlocks * 8;
    if (skip == 0 && n >= take) {
      DrawBlocks(key, step, first >> 3, bits);
    } else {
      uint16_t drawn[kPhiloxBlocks * 8];
      DrawBlocks(key, step, first >> 3, drawn);
      take = std::min<int64_t>(n, take - skip);
      std::memcpy(bits, drawn + skip, take * sizeof(uint16_t));
    }
    bits += take;
    first += static_cast<uint64_t>(take);
    n -= take;
  }
}

}  // namespace oneflow_like::cpu
