// Where a model's blocks lie: stacks of blocks (Blocks in model.h) over the stages of a pipeline. A graph is
// built with as many blocks on each stage as go; once all of it is known, and before anything lies anywhere,
// they are cut by cost. The model remembers the cut, so all of its graphs have the same one.
#pragma once

#include "oneflow_like/model_impl.h"

namespace oneflow_like {

// Brings the stacks of a graph, and the variables of their blocks, to the stages where the model has them.
void CutBlocks(GraphOfModel* graph);

// Cuts them again with a block less on each stage that one of `ranks` stands on. False, and nothing is done,
// where no other cut is left, or where blocks were dealt by hand, lie somewhere or are in another session.
bool MoveBlocksOff(GraphOfModel* graph, const std::vector<int>& ranks);

}  // namespace oneflow_like
