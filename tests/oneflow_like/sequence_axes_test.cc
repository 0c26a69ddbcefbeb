// Sequences cut over several mesh axes at once: keys gathered over cp, heads exchanged over sp inside each
// part of cp, products cut over tp beside them. One loss curve on all factorisations of eight devices, and
// what is sent.
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "examples/llama_model.h"
#include "tests/oneflow_like/session_fixture.h"
#include "tests/oneflow_like/small_gpt.h"

namespace oneflow_like {

using namespace examples;
namespace {

SmallGpt Cut(int cp, int sp, int tp, bool between_products) {
  SmallGpt given{.mesh = Cat("cpu:cp=", cp, ",sp=", sp, ",tp=", tp), .heads = 8};
  given.sequence = between_products ? "cp*sp*tp" : "cp*sp";
  given.ulysses = true;
  given.parallel = {.batch = "dp", .tensor = "tp", .context = "cp*sp"};
  return given;
}

std::vector<float> Losses(const SmallGpt& given) { return LossesOf(given, 3); }

// Of uneven lengths too, and with what else cuts or repeats.
TEST(SequenceAxes, FollowOneDeviceOnAllFactorisationsOfEight) {
  std::map<int64_t, std::vector<float>> one;  // by length
  for (const int64_t context : {16, 13}) one[context] = Losses({.context = context, .layers = 2, .heads = 8});
  int runs = 0;
  for (int cp : {1, 2, 4, 8})
    for (int sp : {1, 2, 4, 8}) {
      if (8 % (cp * sp) != 0) continue;
      for (const bool between_products : {false, true}) {
        SmallGpt given = Cut(cp, sp, 8 / (cp * sp), between_products);
        given.context = runs % 4 < 2 ? 13 : 16;
        given.layers = 2;
        if (++runs % 3 == 1) given.micro_batches = 2, given.recompute = Recompute::kFull;
        if (runs % 3 == 2) given.zero_axis = "cp", given.zero_stage = 3;
        const std::vector<float> losses = Losses(given), &wanted = one[given.context];
        for (size_t step = 0; step < wanted.size(); ++step)
          EXPECT_NEAR(losses[step], wanted[step], 1e-5 * wanted[step])
              << given.str() << (between_products ? " cut over tp" : "") << " step " << step;
      }
    }
  EXPECT_EQ(runs, 20);
}

// --- What is sent ---

struct Sent {
  double forward = 0, backward = 0;  // elements of a layer, by the device that sends most
};

LlamaConfig Layers(int64_t layers, int64_t kv_heads) {
  LlamaConfig config{.layers = layers, .width = 128, .heads = 16, .kv_heads = kv_heads, .head_width = 8};
  config.sequence = "cp*sp";
  config.ulysses = "sp";
  return config;
}

constexpr int64_t kBatch = 32, kContext = 256;

Sent SentByLayer(int cp, int sp, int64_t kv_heads, const std::string& context) {
  const auto bytes = [&](int64_t layers, bool trains) {
    Model model(Mesh("cpu", {{"dp", 1}, {"tp", 1}, {"pp", 1}, {"cp", cp}, {"sp", sp}}));
    const Annotation cut = {{"dp", S(0)}, {"cp", S(1)}, {"sp", S(1)}};
    Tensor tokens = model.Input("tokens", {kBatch, kContext}, DType::kInt32, cut);
    Tensor targets = model.Input("targets", {kBatch, kContext}, DType::kInt32, cut);
    Tensor loss = LlamaLoss(model.scope(), tokens, targets, Layers(layers, kv_heads));
    TrainOptions options;
    options.parallel = {.batch = "dp", .tensor = "tp", .context = context};
    return BytesSent(trains ? Train(loss, AdamW{}, options)
                            : Evaluate({{"loss", loss}}, static_cast<const SessionOptions&>(options)));
  };
  const auto each_layer = [&](bool trains) { return (bytes(6, trains) - bytes(2, trains)) / 4 / 4; };  // fp32
  const double forward = each_layer(false);
  const double weights = LlamaWeights(Layers(3, kv_heads)) - LlamaWeights(Layers(2, kv_heads));
  const int n = cp * sp;
  return {forward, each_layer(true) - forward - 2 * weights * (n - 1) / n};
}

// On cp=N, sp=u, of parts [batch, s = L/N, h]: forward queries and results are exchanged for heads, keys and
// values with them (Jacobs et al. 2023: of as many heads 4 (bsh/u)(u-1)/u), and (N-1) kv/u of each of keys
// and values are gathered, kv those of one part of cp. Backward all is exchanged again; gradients of keys and
// values are summed, and they may be gathered again.
TEST(SequenceAxes, SendWhatTheFormulasSay) {
  for (const int64_t kv_heads : {4, 16})
    for (const auto [cp, sp] : std::vector<std::pair<int, int>>{{1, 4}, {2, 2}, {2, 4}, {4, 2}, {4, 1}}) {
      const double part = static_cast<double>(kBatch * kContext / cp * 128), kv = part * kv_heads / 16;
      const double exchanged = 2 * (part + kv) / sp * (sp - 1) / sp, keys = (cp - 1) * kv / sp;
      for (const char* context : {"cp", "cp*sp"}) {
        const auto [forward, backward] = SentByLayer(cp, sp, kv_heads, context);
        const std::string run = Cat("cp=", cp, " sp=", sp, " kv_heads=", kv_heads, " role of ", context);
        std::printf("%s: exchanged %.0f, keys %.0f; forward %.0f, backward %.0f\n", run.c_str(), exchanged,
                    keys, forward, backward);
        EXPECT_NEAR(forward, exchanged + 2 * keys, .01 * forward) << run;
        EXPECT_GE(backward, .99 * (exchanged + 2 * keys)) << run;
        EXPECT_LE(backward, 1.01 * (exchanged + 4 * keys)) << run;
      }
    }
}

}  // namespace
}  // namespace oneflow_like
