// Mixed precision: what the pass leaves is well typed and compiles on every kind of mesh, the narrow kernels
// agree with fp32 ones, and training in bf16 and fp16 follows fp32.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "compiler/graph/text.h"
#include "core/float16.h"
#include "core/random.h"
#include "ops/cpu/manifest.h"
#include "ops/op.h"
#include "tests/oneflow_like/small_gpt.h"
#include "tests/ops/with_scratch.h"

namespace oneflow_like {
namespace {

// --- The pass ---

class MixedPlan : public testing::TestWithParam<const char*> {};

TEST_P(MixedPlan, IsWellTypedAndKeepsMastersWide) {
  SmallGpt given{.mesh = GetParam(), .micro_batches = 2};
  given.dtype = DType::kBFloat16;
  GptProgram program(given);
  Session session = program.MakeTrain();  // every pass verifies what it leaves
  const Graph& graph = session.impl()->compiled.graph;
  int narrow = 0;
  for (int n : graph.Order()) {
    const Node& node = graph.node(n);
    const OpDef* def = graph.catalog().Find(node.op);
    for (int v : node.out) {
      narrow += graph.value(v).dtype == DType::kBFloat16;
      if (node.op == "variable") {
        EXPECT_EQ(graph.value(v).dtype, DType::kFloat32) << node.name;
      }
    }
    if (!def) continue;
    const OpCall call = graph.CallOf(node);
    for (int v : node.in) {
      if (node.op == "adamw") {
        EXPECT_EQ(graph.value(v).dtype, DType::kFloat32) << graph.Describe(n);
      }
    }
    if (node.op == "adamw") {  // summed as the product gave it: never rounded in between
      const Node* from = &graph.producer(node.in[1]);
      while (from->kind == NodeKind::kPrimitive) from = &graph.producer(from->in[0]);
      EXPECT_NE(from->op, "cast") << "the gradient of " << graph.value(node.in[0]).name;
    }
    std::vector<DType> types = Infer(*def, call).dtypes;  // throws where operands do not fit each other
    for (size_t o = 0; o < types.size(); ++o)
      EXPECT_EQ(types[o], graph.value(node.out[o]).dtype) << graph.Describe(n);
    if (node.op == "matmul" || node.op == "attention") {
      EXPECT_EQ(call.dtypes[0], DType::kBFloat16) << call.who;
    }
  }
  EXPECT_GT(narrow, 100);
}

INSTANTIATE_TEST_SUITE_P(Meshes, MixedPlan,
                         testing::Values("cpu:dp=1", "cpu:dp=2", "cpu:tp=2", "cpu:pp=2",
                                         "cpu:dp=2,tp=2,pp=2"));

// With ModelOptions::tf32 every product and convolution that reads fp32 says so to its kernel, gradients
// included; no other does, and none on a processor.
TEST(MixedPlans, ProductsInFp32MayRoundWhereAsked) {
  for (const auto& [tf32, kind] : {std::pair{false, "cuda"}, {true, "cuda"}, {true, "cpu"}}) {
    for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      ModelOptions asking;
      asking.tf32 = tf32;
      Model model(Mesh(kind, {{"dp", 1}}), asking);
      Tensor x = model.Input("x", {4, 8, 8, 3}, DType::kFloat32);
      Tensor hidden = reshape(nn::Conv(model.scope() / "conv", x, 8, 3), {4, -1});
      Tensor y = gelu(nn::Linear(model.scope() / "linear", hidden, 16));
      TrainOptions options;
      options.dtype = dtype;
      Session session = Train(mean(y), Sgd{.lr = .1}, options);
      const Graph& graph = session.impl()->compiled.graph;
      const std::set<std::string> products = {"conv2d", "conv2d_grad_filter", "einsum", "matmul",
                                              "linear", "linear_grad_weight"};
      int seen = 0;
      for (int n : graph.Order()) {
        const Node& node = graph.node(n);
        const bool product = products.contains(node.op);
        const bool rounds = tf32 && kind == std::string("cuda") && dtype == DType::kFloat32;
        EXPECT_EQ(node.attrs.Int("tf32", 0) != 0, product && rounds)
            << graph.Describe(n) << " in " << Name(dtype);
        seen += product;
      }
      EXPECT_EQ(seen, 5);  // and the gradient of hidden
    }
  }
}

// Attention, products by expert, tables and convolutions of single channels have no kernel that rounds.
TEST(MixedPlans, OnlyKernelsThatRoundSaySo) {
  ModelOptions asking;
  asking.tf32 = true;
  Model model(Mesh::Parse("cuda:dp=1"), asking);
  const Scope scope = model.scope();
  Tensor table = scope.Weight("table", {32, 16}, Normal(.1));
  Tensor x = embedding(table, model.Input("ids", {2, 8}, DType::kInt32));
  x = nn::Attention(scope / "attention", x, {.heads = 2});
  Tensor experts = scope.Weight("experts", {4, 16, 16}, Normal(.1));
  x = grouped_matmul(reshape(x, {16, 16}), experts, model.Input("counts", {4}, DType::kInt32));
  Tensor filter = scope.Weight("filter", {16, 3, 1}, Normal(.1));
  x = conv1d(reshape(x, {2, 8, 16}), filter, {.padding = {1}, .groups = 16});
  Session session = Train(mean(square(x)), Sgd{.lr = .1});
  const Graph& graph = session.impl()->compiled.graph;
  std::set<std::string> round, others;
  for (int n : graph.Order()) {
    const Node& node = graph.node(n);
    const OpDef* def = graph.catalog().Find(node.op);
    if (def && def->precision == Precision::kNarrow)
      (node.attrs.Has("tf32") ? round : others).insert(node.op);
  }
  EXPECT_FALSE(round.empty());
  for (const std::string& op : round)
    EXPECT_TRUE(op.starts_with("linear") || op == "matmul" || op == "einsum") << op;
  for (const char* op : {"attention", "attention_grad", "grouped_matmul", "grouped_matmul_grad_weight",
                         "embedding", "conv2d", "conv2d_grad_input", "conv2d_grad_filter"})
    EXPECT_TRUE(others.contains(op)) << op;
}

// So does the product of logits in tiles, also where their classes are cut, which expands the operator.
TEST(MixedPlans, TilesOfLogitsMayRoundWhereAsked) {
  for (const char* mesh : {"cuda:tp=1", "cuda:tp=2"}) {
    ModelOptions asking;
    asking.tf32 = true;
    Model model(Mesh::Parse(mesh), asking);
    Tensor x = model.Input("x", {16, 8}, DType::kFloat32), target = model.Input("y", {16}, DType::kInt32);
    Tensor up = model.scope().Weight("up", {8, 8}, Normal(.1));
    Tensor table = model.scope().Weight("table", {32, 8}, Normal(.1), {{"tp", S(0)}});
    Session session = Train(mean_linear_cross_entropy(matmul(x, up), table, target, {}, 8), Sgd{.lr = .1});
    const Graph& graph = session.impl()->compiled.graph;
    int seen = 0;
    for (int n : graph.Order()) {
      const Node& node = graph.node(n);
      const bool tiles = node.op.starts_with("linear_c");
      if (tiles || node.op == "matmul" || node.op == "einsum")
        EXPECT_EQ(node.attrs.Int("tf32", 0), 1) << mesh << " " << graph.Describe(n);
      else
        EXPECT_FALSE(node.attrs.Has("tf32")) << mesh << " " << graph.Describe(n);
      seen += tiles;
    }
    EXPECT_EQ(seen, model.mesh().size()) << "whole: one operator; cut: statistics and gradient";
  }
}

// What stays in fp32 in mixed precision for its accuracy does not round either.
TEST(MixedPlans, WideProductsDoNotRound) {
  ModelOptions asking;
  asking.tf32 = true;
  Model model(Mesh::Parse("cuda:dp=1"), asking);
  Tensor x = model.Input("x", {4, 12}, DType::kFloat32);
  Session session =
      Train(mean(square(rfft(matmul(x, model.scope().Weight("w", {12, 12}, Normal(.1)))))), Sgd{.lr = .1});
  const Graph& graph = session.impl()->compiled.graph;
  int wide = 0, others = 0;
  for (int n : graph.Order()) {
    const Node& node = graph.node(n);
    if (node.op != "matmul" && node.op != "einsum") continue;
    EXPECT_EQ(node.attrs.Has("tf32"), !node.attrs.Has("wide")) << graph.Describe(n);
    (node.attrs.Has("wide") ? wide : others) += 1;
  }
  EXPECT_GE(wide, 2);
  EXPECT_EQ(others, 2);
}

// A product that only a sum or a loss reads is held in 16 bits: those widen what they read themselves.
TEST(MixedPlans, WhatOnlyASumReadsIsNarrow) {
  const Dims shape = {12, 20};
  using Reduction = std::function<Tensor(Tensor product, Tensor labels)>;
  const std::map<std::string, Reduction> reductions = {
      {"sum", [](Tensor y, Tensor) { return sum(y); }},
      {"mean", [](Tensor y, Tensor) { return mean(y); }},
      {"square_sum", [](Tensor y, Tensor) { return Apply(y.graph(), "square_sum", {y})[0]; }},
      {"cross_entropy", [](Tensor y, Tensor labels) { return mean(cross_entropy(y, labels)); }}};
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const auto& [name, reduce] : reductions) {
      Model model(Mesh::Parse("cpu:dp=1"));
      Tensor x = model.Input("x", {shape[0], 8}, DType::kFloat32),
             labels = model.Input("labels", {shape[0]}, DType::kInt32);
      Tensor y = matmul(x, model.scope().Weight("w", {8, shape[1]}, KaimingNormal()));
      SessionOptions options;
      options.dtype = dtype;
      Session session = Evaluate({{"y", reduce(y, labels)}}, options);
      const Graph& graph = session.impl()->compiled.graph;
      int products = 0;
      for (int n : graph.Order()) {
        const Node& node = graph.node(n);
        if (node.op != "matmul" && node.op != "einsum") continue;
        EXPECT_EQ(graph.value(node.out[0]).dtype, dtype) << name << " in " << Name(dtype);
        ++products;
      }
      EXPECT_EQ(products, 1) << name;
    }
  }
}

// --- Kernels ---

struct Operand {
  DType dtype;
  Dims shape;
  std::vector<float> values;     // already rounded to the type
  std::vector<uint16_t> narrow;  // the same, when 16 bits wide

  Operand(DType dtype, const Dims& shape, uint64_t key)
      : dtype(dtype), shape(shape), values(shape.elements()) {
    narrow.resize(values.size());
    for (size_t i = 0; i < values.size(); ++i) Set(i, 2 * ToUniform(RandomBits(key, 0, i)) - 1);
  }
  void Set(size_t i, float value) {
    narrow[i] = dtype == DType::kFloat16 ? ToFloat16(value).bits : ToBFloat16(value).bits;
    values[i] = dtype == DType::kFloat32 ? value : At(i);
  }
  float At(size_t i) const {
    if (dtype == DType::kFloat32) return values[i];
    return dtype == DType::kFloat16 ? ToFloat(Float16{narrow[i]}) : ToFloat(BFloat16{narrow[i]});
  }
  TensorArg Arg(bool wide) {
    bool as_float = wide || dtype == DType::kFloat32;
    void* data = as_float ? static_cast<void*>(values.data()) : static_cast<void*>(narrow.data());
    return {data, as_float ? DType::kFloat32 : dtype, shape, Dims(shape.rank(), 0), shape};
  }
};

// Runs the cpu kernel on operands in `dtype` and on the same numbers in fp32, and compares. `wide` lists
// operands that are fp32 in both runs. Relative to the greatest element of each output: an error that grows
// with the values is legal, one that does not is not.
void Compare(const std::string& op, const Attrs& attrs, const std::vector<Dims>& shapes, DType dtype,
             const std::set<size_t>& wide, double tolerance) {
  KernelRegistry registry;
  AddReferenceKernels(BuiltinCatalog(), &registry);
  AddCpuKernels(&registry);
  SCOPED_TRACE(Cat(op, " ", attrs.str(), " in ", Name(dtype)));
  std::vector<Operand> in;
  for (size_t i = 0; i < shapes.size(); ++i)
    in.emplace_back(wide.count(i) ? DType::kFloat32 : dtype, shapes[i], 77 + i);
  std::vector<std::vector<Operand>> results;
  for (bool as_float : {false, true}) {
    KernelSpec spec;
    spec.name = op;
    spec.attrs = attrs;
    OpCall call{op, op, shapes, {}, &attrs};
    for (Operand& x : in) {
      spec.in.push_back(x.Arg(as_float));
      call.dtypes.push_back(spec.in.back().dtype);
    }
    Inferred inferred = Infer(BuiltinCatalog().Get(op), call);
    results.emplace_back();
    for (size_t o = 0; o < inferred.dtypes.size(); ++o)
      results.back().emplace_back(inferred.dtypes[o], inferred.rule.out[o].shape, 5);
    for (Operand& y : results.back()) spec.out.push_back(y.Arg(false));
    Status status = MakeWithScratch(registry, spec)->Run({spec, spec.in, spec.out});
    ASSERT_TRUE(status.ok()) << status.message();
  }
  for (size_t o = 0; o < results[0].size(); ++o) {
    double greatest = 0, worst = 0;
    for (size_t i = 0; i < results[1][o].values.size(); ++i) {
      greatest = std::max<double>(greatest, std::abs(results[1][o].At(i)));
      worst = std::max<double>(worst, std::abs(results[0][o].At(i) - results[1][o].At(i)));
    }
    EXPECT_GT(greatest, 0) << "output " << o;
    EXPECT_LE(worst, tolerance * greatest) << "output " << o;
  }
}

class NarrowKernels : public testing::TestWithParam<DType> {
 protected:
  // Half a unit in the last place, relative, and a little for sums in another order.
  double rounding() const { return GetParam() == DType::kFloat16 ? 0x1p-11 * 1.1 : 0x1p-8 * 1.1; }
};

TEST_P(NarrowKernels, Products) {
  Attrs f32{{"dtype", std::string("f32")}};
  for (const Dims& mnk : {Dims{64, 48, 80}, Dims{33, 65, 47}, Dims{128, 1, 256}, Dims{3, 5, 2}}) {
    int64_t m = mnk[0], n = mnk[1], k = mnk[2];
    Compare("matmul", {}, {{m, k}, {k, n}}, GetParam(), {}, rounding());
    Compare("matmul", f32, {{m, k}, {k, n}}, GetParam(), {}, 1e-5);
    for (const char* equation : {"mk,nk->mn", "km,kn->mn", "mk,kn->nm", "km,nk->mn"}) {
      std::string text = equation;
      Dims a = text[0] == 'm' ? Dims{m, k} : Dims{k, m}, b = text[3] == 'k' ? Dims{k, n} : Dims{n, k};
      Compare("einsum", {{"equation", text}}, {a, b}, GetParam(), {}, rounding());
      Compare("einsum", {{"equation", text}, {"dtype", std::string("f32")}}, {a, b}, GetParam(), {}, 1e-5);
    }
  }
  Compare("einsum", {{"equation", std::string("bsw,bshd->hdw")}, {"dtype", std::string("f32")}},
          {{2, 24, 32}, {2, 24, 4, 16}}, GetParam(), {}, 1e-5);
  Compare("matmul", {}, {{3, 40, 32}, {3, 32, 36}}, GetParam(), {}, rounding());
}

TEST_P(NarrowKernels, AttentionAndGradient) {
  Dims x{2, 70, 3, 24}, lse{2, 3, 70};
  for (double drop : {0.0, 0.2}) {
    Attrs attrs{{"causal", int64_t{1}}, {"dropout", drop}, {"scale", 0.0}, {"key", int64_t{3}}};
    Compare("attention", attrs, {x, x, x}, GetParam(), {}, rounding());
    Compare("attention_grad", attrs, {x, x, x, x, x, lse}, GetParam(), {5}, rounding());
  }
}

TEST_P(NarrowKernels, Norms) {
  Attrs eps{{"eps", 1e-5}};
  Compare("layer_norm", eps, {{9, 37}, {37}, {37}}, GetParam(), {1, 2}, rounding());
  Compare("layer_norm_grad", {}, {{9, 37}, {9, 37}, {37}, {9}, {9}}, GetParam(), {2, 3, 4}, rounding());
  Compare("rms_norm", eps, {{9, 37}, {37}}, GetParam(), {1}, rounding());
  Compare("rms_norm_grad", {}, {{9, 37}, {9, 37}, {37}, {9}}, GetParam(), {2, 3}, rounding());
  Attrs residual{{"residual", int64_t{1}}};  // added in fp32: one rounding, as without
  Compare("layer_norm_grad", residual, {{9, 37}, {9, 37}, {37}, {9}, {9}, {9, 37}}, GetParam(), {2, 3, 4},
          rounding());
  Compare("rms_norm_grad", residual, {{9, 37}, {9, 37}, {37}, {9}, {9, 37}}, GetParam(), {2, 3}, rounding());
}

TEST_P(NarrowKernels, SumsAndElementwise) {
  Attrs f32{{"dtype", std::string("f32")}, {"axes", std::vector<int64_t>{0}}, {"keep", int64_t{0}}};
  Compare("sum", f32, {{50, 40}}, GetParam(), {}, 1e-6);
  Compare("mean", f32, {{50, 40}}, GetParam(), {}, 1e-6);
  Compare("sum_to", {{"dtype", std::string("f32")}, {"shape", std::vector<int64_t>{40}}}, {{3, 50, 40}},
          GetParam(), {}, 1e-6);
  Compare("square_sum", {{"dtype", std::string("f32")}}, {{50, 40}}, GetParam(), {}, 1e-6);
  Compare("add_n", {}, {{50, 40}, {50, 40}, {50, 40}}, GetParam(), {}, rounding());
  Compare("gelu_grad", {}, {{50, 40}, {50, 40}}, GetParam(), {}, rounding());
  Compare("fused",
          {{"program", std::string("add 0 1;gelu 2;mul 3 0")}, {"outputs", std::vector<int64_t>{2, 4}}},
          {{50, 40}, {40}}, GetParam(), {}, rounding());
  // Types mixed in one chain: the second operand is fp32.
  Compare("fused",
          {{"program", std::string("cast 0 dtype=f32;add 2 1;gelu 3")}, {"outputs", std::vector<int64_t>{4}}},
          {{50, 40}, {50, 40}}, GetParam(), {1}, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Types, NarrowKernels, testing::Values(DType::kBFloat16, DType::kFloat16),
                         [](const auto& info) { return std::string(Name(info.param)); });

// --- What is rounded and what is not ---

// Of two evaluations of one model, in fp32 and in a narrow type.
std::map<std::string, HostTensor> EvaluateIn(DType dtype, uint64_t seed) {
  uint64_t count = 0;
  auto draw = [&](int limit) { return static_cast<int>(RandomBits(seed, 71, count++) % limit); };
  auto values = [](uint64_t key, const Dims& shape) {
    HostTensor t = HostTensor::Make(DType::kFloat32, shape);
    for (int64_t i = 0; i < t.elements(); ++i) t.as<float>()[i] = 2 * ToUniform(RandomBits(key, 0, i)) - 1;
    return t;
  };
  constexpr int64_t kSize = 6;
  Model model(Mesh::Parse("cpu:dp=1"));
  Tensor x = model.Input("x", {kSize, kSize}, DType::kFloat32);
  Tensor neutral = model.scope().Weight("w", {kSize, kSize}, Normal(.5));
  for (int i = 1 + draw(3); i > 0; --i) {
    switch (draw(6)) {
      case 0:
        neutral = scale(neutral, 1.01);
        break;
      case 1:
        neutral = transpose(neutral, {1, 0});
        break;
      case 2:
        neutral = neutral + model.scope().Weight("b", {kSize}, Normal(.5));
        break;
      case 3:
        neutral = concat({slice(neutral, 0, 2, kSize), slice(neutral, 0, 0, 2)}, 0);
        break;
      case 4:
        neutral = reshape(neutral, {kSize, kSize});
        break;
      default:
        neutral = gelu(neutral);
    }
  }
  Tensor product = matmul(x, neutral);  // wants it narrow
  Tensor wide = log_softmax(x);
  Tensor sum = draw(2) ? wide + product : product + wide;
  SessionOptions options;
  options.dtype = dtype;
  Session session = Evaluate({{"neutral", neutral},  // wants it wide
                              {"log", log_softmax(neutral)},
                              {"product", product},
                              {"wide", wide},
                              {"sum", sum}},
                             options);
  StepResult result = session.Run({{"x", values(seed, {kSize, kSize})}});
  std::map<std::string, HostTensor> outputs;
  for (const char* name : {"neutral", "log", "product", "wide", "sum"}) outputs[name] = result.Get(name);
  return outputs;
}

TEST(Rounding, OneReaderThatWantsAValueNarrowDoesNotRoundItForTheOthers) {
  for (uint64_t seed = 0; seed < 40; ++seed)
    for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      std::map<std::string, HostTensor> narrow = EvaluateIn(dtype, seed),
                                        wide = EvaluateIn(DType::kFloat32, seed);
      std::string where = Cat("seed ", seed, " ", Name(dtype));
      double rounded = 0;
      for (int64_t i = 0; i < narrow["sum"].elements(); ++i) {
        auto at = [&](std::map<std::string, HostTensor>& outputs, const char* name) {
          return outputs[name].as<float>()[i];
        };
        EXPECT_EQ(at(narrow, "neutral"), at(wide, "neutral")) << where << " element " << i;
        EXPECT_NEAR(at(narrow, "log"), at(wide, "log"), 1e-6) << where << " element " << i;
        EXPECT_NEAR(at(narrow, "wide"), at(wide, "wide"), 1e-6) << where << " element " << i;
        // What is added to a wide value is added in fp32.
        EXPECT_NEAR(at(narrow, "sum"), at(narrow, "wide") + at(narrow, "product"), 1e-6)
            << where << " element " << i;
        rounded = std::max<double>(rounded, std::abs(at(narrow, "product") - at(wide, "product")));
      }
      EXPECT_GT(rounded, 1e-5) << where << ": the product was not narrow";
    }
}

// --- Training ---

constexpr int kBatch = 8, kContext = 16, kVocabulary = 32;

// Each token is a function of the one before, with noise keyed by step and position.
HostTensor Tokens(int64_t step, int shift) {
  std::vector<int32_t> ids(kBatch * kContext);
  for (int b = 0; b < kBatch; ++b) {
    uint32_t token = RandomBits(7, step, b) % kVocabulary;
    for (int t = 0; t < kContext + shift; ++t) {
      if (t >= shift) ids[b * kContext + t - shift] = token;
      uint32_t noise = RandomBits(9, step, b * 1024 + t);
      token = noise % 8 == 0 ? noise / 8 % kVocabulary : (token * 5 + 3) % kVocabulary;
    }
  }
  return ToHost(ids, {kBatch, kContext});
}

std::vector<float> Losses(const std::string& mesh, DType dtype, int steps) {
  SmallGpt given{.mesh = mesh,
                 .batch = kBatch,
                 .context = kContext,
                 .layers = 2,
                 .width = 32,
                 .heads = 2,
                 .vocabulary = kVocabulary};
  given.dtype = dtype;
  GptProgram program(given);
  Session session = program.MakeTrain();
  std::vector<StepResult> results;
  for (int step = 0; step < steps; ++step)
    results.push_back(session.Run({{"tokens", Tokens(step, 0)}, {"targets", Tokens(step, 1)}}));
  std::vector<float> losses;
  for (const StepResult& r : results) losses.push_back(r.Scalar("loss"));
  return losses;
}

constexpr int kSteps = 200;

class NarrowLossCurve : public testing::TestWithParam<std::pair<const char*, DType>> {};

TEST_P(NarrowLossCurve, FollowsFp32Within2Percent) {
  static const std::vector<float> wide = Losses("cpu:dp=1", DType::kFloat32, kSteps);
  ASSERT_LT(wide.back(), 0.8 * wide.front()) << "the model learns nothing: the comparison would say little";
  std::vector<float> narrow = Losses(GetParam().first, GetParam().second, kSteps);
  double worst = 0;
  for (int step = 0; step < kSteps; ++step) {
    double difference = std::abs(narrow[step] - wide[step]) / wide[step];
    worst = std::max(worst, difference);
    EXPECT_LE(difference, 0.02) << "step " << step << ": " << narrow[step] << " against " << wide[step];
  }
  EXPECT_NE(narrow, wide) << "nothing was rounded";
  std::printf("%s in %s: worst relative difference %.1e\n", GetParam().first, Name(GetParam().second), worst);
}

INSTANTIATE_TEST_SUITE_P(Meshes, NarrowLossCurve,
                         testing::Values(std::pair{"cpu:dp=1", DType::kBFloat16},
                                         std::pair{"cpu:dp=2,tp=2,pp=2", DType::kBFloat16},
                                         std::pair{"cpu:dp=1", DType::kFloat16}),
                         [](const auto& info) {
                           std::string name = Cat(info.param.first + 4, "_", Name(info.param.second));
                           for (char& c : name)
                             if (!isalnum(c)) c = '_';
                           return name;
                         });

// --- Loss scaling ---

TEST(LossScale, AnOverflowSkipsTheStepAndHalvesTheScale) {
  SmallGpt given;
  given.layers = 1;
  given.dtype = DType::kFloat16;
  GptProgram program(given);
  Session session = program.MakeTrain();
  Model& model = program.model();
  auto run = [&](int64_t step) { return session.Run(program.MakeFeeds(step)).Scalar("loss"); };
  auto number = [&](const std::string& name) { return model.Read(name).as<float>()[0]; };
  auto whole = [&](const std::string& name) {
    HostTensor t = model.Read(name);
    return std::vector<float>(t.as<float>(), t.as<float>() + t.elements());
  };
  run(0);
  EXPECT_EQ(number("train:loss_scale"), 65536);
  EXPECT_EQ(number("train:loss_scale_finite_steps"), 1);
  std::vector<float> weight = whole("embedding"), moment = whole("train:adam_m/embedding");

  // A scale under which gradients in fp16 cannot be finite.
  HostTensor huge = model.Read("train:loss_scale");
  huge.as<float>()[0] = 1e30f;
  model.Write("train:loss_scale", huge);
  // The loss is what it would have been: only gradients are scaled.
  GptProgram other(given);
  Session unharmed = other.MakeTrain();
  unharmed.Run(other.MakeFeeds(0)).Wait();
  EXPECT_EQ(run(1), unharmed.Run(other.MakeFeeds(1)).Scalar("loss"));
  EXPECT_EQ(number("train:loss_scale"), 0.5f * 1e30f);
  EXPECT_EQ(number("train:loss_scale_finite_steps"), 0);
  EXPECT_EQ(whole("embedding"), weight);
  EXPECT_EQ(whole("train:adam_m/embedding"), moment);

  huge.as<float>()[0] = 1024;
  model.Write("train:loss_scale", huge);
  run(2);
  EXPECT_EQ(number("train:loss_scale"), 1024);
  EXPECT_EQ(number("train:loss_scale_finite_steps"), 1);
  EXPECT_NE(whole("embedding"), weight);
}

// From below 1 it would take thousands of steps to come back, and from 0 it never would.
TEST(LossScale, StopsAt1WhereGradientsStayInfinite) {
  Model model(Mesh::Parse("cpu:dp=1"));
  Tensor x = model.Input("x", {4}, DType::kFloat32);
  TrainOptions options;
  options.dtype = DType::kFloat16;
  options.check_finite = false;
  Session session = Train(mean(x * model.scope().Weight("w", {4}, Ones())), Sgd{.lr = 1}, options);
  auto numbers = [&](const std::string& name) {
    HostTensor t = model.Read(name);
    return std::vector<float>(t.as<float>(), t.as<float>() + t.elements());
  };
  const std::vector<float> start = {1, 1, 1, 1}, infinite(4, INFINITY), finite = {4, 8, -4, 0};
  for (int step = 0; step < 20; ++step) session.Run({{"x", ToHost(infinite, {4})}}).Wait();
  EXPECT_EQ(numbers("train:loss_scale"), std::vector<float>{1});
  EXPECT_EQ(numbers("w"), start);
  session.Run({{"x", ToHost(finite, {4})}}).Wait();
  EXPECT_EQ(numbers("train:loss_scale"), std::vector<float>{1});
  EXPECT_EQ(numbers("w"), (std::vector<float>{0, -1, 2, 1}));
}

TEST(LossScale, DoublesAfterItsIntervalOfFiniteSteps) {
  SmallGpt given;
  given.layers = 1;
  given.dtype = DType::kFloat16;
  GptProgram program(given);
  Session session = program.MakeTrain();
  session.Run(program.MakeFeeds(0)).Wait();
  HostTensor steps = program.model().Read("train:loss_scale_finite_steps");
  steps.as<float>()[0] = 1998;
  program.model().Write("train:loss_scale_finite_steps", steps);
  session.Run(program.MakeFeeds(1)).Wait();
  EXPECT_EQ(program.model().Read("train:loss_scale").as<float>()[0], 65536);
  session.Run(program.MakeFeeds(2)).Wait();
  EXPECT_EQ(program.model().Read("train:loss_scale").as<float>()[0], 131072);
  EXPECT_EQ(program.model().Read("train:loss_scale_finite_steps").as<float>()[0], 0);
}

}  // namespace
}  // namespace oneflow_like
