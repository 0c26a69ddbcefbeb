// What --dry_run and --explain say of a plan is what the plan does: bytes, work and memory add up, times are
// those of the order, and a weight that is gathered although it is annotated is named with the reason.
#include "compiler/explain.h"

#include <gtest/gtest.h>

#include <regex>

#include "oneflow_like/session/summary.h"
#include "tests/oneflow_like/session_fixture.h"
#include "tests/oneflow_like/small_gpt.h"

namespace oneflow_like {
namespace {

std::vector<SmallGpt> Programs() {
  return {{},
          {.mesh = "cpu:dp=2", .micro_batches = 2},
          {.mesh = "cpu:dp=3", .batch = 7},
          {.mesh = "cpu:dp=2,tp=2", .micro_batches = 4, .batch = 12},
          {.mesh = "cpu:tp=2", .micro_batches = 8},
          {.mesh = "cpu:tp=4", .micro_batches = 3, .batch = 7},
          {.mesh = "cpu:tp=3", .batch = 5},
          {.mesh = "cpu:dp=2,pp=2", .micro_batches = 4},
          {.mesh = "cpu:dp=2,tp=2,pp=2", .micro_batches = 2},
          {.mesh = "cpu:dp=4", .micro_batches = 2, .zero_axis = "dp"},
          {.mesh = "cpu:dp=2,tp=2", .dtype = DType::kBFloat16}};
}

TEST(Explain, BytesOfABoxingAreThoseThatAllPlansSend) {
  for (const SmallGpt& given : Programs()) {
    Session session = GptProgram(given).MakeTrain();
    const Compiled& compiled = session.impl()->compiled;
    std::map<std::string, double> sent;  // by node
    for (int rank = 0; rank < compiled.graph.mesh().size(); ++rank) {
      plan::Plan plan = PlanOf(compiled, rank).plan;
      for (const plan::Actor& a : plan.actor())
        if (a.has_collective()) sent[a.kernel(0).node()] += a.kernel(0).link_bytes() * a.acts();
    }
    double all = 0, told = 0;
    for (const auto& [node, bytes] : sent) all += bytes;
    for (const RankSummary& s : session.Summaries())
      told += s.bytes_sent * static_cast<double>(s.ranks.size());
    EXPECT_NEAR(told, all, 1e-9 * all) << given.str() << ": what the dry run says of all ranks";
    double last = 1e300;
    size_t collectives = 0;
    for (const BoxingPrice& p : PricesOfBoxing(compiled)) {
      const Node& node = compiled.graph.node(p.node);
      EXPECT_NEAR(p.bytes, sent.count(node.name) ? sent[node.name] : 0, 1e-9 * p.bytes)
          << given.str() << ": " << p.primitive << " " << node.name << " " << p.from << " -> " << p.to;
      EXPECT_LE(p.seconds, last) << "dearest first";
      EXPECT_FALSE(p.why.empty()) << node.name;
      last = p.seconds;
      collectives += IsCollective(node);
    }
    EXPECT_EQ(collectives, sent.size()) << given.str();
  }
}

// Blocks of several widths: what enters a block is kept for it, not for the one that makes it.
TEST(Explain, PricesOfWaitsAreOfTheBlockThatReads) {
  constexpr int64_t kRows = 64;
  Model model(FullMesh("cpu:dp=1"));
  Tensor x = model.Input("x", {kRows, 8}, DType::kFloat32);
  x = tanh(matmul(x, model.scope().Weight("in", {8, 24}, Normal(.1))));
  const int64_t widths[] = {24, 48, 16};
  for (int b = 0; b < 2; ++b) {
    const Scope s = model.scope() / Cat("block", b);
    s.Region();
    x = tanh(matmul(x, s.Weight("w", {widths[b], widths[b + 1]}, Normal(.1))));
  }
  const Session session = Train(mean(square(x)), Sgd{});
  const std::vector<WaitPrice> prices = session.impl()->wait_prices();
  ASSERT_EQ(prices.size(), 2u);
  for (int b = 0; b < 2; ++b)
    EXPECT_EQ(prices[b].bytes[static_cast<size_t>(Recompute::kFull)],
              static_cast<double>(kRows * widths[b] * sizeof(float)))
        << prices[b].region;
}

// Of each block what its plan keeps, and with messages sent again what the formulas say is not.
TEST(Explain, PricesOfWaitsAreWhatBlocksKeep) {
  constexpr int kRanks = 4;
  SmallGpt given{.mesh = "cpu:cp=4", .micro_batches = 2, .context = 64, .sequence = "cp"};
  given.parallel.context = "cp";
  given.gather_again = true;
  GptProgram program(given);
  const Session session = program.MakeTrain();
  const std::vector<WaitPrice> prices = session.impl()->wait_prices();
  ASSERT_EQ(std::ssize(prices), given.layers);
  const double tokens = static_cast<double>(given.batch * given.context) / kRanks / given.micro_batches;
  const double keys = 4 * tokens * static_cast<double>(given.width);
  for (const WaitPrice& price : prices) {
    const auto of = [&](const auto& by_mode, Recompute mode) { return by_mode[static_cast<size_t>(mode)]; };
    EXPECT_EQ(price.chosen, Recompute::kGather);
    EXPECT_EQ(of(price.bytes, Recompute::kNone) - of(price.bytes, Recompute::kGather),
              2 * (kRanks - 1) * keys)
        << price.region;
    EXPECT_EQ(of(price.bytes, Recompute::kFull), keys) << price.region << ": what enters it";
    EXPECT_EQ(of(price.seconds, Recompute::kNone), 0);
    EXPECT_LT(0, of(price.seconds, Recompute::kGather));
    EXPECT_LT(of(price.seconds, Recompute::kGather), of(price.seconds, Recompute::kSelectiveGather));
    EXPECT_LT(of(price.seconds, Recompute::kSelectiveGather), of(price.seconds, Recompute::kFull));
  }
  const std::string text = session.ExplainText();
  const std::string saved = BytesText(2 * (kRanks - 1) * keys);
  EXPECT_NE(text.find(Cat("\n  4 blocks, block0 to block3: sent again, saves ", saved, ", takes ")),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("\n      or kept; computed again but for products, saves "), std::string::npos) << text;
  EXPECT_NE(session.SummaryText().find("block3: sent again, saves "), std::string::npos);
  EXPECT_EQ(session.SummaryText().find("or kept"), std::string::npos) << "other ways are --explain's";
  // Where there is nothing to send the two ways that do are not there; where all is kept, nor is a price.
  const Session alone = GptProgram({}).MakeTrain();
  EXPECT_NE(alone.ExplainText().find(": kept; keeps "), std::string::npos) << alone.ExplainText();
  EXPECT_EQ(alone.ExplainText().find("sent again"), std::string::npos) << alone.ExplainText();
  EXPECT_EQ(alone.SummaryText().find("keeps "), std::string::npos) << alone.SummaryText();
}

// What is said of a block that is not on the host is what a plan saves in which it is.
TEST(Explain, WaitingOnTheHostSavesWhatPlansDifferBy) {
  SmallGpt given{.mesh = "cpu:dp=1", .micro_batches = 1};
  given.model_options.topology = OFL_SOURCE_DIR "/examples/topologies/a100.txt";
  const Session kept = GptProgram(given).MakeTrain();
  double saves = -1;
  for (const WaitLine& line : WaitLinesOf(*kept.impl()))
    if (std::find(line.blocks.begin(), line.blocks.end(), "block1") != line.blocks.end())
      for (const WaitWay& way : line.others)
        if (way.mode == Recompute::kHost) saves = way.saves;
  ASSERT_GT(saves, 0) << kept.ExplainText();
  given.model_options.plan = kept.Plan().decisions;
  for (const char* block : {"block0", "block1", "block2", "block3"})
    given.model_options.plan->waits[block] = Recompute::kNone;
  given.model_options.plan->waits["block1"] = Recompute::kHost;
  const Session away = GptProgram(given).MakeTrain();
  const auto peak = [](const Session& session) {
    return static_cast<double>(session.Summaries()[0].peak_bytes);
  };
  EXPECT_NEAR(peak(kept) - peak(away), saves, 0.1 * saves);
}

// On one device, where all work is done one after another, the prices are what plans differ by: seconds of a
// step, and bytes of which the last block's are needed at once.
TEST(Explain, PricesOfWaitsAreWhatPlansDifferBy) {
  const auto plan_with = [](Recompute recompute) {
    SmallGpt given{.mesh = "cpu:dp=1", .micro_batches = 3};
    given.recompute = recompute;
    return GptProgram(given).MakeTrain();
  };
  const Session all_kept = plan_with(Recompute::kNone);
  EXPECT_EQ(all_kept.ExplainText().find("if all were kept"), std::string::npos) << all_kept.ExplainText();
  for (const Recompute mode : {Recompute::kSelective, Recompute::kFull}) {
    const Session again = plan_with(mode);
    double takes = 0, saves = 0, saves_of_one = 0;
    for (const WaitLine& line : WaitLinesOf(*again.impl())) {
      EXPECT_EQ(line.chosen.mode, mode);
      takes += line.chosen.takes * static_cast<double>(line.blocks.size());
      saves += line.chosen.saves * static_cast<double>(line.blocks.size());
      saves_of_one = std::max(saves_of_one, line.chosen.saves);
    }
    EXPECT_NE(again.ExplainText().find(Cat("\n  if all were kept, a step would take ",
                                           SecondsText(all_kept.impl()->compiled.logical.makespan),
                                           " by estimate instead of ",
                                           SecondsText(again.impl()->compiled.logical.makespan), "\n")),
              std::string::npos)
        << again.ExplainText();
    const double longer =
        again.impl()->compiled.logical.makespan - all_kept.impl()->compiled.logical.makespan;
    EXPECT_GT(takes, 0);
    EXPECT_NEAR(takes, longer, 0.01 * longer) << Name(mode);
    const auto peak = [](const Session& session) {
      return static_cast<double>(session.Summaries()[0].peak_bytes);
    };
    EXPECT_NEAR(peak(all_kept) - peak(again), saves, saves_of_one) << Name(mode);
  }
}

// Ranks that are alike need the same memory, and most ranks of a mesh that cuts evenly are.
TEST(DryRun, RanksThatAreAlikeNeedTheSameMemory) {
  int all = 0, looked_at = 0;
  std::vector<SmallGpt> programs = Programs();
  programs.push_back({.mesh = "cpu:dp=5,tp=3", .micro_batches = 2, .batch = 15, .width = 48});
  programs.push_back({.mesh = "cpu:dp=3,pp=2", .micro_batches = 2, .zero_axis = "dp", .zero_stage = 3});
  programs.push_back({.mesh = "cpu:dp=4", .zero_axis = "dp", .zero_stage = 2, .vocabulary = 63});
  for (SmallGpt given : programs)
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective}) {
      given.recompute = recompute;
      const Session session = GptProgram(given).MakeTrain();
      const Compiled& compiled = session.impl()->compiled;
      const std::vector<int> alike = FirstAlike(compiled.graph, compiled.logical);
      std::map<int, RankSummary> first;
      for (int rank = 0; rank < std::ssize(alike); ++rank) {
        const RankSummary s = SummaryOf(*session.impl(), rank);
        const RankSummary& known = first.emplace(alike[rank], s).first->second;
        EXPECT_EQ(s.peak_bytes, known.peak_bytes) << given.str() << " ranks " << alike[rank] << ", " << rank;
        EXPECT_EQ(s.persistent_bytes, known.persistent_bytes) << given.str() << " rank " << rank;
      }
      all += static_cast<int>(std::ssize(alike));
      looked_at += static_cast<int>(std::ssize(first));
    }
  EXPECT_LT(looked_at, .8 * all);
}

// The next best ways to wait take as much longer as is said.
TEST(Explain, SaysWhatTheNextWaitsLoseBy) {
  SmallGpt given{.mesh = "cpu:dp=1", .micro_batches = 2};
  const auto peak = [&](Recompute mode) {
    given.recompute = mode;
    return GptProgram(given).MakeTrain().Summaries()[0].peak_bytes;
  };
  const int64_t all = peak(Recompute::kNone), least = peak(Recompute::kFull);
  given.recompute = Recompute::kAuto;
  int64_t told = 0;
  for (int part = 1; part < 6; ++part) {
    given.model_options = {.memory_budget = least + (all - least) * part / 6};
    const Session chosen = GptProgram(given).MakeTrain();
    const std::regex sentence(
        "next best of (\\d+) plans with these cuts: ([0-9.]+) % slower by estimate \\((.*)\\)");
    const std::string text = chosen.ExplainText(), next = chosen.impl()->next_waits;
    EXPECT_NE(text.find("\n  " + next + "\n"), std::string::npos) << text;
    std::smatch found;
    ASSERT_TRUE(std::regex_match(next, found, sentence)) << next;
    EXPECT_GT(std::stoi(found[1]), 1);
    SmallGpt other = given;
    other.model_options.plan = chosen.Plan().decisions;
    const std::string differ = found[3];
    if (differ.find(" more otherwise") != std::string::npos) continue;
    const std::regex block("(block\\d+) ([a-z ]+)");
    for (auto at = std::sregex_iterator(differ.begin(), differ.end(), block); at != std::sregex_iterator();
         ++at)
      for (const Recompute mode : kRecomputeModes)
        if ((*at)[2] == Described(mode)) other.model_options.plan->waits.at((*at)[1]) = mode;
    const Session second = GptProgram(other).MakeTrain();
    EXPECT_LE(second.Summaries()[0].peak_bytes, given.model_options.memory_budget);
    EXPECT_NEAR(second.impl()->compiled.logical.makespan / chosen.impl()->compiled.logical.makespan - 1,
                std::stod(found[2]) / 100, 0.0006)
        << next;
    ++told;
  }
  EXPECT_GT(told, 2);
}

TEST(Explain, SaysWhatWasDecided) {
  SmallGpt given{.mesh = "cpu:dp=2", .micro_batches = 2, .zero_axis = "dp", .zero_stage = 3, .prefetch = 2};
  given.overlap = {.chunks = 4, .gain = 0.25};
  const std::string text = GptProgram(given).MakeTrain().ExplainText();
  EXPECT_NE(text.find("\ndecided: micro_batches 2, schedule 1f1b, virtual_stages 1, zero 3 over dp, "),
            std::string::npos)
      << text;
  EXPECT_NE(text.find(", overlap 4 gain 0.25, "), std::string::npos) << text;
  EXPECT_NE(text.find(", prefetch 2, collectives cheapest"), std::string::npos) << text;
}

TEST(Explain, WorkOfRanksIsThatOfTheirPlansAndAddsUp) {
  for (const SmallGpt& given : Programs()) {
    GptProgram program(given);
    Session session = program.MakeTrain();
    const Compiled& compiled = session.impl()->compiled;
    double heavy = 0;
    for (int rank = 0; rank < compiled.graph.mesh().size(); ++rank) {
      double flops = 0;
      plan::Plan plan = PlanOf(compiled, rank).plan;
      for (const plan::Actor& a : plan.actor())
        for (const plan::Kernel& k : a.kernel()) flops += k.flops() * a.acts();
      RankWork work = WorkOfRank(compiled, rank);
      EXPECT_NEAR(work.flops, flops, 1e-9 * flops) << given.str() << " rank " << rank;
      heavy += work.heavy_flops;
    }
    // Tokens, weights of products per layer and head, 2 flops each, once forward and twice backward;
    // attention 4 of every score forward and 10 backward.
    double tokens = static_cast<double>(given.batch * given.context);
    double width = static_cast<double>(given.width);
    double products = 6 * tokens * (12 * width * width * given.layers + width * given.vocabulary);
    double attention = 14 * tokens * given.context * width * given.layers;
    // Where cuts are uneven it may be cheaper to compute a product twice than to send it.
    EXPECT_GE(heavy, (products + attention) * (1 - 1e-9)) << given.str();
    double even = given.mesh == "cpu:dp=3" ? 1.05 : 1 + 1e-9;
    EXPECT_LE(heavy, (products + attention) * even) << given.str() << ": a product is computed twice";
    for (Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      SmallGpt repeats = given;
      repeats.recompute = recompute;
      EXPECT_NEAR(ModelFlops(GptProgram(repeats).MakeTrain().impl()->compiled), products + attention,
                  1e-9 * (products + attention))
          << repeats.str();
    }
  }
}

TEST(DryRun, MemoryByPurposeAddsUp) {
  for (const SmallGpt& given : Programs()) {
    GptProgram program(given);
    Session session = program.MakeTrain();
    for (const RankSummary& s : session.Summaries()) {
      std::map<std::string, int64_t> purposes(s.purposes.begin(), s.purposes.end());
      int64_t sum = 0;
      for (auto [purpose, bytes] : purposes) {
        EXPECT_GE(bytes, 0) << purpose;
        sum += bytes;
      }
      EXPECT_EQ(sum, s.peak_bytes) << given.str() << " rank " << s.rank;
      EXPECT_EQ(purposes["weights"] + purposes["optimizer state"], s.persistent_bytes);
      const bool last_stage = given.mesh.find("pp=2") != std::string::npos && s.rank % 2 == 1;
      const int64_t number = last_stage ? 0 : 64;  // of updates, which the first stage keeps for all
      EXPECT_EQ(purposes["optimizer state"], 2 * purposes["weights"] + number) << "AdamW keeps two";
      // Those of one micro-batch may go as they come, those of several are kept from the first to the last.
      if (given.micro_batches > 1) {
        EXPECT_GT(purposes["gradients"], 0) << given.str();
      }
      EXPECT_GT(purposes["stash"] + purposes["other"], 0) << given.str();
      bool tied = given.mesh.find("pp") != std::string::npos;  // the last stage reads the first one's table
      bool zero = !given.zero_axis.empty();
      EXPECT_TRUE(tied || (purposes["gathered"] > 0) == zero) << given.str() << ": " << purposes["gathered"];
      EXPECT_EQ(purposes["narrow copies"] > 0, given.dtype == DType::kBFloat16) << given.str();
    }
  }
}

TEST(DryRun, StagesComputeForPartOfTheStep) {
  Session alone = GptProgram({}).MakeTrain();
  std::vector<StageTime> one = TimesOfStages(alone.impl()->compiled);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_NEAR(one[0].bubble, 0, 1e-9) << "a device alone computes all the time";
  // Two stages and one micro-batch: while one computes the other waits.
  Session turns = GptProgram({.mesh = "cpu:pp=2"}).MakeTrain();
  std::vector<StageTime> two = TimesOfStages(turns.impl()->compiled);
  ASSERT_EQ(two.size(), 2u);
  EXPECT_GE(two[0].bubble + two[1].bubble, 0.9);
  EXPECT_NEAR(two[0].seconds / (1 - two[0].bubble), turns.impl()->compiled.logical.makespan, 1e-9);
  Session many = GptProgram({.mesh = "cpu:pp=2", .micro_batches = 8}).MakeTrain();
  EXPECT_LT(TimesOfStages(many.impl()->compiled)[0].bubble, two[0].bubble)
      << "micro-batches fill the pipeline";
}

// In the estimated step a boxing takes the time it is priced at, in all its acts together; and a step is no
// longer than all acts one after another.
TEST(DryRun, AStepTakesTheTimeOfItsActs) {
  for (const SmallGpt& given : Programs()) {
    Session session = GptProgram(given).MakeTrain();
    const Compiled& compiled = session.impl()->compiled;
    std::map<int, double> prices;  // by node
    for (const BoxingPrice& p : PricesOfBoxing(compiled)) prices[p.node] = p.seconds;
    double all = 0;
    for (const Segment& s : compiled.logical.segments) {
      double seconds = s.seconds * (s.per_micro_batch ? compiled.graph.times() : 1);
      const Node& node = compiled.graph.node(s.nodes[0]);
      if (IsCollective(node)) {
        const double price = prices.at(s.nodes[0]);
        EXPECT_NEAR(seconds, price, 1e-9 * price) << given.str() << ": " << node.name;
        seconds = price;
      }
      all += seconds;
    }
    EXPECT_LE(compiled.logical.makespan, all * (1 + 1e-9)) << given.str();
  }
}

// A weight that came from another stage counts like one whose pieces came together, in any type. It is the
// largest thing there, so it is part of the peak.
TEST(DryRun, AWeightFromAnotherStageIsGathered) {
  constexpr int64_t kWide = 64;
  for (int tp : {1, 2})
    for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      Model model(FullMesh(Cat("cpu:tp=", tp, ",pp=2")));
      Tensor x = model.Input("x", {2, kWide}, DType::kFloat32);
      Tensor w = model.scope().Stage("pp", 0).Weight("w", {kWide, kWide}, Normal(1), {{"tp", S(0)}});
      Tensor h = to_stage(matmul(x, w), "pp", 1);
      SessionOptions options;
      options.dtype = dtype;
      Session session = Evaluate({{"y", matmul(h, to_stage(w, "pp", 1))}}, options);
      int ranks = 0;
      for (const RankSummary& s : session.Summaries()) {
        if (s.stage != "pp=1") continue;
        ranks += static_cast<int>(s.ranks.size());
        std::map<std::string, int64_t> purposes(s.purposes.begin(), s.purposes.end());
        EXPECT_GE(purposes["gathered"], kWide * kWide * SizeOf(dtype) / tp)
            << "tp=" << tp << " " << Name(dtype) << " rank " << s.rank;
      }
      EXPECT_EQ(ranks, tp);
    }
}

// On small meshes bytes are counted by routing, on large ones by formula; the micro-batches of a step carry
// one batch, however many they are.
TEST(Explain, BytesOfAStepDoNotDependOnMicroBatches) {
  const Dims shape = {8, 320};
  for (int devices : {4, 64, 80})
    for (int micro_batches : {1, 2, 4, 8}) {
      Model model(Mesh("cpu", {{"tp", devices}}));
      Tensor x = model.Input("x", shape, DType::kFloat32, {{"tp", S(1)}});
      SessionOptions options;
      options.micro_batches = micro_batches;
      Session session = Evaluate({{"y", annotate(x, {{"tp", B()}})}}, options);
      double bytes = 0;
      for (const BoxingPrice& p : PricesOfBoxing(session.impl()->compiled)) bytes += p.bytes;
      const double wanted = 4.0 * static_cast<double>(shape.elements()) * (devices - 1);
      EXPECT_NEAR(bytes, wanted, 1e-6 * wanted)
          << devices << " devices, " << micro_batches << " micro-batches";
    }
}

// ZeRO cuts weights over dp, which no annotation does: nobody is told that their annotation is to blame.
TEST(Explain, WhatZeroGathersIsNotBlamedOnAnnotations) {
  for (const char* mesh : {"cpu:dp=4", "cpu:dp=2,tp=2"})
    for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      GptProgram program({.mesh = mesh, .zero_axis = "dp", .dtype = dtype});
      Session session = program.MakeTrain();
      const Compiled& compiled = session.impl()->compiled;
      int gathers = 0;
      for (const BoxingPrice& p : PricesOfBoxing(compiled)) {
        EXPECT_EQ(p.gathered.find(" over dp"), std::string::npos) << mesh << ": " << p.gathered;
        gathers += compiled.graph.producer(compiled.graph.node(p.node).in[0]).kind == NodeKind::kVariable;
      }
      if (dtype == DType::kFloat32) {
        EXPECT_GT(gathers, 0) << mesh;
      }
      EXPECT_EQ(session.SummaryText().find(" over dp,"), std::string::npos) << session.SummaryText();
    }
}

TEST(Explain, AWeightThatHasToBeGatheredIsNamed) {
  Model model(FullMesh("cpu:tp=2"));
  Tensor x = model.Input("x", {64, 32}, DType::kFloat32);
  Scope s = model.scope();
  Tensor mix = layer_norm(s.Weight("mix", {32, 16}, Normal(1), {{"tp", S(1)}}),
                          s.Weight("gamma", {16}, Ones()), s.Weight("beta", {16}, Zeros()));
  Tensor up = model.scope().Weight("up", {16, 8}, Normal(1), {{"tp", S(1)}});
  Session session = Evaluate({{"y", matmul(matmul(x, mix), up)}});
  int named = 0;
  for (const BoxingPrice& p : PricesOfBoxing(session.impl()->compiled)) {
    bool says = p.gathered.find("weight 'mix' is annotated S1 over tp") != std::string::npos;
    EXPECT_EQ(says, p.value == "mix") << p.gathered;
    EXPECT_EQ(p.gathered.find("weight 'up'"), std::string::npos) << p.gathered;
    named += says;
  }
  EXPECT_EQ(named, 1);
  std::string text = session.ExplainText();
  EXPECT_NE(text.find("wanted by layer_norm"), std::string::npos) << text;
  EXPECT_NE(text.find("explain_test.cc:"), std::string::npos) << text;
  EXPECT_NE(session.SummaryText().find("weight 'mix' is annotated S1 over tp"), std::string::npos)
      << session.SummaryText();
}

// Alike ranks are told of once, and count as many times.
TEST(Explain, TheMeanIsThatOfAllRanks) {
  for (const SmallGpt& given : {SmallGpt{.mesh = "cpu:dp=1"}, SmallGpt{.mesh = "cpu:dp=2,tp=2"},
                                SmallGpt{.mesh = "cpu:dp=3", .batch = 7},
                                SmallGpt{.mesh = "cpu:dp=2,tp=2,pp=2", .micro_batches = 2}}) {
    SCOPED_TRACE(given.str());
    Session session = GptProgram(given).MakeTrain();
    const std::vector<RankSummary> summaries = session.Summaries();
    const std::string text = session.ExplainText(), number = "([-+.e0-9]+)";
    std::smatch mean;
    ASSERT_TRUE(std::regex_search(text, mean, std::regex(number + " GFLOP a rank in the mean"))) << text;
    const std::regex of_ranks(number + " GFLOP, " + number + " % of the mean");
    double ranks = 0, work = 0, shares = 0;
    size_t line = 0;
    for (std::sregex_iterator at(text.begin(), text.end(), of_ranks), end; at != end; ++at, ++line) {
      ASSERT_LT(line, summaries.size()) << text;
      const double alike = static_cast<double>(summaries[line].ranks.size());
      ranks += alike;
      work += alike * std::stod((*at)[1]);
      shares += alike * std::stod((*at)[2]) / 100;
    }
    EXPECT_EQ(line, summaries.size()) << text;
    EXPECT_EQ(ranks, session.impl()->compiled.graph.mesh().size());
    EXPECT_GT(work, 0);
    EXPECT_NEAR(work / ranks, std::stod(mean[1]), 1e-4 * work / ranks) << text;
    EXPECT_NEAR(shares, ranks, 1e-4 * ranks) << text;
  }
}

// With what libraries take there, and groups pack in.
TEST(DryRun, PurposesOfADeviceAddUpToItsPeak) {
  for (const SmallGpt& given :
       {SmallGpt{.mesh = "cuda:dp=1"}, SmallGpt{.mesh = "cuda:dp=2,tp=2", .micro_batches = 2},
        SmallGpt{.mesh = "cuda:dp=4", .zero_axis = "dp"},
        SmallGpt{.mesh = "cpu+cuda:dp=2,pp=2", .micro_batches = 4}}) {
    SCOPED_TRACE(given.str());
    GptProgram program(given);
    Session session = program.MakeTrain();
    for (const RankSummary& s : session.Summaries()) {
      int64_t sum = 0;
      for (const auto& [purpose, bytes] : s.purposes) sum += bytes;
      EXPECT_EQ(sum, s.peak_bytes) << "rank " << s.rank;
      EXPECT_EQ(s.library_bytes > 0, program.model().mesh().KindOf(s.rank) == "cuda") << "rank " << s.rank;
    }
  }
}

}  // namespace
}  // namespace oneflow_like
