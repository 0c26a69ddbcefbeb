// Roles of mesh axes, and gradients that are held: activations keep their form however few the tokens are,
// and what is sent is what the formulas say.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/error_of.h"
#include "tests/oneflow_like/session_fixture.h"
#include "tests/oneflow_like/small_gpt.h"

namespace oneflow_like {
namespace {

TEST(Roles, FollowOneDevice) {
  const std::vector<float> one = LossesOf({.context = 13}, 3);
  const SmallGpt settings[] = {
      {.mesh = "cpu:dp=2,tp=2,pp=2",
       .micro_batches = 4,
       .zero_axis = "dp",
       .zero_stage = 3,
       .recompute = Recompute::kFull,
       .parallel = {.batch = "dp", .tensor = "tp"}},
      {.mesh = "cpu:dp=3", .micro_batches = 3, .zero_axis = "dp", .parallel = {.batch = "dp"}},
      {.mesh = "cpu:tp=4", .sequence = "tp", .parallel = {.tensor = "tp"}},
      {.mesh = "cpu:dp=2,tp=2,cp=2",
       .micro_batches = 2,
       .zero_axis = "cp",
       .zero_stage = 2,
       .sequence = "cp",
       .parallel = {.batch = "dp", .tensor = "tp", .context = "cp"}},
  };
  for (SmallGpt given : settings) {
    given.context = 13;
    const std::vector<float> losses = LossesOf(given, 3);
    for (size_t step = 0; step < one.size(); ++step)
      EXPECT_NEAR(losses[step], one[step], 1e-5 * one[step]) << given.str() << " step " << step;
  }
}

// For so few tokens cost alone would rather send activations than weights. The loss and the gradients' norm
// are small.
TEST(Roles, ZeroSendsWhatTheFormulasSayForFewTokens) {
  for (int n : {2, 4})
    for (int m : {1, 2, 4}) {
      SmallGpt given{.mesh = Cat("cpu:dp=", n), .micro_batches = m, .batch = n * m, .context = 2};
      given.parallel.batch = "dp";
      EXPECT_NEAR(SharesSent(given, n), 2, .02) << given.str();
      given.zero_axis = "dp";
      EXPECT_NEAR(SharesSent(given, n), 2, .02) << given.str();
      given.zero_stage = 2;
      EXPECT_LE(SharesSent(given, n), m + 1.02) << given.str();
      given.zero_stage = 3;
      EXPECT_LE(SharesSent(given, n), 3 * m + .02) << given.str();
    }
}

// The axis that cuts the batch of inputs is the batch's by default: an empty name leaves it to cost.
// Recompute then keeps what it should for few tokens, too.
TEST(Roles, TheAxisOfInputsIsTheBatchs) {
  for (int m : {1, 2}) {
    SmallGpt given{.mesh = "cpu:dp=2", .micro_batches = m, .batch = 2 * m, .context = 2};
    const double by_default = SharesSent(given, 2);
    EXPECT_NEAR(by_default, 2, .02) << given.str();
    given.parallel.batch = "dp";
    EXPECT_EQ(SharesSent(given, 2), by_default) << given.str();
    given.parallel.batch = "";
    EXPECT_LT(SharesSent(given, 2), 1) << given.str();  // sends activations in place of gradients
  }
  // Several axes that cut a batch are taken together. Of two that cut different batches, and of one that has
  // another role, none is.
  auto cut = [](const Annotation& of_x, const Annotation& of_y, const Parallel& roles) {
    Model model(Mesh::Parse("cpu:dp=2,ep=2"));
    Tensor x = model.Input("x", {8, 4}, DType::kFloat32, of_x),
           y = model.Input("y", {8, 4}, DType::kFloat32, of_y);
    TrainOptions options;
    options.parallel = roles;
    Tensor h = matmul(x + y, model.scope().Weight("w", {4, 4}, Normal(.1)));
    return Train(mean(h), Sgd{.lr = .1}, options).impl()->compiled.options.asked.roles.batch;
  };
  EXPECT_EQ(cut({{"dp", S(0)}}, {}, {}), MeshAxes{0});
  EXPECT_EQ(cut({}, {{"ep", S(0)}}, {}), MeshAxes{1});
  EXPECT_EQ(cut({{"dp", S(0)}}, {{"ep", S(0)}}, {}), MeshAxes());
  EXPECT_EQ(cut({{"dp*ep", S(0)}}, {{"dp*ep", S(0)}}, {}), (MeshAxes{0, 1}));
  EXPECT_EQ(cut({{"dp*ep", S(0)}}, {{"ep", S(0)}}, {}), MeshAxes());
  EXPECT_EQ(cut({{"dp*ep", S(0)}}, {}, {.tensor = "dp"}), MeshAxes{1});
  EXPECT_EQ(cut({}, {}, {.batch = "dp*ep"}), (MeshAxes{0, 1}));
  EXPECT_EQ(cut({{"dp", S(1)}}, {}, {}), MeshAxes());
  EXPECT_EQ(cut({{"dp", S(0)}}, {}, {.context = "dp"}), MeshAxes());
  EXPECT_EQ(cut({{"dp", S(0)}}, {{"ep", S(0)}}, {.tensor = "dp"}), MeshAxes{1});
  EXPECT_EQ(cut({{"dp", S(0)}}, {}, {.batch = ""}), MeshAxes());
  EXPECT_EQ(cut({{"dp", S(0)}}, {}, {.batch = "ep"}), MeshAxes{1});
}

// For each layer and micro-batch 8 (t-1)/t elements for each of [batch, context, width]; with full recompute
// 10, since the sum behind attention is made again; as many with sequence parallelism as without recompute.
TEST(Roles, TensorParallelismSendsWhatTheFormulasSay) {
  for (int t : {2, 4})
    for (int micro_batches : {1, 2})
      for (int64_t context : {2, 64})
        for (auto [recompute, bound] : {std::pair(Recompute::kNone, 8), {Recompute::kFull, 10}}) {
          SmallGpt few{
              .mesh = Cat("cpu:tp=", t), .micro_batches = micro_batches, .recompute = recompute, .layers = 2};
          few.context = context;
          few.parallel.tensor = "tp";
          SmallGpt many = few;
          many.layers = 6;
          const double values = static_cast<double>(few.batch * few.context * few.width) * (t - 1) / t;
          const double each_layer = (BytesSent(many) - BytesSent(few)) / 4 / 4 / values;  // fp32, layers
          std::printf("%s context %ld: %.2f for each value of a layer\n", few.str().c_str(), long(context),
                      each_layer);
          EXPECT_LE(each_layer, bound + .02 + (context == 2 ? .5 : 0)) << few.str() << " context " << context;
        }
}

// The results of layers in the forward pass, along an axis.
std::vector<Sbp> ResultsOfLayers(const SmallGpt& given, const std::string& axis) {
  GptProgram program(given);
  Session session = program.MakeTrain();
  const Graph& graph = session.impl()->compiled.graph;
  const int entry = 1 + graph.mesh().AxisOrFail(axis, "test");
  std::vector<Sbp> found;
  const std::vector<std::vector<int>> readers = graph.Readers();
  for (int n : graph.Order()) {
    const Node& node = graph.node(n);
    const std::string region = graph.regions().Of(node.name);
    if (node.phase != Phase::kForward || region.empty() || node.kind == NodeKind::kPrimitive) continue;
    for (int r : readers[node.out[0]])
      if (graph.node(r).phase == Phase::kForward && graph.regions().Of(graph.node(r).name) != region) {
        found.push_back(graph.value(node.out[0]).sbp[entry]);
        break;
      }
  }
  return found;
}

TEST(Roles, WhatLayersGiveKeepsItsForm) {
  for (int64_t context : {4, 64}) {
    SmallGpt given{.mesh = "cpu:dp=2", .batch = 4, .context = context, .parallel = {.batch = "dp"}};
    auto all = [&](const std::string& axis, const Sbp& form) {
      const std::vector<Sbp> found = ResultsOfLayers(given, axis);
      EXPECT_GE(found.size(), static_cast<size_t>(given.layers)) << given.str();
      for (const Sbp& sbp : found) EXPECT_EQ(sbp, form) << given.str() << " along " << axis;
    };
    all("dp", S(0));
    given.mesh = "cpu:tp=2";
    given.parallel = {.tensor = "tp"};
    all("tp", B());
    given.sequence = "tp";
    all("tp", S(1));
    given.mesh = "cpu:cp=2";
    given.sequence = "cp";
    given.parallel = {.context = "cp"};
    all("cp", S(1));
  }
}

TEST(Roles, WrongOnesAreRefused) {
  auto error = [](const Parallel& parallel, bool staged) {
    return ErrorOf([&] {
      Model model(FullMesh("cpu:dp=2,tp=2,pp=2"));
      Tensor x = model.Input("x", {8, 4}, DType::kFloat32);
      Scope s = staged ? model.scope().Stage("pp", 1) : model.scope();
      Tensor y = matmul(x, s.Weight("w", {4, 4}, Normal(.1)));
      TrainOptions options;
      options.parallel = parallel;
      Train(mean(y), Sgd{.lr = .1}, options);
    });
  };
  EXPECT_NE(error({.batch = "ep"}, false).find("parallel.batch: "), std::string::npos);
  EXPECT_NE(error({.batch = "dp", .tensor = "dp"}, false)
                .find("parallel.tensor is mesh axis dp, which parallel.batch is too"),
            std::string::npos);
  EXPECT_NE(error({.context = "tp"}, false).find("no input is cut along it"), std::string::npos);
  EXPECT_NE(error({.batch = "pp"}, true).find("along which "), std::string::npos);
  EXPECT_EQ(error({.batch = "dp", .tensor = "tp"}, false), "");
}

// --- Gradients that are held ---

TEST(HeldGradients, ComeInTheFormThatWasSaid) {
  const HostTensor x = Floats(1, {8, 6});
  auto run = [&](const char* mesh, const Annotation& gradient, Sbp* form) {
    Model model(FullMesh(mesh));
    Tensor in = model.Input("x", {8, 6}, DType::kFloat32);
    Tensor h = annotate(matmul(in, model.scope().Weight("w", {6, 4}, Normal(.4))), {{"tp", B()}},
                        {.gradient = gradient});
    Session train = Train(mean(square(gelu(h))), Sgd{.lr = .5});
    const Graph& graph = train.impl()->compiled.graph;
    for (int n : graph.Order())
      if (graph.node(n).op == "identity" && graph.node(n).phase == Phase::kBackward)
        *form = graph.value(graph.node(n).out[0]).sbp[1 + graph.mesh().FindAxis("tp")];
    std::vector<float> losses;
    for (int step = 0; step < 3; ++step) losses.push_back(train.Run({{"x", x}}).Scalar("loss"));
    return losses;
  };
  Sbp form;
  const std::vector<float> one = run("cpu:tp=1", {}, &form);
  for (const Sbp& wanted : {B(), S(0), S(1), P()}) {
    const std::vector<float> losses = run("cpu:tp=2", {{"tp", wanted}}, &form);
    EXPECT_EQ(form, wanted);
    for (size_t step = 0; step < one.size(); ++step)
      EXPECT_NEAR(losses[step], one[step], 1e-5 * one[step]) << wanted.str() << " step " << step;
  }
}

TEST(HeldGradients, WrongOnesAreRefused) {
  auto error = [](DType dtype, const Annotation& gradient) {
    return ErrorOf([&] {
      Model model(FullMesh("cpu:dp=2,tp=2"));
      annotate(model.Input("x", {8, 4}, dtype), {{"tp", B()}}, {.gradient = gradient});
    });
  };
  const std::string cut = error(DType::kFloat32, {{"tp", S(2)}});
  EXPECT_NE(cut.find("roles_test.cc"), std::string::npos) << cut;
  EXPECT_NE(cut.find("gradient: tp:S2 cuts axis 2 but the shape is [8,4]"), std::string::npos) << cut;
  const std::string twice = error(DType::kFloat32, {{"tp", S(1)}, {"dp*tp", S(1)}});
  EXPECT_NE(twice.find("gradient: mesh axis tp is annotated twice"), std::string::npos) << twice;
  const std::string ids = error(DType::kInt32, {{"tp", S(1)}});
  EXPECT_NE(ids.find("`gradient` is given, but a tensor of i32 has none"), std::string::npos) << ids;
}

}  // namespace
}  // namespace oneflow_like
