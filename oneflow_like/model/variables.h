// Exchanges variables between a model and the graphs of its sessions: their placement for a session's graph,
// and new variables for the model.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "oneflow_like/model/model_impl.h"

namespace oneflow_like {

// A copy of the part of `source` from which `outputs` (name -> value) are computed, with blocks on the stages
// of `division`, and weights where these are, else where the model has placed them, and as it has cut them,
// but for `cuts`.
Graph SessionGraph(const GraphOfModel& source, const std::map<std::string, int>& outputs,
                   const StageCuts& division, const VariableCuts& cuts = {});

// Makes the model remember a division, and where the weights of this graph are with it.
void Settle(GraphOfModel* source, const StageCuts& division);

// The variables of a session's graph that the model does not know yet. Throws Error, beginning with `who`,
// for one that is placed differently from the model's variable of that name.
std::vector<ModelVariable> NewState(const std::string& who, const ModelImpl& model, const Graph& graph);

// Model::WeightsMark.
std::string MarkOf(const ModelImpl& model);

// Model::Read.
HostTensor ReadVariable(ModelImpl* model, const std::string& variable);

// The name of the average that a training keeps of a weight.
std::string AverageOf(const std::string& training, const std::string& weight);

// Gives the averages of trainings that have not updated their weights yet the values of these. Waits for
// steps in flight as long as there are such trainings. Collective in a job.
void BeginAverages(ModelImpl* model);

}  // namespace oneflow_like
