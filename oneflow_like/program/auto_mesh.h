// --auto_mesh=N: searches for the plan of a program that trains. Flags that give a part of the plan are kept.
#pragma once

#include <optional>

#include "oneflow_like/plan_search.h"
#include "oneflow_like/program/program.h"

namespace oneflow_like {

// Searches for a plan for the program on --auto_mesh devices of the machines of --topology, and prints the
// result. With --auto the search includes cuts of weights, with --recompute=auto recomputation of each layer.
// Returns nothing without the flag. Collective. Throws Error if flags leave no choice, and as SearchPlans
// does.
std::optional<PlanCandidate> PlanOfAutoMesh(const Launcher& launcher, const Program& program);

// Returns the options for a plan's mesh: if it lacks the axes of --reduce_axis, gradients are summed in fp32.
TrainOptions OnMesh(TrainOptions train, const Mesh& mesh);

// Returns whether a flag that only programs of language models have is on: "sequence_parallel",
// "context_parallel" or "ulysses".
bool IsOn(const char* flag);

}  // namespace oneflow_like
