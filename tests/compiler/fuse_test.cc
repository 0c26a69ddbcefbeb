// Fused chains stay within what the backends can run in one pass, however many operands the user's chain has:
// beyond it the CPU falls back to the reference kernel and a launch on a GPU is refused.
#include <gtest/gtest.h>

#include "core/plan/plan_values.h"
#include "oneflow_like/session/session_impl.h"
#include "ops/cpu/block_program.h"
#include "ops/cuda/generate.h"
#include "ops/fused.h"
#include "tests/oneflow_like/session_fixture.h"

namespace oneflow_like {
namespace {

// Sums and products of many tensors: two at a time or up to ten, from the first on or anywhere.
Tensor JoinAll(const std::vector<Tensor>& x, uint64_t seed) {
  std::vector<Tensor> left = x;
  uint64_t count = 0;
  auto draw = [&](size_t limit) { return static_cast<size_t>(RandomBits(seed, 61, count++) % limit); };
  const bool many = seed % 2 == 0, in_turn = seed % 4 < 2;
  while (left.size() > 1) {
    size_t terms = many ? std::min<size_t>(left.size(), 2 + draw(9)) : 2;
    size_t at = in_turn ? 0 : draw(left.size() - terms + 1);
    std::vector<Tensor> some(left.begin() + at, left.begin() + at + terms);
    Tensor joined = terms > 2 ? add_n(some) : draw(4) ? some[0] + some[1] : tanh(some[0] * some[1]);
    left.erase(left.begin() + at, left.begin() + at + terms);
    left.insert(left.begin() + at, joined);
  }
  return left[0];
}

// Elementwise operators around others that are none, each value read by several: whatever is fused, nothing
// waits for itself, and the numbers are those computed here.
TEST(Fusing, RandomGraphsComeOutRight) {
  using Numbers = std::vector<double>;  // of shape [2,3]
  for (uint64_t seed = 0; seed < 300; ++seed) {
    uint64_t count = 0;
    auto draw = [&](size_t limit) { return static_cast<size_t>(RandomBits(seed, 62, count++) % limit); };
    Model model(FullMesh("cpu:dp=1"));
    const HostTensor feed = Floats(seed, {2, 3});
    std::vector<Tensor> x = {model.Input("x", {2, 3}, DType::kFloat32)};
    std::vector<Numbers> wanted = {Numbers(feed.as<float>(), feed.as<float>() + 6)};
    std::map<std::string, Tensor> outputs;
    std::map<std::string, Numbers> all;
    while (x.size() < 14) {
      const size_t a = draw(x.size()), b = draw(x.size());
      Numbers w(6);
      switch (draw(4)) {
        case 0:
          x.push_back(tanh(x[a]));
          for (int i = 0; i < 6; ++i) w[i] = std::tanh(wanted[a][i]);
          break;
        case 1:
          x.push_back(x[a] + x[b]);
          for (int i = 0; i < 6; ++i) w[i] = wanted[a][i] + wanted[b][i];
          break;
        case 2:
          x.push_back(tanh(x[a] * x[b]));
          for (int i = 0; i < 6; ++i) w[i] = std::tanh(wanted[a][i] * wanted[b][i]);
          break;
        default:
          x.push_back(broadcast_to(mean(x[a], {0}), {2, 3}));
          for (int i = 0; i < 6; ++i) w[i] = (wanted[a][i % 3] + wanted[a][3 + i % 3]) / 2;
      }
      wanted.push_back(w);
      if (draw(3) == 0 || x.size() == 14) {
        const std::string name = Cat("y", x.size());
        outputs[name] = x.back();
        all[name] = w;
      }
    }
    Session session = Evaluate(outputs);
    StepResult r = session.Run({{"x", feed}});
    for (const auto& [name, numbers] : all)
      for (int i = 0; i < 6; ++i)
        ASSERT_NEAR(r.Get(name).as<float>()[i], numbers[i], 1e-4 * (1 + std::abs(numbers[i])))
            << "seed " << seed << " " << name;
  }
}

// A gradient of the user's takes gelu of a product that the forward pass has made: gelu is not made there as
// well, and kept.
TEST(Fusing, TakesNothingFromTheBackwardPassIntoTheForwardPass) {
  OpDef def;
  def.name = "soft";
  def.axes = "x[..] -> y[..]";
  def.grad = [](const GradCall& call) { return std::vector<Tensor>{call.dout[0] * gelu(call.in[0])}; };
  ModelOptions options;
  options.operators = {def};
  options.operators[0].reference = [](const KernelContext&) { return Status(); };
  Model model(Mesh("cuda", {{"dp", 1}}), options);
  Tensor x = model.Input("x", {4, 8}, DType::kFloat32),
         w = model.scope().Weight("w", {8, 16}, KaimingNormal()),
         b = model.scope().Weight("b", {16}, Zeros());
  Session train = Train(mean(Apply(x.graph(), "soft", {matmul(x, w) + b})[0]), Sgd{});
  const Graph& graph = train.impl()->compiled.graph;
  int found = 0;
  for (int n : graph.Order()) {
    const Node& node = graph.node(n);
    if (Cat(node.op, " ", node.attrs.str()).find("gelu") == std::string::npos) continue;
    EXPECT_EQ(node.phase, Phase::kBackward) << node.op << " " << node.attrs.str();
    ++found;
  }
  EXPECT_EQ(found, 1);
}

TEST(Fusing, LeavesChainsThatEveryBackendCanRun) {
  for (const char* kind : {"cpu", "cuda"})
    for (int operands : {2, 20, 59, 60, 61, 62, 64, 70, 130})
      for (uint64_t seed = 0; seed < 8; ++seed) {
        std::string where = Cat(kind, " ", operands, " operands, seed ", seed);
        Model model(Mesh(kind, {{"dp", 1}}));
        std::vector<Tensor> x;
        for (int i = 0; i < operands; ++i) x.push_back(model.Input(Cat("x", i), {2, 3}, DType::kFloat32));
        Session session = Evaluate({{"y", JoinAll(x, seed)}});
        plan::Plan plan = PlanOf(session.impl()->compiled, 0).plan;
        int fused = 0;
        for (const plan::Actor& actor : plan.actor())
          for (const plan::Kernel& kernel : actor.kernel()) {
            if (kernel.name() != "fused") continue;
            ++fused;
            KernelSpec spec = ToSpec(kernel);
            EXPECT_NO_THROW(cuda::GenerateChain(cuda::ChainOf(spec), spec)) << where << ": " << kernel.node();
            std::vector<FusedStep> steps =
                ParseFused(spec.attrs.Str("program"), static_cast<int>(spec.in.size()));
            std::vector<DType> inputs(spec.in.size(), DType::kFloat32);
            EXPECT_NE(cpu::BlockProgram::Make(steps, inputs, spec.attrs.Ints("outputs")), nullptr) << where;
          }
        if (operands > 2) {
          EXPECT_GT(fused, 0) << where;
        }
      }
}

}  // namespace
}  // namespace oneflow_like
