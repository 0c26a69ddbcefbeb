// What a step of boxing asks of memory and of links that others use too: what a simulator needs beyond a
// cost.
#pragma once

#include <vector>

#include "sbp/boxing.h"

namespace oneflow_like {

// Links by level, of which some are shared.
struct LinkLevels {
  Topology topology;
  // By level: all devices of one unit of the level inside have one such link together, not one each. Levels
  // that are not there are not shared.
  std::vector<bool> shared;

  bool IsShared(size_t level) const { return level < shared.size() && shared[level]; }
  // The innermost level that joins two devices.
  int LevelJoining(int64_t device, int64_t other) const;
};

// Seconds of one act that pass before the first byte comes, and for which memory and links would be busy if
// no other step used them; of a shared link, by all groups of its unit together. A group whose members lie in
// several units goes over each level's links once; where it has several members in a unit, their own links
// carry it together.
struct BoxingLoad {
  double latency = 0;         // rounds of messages
  double copies = 0;          // of the pieces, at both ends
  std::vector<double> links;  // by level, the innermost first; empty for a local step

  // By which a measurement of the same collective is found. Zero for a local step.
  Primitive primitive = Primitive::kLocalSlice;
  int members = 0, per_unit = 0;  // of a group; of those, in one unit of the innermost level
  double bytes = 0;               // of the tensor that a group has together, each part counted once

  double seconds() const;  // alone
};

// Of one step of PlanBoxing. On one level that is not shared it takes as long as CostOfBoxingStep says of an
// act, but for a message from one fixed slice to another, which takes one round.
BoxingLoad LoadOfBoxingStep(const Mesh& mesh, int times, const Dims& shape, int64_t element_bytes,
                            const Layout& from, const Layout& to, const LinkLevels& levels);

}  // namespace oneflow_like
