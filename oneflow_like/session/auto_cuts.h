// ModelOptions::auto_cuts: what weights are cut along is chosen when a model's first session is compiled.
#pragma once

#include <functional>

#include "compiler/search/choose_weights.h"
#include "oneflow_like/session/session_impl.h"

namespace oneflow_like {

// Recomputation that is left to the compiler, as Recompute::kAuto, is searched for; or, to compare many cuts
// of a large graph, all is computed again, which takes one compilation.
enum class SearchDepth { kWhole, kFirstLook };

// What `finish` gives. If cuts of the model's weights are to be chosen and are not yet, they are chosen
// first, by the graph that `begin` gives, which has come through place_stages, and as if they were annotated.
// While `finish` throws OverBudget, cuts that leave less on a device are tried; if the smallest do not fit,
// the last refusal stands. Collective: process 0 searches, and all get what it has found.
Session WithCutsChosen(ModelImpl* model, const CompileOptions& options, const std::function<Graph()>& begin,
                       const std::function<Session(SearchDepth)>& finish);

}  // namespace oneflow_like
