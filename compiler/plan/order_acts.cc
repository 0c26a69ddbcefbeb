// The order of acts and the number of slots.
// Needs: segments and edges. Leaves: one step of the token game played with estimated times and the
// schedule's priorities is the order; a buffer gets as many slots as were ever taken at once, from the start
// of the writer's act to the end of its last reader's. A variable and a limit have their slots before, and
// the play keeps to them. The priority of an act is its place in the schedule of its stage (schedule.h).
#include <glog/logging.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "compiler/plan/make_plans.h"
#include "compiler/plan/schedule.h"
#include "core/random.h"

namespace oneflow_like {

namespace {

// Most slots of a buffer taken at once in the play. What a feed holds is counted from its first reader on,
// plus one slot to fill meanwhile: a feed has its data at any time and need not be early. `edges`: those of
// the buffer's writer.
int PeakOf(const LogicalPlan& plan, const LogicalBuffer& b, const std::vector<const LogicalEdge*>& edges,
           const std::vector<std::vector<const Firing*>>& acts) {
  auto period = [&](int reader) {
    for (const LogicalEdge* e : edges)
      if (e->reader == reader && e->full == b.full && e->write_period == b.write_period &&
          std::binary_search(e->buffers.begin(), e->buffers.end(), plan.buffer_of[b.value]))
        return e->read_period;
    return 1;
  };
  bool feed = plan.segments[b.writer].stream < 0;
  int slots = static_cast<int>(acts[b.writer].size()) / b.write_period;
  std::vector<int> periods;
  for (int r : b.readers) periods.push_back(period(r));
  std::vector<std::pair<double, int>> events;  // time, +1 taken or -1 given back; given back first
  for (int k = 0; k < slots; ++k) {
    double begin = feed ? 1e300 : acts[b.writer][k * b.write_period]->start;
    double end = acts[b.writer][(k + 1) * b.write_period - 1]->end;
    for (size_t i = 0; i < b.readers.size(); ++i) {
      const auto& reads = acts[b.readers[i]];
      int first = k * periods[i], last = (k + 1) * periods[i] - 1;
      if (last >= static_cast<int>(reads.size())) continue;
      end = std::max(end, reads[last]->end);
      if (feed) begin = std::min(begin, reads[first]->start);
    }
    events.push_back({begin, 1});
    events.push_back({end, -1});
  }
  std::sort(events.begin(), events.end());
  int now = 0, peak = 1;
  for (auto& [t, d] : events) peak = std::max(peak, now += d);
  if (feed) peak = std::min(peak + 1, std::max(slots, 2));
  return peak;
}

// By segment, the number of the first one that waits for it and works on each micro-batch: for what runs once
// a step, as gathers of weights do, by way of others of that kind; -1 without such a reader. For all other
// segments, its own number.
std::vector<int> NeededBy(const LogicalPlan& plan) {
  const int n = static_cast<int>(plan.segments.size());
  std::vector<int> first(n, n);
  std::vector<std::vector<int>> readers(n);
  for (const LogicalEdge& e : plan.edges)
    if (e.full == 0) readers[e.writer].push_back(e.reader);
  for (int s = n - 1; s >= 0; --s) {  // edges point forward
    if (plan.segments[s].per_micro_batch) {
      first[s] = s;
      continue;
    }
    for (int r : readers[s]) first[s] = std::min(first[s], first[r]);
  }
  for (int s = 0; s < n; ++s)
    if (first[s] == n) first[s] = -1;
  return first;
}

// The place of an act in its stage's schedule. What runs once a step, and what is of no stage, goes with the
// first micro-batch of its phase; updates come last, and so do, of several micro-batches, gradients of all of
// them together: ahead of others' sums they would keep the link waiting until the last micro-batch. At one
// place what is needed sooner comes first.
class Priorities {
 public:
  Priorities(const LogicalPlan& plan, int micro_batches) {
    const PipelineShape shape = ShapeOf(plan, micro_batches);
    const std::map<Slice, int> stages = StagesOf(plan);
    for (int stage = 0; stage < shape.stages; ++stage) {
      const StageSchedule s = ScheduleOf(plan.schedule, shape, stage, plan.exact_groups);
      for (size_t i = 0; i < s.units.size(); ++i) {
        std::vector<int>& acts = places_[{stage, s.units[i].part, s.units[i].chunk}];
        acts.resize(micro_batches);
        acts[s.units[i].micro_batch] = static_cast<int>(i);
      }
    }
    const std::vector<int> needed = NeededBy(plan);
    for (size_t i = 0; i < plan.segments.size(); ++i) {
      const Segment& s = plan.segments[i];
      auto stage = stages.find(s.slice);
      auto place = places_.find({stage == stages.end() ? 0 : stage->second, s.phase, s.chunk});
      const bool last = place == places_.end() || (micro_batches > 1 && IsGradient(s.phase) && needed[i] < 0);
      of_segment_.push_back(last ? nullptr : &place->second);
      const double at = needed[i] < 0 ? static_cast<double>(i) : needed[i];
      within_.push_back(at / (1.0 + static_cast<double>(plan.segments.size())));
    }
  }

  double Of(int segment, int act) const {
    return (of_segment_[segment] ? (*of_segment_[segment])[act] : 1e9) + within_[segment];
  }

 private:
  std::map<std::tuple<int, Phase, int>, std::vector<int>> places_;  // by stage, part, chunk: of micro-batches
  std::vector<const std::vector<int>*> of_segment_;                 // null: an update
  std::vector<double> within_;                                      // by segment, in [0, 1)
};

// Feeds fire as early as anything lets them, which says nothing: they are in no stream's list. In the order
// each stands right before the first act that reads it.
std::vector<Firing> FeedsBeforeReaders(const LogicalPlan& plan, const std::vector<Firing>& firings) {
  std::vector<int> fed(plan.segments.size(), 0);
  std::vector<std::vector<const LogicalEdge*>> feeds(plan.segments.size());  // by reader
  std::vector<bool> is_feed(plan.segments.size(), false);
  for (const LogicalEdge& e : plan.edges)
    if (plan.segments[e.writer].stream < 0) {
      is_feed[e.writer] = true;
      feeds[e.reader].push_back(&e);
    }
  std::vector<std::vector<const Firing*>> of(plan.segments.size());
  for (const Firing& f : firings) of[f.transition].push_back(&f);
  std::vector<Firing> order;
  for (const Firing& f : firings) {
    if (is_feed[f.transition]) continue;
    for (const LogicalEdge* e : feeds[f.transition])
      for (int need = f.act / e->read_period + 1; fed[e->writer] < need; ++fed[e->writer]) {
        Firing feed = *of[e->writer][fed[e->writer]];
        feed.start = feed.end = f.start;
        order.push_back(feed);
      }
    order.push_back(f);
  }
  return order;
}

// Nothing if the waits make a circle.
std::optional<Play> PlayWith(TokenGame* game, std::vector<ActWait> waits, const Priority& priority) {
  game->waits = std::move(waits);
  try {
    return PlayStep(*game, priority);
  } catch (const Error&) {
    game->waits.clear();
    return std::nullopt;
  }
}

// A model may come back to its stages in another order than their lists suppose, and not be able to follow
// them; the limits of chunks hold all the same. Whether it is better to fill the time of messages with other
// micro-batches, or to be done with each sooner, the play itself tells: a stage that fills it delays those
// after it.
Play PlayStages(const LogicalPlan& plan, int micro_batches, TokenGame* game, const Priority& priority) {
  std::vector<ActWait> waits = WaitsOf(plan, micro_batches, false);
  if (waits.empty()) return PlayStep(*game, priority);
  std::optional<Play> filling = PlayWith(game, std::move(waits), priority);
  std::optional<Play> whole = PlayWith(game, WaitsOf(plan, micro_batches, true), priority);
  if (whole && (!filling || whole->makespan < 0.99 * filling->makespan)) return *std::move(whole);
  return filling ? *std::move(filling) : PlayStep(*game, priority);
}

// Whether a stage may have a second micro-batch in each part of its work. Schedules with waits of their own
// have other chunks, or gradients of weights, to fill the time of messages.
bool MayHaveSecond(const LogicalPlan& plan, int micro_batches) {
  return plan.second && micro_batches > 1 && ShapeOf(plan, micro_batches).chunks == 1 &&
         (plan.schedule == PipelineSchedule::k1F1B || plan.schedule == PipelineSchedule::kGPipe);
}

// The limits of micro-batches, which are a plan's last edges, for so many beside one another.
void SetBeside(int beside, int micro_batches, LogicalPlan* plan) {
  plan->beside = beside;
  const std::vector<StageLimit> limits = LimitsOf(*plan, micro_batches);
  const size_t first = plan->edges.size() - limits.size();
  for (size_t i = 0; i < limits.size(); ++i) {
    LogicalEdge& edge = plan->edges[first + i];
    CHECK(edge.writer == limits[i].from && edge.reader == limits[i].to && edge.buffers.empty());
    edge.slots = limits[i].micro_batches;
  }
}

// One step, with a second micro-batch beside each where that is estimated to save enough.
Play PlayBest(const Graph& graph, const Priority& priority, LogicalPlan* plan) {
  TokenGame game = GameOf(graph, *plan);
  Play one = PlayStages(*plan, graph.times(), &game, priority);
  if (!MayHaveSecond(*plan, graph.times())) return one;
  SetBeside(2, graph.times(), plan);
  game = GameOf(graph, *plan);
  Play two = PlayStages(*plan, graph.times(), &game, priority);
  if (two.makespan <= one.makespan * (1 - *plan->second)) return two;
  SetBeside(1, graph.times(), plan);
  return one;
}

}  // namespace

void OrderActs(const Graph& graph, LogicalPlan* plan) {
  // A variable is in one place: who writes it waits, in the play too, for those who read what it held.
  for (LogicalEdge& e : plan->edges)
    if (e.full > 0 && e.slots == 0) e.slots = e.full;
  Priorities priorities(*plan, graph.times());
  Priority priority = [&](int t, int act) { return priorities.Of(t, act); };
  Play play = PlayBest(graph, priority, plan);
  plan->order = FeedsBeforeReaders(*plan, play.firings);
  plan->makespan = play.makespan;

  std::vector<std::vector<const Firing*>> acts(plan->segments.size());
  for (const Firing& f : plan->order) acts[f.transition].push_back(&f);
  std::vector<std::vector<const LogicalEdge*>> edges(plan->segments.size());
  for (const LogicalEdge& e : plan->edges) edges[e.writer].push_back(&e);
  for (LogicalBuffer& b : plan->buffers)
    if (b.variable.empty() && !b.readers.empty()) b.slots = PeakOf(*plan, b, edges[b.writer], acts);
  for (LogicalEdge& e : plan->edges) {
    if (e.slots > 0) continue;
    e.slots = 1 << 30;
    for (int b : e.buffers) e.slots = std::min(e.slots, plan->buffers[b].slots);
  }
  std::string text;
  for (const Firing& f : plan->order) {
    text += plan->segments[f.transition].name;
    text += '/';
    text += std::to_string(f.act);
    text += ';';
  }
  plan->hash = HashName(text);
}

}  // namespace oneflow_like
