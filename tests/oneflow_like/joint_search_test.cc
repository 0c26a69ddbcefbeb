// The search for a plan with mesh, cuts of weights and recomputation open at once, beside all of them.
// ctest: seconds=26 long=400
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <random>
#include <set>

#include "examples/gpt_model.h"
#include "oneflow_like/model/model_impl.h"
#include "oneflow_like/oneflow_like.h"
#include "oneflow_like/planner/neighbours.h"
#include "oneflow_like/session/session_impl.h"
#include "oneflow_like/simulate.h"
#include "tests/error_of.h"
#include "tests/oneflow_like/axis_orders.h"
#include "tests/oneflow_like/fullest_rank.h"

namespace oneflow_like {

using namespace examples;
namespace {

constexpr int64_t kBlocks = 2, kBatch = 8, kRows = 16;

// Devices and lines of which any may be slow, a drawn number of them on a host.
Machine DrawMachine(std::mt19937* random, int devices) {
  const auto between = [&](double low, double high) {
    return low * std::pow(high / low, std::uniform_real_distribution<double>()(*random));
  };
  Machine machine;
  const double inside = between(2e8, 2e11);
  machine.topology.links = {{.devices = 0, .latency = between(1e-6, 1e-5), .bandwidth = inside}};
  if ((*random)() % 2)
    machine.topology.links.insert(
        machine.topology.links.begin(),
        {.devices = devices / 2, .latency = 1e-6, .bandwidth = inside * between(2, 50)});
  machine.shared.assign(machine.topology.links.size(), false);
  machine.topology.memory_bandwidth = between(1e10, 1e12);
  machine.flops = machine.narrow_flops = between(1e10, 1e13);
  machine.overhead = between(1e-7, 2e-6);
  return machine;
}

// A residual MLP. Along dp its weights are whole; along tp nothing says how they are.
BuildPlan BuildMlp(int64_t width, int64_t inner, const Machine& machine, int64_t blocks = kBlocks) {
  return [=](const PlanCandidate& candidate) {
    ModelOptions options;
    TrainOptions train;
    candidate.Set(&options, &train);
    if (options.auto_cuts != AutoCuts::kNone) options.auto_cuts = AutoCuts::kOpen;
    train.parallel = {.batch = "dp", .tensor = "tp", .context = ""};
    Model model(candidate.mesh, options);
    model.impl()->machine = machine;  // which a topology file would say
    Tensor x = model.Input("x", {kBatch, kRows, width}, DType::kFloat32, {{"dp", S(0)}});
    const Annotation whole = {{"dp", B()}};
    Tensor y = nn::layers(model.scope(), x, blocks, [&](Scope s, Tensor h, int64_t) {
      Tensor up = s.Weight("up", {width, inner}, Normal(0.1), whole);
      Tensor down = s.Weight("down", {inner, width}, Normal(0.1), whole);
      return h + matmul(gelu(matmul(h, up)), down);
    });
    return Train(mean(square(y)), AdamW{.lr = 0.1}, train);
  };
}

struct Taken {
  double seconds = 0;
  int64_t bytes = 0;
};

Taken TakenBy(const Session& session, const Machine& machine) {
  return {Simulate(session, machine).seconds, FullestRank(session)};
}

// The candidate with each cut of either weight, over tp, and each way of each block.
std::vector<PlanCandidate> AllOf(const PlanCandidate& candidate) {
  const int entry = 1 + candidate.mesh.FindAxis("tp");
  std::vector<VariableCut> cuts(1);
  if (candidate.extent("tp") > 1)
    for (int axis : {0, 1}) cuts.push_back({{{entry, S(axis)}}, {}});
  constexpr std::array kWays = {Recompute::kNone, Recompute::kSelective, Recompute::kFull};
  std::vector<PlanCandidate> all;
  for (const VariableCut& up : cuts)
    for (const VariableCut& down : cuts)
      for (Recompute first : kWays)
        for (Recompute second : kWays) {
          PlanCandidate c = candidate;
          for (int64_t b = 0; b < kBlocks; ++b) {
            c.cuts[Cat("block", b, "/up")] = up;
            c.cuts[Cat("block", b, "/down")] = down;
          }
          c.waits = {{"block0", first}, {"block1", second}};
          all.push_back(std::move(c));
        }
  return all;
}

void ExpectNearTheBestOfTheProduct(uint32_t first, int trials) {
  for (uint32_t seed = first; seed < first + trials; ++seed) {
    std::mt19937 random(seed);
    const int devices = std::array{4, 6, 8}[random() % 3];
    const Machine machine = DrawMachine(&random, devices);
    const int64_t width = int64_t{16} << random() % 3, inner = width * std::array{1, 2, 4}[random() % 3];
    const BuildPlan build = BuildMlp(width, inner, machine);
    PlanSpace space{.devices = devices, .batch = kBatch};
    space.zero = static_cast<int>(random() % 2);
    space.schedule = PipelineSchedule::k1F1B;
    space.virtual_stages = 1;
    space.micro_batches = 1 << random() % 2;
    space.sequence_parallel = false;
    space.recompute = Recompute::kNone;
    std::vector<Taken> all;
    std::vector<PlanCandidate> which;
    for (const PlanCandidate& candidate : CandidatesOf(space, kBlocks))
      for (const PlanCandidate& ordered : InAllOrders(candidate))
        for (PlanCandidate& c : AllOf(ordered)) {
          all.push_back(TakenBy(build(c), machine));
          which.push_back(std::move(c));
        }
    space.recompute.reset();
    space.cuts = space.waits = true;
    int64_t least = all[0].bytes, most = 0;
    for (const Taken& t : all) least = std::min(least, t.bytes), most = std::max(most, t.bytes);
    for (const int part : {1, 4, 8}) {
      const int64_t memory = least + (most - least) * part / 8;
      size_t best = all.size();
      for (size_t i = 0; i < all.size(); ++i)
        if (all[i].bytes <= memory && (best == all.size() || all[i].seconds < all[best].seconds)) best = i;
      const PlanSearchResult found = SearchPlans(space, machine, build, {.memory = memory});
      const Taken taken = TakenBy(build(found.chosen()), machine);
      std::printf("seed %u, %d devices, %d/8 of the memory: %.4f of the best of %zu\n", seed, devices, part,
                  taken.seconds / all[best].seconds, all.size());
      EXPECT_LE(taken.bytes, memory);
      EXPECT_EQ(taken.seconds, found.best.front().seconds);
      EXPECT_LE(taken.seconds, 1.03 * all[best].seconds)
          << found.Text() << ToText(SavedPlan{found.chosen(), "", ""})
          << "best of all: " << ToText(SavedPlan{which[best], "", ""}) << all[best].seconds << " s, "
          << all[best].bytes << " of " << memory;
    }
  }
}

// A model that is given what another has decided has its plan, without a search: also with blocks that have
// moved, and in a session that comes after another.
TEST(JointSearch, WhatWasDecidedIsTakenAgain) {
  std::mt19937 random(5);
  const Machine machine = DrawMachine(&random, 8);
  int of_cuts = 0, of_waits = 0;  // plans that these decisions make what they are
  for (const char* mesh : {"cpu:dp=2,tp=2,pp=2", "cpu:dp=1,tp=4,pp=2", "cpu:dp=2,tp=4,pp=1"}) {
    PlanCandidate given;
    given.mesh = Mesh::Parse(mesh);
    given.micro_batches = 2;
    const BuildPlan build = BuildMlp(64, 256, machine);
    const auto hash_of = [&](const Session& session) { return Simulate(session, machine).plan_hash; };
    // Room for more than a plan takes that computes all again, and for less than one that keeps all.
    PlanCandidate full = given;
    full.recompute = Recompute::kFull;
    PlanCandidate waits = given;
    waits.open_waits = true;
    waits.memory = (TakenBy(build(given), machine).bytes + TakenBy(build(full), machine).bytes) / 2;
    PlanCandidate both = waits;
    both.open_cuts = true;
    PlanCandidate again;
    for (const PlanCandidate& open : {waits, both}) {
      const Session session = build(open);
      again = PlanCandidate{session.Plan().decisions};
      const uint64_t hash = hash_of(session);
      const Session repeated = build(again);
      EXPECT_EQ(hash_of(repeated), hash) << mesh;
      EXPECT_EQ(repeated.Plan().decisions, session.Plan().decisions) << mesh;
      PlanCandidate whole = again, kept = again;
      whole.cuts.clear();
      kept.waits.clear();
      of_cuts += hash_of(build(whole)) != hash;
      of_waits += hash_of(build(kept)) != hash;
    }
    const auto refused = [&](const std::function<void(PlanCandidate*)>& spoil) {
      PlanCandidate spoilt = again;
      spoil(&spoilt);
      return ErrorOf([&] { build(spoilt); });
    };
    EXPECT_NE(refused([](PlanCandidate* c) { c->cuts["nothing"] = {}; }).find("cuts weight 'nothing'"),
              std::string::npos);
    EXPECT_NE(
        refused([](PlanCandidate* c) { c->cuts["block0/up"].fixed[2] = S(2); }).find("by S2, but it is"),
        std::string::npos);
    EXPECT_NE(
        refused([](PlanCandidate* c) { c->waits["block7"] = Recompute::kFull; }).find("region 'block7'"),
        std::string::npos);
    EXPECT_NE(refused([](PlanCandidate* c) {
                c->stages["block1"] = {1, 1};
              }).find("blocks from 'block1' on"),
              std::string::npos);
    if (again.extent("pp") > 1) {
      EXPECT_NE(refused([](PlanCandidate* c) {
                  c->stages["block0"] = {1, 2};
                }).find("divides 3 blocks"),
                std::string::npos);
    }
  }
  EXPECT_GT(of_cuts, 0);
  EXPECT_GT(of_waits, 0);
}

// Each plan beside a plan differs in one decision, and is taken as it is.
TEST(JointSearch, PlansBesideAPlanDifferInOneDecision) {
  std::mt19937 random(5);
  Machine machine = DrawMachine(&random, 8);
  machine.topology.links = {{.devices = 4, .latency = 1e-6, .bandwidth = 1e11},
                            {.devices = 0, .latency = 1e-5, .bandwidth = 1e9}};
  machine.shared.assign(2, false);
  const BuildPlan build = BuildMlp(64, 256, machine, 4);
  TrialPool pool(machine, build, 0);
  for (const PlanCandidate& c : CandidatesOf({.devices = 8, .batch = kBatch}, 4))
    pool.Add({PlanTrial{.plan = c, .seconds = 1}});
  PlanCandidate plan;
  plan.mesh = Mesh::Parse("cpu:dp=2,tp=2,pp=2");
  plan.micro_batches = 2;
  plan.open_cuts = true;
  plan.memory = int64_t{1} << 40;
  plan = PlanCandidate{build(plan).Plan().decisions};
  const Session session = build(plan);
  const Decisions& here = session.impl()->compiled.options.decided;
  const auto beside = [&](Neighbourhood neighbourhood) {
    const std::vector<PlanCandidate> all = neighbourhood(plan, session, pool);
    EXPECT_FALSE(all.empty());
    for (const PlanCandidate& c : all) {
      SCOPED_TRACE(ToText(SavedPlan{c, "", ""}));
      const Session other = build(c);
      const Decisions& there = other.impl()->compiled.options.decided;
      const bool flags = here.micro_batches != there.micro_batches || here.schedule != there.schedule ||
                         here.virtual_stages != there.virtual_stages || here.zero != there.zero ||
                         here.recompute != there.recompute || plan.sequence_parallel != c.sequence_parallel;
      const bool order = !(here.mesh == there.mesh);
      EXPECT_EQ(flags, neighbourhood == FlagOtherwise);
      EXPECT_EQ(order, neighbourhood == OrderOtherwise);
      if (!flags) EXPECT_EQ(here.stages != there.stages, neighbourhood == DivideOtherwise);
      if (!order) EXPECT_EQ(here.cuts != there.cuts, neighbourhood == CutOtherwise);
      int waits = 0;  // regions that wait otherwise
      for (const auto& [region, mode] : there.waits) waits += mode != Recompute::kNone;
      EXPECT_EQ(waits, neighbourhood == WaitOtherwise);
      EXPECT_EQ(other.Plan().decisions, build(PlanCandidate{other.Plan().decisions}).Plan().decisions);
    }
    return all.size();
  };
  EXPECT_EQ(beside(WaitOtherwise), 8u);    // of four blocks, two other ways each
  EXPECT_EQ(beside(CutOtherwise), 4u);     // of two kinds, along tp alone
  EXPECT_EQ(beside(DivideOtherwise), 2u);  // three blocks of four in either stage
  EXPECT_EQ(beside(OrderOtherwise), 5u);
  beside(FlagOtherwise);
}

// Where no plan fits that computes again, one does of which parts wait on the host.
TEST(JointSearch, WhereNothingElseFitsPartsWaitOnTheHost) {
  std::mt19937 random(9);
  Machine machine = DrawMachine(&random, 1);
  machine.host = {.latency = 1e-6, .bandwidth = 1e10, .known = true};
  const BuildPlan build = [&](const PlanCandidate& candidate) {
    ModelOptions options;
    TrainOptions train;
    candidate.Set(&options, &train);
    train.parallel = {.batch = "dp", .tensor = "tp", .context = ""};
    Model model(candidate.mesh, options);
    model.impl()->machine = machine;
    const GptConfig config = {.layers = 6, .width = 160, .heads = 2, .context = 64, .vocabulary = 32};
    Tensor tokens = model.Input("tokens", {8, 64}, DType::kInt32, {{"dp", S(0)}});
    Tensor targets = model.Input("targets", {8, 64}, DType::kInt32, {{"dp", S(0)}});
    return Train(GptLoss(model.scope(), tokens, targets, config), AdamW{.lr = 1e-3}, train);
  };
  PlanSpace space{.devices = 1, .batch = 8};
  space.micro_batches = 1;
  space.sequence_parallel = false;
  int64_t least = INT64_MAX;
  for (const PlanCandidate& c : CandidatesOf(space, 6))
    least = std::min(least, TakenBy(build(c), machine).bytes);
  space.waits = true;
  const auto found = [&](double part) {
    return SearchPlans(space, machine, build, {.memory = static_cast<int64_t>(part * least)}).chosen();
  };
  const auto parts_on_host = [&](double part) {
    const PlanCandidate plan = found(part);
    EXPECT_LE(TakenBy(build(plan), machine).bytes, part * least) << plan.str();
    return OffloadText(plan.offload);
  };
  EXPECT_EQ(parts_on_host(1.02), "");
  EXPECT_EQ(parts_on_host(.9), "activations");
  EXPECT_EQ(parts_on_host(.75), "activations,optimizer");
  EXPECT_EQ(parts_on_host(.65), "activations,optimizer,weights");
  EXPECT_NE(ErrorOf([&] { found(.05); }).find("no plan of 1 device fits"), std::string::npos);
  space.host = false;
  EXPECT_NE(ErrorOf([&] { found(.9); }).find("no plan of 1 device fits"), std::string::npos);
  space.host = true;
  space.waits = false;  // and nothing is tried on the host
  EXPECT_NE(ErrorOf([&] { found(.9); }).find("(--recompute=auto), which also tries --offload"),
            std::string::npos);
  space.waits = true;
  machine.host.known = false;
  EXPECT_NE(ErrorOf([&] { found(.9); }).find("no plan of 1 device fits"), std::string::npos);
}

// Of a model that is annotated in its code, at a budget that few plans fit.
void ExpectNoSlowerPlan(PlanSpace space, const std::vector<int>& parts) {
  std::mt19937 random(7);
  const Machine machine = DrawMachine(&random, 4);
  const BuildPlan build = [](const PlanCandidate& candidate) {
    ModelOptions options;
    TrainOptions train;
    candidate.Set(&options, &train);
    train.parallel = {.batch = "dp", .tensor = "tp", .context = ""};
    Model model(candidate.mesh, options);
    const GptConfig config = {.layers = 2, .width = 16, .heads = 2, .context = 8, .vocabulary = 64};
    Tensor tokens = model.Input("tokens", {4, 8}, DType::kInt32, {{"dp", S(0)}});
    Tensor targets = model.Input("targets", {4, 8}, DType::kInt32, {{"dp", S(0)}});
    return Train(GptLoss(model.scope(), tokens, targets, config), AdamW{.lr = 1e-3}, train);
  };
  space.micro_batches = 1;
  space.sequence_parallel = false;
  int64_t least = 0, most = 0;
  for (const PlanCandidate& c : CandidatesOf(space, 2)) {
    const int64_t bytes = TakenBy(build(c), machine).bytes;
    least = least == 0 ? bytes : std::min(least, bytes);
    most = std::max(most, bytes);
  }
  for (const int part : parts) {
    double given = 0;
    for (const auto& [cuts, waits] : {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
      space.cuts = cuts;
      space.waits = waits;
      const PlanSearchResult found =
          SearchPlans(space, machine, build, {.memory = least + (most - least) * part / 4});
      if (given == 0) given = found.best.front().seconds;
      EXPECT_LE(found.best.front().seconds, given)
          << "part " << part << ", cuts " << cuts << ", waits " << waits;
    }
  }
}

TEST(JointSearch, WhatIsOpenMakesNoPlanSlower) {
  PlanSpace space{.devices = 4, .batch = 4};
  space.zero = 0;
  space.schedule = PipelineSchedule::k1F1B;
  space.virtual_stages = 1;
  ExpectNoSlowerPlan(space, {1});
}
TEST(LongJointSearch, WhatIsOpenMakesNoPlanSlower) {
  ExpectNoSlowerPlan({.devices = 4, .batch = 4}, {0, 1, 3});
}

TEST(JointSearch, TheChoiceIsNearTheBestOfTheProduct) {
  ExpectNearTheBestOfTheProduct(100, 1);
  ExpectNearTheBestOfTheProduct(200, 1);
}
TEST(LongJointSearch, TheChoiceIsNearTheBestOfTheProduct) {
  ExpectNearTheBestOfTheProduct(101, 23);
  ExpectNearTheBestOfTheProduct(201, 4);
  ExpectNearTheBestOfTheProduct(221, 1);  // the worst of 144
}

}  // namespace
}  // namespace oneflow_like
