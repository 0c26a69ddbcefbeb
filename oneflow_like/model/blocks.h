// Divides a model's blocks (Blocks in model.h) over the stages of a pipeline. A graph is first built with the
// blocks spread evenly; once all of it is known, and before any variable is placed, they are divided by cost.
// The model remembers the division, so all of its graphs have the same one.
#pragma once

#include "oneflow_like/model/model_impl.h"

namespace oneflow_like {

// Moves the blocks of a graph, and their variables, to the stages that the model has chosen for them.
void CutBlocks(GraphOfModel* graph);

// Divides them again with one block less on each stage of `ranks`. Returns false and does nothing if no other
// division is left, or if blocks were divided by hand, are placed already or are in another session.
bool MoveBlocksOff(GraphOfModel* graph, const std::vector<int>& ranks);

// Undoes all of MoveBlocksOff, but where blocks are placed already or are in another session.
void MoveBlocksBack(GraphOfModel* graph);

}  // namespace oneflow_like
