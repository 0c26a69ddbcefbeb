// What was chosen about cuts of weights, for people.
#pragma once

#include <string>

#include "compiler/search/choose_weights.h"
#include "oneflow_like/model/model_impl.h"

namespace oneflow_like {

// Model::CutsText and Model::CutReasons, of the cuts that `search` has found; nullptr: a plan that was given.
std::string CutsText(const ModelImpl& model, const WeightSearch* search, const VariableCuts& cuts);
std::string CutReasons(const ModelImpl& model, const WeightSearch& search, const VariableCuts& cuts);

}  // namespace oneflow_like
