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

// Where the work of `segments` (ascending) begins and ends: those that no value of another one of them
// reaches, and those whose values reach no other.
struct Ends {
  std::vector<int> first, last;
};

Ends EndsOf(const LogicalPlan& plan, const std::vector<int>& segments) {
  Ends ends;
  if (segments.empty()) return ends;
  const size_t n = plan.segments.size();
  std::vector<std::vector<int>> readers(n);
  for (const LogicalEdge& e : plan.edges)
    if (!e.buffers.empty() && e.full == 0) readers[e.writer].push_back(e.reader);
  std::vector<bool> member(n, false), reached(n, false), reaches(n, false);
  for (int s : segments) member[s] = true;
  for (int s = segments.front(); s <= segments.back(); ++s)
    for (int r : readers[s]) reached[r] = reached[r] || reached[s] || member[s];
  for (int s = segments.back(); s >= segments.front(); --s)
    for (int r : readers[s]) reaches[s] = reaches[s] || reaches[r] || member[r];
  for (int s : segments) {
    if (!reached[s]) ends.first.push_back(s);
    if (!reaches[s]) ends.last.push_back(s);
  }
  return ends;
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
  struct Parts {
    std::vector<int> forward, backward;  // segments
  };
  const std::map<Slice, int> stages = StagesOf(plan);
  std::map<std::pair<int, int>, Parts> parts;  // by stage and epoch
  for (size_t s = 0; s < plan.segments.size(); ++s) {
    const Segment& seg = plan.segments[s];
    if (!plan.On(seg, StreamKind::kCompute) || !seg.per_micro_batch || seg.phase == Phase::kUpdate) continue;
    Parts& p = parts[{stages.at(seg.slice), seg.epoch}];
    (seg.phase == Phase::kForward ? p.forward : p.backward).push_back(static_cast<int>(s));
  }
  std::vector<StageLimit> limits;
  auto limit = [&](const Ends& begin, const Ends& end, int micro_batches, const char* why) {
    for (int from : begin.first)
      for (int to : end.last)
        if (from < to) limits.push_back({from, to, micro_batches, why});  // edges point forward
  };
  for (const auto& [where, p] : parts) {
    const int stashes =
        ScheduleOf(plan.schedule, where.first, static_cast<int>(stages.size()), micro_batches).stashes;
    const Ends forward = EndsOf(plan, p.forward), backward = EndsOf(plan, p.backward);
    limit(forward, backward, stashes, "micro-batches between forward and backward");
    limit(forward, forward, 1, "micro-batches in forward segments");
    limit(backward, backward, 1, "micro-batches in backward segments");
  }
  return limits;
}

}  // namespace oneflow_like
