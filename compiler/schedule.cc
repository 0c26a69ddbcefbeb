#include "compiler/schedule.h"

#include <algorithm>

namespace oneflow_like {

namespace {

// All forwards, then all backwards (Huang et al. 2019). Every micro-batch is kept.
StageSchedule GPipe(int micro_batches) {
  StageSchedule s;
  for (Phase part : {Phase::kForward, Phase::kBackward})
    for (int m = 0; m < micro_batches; ++m) s.units.push_back({part, m});
  s.stashes = micro_batches;
  return s;
}

// As many forwards as there are stages from here on, then a backward and a forward in turn (PipeDream,
// Narayanan et al. 2021): the last stage keeps one micro-batch, the
// first one for each stage.
StageSchedule OneForwardOneBackward(int stage, int stages, int micro_batches) {
  StageSchedule s;
  s.stashes = std::min(stages - stage, micro_batches);
  for (int m = 0; m < s.stashes; ++m) s.units.push_back({Phase::kForward, m});
  for (int m = 0; m < micro_batches; ++m) {
    s.units.push_back({Phase::kBackward, m});
    if (m + s.stashes < micro_batches) s.units.push_back({Phase::kForward, m + s.stashes});
  }
  return s;
}

}  // namespace

StageSchedule ScheduleOf(PipelineSchedule kind, int stage, int stages, int micro_batches) {
  return kind == PipelineSchedule::kGPipe ? GPipe(micro_batches)
                                          : OneForwardOneBackward(stage, stages, micro_batches);
}

std::map<Slice, int> StagesOf(const LogicalPlan& plan) {
  std::map<Slice, int> stages;
  for (const Segment& s : plan.segments)
    if (plan.On(s, StreamKind::kCompute) && s.per_micro_batch && s.phase != Phase::kUpdate) stages[s.slice];
  int i = 0;
  for (auto& [slice, number] : stages) number = i++;
  return stages;
}

// How many micro-batches a stage works on: one in its forward segments, and as many between the start of the
// forward and the end of the backward as its schedule says. What comes in a later epoch waits for all
// micro-batches of this one, so no limit spans epochs. Within an epoch no micro-batch waits for another, so
// it can be gone through one micro-batch after another whatever the limits, and the plan completes.
std::vector<StageLimit> LimitsOf(const LogicalPlan& plan, int micro_batches) {
  struct Ends {
    int first[2] = {-1, -1}, last[2] = {-1, -1};  // by part
  };
  const std::map<Slice, int> stages = StagesOf(plan);
  std::map<std::pair<int, int>, Ends> ends;  // by stage and epoch
  for (size_t s = 0; s < plan.segments.size(); ++s) {
    const Segment& seg = plan.segments[s];
    if (!plan.On(seg, StreamKind::kCompute) || !seg.per_micro_batch || seg.phase == Phase::kUpdate) continue;
    Ends& e = ends[{stages.at(seg.slice), seg.epoch}];
    const int part = static_cast<int>(seg.phase);
    if (e.first[part] < 0) e.first[part] = static_cast<int>(s);
    e.last[part] = static_cast<int>(s);
  }
  std::vector<StageLimit> limits;
  auto limit = [&](int from, int to, int slots, const char* why) {
    if (from >= 0 && to >= 0 && from != to) limits.push_back({from, to, slots, why});
  };
  for (const auto& [where, e] : ends) {
    const int stashes =
        ScheduleOf(plan.schedule, where.first, static_cast<int>(stages.size()), micro_batches).stashes;
    limit(e.first[0], e.last[1], stashes, "micro-batches between forward and backward");
    limit(e.first[0], e.last[0], 1, "micro-batches in forward segments");
    limit(e.first[1], e.last[1], 1, "micro-batches in backward segments");
  }
  return limits;
}

}  // namespace oneflow_like
