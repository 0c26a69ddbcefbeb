// The parts of a rank's plan that partition puts together: pieces of values, kernels, collectives.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "compiler/cost/cost.h"
#include "compiler/graph/graph.h"
#include "compiler/plan/logical_plan.h"
#include "compiler/plan/make_plans.h"
#include "compiler/plan/options.h"
#include "core/plan.pb.h"

namespace oneflow_like {

// The rank for which a plan is made, and in which detail.
struct RankOfMesh {
  RankOfMesh(const Graph& graph, int rank, PlanDetail detail)
      : graph(graph),
        detail(detail),
        coords(graph.mesh().Coords(rank)),
        sizes(graph.Sizes()),
        device_kind(graph.mesh().KindOf(rank)) {}

  const Graph& graph;
  const PlanDetail detail;
  const std::vector<int> coords;  // on the mesh
  const std::vector<int> sizes;   // Graph::Sizes
  const std::string device_kind;

  bool In(const Slice& slice) const { return slice.Contains(coords); }
  bool described() const { return detail != PlanDetail::kMemory; }
  // Whether the rank has a node's operands and its results: of a transfer between stages it may have one.
  bool Reads(const Segment& segment, const Node& node) const {
    return !IsCollective(node) || In(segment.from);
  }
  bool Writes(const Segment& segment, const Node& node) const {
    return !IsCollective(node) || In(segment.slice);
  }
  // How many micro-batches have pieces of such a tensor that the plan tells apart. An outline keeps the first
  // of pieces that are alike but for their place.
  int TimesOf(const Dims& shape, const Sbp& time) const;
  // The pieces of a value that the rank has, and bytes for the largest.
  std::vector<Box> Boxes(const Value& v) const;
  int64_t SlotBytes(const Value& v) const;
};

// Sizes in memory are multiples of a cache line.
inline int64_t RoundUp(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Node `n` of a segment as a kernel: its operands, scratch, attributes and work.
void MakeKernel(const RankOfMesh& rank, const LogicalPlan& logical, const CompileOptions& options,
                const Segment& segment, int n, CostModel* cost, plan::Kernel* kernel);

// How a collective moves a tensor, by micro-batch. Blocks that are alike have the same ones.
struct Route {
  Dims shape;
  size_t element_bytes = 0;
  Layout from, to;
  std::vector<BoxingProgram> programs;
  double sent = 0;  // bytes that the rank sends in an act
};

// The actor of a collective, which has its kernel: members, pieces and the rank's work. `routes`: those
// computed so far.
void MakeCollective(const RankOfMesh& rank, const Node& node, std::deque<Route>* routes, plan::Actor* actor);

}  // namespace oneflow_like
