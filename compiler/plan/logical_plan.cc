#include "compiler/plan/logical_plan.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

namespace oneflow_like {

bool IsResult(const Graph& graph, int value) {
  const Value& v = graph.value(value);
  const std::vector<std::pair<int, int>> pairs = graph.InPlace(v.producer);
  return std::any_of(pairs.begin(), pairs.end(), [&](const auto& pair) { return pair.first == v.output; });
}

TokenGame GameOf(const Graph& graph, const LogicalPlan& plan) {
  TokenGame game;
  std::set<int> fixed;  // mesh axes
  for (const Segment& s : plan.segments)
    for (int a = 0; a < graph.mesh().rank(); ++a)
      if (s.slice.fixed[a] != Slice::kFree || s.from.fixed[a] != Slice::kFree) fixed.insert(a);
  std::map<std::pair<Slice, int>, int> resources;
  // A slice that leaves such an axis free takes the streams of all its coordinates.
  std::function<void(Slice, int, std::vector<int>*)> take = [&](Slice where, int stream,
                                                                std::vector<int>* all) {
    for (int a : fixed) {
      if (where.fixed[a] != Slice::kFree) continue;
      for (int c = 0; c < graph.mesh().axis_size(a); ++c) {
        where.fixed[a] = c;
        take(where, stream, all);
      }
      return;
    }
    int r = resources.try_emplace({where, stream}, static_cast<int>(resources.size())).first->second;
    if (std::find(all->begin(), all->end(), r) == all->end()) all->push_back(r);
  };
  for (const Segment& s : plan.segments) {
    Transition t;
    t.name = s.name;
    t.acts = s.per_micro_batch ? graph.times() : 1;
    t.time = s.seconds;
    if (s.stream >= 0)
      for (const Slice* where : {&s.slice, &s.from}) take(*where, s.stream, &t.resources);
    game.transitions.push_back(std::move(t));
  }
  game.resources = static_cast<int>(resources.size());
  for (const LogicalEdge& e : plan.edges)
    game.places.push_back({e.writer, e.reader, e.slots, e.write_period, e.read_period, e.full});
  return game;
}

int WholeValueBehind(const LogicalPlan& plan, int buffer) {
  const LogicalBuffer& held = plan.buffers[buffer];
  if (held.writer < 0 || !held.variable.empty()) return -1;
  int from = plan.segments[held.writer].epoch, to = from;
  if (plan.segments[held.writer].stream < 0)  // a feed fills its slots when they are first wanted
    for (size_t i = 0; i < held.readers.size(); ++i)
      from = i == 0 ? plan.segments[held.readers[i]].epoch
                    : std::min(from, plan.segments[held.readers[i]].epoch);
  for (int r : held.readers)
    if (plan.segments[r].per_micro_batch) to = std::max(to, plan.segments[r].epoch);
  int behind = -1;
  for (const LogicalBuffer& b : plan.buffers) {
    if (b.write_period == 1 || plan.segments[b.writer].epoch < from || plan.segments[b.writer].epoch >= to)
      continue;
    const bool read_by_each = std::any_of(b.readers.begin(), b.readers.end(),
                                          [&](int r) { return plan.segments[r].per_micro_batch; });
    if (behind < 0 || read_by_each) behind = b.value;  // rather than what only an update reads
    if (read_by_each) break;
  }
  return behind;
}

std::string ToText(const Graph& graph, const LogicalPlan& plan) {
  std::string text;
  for (size_t s = 0; s < plan.segments.size(); ++s) {
    const Segment& seg = plan.segments[s];
    text += Cat("segment ", s, " ", seg.name, " ", seg.stream < 0 ? "none" : plan.streams[seg.stream].name,
                " ", Name(seg.phase), seg.per_micro_batch ? " per micro-batch" : "", ":");
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
