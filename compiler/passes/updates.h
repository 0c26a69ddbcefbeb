// The steps of add_updates: weights and gradients, what their norms say, and one update for each weight.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "compiler/graph/graph.h"
#include "compiler/plan/options.h"
#include "ops/language/functional.h"

namespace oneflow_like {

// The place of nodes that are added to a graph while this lives: in the phase of updates, beside a node or on
// a slice.
class UpdateSite {
 public:
  explicit UpdateSite(Graph* graph) : graph_(*graph) {
    origin.phase = Phase::kUpdate;
    origin.scope = "update/";
    graph_.SetOrigin(&origin);
  }
  UpdateSite(const UpdateSite&) = delete;
  ~UpdateSite() { graph_.SetOrigin(nullptr); }

  Graph& graph() const { return graph_; }
  const Slice& slice() const { return slice_; }
  // Moves to that node, or to another slice.
  void At(const Node& like) {
    slice_ = like.slice;
    origin.slice = like.placed ? &slice_ : nullptr;
    origin.line = like.line;
  }
  void At(const Slice& slice) {
    slice_ = slice;
    if (origin.slice) origin.slice = &slice_;
  }

  Graph::Origin origin;

 private:
  Graph& graph_;
  Slice slice_;
};

struct TrainedWeight {
  int weight, gradient;      // values
  double decay = 1;          // WeightUpdate::Decay where no option gives it
  TouchedRows touched = {};  // of a table that is only looked up in; `gradient` is then that of these rows
};

// Numbers that updates share, added to the graph when they are first asked for.
class SharedNumbers {
 public:
  SharedNumbers(const CompileOptions& options, Node first, UpdateSite* site)
      : options_(options), first_(std::move(first)), site_(*site) {}

  // [] : the number of earlier updates, a variable. Undefined until it was asked for: updates().
  Tensor Updates();
  Tensor updates() const { return updates_; }
  // [] : lr times the schedule's factor for the step.
  Tensor Rate(double lr);

 private:
  const CompileOptions& options_;
  const Node first_;  // with which they stand
  UpdateSite& site_;
  Tensor updates_, fed_;
  std::map<std::pair<Slice, double>, Tensor> rates_;
};

// What the norms of gradients say of a step.
struct StepChecks {
  std::vector<Tensor> factors;        // by weight, on its gradient; undefined: 1
  Tensor applies;                     // whether updates are made; undefined: they are
  Tensor fits_fp16;                   // with a loss scale: whether no gradient overflowed
  Tensor had_room;                    // whether experts had room, in this step and those before; undefined:
                                      // none lets steps run again
  std::pair<Tensor, Tensor> average;  // of norms: a variable, and its value after a step that counts
};
StepChecks MeasureNorms(const Node& train, const CompileOptions& options,
                        const std::vector<TrainedWeight>& weights, SharedNumbers* numbers, UpdateSite* site);

// Lets a step in which experts had no room change no variable, the user's assigns included, nor those behind
// it until one runs with more room. Output "retried" is then above 0, and so it is of steps with more room.
// Throws Error for a write that cannot be held back. `first`: where the training's numbers stand.
void HoldBack(const CompileOptions& options, const Node& first, UpdateSite* site, StepChecks* checks);

// Assigns where the step's updates are made.
Tensor AssignIf(Tensor applies, Tensor variable, Tensor value);

// Adds the optimizer's update of a weight, and of its average: this times `keep`, and the new weight times
// `add`, unless these are undefined. Throws Error if the optimizer assigns the weight nothing.
struct Averaging {
  Tensor keep, add;
};
void UpdateWeight(const CompileOptions& options, const TrainedWeight& trained, Tensor factor, Tensor applies,
                  const Averaging& averaging, SharedNumbers* numbers, UpdateSite* site);

}  // namespace oneflow_like
