// A machine as a topology file describes it: what a simulator knows beyond what compilation assumes.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "compiler/cost.h"
#include "sbp/boxing_load.h"

namespace oneflow_like {

namespace plan {  // core/plan.proto
class Kernel;
}  // namespace plan

// How much of the peak is reached, by what an operator is and by its shape.
struct Efficiency {
  double product = 1;    // of large matrix products
  double attention = 1;  // of attention
  // A product or an attention whose smallest extent is this one reaches half of that: short extents leave
  // parts of a device idle.
  double half_extent = 0;
};

// Measured times of a collective, by the bytes of the tensor that its group has together.
struct MeasuredCollective {
  Primitive primitive = Primitive::kAllReduce;
  int members = 2;                                // of the group
  int per_unit = 2;                               // of these, in one unit of the innermost level
  std::vector<std::pair<double, double>> points;  // bytes, which rise, and seconds; at least two

  // Linear between two points. Less than the first takes as long as it, more than the last goes on at the
  // rate of the last two.
  double SecondsOf(double bytes) const;
};

struct DescribedMachine : Machine {
  std::string name;          // of the device, for people
  std::vector<bool> shared;  // by level of its topology: LinkLevels
  std::vector<MeasuredCollective> collectives;
  Efficiency efficiency;
  double memory_bytes = 0;  // of one device; 0: unknown
  int threads = 0;          // of a host that computes on its processor; 0: each device works by itself

  // For estimates that know no shapes: the rate that large products reach is its peak.
  Machine AsReached() const;
};

// Estimated seconds of one act of a kernel that a plan holds. REQUIRES: no collective.
double SecondsOf(const DescribedMachine& machine, const plan::Kernel& kernel);
// The memory and links that one act of a collective asks for: as measured, where such a group of its kind
// was, else from latency and bandwidth of the links.
BoxingLoad LoadOf(const DescribedMachine& machine, const Graph& graph, const Node& node);

}  // namespace oneflow_like
