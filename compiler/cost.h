// Cost: what a node computes and how long that takes, estimated from the plan's inputs alone and never from
// measurement, so that all processes make one plan. The choice of signatures, segments and their order,
// boxing and the dry run all ask here.
//
// Work is that of a local piece, and the piece comes from the cut points: where a micro-batch has one row
// left, a second cut of the rows leaves that row to one rank and nothing to the others, so the busiest rank
// gains nothing. Cuts give their first part the most, so coordinate 0 of every axis has the largest piece.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compiler/graph.h"
#include "sbp/boxing.h"

namespace oneflow_like {

// What estimates are made for: devices of one kind, and the links between them.
struct Machine {
  Topology topology;           // links between devices, and the memory of one
  double flops = 5e10;         // per second and device, of products in fp32
  double narrow_flops = 5e10;  // of products in bf16 or f16
  double overhead = 1e-7;      // seconds that any kernel takes besides

  double FlopsOf(DType dtype) const;
};
// Of the mesh's kind of device; orders of magnitude decide.
Machine MachineOf(const Mesh& mesh);

// What one act computes and touches.
struct Work {
  double flops = 0, bytes = 0;
};

// The piece of an operator's work that one place has: its rule with every axis as long as it is there.
class LocalWork {
 public:
  LocalWork() = default;  // of a node that computes nothing by itself
  // The whole of node `n`, whose rule this is.
  LocalWork(const Graph& graph, int n, BoundRule rule);

  // What is left at coordinate `index` of one more mesh axis of `parts`, of operands and results with these
  // signatures along it. Cuts nest: outer axes come first.
  void Cut(const std::vector<Sbp>& in, const std::vector<Sbp>& out, int64_t parts, int64_t index);
  // Takes back all cuts since the last Keep.
  void Undo();
  void Keep() { changed_.clear(); }

  Work work() const;
  const Dims& out(int i) const { return rule_.out[i].shape; }

 private:
  void CutOperand(BoundRule::Operand* operand, const Sbp& sbp, int64_t parts, int64_t index);
  void Change(int64_t* what, int64_t value);

  const OpDef* def_ = nullptr;
  BoundRule rule_;
  std::vector<int> element_bytes_;                     // inputs, then outputs
  std::vector<std::pair<int64_t*, int64_t>> changed_;  // and what stood there
};

// Estimated seconds of a piece: flops by the rate of its type, bytes by the memory's bandwidth.
double SecondsOf(const Machine& machine, const Work& work, DType dtype);
// The type whose rate a node computes at: the narrowest floating one among its operands.
DType RateType(const Graph& graph, const Node& node);

// How often a node acts in a step.
int ActsOf(const Graph& graph, const Node& node);

// Bound rules of a graph's nodes; nodes that are alike, as in the layers of a model, share one.
class RuleCache {
 public:
  explicit RuleCache(const Graph& graph) : graph_(graph) {}
  const BoundRule& Of(int n);  // REQUIRES: an operator of the catalog

 private:
  const Graph& graph_;
  std::unordered_map<std::string, BoundRule> rules_;  // by operator, attributes, types and shapes
};

// Answers for a graph whose signatures are chosen. `graph` and `machine` must outlive it.
class CostModel {
 public:
  CostModel(const Graph& graph, const Machine& machine)
      : graph_(graph), machine_(machine), sizes_(graph.Sizes()), rules_(graph) {}

  // Of one act at these coordinates: time, then the mesh axes. Boxing touches bytes and computes nothing.
  Work WorkAt(int n, const std::vector<int>& coords);
  // Of all acts of a step, at these coordinates of the mesh.
  Work WorkOfStep(int n, const std::vector<int>& mesh_coords);
  // Estimated seconds of one act on the busiest rank.
  double Seconds(int n);
  // Of a step of boxing (IsCollective, IsLocalBoxing), over all acts of a step and the whole mesh.
  BoxingCost Boxing(int n) const;

 private:
  Work BoxingAt(const Node& node, const std::vector<int>& coords) const;
  Work PieceAt(const Node& node, LocalWork* whole, const std::vector<int>& coords) const;  // undoes its cuts

  const Graph& graph_;
  const Machine& machine_;
  std::vector<int> sizes_;
  RuleCache rules_;
};

}  // namespace oneflow_like
