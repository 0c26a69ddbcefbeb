// The signatures that nodes may have along one axis of the mesh, or time: those of their rules that fit the
// axes already settled, and of these the ones that keep what annotations and roles promise. For the passes
// that choose between them.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "compiler/passes/passes.h"

namespace oneflow_like {

// The cost of what cannot be.
constexpr double kImpossibleCost = 1e30;

using Choice = Signature;

enum class Role : uint8_t { kNone, kBatch, kTensor, kContext };
// `axis`: of the mesh; below 0: time, which has none.
Role RoleOf(const Roles& roles, int axis);

// All that the choice of signatures knows of each node of a graph, one axis after another.
struct NodesOfChoice {
  // REQUIRES: a graph after place_stages. Empties `want` of its nodes and the signatures of its values.
  explicit NodesOfChoice(Graph* graph);

  std::vector<int> order;
  std::vector<std::vector<int>> readers;
  std::vector<const BoundRule*> rules;  // of operators
  std::vector<LocalWork> pieces;  // what settled axes leave of a node's work to the busiest rank, in one act
  std::vector<int> acts;
  std::vector<std::vector<Choice>> settled;  // the cuts along axes already settled
};

// Settles time, entry 0: signatures of all values and operands, and in `nodes` what the cuts leave of nodes'
// work.
void ChooseOverTime(Graph* graph, const CompileOptions& options, NodesOfChoice* nodes);

// Objects must not outlive what they are made of.
class AxisChoices {
 public:
  // `entry` indexes NdSbp: 0 is time. `open`: variables that are not annotated have every cut as a choice,
  // and promise nothing.
  AxisChoices(Graph* graph, const CompileOptions& options, int entry, NodesOfChoice* nodes, bool open);

 protected:
  // Fills choices_[n]; after those of all nodes before it. Throws Error if it has none.
  void Enumerate(int n);
  bool Free(int n) const { return FreeAlong(graph_.node(n)); }
  // Whether the node's slice goes along the axis and has several devices there.
  bool FreeAlong(const Node& node) const;
  // Estimated seconds of a step that the node itself takes on the busiest rank.
  double Own(int n, const Choice& c);
  // Seconds that the expansion of an operator takes in addition, in all acts.
  double Expansion(const LocalWork& piece, double acts) const;
  static bool Cuts(const Choice& c) { return !c.label.empty(); }
  // Along time: whether the node then acts for every micro-batch.
  static bool EachAct(const Choice& c);
  // Whether the node is a variable whose cut along the axis is a choice.
  bool Open(const Node& node) const;
  std::string EntryName() const { return entry_ == 0 ? "time" : graph_.mesh().axis_name(entry_ - 1); }

  Graph& graph_;
  const Machine& machine_;
  const int entry_;
  const Role role_;  // of the axis
  const int parts_;
  const bool open_;
  const std::vector<int>& order_;
  const std::vector<std::vector<int>>& readers_;
  NodesOfChoice& nodes_;
  std::vector<std::vector<Choice>> choices_;
  std::vector<bool> varying_;  // per value, along time
  // Per node, of open variables along an axis of tensor parallelism: whether it is cut only where one of its
  // operands is, as it comes.
  std::vector<bool> follows_;

 private:
  // How a value is to be read, and what the word counts.
  struct Promise {
    Sbp sbp;
    int weight = 1;
  };
  static constexpr int kOfWeight = 1000;

  std::vector<Choice> ChoicesOf(int n);
  std::vector<Choice> ChoicesOfEnd(int n, Choice plain);
  bool Illegal(int n, const Choice& c) const;
  bool MixesTerms(int n, const Choice& c) const;
  void KeepPromises(int n);
  int KeepMost(int n);
  void KeepWhole(int n);
  bool LeavesRegion(int n, const std::string& region) const;
  void FindHeld();
  void AddCuts(const Dims& shape, std::vector<Choice>* all, bool in) const;

  std::vector<Promise> promised_;  // per value
  std::set<std::string> held_;     // regions where something is held to a cut along the axis
};

}  // namespace oneflow_like
