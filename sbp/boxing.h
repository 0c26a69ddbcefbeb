// Boxing: changing a tensor from one layout to another. For every pair of layouts on one mesh or on two, it
// computes the members that take part, which member moves which box of the index space to which, the cost,
// and the name of the operation in a collective library.
#pragma once

#include <vector>

#include "sbp/mesh.h"

namespace oneflow_like {

// One end of a boxing: devices along axes, and the tensor's NdSbp over them (no time entry here: time is
// equal at both ends, or handled locally). `devices` in row-major order of `sizes`, none twice.
struct BoxingEnd {
  std::vector<int> sizes;
  std::vector<int> devices;
  NdSbp sbp;
};

struct BoxingProgram {
  std::vector<int> members;  // devices that take part: the source's in order, then the others
  int me = -1;               // index of the member that asked (RouteGroup)
  std::vector<Box> in, out;  // per member, its piece at the source and at the destination; rank-0-safe
  std::vector<bool> has_in, has_out;  // whether the member is a source, a destination
  Reduce reduce = Reduce::kNone;
  std::vector<std::vector<Region>> work;  // per member; sources and destinations are indices into `members`
  int64_t Moved() const;                  // elements that change device, over all members
};

// The part of the tensor that micro-batch `time` of `times` holds, `sbp` being the time entry: the box to
// route.
Box MicroBatch(const Dims& shape, int times, int time, const Sbp& sbp);

// The layout's devices and Sbps, all axes of the mesh in order; a fixed axis has size 1.
BoxingEnd EndOf(const Mesh& mesh, const Layout& layout);

// The whole program, for all members: the definition, and what tests count. `box` is the part of the index
// space to move. REQUIRES: the Partials that change have one fold; other changes go through B, as PlanBoxing
// does. Terms are folded in row-major order of the source's coordinates, and all copies of a B get the same
// bits.
BoxingProgram RouteAll(const Box& box, const BoxingEnd& from, const BoxingEnd& to);

// The operation of one step of a boxing; those up to kLocalSlice are local to a rank.
enum class Primitive : uint8_t {
  kAccumulate,  // P to B over time
  kTimeSlice,   // B to S over time
  kTimeGather,  // S to B over time: each micro-batch's part is put in its place
  kKeep,        // B to P over time
  kLocalSlice,  // every device holds what it needs: B to S, S to P
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kBroadcast,
  kSend,    // one to one, between slices
  kRouted,  // anything else
};
const char* Name(Primitive primitive);  // "accumulate", "time_slice", ...: the kernel, or the collective
inline bool IsLocal(Primitive primitive) { return primitive <= Primitive::kLocalSlice; }

// One step of the boxing between two layouts of one mesh.
struct BoxingStep {
  Primitive primitive;
  Layout to;
  std::vector<int> axes;  // mesh axes whose coordinates differ inside one group, ascending; empty when local
};

// Links by level, and the memory of one device. Devices are numbered so that those of one unit (a card, a
// host, a switch) are neighbours.
struct Topology {
  struct Link {
    int devices = 0;         // in one unit that this level joins; 0: all
    double latency = 5e-6;   // of one message, in seconds
    double bandwidth = 5e9;  // of one device, in bytes/s
  };
  std::vector<Link> links = {Link()};  // inner levels first
  double memory_bandwidth = 10e9;      // bytes/s of local copies

  // The level over which a group communicates whose members lie within `span` devices.
  const Link& Spanning(int64_t span) const;
};

// The cheapest sequence from one layout to another, empty when they are equal. Over time, S to P or to
// another S, and P to S, are refused by Error ("needs the whole batch"). `times` is the size of the time
// axis. Where several mesh axes change, every way to change them one after another or together is compared.
// Partials of different folds go through B; of one value's, the inner mesh axis is folded first, time last.
// Deterministic.
std::vector<BoxingStep> PlanBoxing(const Mesh& mesh, int times, const Dims& shape, const Layout& from,
                                   const Layout& to, const Topology& topology);

// Estimated seconds per optimizer step of PlanBoxing's sequence, and elements moved between devices per step
// over the whole mesh. Closed form: no loop over ranks.
struct BoxingCost {
  double seconds = 0;
  double moved = 0;
};
BoxingCost CostOfBoxing(const Mesh& mesh, int times, const Dims& shape, int64_t element_bytes,
                        const Layout& from, const Layout& to, const Topology& topology);
// The same for one step of such a sequence.
BoxingCost CostOfBoxingStep(const Mesh& mesh, int times, const Dims& shape, int64_t element_bytes,
                            const Layout& from, const Layout& to, const Topology& topology);

// The group that the member at mesh coordinates `coords` (of either end) belongs to: all members with their
// pieces, and the work of this member alone, or of `everybody`; partition() calls it for each rank. A local
// step has a group of one. The time that it takes does not grow with the mesh, only with the group. `time` is
// the micro-batch. One step of PlanBoxing at a time; the layouts' time entries must be equal.
BoxingProgram RouteGroup(const Mesh& mesh, int times, int time, const Dims& shape, const Layout& from,
                         const Layout& to, const std::vector<int>& coords, bool everybody = false);

}  // namespace oneflow_like
