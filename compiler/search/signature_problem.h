// Which signatures the nodes of a graph have, and how its variables are cut, along all axes of the mesh at
// once, as one problem of numbers: choices of nodes, and what each adds to the estimated time of a step.
// Time must be settled first. compiler/search/choose_weights.h uses it; choose_signatures makes the plan.
#pragma once

#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compiler/graph/variable_cuts.h"
#include "compiler/search/axis_choices.h"
#include "compiler/search/boxing_prices.h"
#include "compiler/search/choice_network.h"

namespace oneflow_like {

class SignatureProblem {
 public:
  // `graph` is one after place_stages. Its annotations hold; variables are open along axes where they have
  // none, but for ZeRO's. Roles hold: along an axis of the batch or the context what a variable is cut along
  // is for storage; along one of tensor parallelism regions give whole values to others, and a node is cut
  // only where one of its operands comes cut, so that all cuts start at variables.
  SignatureProblem(Graph graph, const CompileOptions& options);

  const Graph& graph() const { return graph_; }
  const std::vector<int>& order() const { return nodes_.order; }  // of its nodes; operands come first
  int choices(int node) const { return static_cast<int>(choices_[node].size()); }
  // Seconds of the node's own work with the choice that has the least of it.
  double LeastWork(int node) const;

  // Estimated seconds that a node adds to a step if it and the nodes before it in the order have `picks` (by
  // node): its work, and the boxing of its operands where no earlier reader wants the same. Every byte that a
  // device keeps costs `price` seconds in addition: of variables, their gradients, and what gradients read of
  // one micro-batch; as it is made, and as it is boxed.
  double Adds(int node, const std::vector<int>& picks, double price = 0) const;
  // The sum over all nodes; from kImpossibleCost on, the picks contradict each other.
  double Cost(const std::vector<int>& picks, double price = 0) const;
  // Picks of least cost; as good as ChoiceNetwork::Solve finds them.
  std::vector<int> Solve(double price = 0) const;

  // The cuts of open variables.
  VariableCuts CutsOf(const std::vector<int>& picks) const;
  // Bytes of all variables on a device.
  double BytesOf(const VariableCuts& cuts) const;

 private:
  // A signature along each axis. Operands and results are numbers of NdSbps.
  struct Joint {
    std::vector<int> in, out;
    double seconds = 0;
    std::vector<std::pair<int, int>> exact;  // operands, and entries along which they come as they are read
  };
  class Axis;
  struct Part;
  struct Use {
    int reader, operand;
  };

  std::vector<Part> Along(int n, const Axis& axis, const std::vector<Part>& parts) const;
  double SecondsOfPart(int n, const Part& part, const std::vector<Axis>& axes);
  std::vector<Joint> JointChoices(int n, const std::vector<Axis>& axes);
  int NumberOf(const NdSbp& sbp);
  double Edge(int v, int from, int to, const Slice& slice, double price) const;
  bool Comes(int from, int to, int operand, const Joint& reader) const;
  double KeptBytes(int v, const NdSbp& sbp) const;
  bool ReadBy(int v, bool (*phase)(Phase)) const;
  void FindKept();
  std::vector<Use> UsesOf(int v) const;
  void AddBoxing(int v, const std::vector<int>& members, double price, ChoiceNetwork* network) const;
  void AddDelivery(int v, const std::vector<Use>& uses, const std::vector<int>& members, double price,
                   ChoiceNetwork* network) const;
  bool ReadAsCut(int v, int entry, const std::vector<int>& picks) const;

  Graph graph_;
  const CompileOptions& options_;
  const BoxingPrices prices_;
  NodesOfChoice nodes_;
  std::vector<int> place_;  // of nodes in the order
  std::vector<std::vector<Joint>> choices_;
  std::vector<NdSbp> sbps_;  // by number; without time
  std::map<NdSbp, int> numbers_;
  std::vector<int> kinds_;             // of values: equal ones cost the same
  std::vector<double> kept_;           // of values: the part of their bytes that is kept at once
  std::map<int, std::set<int>> open_;  // variables, and the entries along which they are
  mutable std::unordered_map<std::string, double> costs_;
};

// Estimated seconds of a step of a graph with signatures: the work of its nodes on the busiest rank, and
// boxing, one after another.
double SecondsOfSignatures(const Graph& graph, const CompileOptions& options);

}  // namespace oneflow_like
