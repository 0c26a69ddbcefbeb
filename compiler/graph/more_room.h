// Gives experts the room of plans in which steps run again, and of evaluations (nn::ExpertOverflow::kRetry).
#pragma once

#include "compiler/graph/graph.h"

namespace oneflow_like {

// Operators that say so (kRetryRoom) get more room, with which a step that has not enough fails; what depends
// on them gets other extents. Does nothing to a graph without such operators. `graph` is built, without
// signatures. Throws Error naming an operator that does not take the other extents.
void WithMoreRoom(Graph* graph);

}  // namespace oneflow_like
