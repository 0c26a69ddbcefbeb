// Pipeline schedules are lists: complete, runnable to the letter, as short as their formulas, within their
// limits. And an order of acts gives every stream of every rank one act at a time.
#include <gtest/gtest.h>

#include <algorithm>

#include "compiler/passes.h"
#include "compiler/schedule.h"
#include "compiler/text.h"
#include "tests/oneflow_like/small_gpt.h"

namespace oneflow_like {
namespace {

std::string Text(const StageSchedule& s) {
  std::string text;
  for (const Unit& u : s.units)
    text += Cat(text.empty() ? "" : " ", u.part == Phase::kForward ? "F" : "B", u.micro_batch);
  return text;
}

TEST(StageSchedule, AsOnPaper) {
  EXPECT_EQ(Text(ScheduleOf(PipelineSchedule::kGPipe, 1, 3, 3)), "F0 F1 F2 B0 B1 B2");
  EXPECT_EQ(Text(ScheduleOf(PipelineSchedule::k1F1B, 0, 3, 5)), "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4");
  EXPECT_EQ(Text(ScheduleOf(PipelineSchedule::k1F1B, 2, 3, 4)), "F0 B0 F1 B1 F2 B2 F3 B3");
  EXPECT_EQ(Text(ScheduleOf(PipelineSchedule::k1F1B, 0, 4, 2)), "F0 F1 B0 B1");
}

// Every stage goes through its list, waiting for each unit; gives the length, or -1 when all wait.
double RunLists(const std::vector<StageSchedule>& stages, int micro_batches, double forward,
                double backward) {
  const int p = static_cast<int>(stages.size());
  std::vector<std::vector<double>> f(p, std::vector<double>(micro_batches, -1)), b = f;
  std::vector<double> free(p, 0);
  std::vector<size_t> next(p, 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (int i = 0; i < p; ++i) {
      if (next[i] == stages[i].units.size()) continue;
      const auto [part, m] = stages[i].units[next[i]];
      double ready = 0;
      if (part == Phase::kForward && i > 0) ready = f[i - 1][m];
      if (part == Phase::kBackward) ready = std::min(f[i][m], i + 1 < p ? b[i + 1][m] : f[i][m]);
      if (ready < 0) continue;
      if (part == Phase::kBackward && i + 1 < p) ready = std::max(f[i][m], b[i + 1][m]);
      free[i] = std::max(free[i], ready) + (part == Phase::kForward ? forward : backward);
      (part == Phase::kForward ? f : b)[i][m] = free[i];
      ++next[i];
      moved = true;
    }
  }
  for (int i = 0; i < p; ++i)
    if (next[i] != stages[i].units.size()) return -1;
  return *std::max_element(free.begin(), free.end());
}

TEST(StageSchedule, ListsAreCompleteRunAndKeepTheirLimits) {
  for (PipelineSchedule kind : {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B})
    for (int p = 1; p <= 8; ++p)
      for (int m = 1; m <= 20; ++m) {
        std::vector<StageSchedule> stages;
        for (int i = 0; i < p; ++i) {
          stages.push_back(ScheduleOf(kind, i, p, m));
          const std::string where = Cat("stage ", i, " of ", p, ", ", m, " micro-batches: ", Text(stages[i]));
          EXPECT_EQ(stages[i].stashes, kind == PipelineSchedule::kGPipe ? m : std::min(p - i, m)) << where;
          int forwards = 0, backwards = 0, most = 0;
          for (const Unit& u : stages[i].units) {
            int& count = u.part == Phase::kForward ? forwards : backwards;
            EXPECT_EQ(u.micro_batch, count++) << where;
            most = std::max(most, forwards - backwards);
          }
          EXPECT_EQ(forwards, m) << where;
          EXPECT_EQ(backwards, m) << where;
          EXPECT_EQ(most, stages[i].stashes) << where;
        }
        EXPECT_DOUBLE_EQ(RunLists(stages, m, 1, 2), 3.0 * (m + p - 1))
            << p << " stages, " << m << " micro-batches";
      }
}

// Whatever is ready first: a stage has one micro-batch in its backward segments, one in its forward segments,
// and no more between the two than its schedule holds.
TEST(StageLimits, HoldInEveryOrder) {
  for (PipelineSchedule kind : {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B}) {
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
      // By stage, part (0: forward, 1: backward) and micro-batch: from when to when.
      std::map<std::tuple<int, int, int>, std::pair<double, double>> spans;
      for (const Firing& f : play.firings) {
        const Segment& s = plan.segments[f.transition];
        if (!plan.On(s, StreamKind::kCompute) || !s.per_micro_batch || s.phase == Phase::kUpdate) continue;
        auto [it, fresh] =
            spans.try_emplace({stages.at(s.slice), s.phase == Phase::kBackward, f.act}, f.start, f.end);
        it->second = {std::min(it->second.first, f.start), std::max(it->second.second, f.end)};
      }
      for (const auto& [slice, stage] : stages) {
        const int held = ScheduleOf(kind, stage, 2, 5).stashes;
        auto after = [&, stage = stage](int part, int m, int other, int before) {
          EXPECT_GE(spans.at({stage, part, m}).first, spans.at({stage, other, before}).second)
              << "seed " << seed << " stage " << stage << " part " << part << " micro-batch " << m;
        };
        for (int m = 1; m < 5; ++m) {
          for (int part : {0, 1}) after(part, m, part, m - 1);
          if (m >= held) after(0, m, 1, m - held);
        }
      }
    }
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
  OrderActs(graph, options, &plan);
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
