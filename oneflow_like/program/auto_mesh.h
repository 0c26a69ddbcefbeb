// --auto_mesh=N: a program that trains looks for its plan. Other flags that say something of the plan are
// kept.
#pragma once

#include <optional>

#include "oneflow_like/plan_search.h"
#include "oneflow_like/program/program.h"

namespace oneflow_like {

// Searches for a plan of --auto_mesh devices for the program on the machines of --topology, and prints what
// was found; with --auto cuts of weights, with --recompute=auto recomputation of each layer are searched for,
// too. Nothing without the flag. Collective. Throws Error for flags that leave nothing to choose from, and as
// SearchPlans does.
std::optional<PlanCandidate> PlanOfAutoMesh(const Launcher& launcher, const Program& program);

bool CutsSequences();  // --sequence_parallel, where the program has it

}  // namespace oneflow_like
