// The invariants object: every boxing of the compiled GPT is needed, and so is every signature, place and
// slot. Also: the text of a graph reads back, and is all a compiler needs.
// ctest: seconds=35 long=25
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>

#include "compiler/compile.h"
#include "compiler/graph/text.h"
#include "compiler/plan/schedule.h"
#include "tests/oneflow_like/session_fixture.h"
#include "tests/oneflow_like/small_gpt.h"

namespace oneflow_like {
namespace {

SmallGpt Everything() { return {.mesh = "cpu:dp=2,tp=2,pp=2", .micro_batches = 4}; }

const Compiled& CompiledGpt() {
  static GptProgram program(Everything());
  static Session session = program.MakeTrain();
  return session.impl()->compiled;
}

// The message of the verifier, empty when it has none.
std::string Objection(const Graph& graph) {
  return ErrorOf([&] { VerifyGraph(graph, Level::kLowered); });
}

std::vector<int> ReadersOf(const Graph& graph, int value) { return graph.Readers()[value]; }

// Applies `mutate` to a copy of the compiled GPT for every node it changes (it returns whether it did); all
// must be objected to. Returns how many there were.
int ObjectsToAll(const std::function<bool(Graph*, int node)>& mutate) {
  const Graph& original = CompiledGpt().graph;
  int tried = 0;
  for (int n : original.Order()) {
    Graph graph = original;
    if (!mutate(&graph, n)) continue;
    ++tried;
    EXPECT_NE(Objection(graph), "") << "nothing is said of a change at " << original.Describe(n) << " ("
                                    << original.node(n).why << ")";
  }
  return tried;
}

TEST(Verify, AcceptsTheCompiledGpt) {
  EXPECT_EQ(Objection(CompiledGpt().graph), "");
  VerifyLogicalPlan(CompiledGpt().graph, CompiledGpt().logical);
}

TEST(Verify, EveryBoxingIsNeeded) {
  std::map<std::string, int> kinds;
  int tried = ObjectsToAll([&](Graph* graph, int n) {
    const Node& node = graph->node(n);
    if (!IsLocalBoxing(node) && !IsCollective(node)) return false;
    ++kinds[node.op];
    int from = node.in[0], to = node.out[0];
    for (int r : ReadersOf(*graph, to))
      for (int& v : graph->node(r).in)
        if (v == to) v = from;
    graph->Remove(n);
    return true;
  });
  std::string text;
  for (const auto& [op, count] : kinds) text += Cat(text.empty() ? "" : ", ", count, " ", op);
  std::printf("deleted one at a time, all objected to: %d boxing nodes (%s)\n", tried, text.c_str());
  EXPECT_GE(tried, 50);
  EXPECT_GE(kinds.size(), 4u);
}

// What stands on no stage is made on the first of those that read it, in whatever order they do.
TEST(PlaceStages, FollowsTheFirstReader) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::string text = "mesh cpu:pp=4\nc = full shape=[4] value=2 dtype=f32 : f32[4]\nd = exp(c) : f32[4]\n";
    int first = 3;
    for (int reader = 0; reader < 3; ++reader) {
      const int stage = static_cast<int>(RandomBits(seed, 4, reader) % 4);
      text += Cat("r", reader, " = exp(d) : f32[4] @pp=", stage, "\n");
      first = std::min(first, stage);
    }
    Graph graph = ParseGraph(BuiltinCatalog(), text);
    PlaceStages(&graph, {});
    for (int n : graph.Order()) {
      const Node& node = graph.node(n);
      if (node.name == "c" || node.name == "d") {
        EXPECT_EQ(node.slice.fixed[0], first) << text << node.name;
      }
    }
  }
}

// Whatever the readers of one value want, along time and along the mesh, in any order: each gets it, and
// those that want the same share it.
TEST(InsertBoxing, EveryReaderGetsWhatItWants) {
  const std::vector<std::string> times = {"B", "P", "S0"}, cuts = {"B", "P", "S0", "S1"};
  for (uint64_t seed = 0; seed < 200; ++seed) {
    uint64_t count = 0;
    auto draw = [&](const std::vector<std::string>& of) {
      return of[RandomBits(seed, 4, count++) % of.size()];
    };
    const std::string has = Cat("{time:", draw(times), ",dp:", draw(cuts), "}");
    std::string text = Cat("mesh cpu:dp=2\ntimes 2\nx = input : f32[8,4] ", has, "\n");
    std::set<std::string> different;
    for (int reader = 0; reader < 5; ++reader) {
      const std::string want = Cat("{time:", draw(times), ",dp:", draw(cuts), "}");
      text += Cat("r", reader, " = copy(x ", want, ") : f32[8,4] ", want, "\n");
      if (want != has) different.insert(want);
    }
    Graph graph = ParseGraph(BuiltinCatalog(), text);
    InsertBoxing(&graph, {});
    size_t boxings = 0;
    for (int n : graph.Order()) {
      const Node& node = graph.node(n);
      boxings += node.kind == NodeKind::kBoxing;
      if (node.kind != NodeKind::kOperator) continue;
      EXPECT_EQ(graph.value(node.in[0]).sbp, node.want[0]) << text << node.name;
    }
    EXPECT_EQ(boxings, different.size()) << text;
  }
}

// A boxing that does something else than its name: its output is said to be what its input is, readers
// included.
TEST(Verify, EveryBoxingChangesWhatItSays) {
  int tried = ObjectsToAll([](Graph* graph, int n) {
    const Node& node = graph->node(n);
    if ((!IsLocalBoxing(node) && !IsCollective(node)) ||
        graph->value(node.in[0]).sbp == graph->value(node.out[0]).sbp)
      return false;
    graph->value(node.out[0]).sbp = graph->value(node.in[0]).sbp;
    return true;
  });
  EXPECT_GE(tried, 50);
}

// Another signature on an output, and all readers agree to it: some operator's own rule is broken.
TEST(Verify, WrongSignatures) {
  const Graph& original = CompiledGpt().graph;
  std::vector<int> sizes = original.Sizes();
  int tried = 0;
  for (size_t entry = 0; entry < sizes.size(); ++entry)
    tried += ObjectsToAll([&](Graph* graph, int n) {
      const Node& node = graph->node(n);
      if (!graph->catalog().Find(node.op) || node.op == "fused" || node.out.empty()) return false;
      if (entry > 0 && node.slice.fixed[entry - 1] != Slice::kFree) return false;
      Value& out = graph->value(node.out[0]);
      // What no rule gives: a partial maximum of a value that is none.
      Sbp wrong = P(Reduce::kMax);
      if (out.sbp[entry] == wrong) return false;
      out.sbp[entry] = wrong;
      for (int r : ReadersOf(*graph, node.out[0]))
        for (size_t i = 0; i < graph->node(r).in.size(); ++i)
          if (graph->node(r).in[i] == node.out[0]) graph->node(r).want[i] = out.sbp;
      return true;
    });
  std::printf("wrong signatures, all objected to: %d\n", tried);
  EXPECT_GE(tried, 300);
}

TEST(Verify, AReaderThatWantsSomethingElse) {
  int tried = ObjectsToAll([](Graph* graph, int n) {
    Node& node = graph->node(n);
    if (node.in.empty()) return false;
    Sbp& dp = node.want[0][1];
    dp = dp.is_broadcast() ? P(Reduce::kSum) : B();
    return true;
  });
  EXPECT_GE(tried, 300);
}

bool IsUpdate(const Graph& graph, int n) {
  const OpDef* def = graph.catalog().Find(graph.node(n).op);
  return def && !def->inplace.empty();
}

// The variable lies otherwise than its update writes it, the reading end in agreement.
TEST(Verify, AnUpdateOnAnotherLayout) {
  int tried = ObjectsToAll([](Graph* graph, int n) {
    if (!IsUpdate(*graph, n)) return false;
    Node& node = graph->node(n);
    Value& variable = graph->value(node.in[0]);
    if (variable.shape.rank() < 2) return false;
    Sbp& dp = variable.sbp[1];
    dp = dp.is_broadcast() ? S(0) : B();
    for (int r : ReadersOf(*graph, node.in[0]))
      for (size_t i = 0; i < graph->node(r).in.size(); ++i)
        if (graph->node(r).in[i] == node.in[0]) graph->node(r).want[i] = variable.sbp;
    return true;
  });
  EXPECT_GE(tried, 20);
}

TEST(Verify, AnUpdateOfWhatIsNoVariable) {
  int tried = ObjectsToAll([](Graph* graph, int n) {
    if (!IsUpdate(*graph, n)) return false;
    Node& node = graph->node(n);
    node.in[0] = node.in[1];  // the gradient, which has the same layout
    return true;
  });
  EXPECT_GE(tried, 40);
}

TEST(Verify, ANodeOnAnotherStage) {
  const Mesh& mesh = CompiledGpt().graph.mesh();
  int pp = mesh.FindAxis("pp");
  int tried = ObjectsToAll([&](Graph* graph, int n) {
    Node& node = graph->node(n);
    // Constants and inputs have no operands that would tell; their readers do, but for those nobody reads.
    if (node.slice.fixed[pp] == Slice::kFree || IsCollective(node)) return false;
    node.slice.fixed[pp] = 1 - node.slice.fixed[pp];
    return true;
  });
  EXPECT_GE(tried, 300);
}

TEST(Verify, AReaderOfARemovedNode) {
  int tried = ObjectsToAll([](Graph* graph, int n) {
    const std::vector<std::vector<int>> readers = graph->Readers();
    bool read = false;
    for (int v : graph->node(n).out) read = read || !readers[v].empty();
    graph->Remove(n);
    return read;
  });
  EXPECT_GE(tried, 300);
}

// --- Plans ---

std::string PlanObjection(const Graph& graph, const LogicalPlan& plan) {
  return ErrorOf([&] { VerifyLogicalPlan(graph, plan); });
}

// Edges from forward to backward segments have exactly the slots that the order needs. (Within one phase a
// buffer that is also kept for later has more than its early readers need.)
TEST(Verify, OneSlotLessIsTooFew) {
  for (PipelineSchedule schedule :
       {PipelineSchedule::k1F1B, PipelineSchedule::kGPipe, PipelineSchedule::kZeroBubble}) {
    SmallGpt given = Everything();
    given.schedule = schedule;
    GptProgram program(given);
    Session session = program.MakeTrain();
    const Compiled& c = session.impl()->compiled;
    int tried = 0;
    std::string message;
    for (size_t e = 0; e < c.logical.edges.size(); ++e) {
      LogicalPlan plan = c.logical;
      LogicalEdge& edge = plan.edges[e];
      const Segment &w = plan.segments[edge.writer], &r = plan.segments[edge.reader];
      if (edge.slots < 2 || w.slice != r.slice || w.phase == r.phase || !plan.On(w, StreamKind::kCompute) ||
          !plan.On(r, StreamKind::kCompute))
        continue;
      if (edge.buffers.empty() && schedule == PipelineSchedule::kGPipe && edge.slots == c.graph.times())
        continue;
      --edge.slots;
      ++tried;
      message = PlanObjection(c.graph, plan);
      EXPECT_NE(message, "") << w.name << " -> " << r.name << " with " << edge.slots << " slots";
      EXPECT_NE(message.find(r.name), std::string::npos) << message;
    }
    EXPECT_GE(tried, 1);
    std::printf("%s: %d edges with one slot less, all refused; the last: %s\n", given.str().c_str(), tried,
                message.c_str());
  }
}

TEST(Verify, NoSlotIsTooFew) {
  LogicalPlan plan = CompiledGpt().logical;
  plan.edges[0].slots = 0;
  EXPECT_NE(PlanObjection(CompiledGpt().graph, plan).find("has 0 slots"), std::string::npos);
}

// What all micro-batches make together is whole after the last of them: not for who reads it beside them.
TEST(Verify, AReaderOfWhatItsSegmentHasNotFinished) {
  const Compiled& c = CompiledGpt();
  int tried = 0;
  for (const LogicalBuffer& b : c.logical.buffers) {
    if (b.write_period == 1) continue;
    for (int n : c.logical.segments[b.writer].nodes) {
      if (c.graph.node(n).in.empty()) continue;
      Graph graph = c.graph;
      graph.node(n).in[0] = b.value;
      ++tried;
      EXPECT_NE(PlanObjection(graph, c.logical).find("which finishes it with the last of 4 acts"),
                std::string::npos)
          << graph.Describe(n) << ": " << PlanObjection(graph, c.logical);
    }
  }
  std::printf("readers of what their segment has not finished, all objected to: %d\n", tried);
  EXPECT_GE(tried, 100);
}

// A weight that is not there at the start: backward waits for the update, which waits for backward's
// gradient. The game says so, naming both.
TEST(Verify, ADeadPlanNamesItsCycle) {
  const Compiled& c = CompiledGpt();
  LogicalPlan plan = c.logical;
  int emptied = 0;
  for (LogicalEdge& e : plan.edges)
    if (e.full == 1 && plan.segments[e.reader].phase == Phase::kBackward) {
      e.full = 0;
      ++emptied;
    }
  ASSERT_GT(emptied, 0);
  std::string message;
  try {
    PlayStep(GameOf(c.graph, plan), [](int, int act) { return act; });
  } catch (const Error& e) {
    message = e.what();
  }
  EXPECT_NE(message.find("the plan cannot complete"), std::string::npos) << message;
  for (const char* name : {"backward", "update"}) EXPECT_NE(message.find(name), std::string::npos) << message;
  EXPECT_NE(PlanObjection(c.graph, plan), "");
}

TEST(Verify, AnOrderWithTwoActsExchanged) {
  const Compiled& c = CompiledGpt();
  LogicalPlan plan = c.logical;
  auto backward = std::find_if(plan.order.begin(), plan.order.end(), [&](const Firing& f) {
    const Segment& s = plan.segments[f.transition];
    return s.phase == Phase::kBackward && s.per_micro_batch && plan.On(s, StreamKind::kCompute);
  });
  ASSERT_NE(backward, plan.order.end());
  std::rotate(plan.order.begin(), backward, backward + 1);  // the first backward act before all else
  EXPECT_NE(PlanObjection(c.graph, plan).find("waits for a full slot"), std::string::npos)
      << PlanObjection(c.graph, plan);
}

// --- What comes after what ---

// Every update waits for whoever reads what it replaces: take one of these orders away.
TEST(Verify, EveryOrderOfWritesIsNeededOrImplied) {
  const Graph& original = CompiledGpt().graph;
  int objected = 0, implied = 0;
  for (int n : original.Order())
    for (size_t i = 0; i < original.node(n).after.size(); ++i) {
      Graph graph = original;
      const int before = graph.node(n).after[i];
      graph.node(n).after.erase(graph.node(n).after.begin() + i);
      std::vector<std::string> paths;
      const std::string objection = ErrorOf([&] { VerifyGraph(graph, Level::kOrdered, &paths); });
      if (!objection.empty()) {
        EXPECT_NE(objection.find("nothing makes it wait for " + graph.Describe(before)), std::string::npos)
            << objection;
        ++objected;
        continue;
      }
      ASSERT_FALSE(paths.empty()) << original.Describe(n) << " after " << original.Describe(before);
      for (const std::string& path : paths) {
        EXPECT_EQ(path.rfind(graph.node(before).name, 0), 0u) << path;
        EXPECT_EQ(path.substr(path.rfind(' ') + 1), graph.node(n).name) << path;
      }
      ++implied;
    }
  std::printf("orders of writes taken away: %d objected to, %d implied\n", objected, implied);
  EXPECT_GE(implied, 100);
}

// An update that nothing but that order keeps back.
TEST(Verify, AnUpdateBesideAReader) {
  Graph graph = ParseGraph(BuiltinCatalog(), R"(mesh cpu
w = variable : f32[4] {}
v = variable : f32[4] {}
g = input : f32[4] {}
y = exp(w) : f32[4] {}
w2, v2 = sgd(w, g, v) lr=0.1 : f32[4] {}, f32[4] {} !update after=y
fetch y(y)
)");
  EXPECT_EQ(ErrorOf([&] { VerifyGraph(graph, Level::kOrdered); }), "");
  for (int n : graph.Order()) graph.node(n).after.clear();
  EXPECT_EQ(ErrorOf([&] { VerifyGraph(graph, Level::kOrdered); }),
            "verify: sgd 'w2' replaces 'w', but nothing makes it wait for exp 'y', which reads it");
}

// Plays some steps of a plan by its edges and the lists of its compute streams alone, acts of one segment
// ending as late as they can, and looks whether anything reads what is not there yet, writes over what is
// still to be read, or runs ahead of the schedule. Nothing ever takes a token that another waits for, so what
// can go wrong does.
class SlowSegment {
 public:
  SlowSegment(const Graph& graph, const LogicalPlan& plan)
      : graph_(graph), plan_(plan), game_(GameOf(graph, plan)) {
    const int segments = static_cast<int>(plan.segments.size());
    in_.resize(segments), out_.resize(segments), needs_.resize(segments), lists_.resize(game_.resources);
    for (const LogicalEdge& e : plan.edges) {
      out_[e.writer].push_back(&e);
      in_[e.reader].push_back(&e);
    }
    for (const Firing& f : plan.order)
      if (plan.On(plan.segments[f.transition], StreamKind::kCompute))
        for (int r : game_.transitions[f.transition].resources) lists_[r].push_back(f.transition);
    for (const LogicalBuffer& b : plan.buffers) {
      if (b.writer < 0) continue;
      for (int r : b.readers) {
        const bool repeats = plan.segments[r].per_micro_batch && graph.value(b.value).sbp[0].is_broadcast() &&
                             !graph.Remade(b.value);
        const int period = repeats ? graph.times() : 1;
        needs_[r].push_back({b.writer, period, b.write_period, -b.full, graph.value(b.value).name});
        needs_[b.writer].push_back({r, b.write_period, period, b.full - b.slots, graph.value(b.value).name});
      }
    }
    for (const StageLimit& limit : LimitsOf(plan, graph.times()))
      needs_[limit.from].push_back({limit.to, 1, 1, -limit.micro_batches, limit.why});
  }

  // What goes wrong first.
  std::string Run(int slow) {
    const int segments = static_cast<int>(plan_.segments.size());
    begun_.assign(segments, 0), ended_.assign(segments, 0), at_.assign(lists_.size(), 0);
    std::string wrong;
    for (bool moved = true; moved && wrong.empty();) {
      moved = false;
      for (int s = 0; s < segments && wrong.empty(); ++s) {
        if (begun_[s] > ended_[s] && s != slow) End(s), moved = true;
        if (CanBegin(s)) wrong = Begin(s), moved = true;
      }
      if (!moved && begun_[slow] > ended_[slow]) End(slow), moved = true;
    }
    for (int s = 0; s < segments && wrong.empty(); ++s)
      EXPECT_EQ(ended_[s], kSteps * game_.transitions[s].acts) << plan_.segments[s].name;
    return wrong;
  }

 private:
  static constexpr int kSteps = 3;
  // When act k * period of a segment begins, (k + shift + 1) * other_period acts of the other have ended.
  struct Need {
    int other, period, other_period, shift;
    std::string what;
  };

  bool CanBegin(int s) const {
    const int act = begun_[s];
    if (act > ended_[s] || act == kSteps * game_.transitions[s].acts) return false;
    for (const LogicalEdge* e : in_[s])
      if (act % e->read_period == 0 && ended_[e->writer] / e->write_period + e->full <= act / e->read_period)
        return false;
    for (const LogicalEdge* e : out_[s])
      if (act % e->write_period == 0 &&
          act / e->write_period + e->full - ended_[e->reader] / e->read_period >= e->slots)
        return false;
    if (!plan_.On(plan_.segments[s], StreamKind::kCompute)) return true;
    for (int r : game_.transitions[s].resources)
      if (lists_[r][at_[r] % lists_[r].size()] != s) return false;
    return true;
  }

  std::string Begin(int s) {
    const int act = begun_[s]++;
    for (const Need& n : needs_[s])
      if (act % n.period == 0 && ended_[n.other] < (act / n.period + n.shift + 1) * n.other_period)
        return Cat(plan_.segments[s].name, " act ", act, " begins when ", plan_.segments[n.other].name,
                   " has ended ", ended_[n.other], " acts: ", n.what);
    return "";
  }

  void End(int s) {
    ++ended_[s];
    if (plan_.On(plan_.segments[s], StreamKind::kCompute))
      for (int r : game_.transitions[s].resources) ++at_[r];
  }

  const Graph& graph_;
  const LogicalPlan& plan_;
  const TokenGame game_;
  std::vector<std::vector<const LogicalEdge*>> in_, out_;
  std::vector<std::vector<Need>> needs_;
  std::vector<std::vector<int>> lists_;  // by resource: segments in the order of a step
  std::vector<int> begun_, ended_;       // acts, by segment
  std::vector<size_t> at_;               // by resource: how far its list has come
};

// A copy of what an update leaves in its variable, ahead of the update, and in a segment that does not have
// it.
TEST(Verify, AReaderOfAnUpdatesResult) {
  Model model(Mesh::Parse("cpu:dp=2"));
  Tensor v = model.scope().Weight("v", {4}, Zeros()), x = model.Input("x", {4}, DType::kFloat32);
  Session session = Evaluate({{"new", assign(v, shift(v, 1))}, {"y", sum(tanh(x), {0})}});
  const Compiled& c = session.impl()->compiled;
  EXPECT_EQ(PlanObjection(c.graph, c.logical), "");
  int tried = 0;
  for (size_t s = 0; s < c.logical.segments.size(); ++s) {
    const std::vector<int>& nodes = c.logical.segments[s].nodes;
    for (size_t i = 1; i < nodes.size(); ++i) {
      if (c.graph.node(nodes[i]).op != "copy" || c.graph.node(nodes[i - 1]).op != "assign") continue;
      ++tried;
      LogicalPlan early = c.logical;
      std::swap(early.segments[s].nodes[i - 1], early.segments[s].nodes[i]);
      EXPECT_NE(PlanObjection(c.graph, early).find("before it was made by assign"), std::string::npos);
      LogicalPlan elsewhere = c.logical;
      std::vector<int>& left = elsewhere.segments[s].nodes;
      left.erase(left.begin() + static_cast<int>(i));
      elsewhere.segments[s == 0 ? 1 : 0].nodes.push_back(nodes[i]);
      EXPECT_NE(PlanObjection(c.graph, elsewhere).find("leaves in variable 'v'"), std::string::npos)
          << PlanObjection(c.graph, elsewhere);
      // An edge makes it wait, but not one that is full before the update: that is of the old value.
      const int writer = static_cast<int>(s), reader = s == 0 ? 1 : 0;
      for (int full : {0, 1}) {
        LogicalPlan waits = elsewhere;
        waits.edges.push_back({writer, reader, 1, 1, 1, full, {}, ""});
        EXPECT_EQ(PlanObjection(c.graph, waits).find("leaves in variable 'v'") != std::string::npos,
                  full == 1)
            << PlanObjection(c.graph, waits);
      }
    }
  }
  EXPECT_EQ(tried, 1);
}

struct EdgeCounts {
  int objected = 0, implied = 0, limits = 0;
};

// Takes edges away, and gives them a slot more: every one, or one in `stride` from the `first` on. The
// verifier objects exactly where a play goes wrong; elsewhere it shows what implies the edge.
EdgeCounts TryEdges(const Compiled& c, const std::string& name, size_t first = 0, size_t stride = 1) {
  EXPECT_EQ(SlowSegment(c.graph, c.logical).Run(0), "");
  EdgeCounts counts;
  for (size_t e = first; e < c.logical.edges.size(); e += stride)
    for (bool take : {true, false}) {
      LogicalPlan plan = c.logical;
      const LogicalEdge edge = plan.edges[e];
      if (take)
        plan.edges.erase(plan.edges.begin() + e);
      else
        ++plan.edges[e].slots;
      counts.limits += take && edge.buffers.empty();
      std::vector<std::string> paths;
      const std::string objection = ErrorOf([&] { VerifyLogicalPlan(c.graph, plan, &paths); });
      SlowSegment play(c.graph, plan);
      std::string wrong = play.Run(edge.writer);
      if (wrong.empty()) wrong = play.Run(edge.reader);
      const std::string what = Cat(take ? "without " : "a slot more on ", "the edge from ",
                                   plan.segments[edge.writer].name, " to ", plan.segments[edge.reader].name);
      EXPECT_EQ(objection.empty(), wrong.empty()) << what << ": '" << objection << "', '" << wrong << "'";
      bool another = false;  // between the two, as tight
      for (const LogicalEdge& other : plan.edges)
        another = another || (other.writer == edge.writer && other.reader == edge.reader &&
                              other.write_period == edge.write_period &&
                              other.read_period == edge.read_period && other.slots <= edge.slots);
      EXPECT_TRUE(!objection.empty() || !paths.empty() || another) << what << ": nothing is shown";
      ++(objection.empty() ? counts.implied : counts.objected);
    }
  std::printf(
      "%s: %zu edges (%d of the schedule) taken away or with a slot more: %d objected to, %d implied\n",
      name.c_str(), c.logical.edges.size(), counts.limits, counts.objected, counts.implied);
  return counts;
}

// Of each of three schedules other edges if `stride` is 3.
void ExpectEdgesNeededOrImplied(size_t stride) {
  size_t first = 0;
  EdgeCounts all;
  for (PipelineSchedule schedule :
       {PipelineSchedule::k1F1B, PipelineSchedule::kGPipe, PipelineSchedule::kZeroBubble}) {
    SmallGpt given = Everything();
    given.schedule = schedule;
    given.parallel.batch = "";  // more layouts, more edges
    GptProgram program(given);
    Session session = program.MakeTrain();
    const EdgeCounts counts = TryEdges(session.impl()->compiled, given.str(), first++ % stride, stride);
    const int part = static_cast<int>(stride);
    EXPECT_GE(counts.objected, 100 / part);
    EXPECT_GE(counts.implied, 50 / part);
    all.limits += counts.limits;
  }
  EXPECT_GE(all.limits, 12 / static_cast<int>(stride));
}
TEST(Verify, EdgesAndCreditsAreNeededOrImplied) { ExpectEdgesNeededOrImplied(3); }
TEST(LongVerify, EveryEdgeAndCreditIsNeededOrImplied) { ExpectEdgesNeededOrImplied(1); }

// A variable that each micro-batch writes: read on its own stage and on another one, forward and back.
TEST(Verify, EveryEdgeOfAVariableWrittenInEachMicroBatch) {
  for (const char* mesh : {"cpu:dp=2", "cpu:dp=2,pp=2"}) {
    Model model(FullMesh(mesh));
    const int last = model.mesh().axis_size(2) - 1;
    Scope first = model.scope().Stage("pp", 0), second = model.scope().Stage("pp", last);
    Tensor x = model.Input("x", {12, 4}, DType::kFloat32, {{"dp", S(0)}});
    Tensor v = first.State("v", {4}, Full(1));
    Tensor h = matmul(x, first.Weight("up", {4, 4}, Normal(0.5))) * v;
    Tensor y = matmul(to_stage(h, "pp", last), second.Weight("down", {4, 4}, Normal(0.5))) * v;
    TrainOptions options;
    options.micro_batches = 3;
    options.also = {assign(v, v + micro_batch_mean(h, {0}), {.each_micro_batch = true})};
    Session session = Train(mean(square(y)), Sgd{}, options);
    const Compiled& c = session.impl()->compiled;
    const EdgeCounts counts = TryEdges(c, mesh);
    EXPECT_GE(counts.objected, 8);
    int written = 0;  // edges from the write to readers of the next micro-batch
    for (const LogicalEdge& e : c.logical.edges)
      for (int b : e.buffers)
        written += c.logical.buffers[b].variable == "v" && e.full == 1 && e.slots == 1 && e.write_period == 1;
    EXPECT_GE(written, 2);
  }
}

// --- Text ---

std::string FirstDifference(const std::string& a, const std::string& b) {
  std::stringstream x(a), y(b);
  for (std::string p, q; std::getline(x, p);) {
    if (!std::getline(y, q)) return "- " + p;
    if (p != q) return "- " + p + "\n+ " + q;
  }
  return "";
}

class GraphText : public testing::TestWithParam<SmallGpt> {};

TEST_P(GraphText, ReadsBackAfterEveryPass) {
  namespace fs = std::filesystem;
  SmallGpt given = GetParam();
  fs::path folder = fs::temp_directory_path() / Cat("oneflow_like_text_", getpid());
  given.model_options.dump_dir = folder;
  GptProgram program(given);
  Session session = program.MakeTrain();
  const Compiled& c = session.impl()->compiled;
  int passes = 0;
  std::string built;
  for (const fs::directory_entry& file : fs::directory_iterator(folder / "train")) {
    std::string name = file.path().filename();
    if (name.find("form_segments") != std::string::npos || name.find("order_acts") != std::string::npos)
      continue;
    std::stringstream text;
    text << std::ifstream(file.path()).rdbuf();
    std::string again = ToText(ParseGraph(BuiltinCatalog(), text.str()));
    EXPECT_EQ(again, text.str()) << name << ":\n" << FirstDifference(text.str(), again);
    if (name == "00_built.txt") built = text.str();
    ++passes;
  }
  fs::remove_all(folder);
  EXPECT_EQ(passes, 1 + static_cast<int>(Passes().size()));
  // Nothing the compiler goes by is missing from the text: compiled again from it, the plan is the same.
  Compiled again = Compile(ParseGraph(BuiltinCatalog(), built), c.options);
  std::string before = ToText(c.graph, c.logical), after = ToText(again.graph, again.logical);
  EXPECT_EQ(before, after) << FirstDifference(before, after);
  EXPECT_EQ(c.logical.hash, again.logical.hash);
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, GraphText,
    testing::Values(SmallGpt{}, SmallGpt{.micro_batches = 4}, SmallGpt{.mesh = "cpu:dp=3"},
                    SmallGpt{.mesh = "cuda:dp=2,tp=2", .micro_batches = 2},
                    SmallGpt{.mesh = "cpu:tp=2", .micro_batches = 2}, Everything(),
                    SmallGpt{.mesh = "cpu:dp=2,pp=2", .micro_batches = 2, .zero_axis = "dp"},
                    SmallGpt{
                        .mesh = "cpu:dp=2,tp=2", .micro_batches = 2, .zero_axis = "dp", .zero_stage = 3}));

TEST(GraphText, RefusesWhatItCannotRead) {
  for (const char* bad :
       {"mesh cpu\ny = relu(x) : f32[2]\n", "mesh cpu\nx = input : f33[2]\n", "mesh cpu\nx = input : f32[2\n",
        "mesh cpu:tp=2\nx = input : f32[2] {dp:B}\n", "mesh cpu\nx, y = input : f32[2]\n",
        "mesh cpu\nx = input : f32[2] after=z\n", "mesh cpu\nx = input : f32[2]\nfetch(x)\n",
        "mesh cpu:tp=2\nx = input : f32[2] {tp:S0\n"})
    EXPECT_THROW(ParseGraph(BuiltinCatalog(), bad), Error) << bad;
}

}  // namespace
}  // namespace oneflow_like
