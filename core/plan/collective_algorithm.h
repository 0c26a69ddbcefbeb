// How the participants of a collective exchange messages. A participant is a set of ranks that reach each
// other's memory: a process, a host with shared memory, or a device. Every part of the tensor is summed on
// its way to one participant, its root, and handed out on the same way back: an algorithm is a choice of
// roots and ways. The estimate of a collective's time (sbp/collective_cost.h) and its execution
// (actor/net/collectives/collective_plan.h) both follow what is here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace oneflow_like {

enum class CollectiveAlgorithm : uint8_t {
  kDirect,    // each sends its whole term to everyone who needs the sum, who adds for itself
  kTwoTrips,  // each is the root of its share: all send to the roots, the roots send to all
  kRing,      // shares go from neighbour to neighbour towards their roots, and back
  kTree,      // shares go along a binary tree of neighbours below each root
  kTwoLevel,  // inside a unit, then between units, one participant of each for a share, and back
  kStar,      // the first participant adds everything
};
inline constexpr CollectiveAlgorithm kCollectiveAlgorithms[] = {
    CollectiveAlgorithm::kDirect, CollectiveAlgorithm::kTwoTrips, CollectiveAlgorithm::kRing,
    CollectiveAlgorithm::kTree,   CollectiveAlgorithm::kTwoLevel, CollectiveAlgorithm::kStar};

const char* Name(CollectiveAlgorithm algorithm);  // "direct", "two_trips", "ring", "tree", ...
// False: there is none of that name.
bool ParseCollectiveAlgorithm(const std::string& name, CollectiveAlgorithm* algorithm);

// The way to `root` of those `among` the participants that take part, by position in `among`: the participant
// that each sends to, -1 for the root. `among` ascends and holds `root`. `unit`: of every participant of the
// group, for kTwoLevel; empty: one unit.
//
// Two ways to one root, among others each, have no step in common if the second is walked backwards: no
// participant sends one part to the same other twice.
std::vector<int> WayTo(CollectiveAlgorithm algorithm, const std::vector<int>& unit,
                       const std::vector<int>& among, int root);

}  // namespace oneflow_like
