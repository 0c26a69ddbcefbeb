// Recompute::kAuto: plans are about as fast as the best there are that fit, and no budget gives a slower plan
// or a smaller peak than one below it.
// ctest: seconds=220 long=480
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "compiler/search/choose_recompute.h"
#include "core/plan/plan_values.h"
#include "oneflow_like/model/blocks.h"
#include "oneflow_like/model/topology_file.h"
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
    options_.asked.training->recompute = Recompute::kAuto;
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
  std::map<std::string, Recompute> ChoiceWithin(int64_t budget) { return Search().Within(budget).waits; }
  RecomputeSearch SearchBeside(const BytesBeside& beside) const { return {graph_[0], options_, beside}; }
  // Of a layer, those that keep most first.
  const std::vector<Recompute>& modes() { return Search().modes(); }

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
  RecomputeSearch& Search() {
    if (!search_) search_ = std::make_unique<RecomputeSearch>(graph_[0], options_);
    return *search_;
  }

  GptProgram program_;
  Session session_;
  CompileOptions options_;    // that leave all layers to the compiler
  std::vector<Graph> graph_;  // one, before anything is chosen
  std::vector<std::string> layers_;
  std::unique_ptr<RecomputeSearch> search_;
};

// Where other ranks of a stage hold more than its first one, they say which plan is the smallest.
TEST(RecomputeBest, TheSmallestIsThatOfAllRanks) {
  const LayerByLayer program({.mesh = "cpu:dp=2", .micro_batches = 2, .layers = 3});
  // The second rank holds more the more is computed again.
  RecomputeSearch search = program.SearchBeside([](const plan::Plan& plan) {
    int64_t kernels = 0;
    for (const plan::Actor& actor : plan.actor()) kernels += actor.kernel_size();
    return plan.rank() == 0 ? 0 : kernels << 20;
  });
  const WaitChoice none = search.All(Recompute::kNone), full = search.All(Recompute::kFull);
  EXPECT_LT(full.bytes.at(0), none.bytes.at(0));
  EXPECT_LT(none.bytes.at(1), full.bytes.at(1));
  EXPECT_LE(search.Within(1).peak(), none.peak());
}

std::vector<std::vector<Recompute>> AllChoices(size_t layers, const std::vector<Recompute>& modes) {
  std::vector<std::vector<Recompute>> all(1);
  for (size_t l = 0; l < layers; ++l) {
    std::vector<std::vector<Recompute>> longer;
    for (const auto& choice : all)
      for (Recompute r : modes) {
        longer.push_back(choice);
        longer.back().push_back(r);
      }
    all = std::move(longer);
  }
  return all;
}

// Half of them with any mode for each layer, half with layers of one mode in a row; and those of one mode.
std::vector<std::vector<Recompute>> DrawnChoices(size_t layers, const std::vector<Recompute>& modes,
                                                 int count, uint64_t seed) {
  std::vector<std::vector<Recompute>> all;
  for (Recompute r : modes) all.push_back(std::vector<Recompute>(layers, r));
  std::mt19937_64 draw(seed);
  for (int i = 0; i < count; ++i) {
    std::vector<Recompute> choice;
    size_t full = draw() % (layers + 1), selective = draw() % (layers + 1);
    for (size_t l = 0; l < layers; ++l)
      choice.push_back(i % 2 ? modes[draw() % modes.size()]
                             : modes[l < full               ? modes.size() - 1
                                     : l < full + selective ? modes.size() / 2
                                                            : 0]);
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
  const int64_t least = need(layers->modes().back()), most = need(layers->modes().front());
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
    ExpectNearTheBest(given, &layers, AllChoices(layers.layers(), layers.modes()), 4);
  }
}

// Trainings with messages that may be sent again.
std::vector<SmallGpt> Gathering() {
  std::vector<SmallGpt> all = {
      {.mesh = "cpu:cp=4", .sequence = "cp"},
      {.mesh = "cpu:cp=2", .micro_batches = 3, .dtype = DType::kBFloat16, .sequence = "cp"},
      {.mesh = "cpu:tp=2", .micro_batches = 2, .sequence = "tp"},
      {.mesh = "cpu:dp=2,tp=2", .zero_axis = "dp", .zero_stage = 3, .sequence = "tp"},
      {.mesh = "cpu:pp=2,cp=2", .micro_batches = 4, .sequence = "cp"},
      {.mesh = "cpu:tp=2,pp=2", .micro_batches = 4, .schedule = kZeroBubble, .sequence = "tp"},
  };
  for (SmallGpt& given : all) {
    given.batch = 12;
    given.context = 64;
    if (given.sequence == "cp") given.parallel.context = "cp";
  }
  return all;
}

TEST(RecomputeBest, IsNearBruteForceWithMessagesSentAgain) {
  for (SmallGpt given : Gathering()) {
    given.layers = 3;
    LayerByLayer layers(given);
    EXPECT_EQ(layers.modes().size(), kRecomputeModes.size() - 1);  // none says how fast the host is
    ExpectNearTheBest(given, &layers, AllChoices(layers.layers(), layers.modes()), 5);
  }
}

TEST(LongRecomputeBest, IsNearBruteForceWithMessagesSentAgain) {
  const std::vector<SmallGpt> all = Gathering();
  for (SmallGpt given : {all[0], all[4]}) {
    given.layers = 6;
    LayerByLayer layers(given);
    ExpectNearTheBest(given, &layers,
                      AllChoices(layers.layers(), {Recompute::kNone, Recompute::kGather,
                                                   Recompute::kSelectiveGather, Recompute::kFull}),
                      5);
  }
}

// On machines that say how fast copies to the host are: at each budget the best mix of what is kept, computed
// again and sent there. Returns whether any of it is sent there at a budget between what everything kept and
// everything computed again take.
bool ExpectNearTheBestWithHosts(const std::vector<SmallGpt>& trainings, const std::vector<Recompute>& modes) {
  int number = 0;
  bool any = false;
  for (SmallGpt given : trainings) {
    given.batch = 12;
    given.context = 64;
    Machine machine = MachineOf(Mesh::Parse(given.mesh));
    machine.topology.links[0].devices = 0;
    machine.host = {.latency = 1e-6, .bandwidth = number % 2 == 0 ? 6e9 : 2e9, .known = true};
    given.model_options.topology =
        Cat(testing::TempDir(), "recompute_best_test.", getpid(), ".", number++, ".txt");
    std::ofstream(given.model_options.topology) << TopologyText(machine);
    LayerByLayer layers(given);
    for (const Recompute mode : modes)  // and others, where messages may be sent again
      EXPECT_EQ(std::count(layers.modes().begin(), layers.modes().end(), mode), 1) << Name(mode);
    ExpectNearTheBest(given, &layers, AllChoices(layers.layers(), modes), 5);
    const int64_t kept = FullestRank(GptProgram(given).MakeTrain());
    SmallGpt again = given;
    again.recompute = Recompute::kFull;
    const int64_t least = std::min(kept, FullestRank(GptProgram(again).MakeTrain()));
    const Session chosen = GptProgram(Automatic(given, (kept + least) / 2)).MakeTrain();
    for (const auto& [layer, mode] : chosen.impl()->compiled.graph.regions().chosen())
      any = any || mode == Recompute::kHost;
    std::filesystem::remove(given.model_options.topology);
  }
  return any;
}

TEST(RecomputeBest, IsNearBruteForceWithValuesOnTheHost) {
  const SmallGpt gradients_cut = {
      .mesh = "cpu:dp=2", .micro_batches = 2, .zero_axis = "dp", .zero_stage = 2, .layers = 4};
  const SmallGpt stages = {.mesh = "cpu:pp=2", .micro_batches = 4, .layers = 4};
  const bool one = ExpectNearTheBestWithHosts(
      {gradients_cut}, {Recompute::kNone, Recompute::kSelective, Recompute::kFull, Recompute::kHost});
  const bool other =
      ExpectNearTheBestWithHosts({stages}, {Recompute::kNone, Recompute::kFull, Recompute::kHost});
  EXPECT_TRUE(one || other);
}

TEST(LongRecomputeBest, IsNearBruteForceWithValuesOnTheHost) {
  const bool any = ExpectNearTheBestWithHosts(
      {{.layers = 6},
       {.mesh = "cpu:pp=2", .micro_batches = 4, .layers = 6},
       {.mesh = "cpu:dp=2,pp=2", .micro_batches = 4, .schedule = kZeroBubble, .layers = 6}},
      {Recompute::kNone, Recompute::kFull, Recompute::kHost});
  EXPECT_TRUE(any);
}

// At a budget that keys and values of all ranks exceed, a plan that gathers them again is faster than those
// that may not; and what is said to be sent again is.
TEST(RecomputeBest, SendsAgainWhereThatIsFastest) {
  SmallGpt given{.mesh = "cpu:cp=4", .batch = 2, .context = 256, .sequence = "cp"};
  given.parallel.context = "cp";
  given.gather_again = true;
  const int64_t budget = FullestRank(GptProgram(given).MakeTrain());
  double seconds[2];
  for (bool may : {false, true}) {
    SmallGpt open = Automatic(given, budget);
    if (may)
      open.gather_again = {};
    else
      open.gather_again = false;
    const Session session = GptProgram(open).MakeTrain();
    seconds[may] = SecondsOf(session);
    int again = 0;
    for (const auto& [layer, mode] : session.impl()->compiled.graph.regions().chosen())
      again += GathersAgain(mode);
    EXPECT_EQ(again > 0, may);
    EXPECT_EQ(session.SummaryText().find(" gather again\n") != std::string::npos, may);
  }
  EXPECT_LT(seconds[true], seconds[false]);
  SmallGpt all = Automatic(given, budget);
  const Session session = GptProgram(all).MakeTrain();
  for (const auto& [layer, mode] : session.impl()->compiled.graph.regions().chosen())
    EXPECT_TRUE(GathersAgain(mode) || mode == Recompute::kFull) << layer << " " << Name(mode);
}

// With many layers, of drawn choices alone.
void ExpectNearDrawn(std::vector<SmallGpt> all, int layers, int draws, int budgets, uint64_t seed) {
  for (SmallGpt& given : all) {
    given.layers = layers;
    LayerByLayer each(given);
    ExpectNearTheBest(given, &each, DrawnChoices(each.layers(), each.modes(), draws, seed), budgets,
                      Cat(" seed=", seed));
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
    ExpectNearTheBest(given, &layers, AllChoices(layers.layers(), layers.modes()),
                      given.schedule == PipelineSchedule::k1F1B ? 8 : 4);
  }
}

TEST(LongRecomputeBest, IsNearDrawnChoices) {
  const std::vector<SmallGpt> pipelines = Pipelines(), others = Families();
  ExpectNearDrawn({pipelines[0], pipelines[2], pipelines[7], pipelines[8], pipelines[10]}, 12, 100, 4, 1);
  ExpectNearDrawn({others[2], others[3], others[9]}, 11, 100, 4, 2);
  const std::vector<SmallGpt> gathering = Gathering();
  ExpectNearDrawn({gathering[1], gathering[4], gathering[5]}, 10, 150, 4, 3);
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
    const auto plans =
        layers.PlansWith(given.layers <= 6 ? AllChoices(layers.layers(), layers.modes())
                                           : DrawnChoices(layers.layers(), layers.modes(), draws, seed));
    std::printf("seed %d: ", static_cast<int>(seed));
    ExpectNearTheBest(given, &layers, plans, BudgetsOf(plans, budgets));
  }
}

TEST(RecomputeBest, IsNearBruteForceOfDrawnTrainings) { ExpectDrawnNearTheBest(6, 5, 0, 4, 300); }
TEST(LongRecomputeBest, IsNearBruteForceOfDrawnTrainings) { ExpectDrawnNearTheBest(16, 6, 0, 8, 400); }
TEST(LongRecomputeBest, IsNearDrawnChoicesOfDrawnTrainings) { ExpectDrawnNearTheBest(6, 12, 200, 6, 500); }

}  // namespace
}  // namespace oneflow_like
