// Times of a session's steps, for page.html.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "actor/net/talk/job.h"
#include "oneflow_like/report/figures.h"

namespace oneflow_like {

namespace {

using Json = nlohmann::json;

constexpr size_t kKernelsOfProcess = 300;
constexpr size_t kActsOfJob = 12000;
constexpr int kRanksOfJob = 16;
// The chart is of this step of the session, or the last before it: libraries are warm by then, and few traces
// are full.
constexpr int64_t kChartedStep = 4;

int64_t ChartedStep(const std::vector<TracedAct>& acts) {
  int64_t first = -1, last = -1;
  for (const TracedAct& a : acts) {
    if (first < 0 || a.step < first) first = a.step;
    last = std::max(last, a.step);
  }
  return std::min(last, first + kChartedStep);
}

}  // namespace

std::string ReportMeasurements(const Session::Impl& session) {
  const StepProfile& profile = session.reported;
  const Job* job = session.model->options.job.get();
  const int processes = job ? job->processes() : 1;
  Json kernels = Json::array(), shown = Json::array();
  for (size_t i = 0; i < std::min(profile.hottest.size(), kKernelsOfProcess); ++i)
    kernels.push_back({profile.hottest[i].label, profile.hottest[i].category, profile.hottest[i].seconds,
                       profile.hottest[i].runs});
  int64_t missing = 0, left_out = 0;
  const std::vector<TracedAct> acts = session.runtime->TracedActs(&missing);
  const int64_t step = ChartedStep(acts);
  // By segment: how often it acted in the steps after the first, and seconds from the start of an act to its
  // end, which of a collective is when the others are done too.
  std::map<int, std::pair<int64_t, double>> segments;
  const std::vector<Segment>& compiled = session.compiled.logical.segments;
  const int64_t first = acts.empty() ? 0 : std::min_element(acts.begin(), acts.end(), [](auto& a, auto& b) {
                                             return a.step < b.step;
                                           })->step;
  const int here = std::max(1, kRanksOfJob / processes);
  const size_t most = std::max<size_t>(1, kActsOfJob / processes);
  std::vector<int> ranks;
  for (const TracedAct& a : acts) {
    if (a.step > first) {
      ++segments[a.actor].first;
      segments[a.actor].second += static_cast<double>(a.end - a.start) * 1e-9;
    }
    if (a.step != step || compiled[a.actor].stream < 0) continue;
    if (ranks.empty() || ranks.back() != a.rank) ranks.push_back(a.rank);
    if (static_cast<int>(ranks.size()) > here || shown.size() >= most) {
      ++left_out;
      continue;
    }
    shown.push_back({a.rank, compiled[a.actor].stream, a.actor, a.act, a.start, a.end});
  }
  Json of_segments = Json::array();
  for (const auto& [id, sum] : segments) of_segments.push_back({id, sum.first, sum.second});
  const int64_t origin = job ? session.model->TraceOriginHere() : 0;
  for (Json& act : shown)
    for (int i : {4, 5}) act[i] = static_cast<double>(act[i].get<int64_t>() - origin) * 1e-9;
  Json layers = Json::array();
  for (const ShownNumber& number : session.shown->all())
    layers.push_back({number.name, number.mean(), number.greatest});
  const Json measured = {{"process", job ? job->process() : 0},
                         {"steps", profile.steps},
                         {"warm_up_steps", profile.warm_up_steps},
                         {"threads", profile.threads},
                         {"wall", profile.wall},
                         {"waiting", profile.waiting},
                         {"runtime", profile.runtime},
                         {"data", profile.data},
                         {"categories", profile.kernels},
                         {"kernels", kernels},
                         {"layers", layers},
                         {"segments", of_segments},
                         {"step", step},
                         {"acts", shown},
                         {"left_out_acts", left_out},
                         {"missing", missing}};
  return measured.dump(-1, ' ', true, Json::error_handler_t::replace);
}

}  // namespace oneflow_like
