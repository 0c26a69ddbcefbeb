// Exchanges variables between a model and the graphs of its sessions: their placement for a session's graph,
// and new variables for the model.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "oneflow_like/model/model_impl.h"

namespace oneflow_like {

// A copy of the part of `source` from which `outputs` (name -> value) are computed, with weights where the
// model has placed them.
Graph SessionGraph(GraphOfModel* source, const std::map<std::string, int>& outputs);

// The variables of a session's graph that the model does not know yet. Throws Error, beginning with `who`,
// for one that is placed differently from the model's variable of that name.
std::vector<ModelVariable> NewState(const std::string& who, const ModelImpl& model, const Graph& graph);

// Model::Read.
HostTensor ReadVariable(ModelImpl* model, const std::string& variable);

// The name of the average that a training keeps of a weight.
std::string AverageOf(const std::string& training, const std::string& weight);

// Gives the averages of trainings that have not updated their weights yet the values of these. Waits for
// steps in flight as long as there are such trainings. Collective in a job.
void BeginAverages(ModelImpl* model);

}  // namespace oneflow_like
