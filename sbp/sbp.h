// The SBP algebra. Along each axis of a mesh (time, the micro-batches of a step, is the outermost one) a
// tensor is
//   S(i)  cut along its axis i, balanced in grains: cut points are multiples of the grain;
//   B     the same copy everywhere;
//   P     the same shape everywhere, the value is the sum, max or min of the copies.
// An NdSbp has one of these for every axis of the mesh. Pure values; no I/O, no threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/boxes/copy_box.h"
#include "core/dims.h"

namespace oneflow_like {

struct Sbp {
  enum class Kind : uint8_t { kBroadcast, kSplit, kPartial };
  Kind kind = Kind::kBroadcast;
  Reduce fold = Reduce::kNone;  // of a Partial
  int axis = 0;                 // of a Split
  int64_t grain = 1;            // of a Split

  bool is_split() const { return kind == Kind::kSplit; }
  bool is_partial() const { return kind == Kind::kPartial; }
  bool is_broadcast() const { return kind == Kind::kBroadcast; }
  bool operator==(const Sbp& o) const {
    return kind == o.kind && fold == o.fold && axis == o.axis && grain == o.grain;
  }
  bool operator!=(const Sbp& o) const { return !(*this == o); }
  bool operator<(const Sbp& o) const;
  std::string str() const;  // "B", "S1", "S1/64" (grain 64), "P", "Pmax", "Pmin"
};

inline Sbp S(int axis, int64_t grain = 1) { return {Sbp::Kind::kSplit, Reduce::kNone, axis, grain}; }
inline Sbp B() { return {}; }
inline Sbp P(Reduce fold = Reduce::kSum) { return {Sbp::Kind::kPartial, fold, 0, 1}; }
Sbp ParseSbp(const std::string& text);  // throws Error

// One Sbp for each axis of a mesh, time first. For a value on a slice of the mesh, the entries of fixed axes
// are B.
using NdSbp = std::vector<Sbp>;

// The part [begin, begin + extent) of an interval that part `index` of `parts` holds: as even as whole grains
// allow, the first parts larger, later parts possibly empty. The extent need not be a multiple of the grain:
// the last grain is then short.
struct Interval {
  int64_t begin = 0, extent = 0;
};
Interval Cut(Interval whole, int64_t parts, int64_t index, int64_t grain);

// The local piece at `coords` (one coordinate per entry of sbp) of a tensor cut by `sbp` on axes of these
// `sizes`. Cuts of one tensor axis by several mesh axes nest, outer mesh axis first.
Box LocalBox(const Dims& shape, const NdSbp& sbp, const std::vector<int>& sizes,
             const std::vector<int>& coords);
// The extents of the largest of these pieces, which is that at coordinate 0 of every axis.
Dims LargestPiece(const Dims& shape, const NdSbp& sbp, const std::vector<int>& sizes);

// Same cut points give the same text: a split whose grain has no effect on this shape gets grain 1. `parts`
// is the product of all mesh axes, time included.
Sbp Canonical(const Sbp& sbp, const Dims& shape, int64_t parts);

// The same over axes of exactly these sizes, which are known once all entries are chosen: removes grains that
// change no cut point. Signatures with the same plain form place a tensor in the same way.
NdSbp Plain(const Dims& shape, NdSbp sbp, const std::vector<int>& sizes);

}  // namespace oneflow_like
