// Variables between a model and the graphs of its sessions: what a session's graph must say of them, and what
// the model learns from it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "oneflow_like/model_impl.h"

namespace oneflow_like {

// A copy of `source` with only what `outputs` (name -> value) are computed from, weights where the model has
// settled that they lie.
Graph SessionGraph(GraphOfModel* source, const std::map<std::string, int>& outputs);

// The variables of a session's graph that the model does not know yet. Throws Error, beginning with `who`,
// for one that lies elsewhere than the model's of that name.
std::vector<ModelVariable> NewState(const std::string& who, const ModelImpl& model, const Graph& graph);

}  // namespace oneflow_like
