// Pipeline schedules are lists: complete, runnable to the letter, as short as their formulas, within their
// limits. And an order of acts gives every stream of every rank one act at a time.
// ctest: long=45
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "compiler/graph/text.h"
#include "compiler/passes/passes.h"
#include "compiler/plan/schedule.h"
#include "tests/oneflow_like/small_gpt.h"

namespace oneflow_like {
namespace {

constexpr PipelineSchedule kGPipe = PipelineSchedule::kGPipe, k1F1B = PipelineSchedule::k1F1B,
                           kInterleaved = PipelineSchedule::kInterleaved,
                           kZeroBubble = PipelineSchedule::kZeroBubble;

// "F0 B0"; of several chunks "F0.1", the chunk behind the point.
std::string Text(const StageSchedule& s, bool chunks = false) {
  std::string text;
  for (const Unit& u : s.units)
    text += Cat(text.empty() ? "" : " ", "FBW"[static_cast<int>(u.part)], u.micro_batch,
                chunks ? Cat(".", u.chunk) : "");
  return text;
}

TEST(StageSchedule, AsOnPaper) {
  EXPECT_EQ(Text(ScheduleOf(kGPipe, {3, 1, 3}, 1)), "F0 F1 F2 B0 B1 B2");
  EXPECT_EQ(Text(ScheduleOf(k1F1B, {3, 1, 5}, 0)), "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4");
  EXPECT_EQ(Text(ScheduleOf(k1F1B, {3, 1, 4}, 2)), "F0 B0 F1 B1 F2 B2 F3 B3");
  EXPECT_EQ(Text(ScheduleOf(k1F1B, {4, 1, 2}, 0)), "F0 F1 B0 B1");
  EXPECT_EQ(Text(ScheduleOf(kZeroBubble, {3, 1, 4}, 0)), "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3");
  EXPECT_EQ(Text(ScheduleOf(kZeroBubble, {3, 1, 4}, 2)), "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3");
  EXPECT_EQ(Text(ScheduleOf(kInterleaved, {2, 2, 2}, 1), true), "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 B0.0 B1.0");
}

// What its parts take of a micro-batch on one stage, all chunks together.
struct Times {
  double forward, backward, weights;
  double all() const { return forward + backward + weights; }
};

// Every stage goes through its list to the letter, waiting for each unit; gives the length, or -1 when all
// wait.
double RunLists(const std::vector<StageSchedule>& stages, const PipelineShape& shape, const Times& times) {
  std::map<std::tuple<Phase, int, int, int>, double> ended;  // part, chunk, stage, micro-batch
  std::vector<double> free(shape.stages, 0);
  std::vector<size_t> next(shape.stages, 0);
  const bool apart = stages[0].last == Phase::kWeightGradient;
  auto try_next = [&](int i) {
    const auto [part, c, m] = stages[i].units[next[i]];
    std::vector<std::tuple<Phase, int, int, int>> needs;
    const bool forward = part == Phase::kForward;
    if (forward && i + c > 0)
      needs.push_back(i > 0 ? std::tuple(part, c, i - 1, m) : std::tuple(part, c - 1, shape.stages - 1, m));
    if (part == Phase::kBackward && i < shape.stages - 1) needs.push_back({part, c, i + 1, m});
    if (part == Phase::kBackward && i == shape.stages - 1 && c < shape.chunks - 1)
      needs.push_back({part, c + 1, 0, m});
    if (!forward) needs.push_back({part == Phase::kBackward ? Phase::kForward : Phase::kBackward, c, i, m});
    for (const auto& need : needs) {
      if (!ended.count(need)) return false;
      free[i] = std::max(free[i], ended.at(need));
    }
    const double backward = times.backward + (apart ? 0 : times.weights);
    free[i] += (forward ? times.forward : part == Phase::kBackward ? backward : times.weights) / shape.chunks;
    ended[{part, c, i, m}] = free[i];
    return ++next[i] > 0;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (int i = 0; i < shape.stages; ++i)
      while (next[i] < stages[i].units.size() && try_next(i)) moved = true;
  }
  for (int i = 0; i < shape.stages; ++i)
    if (next[i] != stages[i].units.size()) return -1;
  return *std::max_element(free.begin(), free.end());
}

int LargestGroup(const PipelineShape& shape) {
  const int groups = std::max(1, shape.micro_batches / shape.stages);
  return (shape.micro_batches + groups - 1) / groups;
}

// Of the first stage, which holds most: in units, a stash of a chunk each.
int MostUnits(PipelineSchedule kind, const PipelineShape& shape, int group) {
  if (kind == kGPipe) return shape.chunks * shape.micro_batches;
  return std::min(shape.chunks * shape.micro_batches,
                  shape.chunks == 1 ? shape.stages : (shape.chunks - 1) * group + 2 * shape.stages - 1);
}

// Narayanan et al. 2021, Qi et al. 2023: idle time over work, for at least as many micro-batches as stages.
double Bubble(PipelineSchedule kind, const PipelineShape& shape, const Times& t) {
  const double idle = kind == kZeroBubble ? t.forward + t.backward - t.weights : t.all();
  return (shape.stages - 1) * idle / (shape.chunks * shape.micro_batches * t.all());
}

template <typename Check>
void ForEachShape(int most_stages, int most_chunks, int most_micro_batches, Check&& check) {
  for (int p = 1; p <= most_stages; ++p)
    for (int v = 1; v <= most_chunks; ++v)
      for (int m = 1; m <= most_micro_batches; ++m) check(PipelineShape{p, v, m});
}

void ExpectComplete(const StageSchedule& s, const PipelineShape& shape, const std::string& where) {
  std::map<std::pair<Phase, int>, int> next;  // of each part and chunk micro-batches come in their order
  for (const Unit& u : s.units) {
    EXPECT_EQ(u.micro_batch, (next[{u.part, u.chunk}]++)) << where;
    if (u.part == Phase::kBackward) {
      EXPECT_LE((next[{u.part, u.chunk}]), (next[{Phase::kForward, u.chunk}])) << where;
    }
    if (u.part == Phase::kWeightGradient) {
      EXPECT_LE((next[{u.part, u.chunk}]), (next[{Phase::kBackward, u.chunk}])) << where;
    }
  }
  EXPECT_EQ(next.size(), shape.chunks * (s.last == Phase::kBackward ? 2u : 3u)) << where;
  for (const auto& [part, count] : next) EXPECT_EQ(count, shape.micro_batches) << where;
}

TEST(StageSchedule, ListsAreCompleteRunAndKeepTheirLimits) {
  for (const Times& times : {Times{1, 1, 1}, Times{1, 1.25, .75}, Times{2, 3, 1}})
    for (PipelineSchedule kind : {kGPipe, k1F1B, kInterleaved, kZeroBubble})
      for (bool exact : {false, true})
        ForEachShape(8, 4, 16, [&](const PipelineShape& shape) {
          const auto [p, v, m] = shape;
          const std::string where = Cat(Name(kind), exact ? " exact" : "", ", ", p, " stages, ", v,
                                        " chunks, ", m, " micro-batches");
          std::vector<StageSchedule> stages;
          for (int i = 0; i < p; ++i) {
            stages.push_back(ScheduleOf(kind, shape, i, exact));
            ExpectComplete(stages[i], shape, where);
          }
          const int group = exact && m % p == 0 ? p : LargestGroup(shape);
          if (kind != kZeroBubble || v == 1) {
            EXPECT_EQ(stages[0].Stashes(), MostUnits(kind, shape, group)) << where;
          }
          for (int i = 0; i < p; ++i) {
            if (v > 1 || kind == kGPipe) break;
            EXPECT_LE(stages[i].Stashes(), kind == kZeroBubble ? p : std::min(p - i, m)) << where;
          }
          const double length = RunLists(stages, shape, times), ideal = m * times.all();
          ASSERT_GE(length, ideal * (1 - 1e-9)) << where;
          if (v > 1 && kind == kGPipe) return;
          if (m >= p && (kind != kZeroBubble || v == 1)) {
            EXPECT_NEAR(length / ideal - 1, Bubble(kind, shape, times), 1e-9) << where;
          }
          if (kind != kZeroBubble) return;
          std::vector<StageSchedule> together;
          for (int i = 0; i < p; ++i) together.push_back(ScheduleOf(kInterleaved, shape, i, exact));
          EXPECT_LE(length, RunLists(together, shape, times) * (1 + 1e-9)) << where;
        });
}

// A plan of stages that take the same time, whose chunks go round.
struct RoundPlan {
  RoundPlan(PipelineSchedule kind, const PipelineShape& shape, const Times& times)
      : graph(&BuiltinCatalog(), Mesh("cpu", {{"pp", shape.stages}}), shape.micro_batches) {
    plan.schedule = kind;
    plan.streams = {{"compute", StreamKind::kCompute, {}}};
    const bool apart = kind == kZeroBubble;
    const int last = shape.stages * shape.chunks - 1;
    auto unit = [&](Phase phase, int at, double seconds) {
      Segment s;
      s.name = Cat(Name(phase), at);
      s.slice = s.from = WholeMesh(graph.mesh());
      s.slice.fixed[0] = s.from.fixed[0] = at % shape.stages;
      s.phase = phase;
      s.chunk = at / shape.stages;
      s.per_micro_batch = true;
      s.seconds = seconds / shape.chunks;
      plan.segments.push_back(s);
      return static_cast<int>(plan.segments.size()) - 1;
    };
    std::vector<int> forward(last + 1), backward(last + 1);
    for (int at = 0; at <= last; ++at) forward[at] = unit(Phase::kForward, at, times.forward);
    for (int at = last; at >= 0; --at) {
      backward[at] = unit(Phase::kBackward, at, times.backward + (apart ? 0 : times.weights));
      Value(forward[at],
            at < last ? std::vector<int>{forward[at + 1], backward[at]} : std::vector<int>{backward[at]});
      if (at < last) Value(backward[at + 1], {backward[at]});
    }
    for (int at = last; at >= 0 && apart; --at) {
      const int weights = unit(Phase::kWeightGradient, at, times.weights);
      Value(backward[at], {weights});
      Value(forward[at], {weights});
    }
    for (const StageLimit& limit : LimitsOf(plan, shape.micro_batches))
      plan.edges.push_back({limit.from, limit.to, 1, 1, limit.micro_batches, 0, {}, limit.why});
    OrderActs(graph, &plan);
  }

  void Value(int writer, const std::vector<int>& readers) {
    const int v = static_cast<int>(plan.buffers.size());
    LogicalBuffer b;
    b.value = v;
    b.writer = writer;
    b.readers = readers;
    plan.buffers.push_back(b);
    plan.buffer_of.push_back(v);
    for (int r : readers) plan.edges.push_back({writer, r, 1, 1, 0, 0, {v}, ""});
  }

  // Units between the start of their forward and the end of their last part, at most.
  int Held(int stage) const {
    const Phase last = plan.schedule == kZeroBubble ? Phase::kWeightGradient : Phase::kBackward;
    std::vector<std::pair<double, int>> events;
    for (const Firing& f : plan.order) {
      const Segment& s = plan.segments[f.transition];
      if (s.slice.fixed[0] != stage) continue;
      if (s.phase == Phase::kForward) events.push_back({f.start, 1});
      if (s.phase == last) events.push_back({f.end - 1e-9, -1});
    }
    std::sort(events.begin(), events.end());
    int held = 0, most = 0;
    for (const auto& [time, change] : events) most = std::max(most, held += change);
    return most;
  }

  Graph graph;
  LogicalPlan plan;
};

TEST(StageSchedule, PlansIdleAndHoldAsTheFormulasSay) {
  for (PipelineSchedule kind : {kGPipe, k1F1B, kInterleaved, kZeroBubble})
    for (const Times& times : {Times{1, 1, 1}, Times{1, 1.25, .75}})
      ForEachShape(8, 4, 16, [&](const PipelineShape& shape) {
        const auto [p, v, m] = shape;
        const std::string where = Cat(Name(kind), ", ", p, " stages, ", v, " chunks, ", m, " micro-batches");
        const RoundPlan round(kind, shape, times);
        const double ideal = m * times.all();
        if (m >= p && (v == 1 || kind == kInterleaved)) {
          EXPECT_NEAR(round.plan.makespan / ideal - 1, Bubble(kind, shape, times), 1e-9) << where;
        }
        for (int i = 0; i < p; ++i)
          EXPECT_LE(round.Held(i), kind == kZeroBubble ? ScheduleOf(kind, shape, i).Stashes()
                                                       : MostUnits(kind, shape, LargestGroup(shape)))
              << where << ", stage " << i;
        if (kind != kZeroBubble) return;
        EXPECT_LE(round.plan.makespan, RoundPlan(kInterleaved, shape, times).plan.makespan * (1 + 1e-9))
            << where;
      });
}

// A model of p * v blocks compiles, which verifies that its plan ends, for every schedule; with clipping and
// ZeRO along another axis.
void ExpectPlansToEnd(int most_stages, int most_chunks, int most_micro_batches) {
  for (PipelineSchedule kind : {kGPipe, k1F1B, kInterleaved, kZeroBubble})
    ForEachShape(most_stages, most_chunks, most_micro_batches, [&](const PipelineShape& shape) {
      const auto [p, v, m] = shape;
      Model model(Mesh("cpu", {{"dp", 2}, {"pp", p}}),
                  {.pipeline = {.virtual_stages = v},
                   .zero = {.axis = "dp", .stage = 1 + (p + v + m) % 3, .small = 0}});
      Tensor x = model.Input("x", {2 * m, 4}, DType::kFloat32, {{"dp", S(0)}});
      x = nn::layers(model.scope(), x, p * v,
                     [](Scope s, Tensor y, int64_t) { return y + tanh(nn::Linear(s, y, 4)); });
      TrainOptions options;
      options.micro_batches = m;
      options.schedule = kind;
      options.exact_groups = (p + m) % 2 == 0;
      options.clip_norm = 1;
      const Session session = Train(mean(square(x)), AdamW{}, options);
      const LogicalPlan& plan = session.impl()->compiled.logical;
      EXPECT_EQ(ShapeOf(plan, m).chunks, m > 1 ? (p > 1 ? v : 1) : 1)
          << Name(kind) << ", " << p << " stages, " << v << " rounds, " << m << " micro-batches";
    });
}

TEST(StageSchedule, PlansEnd) { ExpectPlansToEnd(3, 3, 5); }
TEST(LongStageSchedule, PlansEnd) { ExpectPlansToEnd(8, 4, 16); }

// What the zero-bubble schedule puts off is what products of weights' gradients read, and nothing besides.
void ExpectOnlyOperandsOfProductsToWait(const Session& train) {
  const Graph& graph = train.impl()->compiled.graph;
  const auto late = [&](int n) { return graph.node(n).phase == Phase::kWeightGradient; };
  const auto maker = [&](int v) { return graph.value(graph.BehindViews(v)).producer; };
  std::set<int> operands;  // of products, or of what makes one of a single value
  for (int n : graph.Order())
    for (int v : graph.node(n).in)
      if (late(n) && (graph.IsHeavy(n) || graph.node(n).in.size() == 1))
        operands.insert(graph.BehindViews(v));
  int waiting = 0, at_once = 0;
  for (int n : graph.Order()) {
    const std::vector<int>& in = graph.node(n).in;
    at_once += graph.IsHeavy(n) && graph.node(n).phase == Phase::kBackward;
    // What follows a product has to come behind it.
    if (!late(n) || std::any_of(in.begin(), in.end(), [&](int v) { return late(maker(v)); })) continue;
    for (int v : in) {
      if (IsEnd(graph.node(maker(v)))) continue;
      EXPECT_TRUE(operands.count(graph.BehindViews(v)) > 0)
          << graph.Describe(n) << " keeps '" << graph.value(v).name << "' of " << graph.Describe(maker(v));
      ++waiting;
    }
  }
  EXPECT_GE(waiting, 6);
  EXPECT_GE(at_once, 3);  // products that the stage before waits for
}

TEST(StageSchedule, OnlyOperandsOfProductsWait) {
  for (const char* mesh : {"cpu:pp=2", "cpu:tp=2,pp=2"}) {
    GptProgram program({.mesh = mesh, .micro_batches = 4, .schedule = kZeroBubble});
    ExpectOnlyOperandsOfProductsToWait(program.MakeTrain());
  }
  // The gradient of the first tanh leads to a weight alone, and stays, as it reads two values.
  Model model(Mesh::Parse("cpu:pp=2"));
  Tensor x = model.Input("x", {8, 4}, DType::kFloat32);
  x = nn::layers(model.scope(), x, 4, [](Scope s, Tensor y, int64_t) {
    return tanh(matmul(y, s.Weight("w", {4, 4}, Normal(.5))));
  });
  TrainOptions options;
  options.micro_batches = 2;
  options.schedule = kZeroBubble;
  ExpectOnlyOperandsOfProductsToWait(Train(mean(square(x)), Sgd{}, options));
}

// Whatever is ready first: a stage has one micro-batch in its backward segments, one in its forward segments,
// and no more between the two than its schedule holds.
TEST(StageLimits, HoldInEveryOrder) {
  for (PipelineSchedule kind : {kGPipe, k1F1B, kZeroBubble}) {
    SmallGpt given;
    given.mesh = "cpu:tp=2,pp=2";
    given.micro_batches = 5;
    given.batch = 10;
    given.schedule = kind;
    GptProgram program(given);
    Session session = program.MakeTrain();
    const Compiled& compiled = session.impl()->compiled;
    const LogicalPlan& plan = compiled.logical;
    const TokenGame game = GameOf(compiled.graph, plan);
    const std::map<Slice, int> stages = StagesOf(plan);
    for (uint64_t seed = 0; seed < 10; ++seed) {
      const Play play = PlayStep(game, [&](int t, int act) {
        return static_cast<double>(RandomBits(seed, static_cast<uint64_t>(t), static_cast<uint64_t>(act)));
      });
      // By stage, part and micro-batch: from when to when.
      std::map<std::tuple<int, Phase, int>, std::pair<double, double>> spans;
      for (const Firing& f : play.firings) {
        const Segment& s = plan.segments[f.transition];
        if (!plan.On(s, StreamKind::kCompute) || !s.per_micro_batch || s.phase == Phase::kUpdate) continue;
        auto [it, fresh] = spans.try_emplace({stages.at(s.slice), s.phase, f.act}, f.start, f.end);
        it->second = {std::min(it->second.first, f.start), std::max(it->second.second, f.end)};
      }
      for (const auto& [slice, stage] : stages) {
        const StageSchedule schedule = ScheduleOf(kind, {2, 1, 5}, stage);
        const int held = schedule.Stashes();
        auto after = [&, stage = stage](Phase part, int m, Phase other, int before) {
          EXPECT_GE(spans.at({stage, part, m}).first, spans.at({stage, other, before}).second)
              << "seed " << seed << " stage " << stage << " " << Name(part) << " micro-batch " << m;
        };
        for (int m = 1; m < 5; ++m) {
          for (Phase part : {Phase::kForward, Phase::kBackward}) after(part, m, part, m - 1);
          if (spans.count({stage, Phase::kWeightGradient, m}))
            after(Phase::kWeightGradient, m, Phase::kWeightGradient, m - 1);
          if (m >= held) after(Phase::kForward, m, schedule.last, m - held);
        }
      }
    }
  }
}

// Units of forward in whose midst a stage begins another forward or a backward, by what the order says.
int TornForwards(const LogicalPlan& plan) {
  using UnitOf = std::tuple<int, Phase, int, int>;  // stage, part, chunk, micro-batch
  const std::map<Slice, int> stages = StagesOf(plan);
  std::map<UnitOf, std::pair<double, double>> spans;
  std::map<int, std::vector<std::pair<double, UnitOf>>> begun;  // by stage
  for (const Firing& f : plan.order) {
    const Segment& s = plan.segments[f.transition];
    if (!plan.On(s, StreamKind::kCompute) || !s.per_micro_batch) continue;
    if (s.phase != Phase::kForward && s.phase != Phase::kBackward) continue;
    const int stage = stages.at(s.slice);
    const UnitOf unit{stage, s.phase, s.chunk, f.act};
    begun[stage].push_back({f.start, unit});
    auto [it, fresh] = spans.try_emplace(unit, f.start, f.end);
    it->second = {std::min(it->second.first, f.start), std::max(it->second.second, f.end)};
  }
  int torn = 0;
  for (const auto& [unit, span] : spans) {
    if (std::get<Phase>(unit) != Phase::kForward) continue;
    const auto& others = begun.at(std::get<0>(unit));
    torn += std::any_of(others.begin(), others.end(), [&, &unit = unit, &span = span](const auto& other) {
      return other.second != unit && other.first > span.first && other.first < span.second;
    });
  }
  return torn;
}

// Where messages of tensor parallelism are short beside products, filling their time with other micro-batches
// delays the stages behind by more than it gains.
TEST(OrderOfActs, UnitsAreDoneWholeWhereThatIsShorter) {
  for (PipelineSchedule kind : {kInterleaved, kZeroBubble}) {
    SmallGpt given;
    given.mesh = "cuda:tp=2,pp=4";
    given.layers = 8;
    given.width = 1024;
    given.heads = 8;
    given.context = 1024;
    given.batch = given.micro_batches = 16;
    given.schedule = kind;
    given.dropout = 0;
    if (kind == kInterleaved) given.model_options.pipeline.virtual_stages = 2;
    GptProgram program(given);
    const Session session = program.MakeTrain();
    const LogicalPlan& plan = session.impl()->compiled.logical;
    EXPECT_EQ(TornForwards(plan), 0) << Name(kind) << ", makespan " << plan.makespan;
  }
}

// A node on the whole mesh takes the stream of every stage's ranks.
TEST(OrderOfActs, RanksRunOneActAtATime) {
  const Graph graph = ParseGraph(BuiltinCatalog(), R"(mesh cpu:pp=2
x = input : f32[4,4] {pp:B}
y = input : f32[4,4] {} @pp=0
z = input : f32[4,4] {} @pp=1
a = relu(x) : f32[4,4] {pp:B}
b = exp(y) : f32[4,4] {} @pp=0
c = exp(z) : f32[4,4] {} @pp=1
fetch b(b) @pp=0
fetch c(c) @pp=1
)");
  CompileOptions options;
  LogicalPlan plan = FormSegments(graph, options);
  OrderActs(graph, &plan);
  int pairs = 0;
  for (int rank = 0; rank < 2; ++rank) {
    const Firing* last = nullptr;
    for (const Firing& f : plan.order) {
      const Segment& s = plan.segments[f.transition];
      if (!plan.On(s, StreamKind::kCompute) || !s.slice.Contains({rank})) continue;
      if (last) {
        EXPECT_GE(f.start, last->end)
            << plan.segments[last->transition].name << " and " << s.name << " overlap";
        ++pairs;
      }
      last = &f;
    }
  }
  EXPECT_GE(pairs, 2);
}

}  // namespace
}  // namespace oneflow_like
