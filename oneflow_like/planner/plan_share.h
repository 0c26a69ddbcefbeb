// One search for several processes.
#pragma once

#include <functional>

#include "oneflow_like/plan_search.h"

namespace oneflow_like {

// Collective: what `search` gives in process 0, without PlanSearchResult::lost in the others; an Error there
// is one everywhere.
PlanSearchResult SearchForAll(Job* job, const std::function<PlanSearchResult()>& search);

// A result as text and back; Text() of both is the same but for what is lost.
std::string ToText(const PlanSearchResult& result);
PlanSearchResult PlanSearchResultFromText(const std::string& text);

}  // namespace oneflow_like
