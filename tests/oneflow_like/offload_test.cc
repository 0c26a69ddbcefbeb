// ModelOptions::offload: what waits in the memory of the host changes no bit of a loss, is where the summary
// says, and crosses the link as often as the formulas say.
// ctest: seconds=25
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "actor/virtual_time.h"
#include "core/plan/plan_values.h"
#include "oneflow_like/simulate.h"
#include "tests/oneflow_like/session_fixture.h"
#include "tests/oneflow_like/small_gpt.h"

namespace oneflow_like {
namespace {

constexpr double kFloat = 4;  // bytes

Offload Of(const std::string& what, int64_t small = 16) {
  Offload offload = ParseOffload(what, "the test");
  offload.small = small;
  return offload;
}

SmallGpt With(SmallGpt given, const Offload& offload) {
  given.model_options.offload = offload;
  return given;
}

int64_t HostBytes(const Session& session) {
  int64_t bytes = 0;
  for (const RankSummary& rank : session.Summaries())
    bytes += rank.host_persistent_bytes + rank.host_transient_bytes;
  return bytes;
}

TEST(Offload, ChangesNoBit) {
  const SmallGpt settings[] = {
      {},
      {.mesh = "cpu:dp=2,tp=2,pp=2",
       .micro_batches = 4,
       .zero_axis = "dp",
       .zero_stage = 1,
       .dtype = DType::kBFloat16},
      {.mesh = "cpu:dp=2,pp=2",
       .micro_batches = 4,
       .schedule = PipelineSchedule::kGPipe,
       .zero_axis = "dp",
       .zero_stage = 2,
       .recompute = Recompute::kFull},
      {.mesh = "cpu:dp=2,tp=2,pp=2",
       .micro_batches = 2,
       .schedule = PipelineSchedule::kZeroBubble,
       .zero_axis = "dp",
       .zero_stage = 3},
      {.mesh = "cpu:dp=2,pp=2",
       .micro_batches = 4,
       .schedule = PipelineSchedule::kInterleaved,
       .recompute = Recompute::kSelective,
       .layers = 8,
       .model_options = {.pipeline = {.virtual_stages = 2}}},
      {.mesh = "cpu:dp=2", .micro_batches = 2, .dtype = DType::kFloat16, .average = .9},
  };
  for (SmallGpt given : settings) {
    given.width = 32;
    given.layers = std::max<int64_t>(given.layers, 6);
    constexpr int kSteps = 20;
    const std::vector<float> wanted = LossesOf(given, kSteps);
    EXPECT_LT(wanted.back(), wanted.front());
    const auto expect_same = [&](const char* what, int prefetch, int steps) {
      Offload offload = Of(what);
      offload.prefetch = prefetch;
      const SmallGpt moved = With(given, offload);
      EXPECT_GT(HostBytes(GptProgram(moved).MakeTrain()), 0) << moved.str();
      EXPECT_EQ(LossesOf(moved, steps), std::vector<float>(wanted.begin(), wanted.begin() + steps))
          << moved.str();
    };
    expect_same("activations,optimizer,weights", 1, kSteps);
    for (const char* what : {"activations", "optimizer", "weights"}) expect_same(what, 0, 3);
    expect_same("activations,optimizer:0.3,weights", 2, 3);
  }
}

// Elements of weights, and of those that are large enough to go.
double WeightsOf(GptProgram& program, int64_t small) {
  double elements = 0;
  for (const auto& [name, variable] : program.model().impl()->variables)
    if (name.find(':') == std::string::npos && variable.shape.elements() > small)
      elements += static_cast<double>(variable.shape.elements());
  return elements;
}

// Both moments, 8 bytes a weight over N ranks, come once and go once, or a share of them; in 16 bits so does
// the weight itself, which comes once more for its narrow copy. Weights come in the forward and the backward
// pass of each micro-batch and for the update, and go once.
TEST(Offload, BytesOverTheLinkAreThoseOfTheFormulas) {
  constexpr int64_t kSmall = 64;
  for (int ranks : {1, 2, 4})
    for (int micro_batches : {1, 3}) {
      SmallGpt given{.mesh = Cat("cpu:dp=", ranks), .micro_batches = micro_batches, .batch = 12};
      if (ranks > 1) given.zero_axis = "dp", given.zero_stage = 3;
      const auto moved = [&](const char* what, double* weights) {
        GptProgram program(With(given, Of(what, kSmall)));
        Session session = program.MakeTrain();
        *weights = WeightsOf(program, kSmall);
        return session.Summaries()[0];
      };
      double weights = 0;
      for (const auto& [what, share] : {std::pair{"optimizer", 1.0}, {"optimizer:0.5", .5}}) {
        const RankSummary s = moved(what, &weights);
        const double bytes = 2 * kFloat * weights / ranks * share;
        EXPECT_NEAR(s.bytes_from_host, bytes, .06 * bytes) << what << " " << given.str();
        EXPECT_EQ(s.bytes_from_host, s.bytes_to_host) << what << " " << given.str();
        EXPECT_NEAR(static_cast<double>(s.host_persistent_bytes), bytes, .06 * bytes)
            << what << " " << given.str();
      }
      const DType wide = given.dtype;
      given.dtype = DType::kBFloat16;
      for (const auto& [what, share] : {std::pair{"optimizer", 1.0}, {"optimizer:0.5", .5}}) {
        const RankSummary s = moved(what, &weights);
        const double bytes = kFloat * weights / ranks * share;
        EXPECT_NEAR(s.bytes_from_host, 4 * bytes, .2 * bytes) << what << " in 16 bits " << given.str();
        EXPECT_NEAR(s.bytes_to_host, 3 * bytes, .2 * bytes) << what << " in 16 bits " << given.str();
        EXPECT_NEAR(static_cast<double>(s.host_persistent_bytes), 3 * bytes, .2 * bytes)
            << what << " in 16 bits " << given.str();
      }
      given.dtype = wide;
      const RankSummary s = moved("weights", &weights);
      const double each = kFloat * weights / ranks;
      // Biases are read in one of the passes alone, the table in which words are looked up is read thrice.
      const double table = kFloat * static_cast<double>(given.vocabulary * given.width) / ranks;
      EXPECT_LE(s.bytes_from_host, 1.01 * ((2 * micro_batches + 1) * each + micro_batches * table))
          << given.str();
      EXPECT_GE(s.bytes_from_host, .85 * (2 * micro_batches + 1) * each) << given.str();
      EXPECT_NEAR(s.bytes_to_host, each, 64 * 64) << given.str();
      const RankSummary a = moved("activations", &weights);
      EXPECT_EQ(a.bytes_from_host, a.bytes_to_host) << given.str();
      EXPECT_GT(a.bytes_to_host, 0) << given.str();
      if (micro_batches == 1) {
        EXPECT_NEAR(a.bytes_to_host, static_cast<double>(a.host_transient_bytes), 64 * 256) << given.str();
      }
    }
}

// What a device holds of weights, state and activations does not grow with layers beyond what stays.
TEST(Offload, TheDeviceHoldsAWindow) {
  const auto peak = [](int64_t layers, const std::string& what, DType dtype) {
    const bool of_weights = what.starts_with("optimizer");
    SmallGpt given{
        .batch = of_weights ? 1 : 16, .context = of_weights ? 8 : 64, .layers = layers, .dtype = dtype};
    GptProgram program(With(given, Of(what, 1024)));
    return static_cast<double>(program.MakeTrain().Summaries()[0].peak_bytes);
  };
  const auto each = [&](const std::string& what, DType dtype = DType::kFloat32) {
    return (peak(24, what, dtype) - peak(12, what, dtype)) / 12;
  };
  const double weights = kFloat * (12 * 64 * 64 + 13 * 64);  // of a layer
  const double kept = each("optimizer:0.0001");
  EXPECT_NEAR(kept, 4 * weights, .1 * weights);
  EXPECT_LE(each("optimizer"), 2.05 * weights);  // until gradients are clipped they stay
  // Of a weight the device has its narrow copy or its gradient in fp32, or both.
  EXPECT_LE(each("optimizer", DType::kBFloat16), 1.55 * weights);
  const double entering = kFloat * 16 * 64 * 64;
  EXPECT_LE(each("activations"), 4 * weights + .1 * entering);
  EXPECT_LE(each("activations", DType::kBFloat16), 4.6 * weights + .1 * entering);
  EXPECT_LE(each("activations,optimizer,weights"), 1.2 * weights);  // gradients
}

// What a region leaves has gone before the work of the region `prefetch` + 1 behind it begins, on the way
// forward or back, and comes again with the gradient that enters the region `prefetch` before it on that way.
TEST(Offload, ActivationsGoAndComeInTheirTurn) {
  for (int prefetch : {0, 1, 2}) {
    Offload offload = Of("activations");
    offload.prefetch = prefetch;
    GptProgram program(With({.mesh = "cpu:pp=2", .micro_batches = 2, .layers = 8}, offload));
    const Session train = program.MakeTrain();
    const Graph& graph = train.impl()->compiled.graph;
    const std::vector<std::vector<int>> readers = graph.Readers();
    std::map<Slice, std::set<std::string>> stages;  // regions, whose names are in their order
    for (int n : graph.Order())
      if (const std::string region = graph.regions().Of(graph.node(n).name);
          !region.empty() && graph.node(n).kind == NodeKind::kOperator)
        stages[graph.node(n).slice].insert(region);
    const auto number = [&](int n) {
      const std::set<std::string>& all = stages.at(graph.node(n).slice);
      return std::distance(all.begin(), all.find(graph.regions().Of(graph.node(n).name)));
    };
    int waits[2] = {0, 0}, returns = 0;
    for (int n : graph.Order()) {
      const Node& node = graph.node(n);
      SCOPED_TRACE(Cat("prefetch ", prefetch, ": ", graph.Describe(n)));
      for (int gone : node.after) {
        if (graph.node(gone).op != kToHost) continue;
        const auto regions = std::ssize(stages.at(node.slice)), at = number(gone) + prefetch + 1;
        EXPECT_EQ(number(n), at < regions ? at : 2 * regions - 1 - at) << graph.Describe(gone);
        EXPECT_EQ(node.phase == Phase::kForward, at < regions) << graph.Describe(gone);
        ++waits[node.phase != Phase::kForward];
      }
      if (node.op != kFromHost) continue;
      int reader = readers[node.out[0]].at(0);
      while (graph.IsView(reader)) reader = readers[graph.node(reader).out[0]].at(0);
      const auto regions = std::ssize(stages.at(node.slice)), enters = number(reader) + prefetch;
      for (int maker : node.after)
        EXPECT_EQ(number(maker), std::min(regions, enters + 1)) << graph.Describe(maker);
      returns += !node.after.empty();
    }
    EXPECT_GT(waits[0], 0);
    EXPECT_GT(waits[1], 0);
    EXPECT_GT(returns, 0);
  }
}

// Planned is what is taken, in both memories, from the first step on.
TEST(Offload, PlannedIsObserved) {
  GptProgram program(With({.mesh = "cpu:dp=2,pp=2", .micro_batches = 4, .zero_axis = "dp", .layers = 8},
                          Of("activations,optimizer,weights")));
  Session train = program.MakeTrain();
  std::map<int, RankSummary> said;
  for (const RankSummary& s : train.Summaries())
    for (int rank : s.ranks) said[rank] = s;
  (void)train.Run(program.MakeFeeds(0)).Scalar("loss");
  const int64_t allocations = GetHostMemoryStats().allocations;
  for (int step = 1; step < 6; ++step) (void)train.Run(program.MakeFeeds(step)).Scalar("loss");
  EXPECT_EQ(GetHostMemoryStats().allocations, allocations);
  const Store& store = *program.model().impl()->store;
  for (int rank : store.ranks()) {
    EXPECT_EQ(store.PersistentBytes(rank), said[rank].persistent_bytes);
    EXPECT_EQ(store.ArenaBytes(rank), said[rank].transient_bytes);
    EXPECT_EQ(store.PersistentBytes(rank, "host"), said[rank].host_persistent_bytes);
    EXPECT_EQ(store.ArenaBytes(rank, "host"), said[rank].host_transient_bytes);
    EXPECT_GT(said[rank].host_transient_bytes, 0);
  }
}

// A session that reads weights reads them where they lie; checkpoints say nothing of it.
// Blocks behind which a weight, broadcast over the batch, bounds what they give; and a session of the same
// training in other micro-batches, or another type, for which it would choose other states to go.
std::vector<float> LossesInTwoSessions(const ModelOptions& options, const std::string& mesh, int first,
                                       int second, DType then) {
  Model model(Mesh::Parse(mesh), options);
  Tensor x = model.Input("x", {4, 8}, DType::kFloat32, {{"dp", S(0)}});
  Tensor y = nn::layers(model.scope(), x, 2, [](Scope s, Tensor h, int64_t) {
    Tensor bound = s.Weight("bound", {8}, Uniform(.5, 2));
    return minimum(nn::Linear(s, tanh(h), 8), broadcast_to(bound, h.shape()));
  });
  y = minimum(y, broadcast_to((model.scope() / "end").Weight("bound", {8}, Uniform(.5, 2)), y.shape()));
  const Tensor loss = mean(square(y));
  std::vector<float> losses;
  TrainOptions train;
  const auto run = [&](int micro_batches, DType dtype) {
    train.micro_batches = micro_batches;
    train.dtype = dtype;
    Session session = Train(loss, AdamW{.lr = .1, .eps = .01}, train);
    for (int step = 0; step < 3; ++step)
      losses.push_back(session.Run({{"x", Floats(step, {4, 8})}}).Scalar("loss"));
  };
  run(first, DType::kFloat32);
  run(second, then);
  run(first, DType::kFloat32);
  return losses;
}

TEST(Offload, SessionsAgreeOnWhatIsOnTheHost) {
  for (const DType then : {DType::kFloat32, DType::kBFloat16})
    for (const auto& [first, second] : {std::pair(2, 1), {1, 2}, {4, 2}}) {
      const std::vector<float> wanted = LossesInTwoSessions({}, "cpu:dp=1", first, second, then);
      for (const char* what : {"weights", "optimizer:0.4", "optimizer:0.6,weights", "activations,optimizer"})
        EXPECT_EQ(LossesInTwoSessions({.offload = Of(what, 0)}, "cpu:dp=1", first, second, then), wanted)
            << what << " in " << first << " micro-batches, then " << second << ", " << Name(then);
      const std::vector<float> whole = LossesInTwoSessions({}, "cpu:dp=2", first, second, then),
                               zero = LossesInTwoSessions({.zero = {.axis = "dp", .stage = 3, .small = 0}},
                                                          "cpu:dp=2", first, second, then);
      for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(zero[i], whole[i], 1e-5 * whole[i]);
    }
}

TEST(Offload, OthersReadAndSave) {
  const std::string folder = Cat(testing::TempDir(), "offload_test.", getpid());
  SmallGpt plain{.mesh = "cpu:dp=2", .zero_axis = "dp", .zero_stage = 3};
  const auto held_out = [&](const SmallGpt& given, bool load, bool save) {
    GptProgram program(given);
    Session train = program.MakeTrain();
    if (load) Load(program.model(), folder);
    for (int step = 0; step < 3; ++step) (void)train.Run(program.MakeFeeds(step)).Scalar("loss");
    Session evaluate = program.MakeEvaluate();
    if (given.model_options.offload.any() && given.dtype == DType::kBFloat16)
      EXPECT_GT(evaluate.Summaries()[0].bytes_from_host, 0);
    if (save) Save(program.model(), folder).Wait();
    return evaluate.Run(program.MakeFeeds(9)).Scalar("loss");
  };
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    for (const double average : {0.0, .9})
      for (const char* what : {"optimizer,weights", "optimizer"}) {
        plain.dtype = dtype;
        plain.average = average;
        const SmallGpt moved = With(plain, Of(what));
        EXPECT_EQ(held_out(plain, false, false), held_out(moved, false, true)) << moved.str();
        const float on = held_out(plain, true, false);
        EXPECT_EQ(held_out(moved, true, true), on) << moved.str();
        std::filesystem::remove_all(folder);
      }
}

// An optimizer of assigns, averages that read what these give, and a table of which rows are touched.
TEST(Offload, UpdatesOfAssignsAreTheSame) {
  const auto trained = [](const char* what, RankSummary* summary) {
    ModelOptions options;
    options.offload = Of(what);
    Model model(Mesh::Parse("cpu:dp=2"), options);
    Tensor ids = model.Input("ids", {8}, DType::kInt32, {{"dp", S(0)}});
    const Scope scope = model.scope();
    Tensor x = embedding(scope.Weight("table", {100, 16}, Normal(1)), ids);
    for (int i = 0; i < 3; ++i) x = tanh(matmul(x, scope.Weight(Cat("w", i), {16, 16}, Normal(.3))));
    TrainOptions train_options;
    train_options.average.decay = .9;
    Session train = Train(mean(square(x)), Adagrad{.lr = .1, .by_rows = true}, train_options);
    *summary = train.Summaries()[0];
    for (int step = 0; step < 6; ++step) train.Run({{"ids", Ids(step, {8}, 100)}}).Wait();
    std::map<std::string, HostTensor> values;
    for (const std::string& name : model.Variables()) values[name] = model.Read(name);
    return values;
  };
  RankSummary summary;
  const auto wanted = trained("", &summary);
  const int64_t whole = summary.persistent_bytes;
  for (const char* what : {"weights", "optimizer", "tables", "tables,weights", "optimizer,tables,weights"}) {
    const auto got = trained(what, &summary);
    for (const auto& [name, value] : wanted)
      EXPECT_TRUE(SameBytes(got.at(name), value)) << what << " " << name;
    EXPECT_LT(summary.persistent_bytes, whole) << what;
    // Rows are read where they lie.
    if (std::string(what) == "tables") EXPECT_EQ(summary.bytes_from_host, 0);
    EXPECT_LT(summary.bytes_from_host, 20 * 16 * 16 * kFloat) << what;
  }
}

// --- On the virtual clock ---

// Layers of two blocks each, whose products take 11 and 17 ms and wait for weights that take 18 and 30, with
// a sum over two ranks behind each: milliseconds that the products of each block wait.
std::vector<double> WaitsOfBlocks(int layers, int window, double sum) {
  ModelOptions options;
  options.offload = Of("weights");
  options.offload.prefetch = window - 1;
  Model model(Mesh::Parse("cpu:tp=2"), options);
  Tensor x = model.Input("x", {4, 64}, DType::kFloat32, {{"tp", B()}});
  const int blocks = 2 * layers;
  for (int b = 0; b < blocks; ++b) {
    const Scope scope = model.scope() / Cat("block", b);
    scope.Region();
    Tensor rows = annotate(x, {{"tp", S(1)}});
    x = annotate(matmul(rows, scope.Weight("w", {64, 64}, Normal(.1), {{"tp", S(0)}})), {{"tp", B()}});
  }
  Session session = Evaluate({{"y", x}});
  const Compiled& compiled = session.impl()->compiled;
  std::vector<std::pair<double, double>> products(blocks);  // begin and end
  std::map<int, int> block_of;                              // by actor
  VirtualOptions on_paper;
  on_paper.load = [&](const plan::Collective&, int) {
    return VirtualLoad{.latency = Picoseconds(sum * 1e-3)};
  };
  on_paper.record = [&](const TraceRecord& r) {
    if (r.rank == 0 && r.kernel >= 0 && block_of.count(r.actor) > 0)
      products[block_of[r.actor]] = {r.start / 1e9, r.end / 1e9};
  };
  VirtualMachine machine(std::move(on_paper));
  std::vector<plan::Plan> plans;
  std::vector<std::unique_ptr<Device>> devices;
  for (int rank : {0, 1}) {
    const plan::Plan plan = PlanOf(compiled, rank).plan;
    for (const plan::Actor& actor : plan.actor())
      for (const plan::Kernel& kernel : actor.kernel())
        if (kernel.name() == "matmul") block_of[actor.id()] = std::stoi(kernel.node().substr(5));
    plans.push_back(machine.OnPaper(plan, [&](const plan::Actor&, const plan::Kernel& kernel) {
      const bool first = kernel.node().starts_with("block") && std::stoi(kernel.node().substr(5)) % 2 == 0;
      if (kernel.name() == "matmul") return first ? 11e-3 : 17e-3;
      if (kernel.name() == kFromHost) return first ? 18e-3 : 30e-3;
      return 0.0;
    }));
    devices.push_back(machine.MakeDevice(rank));
  }
  Store store({0, 1}, std::move(devices));
  RuntimeOptions runtime_options;
  runtime_options.steps_in_flight = 1;
  runtime_options.peers = machine.peers();
  Runtime runtime(std::move(plans), machine.registry(), &store, machine.executor(), runtime_options);
  EXPECT_TRUE(runtime.Launch({}).Wait().ok());
  std::vector<double> waits;
  for (int b = 0; b < blocks; ++b)
    waits.push_back(products[b].first - (b == 0 ? 0 : products[b - 1].second + sum));
  return waits;
}

TEST(Offload, BlocksWaitAsLongAsTheClockSays) {
  for (int window : {2, 3, 4}) {
    const std::vector<double> waits = WaitsOfBlocks(4, window, 14);
    EXPECT_NEAR(waits[0], 18, 1e-6) << window;
    EXPECT_NEAR(waits[1], 5, 1e-6) << window;
    for (size_t b = 2; b < waits.size(); ++b) EXPECT_NEAR(waits[b], 0, 1e-6) << window << " block " << b;
  }
  const std::vector<double> one = WaitsOfBlocks(4, 1, 14);
  EXPECT_NEAR(one[0] + one[1], 34, 1e-6);
  for (size_t b = 2; b < one.size(); b += 2) EXPECT_NEAR(one[b] + one[b + 1], 20, 1e-6) << b;
  const std::vector<double> bound = WaitsOfBlocks(6, 2, 5);  // by the loads: 48 a layer
  EXPECT_NEAR(bound[10] + bound[11] + 11 + 17 + 2 * 5, 48, 1e-6);
}

// --- What is refused ---

TEST(Offload, WhatIsNoSuchTextIsRefused) {
  for (const char* text : {"optimizers", "optimizer:", "optimizer:0", "optimizer:1.5", "optimizer:x",
                           "weights:0.5", "weights,", ",", "activations, weights", "optimizer:nan"}) {
    const std::string error = ErrorOf([&] { ParseOffload(text, Cat("--offload=", text)); });
    EXPECT_TRUE(error.starts_with(Cat("--offload=", text, ": '"))) << error;
    EXPECT_NE(error.find("is none of activations, optimizer"), std::string::npos) << error;
  }
  for (const char* text : {"optimizer,optimizer:0.5", "weights,weights"})
    EXPECT_NE(ErrorOf([&] { Of(text); }).find("is there twice"), std::string::npos) << text;
  for (const char* text : {"", "activations", "activations,optimizer,weights,tables", "optimizer:0.25"})
    EXPECT_EQ(OffloadText(ParseOffload(text, "x")), text);
}

}  // namespace
}  // namespace oneflow_like
