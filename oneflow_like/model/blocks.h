// Divides a model's blocks (Blocks in model.h) over the stages of a pipeline. A graph is built with the
// blocks spread evenly; once all of it is known they are divided by cost, and each session's copy of the
// graph has them where the division says. The graph itself stays as it was built.
#pragma once

#include <vector>

#include "oneflow_like/model/model_impl.h"

namespace oneflow_like {

// Where the graph's blocks are: as the model has divided them already; else by estimated time, unless they
// are divided by hand, lie somewhere already, or nodes do not follow their operands.
StageCuts DivisionOf(const GraphOfModel& graph);
// Where Pipeline::layers says that they are: those that DivisionOf lacks, but for stacks with a `per_stage`
// of their own.
StageCuts DivisionOfOptions(const GraphOfModel& graph);

// Moves the blocks of `copy`, a copy of the graph as it was built, with their variables and what follows
// them, to the stages of `division`; stacks that it lacks stay.
void MoveBlocks(const StageCuts& division, GraphOfModel* copy);

// Divisions with fewer and fewer blocks on stages that are too full.
class Divisions {
 public:
  // Begins with `first`. `graph` must outlive it.
  Divisions(const GraphOfModel& graph, StageCuts first);

  const StageCuts& now() const { return now_; }
  // Goes on to the division with one block less on each stage of `ranks`; false: there is none, or no stack
  // may be divided again.
  bool TakeFrom(const std::vector<int>& ranks);

 private:
  const GraphOfModel& graph_;
  StageCuts now_;
  StageCuts most_;  // blocks for which each stage has memory
};

}  // namespace oneflow_like
