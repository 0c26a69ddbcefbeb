// Recompute::kAuto: plans fit in their budget, the least there is is named, what is said was done, and no bit
// of a result changes. How fast plans are: recompute_best_test.cc.
// ctest: seconds=89 long=100
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/compiler/recompute_budget.h"
#include "tests/error_of.h"

namespace oneflow_like {
namespace {

// --- What is said ---

TEST(RecomputeAuto, TheFirstStageComputesMoreAgain) {
  SmallGpt given{.mesh = "cpu:pp=4", .micro_batches = 8, .batch = 16, .context = 64, .layers = 12};
  GptProgram all(given), roomy(Automatic(given, int64_t{1} << 40));
  const int64_t kept = FullestRank(all.MakeTrain());
  const Session enough = roomy.MakeTrain();
  for (int stage = 0; stage < 4; ++stage)
    EXPECT_NE(
        enough.SummaryText().find(Cat("recompute: stage pp=", stage, ": 0 of 3 layers full, 0 selective\n")),
        std::string::npos)
        << enough.SummaryText();
  EXPECT_EQ(FullestRank(enough), kept);
  GptProgram tight(Automatic(given, kept * 6 / 10));
  const Session session = tight.MakeTrain();
  const std::string text = session.SummaryText();
  std::vector<int> again;
  std::smatch found;
  for (int stage = 0; stage < 4; ++stage) {
    const std::regex line(Cat("recompute: stage pp=", stage, ": (\\d) of 3 layers full, (\\d) selective\n"));
    ASSERT_TRUE(std::regex_search(text, found, line)) << text;
    again.push_back(2 * std::stoi(found[1]) + std::stoi(found[2]));
  }
  EXPECT_GT(again[0], again[3]) << text;
  EXPECT_NE(session.ExplainText().find("recompute: stage pp=0: "), std::string::npos);
  // What is said is what was done: the nodes computed again are of the layers counted.
  std::set<std::string> repeated;
  const Graph& graph = session.impl()->compiled.graph;
  for (int n : graph.Order())
    if (graph.node(n).why.starts_with("computed again"))
      repeated.insert(graph.regions().Of(graph.node(n).name));
  int chosen = 0;
  for (const auto& [layer, mode] : graph.regions().chosen()) chosen += mode != Recompute::kNone;
  EXPECT_EQ(std::ssize(repeated), chosen);
  EXPECT_GT(chosen, 0);
}

TEST(RecomputeAuto, BelowTheLeastIsRefusedWithTheTableAndTheNumber) {
  for (const char* mesh : {"cpu:dp=1", "cpu:dp=3", "cpu:dp=2,tp=2,pp=2"}) {
    const SmallGpt given{.mesh = mesh, .micro_batches = 2, .batch = 12, .context = 64, .layers = 4};
    GptProgram none(Automatic(given, 1));
    const std::string error = ErrorOf([&] { none.MakeTrain(); });
    std::smatch found;
    ASSERT_TRUE(std::regex_search(error, found,
                                  std::regex("needs at least (\\d+) bytes on rank \\d+ but the budget is 1, "
                                             "however much is computed again; what it holds:\n")))
        << error;
    for (const char* part : {"peak memory", "stash", "weights", "largest consumers", "buffer "})
      EXPECT_NE(error.find(part), std::string::npos) << part << "\n" << error;
    const int64_t least = std::stoll(found[1]);
    GptProgram enough(Automatic(given, least)), little(Automatic(given, least - 1));
    EXPECT_EQ(FullestRank(enough.MakeTrain()), least) << given.str();
    EXPECT_NE(ErrorOf([&] { little.MakeTrain(); }).find(Cat("needs at least ", least, " bytes")),
              std::string::npos);
    SmallGpt full = given;
    full.recompute = Recompute::kFull;
    GptProgram all(full);
    EXPECT_LE(least, FullestRank(all.MakeTrain())) << given.str();
  }
}

// Of a large graph nothing is searched for below what its devices keep of variables, which is no more than a
// plan takes.
TEST(RecomputeAuto, BelowTheVariablesOfALargeGraphNothingIsTried) {
  for (const char* mesh : {"cpu:dp=1", "cpu:dp=2,tp=2,pp=2"})
    for (const bool zero : {false, true}) {
      SmallGpt given{.mesh = mesh, .micro_batches = 2, .batch = 4, .context = 8, .layers = 24};
      given.parallel = {.batch = "dp", .tensor = "tp", .context = ""};
      if (zero && given.mesh != "cpu:dp=1") given.zero_axis = "dp", given.zero_stage = 1;
      GptProgram none(Automatic(given, 1000));
      const std::string error = ErrorOf([&] { none.MakeTrain(); });
      std::smatch found;
      ASSERT_TRUE(
          std::regex_search(error, found,
                            std::regex("no plan fits in the budget of 1000 bytes: weights and optimizer "
                                       "state take (\\d+) of a device on average")))
          << error;
      given.recompute = Recompute::kFull;
      GptProgram full(given);
      const Session session = full.MakeTrain();
      int64_t kept = 0, ranks = 0;
      for (const RankSummary& rank : session.Summaries())
        kept += rank.persistent_bytes * std::ssize(rank.ranks), ranks += std::ssize(rank.ranks);
      EXPECT_LE(std::stoll(found[1]), kept / ranks + 1) << given.str();
      EXPECT_GE(std::stoll(found[1]), kept / ranks * 9 / 10) << given.str();
    }
}

// What is said of recomputation is what was free: all blocks, some, or nothing. The table shows blocks that
// hold the same in one line, and their buffers in one.
TEST(RecomputeAuto, ARefusalSaysWhatWasFreeAndWhichBlocksHoldWhat) {
  auto refusal = [](int64_t layers, int64_t fixed) {
    Model model(Mesh::Parse("cpu:dp=1"), {.memory_budget = 1});
    Tensor x = model.Input("x", {8, 32}, DType::kFloat32);
    for (int64_t i = 0; i < layers; ++i) {
      const Scope s = model.scope() / Cat("layer", i);
      s.Region(i < fixed ? std::optional(Recompute::kNone) : std::nullopt);
      x = s.Run([&] { return nn::Linear(s, tanh(nn::Linear(s / "up", x, 64)), 32); });
    }
    TrainOptions options;
    options.recompute = Recompute::kAuto;
    options.micro_batches = 2;
    if (layers == 0) x = nn::Linear(model.scope() / "head", x, 32);
    return ErrorOf([&] { Train(mean(square(x)), AdamW{}, options); });
  };
  const std::string none = refusal(0, 0), all = refusal(12, 0), some = refusal(12, 8);
  EXPECT_NE(none.find("the budget is 1, and nothing can be computed again: no operator is in a block"),
            std::string::npos)
      << none;
  EXPECT_EQ(none.find("however much"), std::string::npos) << none;
  EXPECT_NE(all.find("the budget is 1, however much is computed again; what it holds"), std::string::npos)
      << all;
  EXPECT_NE(some.find("however much is computed again of 4 of the 12 blocks"), std::string::npos) << some;
  const size_t blocks = all.find("  by block and kind of operator\n"),
               largest = all.find("  largest consumers\n");
  ASSERT_TRUE(blocks < largest && largest != std::string::npos) << all;
  const std::string by_block = all.substr(blocks, largest - blocks), consumers = all.substr(largest);
  EXPECT_TRUE(
      std::regex_search(by_block, std::regex("\\d+ blocks of [0-9.]+ KB, layer\\d+ (and|to) layer\\d+: .*"
                                             "optimizer state [0-9.]+ KB.*weights [0-9.]+ KB")))
      << all;
  EXPECT_NE(consumers.find("variable train:adam_m/layer*/up/weight, 12 of 8.19 KB\n"), std::string::npos)
      << all;
  std::set<std::string> lines;
  std::istringstream text(consumers);
  for (std::string line; std::getline(text, line);)
    EXPECT_TRUE(lines.insert(std::regex_replace(line, std::regex("[0-9]+"), "#")).second) << line << "\n"
                                                                                          << all;
}

// A pipeline of any schedule; blocks may move from stage to stage, so the least is that of many divisions.
SmallGpt DrawPipeline(std::mt19937_64* draw) {
  const auto from = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>((*draw)() % static_cast<uint64_t>(high - low + 1));
  };
  const int64_t stages = from(2, 4), micro_batches = from(1, 2 * stages), parts = from(1, 2);
  SmallGpt given{.mesh = Cat("cpu:",
                             parts == 1   ? ""
                             : from(0, 1) ? "dp=2,"
                                          : "tp=2,",
                             "pp=", stages),
                 .micro_batches = static_cast<int>(micro_batches)};
  given.schedule = std::array{PipelineSchedule::k1F1B, kGPipe, kZeroBubble, kInterleaved}[from(0, 3)];
  if (given.schedule == kInterleaved) {
    given.micro_batches = std::max<int>(given.micro_batches, static_cast<int>(stages));
    given.model_options.pipeline.virtual_stages = 2;
  }
  given.layers = stages * given.model_options.pipeline.virtual_stages + from(0, 2);
  given.batch = 2 * given.micro_batches * from(1, 2);
  given.context = 8 * from(1, 4);
  given.width = 32 * from(1, 2);
  given.vocabulary = 64 * from(1, 6);
  if (given.mesh.find("dp") != std::string::npos && from(0, 1)) given.zero_axis = "dp", given.zero_stage = 2;
  return given;
}

// The number of a refusal, which the budget that was asked for must not change.
int64_t LeastSaid(const SmallGpt& given, int64_t budget) {
  GptProgram program(Automatic(given, budget));
  const std::string error = ErrorOf([&] { program.MakeTrain(); });
  std::smatch found;
  const std::regex least(Cat("needs at least (\\d+) bytes on rank \\d+ but the budget is ", budget, ","));
  EXPECT_TRUE(std::regex_search(error, found, least)) << "budget " << budget << ": " << error;
  return found.empty() ? 0 : std::stoll(found[1]);
}

// The least that is named is enough, a byte less is not, and the peak does not fall as the budget rises.
void ExpectTheLeastIsExact(int trials, uint64_t first_seed) {
  for (uint64_t seed = first_seed; seed < first_seed + trials; ++seed) {
    std::mt19937_64 draw(seed);
    const SmallGpt given = DrawPipeline(&draw);
    SCOPED_TRACE(Cat("seed ", seed, ": ", given.str(), " layers=", given.layers, " width=", given.width,
                     " vocabulary=", given.vocabulary, " batch=", given.batch));
    const int64_t least = LeastSaid(given, 1);
    ASSERT_GT(least, 0);
    EXPECT_EQ(LeastSaid(given, least - 1), least);
    EXPECT_EQ(LeastSaid(given, least - least / (8 + static_cast<int64_t>(draw() % 100))), least);
    GptProgram kept(given);
    const int64_t most = std::max(least, FullestRank(kept.MakeTrain()));
    int64_t before = 0;
    for (int64_t budget : {least, least + (most - least) / 8, least + (most - least) / 2, most}) {
      GptProgram program(Automatic(given, budget));
      int64_t peak = 0;
      EXPECT_EQ(ErrorOf([&] { peak = FullestRank(program.MakeTrain()); }), "");
      EXPECT_LE(peak, budget);
      EXPECT_GE(peak, before) << "budget " << budget;
      before = peak;
    }
  }
}

TEST(RecomputeAuto, TheLeastOfAPipelineIsExact) { ExpectTheLeastIsExact(1, 100); }
TEST(LongRecomputeAuto, TheLeastOfAPipelineIsExact) {
  ExpectTheLeastIsExact(2, 101);
  ExpectTheLeastIsExact(24, 200);
}

TEST(RecomputeAuto, NeedsANumberOfBytes) {
  GptProgram program(Automatic({}, 0));
  const std::string error = ErrorOf([&] { program.MakeTrain(); });
  EXPECT_NE(
      error.find("recompute=auto recomputes what makes the plan fit, but nothing says in how many bytes"),
      std::string::npos)
      << error;
  EXPECT_NE(error.find("--memory_budget"), std::string::npos) << error;
  EXPECT_NO_THROW(program.MakeEvaluate());  // has no gradients
}

// That of a topology file's devices, unless a budget is given.
TEST(RecomputeAuto, TakesTheMemoryOfATopologysDevices) {
  SmallGpt given{.batch = 16, .context = 64, .layers = 6};
  GptProgram kept(given);
  const int64_t bytes = FullestRank(kept.MakeTrain()) * 7 / 10;
  const std::string file = Cat(::testing::TempDir(), "/recompute_auto.topology");
  auto write = [&](int64_t memory) {
    std::ofstream(file) << "device small\n"
                        << (memory > 0 ? Cat("memory_bytes ", memory, "\n") : "")
                        << "memory_bandwidth 1e10\nflops_fp32 5e10\nflops_16bit 5e10\n"
                           "level all devices 0 latency 1e-6 bandwidth 1e10\n";
  };
  given.recompute = Recompute::kAuto;
  given.model_options.topology = file;
  write(bytes);
  {
    GptProgram program(given);
    const Session session = program.MakeTrain();
    EXPECT_LE(FullestRank(session), bytes);
    EXPECT_EQ(session.SummaryText().find(": 0 of 6 layers full, 0 selective"), std::string::npos);
  }
  given.model_options.memory_budget = 2 * bytes;
  {
    GptProgram program(given);
    EXPECT_NE(program.MakeTrain().SummaryText().find(": 0 of 6 layers full, 0 selective"), std::string::npos);
  }
  given.model_options.memory_budget = 0;
  write(1000);
  {
    GptProgram program(given);
    EXPECT_NE(ErrorOf([&] { program.MakeTrain(); }).find("but the budget is 1000, however much"),
              std::string::npos);
  }
  write(0);
  GptProgram program(given);
  EXPECT_NE(ErrorOf([&] { program.MakeTrain(); }).find("nothing says in how many bytes"), std::string::npos);
  std::remove(file.c_str());
}

// --- What is computed ---

// At so many budgets between what full recomputation needs and what none needs.
void ExpectNoBitChanged(int budgets) {
  for (SmallGpt given :
       {SmallGpt{.mesh = "cpu:dp=1"},
        SmallGpt{.mesh = "cpu:dp=2,tp=2", .micro_batches = 2, .dtype = DType::kBFloat16},
        SmallGpt{.mesh = "cpu:pp=2", .micro_batches = 4, .schedule = kZeroBubble},
        SmallGpt{.mesh = "cpu:dp=2,pp=2", .micro_batches = 2, .zero_axis = "dp", .zero_stage = 3}}) {
    given.context = 32;
    SmallGpt full = given;
    full.recompute = Recompute::kFull;
    GptProgram kept(given), repeated(full);
    const int64_t most = FullestRank(kept.MakeTrain()), least = FullestRank(repeated.MakeTrain());
    const std::vector<float> expected = LossesOf(given, 3);
    for (int i = 0; i < budgets; ++i) {
      const int64_t budget = budgets == 1 ? (least + most) / 2 : least + (most - least) * i / (budgets - 1);
      EXPECT_EQ(LossesOf(Automatic(given, budget), 3), expected) << given.str() << " budget=" << budget;
    }
  }
}
TEST(RecomputeAuto, ChangesNoBit) { ExpectNoBitChanged(1); }
TEST(LongRecomputeAuto, ChangesNoBit) { ExpectNoBitChanged(3); }

// Compiled twice, and with the search on other threads, the plan is the same.
TEST(RecomputeAuto, IsRepeatable) {
  SmallGpt given{
      .mesh = "cpu:pp=2", .micro_batches = 4, .schedule = kInterleaved, .batch = 16, .context = 64};
  given.model_options.pipeline.virtual_stages = 2;
  given.layers = 6;
  GptProgram kept(given);
  given = Automatic(given, FullestRank(kept.MakeTrain()) * 3 / 4);
  GptProgram a(given), b(given);
  const Session first = a.MakeTrain(), second = b.MakeTrain();
  EXPECT_EQ(first.impl()->compiled.logical.hash, second.impl()->compiled.logical.hash);
  EXPECT_EQ(first.impl()->compiled.graph.regions().chosen(),
            second.impl()->compiled.graph.regions().chosen());
}

// One region is left to the compiler, the others do as they or the session say.
TEST(RecomputeAuto, ARegionMaySayIt) {
  auto train = [](Model* model) {
    Tensor x = model->Input("x", {64, 32}, DType::kFloat32);
    for (auto [name, says] : {std::pair("a", std::optional(Recompute::kAuto)),
                              {"b", std::optional<Recompute>()},
                              {"c", std::optional(Recompute::kFull)}}) {
      Scope s = model->scope() / name;
      s.Region(says);
      x = x + matmul(gelu(matmul(x, s.Weight("up", {32, 128}, Normal(.1)))),
                     s.Weight("down", {128, 32}, Normal(.1)));
    }
    return Train(mean(square(x)), Sgd{.lr = .1}, {});
  };
  Model roomy(FullMesh("cpu:dp=1"), {.memory_budget = int64_t{1} << 40});
  const Session kept = train(&roomy);
  const std::map<std::string, Recompute> none = {{"a", Recompute::kNone}};
  EXPECT_EQ(kept.impl()->compiled.graph.regions().chosen(), none);
  Model tight(FullMesh("cpu:dp=1"), {.memory_budget = FullestRank(kept) - 1});
  const Session less = train(&tight);
  EXPECT_LT(FullestRank(less), FullestRank(kept));
  EXPECT_NE(less.impl()->compiled.graph.regions().chosen(), none);
  Model unsaid(FullMesh("cpu:dp=1"));
  EXPECT_NE(ErrorOf([&] { train(&unsaid); }).find("nothing says in how many bytes"), std::string::npos);
}

}  // namespace
}  // namespace oneflow_like
