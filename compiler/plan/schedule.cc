#include "compiler/plan/schedule.h"

#include <algorithm>
#include <tuple>

namespace oneflow_like {

const char* Name(PipelineSchedule schedule) {
  const char* names[] = {"gpipe", "1f1b", "interleaved", "zero_bubble"};
  return names[static_cast<int>(schedule)];
}

namespace {

// Chunk and micro-batch, in the order of the forward or of the backward pass: in groups, one chunk after
// another. Groups are as even as they come: with a short last one the formula is missed, and lists followed
// to the letter could not end.
std::vector<Unit> InGroups(Phase part, const PipelineShape& shape, int groups) {
  std::vector<Unit> units;
  for (int g = 0, begin = 0; g < groups; ++g) {
    const int size = shape.micro_batches / groups + (g < shape.micro_batches % groups);
    for (int c = 0; c < shape.chunks; ++c)
      for (int m = begin; m < begin + size; ++m)
        units.push_back({part, part == Phase::kForward ? c : shape.chunks - 1 - c, m});
    begin += size;
  }
  return units;
}

// Forwards first, as many as it takes until the first backward can come back to this stage, then a backward
// and a forward in turn: 1F1B (PipeDream, Narayanan et al. 2021: the last stage keeps one micro-batch, the
// first one for each stage), over several chunks interleaved (Narayanan et al. 2021, section 2.2). With
// gradients of weights apart those are `stage` units late (Qi et al. 2023, ZB-H1).
StageSchedule Alternating(const PipelineShape& shape, int stage, int groups, bool apart) {
  const std::vector<Unit> forward = InGroups(Phase::kForward, shape, groups),
                          backward = InGroups(Phase::kBackward, shape, groups);
  const int first_group = (shape.micro_batches + groups - 1) / groups, left = shape.stages - stage;
  const size_t ahead = shape.chunks == 1 ? left : 2 * left - 1 + (shape.chunks - 1) * first_group;
  StageSchedule s;
  s.last = apart ? Phase::kWeightGradient : Phase::kBackward;
  auto weights_of = [&](size_t k) {
    if (apart) s.units.push_back({Phase::kWeightGradient, backward[k].chunk, backward[k].micro_batch});
  };
  s.units.assign(forward.begin(), forward.begin() + std::min(ahead, forward.size()));
  for (size_t k = 0; k < backward.size(); ++k) {
    s.units.push_back(backward[k]);
    if (k >= static_cast<size_t>(stage)) weights_of(k - stage);
    if (ahead + k < forward.size()) s.units.push_back(forward[ahead + k]);
  }
  for (size_t k = backward.size() - std::min<size_t>(stage, backward.size()); k < backward.size(); ++k)
    weights_of(k);
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

// The compute segments that work on each micro-batch.
struct Place {
  int stage = 0, chunk = 0, epoch = 0;
  auto operator<=>(const Place&) const = default;
};
using Parts = std::map<Phase, std::vector<int>>;

std::map<Place, Parts> PartsOf(const LogicalPlan& plan) {
  const std::map<Slice, int> stages = StagesOf(plan);
  std::map<Place, Parts> parts;
  for (size_t s = 0; s < plan.segments.size(); ++s) {
    const Segment& seg = plan.segments[s];
    if (!plan.On(seg, StreamKind::kCompute) || !seg.per_micro_batch || seg.phase == Phase::kUpdate) continue;
    parts[{stages.at(seg.slice), seg.chunk, seg.epoch}][seg.phase].push_back(static_cast<int>(s));
  }
  return parts;
}

const std::vector<int>& LastOf(const Parts& parts, Phase last) {
  static const std::vector<int> none;
  auto found = parts.find(last);
  if (found == parts.end()) found = parts.find(Phase::kBackward);
  return found == parts.end() ? none : found->second;
}

}  // namespace

int StageSchedule::Stashes(int chunk) const {
  int held = 0, most = 0;
  for (const Unit& u : units) {
    if (chunk >= 0 && u.chunk != chunk) continue;
    held += (u.part == Phase::kForward) - (u.part == last);
    most = std::max(most, held);
  }
  return most;
}

StageSchedule ScheduleOf(PipelineSchedule kind, const PipelineShape& shape, int stage, bool exact) {
  int groups = std::max(1, shape.micro_batches / shape.stages);
  // An order that one chunk does not see; GPipe's (Huang et al. 2019) keeps every micro-batch whatever it is.
  if (shape.chunks == 1) groups = 1;
  if (exact && shape.micro_batches % shape.stages == 0) groups = shape.micro_batches / shape.stages;
  if (kind != PipelineSchedule::kGPipe)
    return Alternating(shape, stage, groups, kind == PipelineSchedule::kZeroBubble);
  StageSchedule s{InGroups(Phase::kForward, shape, groups)};
  for (const Unit& u : InGroups(Phase::kBackward, shape, groups)) s.units.push_back(u);
  return s;
}

std::map<Slice, int> StagesOf(const LogicalPlan& plan) {
  std::map<Slice, int> stages;
  for (const Segment& s : plan.segments)
    if (plan.On(s, StreamKind::kCompute) && s.per_micro_batch && s.phase != Phase::kUpdate) stages[s.slice];
  int i = 0;
  for (auto& [slice, number] : stages) number = i++;
  return stages;
}

PipelineShape ShapeOf(const LogicalPlan& plan, int micro_batches) {
  PipelineShape shape{std::max<int>(1, static_cast<int>(StagesOf(plan).size())), 1, micro_batches};
  for (const Segment& s : plan.segments) shape.chunks = std::max(shape.chunks, s.chunk + 1);
  return shape;
}

// How many micro-batches a stage works on: one in the segments of each part of a chunk (or LogicalPlan::
// beside), and as many between the start of the forward and the end of the last part as its schedule says.
// Acts of a later epoch wait for all micro-batches of this one, so no limit spans epochs. Within an
// epoch no micro-batch waits for another, so it can be gone through one micro-batch after another whatever
// the limits, and the plan completes.
std::vector<StageLimit> LimitsOf(const LogicalPlan& plan, int micro_batches) {
  const PipelineShape shape = ShapeOf(plan, micro_batches);
  std::vector<StageLimit> limits;
  auto limit = [&](const Ends& begin, const Ends& end, int micro_batches, const std::string& why) {
    for (int from : begin.first)
      for (int to : end.last)
        if (from < to) limits.push_back({from, to, micro_batches, why});  // edges point forward
  };
  for (const auto& [where, parts] : PartsOf(plan)) {
    const StageSchedule schedule = ScheduleOf(plan.schedule, shape, where.stage, plan.exact_groups);
    if (auto forward = parts.find(Phase::kForward); forward != parts.end())
      limit(EndsOf(plan, forward->second), EndsOf(plan, LastOf(parts, schedule.last)),
            std::min(schedule.Stashes(where.chunk) + plan.beside - 1, micro_batches),
            "micro-batches between forward and backward");
    for (const auto& [part, segments] : parts) {
      const Ends ends = EndsOf(plan, segments);
      limit(ends, ends, plan.beside, Cat("micro-batches in ", Name(part), " segments"));
    }
  }
  return limits;
}

std::vector<ActWait> WaitsOf(const LogicalPlan& plan, int micro_batches, bool whole_units) {
  const PipelineShape shape = ShapeOf(plan, micro_batches);
  if (shape.chunks == 1 && plan.schedule != PipelineSchedule::kZeroBubble) return {};
  std::map<std::tuple<int, int, Phase>, Ends> ends;  // by stage, chunk, part
  for (const auto& [where, parts] : PartsOf(plan)) {
    if (where.epoch > 0) return {};  // more units than a list has
    for (const auto& [part, segments] : parts)
      ends[{where.stage, where.chunk, part}] = EndsOf(plan, segments);
  }
  std::vector<ActWait> waits;
  auto wait = [&](int stage, const Unit& late, const Unit& early) {
    for (int from : ends[{stage, early.chunk, early.part}].last)
      for (int to : ends[{stage, late.chunk, late.part}].first)
        waits.push_back({to, late.micro_batch, from, early.micro_batch});
  };
  for (int stage = 0; stage < shape.stages; ++stage) {
    const StageSchedule schedule = ScheduleOf(plan.schedule, shape, stage, plan.exact_groups);
    const Unit *forward = nullptr, *backward = nullptr, *weights = nullptr;  // the last so far
    for (const Unit& u : schedule.units) {
      if (whole_units && forward && u.part != Phase::kWeightGradient) wait(stage, u, *forward);
      if (u.part != Phase::kBackward && backward) wait(stage, u, *backward);
      if (u.part == Phase::kForward && weights) wait(stage, u, *weights);
      if (u.part == Phase::kForward) forward = &u;
      if (u.part == Phase::kBackward) backward = &u;
      if (u.part == Phase::kWeightGradient) weights = &u;
    }
  }
  return waits;
}

}  // namespace oneflow_like
