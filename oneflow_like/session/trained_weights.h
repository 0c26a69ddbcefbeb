// Which weights a session trains (TrainOptions::weights) and which it reads (EvaluateOptions::weights).
#pragma once

#include <set>
#include <string>
#include <vector>

#include "oneflow_like/session/session_impl.h"

namespace oneflow_like {

// Nodes that the values are computed from, their own among them.
std::set<int> Ancestors(const Graph& graph, const std::vector<int>& values);
// Freezes, in a session's graph, the weights that no pattern of TrainOptions::weights matches. Throws Error
// for a pattern that matches none that could be trained.
void TrainOnly(const std::string& who, const std::vector<std::string>& patterns, int loss, Graph* graph);
// Throws Error if an earlier session of the same training updates other weights, or only one of the two keeps
// averages.
void CheckSameTraining(const std::string& who, const ModelImpl& model, const TrainOptions& options);
// Throws Error for numbers of TrainOptions::average outside of their domains.
void CheckAverage(const std::string& who, const Average& average);
// Puts averages in the place of weights, as EvaluateOptions::weights says. Throws Error where there are none.
void ReadAverages(const std::string& who, const ModelImpl& model, const std::string& weights, Graph* graph);

}  // namespace oneflow_like
