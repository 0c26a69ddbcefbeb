// Every option that is a number, with numbers that make no sense, or that fp32 does not hold: each is refused
// by a sentence of one line that begins with the function and the user's line and names the option, or gives
// results that are finite. The same for numbers cast to an enum, and for numbers beside tensors of each type.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "ops/language/losses.h"
#include "ops/language/sparse.h"
#include "ops/language/vision.h"
#include "tests/oneflow_like/session_fixture.h"

namespace oneflow_like {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNumbers[] = {NAN, kInf, -kInf, -1, 0, 1e-300, 1e-39, 0.5, 1 - 1e-12, 1, 2, 1e39, -1e39, 1e300};

// Operands of a use: x[4 6], of numbers in [-1, 1), and ids[4] in [0, 6).
struct Given {
  Model model{FullMesh("cpu:dp=2")};
  Scope s = model.scope();
  Tensor x = model.Input("x", {4, 6}, DType::kFloat32, {{"dp", S(0)}});
  Tensor ids = model.Input("ids", {4}, DType::kInt32, {{"dp", S(0)}});
  Tensor w(const Dims& shape = {6}) { return s.Weight(Cat("w", shape.str()), shape, Normal(1)); }
  Tensor heads() { return reshape(x, {4, 3, 1, 2}); }
};

struct Option {
  const char* caller;
  const char* name;
  std::function<Tensor(Given&, double)> use;
};

const std::vector<Option>& Options() {
  static const auto* const options = new std::vector<Option>{
      {"scale", "factor", [](Given& g, double n) { return scale(g.x, n); }},
      {"shift", "offset", [](Given& g, double n) { return shift(g.x, n); }},
      {"add", "number", [](Given& g, double n) { return g.x + n; }},
      {"sub", "number", [](Given& g, double n) { return n - g.x; }},
      {"mul", "number", [](Given& g, double n) { return g.x * n; }},
      {"div", "number", [](Given& g, double n) { return g.x / n; }},
      {"maximum", "number", [](Given& g, double n) { return maximum(g.x, n); }},
      {"minimum", "number", [](Given& g, double n) { return minimum(g.x, n); }},
      {"remainder", "number", [](Given& g, double n) { return remainder(g.x, n); }},
      {"floor_divide", "number", [](Given& g, double n) { return floor_divide(g.x, n); }},
      {"pow", "number", [](Given& g, double n) { return pow(square(g.x) + 1.0, std::min(n, 2.0)); }},
      {"clamp", "low", [](Given& g, double n) { return clamp(g.x, n, 3); }},
      {"clamp", "high", [](Given& g, double n) { return clamp(g.x, -3, n); }},
      {"leaky_relu", "slope", [](Given& g, double n) { return leaky_relu(g.x, n); }},
      {"elu", "alpha", [](Given& g, double n) { return elu(g.x, n); }},
      {"norm", "p", [](Given& g, double n) { return norm(g.x, n); }},
      {"uniform", "low", [](Given& g, double n) { return uniform(g.s.graph(), {4}, n, 3); }},
      {"uniform", "high", [](Given& g, double n) { return uniform(g.s.graph(), {4}, -3, n); }},
      {"normal", "mean", [](Given& g, double n) { return normal(g.s.graph(), {4}, n, 1); }},
      {"normal", "stddev", [](Given& g, double n) { return normal(g.s.graph(), {4}, 0, n); }},
      {"truncated_normal", "mean",
       [](Given& g, double n) { return truncated_normal(g.s.graph(), {4}, n, 1); }},
      {"truncated_normal", "stddev",
       [](Given& g, double n) { return truncated_normal(g.s.graph(), {4}, 0, n); }},
      {"arange", "begin", [](Given& g, double n) { return arange(g.s.graph(), n, std::max(n, -1e6) + 3); }},
      {"arange", "end", [](Given& g, double n) { return arange(g.s.graph(), 0, n); }},
      {"arange", "step", [](Given& g, double n) { return arange(g.s.graph(), 0, 3, n); }},
      {"layer_norm", "eps", [](Given& g, double n) { return layer_norm(g.x, g.w(), g.w(), n); }},
      {"rms_norm", "eps", [](Given& g, double n) { return rms_norm(g.x, g.w(), n); }},
      {"group_norm", "eps", [](Given& g, double n) { return group_norm(g.x, 2, g.w(), g.w(), n); }},
      {"batch_norm", "eps", [](Given& g, double n) { return batch_norm(g.x, g.w(), g.w(), n).y; }},
      {"batch_norm_eval", "eps",
       [](Given& g, double n) { return batch_norm_eval(g.x, g.w(), g.w(), g.w(), square(g.w()), n); }},
      {"attention", "dropout",
       [](Given& g, double n) { return attention(g.heads(), g.heads(), g.heads(), {.dropout = n}); }},
      {"attention", "scale",
       [](Given& g, double n) { return attention(g.heads(), g.heads(), g.heads(), {.scale = n}); }},
      {"dropout", "p", [](Given& g, double n) { return dropout(g.x, n); }},
      {"rope", "base",
       [](Given& g, double n) {
         return rope(g.heads(), g.ids[0] + arange(g.s.graph(), 0, 3, 1, DType::kInt32), {.base = n});
       }},
      {"rope", "scale",
       [](Given& g, double n) {
         return rope(g.heads(), arange(g.s.graph(), 0, 3, 1, DType::kInt32), {.scale = n});
       }},
      {"rope", "factor",
       [](Given& g, double n) {
         return rope(g.heads(), arange(g.s.graph(), 0, 3, 1, DType::kInt32),
                     {.trained_length = 8, .factor = n});
       }},
      {"rope", "low_turns",
       [](Given& g, double n) {
         return rope(g.heads(), arange(g.s.graph(), 0, 3, 1, DType::kInt32),
                     {.trained_length = 8, .low_turns = n});
       }},
      {"rope", "high_turns",
       [](Given& g, double n) {
         return rope(g.heads(), arange(g.s.graph(), 0, 3, 1, DType::kInt32),
                     {.trained_length = 8, .high_turns = n});
       }},
      {"huber_loss", "delta", [](Given& g, double n) { return huber_loss(g.x, g.w(), n); }},
      {"smooth_l1_loss", "beta", [](Given& g, double n) { return smooth_l1_loss(g.x, g.w(), n); }},
      {"linear_cross_entropy", "z_loss",
       [](Given& g, double n) { return linear_cross_entropy(g.x, g.w({6, 6}), g.ids, {.z_loss = n}); }},
      {"cross_entropy", "label_smoothing",
       [](Given& g, double n) { return cross_entropy(g.x, g.ids, {.label_smoothing = n}); }},
      {"cross_entropy", "z_loss",
       [](Given& g, double n) { return cross_entropy(g.x, g.ids, {.z_loss = n}); }},
      {"sigmoid_focal_loss", "alpha",
       [](Given& g, double n) { return sigmoid_focal_loss(g.x, abs(g.x), {.alpha = n}); }},
      {"sigmoid_focal_loss", "gamma",
       [](Given& g, double n) { return sigmoid_focal_loss(g.x, abs(g.x), {.gamma = n}); }},
      {"focal_loss", "gamma", [](Given& g, double n) { return focal_loss(g.x, g.ids, {.gamma = n}); }},
      {"triplet_margin_loss", "margin",
       [](Given& g, double n) { return triplet_margin_loss(g.x, -g.x, g.x * 2, {.margin = n}); }},
      {"triplet_margin_loss", "eps",
       [](Given& g, double n) { return triplet_margin_loss(g.x, -g.x, g.x * 2, {.eps = n}); }},
      {"triplet_margin_loss", "p",
       [](Given& g, double n) { return triplet_margin_loss(g.x, -g.x, g.x * 2, {.p = n}); }},
      {"cholesky", "shift",
       [](Given& g, double n) { return cholesky(matmul(g.x, transpose(g.x, {1, 0})), 5 + std::abs(n)); }},
      {"solve", "shift",
       [](Given& g, double n) { return solve(slice(g.x, 1, 0, 4), g.x, 20 + std::abs(n)); }},
      {"cosine_similarity", "eps", [](Given& g, double n) { return cosine_similarity(g.x, g.x, -1, n); }},
      {"sgd_rows", "lr",
       [](Given& g, double n) {
         return sgd_rows(g.w({6, 6}), unique_rows(g.ids, g.x), {.lr = n});
       }},
      {"sgd_rows", "weight_decay",
       [](Given& g, double n) {
         return sgd_rows(g.w({6, 6}), unique_rows(g.ids, g.x), {.lr = 1, .weight_decay = n});
       }},
      {"adagrad_rows", "lr",
       [](Given& g, double n) {
         return adagrad_rows(g.w({6, 6}), g.s.State("s", {6}, Ones()), unique_rows(g.ids, g.x), {.lr = n})
             .table;
       }},
      {"adagrad_rows", "eps",
       [](Given& g, double n) {
         return adagrad_rows(g.w({6, 6}), g.s.State("s", {6}, Ones()), unique_rows(g.ids, g.x), {.eps = n})
             .table;
       }},
      {"nn::LayerNorm", "eps", [](Given& g, double n) { return nn::LayerNorm(g.s, g.x, n); }},
      {"nn::RmsNorm", "eps", [](Given& g, double n) { return nn::RmsNorm(g.s, g.x, n); }},
      {"nn::GroupNorm", "eps", [](Given& g, double n) { return nn::GroupNorm(g.s, g.x, 3, n); }},
      {"nn::BatchNorm", "eps",
       [](Given& g, double n) { return nn::BatchNorm(g.s, g.x, {.eps = n, .parts = 2}); }},
      {"nn::BatchNorm", "momentum",
       [](Given& g, double n) { return nn::BatchNorm(g.s, g.x, {.momentum = n}); }},
      {"nn::Attention", "dropout",
       [](Given& g, double n) { return nn::Attention(g.s, reshape(g.x, {4, 3, 2}), {.dropout = n}); }},
      {"nn::Experts", "capacity",
       [](Given& g, double n) { return nn::Experts(g.s, reshape(g.x, {4, 3, 2}), {.capacity = n}).y; }},
      {"nn::Experts", "room",
       [](Given& g, double n) { return nn::Experts(g.s, reshape(g.x, {4, 3, 2}), {.room = n}).y; }},
      {"nn::Experts", "retry_room",
       [](Given& g, double n) {
         nn::ExpertsOptions o = {.room = 8};
         o.overflow = nn::ExpertOverflow::kRetry;
         o.retry_room = n;
         return nn::Experts(g.s, reshape(g.x, {4, 3, 2}), o).y;
       }},
      {"nn::Experts", "bias_balance",
       [](Given& g, double n) { return nn::Experts(g.s, reshape(g.x, {4, 3, 2}), {.bias_balance = n}).y; }},
      {"nn::Experts", "aux_loss",
       [](Given& g, double n) {
         const nn::ExpertsResult r = nn::Experts(g.s, reshape(g.x, {4, 3, 2}), {.aux_loss = n});
         return r.loss.defined() ? r.loss : r.dropped;
       }},
      {"nn::Experts", "z_loss",
       [](Given& g, double n) {
         const nn::ExpertsResult r = nn::Experts(g.s, reshape(g.x, {4, 3, 2}), {.z_loss = n});
         return r.loss.defined() ? r.loss : r.dropped;
       }},
      {"nn::Experts", "jitter",
       [](Given& g, double n) { return nn::Experts(g.s, reshape(g.x, {4, 3, 2}), {.jitter = n}).y; }},
      {"nn::TransformerBlock", "dropout",
       [](Given& g, double n) { return nn::TransformerBlock(g.s, reshape(g.x, {4, 3, 2}), {.dropout = n}); }},
      {"nn::TransformerBlock", "eps",
       [](Given& g,
          double n) { return nn::TransformerBlock(g.s, reshape(g.x, {4, 3, 2}), {.norm_eps = n}); }},
      {"weight 'v'", "value", [](Given& g, double n) { return g.s.Weight("v", {3}, Full(n)); }},
      {"weight 'v'", "low", [](Given& g, double n) { return g.s.Weight("v", {3}, Uniform(n, 3)); }},
      {"weight 'v'", "high", [](Given& g, double n) { return g.s.Weight("v", {3}, Uniform(-3, n)); }},
      {"weight 'v'", "standard deviation",
       [](Given& g, double n) { return g.s.Weight("v", {3}, Normal(n)); }},
      {"weight 'v'", "mean", [](Given& g, double n) { return g.s.Weight("v", {3}, TruncatedNormal(1, n)); }},
      {"weight 'v'", "gain", [](Given& g, double n) { return g.s.Weight("v", {3, 2}, Orthogonal(n)); }},
      {"state 'v'", "value", [](Given& g, double n) { return g.s.State("v", {3}, Full(n)); }},
      {"weight 'v'", "decay", [](Given& g, double n) { return g.s.Weight("v", {3}, Ones(), {.decay = n}); }},
      {"weight 'v'", "rate", [](Given& g, double n) { return g.s.Weight("v", {3}, Ones(), {.rate = n}); }},
  };
  return *options;
}

// Empty, or what is wrong with the sentence that refuses an option.
std::string Fault(const std::string& caller, const std::string& name, const std::string& said) {
  const std::string begin = caller + " at option_numbers_test.cc:";
  if (!said.starts_with(begin)) return "does not begin with " + begin;
  if (said.find(name, begin.size()) == std::string::npos) return "does not name " + name;
  if (said.find('\n') != std::string::npos || said.size() > 300) return "is long";
  return "";
}

void ExpectFinite(const HostTensor& value) {
  for (int64_t i = 0; i < value.elements(); ++i)
    ASSERT_TRUE(std::isfinite(value.as<float>()[i])) << "element " << i << " is " << value.as<float>()[i];
}

Feeds Batch() { return {{"x", Floats(3, {4, 6})}, {"ids", Ids(5, {4}, 6)}}; }

TEST(OptionNumbers, AreRefusedOrGiveFiniteResults) {
  for (const Option& option : Options()) {
    int refused = 0, taken = 0;
    for (double number : kNumbers) {
      SCOPED_TRACE(Cat(option.caller, ", ", option.name, " = ", number));
      Given given;
      Tensor y;
      const std::string said = ErrorOf([&] { y = option.use(given, number); });
      if (said.empty()) {
        ++taken;
        Session session = Evaluate({{"y", y}});
        ExpectFinite(session.Run(Batch()).Get("y"));
      } else {
        ++refused;
        EXPECT_EQ(Fault(option.caller, option.name, said), "") << said;
      }
    }
    EXPECT_GT(refused, 0) << option.caller << " " << option.name;
    EXPECT_GT(taken, 0) << option.caller << " " << option.name;
  }
}

struct TrainingOption {
  const char* name;
  std::function<void(double, Optimizer*, TrainOptions*)> set;
};

TEST(OptionNumbers, OfTrainingAreRefusedOrKeepWeightsFinite) {
  using Kind = Schedule::Kind;
  const std::vector<TrainingOption> options = {
      {"lr", [](double n, Optimizer* o, TrainOptions*) { *o = Sgd{.lr = n}; }},
      {"momentum", [](double n, Optimizer* o, TrainOptions*) { *o = Sgd{.lr = 0.1, .momentum = n}; }},
      {"weight_decay", [](double n, Optimizer* o, TrainOptions*) { *o = Sgd{.lr = 0.1, .weight_decay = n}; }},
      {"beta1", [](double n, Optimizer* o, TrainOptions*) { *o = Adam{.beta1 = n}; }},
      {"beta2", [](double n, Optimizer* o, TrainOptions*) { *o = AdamW{.beta2 = n}; }},
      {"eps", [](double n, Optimizer* o, TrainOptions*) { *o = Adam{.eps = n}; }},
      {"eps", [](double n, Optimizer* o, TrainOptions*) { *o = RmsProp{.eps = n}; }},
      {"alpha", [](double n, Optimizer* o, TrainOptions*) { *o = RmsProp{.alpha = n}; }},
      {"eps", [](double n, Optimizer* o, TrainOptions*) { *o = Adagrad{.eps = n}; }},
      {"initial", [](double n, Optimizer* o, TrainOptions*) { *o = Adagrad{.initial = n}; }},
      {"eps", [](double n, Optimizer* o, TrainOptions*) { *o = Lamb{.eps = n}; }},
      {"beta2", [](double n, Optimizer* o, TrainOptions*) { *o = Lamb{.beta2 = n}; }},
      {"beta1", [](double n, Optimizer* o, TrainOptions*) { *o = Lion{.beta1 = n}; }},
      {"momentum", [](double n, Optimizer* o, TrainOptions*) { *o = Muon{.momentum = n}; }},
      {"iterations",
       [](double n, Optimizer* o, TrainOptions*) {
         *o = Muon{.iterations = std::isfinite(n) ? static_cast<int>(std::max(-1e9, std::min(n, 1e9))) : -7};
       }},
      {"others", [](double n, Optimizer* o, TrainOptions*) { *o = Muon{.others = Sgd{.lr = n}}; }},
      {"clip_norm", [](double n, Optimizer*, TrainOptions* t) { t->clip_norm = n; }},
      {"clip_value", [](double n, Optimizer*, TrainOptions* t) { t->clip_value = n; }},
      {"clip_groups",
       [](double n, Optimizer*, TrainOptions* t) {
         t->clip_groups = {{"*", n}};
       }},
      {"skip.above", [](double n, Optimizer*, TrainOptions* t) { t->skip.above = n; }},
      {"skip.times", [](double n, Optimizer*, TrainOptions* t) { t->skip.times = n; }},
      {"final", [](double n, Optimizer*,
                   TrainOptions* t) { t->lr_schedule = {.kind = Kind::kLinear, .total = 9, .final = n}; }},
      {"gamma", [](double n, Optimizer*,
                   TrainOptions* t) { t->lr_schedule = {.kind = Kind::kStep, .every = 9, .gamma = n}; }},
      {"power",
       [](double n, Optimizer*, TrainOptions* t) {
         t->lr_schedule = {.kind = Kind::kPolynomial, .total = 9, .power = n};
       }},
      {"overlap.gain", [](double n, Optimizer*, TrainOptions* t) { t->overlap.gain = n; }},
      {"average.decay", [](double n, Optimizer*, TrainOptions* t) { t->average.decay = n; }},
      {"average.warmup",
       [](double n, Optimizer*, TrainOptions* t) { t->average = {.decay = 0.9, .warmup = n}; }},
      {"group \"*\"",
       [](double n, Optimizer* o, TrainOptions*) {
         *o = Groups({{"*", Sgd{.lr = n}}});
       }},
  };
  for (const TrainingOption& option : options) {
    int refused = 0, taken = 0;
    for (double number : kNumbers) {
      SCOPED_TRACE(Cat(option.name, " = ", number));
      Given given;
      Tensor loss = mean(square(matmul(given.x, given.w({6, 5}))));
      Optimizer optimizer = Sgd{.lr = 0.01};
      TrainOptions train;
      option.set(number, &optimizer, &train);
      std::optional<Session> session;
      const std::string said = ErrorOf([&] { session.emplace(Train(loss, optimizer, train)); });
      if (said.empty()) {
        ++taken;
        for (int step = 0; step < 2; ++step) session->Run(Batch()).Wait();
        ExpectFinite(given.model.Read("w[6,5]"));
      } else {
        ++refused;
        EXPECT_EQ(Fault("Train", option.name, said), "") << said;
      }
    }
    EXPECT_GT(refused, 0) << option.name;
    EXPECT_GT(taken, 0) << option.name;
  }
}

// A number becomes a tensor of the operand's type only if that holds it.
TEST(OptionNumbers, BesideTensorsAreOfTheirTypes) {
  const std::vector<std::pair<DType, std::vector<double>>> refused = {
      {DType::kFloat32, {1e39, -1e300}},
      {DType::kBFloat16, {3.4e38, 1e39}},
      {DType::kFloat16, {65536, -1e5, 1e300}},
      {DType::kInt32, {1e300, 2147483648.0, -2147483649.0, 0.5, NAN, kInf}},
      {DType::kInt64, {0x1p63, -1e19, 0.5, NAN}},
      {DType::kUInt8, {256, -1, 0.5, -kInf}}};
  const std::vector<std::pair<DType, std::vector<double>>> taken = {
      {DType::kFloat32, {3.4e38, 1e-300}}, {DType::kBFloat16, {3.3e38}},
      {DType::kFloat16, {65504, -65504}},  {DType::kInt32, {2147483647.0, -2147483648.0}},
      {DType::kInt64, {-0x1p63, 0x1p62}},  {DType::kUInt8, {0, 255}}};
  for (const auto* all : {&refused, &taken})
    for (const auto& [dtype, numbers] : *all)
      for (double number : numbers) {
        SCOPED_TRACE(Cat(number, " beside ", Name(dtype)));
        Model model(FullMesh("cpu:dp=1"));
        Tensor x = model.Input("x", {3}, dtype);
        const std::string made = ErrorOf([&] { full(model.builder(), {3}, number, dtype); }),
                          added = ErrorOf([&] { x + number; }), subtracted = ErrorOf([&] { x - number; }),
                          compared = ErrorOf([&] { less(x, number); });
        if (all == &taken) {
          EXPECT_EQ(made + added + subtracted + compared, "");
          continue;
        }
        EXPECT_EQ(Fault("full", Name(dtype), made), "") << made;
        EXPECT_EQ(Fault("add", Cat(number), added), "") << added;
        EXPECT_EQ(Fault("sub", Cat(number), subtracted), "") << subtracted;
        EXPECT_EQ(Fault("less", Cat(number), compared), "") << compared;
      }
  Model model(FullMesh("cpu:dp=1"));  // values, not numbers to compute with, may be infinite or no numbers
  Tensor x = model.Input("x", {3}, DType::kFloat32);
  Tensor narrow = cast(x, DType::kFloat16) * 65536;  // computed in fp32, whatever the type of x
  Session session = Evaluate({{"y", where(less(x, 0.0), -kInf, x)},
                              {"z", full(x, {2}, NAN)},
                              {"bounded", minimum(maximum(x, -kInf), kInf)},
                              {"scaled", cast(narrow, DType::kFloat32)}});
  HostTensor values = HostTensor::Make(DType::kFloat32, {3});
  const float numbers[] = {-0.5f, 0.25f, 0};
  std::copy_n(numbers, 3, reinterpret_cast<float*>(values.data.get()));
  StepResult result = session.Run({{"x", values}});
  EXPECT_TRUE(std::isnan(result.Get("z").as<float>()[1]));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(result.Get("bounded").as<float>()[i], numbers[i]);
    EXPECT_EQ(result.Get("scaled").as<float>()[i], 65536 * numbers[i]);
  }
}

TEST(OptionNumbers, CastToEnumsAreRefused) {
  using Case = std::tuple<const char*, const char*, std::function<void(Given&)>>;
  const auto no_type = static_cast<DType>(77);
  const std::vector<Case> cases = {
      {"embedding_bag", "mode is 7, which is no Bag",
       [](Given& g) {
         embedding_bag(g.x, reshape(g.ids, {2, 2}), g.ids[0], static_cast<Bag>(7));
       }},
      {"embedding_bag", "mode is -1",
       [](Given& g) {
         embedding_bag(g.x, reshape(g.ids, {2, 2}), g.ids[0], static_cast<Bag>(-1));
       }},
      {"interpolate", "mode is 9, which is no ResizeMode",
       [](Given& g) { interpolate(g.heads(), 2, 2, {.mode = static_cast<ResizeMode>(9)}); }},
      {"nn::Experts", "overflow is 3, which is no nn::ExpertOverflow",
       [](Given& g) { nn::Experts(g.s, g.x, {.overflow = static_cast<nn::ExpertOverflow>(3)}); }},
      {"nn::Experts", "order is 2, which is no nn::ExpertOrder",
       [](Given& g) { nn::Experts(g.s, g.x, {.order = static_cast<nn::ExpertOrder>(2)}); }},
      {"nn::Experts", "score is 2, which is no nn::ExpertScore",
       [](Given& g) { nn::Experts(g.s, g.x, {.score = static_cast<nn::ExpertScore>(2)}); }},
      {"nn::Linear", "parallel is 3, which is no nn::Parallel",
       [](Given& g) { nn::Linear(g.s, g.x, 3, {.parallel = static_cast<nn::Parallel>(3)}); }},
      {"weight 'v'", "kind of its initialiser is 10",
       [](Given& g) { g.s.Weight("v", {3}, {static_cast<Initializer::Kind>(10)}); }},
      {"weight 'v'", "dtype is 77, which is no DType",
       [=](Given& g) { g.s.Weight("v", {3}, Ones(), {.trainable = false, .dtype = no_type}); }},
      {"state 'v'", "dtype is 77", [=](Given& g) { g.s.State("v", {3}, Ones(), {.dtype = no_type}); }},
      {"input 'v'", "dtype is 77", [=](Given& g) { g.model.Input("v", {3}, no_type); }},
      {"cast", "dtype is 77", [=](Given& g) { cast(g.x, no_type); }},
      {"full", "dtype is 77", [=](Given& g) { full(g.s.graph(), {3}, 1, no_type); }},
      {"arange", "dtype is 77", [=](Given& g) { arange(g.s.graph(), 0, 3, 1, no_type); }},
      {"Evaluate", "dtype is 77",
       [=](Given& g) {
         Evaluate({{"x", g.x}}, {.dtype = no_type});
       }},
      {"Evaluate", "schedule is 4",
       [](Given& g) {
         Evaluate({{"x", g.x}}, {.schedule = static_cast<PipelineSchedule>(4)});
       }},
      {"Train", "recompute is 200",
       [](Given& g) {
         TrainOptions options;
         options.recompute = static_cast<Recompute>(200);
         Train(mean(g.x * g.w()), Sgd{}, options);
       }},
      {"Train", "there is no schedule \"number 17\"",
       [](Given& g) {
         TrainOptions options;
         options.lr_schedule.kind = static_cast<Schedule::Kind>(17);
         Train(mean(g.x * g.w()), Sgd{}, options);
       }},
  };
  for (const auto& [caller, says, use] : cases) {
    Given given;
    const std::string said = ErrorOf([&] { use(given); });
    EXPECT_EQ(Fault(caller, says, said), "") << said;
  }
}

}  // namespace
}  // namespace oneflow_like
