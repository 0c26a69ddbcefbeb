// The share of a step's operations that models of every kind leave to a GPU's plain cores, from the table
// entries alone, printed as a table; and warnings, which name who has more than a hundredth.
#include "oneflow_like/session/plain_cores.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "core/plan/plan_values.h"
#include "examples/bert_model.h"
#include "examples/dlrm_model.h"
#include "examples/gpt_model.h"
#include "examples/llama_model.h"
#include "examples/moe_model.h"
#include "examples/resnet_model.h"
#include "examples/unet_model.h"
#include "examples/vit_model.h"
#include "oneflow_like/oneflow_like.h"
#include "oneflow_like/session/session_impl.h"
#include "oneflow_like/simulate.h"
#include "ops/cuda/contraction.h"
#include "ops/equation.h"

namespace oneflow_like {

using namespace examples;
namespace {

constexpr DType kInts = DType::kInt32;

using Loss = std::function<Tensor(Model&)>;

RankSummary Summary(const Loss& loss, DType dtype, bool tf32 = false) {
  ModelOptions asking;
  asking.tf32 = tf32;
  Model model(Mesh("cuda", {{"dp", 1}, {"tp", 1}, {"pp", 1}}), asking);
  TrainOptions options;
  options.dtype = dtype;
  return Train(loss(model), AdamW{.lr = 1e-3}, options).Summaries()[0];
}

Tensor Tokens(Model& model, const char* name, int64_t batch, int64_t context) {
  return model.Input(name, {batch, context}, kInts, {{"dp", S(0)}});
}

template <typename Config, typename Of>
Loss Language(const Config& config, int64_t batch, int64_t context, Of of) {
  return [=](Model& model) {
    return of(model.scope(), Tokens(model, "tokens", batch, context),
              Tokens(model, "targets", batch, context), config);
  };
}

template <typename Of>
Loss Vision(int64_t batch, int64_t side, Of logits) {
  return [=](Model& model) {
    Tensor images = model.Input("images", {batch, side, side, 3}, DType::kFloat32, {{"dp", S(0)}});
    Tensor labels = model.Input("labels", {batch}, kInts, {{"dp", S(0)}});
    return mean(cross_entropy(logits(model.scope(), images), labels));
  };
}

Loss Bert() {
  return [](Model& model) {
    BertConfig config = BertOfSize("base");
    config.context = 512;
    Tensor logits = BertLogits(model.scope(), Tokens(model, "tokens", 8, 512),
                               Tokens(model, "padding", 8, 512), config, true);
    return BertLoss(logits, Tokens(model, "targets", 8, 512));
  };
}

Loss Unet() {
  return [](Model& model) {
    Tensor noisy = model.Input("noisy", {16, 64, 64, 3}, DType::kFloat32, {{"dp", S(0)}});
    Tensor noise = model.Input("noise", {16, 64, 64, 3}, DType::kFloat32, {{"dp", S(0)}});
    Tensor time = model.Input("time", {16}, kInts, {{"dp", S(0)}});
    Tensor guess = UnetNoise(model.scope(), noisy, time, {.width = 64, .groups = 8});
    return mean(square(guess - to_stage_of(noise, guess)));
  };
}

Loss Clicks() {
  return [](Model& model) {
    DlrmConfig config = {.rows = 100'000, .width = 64, .bottom = {512, 256}, .top = {512, 512, 256}};
    Tensor dense = model.Input("dense", {2048, config.dense}, DType::kFloat32, {{"dp", S(0)}});
    Tensor labels = model.Input("labels", {2048}, DType::kFloat32, {{"dp", S(0)}});
    Tensor logits = DlrmLogits(model.scope(), dense, Tokens(model, "ids", 2048, config.tables), config);
    return mean(bce_with_logits_loss(logits, labels));
  };
}

GptConfig Gpt() { return {.layers = 24, .width = 2048, .heads = 16, .context = 1024, .vocabulary = 50304}; }

// Whether mixed precision leaves it on plain cores, too.
bool StaysWide(const std::string& who, const RankSummary& narrow) {
  const auto& plain = narrow.on_plain_cores;
  return std::any_of(plain.begin(), plain.end(), [&](const auto& one) { return one.first == who; });
}

TEST(PlainCores, ModelsLeaveThemAHundredthInSixteenBits) {
  const LlamaConfig llama = LlamaOfSize("8b");
  const LlamaConfig qwen = {.layers = 28,
                            .width = 3584,
                            .heads = 28,
                            .kv_heads = 4,
                            .head_width = 128,
                            .inner = 18944,
                            .vocabulary = 152064,
                            .qkv_bias = true};
  const MoeConfig moe = {
      .layers = 8, .width = 512, .heads = 8, .context = 1024, .vocabulary = 32000, .experts = 64};
  MoeConfig by_rank = moe;  // whose experts take what comes: grouped products
  by_rank.room = 1;
  const VitConfig vit = VitOfSize("base", 224);
  const ResNetConfig resnet = ResNetOfSize("50", 224);
  const std::vector<std::pair<const char*, Loss>> models = {
      {"Llama 8B, 1 x 8192", Language(llama, 1, 8192, LlamaLoss)},
      {"Qwen 2 7B, 1 x 8192", Language(qwen, 1, 8192, LlamaLoss)},
      {"GPT 1.3B, 8 x 1024", Language(Gpt(), 8, 1024, GptLoss)},
      {"MoE of 64 experts, 8 x 1024", Language(moe, 8, 1024, MoeLoss)},
      {"MoE by rank, 8 x 1024", Language(by_rank, 8, 1024, MoeLoss)},
      {"BERT-base, 8 x 512, padded", Bert()},
      {"ViT-B, 64 x 224^2", Vision(64, 224, [=](Scope s, Tensor x) { return VitLogits(s, x, vit, true); })},
      {"ResNet-50, 64 x 224^2",
       Vision(64, 224, [=](Scope s, Tensor x) { return ResNetLogits(s, x, resnet, true); })},
      {"U-Net, 16 x 64^2", Unet()},
      {"DLRM, 2048", Clicks()}};
  std::printf("share on plain cores, of any card from compute capability 8.0 on\n%-30s %8s %8s %8s\n",
              "model", "bf16", "fp32", "--tf32");
  for (const auto& [name, loss] : models) {
    const RankSummary narrow = Summary(loss, DType::kBFloat16), wide = Summary(loss, DType::kFloat32),
                      rounded = Summary(loss, DType::kFloat32, /*tf32=*/true);
    std::printf("%-30s %7.3f %% %6.2f %% %6.2f %%\n", name, 100 * narrow.plain_flops / narrow.flops,
                100 * wide.plain_flops / wide.flops, 100 * rounded.plain_flops / rounded.flops);
    EXPECT_LE(narrow.plain_flops, 0.01 * narrow.flops) << name << ": " << PlainCoresWarning({narrow});
    EXPECT_EQ(PlainCoresWarning({narrow}), "") << name;
    EXPECT_GE(wide.plain_flops, 0.8 * wide.flops) << name;  // else updates of tables, in DLRM
    // With TF32 attention, products by expert and routers stay there, and nothing else.
    EXPECT_EQ(rounded.flops, wide.flops) << name;
    for (const auto& [who, flops] : rounded.on_plain_cores)
      EXPECT_TRUE(who.starts_with("attention") || who.starts_with("grouped") || StaysWide(who, narrow))
          << name << ": " << who;
    EXPECT_LT(rounded.plain_flops, wide.plain_flops) << name;
  }
}

// The products of a plan that a GPU's library does not do as they lie and in one call, which the table of
// operators does not know of: on packed copies, in many calls, or by a loop on plain cores.
std::string OtherwiseDone(const Session& session, int* products) {
  std::string text;
  const RankPlan made = PlanOf(session.impl()->compiled, 0);
  for (const plan::Actor& actor : made.plan.actor())
    for (const plan::Kernel& kernel : actor.kernel()) {
      const KernelSpec spec = ToSpec(kernel);
      const bool by_equation =
          spec.attrs.Has("equation") && BuiltinCatalog().Get(spec.name).category == "matmul";
      if (!by_equation && spec.name != "matmul") continue;
      const TensorArg &a = spec.in[0], &b = spec.in[1];
      const cuda::ContractionPlan plan =
          cuda::PlanContraction(by_equation ? EinsumLabels(spec.attrs.Str("equation"))
                                            : MatmulLabels(a.global, b.global, spec.out[0].global),
                                a.extent, b.extent, {a.dtype, spec.out[0].dtype}, int64_t{24} << 20);
      ++*products;
      if (plan.kind == cuda::ContractionPlan::kDirect && plan.outer.size() == 1 && a.dtype == b.dtype)
        continue;
      text += Cat(spec.name, " of ", a.extent.str(), " and ", b.extent.str(), " at ", spec.line.str(), "; ");
    }
  return text;
}

// Two layers each, of sizes that divide nothing, in both types of 16 bits.
TEST(PlainCores, OddModelsLeaveThemNoMore) {
  const auto decoder = [](int64_t width, int64_t heads, int64_t kv_heads, int64_t head_width, int64_t inner) {
    const LlamaConfig config = {.layers = 2,
                                .width = width,
                                .heads = heads,
                                .kv_heads = kv_heads,
                                .head_width = head_width,
                                .inner = inner,
                                .vocabulary = 151937,
                                .qkv_bias = true};
    return Language(config, 3, 1023, LlamaLoss);
  };
  const auto vit = [](int64_t side, int64_t patch, int64_t width, int64_t heads) {
    const VitConfig config = {.layers = 2, .width = width, .heads = heads, .patch = patch, .classes = 1001};
    return Vision(8, side, [=](Scope s, Tensor x) { return VitLogits(s, x, config, true); });
  };
  const auto bert = [](double dropout) {
    return [=](Model& model) {
      const BertConfig config = {
          .layers = 2, .width = 768, .heads = 12, .context = 509, .vocabulary = 30523, .dropout = dropout};
      Tensor logits = BertLogits(model.scope(), Tokens(model, "tokens", 8, 509),
                                 Tokens(model, "padding", 8, 509), config, true);
      return BertLoss(logits, Tokens(model, "targets", 8, 509));
    };
  };
  const auto moe = [](double room) {
    const MoeConfig config = {.layers = 2,
                              .width = 512,
                              .heads = 8,
                              .context = 1024,
                              .vocabulary = 32000,
                              .experts = 60,
                              .top_k = 4,
                              .inner = 1401,
                              .room = room};
    return Language(config, 8, 1024, MoeLoss);
  };
  using Layer = std::function<Tensor(Scope, Tensor)>;
  const auto convolutions = [](int64_t channels, const std::vector<Layer>& layers) {
    return [=](Model& model) {
      Tensor x = model.Input("x", {8, 57, 57, channels}, DType::kFloat32, {{"dp", S(0)}});
      for (size_t i = 0; i < layers.size(); ++i) x = relu(layers[i](model.scope() / Cat(i), x));
      return mean(square(x));
    };
  };
  const auto conv = [](int64_t filters, int64_t window, const ConvOptions& options = {}) -> Layer {
    return [=](Scope s, Tensor x) {
      const int64_t channels = x.shape().back() / options.groups;
      return conv2d(x, s.Weight("w", {filters, window, window, channels}, Normal(0.1)), options);
    };
  };
  const auto transposed = [](int64_t filters, int64_t window, const ConvTransposeOptions& options) -> Layer {
    return [=](Scope s, Tensor x) {
      return conv2d_transpose(x, s.Weight("w", {x.shape().back(), window, window, filters}, Normal(0.1)),
                              options);
    };
  };
  const std::vector<std::pair<const char*, Loss>> models = {
      {"7 heads a key (Qwen 2 0.5B)", decoder(896, 14, 2, 64, 4864)},
      {"heads of 80", decoder(2560, 32, 32, 80, 6912)},
      {"heads of 96", decoder(3072, 32, 8, 96, 8192)},
      {"heads of 160", decoder(5120, 32, 8, 160, 8193)},
      {"heads of 256, one of keys", decoder(3072, 16, 1, 256, 8192)},
      {"width 1001, heads of 66", decoder(1001, 7, 1, 66, 2731)},
      {"ViT, patches of 14", vit(518, 14, 384, 6)},
      {"ViT, patches of 7, width 195", vit(217, 7, 195, 3)},
      {"ViT, patches of 13, 11 heads", vit(221, 13, 704, 11)},
      {"BERT, 30523 words", bert(0)},
      {"BERT, 30523 words, dropout", bert(0.1)},
      {"60 experts of 1401", moe(0)},
      {"60 experts of 1401, by rank", moe(1.25)},
      {"convolutions of 3 channels",
       convolutions(3, {conv(33, 7, {.stride = {2}, .padding = {3}}), conv(64, 3)})},
      {"in groups", convolutions(48, {conv(96, 3, {.padding = {1}, .groups = 3}),
                                      conv(96, 5, {.stride = {3}, .groups = 8})})},
      {"dilated", convolutions(32, {conv(48, 3, {.padding = {4}, .dilation = {4}}),
                                    conv(48, 3, {.stride = {2}, .dilation = {2}})})},
      {"transposed", convolutions(32, {transposed(16, 4, {.stride = {2}, .padding = {1}}),
                                       transposed(8, 3, {.stride = {2}, .output_padding = {1}})})},
      {"in steps of 2", convolutions(32, {conv(64, 2, {.stride = {2}}), conv(64, 1, {.stride = {2}})})}};
  int all_products = 0;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16})
    for (const auto& [name, loss] : models) {
      Model model(Mesh("cuda", {{"dp", 1}, {"tp", 1}, {"pp", 1}}));
      TrainOptions options;
      options.dtype = dtype;
      const Session session = Train(loss(model), AdamW{.lr = 1e-3}, options);
      const RankSummary summary = session.Summaries()[0];
      std::printf("%-30s %7.3f %% (%s)\n", name, 100 * summary.plain_flops / summary.flops, Name(dtype));
      EXPECT_EQ(PlainCoresWarning({summary}), "") << name;
      int products = 0;
      EXPECT_EQ(OtherwiseDone(session, &products), "") << name;
      all_products += products;
    }
  EXPECT_GT(all_products, 500);
}

// Each reason, beside the same use without it.
TEST(PlainCores, AWarningNamesOperatorLineAndReason) {
  const auto attention_of = [](const nn::AttentionOptions& options, int64_t width) {
    return [=](Model& model) {
      Tensor x = model.Input("x", {2, 64, width}, DType::kFloat32, {{"dp", S(0)}});
      return mean(square(nn::Attention(model.scope(), x, options)));
    };
  };
  nn::AttentionOptions plain, drops;
  plain.heads = drops.heads = 4;
  drops.dropout = 0.1;
  // By the library, and by our tile: dropout, and heads of 18 elements. Nothing is left on plain cores.
  for (const RankSummary& narrow : {Summary(attention_of(plain, 128), DType::kBFloat16),
                                    Summary(attention_of(drops, 128), DType::kBFloat16),
                                    Summary(attention_of(drops, 128), DType::kFloat16),
                                    Summary(attention_of(plain, 72), DType::kBFloat16)})
    EXPECT_EQ(narrow.plain_flops, 0) << PlainCoresWarning({narrow});
  const auto expect = [](const std::string& warning, const std::vector<std::string>& words) {
    EXPECT_TRUE(warning.starts_with("rank 0 does ")) << warning;
    for (const std::string& word : words) EXPECT_NE(warning.find(word), std::string::npos) << warning;
  };
  const auto by_expert = [](Model& model) {
    Tensor x = model.Input("x", {64, 128}, DType::kFloat32, {{"dp", S(0)}});
    Tensor counts = model.Input("counts", {4}, kInts);
    Tensor w = model.scope().Weight("w", {4, 128, 256}, Normal(0.1));
    return mean(square(grouped_matmul(x, w, counts)));
  };
  EXPECT_EQ(PlainCoresWarning({Summary(by_expert, DType::kBFloat16)}), "");
  expect(PlainCoresWarning({Summary(by_expert, DType::kFloat32)}),
         {" % by grouped_matmul at ", " % by grouped_matmul_grad_weight", "as its operands are f32"});
  const auto factored = [](Model& model) {
    return mean(square(cholesky(model.scope().Weight("w", {64, 64}, Normal(0.1)))));
  };
  expect(PlainCoresWarning({Summary(factored, DType::kBFloat16)}),
         {" % by cholesky at ", "as it has no kernel on tensor cores"});
  const RankSummary wide = Summary(attention_of(drops, 128), DType::kFloat32);
  expect(PlainCoresWarning({wide}), {"rank 0 does 9", " % by attention_grad at ", "as its operands are f32"});
  EXPECT_LE(wide.plain_flops, wide.flops);
}

// A convolution of eight channels: in fp32 by TF32 on tensor cores unless each channel is a group of its own,
// which no library does there in 16 bits either.
TEST(PlainCores, ConvolutionsOfSingleChannelsStay) {
  const auto of = [](int64_t groups) {
    return [=](Model& model) {
      Tensor x = model.Input("x", {4, 32, 32, 8}, DType::kFloat32, {{"dp", S(0)}});
      Tensor w = model.scope().Weight("w", {8, 3, 3, 8 / groups}, Normal(0.1));
      return mean(square(conv2d(x, w, {.stride = {2, 2}, .padding = {1, 1}, .groups = groups})));
    };
  };
  for (const int64_t groups : {1, 2, 8})
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
      for (const bool tf32 : {false, true}) {
        const RankSummary s = Summary(of(groups), dtype, tf32);
        const bool plain = groups == 8 || (dtype == DType::kFloat32 && !tf32);
        EXPECT_EQ(s.plain_flops > 0, plain) << groups << PlainCoresWarning({s});
        if (groups == 8 && dtype == DType::kBFloat16) {
          EXPECT_NE(PlainCoresWarning({s}).find("as each channel is a group of its own"), std::string::npos)
              << PlainCoresWarning({s});
        }
      }
}

// By a machine whose rates are far apart: a product takes the rate of its type, and of TF32 where it is
// asked for and known. Lines of a file, for fp32, are of products that do not round.
TEST(PlainCores, ProductsByTf32TakeItsRate) {
  Machine machine = MachineOf(Mesh("cuda", {{"dp", 1}}));
  machine.topology.memory_bandwidth = 1e18;
  machine.overhead = 0;
  machine.flops = 1e11, machine.tf32_flops = 4e11, machine.narrow_flops = 64e11;
  Machine unknown = machine, measured = machine;
  unknown.tf32_flops = 0;
  for (const char* name : {"product", "linear", "linear_grad_weight"})
    measured.kernels.push_back({name, DType::kFloat32, 0, false, {.calls = 1}});
  const std::string lacks = "the topology lacks flops_tf32";
  const auto seconds = [&](const Machine& on, DType dtype, bool tf32, double* mfu = nullptr) {
    ModelOptions asking;
    asking.tf32 = tf32;
    Model model(Mesh("cuda", {{"dp", 1}}), asking);
    Tensor x = model.Input("x", {512, 512}, DType::kFloat32, {{"dp", S(0)}});
    Tensor w = model.scope().Weight("w", {512, 512}, Normal(0.1));
    TrainOptions options;
    options.dtype = dtype;
    const Session session = Train(mean(square(matmul(x, w))), Sgd{.lr = 0.1}, options);
    const Simulated simulated = Simulate(session, on);
    if (mfu) *mfu = simulated.mfu;
    if (on.kernels.empty()) {  // estimates, of the same work
      const Graph& graph = session.impl()->compiled.graph;
      CostModel cost(graph, on);
      double estimated = 0;
      for (int n : graph.Order()) estimated += ActsOf(graph, graph.node(n)) * cost.Seconds(n);
      EXPECT_NEAR(estimated, simulated.seconds, 0.01 * simulated.seconds);
    }
    EXPECT_EQ(simulated.Text(0, "").find(lacks) != std::string::npos,
              tf32 && dtype == DType::kFloat32 && on.tf32_flops == 0);
    return simulated.seconds;
  };
  double plain_mfu = 0, mfu = 0;
  const double plain = seconds(machine, DType::kFloat32, false, &plain_mfu),
               rounded = seconds(machine, DType::kFloat32, true, &mfu);
  EXPECT_NEAR(plain / rounded, 4, 0.2);
  EXPECT_NEAR(mfu, plain_mfu, 0.05 * plain_mfu) << "of the peak of TF32";
  EXPECT_NEAR(seconds(unknown, DType::kFloat32, true), plain, 1e-3 * plain);
  EXPECT_EQ(seconds(machine, DType::kBFloat16, true), seconds(machine, DType::kBFloat16, false));
  EXPECT_GT(seconds(measured, DType::kFloat32, false), 1);
  EXPECT_NEAR(seconds(measured, DType::kFloat32, true), rounded, 1e-3 * rounded);
}

// Slow products are done in halves, whose gradients are then summed over a slow link; those that TF32 makes
// fast are done whole on both devices.
TEST(PlainCores, SignaturesAreChosenAtTheRateOfTf32) {
  const std::string file = testing::TempDir() + "tf32.txt";
  std::ofstream(file) << "memory_bandwidth 1e12\nflops_fp32 1e9\nflops_tf32 1e13\nflops_16bit 1e13\n"
                      << "level node devices 2 latency 1e-6 bandwidth 1e7\n";
  for (const bool tf32 : {false, true}) {
    ModelOptions options;
    options.tf32 = tf32;
    options.topology = file;
    Model model(Mesh("cuda", {{"tp", 2}}), options);
    Tensor x = model.Input("x", {512, 512}, DType::kFloat32);
    Tensor w = model.scope().Weight("w", {512, 512}, Normal(0.1));
    const Session session = Train(mean(square(matmul(x, w))), Sgd{.lr = 0.1});
    const Graph& graph = session.impl()->compiled.graph;
    int products = 0;
    for (int n : graph.Order()) {
      const Node& node = graph.node(n);
      if (node.op != "matmul" && node.op != "einsum") continue;
      ++products;
      EXPECT_EQ(node.want[0][1].is_split() || node.want[1][1].is_split(), !tf32) << graph.Describe(n);
    }
    EXPECT_EQ(products, 2);
  }
}

// Where it was asked for in vain a sentence says why.
TEST(PlainCores, SaysWhereTf32ChangesNothing) {
  const auto said = [](const char* mesh, DType dtype, bool tf32, bool product = true) {
    ModelOptions asking;
    asking.tf32 = tf32;
    Model model(Mesh::Parse(mesh), asking);
    Tensor x = model.Input("x", {64, 64}, DType::kFloat32, {{"dp", S(0)}});
    Tensor w = model.scope().Weight("w", {64, 64}, Normal(0.1));
    TrainOptions options;
    options.dtype = dtype;
    return UnusedTf32(Train(mean(square(product ? matmul(x, w) : mul(x, w))), Sgd{.lr = 0.1}, options));
  };
  const std::string nothing = "--tf32 changes nothing";
  EXPECT_EQ(said("cuda:dp=2", DType::kFloat32, true), "");
  EXPECT_EQ(said("cpu+cuda:pp=2,dp=1", DType::kFloat32, true), "");
  EXPECT_EQ(said("cpu:dp=2", DType::kFloat32, false), "");
  EXPECT_EQ(said("cpu:dp=2", DType::kFloat32, true), nothing + " on cpu:dp=2: only GPUs round to TF32");
  EXPECT_EQ(said("cuda:dp=2", DType::kFloat16, true), nothing + ": products and convolutions are in f16");
  EXPECT_EQ(said("cpu:dp=2", DType::kBFloat16, true), nothing + ": products and convolutions are in bf16");
  EXPECT_EQ(said("cuda:dp=2", DType::kFloat32, true, /*product=*/false),
            nothing + ": the model has no product or convolution in fp32 that may be rounded");
}

TEST(PlainCores, ShareIsPrintedWhereThereAreTensorCores) {
  for (const char* kind : {"cuda", "cpu"}) {
    Model model(Mesh(kind, {{"dp", 1}}));
    Tensor x = model.Input("x", {64, 64}, DType::kFloat32, {{"dp", S(0)}});
    Tensor w = model.scope().Weight("w", {64, 64}, Normal(0.1));
    Session session = Train(mean(square(matmul(x, w))), AdamW{.lr = 1e-3}, {});
    const bool gpu = kind == std::string("cuda");
    Machine machine = MachineOf(model.mesh());
    const Simulated simulated = Simulate(session, machine);
    for (const std::string& text : {session.SummaryText(), simulated.Text(0, "")}) {
      EXPECT_EQ(text.find(" of them on plain cores") != std::string::npos, gpu) << text;
      EXPECT_EQ(text.find("as its operands are f32") != std::string::npos, gpu) << text;
    }
    EXPECT_EQ(simulated.plain_flops > 0.9 * simulated.flops, gpu);
  }
}

}  // namespace
}  // namespace oneflow_like
