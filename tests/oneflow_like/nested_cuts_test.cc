// Cuts that nest, by groups of mesh axes: what hybrid sharding sends and keeps, what goes between hosts,
// roles and patterns that name groups, checkpoints from one nesting to another, and what is refused.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "compiler/compile.h"
#include "examples/gpt_model.h"
#include "oneflow_like/session/session_impl.h"
#include "tests/oneflow_like/session_fixture.h"

namespace oneflow_like {

using namespace examples;
namespace {

constexpr int64_t kWidth = 48, kLayers = 3;
constexpr int64_t kWide = 256;  // of models that are only compiled: their messages are worth several trips

struct Cutting {
  std::string mesh;
  std::string batch;  // what cuts it
  Zero zero = {};
  int micro_batches = 1;
  DType reduce_dtype = DType::kFloat32;
  std::string reduce_axis = {};
};

// Layers of one matrix each; nothing else has weights.
Session TrainMatrices(Model& model, const Cutting& run, int64_t width = kWidth) {
  Tensor x = model.Input("x", {96, width}, DType::kFloat32, {{run.batch, S(0)}});
  Tensor y = nn::layers(model.scope(), x, kLayers, [&](Scope s, Tensor h, int64_t) {
    return relu(matmul(h, s.Weight("w", {width, width}, Normal(.2))));
  });
  TrainOptions options;
  options.micro_batches = run.micro_batches;
  options.reduce_dtype = run.reduce_dtype;
  options.reduce_axis = run.reduce_axis;
  return Train(mean(square(y)), AdamW{.lr = .01}, options);
}

// What rank 0 sends in a step, by the mesh axes along which the members of a collective differ.
std::map<std::string, double> SentAlong(const Session& session) {
  const Compiled& compiled = session.impl()->compiled;
  const Mesh& mesh = compiled.graph.mesh();
  std::map<std::string, MeshAxes> axes;
  for (int n = 0; n < compiled.graph.num_nodes(); ++n) {
    const Node& node = compiled.graph.node(n);
    if (!compiled.graph.alive(n) || !node.attrs.Has("axes")) continue;
    for (int64_t a : node.attrs.Ints("axes"))
      if (mesh.axis_size(static_cast<int>(a)) > 1) axes[node.name].push_back(static_cast<int>(a));
  }
  std::map<std::string, double> sent;
  const plan::Plan plan = PlanOf(compiled, 0).plan;
  for (const plan::Actor& a : plan.actor())
    if (a.has_collective())
      sent[mesh.NameOf(axes.at(a.kernel(0).node()))] += a.kernel(0).link_bytes() * a.acts();
  return sent;
}

// A file of machines: hosts of so many devices, and slower lines between them.
std::string Hosts(int devices) {
  const std::string file = Cat(::testing::TempDir(), "/nested_cuts_test.hosts", devices);
  std::ofstream(file) << "memory_bytes 80e9\nmemory_bandwidth 3e12\nflops_fp32 6e13\nflops_16bit 9e14\n"
                      << "level node devices " << devices << " latency 3e-6 bandwidth 3e11\n"
                      << "level cluster devices 0 latency 12e-6 bandwidth 4e10\n";
  return file;
}

TEST(HybridSharding, SendsAndKeepsWhatTheFormulasSay) {
  const double all = kLayers * kWide * kWide * 4;
  for (const char* mesh : {"cpu:replica=2,dp=4", "cpu:replica=4,dp=2", "cpu:dp=2,replica=2"})
    for (int stage : {1, 2, 3})
      for (int m : {1, 3})
        for (bool hosts : {false, true}) {
          const Mesh parsed = Mesh::Parse(mesh);
          const double s = parsed.SizeAlong(parsed.FindAxes("dp")), r = parsed.size() / s;
          const std::string both = parsed.NameOf({0, 1});
          ModelOptions options{.zero = {.axis = "dp", .stage = stage, .small = 0, .bucket_bytes = 0}};
          if (hosts) options.topology = Hosts(parsed.axis_size(1));
          Model model(parsed, options);
          const Session session =
              TrainMatrices(model, {.mesh = mesh, .batch = both, .micro_batches = m}, kWide);
          std::map<std::string, double> sent = SentAlong(session);
          const double scatters = stage >= 2 ? m : 1, gathers = stage == 3 ? 2 * m : 1;
          // The first layer's gradient of its input is not needed, so its weight is gathered for one pass.
          const double first = stage == 3 ? m * all / kLayers * (s - 1) / s : 0,
                       shards = (scatters + gathers) * all * (s - 1) / s - first,
                       copies = 2 * all / s * (r - 1) / r;
          const std::string where =
              Cat(mesh, " stage ", stage, " micro-batches ", m, hosts ? " of hosts" : "");
          EXPECT_NEAR(static_cast<double>(session.Summaries()[0].persistent_bytes), 3 * all / s, 256)
              << where;
          EXPECT_NEAR(sent["dp"] + sent["replica"] + sent[both], shards + copies, 64) << where;
          // Where all devices are alike, one exchange may do both.
          if (!hosts) continue;
          EXPECT_NEAR(sent["dp"], shards, 64) << where;
          EXPECT_NEAR(sent["replica"], copies, 64) << where;
          EXPECT_LE(sent[both], 64) << where;  // the loss
        }
}

// Two hosts of four devices: the outer axis is between them, and only the sum of shards crosses.
TEST(HybridSharding, OnlySumsOfShardsGoBetweenHosts) {
  const double all = kLayers * kWide * kWide * 4;
  std::map<std::string, double> crosses;
  for (const char* axis : {"dp", "replica*dp"}) {
    Model model(Mesh::Parse("cpu:replica=2,dp=4"),
                {.zero = {.axis = axis, .stage = 3, .small = 0, .bucket_bytes = 0}, .topology = Hosts(4)});
    const Session session =
        TrainMatrices(model, {.mesh = "", .batch = "replica*dp", .micro_batches = 2}, kWide);
    for (const auto& [axes, bytes] : SentAlong(session))
      if (axes != "dp") crosses[axis] += bytes;
  }
  EXPECT_NEAR(crosses["dp"], 2 * all / 4 / 2, 64);
  EXPECT_GT(crosses["replica*dp"], 5 * crosses["dp"]) << "without copies of shards";
}

// A GPT whose table is read before its first and behind its last layer.
Session TrainGpt(Model& model, const Cutting& run, int64_t batch) {
  const GptConfig config{.layers = 4, .width = 64, .heads = 4, .context = 32, .vocabulary = 256};
  Tensor tokens = model.Input("tokens", {batch, config.context}, DType::kInt32, {{run.batch, S(0)}});
  Tensor targets = model.Input("targets", {batch, config.context}, DType::kInt32, {{run.batch, S(0)}});
  TrainOptions options;
  options.micro_batches = run.micro_batches;
  options.clip_norm = 1;
  options.parallel = {.batch = run.batch, .tensor = "tp", .context = ""};
  return Train(GptLoss(model.scope(), tokens, targets, config), AdamW{.lr = .01}, options);
}

// Gathered along two axes, in one step or two, and in buckets: who gathers for the first layers waits for
// nothing that the last ones make.
TEST(NestedZero, GathersInStepsWaitInTheFirst) {
  for (const char* mesh : {"cpu:a=8,b=5,tp=1,pp=1", "cpu:a=3,b=2,tp=2,pp=1", "cpu:a=4,b=4,tp=2,pp=1",
                           "cpu:a=10,b=2,tp=1,pp=1", "cpu:a=7,b=9,tp=1,pp=1", "cpu:a=16,b=16,tp=1,pp=1"})
    for (int micro_batches : {1, 2})
      for (int prefetch : {0, 1, 3}) {
        Model model(Mesh::Parse(Cat(mesh, ";dp=a*b")),
                    {.zero = {.axis = "dp", .stage = 3, .prefetch = prefetch}});
        Cutting run{.mesh = "", .batch = "dp", .micro_batches = micro_batches};
        EXPECT_EQ(ErrorOf([&] { TrainGpt(model, run, 512); }), "") << mesh;
      }
}

// Sums between hosts in 16 bits alone: half the bytes there, and all else as before.
TEST(HybridSharding, SumsBetweenHostsMayBeNarrow) {
  for (int stage : {1, 2, 3})
    for (int m : {1, 3}) {
      const auto sent = [&](DType type, const std::string& axis) {
        Model model(
            Mesh::Parse("cpu:replica=2,dp=4"),
            {.zero = {.axis = "dp", .stage = stage, .small = 0, .bucket_bytes = 0}, .topology = Hosts(4)});
        Cutting run{.mesh = "", .batch = "replica*dp", .micro_batches = m};
        run.reduce_dtype = type;
        run.reduce_axis = axis;
        return SentAlong(TrainMatrices(model, run, kWide));
      };
      std::map<std::string, double> wide = sent(DType::kFloat32, ""), all = sent(DType::kBFloat16, ""),
                                    hosts = sent(DType::kBFloat16, "replica");
      const std::string where = Cat("stage ", stage, " micro-batches ", m);
      EXPECT_NEAR(hosts["replica"], wide["replica"] / 2, 64) << where;
      EXPECT_NEAR(hosts["dp"], wide["dp"], 64) << where;
      EXPECT_NEAR(all["replica"], wide["replica"] / 2, 64) << where;
      EXPECT_LT(all["dp"], .9 * wide["dp"]) << where;
    }
  const auto losses = [](DType type, const std::string& axis) {
    Model model(Mesh::Parse("cpu:replica=2,dp=2"), {.zero = {.axis = "dp", .stage = 2, .small = 0}});
    Cutting run{.mesh = "", .batch = "replica*dp", .micro_batches = 2};
    run.reduce_dtype = type;
    run.reduce_axis = axis;
    Session session = TrainMatrices(model, run);
    std::vector<float> losses;
    for (int step = 0; step < 10; ++step)
      losses.push_back(session.Run({{"x", Floats(step, {96, kWidth})}}).Scalar("loss"));
    return losses;
  };
  const std::vector<float> wide = losses(DType::kFloat32, ""), narrow = losses(DType::kBFloat16, "replica");
  EXPECT_NE(wide, narrow);
  for (size_t i = 0; i < wide.size(); ++i) EXPECT_NEAR(narrow[i], wide[i], 2e-4 * wide[0]) << i;
}

// The shard of each rank, of all its axes together.
TEST(NestedZero, CutsOverTheProductOfItsAxes) {
  for (const char* axis : {"dp", "dp*cp", "dp*cp*tp", "cp*tp", "all"}) {
    const Mesh mesh = Mesh::Parse("cpu:dp=2,cp=2,tp=2;all=dp*cp*tp");
    Model model(mesh, {.zero = {.axis = axis, .small = 0}});
    const Session session = TrainMatrices(model, {.mesh = "", .batch = "dp"});
    const int64_t parts = mesh.SizeAlong(mesh.FindAxes(axis));
    EXPECT_NEAR(static_cast<double>(session.Summaries()[0].persistent_bytes),
                3. * kLayers * kWidth * kWidth * 4 / parts, 256)
        << axis;
  }
}

std::string SbpOfWeight(const Session& session, const std::string& name) {
  const Graph& graph = session.impl()->compiled.graph;
  for (int n = 0; n < graph.num_nodes(); ++n)
    if (graph.alive(n) && graph.node(n).name == name)
      return Layout{WholeMesh(graph.mesh()), graph.value(graph.node(n).out[0]).sbp}.str(graph.mesh(), 1);
  return "none";
}

TEST(Groups, StandWhereverAnAxisDoes) {
  ModelOptions options;
  // A pattern's word for one axis of a group leaves the group's other axes as they were.
  options.weights = {{"*/b", {.sbp = {{"tp", B()}}}}};
  Model model(Mesh::Parse("cpu:dp=2,tp=4;both=dp*tp"), options);
  Scope s = model.scope() / "s";
  Tensor x = model.Input("x", {16, 8}, DType::kFloat32, "both:S0");
  Tensor a = s.Weight("a", {8, 8}, Normal(.1), WeightOptions{.stored = "both:S1"});
  Tensor b = s.Weight("b", {8, 8}, Normal(.1), WeightOptions{.stored = "both:S0"});
  TrainOptions train;
  train.parallel.batch = "both";
  Session session = Train(mean(matmul(matmul(x, a), b)), Sgd{.lr = .1}, train);
  EXPECT_EQ(SbpOfWeight(session, "s/a"), "{dp:S1,tp:S1}");
  EXPECT_EQ(SbpOfWeight(session, "s/b"), "{dp:S0,tp:B}");
  const Graph& graph = session.impl()->compiled.graph;
  int products = 0;
  for (int n = 0; n < graph.num_nodes(); ++n) {
    if (!graph.alive(n) || graph.node(n).op != "matmul" || graph.node(n).phase != Phase::kForward) continue;
    ++products;
    const NdSbp& sbp = graph.value(graph.node(n).out[0]).sbp;
    EXPECT_TRUE(sbp[1] == S(0) && sbp[2] == S(0)) << graph.Describe(n);
  }
  EXPECT_EQ(products, 2);
}

// Inputs that both cut the batch along two axes give it the role of the batch along both.
TEST(Groups, TheBatchIsFoundAlongSeveralAxes) {
  const auto products = [](int64_t batch) {
    Model model(Mesh::Parse("cpu:r=2,dp=2"));
    Tensor x = model.Input("x", {batch, 4}, DType::kFloat32, "r*dp:S0");
    Tensor w = model.scope().Weight("w", {4, 4096}, Normal(.1));  // cost alone would cut the weight
    Session session = Train(mean(square(matmul(x, w))), Sgd{.lr = .1});
    const Graph& graph = session.impl()->compiled.graph;
    for (int n = 0; n < graph.num_nodes(); ++n)
      if (graph.alive(n) && graph.node(n).op == "matmul" && graph.node(n).phase == Phase::kForward)
        return graph.value(graph.node(n).out[0]).sbp;
    return NdSbp();
  };
  const NdSbp found = products(8);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_TRUE(found[1] == S(0) && found[2] == S(0));
}

TEST(Groups, ContradictionsNameBothLines) {
  Model model(Mesh::Parse("cpu:dp=2,tp=2;all=dp*tp"));
  model.scope().Weight("w", {8, 8}, Normal(.1), {{"all", S(0)}});
  const std::string error = ErrorOf([&] {
    model.scope().Weight("w", {8, 8}, Normal(.1), {{"dp", S(0)}, {"tp", S(1)}});
  });
  EXPECT_NE(error.find("it is annotated tp:S1 but"), std::string::npos) << error;
  const size_t first = error.find("nested_cuts_test.cc:");
  EXPECT_NE(first, std::string::npos) << error;
  EXPECT_NE(error.find("nested_cuts_test.cc:", first + 1), std::string::npos) << error;
}

TEST(Groups, RefuseWhatCannotBe) {
  const std::string mesh = "cpu:dp=2,tp=2,pp=2;all=dp*tp";
  EXPECT_EQ(ErrorOf([&] { Model(Mesh::Parse(mesh), {.zero = {.axis = "most"}}); }),
            Cat("ModelOptions::zero: mesh ", mesh,
                " has no axis most, its axes are dp, tp, pp; its groups are all"));
  Model model(Mesh::Parse(mesh));
  const std::string cut = ErrorOf([&] {
    model.scope().Stage("pp", 1).Weight("w", {8, 8}, Normal(.1), {{"all*pp", S(0)}});
  });
  EXPECT_NE(cut.find("mesh axis pp is the pipeline axis here"), std::string::npos) << cut;
  const std::string stage = ErrorOf([&] { model.scope().Stage("all", 1); });
  const std::string several = "stands for several axes, dp*tp, where one is needed";
  EXPECT_NE(stage.find(several), std::string::npos) << stage;
  EXPECT_NE(ErrorOf([&] { model.scope().Everywhere("all"); }).find(several), std::string::npos);
  Tensor rows = model.Input("rows", {8, 8}, DType::kFloat32);
  const auto block = [](Scope, Tensor y, int64_t) { return y; };
  for (const char* pipeline : {"all", "dp*tp"}) {
    const std::string stages =
        ErrorOf([&] { nn::layers(model.scope(), rows, 4, block, {.pipeline = pipeline}); });
    EXPECT_NE(stages.find("nested_cuts_test.cc:"), std::string::npos) << stages;
    EXPECT_NE(stages.find(several), std::string::npos) << stages;
  }
  Tensor x = model.Input("x", {8, 8}, DType::kFloat32, "all:S0");
  TrainOptions options;
  options.parallel = {.batch = "all", .tensor = "tp", .context = ""};
  Tensor loss = mean(matmul(x, model.scope().Weight("v", {8, 8}, Normal(.1))));
  TrainOptions narrow;
  narrow.reduce_dtype = DType::kBFloat16;
  narrow.reduce_axis = "most";
  const std::string where = ErrorOf([&] { Train(mean(x), Sgd{.lr = .1}, narrow); });
  EXPECT_NE(where.find("reduce_axis: mesh " + mesh + " has no axis most"), std::string::npos) << where;
  const std::string roles = ErrorOf([&] { Train(loss, Sgd{.lr = .1}, options); });
  EXPECT_NE(roles.find("parallel.tensor is mesh axis tp, which parallel.batch is too"), std::string::npos)
      << roles;
}

// Of hosts of four devices: more sets of axes communicate than there are links.
TEST(NestedCuts, LinksAreOfOneLevelOfTheNetwork) {
  const std::vector<std::string> sets = {"h", "g", "h*g", "a", "b", "a*b", "g*a", "h*g*a*b"};
  for (size_t number : {sets.size(), size_t{4}}) {
    Model model(Mesh::Parse("cpu:h=2,g=2,a=2,b=2"), {.topology = Hosts(4)});
    Tensor x = model.Input("x", {64, 64}, DType::kFloat32);
    for (size_t i = 0; i < number; ++i)
      x = relu(annotate(relu(annotate(x, {{sets[i], S(0)}})), {{"h*g*a*b", B()}}));
    const Session session = Evaluate({{"x", x}});
    const Compiled& compiled = session.impl()->compiled;
    std::map<int, std::set<bool>> across;  // of each stream, whether sets go between hosts
    std::set<MeshAxes> all;
    for (const Segment& segment : compiled.logical.segments) {
      if (!compiled.logical.On(segment, StreamKind::kLink)) continue;
      MeshAxes axes;
      for (int64_t a : compiled.graph.node(segment.nodes[0]).attrs.Ints("axes"))
        axes.push_back(static_cast<int>(a));
      all.insert(axes);
      across[segment.stream].insert(HasAxis(axes, 0) || HasAxis(axes, 1));
    }
    EXPECT_EQ(across.size(), 4u);
    EXPECT_EQ(all.size() > 4, number > 4);
    if (number == 4) continue;  // each has a stream of its own
    for (const auto& [stream, levels] : across) EXPECT_EQ(levels.size(), 1u) << stream;
  }
}

// Weights and optimizer state go from one nesting to another, and training goes on as it would have.
TEST(NestedCuts, CheckpointsLoadOnAnyOther) {
  const Cutting runs[] = {
      {"cpu:replica=2,dp=2,tp=2", "replica*dp", {.axis = "replica*dp*tp", .stage = 3, .small = 0}},
      {"cpu:dp=4,replica=2,tp=1", "dp*replica", {.axis = "dp", .stage = 2, .small = 0}, 2},
      {"cpu:tp=3,replica=1,dp=2", "dp", {.axis = "tp*dp", .stage = 1, .small = 0}},
      {"cpu:replica=1,dp=1,tp=1", "dp"}};
  std::string folder;
  const auto steps = [&](const Cutting& run, int from, int to, bool saves) {
    Model model(Mesh::Parse(run.mesh), {.zero = run.zero});
    Session session = TrainMatrices(model, run);
    if (from > 0) (void)Load(model, folder);
    std::vector<float> losses;
    for (int step = from; step < to; ++step)
      losses.push_back(session.Run({{"x", Floats(step, {96, kWidth})}}).Scalar("loss"));
    if (saves) Save(model, folder).Wait();
    return losses;
  };
  const std::vector<float> wanted = steps(runs[3], 0, 6, false);
  for (const Cutting& before : runs) {
    folder = Cat(::testing::TempDir(), "/nested_cuts_test.", &before - runs);
    std::filesystem::remove_all(folder);
    const std::vector<float> first = steps(before, 0, 3, true);
    for (const Cutting& after : runs) {
      std::vector<float> losses = first;
      for (float loss : steps(after, 3, 6, false)) losses.push_back(loss);
      for (size_t i = 0; i < wanted.size(); ++i)
        EXPECT_NEAR(losses[i], wanted[i], 1e-5 * wanted[i])
            << before.mesh << " to " << after.mesh << " step " << i;
    }
  }
}

}  // namespace
}  // namespace oneflow_like
