// How elementwise kernels, movers and boxing walk an index space: the row-major indices of a box, with one
// stride per operand and axis. Axes over which every operand runs on are merged, so that most walks have one
// or two.
#pragma once

#include <cstdint>

#include "core/dims.h"
#include "core/host_device.h"

#if defined(__CUDA_ARCH__)
#define OFL_UNROLL _Pragma("unroll")
#define OFL_ROLLED _Pragma("unroll 1")
#else
#define OFL_UNROLL
#define OFL_ROLLED
#endif

namespace oneflow_like::cuda {

// Strides of one operand, in elements (or words) per axis.
struct Strides {
  int64_t at[Dims::kMaxRank];
};

struct Extents {
  int rank = 0;
  int64_t at[Dims::kMaxRank];
  int64_t elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= at[i];
    return n;
  }
};

// Row-major strides of a piece that holds `extent`.
inline Strides StridesOf(const Dims& extent) {
  Strides strides{};
  int64_t stride = 1;
  for (int i = extent.rank() - 1; i >= 0; --i) {
    strides.at[i] = stride;
    stride *= extent[i];
  }
  return strides;
}

// Of an operand that broadcasts to an index space of `rank` axes: 0 where it repeats.
inline Strides BroadcastStrides(const Dims& extent, int rank) {
  Strides own = StridesOf(extent), strides{};
  int skip = rank - extent.rank();
  for (int i = skip; i < rank; ++i) strides.at[i] = extent[i - skip] == 1 ? 0 : own.at[i - skip];
  return strides;
}

inline Extents ExtentsOf(const Dims& dims) {
  Extents extents{dims.rank(), {}};
  for (int i = 0; i < dims.rank(); ++i) extents.at[i] = dims[i];
  return extents;
}

// Drops axes of extent 1 and merges neighbours; at least one axis is left. REQUIRES: the space is not empty.
inline void MergeAxes(Extents* extents, Strides* operands, int count) {
  int rank = 0;
  for (int axis = 0; axis < extents->rank; ++axis) {
    int64_t extent = extents->at[axis];
    if (extent == 1) continue;
    bool merge = rank > 0;
    for (int i = 0; merge && i < count; ++i)
      merge = operands[i].at[rank - 1] == operands[i].at[axis] * extent;
    if (!merge) extents->at[rank++] = 1;
    extents->at[rank - 1] *= extent;
    for (int i = 0; i < count; ++i) operands[i].at[rank - 1] = operands[i].at[axis];
  }
  if (rank == 0) {
    extents->at[rank++] = 1;
    for (int i = 0; i < count; ++i) operands[i].at[0] = 1;
  }
  extents->rank = rank;
}

// n / d and what is left; most sizes fit 32 bits, whose division is several times faster.
OFL_HOST_DEVICE int64_t Divide(int64_t n, int64_t d, int64_t* rest) {
  if (((n | d) >> 32) == 0) {
    uint32_t small = static_cast<uint32_t>(n), by = static_cast<uint32_t>(d), quotient = small / by;
    *rest = small - quotient * by;
    return quotient;
  }
  int64_t quotient = n / d;
  *rest = n - quotient * d;
  return quotient;
}

// Where a walk stands: the index along each axis.
struct Place {
  int64_t at[Dims::kMaxRank];
};
OFL_HOST_DEVICE Place PlaceOf(const Extents& extents, int64_t index) {
  Place place;
  OFL_UNROLL
  for (int axis = Dims::kMaxRank - 1; axis > 0; --axis) {
    place.at[axis] = 0;
    if (axis < extents.rank) index = Divide(index, extents.at[axis], &place.at[axis]);
  }
  place.at[0] = index;
  return place;
}
OFL_HOST_DEVICE int64_t OffsetAt(const Place& place, const Extents& extents, const Strides& strides) {
  int64_t offset = place.at[0] * strides.at[0];
  OFL_UNROLL
  for (int axis = 1; axis < Dims::kMaxRank; ++axis) {
    if (axis < extents.rank) offset += place.at[axis] * strides.at[axis];
  }
  return offset;
}

}  // namespace oneflow_like::cuda
