#include "oneflow_like/planner/plan_share.h"

#include <limits>
#include <sstream>

#include "actor/net/talk/job.h"
#include "oneflow_like/job/together.h"

namespace oneflow_like {

std::string ToText(const PlanSearchResult& result) {
  std::ostringstream text;
  text.precision(std::numeric_limits<double>::max_digits10);
  text << result.candidates << ' ' << result.too_large << ' ' << result.compiled << ' ' << result.memory
       << '\n';
  for (const PlanTrial& t : result.best)
    text << t.plan.mesh.str() << ' ' << t.plan.micro_batches << ' ' << t.plan.virtual_stages << ' '
         << static_cast<int>(t.plan.schedule) << ' ' << t.plan.zero << ' '
         << static_cast<int>(t.plan.recompute) << ' ' << t.plan.sequence_parallel << ' ' << t.seconds << ' '
         << t.compute << ' ' << t.messages << ' ' << t.bubble << ' ' << t.bytes << '\n';
  return text.str();
}

PlanSearchResult PlanSearchResultFromText(const std::string& text) {
  std::istringstream in(text);
  PlanSearchResult result;
  in >> result.candidates >> result.too_large >> result.compiled >> result.memory;
  std::string mesh;
  int schedule = 0, recompute = 0;
  for (PlanTrial t; in >> mesh >> t.plan.micro_batches >> t.plan.virtual_stages >> schedule >> t.plan.zero >>
                    recompute >> t.plan.sequence_parallel >> t.seconds >> t.compute >> t.messages >>
                    t.bubble >> t.bytes;) {
    t.plan.mesh = Mesh::Parse(mesh);
    t.plan.schedule = static_cast<PipelineSchedule>(schedule);
    t.plan.recompute = static_cast<Recompute>(recompute);
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
