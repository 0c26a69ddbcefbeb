// The order of acts and the number of slots.
// Needs: segments and edges. Leaves: one step of the token game played with estimated times and the
// schedule's priorities is the order; a buffer gets as many slots as were ever taken at once, from the start
// of the writer's act to the end of its last reader's. GPipe and 1F1B differ in the priority alone (and in
// how many micro-batches a stage admits).
#include <algorithm>
#include <map>

#include "compiler/passes.h"
#include "core/random.h"

namespace oneflow_like {

TokenGame GameOf(const Graph& graph, const LogicalPlan& plan) {
  TokenGame game;
  std::map<std::pair<Slice, StreamKind>, int> resources;
  for (const Segment& s : plan.segments) {
    Transition t;
    t.name = s.name;
    t.acts = s.per_micro_batch ? graph.times() : 1;
    t.time = s.seconds;
    if (s.stream != StreamKind::kNone)
      for (const Slice* where : {&s.slice, &s.from}) {
        int r = resources.try_emplace({*where, s.stream}, static_cast<int>(resources.size())).first->second;
        if (t.resources.empty() || t.resources[0] != r) t.resources.push_back(r);
      }
    game.transitions.push_back(std::move(t));
  }
  game.resources = static_cast<int>(resources.size());
  for (const LogicalEdge& e : plan.edges)
    game.places.push_back({e.writer, e.reader, e.slots, e.write_period, e.read_period, e.full});
  return game;
}

namespace {

// Most slots of a buffer taken at once in the play. What a feed holds is counted from its first reader on,
// plus one slot to fill meanwhile: a feed has its data at any time and need not be early.
int PeakOf(const LogicalPlan& plan, const LogicalBuffer& b,
           const std::vector<std::vector<const Firing*>>& acts) {
  auto period = [&](int reader) {
    for (const LogicalEdge& e : plan.edges)
      if (e.writer == b.writer && e.reader == reader && e.full == b.full &&
          e.write_period == b.write_period &&
          std::binary_search(e.buffers.begin(), e.buffers.end(), plan.buffer_of[b.value]))
        return e.read_period;
    return 1;
  };
  bool feed = plan.segments[b.writer].stream == StreamKind::kNone;
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

// Feeds fire as early as anything lets them, which says nothing: they are in no stream's list. In the order
// each stands right before the first act that reads it.
std::vector<Firing> FeedsBeforeReaders(const LogicalPlan& plan, const std::vector<Firing>& firings) {
  std::vector<int> fed(plan.segments.size(), 0);
  std::vector<std::vector<const LogicalEdge*>> feeds(plan.segments.size());  // by reader
  std::vector<bool> is_feed(plan.segments.size(), false);
  for (const LogicalEdge& e : plan.edges)
    if (plan.segments[e.writer].stream == StreamKind::kNone) {
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

}  // namespace

void OrderActs(const Graph& graph, const CompileOptions& options, LogicalPlan* plan) {
  TokenGame game = GameOf(graph, *plan);
  bool backward_first = options.schedule == ScheduleKind::k1F1B;
  Priority priority = [&](int t, int act) {
    Phase phase = plan->segments[t].phase;
    double rank = phase == Phase::kUpdate ? 2 : (phase == Phase::kBackward) == backward_first ? 0 : 1;
    return rank * 1e6 + act;
  };
  Play play = PlayStep(game, priority);
  plan->order = FeedsBeforeReaders(*plan, play.firings);
  plan->makespan = play.makespan;

  std::vector<std::vector<const Firing*>> acts(plan->segments.size());
  for (const Firing& f : plan->order) acts[f.transition].push_back(&f);
  for (LogicalBuffer& b : plan->buffers) {
    if (!b.variable.empty() || b.readers.empty())
      b.slots = 1;
    else
      b.slots = PeakOf(*plan, b, acts);
  }
  for (LogicalEdge& e : plan->edges) {
    if (e.slots > 0) continue;
    e.slots = 1 << 30;
    for (int b : e.buffers) e.slots = std::min(e.slots, plan->buffers[b].slots);
  }
  std::string text;
  for (const Firing& f : plan->order) text += Cat(plan->segments[f.transition].name, "/", f.act, ";");
  plan->hash = HashName(text);
}

std::string ToText(const Graph& graph, const LogicalPlan& plan) {
  std::string text;
  for (size_t s = 0; s < plan.segments.size(); ++s) {
    const Segment& seg = plan.segments[s];
    text += Cat("segment ", s, " ", seg.name, " ", Name(seg.stream), " ", Name(seg.phase),
                seg.per_micro_batch ? " per micro-batch" : "", ":");
    for (int n : seg.nodes) text += " " + graph.node(n).name;
    text += "\n";
  }
  for (const LogicalBuffer& b : plan.buffers) {
    text +=
        Cat("buffer ", graph.value(b.value).name, b.variable.empty() ? "" : " variable", " slots=", b.slots);
    if (b.writer >= 0) text += Cat(" writer=", b.writer);
    text += " readers=[";
    for (size_t i = 0; i < b.readers.size(); ++i) text += Cat(i ? "," : "", b.readers[i]);
    text += "]\n";
  }
  for (const LogicalEdge& e : plan.edges)
    text += Cat("edge ", e.writer, " -> ", e.reader, " slots=", e.slots, " periods=", e.write_period, "/",
                e.read_period, " full=", e.full, e.why.empty() ? "" : " (" + e.why + ")", "\n");
  if (!plan.order.empty()) {
    text += "order";
    for (const Firing& f : plan.order) text += Cat(" ", f.transition, "/", f.act);
    text += "\n";
  }
  return text;
}

}  // namespace oneflow_like
