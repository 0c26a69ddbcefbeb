// From a lowered graph to the logical plan, and from it to the plan of one rank.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "compiler/graph/graph.h"
#include "compiler/plan/logical_plan.h"
#include "compiler/plan/options.h"
#include "core/plan.pb.h"

namespace oneflow_like {

LogicalPlan FormSegments(const Graph& graph, const CompileOptions& options);
void OrderActs(const Graph& graph, LogicalPlan* plan);
// kOutline: for estimates and simulation, in a fraction of the time. Of a tensor's pieces, and of the regions
// of a collective, those of the first micro-batch stand for those of the others where these only lie
// elsewhere. kMemory: in a fraction of that time, what memory follows from and no more: buffers and variables
// with their bytes, and which kernels use them when.
enum class PlanDetail : uint8_t { kWhole, kOutline, kMemory };
plan::Plan Partition(const Graph& graph, const LogicalPlan& logical, const CompileOptions& options, int rank,
                     PlanDetail detail = PlanDetail::kWhole);
// On meshes of more ranks, memory is summed up for the first rank of each stage alone.
inline constexpr int kManyRanks = 64;
// For each rank the first one whose plan needs the same memory: both take part in the same segments with
// pieces of the same extents, and so do, in their order, the members of all groups they may be in. For meshes
// of few ranks: it takes time for each pair of a rank and a member.
std::vector<int> FirstAlike(const Graph& graph, const LogicalPlan& logical);
// Assigns an offset to every buffer and scratch, and a size to every arena. Returns the lower bound of the
// device's: the most bytes that are live in it at once. `at_peak`: those bytes by buffer, all scratch under
// kScratch. `live`: the live bytes over time.
constexpr int kScratch = -1;
struct LiveBytes {
  // From `position` on the buffer (kScratch: all scratch) holds `bytes` more, or less. A position is that of
  // a kernel in the compute stream's list of a step.
  struct Change {
    int position = 0, buffer = 0;
    int64_t bytes = 0;
  };
  std::vector<Change> changes;  // by position; the first are the bytes that are always live
  int positions = 0;            // of a step
};
int64_t PlaceMemory(plan::Plan* plan, std::map<int, int64_t>* at_peak = nullptr, LiveBytes* live = nullptr);

// Throws Error naming the violation of an invariant of a plan with its order. If one node must come after
// another and only a path of other edges ensures it, that path is added to `implied`.
void VerifyLogicalPlan(const Graph& graph, const LogicalPlan& plan,
                       std::vector<std::string>* implied = nullptr);

}  // namespace oneflow_like
