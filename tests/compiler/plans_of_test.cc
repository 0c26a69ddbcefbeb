// Plans of several ranks made side by side: those that are made one after another, byte for byte, in the
// order asked for, and of several errors that of the first rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "core/plan/plan_values.h"
#include "core/random.h"
#include "ops/language/functional.h"
#include "ops/op.h"
#include "tests/error_of.h"
#include "tests/oneflow_like/small_gpt.h"

namespace oneflow_like {
namespace {

std::string TextOf(const RankPlan& made) {
  std::string text = Cat(made.plan.SerializeAsString(), '\n', made.lower_bound, ' ', made.live.positions);
  for (const auto& [buffer, bytes] : made.at_peak) text += Cat('\n', buffer, ':', bytes);
  for (const LiveBytes::Change& c : made.live.changes)
    text += Cat('\n', c.position, ' ', c.buffer, ' ', c.bytes);
  return text;
}

std::vector<SmallGpt> Programs() {
  return {{.mesh = "cpu:dp=2,tp=2,pp=2", .micro_batches = 4},
          {.mesh = "cpu:tp=8", .heads = 8, .dtype = DType::kBFloat16},
          {.mesh = "cpu:dp=8", .zero_axis = "dp", .zero_stage = 3, .recompute = Recompute::kSelective},
          {.mesh = "cpu:pp=4,dp=2", .micro_batches = 8, .schedule = PipelineSchedule::kZeroBubble}};
}

TEST(PlansOf, AreThoseMadeOneAfterAnother) {
  std::mt19937 draw(3);
  for (const SmallGpt& given : Programs()) {
    SCOPED_TRACE(given.str());
    GptProgram program(given);
    const Session session = program.MakeTrain();
    const Compiled& compiled = session.impl()->compiled;
    std::vector<std::string> one_by_one;
    for (int rank = 0; rank < 8; ++rank) one_by_one.push_back(TextOf(PlanOf(compiled, rank)));
    for (int threads : {0, 1, 2, 8}) {
      std::vector<int> ranks = {0, 1, 2, 3, 4, 5, 6, 7};
      if (threads > 1) std::shuffle(ranks.begin(), ranks.end(), draw);
      if (threads == 2) ranks.push_back(ranks[0]);  // asked for twice
      const std::vector<RankPlan> plans = PlansOf(compiled, ranks, threads);
      ASSERT_EQ(plans.size(), ranks.size());
      for (size_t i = 0; i < ranks.size(); ++i)
        EXPECT_TRUE(TextOf(plans[i]) == one_by_one[ranks[i]]) << "rank " << ranks[i] << ", " << threads;
    }
    EXPECT_TRUE(PlansOf(compiled, {}).empty());
  }
}

// All that memory, times and traffic are estimated from.
std::string EstimatesOf(const RankPlan& made) {
  RankPlan rest = made;
  std::string text;
  for (plan::Actor& actor : *rest.plan.mutable_actor()) {
    for (plan::Kernel& kernel : *actor.mutable_kernel())
      for (auto* operands : {kernel.mutable_in(), kernel.mutable_out()})
        for (plan::Operand& operand : *operands) {
          Dims most;  // over micro-batches
          for (const plan::Box& box : operand.box()) {
            const Dims extent = ToBox(box).extent;
            if (most.rank() == 0) most = extent;
            for (int a = 0; a < extent.rank(); ++a) most[a] = std::max(most[a], extent[a]);
          }
          text += most.str();
          operand.clear_box();
        }
    if (actor.has_collective()) {
      double regions = 0;
      for (const plan::RegionList& list : actor.collective().work()) regions += list.region_size();
      text += Cat(" ", regions / std::max(1, actor.collective().work_size()));
      actor.mutable_collective()->clear_work();
      actor.mutable_collective()->clear_piece();
    }
  }
  return text + TextOf(rest);
}

// Micro-batches of one size, and of several.
TEST(PlansOf, AnOutlineEstimatesTheSame) {
  std::vector<SmallGpt> programs = Programs();
  programs.push_back({.mesh = "cpu:dp=2,pp=2", .micro_batches = 3, .batch = 10});
  programs.push_back({.mesh = "cpu:dp=2,tp=2", .micro_batches = 4, .zero_axis = "dp", .batch = 14});
  int64_t whole_bytes = 0, outline_bytes = 0;
  for (const SmallGpt& given : programs) {
    SCOPED_TRACE(given.str());
    GptProgram program(given);
    const Session session = program.MakeTrain();
    const Compiled& compiled = session.impl()->compiled;
    for (int rank = 0; rank < compiled.graph.mesh().size(); ++rank) {
      const RankPlan whole = PlanOf(compiled, rank), outline = PlanOf(compiled, rank, PlanDetail::kOutline);
      EXPECT_TRUE(EstimatesOf(whole) == EstimatesOf(outline)) << "rank " << rank;
      whole_bytes += static_cast<int64_t>(whole.plan.ByteSizeLong());
      outline_bytes += static_cast<int64_t>(outline.plan.ByteSizeLong());
    }
  }
  EXPECT_LT(outline_bytes, whole_bytes);
}

// All that PlaceMemory leaves: where each buffer and scratch lies, and what is alive when.
std::string MemoryOf(const RankPlan& made) {
  std::string text = Cat(made.lower_bound, ' ', made.live.positions);
  for (const auto& [buffer, bytes] : made.at_peak) text += Cat('\n', buffer, ':', bytes);
  for (const LiveBytes::Change& c : made.live.changes)
    text += Cat('\n', c.position, ' ', c.buffer, ' ', c.bytes);
  for (const plan::Arena& arena : made.plan.arena()) text += Cat("\narena ", arena.bytes());
  for (const plan::Variable& v : made.plan.variable()) text += Cat('\n', v.name(), ' ', v.bytes());
  for (const plan::Buffer& b : made.plan.buffer()) {
    text += Cat("\nbuffer ", b.id(), ' ', b.slot_bytes(), ' ', b.slots(), " at");
    for (int64_t at : b.offset()) text += Cat(' ', at);
  }
  for (const plan::Actor& actor : made.plan.actor())
    for (const plan::Kernel& k : actor.kernel())
      text += Cat("\nscratch ", actor.id(), ' ', k.scratch_bytes(), ' ', k.scratch_offset());
  return text;
}

TEST(PlansOf, AMemoryPlanTakesTheSame) {
  std::vector<SmallGpt> programs = Programs();
  programs.push_back({.mesh = "cpu:dp=2,pp=2", .micro_batches = 3, .batch = 10});
  programs.push_back({.mesh = "cpu:dp=2,tp=2", .micro_batches = 4, .zero_axis = "dp", .batch = 14});
  int64_t scratch = 0;
  for (const SmallGpt& given : programs) {
    SCOPED_TRACE(given.str());
    GptProgram program(given);
    const Session session = program.MakeTrain();
    const Compiled& compiled = session.impl()->compiled;
    for (int rank = 0; rank < compiled.graph.mesh().size(); ++rank) {
      const RankPlan whole = PlanOf(compiled, rank);
      EXPECT_EQ(MemoryOf(whole), MemoryOf(PlanOf(compiled, rank, PlanDetail::kMemory))) << "rank " << rank;
      for (const plan::Actor& actor : whole.plan.actor())
        for (const plan::Kernel& k : actor.kernel()) scratch += k.scratch_bytes();
    }
  }
  EXPECT_GT(scratch, 0);
}

// y = x, by an operator whose scratch is refused on ranks 2, 3, 5 and 7, on earlier ranks later.
OpDef Refusing() {
  OpDef def;
  def.name = "refusing";
  def.axes = "x[n] -> y[n]";
  def.reference = [](const KernelContext&) { return Status(); };
  def.scratch = [](const KernelSpec& spec) -> int64_t {
    const int64_t rank = spec.in[0].begin[0] / spec.in[0].extent[0];
    if (rank != 2 && rank != 3 && rank != 5 && rank != 7) return 64;
    std::this_thread::sleep_for(std::chrono::milliseconds(2 * (8 - rank)));
    Fail("refusing: no scratch on rank ", rank);
  };
  return def;
}

TEST(PlansOf, TheFirstErrorIsThatOfTheFirstRank) {
  ModelOptions options;
  options.operators = {Refusing()};
  Model model(Mesh::Parse("cpu:dp=8"), options);
  Tensor x = model.Input("x", {64}, DType::kFloat32, {{"dp", S(0)}});
  const Session session = Evaluate({{"y", Apply(x.graph(), "refusing", {x}, {})[0]}});
  const Compiled& compiled = session.impl()->compiled;
  for (int threads : {1, 2, 8})
    for (const std::vector<int>& ranks : {std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7}, {7, 0, 2}, {4, 5, 3}}) {
      const std::string error = ErrorOf([&] { PlansOf(compiled, ranks, threads); });
      const int first = ranks[0] == 0 ? 2 : ranks[0] == 7 ? 7 : 5;
      EXPECT_EQ(error, Cat("refusing: no scratch on rank ", first)) << threads << " threads";
    }
  EXPECT_EQ(ErrorOf([&] { PlansOf(compiled, {0, 1, 4, 6}, 2); }), "");
  // And so ends a program that loads these ranks, whatever is made when.
  EXPECT_EQ(ErrorOf([&] { session.Summaries(); }), "refusing: no scratch on rank 2");
}

}  // namespace
}  // namespace oneflow_like
