// Recompute::kAuto: plans are about as fast as the best there are that fit, and no budget gives a slower plan
// or a smaller peak than one below it.
// ctest: seconds=166 long=350
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "compiler/search/choose_recompute.h"
#include "core/plan/plan_values.h"
#include "oneflow_like/model/blocks.h"
#include "tests/compiler/recompute_budget.h"

namespace oneflow_like {
namespace {

// A training whose layers can be told one by one what to compute again.
class LayerByLayer {
 public:
  explicit LayerByLayer(const SmallGpt& given) : program_(given), session_(program_.MakeTrain()) {
    const Compiled& compiled = session_.impl()->compiled;
    GraphOfModel& source = program_.model().impl()->graph;
    int loss = -1;
    for (int n : compiled.graph.Order())
      if (compiled.graph.node(n).kind == NodeKind::kFetch && compiled.graph.node(n).name == "loss")
        loss = compiled.graph.node(n).in[0];
    while (loss >= source.num_values()) loss = compiled.graph.OperandBehind(loss);
    graph_.push_back(SessionGraph(source, {{"loss", loss}}, DivisionOf(source)));
    const int train = graph_[0].AddTrain(loss, {}), fetch = graph_[0].AddFetch("loss", loss);
    graph_[0].KeepOnly({train, fetch});
    graph_[0] = RunPasses("", kBeforeWaits, std::move(graph_[0]), compiled.options);
    for (const auto& [path, setting] : graph_[0].regions().all()) layers_.push_back(path);
    options_ = compiled.options;
    options_.training->recompute = Recompute::kAuto;
  }

  struct Plan {
    double seconds = 0;
    int64_t peak = 0;
  };

  std::vector<Plan> PlansWith(const std::vector<std::vector<Recompute>>& choices) const {
    std::vector<Plan> plans(choices.size());
    SideBySide(static_cast<int>(choices.size()), 0, [&](int i) {
      std::map<std::string, Recompute> choice;
      for (size_t l = 0; l < layers_.size(); ++l) choice[layers_[l]] = choices[i][l];
      plans[i] = PlanWith(choice);
    });
    return plans;
  }

  // What the compiler chooses within a budget. It searches once for all budgets.
  std::map<std::string, Recompute> ChoiceWithin(int64_t budget) {
    if (!search_) search_ = std::make_unique<RecomputeSearch>(graph_[0], options_);
    return search_->Within(budget).waits;
  }

  size_t layers() const { return layers_.size(); }

  Plan PlanWith(const std::map<std::string, Recompute>& choice) const {
    Graph graph = graph_[0];
    for (const auto& [layer, mode] : choice) graph.regions().Choose(layer, mode);
    const Compiled compiled = CompileAfter(kBeforeWaits, std::move(graph), session_.impl()->compiled.options);
    Plan plan{compiled.logical.makespan, 0};
    for (int rank = 0; rank < compiled.graph.mesh().size(); ++rank) {
      const plan::Plan made = PlanOf(compiled, rank, PlanDetail::kMemory).plan;
      int64_t bytes = ArenaBytes(made);
      for (const plan::Variable& variable : made.variable()) bytes += variable.bytes();
      plan.peak = std::max(plan.peak, bytes);
    }
    return plan;
  }

 private:
  GptProgram program_;
  Session session_;
  CompileOptions options_;    // that leave all layers to the compiler
  std::vector<Graph> graph_;  // one, before anything is chosen
  std::vector<std::string> layers_;
  std::unique_ptr<RecomputeSearch> search_;
};

constexpr Recompute kEach[] = {Recompute::kNone, Recompute::kSelective, Recompute::kFull};

std::vector<std::vector<Recompute>> AllChoices(size_t layers) {
  std::vector<std::vector<Recompute>> all(1);
  for (size_t l = 0; l < layers; ++l) {
    std::vector<std::vector<Recompute>> longer;
    for (const auto& choice : all)
      for (Recompute r : kEach) {
        longer.push_back(choice);
        longer.back().push_back(r);
      }
    all = std::move(longer);
  }
  return all;
}

// Half of them with any mode for each layer, half with layers of one mode in a row; and those of one mode.
std::vector<std::vector<Recompute>> DrawnChoices(size_t layers, int count, uint64_t seed) {
  std::vector<std::vector<Recompute>> all;
  for (Recompute r : kEach) all.push_back(std::vector<Recompute>(layers, r));
  std::mt19937_64 draw(seed);
  for (int i = 0; i < count; ++i) {
    std::vector<Recompute> choice;
    size_t full = draw() % (layers + 1), selective = draw() % (layers + 1);
    for (size_t l = 0; l < layers; ++l)
      choice.push_back(i % 2 ? kEach[draw() % 3] : kEach[l < full ? 2 : l < full + selective ? 1 : 0]);
    all.push_back(std::move(choice));
  }
  return all;
}

// Of a ladder of budgets the plan that the compiler chooses beside the fastest of `plans` that fits.
void ExpectNearTheBest(const SmallGpt& given, LayerByLayer* layers,
                       const std::vector<LayerByLayer::Plan>& plans, const std::vector<int64_t>& budgets) {
  double before = 1e300, worst = 0;
  int64_t peak_before = 0;
  for (const int64_t budget : budgets) {
    double best = 1e300;
    for (const auto& plan : plans)
      if (plan.peak <= budget) best = std::min(best, plan.seconds);
    const LayerByLayer::Plan chosen = layers->PlanWith(layers->ChoiceWithin(budget));
    EXPECT_LE(chosen.peak, budget);
    EXPECT_LE(chosen.seconds, 1.02 * best) << "budget " << budget;
    EXPECT_LE(chosen.seconds, before) << "budget " << budget << ": slower than with a smaller one";
    EXPECT_GE(chosen.peak, peak_before) << "budget " << budget;
    worst = std::max(worst, chosen.seconds / best);
    before = chosen.seconds;
    peak_before = chosen.peak;
  }
  std::printf("%s layers=%d: at most %.4f of the best of %zu\n", given.str().c_str(),
              static_cast<int>(given.layers), worst, plans.size());
}

// With budgets from what full recomputation needs to what none needs.
void ExpectNearTheBest(const SmallGpt& given, LayerByLayer* layers,
                       const std::vector<std::vector<Recompute>>& choices, int budgets,
                       const std::string& seed = "") {
  SCOPED_TRACE(Cat(given.str(), " layers=", given.layers, seed));
  const auto need = [&](Recompute recompute) {
    return layers->PlansWith({std::vector<Recompute>(layers->layers(), recompute)})[0].peak;
  };
  const int64_t least = need(Recompute::kFull), most = need(Recompute::kNone);
  std::vector<int64_t> ladder;
  for (int i = 0; i < budgets; ++i) ladder.push_back(least + (most - least) * i / (budgets - 1));
  ExpectNearTheBest(given, layers, layers->PlansWith(choices), ladder);
}

// A session with a budget between these has the plan that the choice for its budget leads to.
TEST(RecomputeBest, ASessionMakesTheChoice) {
  SmallGpt given{.mesh = "cpu:pp=2", .micro_batches = 4, .batch = 24, .context = 32};
  LayerByLayer layers(given);
  const int64_t most = layers.PlanWith({}).peak;
  for (const int64_t budget : {most * 3 / 4, most * 7 / 8}) {
    GptProgram program(Automatic(given, budget));
    const Session session = program.MakeTrain();
    const std::map<std::string, Recompute> choice = layers.ChoiceWithin(budget);
    EXPECT_EQ(session.impl()->compiled.graph.regions().chosen(), choice);
    const LayerByLayer::Plan plan = layers.PlanWith(choice);
    EXPECT_EQ(FullestRank(session), plan.peak);
    EXPECT_LT(plan.peak, most);
    EXPECT_EQ(SecondsOf(session), plan.seconds);
  }
}

std::vector<SmallGpt> Families() {
  std::vector<SmallGpt> all = {
      {.mesh = "cpu:dp=1"},
      {.mesh = "cpu:dp=1", .micro_batches = 3, .dtype = DType::kBFloat16},
      {.mesh = "cpu:tp=2", .micro_batches = 2},
      {.mesh = "cpu:dp=2", .micro_batches = 2, .zero_axis = "dp", .zero_stage = 3},
      {.mesh = "cpu:dp=2,pp=2", .micro_batches = 4, .zero_axis = "dp", .zero_stage = 2},
      {.mesh = "cpu:pp=2", .micro_batches = 4},
      {.mesh = "cpu:pp=2", .micro_batches = 4, .schedule = kGPipe},
      {.mesh = "cpu:pp=2", .micro_batches = 4, .schedule = kZeroBubble},
      {.mesh = "cpu:pp=2",
       .micro_batches = 5,
       .schedule = kInterleaved,
       .model_options = {.pipeline = {.virtual_stages = 2}}},
      {.mesh = "cpu:tp=2,pp=3", .micro_batches = 6},
  };
  for (SmallGpt& given : all) given.batch = 30, given.context = 32;
  return all;
}

TEST(RecomputeBest, IsNearBruteForce) {
  for (SmallGpt given : Families()) {
    given.layers = given.schedule == kInterleaved ? 5 : 4;
    LayerByLayer layers(given);
    ExpectNearTheBest(given, &layers, AllChoices(layers.layers()), 4);
  }
}

// With many layers, of drawn choices alone.
void ExpectNearDrawn(std::vector<SmallGpt> all, int layers, int draws, int budgets, uint64_t seed) {
  for (SmallGpt& given : all) {
    given.layers = layers;
    LayerByLayer each(given);
    ExpectNearTheBest(given, &each, DrawnChoices(each.layers(), draws, seed), budgets, Cat(" seed=", seed));
  }
}

std::vector<SmallGpt> Pipelines() {
  std::vector<SmallGpt> all;
  for (int stages : {2, 3, 4})
    for (PipelineSchedule schedule : {PipelineSchedule::k1F1B, kGPipe, kInterleaved, kZeroBubble}) {
      SmallGpt given{.mesh = Cat("cpu:pp=", stages), .micro_batches = 2 * stages, .schedule = schedule};
      if (schedule == kInterleaved) given.model_options.pipeline.virtual_stages = stages == 4 ? 3 : 2;
      given.batch = 24;
      given.context = 32;
      all.push_back(given);
    }
  return all;
}

TEST(RecomputeBest, IsNearDrawnChoicesOfManyLayers) {
  const std::vector<SmallGpt> pipelines = Pipelines();
  ExpectNearDrawn({pipelines[4], pipelines[10], pipelines[11]}, 12, 60, 4, 5);
}

TEST(LongRecomputeBest, IsNearBruteForce) {
  for (SmallGpt given : Pipelines()) {
    given.layers = 6;
    if (given.mesh == "cpu:pp=4" && given.schedule == kInterleaved) continue;  // needs 12 layers
    LayerByLayer layers(given);
    ExpectNearTheBest(given, &layers, AllChoices(layers.layers()),
                      given.schedule == PipelineSchedule::k1F1B ? 8 : 4);
  }
}

TEST(LongRecomputeBest, IsNearDrawnChoices) {
  const std::vector<SmallGpt> pipelines = Pipelines(), others = Families();
  ExpectNearDrawn({pipelines[0], pipelines[2], pipelines[7], pipelines[8], pipelines[10]}, 12, 100, 4, 1);
  ExpectNearDrawn({others[2], others[3], others[9]}, 11, 100, 4, 2);
}

// Any training of up to so many layers: all schedules, uneven stages, micro-batches that do not go up in
// stages or in the batch, stages of ZeRO.
SmallGpt DrawTraining(std::mt19937_64* draw, int64_t most_layers) {
  const auto from = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>((*draw)() % static_cast<uint64_t>(high - low + 1));
  };
  const int64_t stages = std::array{1, 2, 4, 4}[from(0, 3)], beside = from(0, 3);
  SmallGpt given{.mesh = Cat("cpu:",
                             beside == 1   ? "dp=2,"
                             : beside == 2 ? "tp=2,"
                                           : "",
                             "pp=", stages),
                 .micro_batches = static_cast<int>(from(1, 3 * stages))};
  if (stages > 1)
    given.schedule = std::array{PipelineSchedule::k1F1B, kGPipe, kZeroBubble, kInterleaved}[from(0, 3)];
  int64_t groups = stages;
  if (given.schedule == kInterleaved && 2 * stages > most_layers) given.schedule = PipelineSchedule::k1F1B;
  if (given.schedule == kInterleaved) {
    given.micro_batches = std::max<int>(given.micro_batches, static_cast<int>(stages));
    given.model_options.pipeline.virtual_stages = 2;
    groups = 2 * stages;
  }
  given.layers = from(groups, most_layers);
  given.batch = given.micro_batches * (beside == 1 ? 2 : 1) * from(1, 2) + (from(0, 3) == 0 ? from(1, 3) : 0);
  given.context = 8 * from(1, 6);
  given.width = 32 * from(1, 3);
  given.vocabulary = 64 * from(1, 8);
  if (beside == 1 && from(0, 2) > 0) given.zero_axis = "dp", given.zero_stage = static_cast<int>(from(1, 3));
  return given;
}

// The budgets at which the fastest of these plans changes, some of them: from the least that one needs to the
// most.
std::vector<int64_t> BudgetsOf(const std::vector<LayerByLayer::Plan>& plans, size_t some) {
  std::map<int64_t, double> fastest;  // by peak
  for (const auto& plan : plans) {
    auto [at, fresh] = fastest.try_emplace(plan.peak, plan.seconds);
    at->second = std::min(at->second, plan.seconds);
  }
  std::vector<int64_t> all, budgets;
  double best = 1e300;
  for (const auto& [peak, seconds] : fastest)
    if (seconds < best) best = seconds, all.push_back(peak);
  for (size_t i = 0; i < std::min(some, all.size()); ++i)
    budgets.push_back(all[all.size() <= some ? i : i * (all.size() - 1) / (some - 1)]);
  return budgets;
}

// With drawn trainings, at budgets all along, where a plan of another choice begins to fit.
void ExpectDrawnNearTheBest(int trials, int64_t most_layers, int draws, size_t budgets, uint64_t first_seed) {
  for (uint64_t seed = first_seed; seed < first_seed + trials; ++seed) {
    std::mt19937_64 draw(seed);
    const SmallGpt given = DrawTraining(&draw, most_layers);
    SCOPED_TRACE(Cat("seed ", seed, ": ", given.str(), " layers=", given.layers, " width=", given.width,
                     " vocabulary=", given.vocabulary, " context=", given.context, " batch=", given.batch));
    LayerByLayer layers(given);
    const auto plans = layers.PlansWith(given.layers <= 6 ? AllChoices(layers.layers())
                                                          : DrawnChoices(layers.layers(), draws, seed));
    std::printf("seed %d: ", static_cast<int>(seed));
    ExpectNearTheBest(given, &layers, plans, BudgetsOf(plans, budgets));
  }
}

TEST(RecomputeBest, IsNearBruteForceOfDrawnTrainings) { ExpectDrawnNearTheBest(6, 5, 0, 4, 300); }
TEST(LongRecomputeBest, IsNearBruteForceOfDrawnTrainings) { ExpectDrawnNearTheBest(16, 6, 0, 8, 400); }
TEST(LongRecomputeBest, IsNearDrawnChoicesOfDrawnTrainings) { ExpectDrawnNearTheBest(6, 12, 200, 6, 500); }

}  // namespace
}  // namespace oneflow_like
