#include "oneflow_like/planner/plan_share.h"

#include <limits>
#include <sstream>

#include "actor/net/talk/job.h"
#include "oneflow_like/job/together.h"

namespace oneflow_like {

// Numbers first; then of each of the best its figures, its decisions and an empty line.
std::string ToText(const PlanSearchResult& result) {
  std::ostringstream text;
  text.precision(std::numeric_limits<double>::max_digits10);
  text << result.candidates << ' ' << result.too_large << ' ' << result.compiled << ' ' << result.memory
       << '\n';
  for (const PlanTrial& t : result.best)
    text << t.seconds << ' ' << t.compute << ' ' << t.messages << ' ' << t.bubble << ' ' << t.bytes << '\n'
         << ToText(SavedPlan{t.plan, "", ""}) << '\n';
  return text.str();
}

PlanSearchResult PlanSearchResultFromText(const std::string& text) {
  std::istringstream in(text);
  PlanSearchResult result;
  in >> result.candidates >> result.too_large >> result.compiled >> result.memory;
  for (PlanTrial t; in >> t.seconds >> t.compute >> t.messages >> t.bubble >> t.bytes;) {
    std::string plan, line;
    std::getline(in, line);
    while (std::getline(in, line) && !line.empty()) plan += line + "\n";
    static_cast<Decisions&>(t.plan) = ParseSavedPlan(plan).decisions;
    t.compiled = true;
    result.best.push_back(t);
  }
  return result;
}

PlanSearchResult SearchForAll(Job* job, const std::function<PlanSearchResult()>& search) {
  PlanSearchResult result;
  const std::string of_zero = FromProcessZero(job, "the search for a plan", [&] {
    result = search();
    return ToText(result);
  });
  return job->process() == 0 ? result : PlanSearchResultFromText(of_zero);
}

}  // namespace oneflow_like
