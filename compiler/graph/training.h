// Shared by the passes of training. A graph that trains has one node `train`, an end without outputs, which
// collects their results:
//
//   train train(loss)                                as Train makes it
//   train train(loss, scale, finite_steps) scaled=1  after loss_scale, in fp16
//   train train(loss, ..., w, dw, b, db)             after autograd: weights and gradients
//
// add_updates replaces it with the updates.
#pragma once

#include <string>
#include <vector>

#include "compiler/graph/graph.h"

namespace oneflow_like {

// Its number, -1 in a graph that does not train.
inline int TrainNode(const Graph& graph) {
  for (int n = 0; n < graph.num_nodes(); ++n)
    if (graph.alive(n) && graph.node(n).kind == NodeKind::kTrain) return n;
  return -1;
}

// The number of its operands before weights and gradients.
inline size_t TrainHead(const Node& train) { return train.attrs.Has("scaled") ? 3 : 1; }

// The names of what averages of weights (Training::average) are: "<training>:average/<weight>", and the
// number of their updates, "<training>:averages".
inline constexpr char kAverage[] = "average", kAverages[] = ":averages";

// Names in trainings whose experts let steps run again (Training::no_room). The variable <training>:no_room
// counts choices without room, until a step runs with more room. Between steps it is 0, so it is no state of
// the model; the attribute kOfPlan says so. Output "retried" is above 0 in steps that must run again, and
// when they run again. The attribute kRetryRoom of an operator is its "room" in the plan with more room.
inline constexpr char kNoRoom[] = ":no_room", kRetried[] = "retried", kOfPlan[] = "of_plan",
                      kRetryRoom[] = "retry_room";

// Whether the node is a cast of a weight's gradient for its sum over devices (Decisions::reduce_dtype).
// add_updates lets whoever reads the gradient read it through one that changes nothing and needs the sum
// (attribute "terms" 0). In its place insert_boxing puts two that carry terms (1) around the sum: to the
// narrow type before, back to fp32 behind it.
inline constexpr char kTerms[] = "terms";
inline bool IsCastForSum(const Node& node) { return node.op == "cast" && node.attrs.Has(kTerms); }

// Whether a variable is state of a training, such as "train:adam_m/<weight>" and "train:updates". Names of
// weights have no ':'.
inline bool IsTrainingState(const std::string& variable) { return variable.find(':') != std::string::npos; }
// Returns the weight of which a variable is the state, or else the variable's own name.
inline std::string WeightOf(const std::string& variable) {
  const size_t colon = variable.find(':'), slash = variable.find('/', colon);
  return colon == std::string::npos || slash == std::string::npos ? variable : variable.substr(slash + 1);
}

// Adds a variable that training keeps: fp32, filled with `value` before the first step, on the slice and with
// the line of `like`. `name` begins with the session's name and a colon, which the user's names cannot
// contain.
Tensor AddState(Graph* graph, const std::string& name, const Dims& shape, double value, const Node& like);

// By node: whether it is of the backward pass and leads to updates alone, or to what an update waits for, but
// not by way of a heavy node.
std::vector<bool> ForUpdates(const Graph& graph);

}  // namespace oneflow_like
