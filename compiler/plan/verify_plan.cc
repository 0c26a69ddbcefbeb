// The invariants of a logical plan. What must come after what is derived from the nodes, from the buffers
// they read and write and from the schedule, not from the plan's edges: a missing edge is seen. An edge with
// the right periods and slots guards a reader and its writer from each other; where there is none, the
// verifier looks for other edges, and acts of one compute stream, that together do.
#include <algorithm>
#include <map>
#include <memory>

#include "compiler/plan/make_plans.h"
#include "compiler/plan/schedule.h"

namespace oneflow_like {

namespace {

// Which act comes before which, over a few steps: the steady state, in which steps before have left their
// marks.
class Precedence {
 public:
  Precedence(const Graph& graph, const LogicalPlan& plan)
      : plan_(plan), in_(plan.segments.size()), out_(plan.segments.size()), before_(plan.segments.size()) {
    for (size_t e = 0; e < plan.edges.size(); ++e) {
      in_[plan.edges[e].reader].push_back(static_cast<int>(e));
      out_[plan.edges[e].writer].push_back(static_cast<int>(e));
    }
    const TokenGame game = GameOf(graph, plan);
    for (const Transition& t : game.transitions) acts_.push_back(t.acts);
    std::map<int, std::vector<Act>> streams;
    for (const Firing& f : plan.order)
      if (plan.On(plan.segments[f.transition], StreamKind::kCompute))
        for (int r : game.transitions[f.transition].resources) streams[r].push_back({f.transition, f.act});
    for (const auto& [resource, acts] : streams)
      for (size_t i = 0; i < acts.size(); ++i) {
        Act last = acts[i > 0 ? i - 1 : acts.size() - 1];
        if (i == 0) last.act -= acts_[last.segment];  // of the step before
        before_[acts[i].segment].push_back({acts[i].act, last});
      }
  }

  int acts(int segment) const { return acts_[segment]; }

  // Why act `late` cannot start before `early` has ended, or nothing. Acts are counted from the start of a
  // step; those of steps before are negative.
  std::string Why(int early_segment, int early_act, int late_segment, int late_act) const {
    const Act early{early_segment, early_act}, late{late_segment, late_act};
    std::map<Act, Step> from;
    std::vector<Act> todo{late};
    from[late] = {};
    while (!todo.empty()) {
      const Act at = todo.back();
      todo.pop_back();
      if (at.segment == early.segment && at.act >= early.act && !(at == late)) return PathText(from, at);
      if (at.act < -kSteps * acts_[at.segment]) continue;
      auto visit = [&](Act before, std::string by) {
        if (from.try_emplace(before, Step{at, std::move(by)}).second) todo.push_back(before);
      };
      const int acts = acts_[at.segment], act = (at.act % acts + acts) % acts, shift = at.act - act;
      visit({at.segment, at.act - 1}, "act by act");
      for (const auto& [mine, before] : before_[at.segment])
        if (mine == act)
          visit({before.segment, before.act + shift / acts * acts_[before.segment]}, "in stream compute");
      for (int e : in_[at.segment]) {  // its k-th read needs a write
        const LogicalEdge& edge = plan_.edges[e];
        if (act % edge.read_period != 0) continue;
        visit({edge.writer, (Floor(at.act, edge.read_period) - edge.full + 1) * edge.write_period - 1},
              "by an edge");
      }
      for (int e : out_[at.segment]) {  // its k-th write needs a slot that was read
        const LogicalEdge& edge = plan_.edges[e];
        if (act % edge.write_period != 0) continue;
        visit({edge.reader,
               (Floor(at.act, edge.write_period) + edge.full - edge.slots + 1) * edge.read_period - 1},
              "by the slots of an edge");
      }
    }
    return "";
  }

 private:
  struct Act {
    int segment = 0, act = 0;
    auto operator<=>(const Act&) const = default;
  };
  struct Step {
    Act to;
    std::string by;
  };
  static constexpr int kSteps = 3;
  static int Floor(int a, int b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

  std::string PathText(const std::map<Act, Step>& from, Act at) const {
    auto name = [&](const Act& a) { return Cat(plan_.segments[a.segment].name, " act ", a.act); };
    std::string text = name(at);
    for (const Step* step = &from.at(at); !step->by.empty(); step = &from.at(step->to))
      text += Cat(" -> ", name(step->to), " (", step->by, ")");
    return text;
  }

  const LogicalPlan& plan_;
  std::vector<int> acts_;
  std::vector<std::vector<int>> in_, out_;                // edges of each segment
  std::vector<std::vector<std::pair<int, Act>>> before_;  // by segment: its act, the one before in a stream
};

class PlanVerifier {
 public:
  PlanVerifier(const Graph& graph, const LogicalPlan& plan, std::vector<std::string>* implied)
      : graph_(graph), plan_(plan), implied_(implied) {}

  void Run() {
    for (const LogicalEdge& e : plan_.edges) {
      if (e.slots < std::max(1, e.full))
        Fail("verify: the edge from ", NameOf(e.writer), " to ", NameOf(e.reader), " has ", e.slots,
             " slots");
      edges_.emplace(std::pair(e.writer, e.reader), &e);
    }
    FindUses();
    for (size_t b = 0; b < plan_.buffers.size(); ++b) CheckWithin(static_cast<int>(b));
    for (size_t b = 0; b < plan_.buffers.size(); ++b) CheckBuffer(static_cast<int>(b));
    for (const StageLimit& limit : LimitsOf(plan_, graph_.times()))
      Require({limit.from, limit.to, 1, 1, limit.micro_batches, 0}, [&](bool) {
        return Cat("nothing keeps ", NameOf(limit.from), " within ", limit.micro_batches,
                   " micro-batches of ", NameOf(limit.to), " (", limit.why, ")");
      });
    Status feasible = CheckOrder(GameOf(graph_, plan_), plan_.order);
    if (!feasible.ok()) Fail("verify: the order of acts is no run of the plan: ", feasible.message());
  }

 private:
  // What an edge between the two must have, at most.
  struct Guard {
    int writer, reader, write_period, read_period, slots, full;
  };
  // By buffer: nodes that write and read it, and those that read an update's result, by segment and position
  // there.
  using Uses = std::map<int, std::map<int, std::vector<int>>>;

  const std::string& NameOf(int segment) const { return plan_.segments[segment].name; }
  const std::string& ValueOf(int buffer) const { return graph_.value(plan_.buffers[buffer].value).name; }

  void FindUses() {
    for (size_t s = 0; s < plan_.segments.size(); ++s) {
      const std::vector<int>& nodes = plan_.segments[s].nodes;
      for (size_t i = 0; i < nodes.size(); ++i) {
        for (int v : graph_.node(nodes[i]).in)
          (IsResult(graph_, v) ? results_ : reads_)[plan_.buffer_of[v]][s].push_back(static_cast<int>(i));
        for (int v : graph_.node(nodes[i]).out) writes_[plan_.buffer_of[v]][s].push_back(static_cast<int>(i));
      }
    }
  }

  int Period(int segment, int buffer) const {
    return plan_.segments[segment].per_micro_batch ? graph_.PeriodOf(plan_.buffers[buffer].value) : 1;
  }

  void CheckBuffer(int b) {
    const LogicalBuffer& buffer = plan_.buffers[b];
    const auto &writes = writes_[b], &reads = reads_[b];
    if (writes.size() > 1 || (writes.empty() ? -1 : writes.begin()->first) != buffer.writer)
      Fail("verify: '", ValueOf(b), "' is not written by the one segment that its buffer names");
    if (writes.empty()) return;  // a variable that nobody changes
    const int w = buffer.writer, write_period = Period(w, b);
    if (buffer.write_period != write_period || buffer.full != (buffer.variable.empty() ? 0 : 1))
      Fail("verify: '", ValueOf(b), "' has write period ", buffer.write_period, " and ", buffer.full,
           " full slots");
    std::vector<int> readers;
    for (const auto& [r, nodes] : reads) {
      if (r == w) continue;
      readers.push_back(r);
      Require({w, r, write_period, Period(r, b), buffer.slots, buffer.full}, [&, r = r](bool read) {
        return read ? Cat("nothing makes ", NameOf(r), " wait for '", ValueOf(b), "' of ", NameOf(w))
                    : Cat("nothing keeps ", NameOf(w), " from writing '", ValueOf(b), "' over what ",
                          NameOf(r), " has not read");
      });
    }
    if (readers != buffer.readers) Fail("verify: '", ValueOf(b), "' is read by others than its buffer names");
    for (const auto& [r, nodes] : results_[b]) {
      if (r == w) continue;
      Require({w, r, write_period, Period(r, b), buffer.slots, 0}, [&, r = r](bool read) {
        return read ? Cat("nothing makes ", NameOf(r), " wait for what ", NameOf(w), " leaves in variable '",
                          ValueOf(b), "'")
                    : Cat("nothing keeps ", NameOf(w), " from writing variable '", ValueOf(b), "' over what ",
                          NameOf(r), " has not read");
      });
    }
  }

  static std::vector<int> InSegment(Uses& uses, int buffer, int segment) {
    auto found = uses[buffer].find(segment);
    return found == uses[buffer].end() ? std::vector<int>() : found->second;
  }

  // Both ends in one segment: its nodes run in their order.
  void CheckWithin(int b) {
    const LogicalBuffer& buffer = plan_.buffers[b];
    if (buffer.writer < 0) return;
    const std::vector<int>& nodes = plan_.segments[buffer.writer].nodes;
    auto check = [&](int read, bool old) {
      if (buffer.write_period > 1)
        Fail("verify: ", graph_.Describe(nodes[read]), " reads '", ValueOf(b), "' in ", NameOf(buffer.writer),
             ", which finishes it with the last of ", buffer.write_period, " acts");
      for (int write : InSegment(writes_, b, buffer.writer))
        if (old ? write < read : write > read)
          Fail("verify: ", graph_.Describe(nodes[read]), " reads '", ValueOf(b), "' ",
               old ? "after it was replaced by " : "before it was made by ", graph_.Describe(nodes[write]));
    };
    for (int read : InSegment(reads_, b, buffer.writer)) check(read, buffer.full > 0);
    for (int read : InSegment(results_, b, buffer.writer)) check(read, false);
  }

  // Every reading comes after the writing of what it reads, and every writing after the reading of what was
  // in its slot. `objection(read)` says what is wrong.
  template <typename Objection>
  void Require(const Guard& g, Objection&& objection) {
    auto [begin, end] = edges_.equal_range({g.writer, g.reader});
    for (auto it = begin; it != end; ++it) {
      const LogicalEdge& e = *it->second;
      if (e.write_period == g.write_period && e.read_period == g.read_period && e.full <= g.full &&
          e.slots - e.full <= g.slots - g.full)
        return;
    }
    if (!precedence_) precedence_ = std::make_unique<Precedence>(graph_, plan_);
    const int times = precedence_->acts(g.writer) / g.write_period;
    for (int k = 0; k < times; ++k) {
      Show(precedence_->Why(g.writer, (k - g.full + 1) * g.write_period - 1, g.reader, k * g.read_period),
           objection(true));
      Show(precedence_->Why(g.reader, (k + g.full - g.slots + 1) * g.read_period - 1, g.writer,
                            k * g.write_period),
           objection(false));
    }
  }

  void Show(const std::string& why, const std::string& objection) {
    if (why.empty()) Fail("verify: ", objection);
    if (implied_) implied_->push_back(why);
  }

  const Graph& graph_;
  const LogicalPlan& plan_;
  std::vector<std::string>* const implied_;
  std::multimap<std::pair<int, int>, const LogicalEdge*> edges_;  // by writer and reader
  Uses reads_, writes_, results_;
  std::unique_ptr<Precedence> precedence_;  // when an edge is missing
};

}  // namespace

void VerifyLogicalPlan(const Graph& graph, const LogicalPlan& plan, std::vector<std::string>* implied) {
  PlanVerifier(graph, plan, implied).Run();
}

}  // namespace oneflow_like
