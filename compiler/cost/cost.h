// Cost: the work of a node and its time, estimated from the plan's inputs only and never measured, so that
// all processes make the same plan. The choice of signatures, segments and their order, boxing and the dry
// run all use it.
//
// Work is that of a local piece, and the piece comes from the cut points: where a micro-batch has one row
// left, a second cut of the rows leaves that row to one rank and nothing to the others, so the busiest rank
// gains nothing. Cuts give their first part the most, so coordinate 0 of every axis has the largest piece.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compiler/cost/machine.h"
#include "compiler/graph/graph.h"
#include "core/device/work.h"

namespace oneflow_like {

// The piece of an operator's work at one place: its rule with the local extents of every axis.
class LocalWork {
 public:
  LocalWork() = default;  // for a node that computes nothing by itself
  // The whole work of node `n` with this rule.
  LocalWork(const Graph& graph, int n, BoundRule rule);
  // Makes it that of node `n`, which has the same rule.
  void SetNode(const Graph& graph, int n);

  // Reduces the work to coordinate `index` of one more mesh axis of `parts`, along which operands and results
  // have these signatures. Cuts nest: outer axes come first.
  void Cut(const std::vector<Sbp>& in, const std::vector<Sbp>& out, int64_t parts, int64_t index);
  // Reverts all cuts since the last Keep.
  void Undo();
  void Keep() { changed_.clear(); }

  Work work() const;
  const Dims& out(int i) const { return rule_.out[i].shape; }

 private:
  double Touched(const BoundRule::Operand& operand) const;
  void CutOperand(BoundRule::Operand* operand, const Sbp& sbp, int64_t parts, int64_t index);
  void Change(int64_t* what, int64_t value);

  const OpDef* def_ = nullptr;
  BoundRule rule_;
  std::function<double(const BoundRule&)> flops_;      // OpDef::flops_of
  std::vector<int> element_bytes_;                     // inputs, then outputs
  std::vector<std::pair<int64_t*, int64_t>> changed_;  // with the old values
};

// Estimated seconds of a piece, from flops and the rate that its type and its smallest extent reach, and
// bytes and the memory's bandwidth. `tf32`: operands in fp32 are rounded to TF32.
double SecondsOf(const Machine& machine, const Work& work, DType dtype, bool tf32 = false);
// The floating type with fewer bytes; `a` where `b` is none.
inline DType NarrowerFloat(DType a, DType b) { return IsFloating(b) && SizeOf(b) < SizeOf(a) ? b : a; }
// The type that determines a node's rate: the narrowest floating one among its operands.
DType RateType(const Graph& graph, const Node& node);
// Estimated seconds of a piece of this node's work, at the rate of its operands.
double SecondsOf(const Machine& machine, const Work& work, const Graph& graph, const Node& node);

// The number of a node's acts in a step.
int ActsOf(const Graph& graph, const Node& node);

// The costs of a graph whose signatures are chosen. `graph` and `machine` must outlive it.
class CostModel {
 public:
  CostModel(const Graph& graph, const Machine& machine)
      : graph_(graph), machine_(machine), sizes_(graph.Sizes()) {}

  // The work of one act at these coordinates: time, then the mesh axes. Boxing touches bytes and computes
  // nothing.
  Work WorkAt(int n, const std::vector<int>& coords);
  // The work of all acts of a step, at these coordinates of the mesh.
  Work WorkOfStep(int n, const std::vector<int>& mesh_coords);
  // Estimated seconds of one act on the busiest rank.
  double Seconds(int n);
  // The cost of a step of boxing (IsCollective, IsLocalBoxing), over all acts of a step and the whole mesh.
  BoxingCost Boxing(int n) const;

 private:
  Work BoxingAt(const Node& node, const std::vector<int>& coords) const;
  Work PieceAt(const Node& node, LocalWork* whole, const std::vector<int>& coords) const;  // undoes its cuts
  LocalWork* WholeOf(int n);

  const Graph& graph_;
  const Machine& machine_;
  std::vector<int> sizes_;
  std::unordered_map<const BoundRule*, LocalWork> whole_;  // by a rule of the graph: copying one takes long
};

}  // namespace oneflow_like
