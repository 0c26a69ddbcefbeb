// A weight annotated over a mesh axis is computed with in pieces: no rank ever has more of it than its own,
// whatever its size, its type, its stage, and the number of micro-batches. Random models in the manner of a
// Llama, whose small sizes make gathering the cheapest way.
#include <gtest/gtest.h>

#include <random>

#include "compiler/explain.h"
#include "oneflow_like/session/session_impl.h"
#include "tests/oneflow_like/session_fixture.h"

namespace oneflow_like {
namespace {

struct Llama {
  int tp, dp, pp, micro_batches;
  int64_t heads, depth, inner, vocabulary, batch, length;
  bool tied;  // the head is the embedding's table
  DType dtype;

  std::string str() const {
    return Cat("dp=", dp, ",tp=", tp, ",pp=", pp, " m=", micro_batches, " heads ", heads, " of ", depth,
               " inner ", inner, " vocabulary ", vocabulary, " tokens ", batch, "x", length,
               tied ? " tied " : " ", Name(dtype));
  }
};

Llama Draw(unsigned seed) {
  std::mt19937 random(seed);
  auto one_of = [&](std::initializer_list<int> all) { return *(all.begin() + random() % all.size()); };
  Llama l;
  l.tp = one_of({2, 3, 4});
  l.dp = one_of({1, 1, 2});
  l.pp = one_of({1, 1, 2});
  l.micro_batches = one_of({1, 2, 4});
  l.heads = one_of({2, 4, 6});
  l.depth = one_of({2, 8});
  l.inner = one_of({8, 24, 30});
  l.vocabulary = one_of({16, 50, 1000});
  l.batch = one_of({4, 8});
  l.length = one_of({4, 32, 64});
  l.tied = one_of({0, 1});
  l.dtype = one_of({0, 1}) ? DType::kBFloat16 : DType::kFloat32;
  return l;
}

// x / sqrt(mean x^2) * gamma; x is never 0 here.
Tensor Norm(Scope s, Tensor x) {
  Tensor scale = rsqrt(mean(square(x), {-1}, true));
  return x * scale * s.Weight("gamma", {x.shape().back()}, Ones());
}

Tensor Loss(Model& model, const Llama& l) {
  const int64_t width = l.heads * l.depth;
  Tensor tokens = model.Input("tokens", {l.batch, l.length}, DType::kInt32, {{"dp", S(0)}});
  Tensor targets = model.Input("targets", {l.batch, l.length}, DType::kInt32, {{"dp", S(0)}});
  Scope first = model.scope().Stage("pp", 0), last = model.scope().Stage("pp", l.pp - 1);
  Tensor table = first.Weight("embedding", {l.vocabulary, width}, Normal(0.1), {{"tp", S(0)}});
  Tensor x = embedding(table, tokens);
  // Heads as one axis of the weight: merged in its view.
  auto project = [&](const std::string& name) {
    Tensor w = first.Weight(name, {width, l.heads * l.depth}, Normal(0.1), {{"tp", S(1)}});
    return einsum("bsw,whd->bshd", Norm(first / name, x), reshape(w, {width, l.heads, l.depth}));
  };
  Tensor mixed = attention(project("q"), project("k"), project("v"), {.causal = true});
  Tensor out = first.Weight("out", {l.heads, l.depth, width}, Normal(0.1), {{"tp", S(0)}});
  x = x + einsum("bshd,hdw->bsw", mixed, out);
  if (l.pp > 1) x = to_stage(x, "pp", l.pp - 1);
  Tensor normed = Norm(last / "mlp", x);
  Tensor gate = matmul(normed, last.Weight("gate", {width, l.inner}, Normal(0.1), {{"tp", S(1)}}));
  // Stored with rows and columns exchanged, as checkpoints have it.
  Tensor up =
      matmul(normed, transpose(last.Weight("up", {l.inner, width}, Normal(0.1), {{"tp", S(0)}}), {1, 0}));
  x = x + matmul(silu(gate) * up, last.Weight("down", {l.inner, width}, Normal(0.1), {{"tp", S(0)}}));
  x = Norm(last, x);
  if (!l.tied)
    return mean(cross_entropy(
        matmul(x, last.Weight("head", {width, l.vocabulary}, Normal(0.1), {{"tp", S(1)}})), targets));
  Tensor head = l.pp > 1 ? to_stage(table, "pp", l.pp - 1) : table;
  return mean(cross_entropy(einsum("bsw,vw->bsv", x, head), targets));
}

TEST(WeightsAsCut, NoRankHasMoreOfAWeightThanItsOwn) {
  for (unsigned seed = 1; seed <= 60; ++seed) {
    Llama l = Draw(seed);
    SCOPED_TRACE(Cat("seed ", seed, ": ", l.str()));
    Model model(Mesh("cpu", {{"dp", l.dp}, {"tp", l.tp}, {"pp", l.pp}}));
    TrainOptions options;
    options.micro_batches = l.micro_batches;
    options.dtype = l.dtype;
    Session session = Train(Loss(model, l), AdamW{}, options);
    const Compiled& compiled = session.impl()->compiled;
    for (const BoxingPrice& p : PricesOfBoxing(compiled)) {
      EXPECT_EQ(p.gathered, "") << p.why;
    }
  }
}

// What comes in other grains is sent: the weight is used in the very cut that it has.
TEST(WeightsAsCut, AreNotCutAgainForWhatTheyMeet) {
  Model model(Mesh::Parse("cpu:tp=2"));
  Tensor cube = annotate(model.Input("x", {1 << 16, 3, 4}, DType::kFloat32), {{"tp", S(2)}});
  Tensor rows = reshape(tanh(cube), {1 << 16, 12});  // of 3 grains
  Tensor y = matmul(rows, model.scope().Weight("w", {12, 2}, Normal(.5), {{"tp", S(0)}}));
  const Session session = Evaluate({{"y", y}});
  const Graph& graph = session.impl()->compiled.graph;
  int products = 0;
  for (int n : graph.Order()) {
    const Node& node = graph.node(n);
    if (node.op != "matmul") continue;
    ++products;
    EXPECT_EQ(node.want[1][1].str(), "S0");
    EXPECT_EQ(graph.producer(graph.BehindViews(node.in[1])).kind, NodeKind::kVariable) << graph.Describe(n);
  }
  EXPECT_EQ(products, 1);
}

// The promise is about how a weight is used, not what that computes.
TEST(WeightsAsCut, AnnotatedOrNotTheNumbersAreTheSame) {
  for (unsigned seed = 1; seed <= 6; ++seed) {
    Llama l = Draw(seed);
    l.dtype = DType::kFloat32;
    SCOPED_TRACE(Cat("seed ", seed, ": ", l.str()));
    auto loss = [&](int dp, int tp, int pp) {
      Llama here = l;
      here.dp = dp, here.tp = tp, here.pp = pp;
      Model model(Mesh("cpu", {{"dp", dp}, {"tp", tp}, {"pp", pp}}));
      TrainOptions options;
      options.micro_batches = l.micro_batches;
      Session session = Train(Loss(model, here), Sgd{.lr = 0.1}, options);
      Feeds feeds = {{"tokens", Ids(seed, {l.batch, l.length}, static_cast<int>(l.vocabulary))},
                     {"targets", Ids(seed + 100, {l.batch, l.length}, static_cast<int>(l.vocabulary))}};
      session.Run(feeds).Wait();
      return session.Run(feeds).Scalar("loss");
    };
    EXPECT_NEAR(loss(l.dp, l.tp, l.pp), loss(1, 1, 1), 2e-5);
  }
}

}  // namespace
}  // namespace oneflow_like
