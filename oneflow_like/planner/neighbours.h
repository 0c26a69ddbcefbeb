// Neighbourhoods of a plan: the plans that differ from it in one decision.
#pragma once

#include <vector>

#include "oneflow_like/planner/trial_pool.h"

namespace oneflow_like {

// Each compiles from where its decision first counts: waits from the lowered graph on, cuts and blocks from
// the placed one, flags from the user's code on. `session` is the plan's own; `pool` has the flags that the
// space leaves open.
using Neighbourhood = std::vector<PlanCandidate>(const PlanCandidate& plan, const Session& session,
                                                 const TrialPool& pool);

// One region waits otherwise for its gradients, but not on the host.
Neighbourhood WaitOtherwise;
// One region waits on the host in place of being computed again.
Neighbourhood WaitOnHost;
// One kind of weights is cut otherwise; nothing where weights are as the model is annotated.
Neighbourhood CutOtherwise;
// One block moves to the stage before or after it.
Neighbourhood DivideOtherwise;
// The axes of the mesh come in another order, where links differ.
Neighbourhood OrderOtherwise;
// One of the flags is another: micro-batches, schedule and virtual stages, ZeRO, sequence parallelism, or
// recomputation where it is the same everywhere.
Neighbourhood FlagOtherwise;

}  // namespace oneflow_like
