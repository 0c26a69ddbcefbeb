// nn::Experts: beside a layer that computes every expert for every token; the same tables, losses and dropped
// tokens on every mesh and in micro-batches; what goes between ranks; routers that send all to one expert;
// what it shows, and refuses.
// ctest: seconds=80
#include <gtest/gtest.h>

#include <cmath>
#include <regex>

#include "tests/oneflow_like/expert_runs.h"

namespace oneflow_like {
namespace {

TEST(Experts, HaveOneCurveAndEqualTablesOnEveryMesh) {
  using enum PipelineSchedule;
  const Setting runs[] = {
      {"cpu:dp=1", 4},
      {"cpu:dp=2"},
      {"cpu:dp=8", 1, 0, "dp"},
      {"cpu:dp=8", 2, 0, "dp"},
      {"cpu:ep=2"},
      {"cpu:dp=4,ep=2", 2},
      {"cpu:dp=2,ep=4"},
      {"cpu:tp=2", 2},
      {"cpu:dp=2,tp=2,pp=2,ep=2", 2},
      {"cpu:dp=2,ep=2", 2, 1},
      {"cpu:dp=2,ep=2", 2, 2},
      {"cpu:dp=2,ep=2", 2, 3, "ep", Recompute::kFull},
      {"cpu:dp=4", 1, 3, "dp"},
      {"cpu:pp=2", 4, 0, "ep", Recompute::kFull, kZeroBubble},
      {"cpu:dp=2,cp=2,tp=2", 1, 0, "dp*cp*tp"},
      {"cpu:dp=2,cp=2,tp=2", 2, 3, "dp*cp*tp", Recompute::kFull},
      {"cpu:dp=2,tp=2,pp=2", 2, 0, "dp*tp"},
      {"cpu:dp=2,cp=2,ep=2", 1, 2, "cp*ep"},
  };
  nn::ExpertsOptions plain = SmallExperts(), rich = SmallExperts();
  rich.gated = rich.shared_gate = true;
  rich.shared = 1;
  rich.score = nn::ExpertScore::kSigmoid;
  rich.groups = 2;
  rich.top_groups = 1;
  rich.bias_balance = .01;
  rich.aux_loss = .1;
  rich.z_loss = .01;
  rich.jitter = .1;
  for (const nn::ExpertsOptions& o : {plain, rich}) {
    const Seen one = TrainExperts({}, o, 20);
    EXPECT_LT(one.losses.back(), .8 * one.losses.front());
    EXPECT_GT(*one.last.at("block1/experts/dropped").as<float>(), .01) << "none is dropped";
    for (const Setting& run : runs) ExpectSame(run, TrainExperts(run, o, 20), one);
  }
}

// Queues by choice, of whole batches and of halves of sequences.
TEST(Experts, PoolsAreOfTheModel) {
  nn::ExpertsOptions o = SmallExperts();
  o.order = nn::ExpertOrder::kChoice;
  for (int64_t pools : {int64_t{4}, 2 * kBatch}) {
    o.pools = pools;
    const Seen one = TrainExperts({}, o, 4);
    EXPECT_EQ(one.tables[0].at("slots0").shape[0], pools);
    for (const Setting& run :
         {Setting{"cpu:dp=2", 2}, Setting{"cpu:dp=4", 1, 0, "dp"}, Setting{"cpu:dp=2,ep=2"}})
      ExpectSame(run, TrainExperts(run, o, 4), one);
  }
}

// In 16 bits the router's products are in fp32; the curve is near.
TEST(Experts, RunInSixteenBits) {
  const Seen one = TrainExperts({}, SmallExperts(), 10);
  for (const Setting& given : {Setting{"cpu:dp=2,ep=2", 2}, Setting{"cpu:dp=1"}}) {
    Setting run = given;
    run.dtype = DType::kBFloat16;
    const Seen narrow = TrainExperts(run, SmallExperts(), 10);
    for (size_t step = 0; step < one.losses.size(); ++step)
      EXPECT_NEAR(narrow.losses[step], one.losses[step], .05 * one.losses[step]) << run.str() << step;
  }
}

// --- Beside every expert computed for every token

Tensor AllExperts(Scope s, Tensor x, const nn::ExpertsOptions& o) {
  Tensor logits = matmul(x, s.Weight("gate", {kWidth, o.experts}, o.gate_init));
  Tensor scores = o.score == nn::ExpertScore::kSoftmax ? softmax(logits) : sigmoid(logits);
  const Sorted best = top_k(scores, o.top_k);
  Tensor weights = o.normalise ? best.values / sum(best.values, {2}, true) : best.values;
  Tensor of_all = einsum("bnk,bnke->bne", weights, one_hot(best.indices, o.experts));
  auto up = [&](const char* name) {
    return einsum("bnw,ewf->bnef", x, s.Weight(name, {o.experts, kWidth, kInner}, o.init));
  };
  Tensor hidden = o.gated ? silu(up("up_gate")) * up("up") : gelu(up("up"));
  Tensor made = einsum("bnef,efw->bnew", hidden, s.Weight("down", {o.experts, kInner, kWidth}, o.out_init));
  Tensor y = einsum("bne,bnew->bnw", of_all, made);
  if (o.shared == 0) return y;
  nn::MlpOptions mlp;
  mlp.inner = o.shared * kInner;
  mlp.bias = false;
  mlp.init = o.init;
  mlp.out_init = o.out_init;
  Tensor more = o.gated ? nn::SwiGlu(s / "shared", x, mlp) : nn::Mlp(s / "shared", x, mlp);
  if (o.shared_gate) more = more * sigmoid(matmul(x, s.Weight("shared_gate", {kWidth, 1}, o.gate_init)));
  return y + more;
}

TEST(Experts, WithRoomForAllAreEveryExpertForEveryToken) {
  for (int kind = 0; kind < 4; ++kind) {
    nn::ExpertsOptions o = SmallExperts();
    o.capacity = 0;
    o.gated = kind > 0;
    o.normalise = kind != 1;
    o.top_k = kind == 2 ? 3 : 2;
    o.shared = kind == 3 ? 2 : 0;
    o.shared_gate = kind == 3;
    if (kind == 2) o.score = nn::ExpertScore::kSigmoid;
    Outputs found[2];
    for (bool all : {false, true}) {
      Model model(ExpertMesh("cpu:dp=1"));
      Tensor x = model.Input("x", kShape, DType::kFloat32);
      Scope s = model.scope();
      Tensor y = all ? AllExperts(s, x, o) : nn::Experts(s, x, o).y;
      Session train = Train(mean(square(y - 1)), Sgd{.lr = 1}, {});
      for (int step = 0; step < 3; ++step)
        found[all][Cat("loss", step)] = train.Run({{"x", Floats(step, kShape)}}).Get("loss");
      for (const std::string& name : model.Variables())
        if (name.find(':') == std::string::npos) found[all][name] = model.Read(name);
    }
    ExpectNear(found[0], found[1], 2e-6, Cat("kind ", kind));
  }
}

// --- Extremes

// All tokens go to expert `to`; `batch` of them, of one token each, in one pool.
void ExpectOneExpertAlone(int64_t to, int64_t batch, double capacity, const char* mesh) {
  SCOPED_TRACE(Cat("to ", to, " of ", batch, ", capacity ", capacity, " on ", mesh));
  nn::ExpertsOptions o = SmallExperts();
  o.capacity = capacity;
  o.pools = 1;
  o.aux_loss = 0;
  const int64_t room = capacity == 0 ? batch : std::max<int64_t>(1, std::ceil(capacity * batch / kExperts));
  ExpectOthersUntouched(to, batch, o, mesh, std::max<double>(0, batch - room) / batch);
}

TEST(Experts, LeaveThoseThatNoneChoosesAlone) {
  for (const char* mesh : {"cpu:dp=1", "cpu:ep=2", "cpu:tp=2"})
    for (int64_t to : {0, 3})
      for (int64_t batch : {1, 13})
        for (double capacity : {0., 1.}) ExpectOneExpertAlone(to, batch, capacity, mesh);
}

// --- What goes between ranks

// With P pools, c places of an expert in a pool, E experts and n ranks: from each rank (n-1)/n (P/n) E c
// rows, and as many back; the same for gradients.
TEST(Experts, SendTheRowsOfTheirPlaces) {
  constexpr int n = 4;
  auto sent = [](int64_t layers, bool trained) {
    Model model(ExpertMesh("cpu:dp=4"));
    nn::ExpertsOptions o = SmallExperts();
    o.experts = 8;
    o.ep = "dp";
    Tensor x = model.Input("x", {8, 64, kWidth}, DType::kFloat32, {{"dp", S(0)}});
    Tensor y = nn::layers(model.scope(), x, layers,
                          [&](Scope s, Tensor h, int64_t) { return h + nn::Experts(s / "experts", h, o).y; });
    Session session = trained ? Train(mean(square(y)), Sgd{.lr = .1}, {}) : Evaluate({{"y", y}});
    return session.Summaries()[0].bytes_sent;
  };
  const double c = std::ceil(2. * 64 / 8), rows = (n - 1.) / n * (8. / n) * 8 * c;
  EXPECT_EQ(sent(3, false) - sent(1, false), 2 * 2 * rows * kWidth * 4);
  // Besides: the router's gradient, and what is shown.
  const double trained = (sent(3, true) - sent(1, true)) / 2, want = 4 * rows * kWidth * 4;
  EXPECT_GE(trained, want);
  EXPECT_LE(trained, want + 2 * (kWidth * 8 + 32) * 4);
}

// Over all that else is parts of the batch and of products: weights of experts stay where they are.
TEST(Experts, OverSeveralAxesSendTheRowsOfTheirPlaces) {
  constexpr int n = 8;
  auto session = [](Model& model, int64_t layers) {
    nn::ExpertsOptions o = SmallExperts();
    o.experts = 16;
    o.ep = "dp*cp*tp";
    Tensor x = model.Input("x", {16, 64, kWidth}, DType::kFloat32, {{"dp", S(0)}});
    return Train(mean(square(nn::layers(
                     model.scope(), x, layers,
                     [&](Scope s, Tensor h, int64_t) { return h + nn::Experts(s / "experts", h, o).y; }))),
                 Sgd{.lr = .1});
  };
  std::string text;
  double sent[2];
  for (int64_t layers : {1, 3}) {
    Model model(ExpertMesh("cpu:dp=2,cp=2,tp=2"));
    const Session train = session(model, layers);
    sent[layers / 3] = train.Summaries()[0].bytes_sent;
    text = train.ExplainText();
  }
  for (const char* weight : {"/up", "/down"})
    EXPECT_EQ(text.find(Cat("all_gather of block1/experts", weight)), std::string::npos) << text;
  const double c = std::ceil(2. * 64 / 16), rows = (n - 1.) / n * (16. / n) * 16 * c;
  const double exchanged = 4 * rows * kWidth * 4;
  // What attention would have whole along cp and tp is gathered behind the experts, and its gradient cut.
  const double whole = 16. * 64 * kWidth * 4 / 2 * 3 / 4;
  EXPECT_GE((sent[1] - sent[0]) / 2, exchanged);
  EXPECT_LE((sent[1] - sent[0]) / 2, exchanged + 2 * whole + 2 * (kWidth * 16 + 64) * 4);
}

// --- What it shows and refuses

TEST(Experts, RaiseTheBiasOfThoseThatFewChoose) {
  Model model(ExpertMesh("cpu:dp=2"));
  nn::ExpertsOptions o = SmallExperts();
  o.bias_balance = .25;
  Tensor x = model.Input("x", kShape, DType::kFloat32, {{"dp", S(0)}});
  const nn::ExpertsResult result = nn::Experts(model.scope() / "e", x, o);
  TrainOptions options;
  options.micro_batches = 2;
  Session train = Train(mean(square(result.y)), Sgd{.lr = .1}, options);
  std::vector<double> bias(kExperts);
  for (int step = 0; step < 3; ++step) {
    StepResult r = train.Run({{"x", Floats(step, kShape)}});
    const float* load = r.Get("e/load").as<float>();
    EXPECT_NEAR(r.Scalar("e/load_max"), kExperts * *std::max_element(load, load + kExperts), 1e-6);
    for (int64_t e = 0; e < kExperts; ++e) bias[e] += load[e] < .25 ? .25 : load[e] > .25 ? -.25 : 0;
    for (int64_t e = 0; e < kExperts; ++e)
      EXPECT_EQ(model.Read("e/balance_bias").as<float>()[e], bias[e]) << step << " " << e;
  }
}

// A run with the capacity that is shown drops nothing; the profile proposes it, over all steps. Two ranks
// have two experts each.
TEST(Experts, ShowTheCapacityThatIsWantedAndLoadsOfRanks) {
  auto dropped = [&](double capacity, double* wanted, std::string* profile) {
    Model model(ExpertMesh("cpu:ep=2"));
    nn::ExpertsOptions o = SmallExperts();
    o.capacity = capacity;
    Tensor x = model.Input("x", kShape, DType::kFloat32);
    Session train = Train(mean(square(nn::Experts(model.scope() / "e", x, o).y)), Sgd{.lr = 0}, {});
    float share = 0;
    *wanted = 0;
    for (int step = 0; step < 3; ++step) {
      StepResult r = train.Run({{"x", Floats(step, kShape)}});
      *wanted = std::max<double>(*wanted, r.Scalar("e/capacity"));
      share = std::max(share, r.Scalar("e/dropped"));
      const float* load = r.Get("e/load").as<float>();
      EXPECT_NEAR(r.Scalar("e/rank_load_max"), 2 * std::max(load[0] + load[1], load[2] + load[3]), 1e-6);
    }
    *profile = train.ProfileText();
    return share;
  };
  double wanted = 0, again = 0;
  std::string profile;
  EXPECT_GT(dropped(.9, &wanted, &profile), 0);
  EXPECT_GT(wanted, .9);
  char proposal[80];
  std::snprintf(proposal, sizeof proposal, "with capacity %.4g e would have dropped nothing in these steps",
                std::ceil(100 * wanted) / 100);
  EXPECT_NE(profile.find(proposal), std::string::npos) << profile;
  EXPECT_EQ(dropped(wanted, &again, &profile), 0);
  EXPECT_EQ(again, wanted);
  EXPECT_GT(dropped(wanted - .4, &again, &profile), 0);
}

TEST(Experts, NameWhatDoesNotFit) {
  auto refuse = [](const std::string& wanted, const std::function<void()>& run) {
    const std::string error = ErrorOf(run);
    EXPECT_TRUE(std::regex_search(error, std::regex(wanted))) << error << "\n  wanted: " << wanted;
  };
  {
    Model model(ExpertMesh("cpu:dp=4,ep=2"));
    Tensor x = model.Input("x", kShape, DType::kFloat32, {{"dp", S(0)}});
    refuse(
        "^nn::Experts 'e' at experts_test.cc:\\d+: pools is 2, but mesh axis dp cuts tokens into 4 parts, "
        "each of whole "
        "pools; make it a multiple of 4",
        [&] { nn::Experts(model.scope() / "e", x, {.pools = 2}); });
  }
  Model model(ExpertMesh("cpu:dp=1"));
  Tensor x = model.Input("x", kShape, DType::kFloat32, {{"dp", S(0)}});
  TrainOptions options;
  options.micro_batches = 4;
  refuse("^Train at .*nn::Experts 'e' at experts_test.cc:\\d+.*4 micro-batches",
         [&] { Train(mean(nn::Experts(model.scope() / "e", x, {.pools = 2}).y), Sgd{}, options); });
  nn::ExpertsOptions o = SmallExperts();
  o.overflow = nn::ExpertOverflow::kError;
  Session train = Train(mean(nn::Experts(model.scope() / "f", x, o).y), Sgd{}, {});
  refuse(
      "nn::Experts 'f' at experts_test.cc:\\d+.*: expert \\d is chosen \\d times in pool \\d but has room "
      "for 3",
      [&] {
        train.Run({{"x", Floats(1, kShape)}}).Wait();
      });
}

// As moe has saved them since its first version.
TEST(Experts, HaveTheWeightsOfOldCheckpoints) {
  Model model(ExpertMesh("cpu:dp=1"));
  Tensor x = model.Input("x", kShape, DType::kFloat32);
  Session train = Train(mean(nn::Experts(model.scope() / "experts", x, SmallExperts()).y), Sgd{}, {});
  std::map<std::string, Dims> weights;
  for (const std::string& name : model.Variables())
    if (name.find(':') == std::string::npos) weights[name] = model.Read(name).shape;
  EXPECT_EQ(weights, (std::map<std::string, Dims>{{"experts/gate", {kWidth, kExperts}},
                                                  {"experts/up", {kExperts, kWidth, kInner}},
                                                  {"experts/down", {kExperts, kInner, kWidth}}}));
}

}  // namespace
}  // namespace oneflow_like
