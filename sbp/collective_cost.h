// What each algorithm of a collective takes on the links of its group, by which one is chosen. Pure
// functions: the compiler chooses by them, and a simulator loads its links by them.
#pragma once

#include <compare>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/plan/collective_algorithm.h"
#include "sbp/boxing_load.h"

namespace oneflow_like {

// One that exchanges messages with the others: devices that reach each other's memory.
struct Participant {
  int64_t device = 0;  // the first of them, by its place among all devices
  double members = 1;  // of the group; their own links carry its messages together
  auto operator<=>(const Participant&) const = default;
};

// What one act takes: seconds are a part that does not depend on the tensor, and a part for each byte of it.
struct AlgorithmCost {
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kDirect;
  int unit = 0;        // of kTwoLevel: number of neighbouring devices in a unit; else 0
  double latency = 0;  // of the rounds, each with the latency of the level it goes over
  std::vector<double>
      links;        // by level, the innermost first: 1 / bandwidth for each byte on its busiest link
  double sums = 0;  // of who adds most: 1 / memory bandwidth for each byte added

  // Of a tensor of which a group has `bytes` together, each part counted once.
  double seconds(double bytes) const;
};

// All algorithms that such a collective has over these links, in the order of kCollectiveAlgorithms,
// kTwoLevel once for each level that divides the group. Of a broadcast the first participant has the tensor.
// Empty for primitives whose messages go straight to those who need them, and for fewer than two
// participants.
//
// Of the two phases, towards the roots and back, each counts the busier direction of a link. A link that
// devices share (LinkLevels) carries what all of them send, and those of `beside` groups in all that do the
// same at the same time (by level; empty: 1).
std::vector<AlgorithmCost> CostsOfCollective(Primitive primitive, const std::vector<Participant>& group,
                                             const LinkLevels& levels,
                                             const std::vector<double>& beside = {});
// Whether collectives of this kind have the algorithm at all.
bool HasAlgorithm(Primitive primitive, CollectiveAlgorithm algorithm);

// Algorithms that a user wants in place of the cheapest.
using WantedAlgorithms = std::map<Primitive, CollectiveAlgorithm>;
// "ring", for all collectives that have it, or "all_reduce:ring,all_gather:direct"; empty: none. Throws Error
// that begins with `who`: an unknown name, a collective that does not have it, or one that is given twice.
WantedAlgorithms ParseWantedAlgorithms(const std::string& text, const std::string& who);

// What ParseWantedAlgorithms reads as these.
std::string ToText(const WantedAlgorithms& wanted);

// The cheapest of them; of equals the first. Where `wanted` is among them, the cheapest of its kind.
// REQUIRES: not empty.
const AlgorithmCost& Choose(const std::vector<AlgorithmCost>& costs, double bytes,
                            std::optional<CollectiveAlgorithm> wanted = {});

}  // namespace oneflow_like
