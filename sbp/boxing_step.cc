// The closed form of boxing. Per affected axis the pair of Sbps says how the number of terms, of receivers,
// and of elements already in place multiply; the table of the design is this product for one axis.
#include "sbp/boxing_step.h"

#include <glog/logging.h>

#include <algorithm>
#include <cmath>

namespace oneflow_like {
namespace {

enum End { kB, kS, kP, kFixed };

End KindOf(LayoutView view, int axis) {
  if (view.fixed[axis] != Slice::kFree) return kFixed;
  const Sbp& sbp = view.sbp[1 + axis];
  return sbp.is_split() ? kS : sbp.is_partial() ? kP : kB;
}

bool Cuts(const Sbp& sbp, int tensor_axis) { return sbp.is_split() && sbp.axis == tensor_axis; }

// Whether mesh axis `axis`, S of one tensor axis at both ends, gives the same intervals at both: the same
// mesh axes outside of it cut that tensor axis in the same grains.
bool SameIntervals(LayoutView from, LayoutView to, int axis) {
  const Sbp& own = from.sbp[1 + axis];
  if (!Cuts(to.sbp[1 + axis], own.axis)) return false;
  for (int a = 0; a <= axis; ++a) {
    const Sbp &f = from.sbp[1 + a], &t = to.sbp[1 + a];
    if ((Cuts(f, own.axis) || Cuts(t, own.axis)) && f != t) return false;
  }
  return true;
}

// The nested cuts of one tensor axis by the free axes of a mesh, as a row of cells.
struct Cells {
  int number = 1;
  int axes = 0;
  int axis[kMaxMeshAxes], size[kMaxMeshAxes];
  int64_t grain[kMaxMeshAxes];

  Cells(const Mesh& mesh, LayoutView view, int tensor_axis) {
    for (int a = 0; a < mesh.rank(); ++a) {
      if (view.fixed[a] != Slice::kFree || !Cuts(view.sbp[1 + a], tensor_axis)) continue;
      axis[axes] = a;
      size[axes] = mesh.axis_size(a);
      grain[axes++] = view.sbp[1 + a].grain;
      number *= mesh.axis_size(a);
    }
  }
  // The interval of a cell; its coordinate on each mesh axis that cuts is written to `coords`.
  Interval At(int64_t extent, int cell, int* coords) const {
    Interval interval = {0, extent};
    int stride = number;
    for (int i = 0; i < axes; ++i) {
      stride /= size[i];
      coords[axis[i]] = cell / stride % size[i];
      interval = Cut(interval, size[i], coords[axis[i]], grain[i]);
    }
    return interval;
  }
};

// Beyond this number of cells their overlap is estimated: costs are asked for far too often to walk more.
constexpr int kMaxCells = 128;

// Where cuts of a tensor axis do not line up: the part of its extent for which the member that has it at the
// source can be, by its coordinates, one that wants it. Walks along the cells of both ends.
double Overlap(const Mesh& mesh, int64_t extent, LayoutView from, LayoutView to, int tensor_axis) {
  const Cells source(mesh, from, tensor_axis), dest(mesh, to, tensor_axis);
  if (extent == 0) return 1;
  if (source.number + dest.number > kMaxCells) {
    double estimate = 1;
    for (int a = 0; a < mesh.rank(); ++a) {
      const bool f = from.fixed[a] == Slice::kFree, t = to.fixed[a] == Slice::kFree;
      const bool told_by_source = !f || Cuts(from.sbp[1 + a], tensor_axis);
      const bool told_by_dest = !t || Cuts(to.sbp[1 + a], tensor_axis);
      if ((f || t) && told_by_source && told_by_dest) estimate /= mesh.axis_size(a);
    }
    return estimate;
  }
  int64_t common = 0;
  int f[kMaxMeshAxes], t[kMaxMeshAxes];
  for (int a = 0; a < mesh.rank(); ++a) f[a] = from.fixed[a], t[a] = to.fixed[a];
  for (int i = 0, j = 0; i < source.number && j < dest.number;) {
    const Interval a = source.At(extent, i, f), b = dest.At(extent, j, t);
    const int64_t end = std::min(a.begin + a.extent, b.begin + b.extent);
    bool same = true;
    for (int m = 0; m < mesh.rank(); ++m)
      same &= f[m] == Slice::kFree || t[m] == Slice::kFree || f[m] == t[m];
    if (same) common += std::max<int64_t>(0, end - std::max(a.begin, b.begin));
    if (a.begin + a.extent == end) ++i;
    if (b.begin + b.extent == end) ++j;
  }
  return static_cast<double>(common) / static_cast<double>(extent);
}

// What the affected axes multiply to.
struct Product {
  double terms = 1;       // folded into one destination value
  double partials = 1;    // Partial coordinates that stay Partial, each with its own terms
  double replicas = 1;    // destination members with the same piece
  double cuts = 1;        // destination pieces
  double held = 1;        // part of the elements that some replica holds a term of
  double held_by_me = 1;  // and of those, the part of the replicas that do
  bool grows = false;     // the destination has devices that the source has not
};

// Multiplies `held` for the tensor axes whose cuts do not line up, or meet a fixed coordinate; returns a bit
// for each.
uint32_t WalkUneasyCuts(const Mesh& mesh, int times, const Dims& shape, LayoutView from, LayoutView to,
                        uint32_t affected, double* held) {
  uint32_t walked = 0;
  for (int a = 0; a < mesh.rank(); ++a) {
    if (!(affected >> a & 1) || mesh.axis_size(a) == 1) continue;
    const End f = KindOf(from, a), t = KindOf(to, a);
    const bool uneasy = f == kS ? t == kFixed || (t == kS && Cuts(to.sbp[1 + a], from.sbp[1 + a].axis) &&
                                                  !SameIntervals(from, to, a))
                                : f == kFixed && t == kS;
    if (!uneasy) continue;
    const int i = (f == kS ? from : to).sbp[1 + a].axis;
    if (walked >> i & 1) continue;
    walked |= 1u << i;
    const int64_t extent =
        Cuts(from.sbp[0], i) ? MicroBatch(shape, times, 0, from.sbp[0]).extent[i] : shape[i];
    *held *= Overlap(mesh, extent, from, to, i);
  }
  return walked;
}

// What one affected axis does to the part that is held, where its cuts need no walk.
void MultiplyHeld(End f, End t, double n, LayoutView from, LayoutView to, int axis, Product* p) {
  const Sbp &a = from.sbp[1 + axis], &b = to.sbp[1 + axis];
  if (f == kFixed) {
    p->grows |= t != kFixed;
    if (t == kFixed) p->held = 0;
    if (t == kB) p->held_by_me /= n;
  } else if (f == kS) {
    if (t == kB) p->held_by_me /= n;
    if (t == kS && a.axis != b.axis) p->held /= n;
  }
}

// `pairs` has a bit 4 * from + to for each pair of ends on axes larger than 1.
Primitive PrimitiveOf(uint32_t pairs, bool local) {
  const auto bit = [](End f, End t) { return 1u << (4 * f + t); };
  const auto only = [pairs](uint32_t allowed) { return (pairs & ~allowed) == 0; };
  if (local) return Primitive::kLocalSlice;
  if (pairs == bit(kP, kB)) return Primitive::kAllReduce;
  if (pairs == bit(kP, kS)) return Primitive::kReduceScatter;
  if (pairs == bit(kS, kB)) return Primitive::kAllGather;
  if (pairs == bit(kS, kS)) return Primitive::kAllToAll;
  if (pairs == bit(kFixed, kFixed)) return Primitive::kSend;
  if (only(bit(kB, kB) | bit(kB, kFixed) | bit(kFixed, kB) | bit(kFixed, kFixed)))
    return Primitive::kBroadcast;
  return Primitive::kRouted;
}

}  // namespace

const char* Name(Primitive primitive) {
  static const char* const names[] = {"accumulate",  "time_slice", "time_gather",    "keep",
                                      "local_slice", "all_reduce", "reduce_scatter", "all_gather",
                                      "all_to_all",  "broadcast",  "send",           "routed"};
  return names[static_cast<int>(primitive)];
}

uint32_t CloseOverCuts(uint32_t changed, int axes, const Sbp* from, const int* from_sizes, const Sbp* to,
                       const int* to_sizes) {
  for (int axis = 0; axis < axes; ++axis) {
    if (changed >> axis & 1 || !from[axis].is_split()) continue;
    for (int outer = 0; outer < axis; ++outer) {
      if (!(changed >> outer & 1) || (from_sizes[outer] == 1 && to_sizes[outer] == 1)) continue;
      if (Cuts(from[outer], from[axis].axis) || Cuts(to[outer], from[axis].axis)) changed |= 1u << axis;
    }
  }
  return changed;
}

StepShape AnalyseStep(const Mesh& mesh, int times, const Dims& shape, LayoutView from, LayoutView to) {
  const int axes = mesh.rank();
  CHECK_LE(axes, kMaxMeshAxes);
  StepShape step;
  int from_sizes[kMaxMeshAxes] = {}, to_sizes[kMaxMeshAxes] = {};
  for (int a = 0; a < axes; ++a) {
    from_sizes[a] = from.fixed[a] == Slice::kFree ? mesh.axis_size(a) : 1;
    to_sizes[a] = to.fixed[a] == Slice::kFree ? mesh.axis_size(a) : 1;
    if (from.fixed[a] != to.fixed[a] || from.sbp[1 + a] != to.sbp[1 + a]) step.affected |= 1u << a;
  }
  step.affected = CloseOverCuts(step.affected, axes, from.sbp + 1, from_sizes, to.sbp + 1, to_sizes);
  Product p;
  const uint32_t walked = WalkUneasyCuts(mesh, times, shape, from, to, step.affected, &p.held);
  uint32_t pairs = 0;
  Reduce fold = Reduce::kNone;
  for (int a = 0; a < axes; ++a) {
    if (!(step.affected >> a & 1) || mesh.axis_size(a) == 1) continue;
    const End f = KindOf(from, a), t = KindOf(to, a);
    const double n = mesh.axis_size(a);
    pairs |= 1u << (4 * f + t);
    for (const Sbp* sbp : {f == kP ? &from.sbp[1 + a] : nullptr, t == kP ? &to.sbp[1 + a] : nullptr}) {
      if (sbp == nullptr) continue;
      step.mixed_folds |= fold != Reduce::kNone && fold != sbp->fold;
      fold = sbp->fold;
    }
    if (f != kFixed) step.senders *= n;
    if (f == kP) (t == kP ? p.partials : p.terms) *= n;
    if (t == kB) p.replicas *= n;
    if (t == kS) p.cuts *= n;
    MultiplyHeld(f, t, n, from, to, a, &p);
    step.rounds += std::ceil(std::log2(n));
  }
  step.combines = p.terms > 1;
  step.factor = p.partials * (step.combines ? p.terms - p.held + p.replicas - 1
                                            : p.replicas * (1 - p.held * p.held_by_me));
  step.receivers = p.replicas * p.cuts * p.partials;
  step.local = !step.combines && walked == 0 && !p.grows && p.held * p.held_by_me == 1;
  step.primitive = PrimitiveOf(pairs, step.local);
  return step;
}

}  // namespace oneflow_like
