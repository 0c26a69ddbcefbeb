// Averages of weights: TrainOptions::average beside a plain computation on every mesh; evaluation,
// checkpoints, export and generation with them; averages kept by hand; wrong uses.
// ctest: seconds=12 asan=120
// tsan=120
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <regex>

#include "examples/gpt_huggingface.h"
#include "oneflow_like/checkpoint/reader.h"
#include "oneflow_like/checkpoint/source.h"
#include "oneflow_like/generation/generator.h"
#include "tests/oneflow_like/host_net.h"
#include "tests/oneflow_like/small_gpt.h"
#include "tests/oneflow_like/thread_job.h"

namespace oneflow_like {

using namespace examples;
namespace {

constexpr int kRows = 12, kIn = 5, kHidden = 4, kOut = 2;
const char* const kNames[] = {"up", "bias", "down"};

// A training of the network, which keeps averages, and an evaluation of them.
struct Averaged {
  explicit Averaged(const Cutting& cut, const Average& average, const SessionOptions& how = {},
                    std::shared_ptr<Job> job = nullptr)
      : model(FullMesh(cut.mesh), In(std::move(job), cut.options())) {
    const int last = model.mesh().axis_size(2) - 1;
    Tensor x = model.Input("x", {kRows, kIn}, DType::kFloat32, {{"dp", S(0)}});
    y = MeshNet(model.scope() / "net", x, kHidden, kOut, 0, last);
    static_cast<SessionOptions&>(options) = how;
    options.micro_batches = cut.micro_batches;
    options.average = average;
  }
  static ModelOptions In(std::shared_ptr<Job> job, ModelOptions options) {
    options.job = std::move(job);
    if (options.job) options.threads = 1;
    return options;
  }
  Session TrainIt() { return Train(mean(square(y - 0.5)), Sgd{.lr = 0.2, .momentum = 0.8}, options); }
  Feeds MakeFeeds(int step) const { return {{"x", Floats(100 + step, {kRows, kIn})}}; }
  Numbers Of(const std::string& name) const { return NumbersOf(model.Read(name)); }

  Model model;
  Tensor y;
  TrainOptions options;
};

// Of the average before the `t`-th update, counted from 0.
double Kept(const Average& a, int64_t t) {
  if (t <= a.from) return 0;
  return a.warmup == 0 ? a.decay : std::min(a.decay, 1 - std::pow(1.0 + (t - a.from), -a.warmup));
}

TEST(Average, FollowsAPlainComputationOnEveryMesh) {
  for (const Average& average : {Average{.decay = 0.75}, Average{.decay = 0.75, .warmup = 2. / 3},
                                 Average{.decay = 1, .warmup = 1}, Average{.decay = 0.5, .from = 2}})
    for (const Cutting& cut : kCuttings) {
      SCOPED_TRACE(Cat(cut.str(), " decay=", average.decay, " warmup=", average.warmup));
      Averaged run(cut, average);
      Session train = run.TrainIt(), look = Evaluate({{"y", run.y}}, {.weights = "average"});
      HostNet net = HostNetOf(run.model, "net/", kIn, kHidden, kOut), mean = net;
      std::map<std::string, Numbers> velocity;
      const HostTensor probe = Floats(7, {kRows, kIn});
      for (int step = 0; step < 5; ++step) {
        EXPECT_LE(Apart(NumbersOf(look.Run({{"x", probe}}).Get("y")), mean.Forward(NumbersOf(probe)).y), 2e-6)
            << "before step " << step;
        const float loss = train.Run(run.MakeFeeds(step)).Scalar("loss");
        const HostNet::Pass pass = net.Forward(NumbersOf(run.MakeFeeds(step).at("x")));
        const auto [wanted, dy] = MeanSquare(pass.y, 0.5);
        EXPECT_NEAR(loss, wanted, 2e-6);
        std::map<std::string, Numbers> gradients;
        (void)net.Backward(pass, dy, &gradients);
        const double keep = Kept(average, step);
        for (const char* name : kNames) {
          velocity[name].resize(gradients[name].size());
          for (size_t i = 0; i < gradients[name].size(); ++i) {
            velocity[name][i] = 0.8 * velocity[name][i] + gradients[name][i];
            net.weights[name][i] -= 0.2 * velocity[name][i];
            mean.weights[name][i] = keep * mean.weights[name][i] + (1 - keep) * net.weights[name][i];
          }
          EXPECT_LE(Apart(run.Of(Cat("net/", name)), net.weights[name]), 2e-6) << name << " step " << step;
          EXPECT_LE(Apart(run.Of(Cat("train:average/net/", name)), mean.weights[name]), 2e-6)
              << name << " step " << step;
        }
      }
      EXPECT_EQ(run.Of("train:averages"), Numbers{5});
    }
}

// Of fp32 weights, whatever the type that the network computes in; steps that fp16 skips leave no trace.
TEST(Average, IsOfWideWeightsAndOfStepsThatCount) {
  for (DType dtype : {DType::kBFloat16, DType::kFloat16})
    for (const Cutting& cut : kCuttings) {
      SCOPED_TRACE(Cat(cut.str(), " ", Name(dtype)));
      std::map<std::string, Numbers> found[2];
      for (int skips = 0; skips < (dtype == DType::kFloat16 ? 2 : 1); ++skips) {
        SessionOptions how;
        how.dtype = dtype;
        Averaged run(cut, {.decay = 0.75}, how);
        Session train = run.TrainIt();
        auto set_scale = [&](float to) {
          HostTensor scale = HostTensor::Make(DType::kFloat32, {});
          scale.as<float>()[0] = to;
          if (dtype == DType::kFloat16) run.model.Write("train:loss_scale", scale);
        };
        std::map<std::string, Numbers> wanted;
        for (int step = 0; step < 4; ++step) {
          if (skips && step % 2 == 0) {
            set_scale(1e30f);
            train.Run(run.MakeFeeds(50 + step)).Wait();
          }
          set_scale(1024);
          train.Run(run.MakeFeeds(step)).Wait();
          for (const char* name : kNames) {
            const Numbers now = run.Of(Cat("net/", name));
            Numbers& mean = wanted[name];
            mean.resize(now.size());
            const double keep = step == 0 ? 0 : 0.75;
            for (size_t i = 0; i < now.size(); ++i) mean[i] = keep * mean[i] + (1 - keep) * now[i];
            found[skips][name] = run.Of(Cat("train:average/net/", name));
            EXPECT_LE(Apart(found[skips][name], mean), 1e-6) << name << " step " << step;
          }
        }
        EXPECT_EQ(run.Of("train:averages"), Numbers{4}) << skips;
      }
      if (dtype == DType::kFloat16) EXPECT_EQ(found[1], found[0]);
    }
}

// --- What is averaged ---

// A weight used twice, one that is frozen, and running statistics: the first has one average, the others none
// and are read as they are.
TEST(Average, LeavesStatesAndFrozenWeightsAsTheyAre) {
  Model model(FullMesh("cpu:dp=2"));
  Scope s = model.scope();
  Tensor x = model.Input("x", {6, 4}, DType::kFloat32, {{"dp", S(0)}});
  auto network = [](Scope s, Tensor x, bool training) {
    Tensor shared = s.Weight("shared", {4, 4}, Normal(0.5));
    Tensor fixed = s.Weight("fixed", {4}, Ones(), {.trainable = false});
    Tensor h = matmul(matmul(x, shared), s.Weight("shared", {4, 4}, Normal(0.5))) * fixed;
    return nn::BatchNorm(s / "norm", h, {.training = training});
  };
  TrainOptions options;
  options.average.decay = 0.5;
  Session train = Train(mean(square(network(s, x, true) - x)), Sgd{.lr = 0.3}, options);
  std::vector<std::string> averages;
  for (const std::string& name : model.Variables())
    if (name.starts_with("train:average/")) averages.push_back(name.substr(14));
  EXPECT_EQ(averages, (std::vector<std::string>{"norm/beta", "norm/gamma", "shared"}));
  ModelGraph graph = model.NewGraph("eval");
  Tensor y = network(graph.scope(), graph.Input("x", {6, 4}, DType::kFloat32), false);
  Session weights = Evaluate({{"y", y}}, {.name = "weights"}),
          means = Evaluate({{"y", y}}, {.weights = "average"});
  const Feeds probe = {{"x", Floats(1, {6, 4})}};
  for (int step = 0; step < 3; ++step) train.Run({{"x", Floats(10 + step, {6, 4})}}).Wait();
  HostTensor fixed = HostTensor::Make(DType::kFloat32, {4});
  for (int i = 0; i < 4; ++i) fixed.as<float>()[i] = 1.5f + i;
  model.Write("fixed", fixed);
  const HostTensor before = weights.Run(probe).Get("y"), got = means.Run(probe).Get("y");
  EXPECT_GT(Difference(got, before), 1e-3) << "averages differ from weights";
  for (const std::string& name : averages) model.Write(name, model.Read("train:average/" + name));
  EXPECT_TRUE(SameBytes(got, weights.Run(probe).Get("y")));
}

// Weights that come from elsewhere before the first step are the averages until then.
TEST(Average, IsTheWeightUntilTheFirstUpdate) {
  for (const Cutting& cut : kCuttings) {
    SCOPED_TRACE(cut.str());
    Averaged run(cut, {.decay = 0.9});
    Session train = run.TrainIt(), look = Evaluate({{"y", run.y}}, {.weights = "average"}),
            plain = Evaluate({{"y", run.y}}, {.name = "plain"});
    const Feeds probe = run.MakeFeeds(3);
    for (int seed : {1, 2}) {
      run.model.Write("net/up", Floats(seed, {kIn, kHidden}));
      EXPECT_TRUE(SameBytes(run.model.Read("train:average/net/up"), run.model.Read("net/up")));
      EXPECT_TRUE(SameBytes(look.Run(probe).Get("y"), plain.Run(probe).Get("y")));
    }
    train.Run(run.MakeFeeds(0)).Wait();
    EXPECT_TRUE(SameBytes(look.Run(probe).Get("y"), plain.Run(probe).Get("y"))) << "the first update copies";
    train.Run(run.MakeFeeds(1)).Wait();
    EXPECT_FALSE(SameBytes(look.Run(probe).Get("y"), plain.Run(probe).Get("y")));
  }
}

// As optimizer state is: a number for each of the weight, of which ZeRO leaves a device its share.
TEST(Average, TakesTheMemoryOfAState) {
  for (int zero : {0, 1}) {
    int64_t state[2];
    for (int averages = 0; averages < 2; ++averages) {
      Averaged run({"cpu:dp=2", 1, zero}, {.decay = averages ? 0.9 : 0.0});
      const RankSummary first = run.TrainIt().Summaries()[0];
      for (const auto& [purpose, bytes] : first.purposes)
        if (purpose == "optimizer state") state[averages] = bytes;
    }
    const int64_t elements = kIn * kHidden + kHidden + kHidden * kOut;
    EXPECT_GE(state[1] - state[0], 4 * elements / (zero ? 2 : 1));
    EXPECT_LE(state[1] - state[0], 4 * elements / (zero ? 2 : 1) + 5 * 64) << "each piece is aligned to 64";
  }
}

// --- Checkpoints ---

class AverageFiles : public testing::Test {
 protected:
  ~AverageFiles() override { std::filesystem::remove_all(folder_); }
  const std::string folder_ = testing::TempDir() + "/average_test." + std::to_string(getpid());
};

TEST_F(AverageFiles, ATrainingGoesOnWithThem) {
  const Average average = {.decay = 0.9, .warmup = 0.7};
  for (const Cutting& cut : kCuttings) {
    Averaged whole(cut, average);
    Session train = whole.TrainIt();
    for (int step = 0; step < 3; ++step) train.Run(whole.MakeFeeds(step)).Wait();
    std::map<std::string, HostTensor> saved;
    for (const std::string& name : whole.model.Variables()) saved[name] = whole.model.Read(name);
    Save(whole.model, folder_).Wait();
    for (int step = 3; step < 6; ++step) train.Run(whole.MakeFeeds(step)).Wait();
    for (const Cutting& other : kCuttings) {
      SCOPED_TRACE(Cat("from ", cut.str(), " to ", other.str()));
      Averaged resumed(other, average);
      Session more = resumed.TrainIt();
      Load(resumed.model, folder_);
      for (const auto& [name, value] : saved) EXPECT_TRUE(SameBytes(resumed.model.Read(name), value)) << name;
      for (int step = 3; step < 6; ++step) more.Run(resumed.MakeFeeds(step)).Wait();
      for (const std::string& name : whole.model.Variables()) {
        const HostTensor a = resumed.model.Read(name), b = whole.model.Read(name);
        EXPECT_TRUE(&cut == &other ? SameBytes(a, b) : Difference(a, b) <= 2e-6) << name;
      }
    }
    std::filesystem::remove_all(folder_);
  }
}

// A checkpoint's averages as the weights of another model: by Load, and by what writes files for others.
TEST_F(AverageFiles, AreReadAsWeights) {
  for (int steps : {0, 3}) {  // before the first update they are the weights
    Averaged run({"cpu:dp=2", 1, 1}, {.decay = 0.9});
    Session train = run.TrainIt();
    for (int step = 0; step < steps; ++step) train.Run(run.MakeFeeds(step)).Wait();
    const std::string path = Save(run.model, folder_).Wait();
    for (const char* weights : {"average", "train:average"}) {
      Averaged other({"cpu:tp=2"}, {});
      Load(other.model, folder_, {.weights = weights});
      ConvertedSource source(std::make_shared<CheckpointReader>(path), {.weights = weights});
      std::vector<std::string> names;
      for (const auto& [name, variable] : source.variables()) names.push_back(name);
      EXPECT_EQ(names, (std::vector<std::string>{"net/bias", "net/down", "net/up"}));
      for (const std::string& name : names) {
        const HostTensor average = run.model.Read("train:average/" + name), got = other.model.Read(name);
        EXPECT_TRUE(SameBytes(got, average)) << name << " after " << steps;
        EXPECT_EQ(steps == 0, SameBytes(average, run.model.Read(name)));
        HostTensor read = HostTensor::Make(DType::kFloat32, average.shape);
        source.Read(name, Box::Whole(average.shape), read.data.get());
        EXPECT_TRUE(SameBytes(read, average)) << name;
      }
    }
    EXPECT_NE(ErrorOf([&] {
                Load(run.model, folder_, {.weights = "mean"});
              }).find("weights is \"mean\" but must be"),
              std::string::npos);
    EXPECT_NE(ErrorOf([&] {
                Load(run.model, folder_, {.weights = "late:average"});
              }).find("has no 'late:average/...'"),
              std::string::npos);
    std::filesystem::remove_all(folder_);
  }
}

// Each of several processes holds a part: what they evaluate, before the first step and after, and what they
// save is what one process does.
TEST_F(AverageFiles, AreTheSameInSeveralProcesses) {
  const Cutting cut = {"cpu:dp=2,pp=2", 2, 1};
  auto play = [&](std::shared_ptr<Job> job, const std::string& folder) {
    Averaged run(cut, {.decay = 0.75}, {}, job);
    Session train = run.TrainIt(), look = Evaluate({{"y", run.y}}, {.weights = "average"});
    Outputs seen;
    for (int step = 0; step < 3; ++step) {
      seen[Cat("y before ", step)] = look.Run(run.MakeFeeds(7)).Get("y");
      if (step == 0) Save(run.model, folder).Wait();
      train.Run(run.MakeFeeds(step)).Wait();
    }
    for (const char* name : kNames) seen[name] = run.model.Read(Cat("train:average/net/", name));
    return seen;
  };
  const Outputs alone = play(nullptr, folder_ + "/alone");
  for (int processes : {2, 4})
    for (const std::string& error : RunProcesses(processes, [&](std::shared_ptr<Job> job) {
           ExpectNear(play(job, Cat(folder_, "/", processes)), alone, 0, Cat(processes, " processes"));
         }))
      EXPECT_EQ(error, "");
  for (const char* folder : {"/alone", "/2", "/4"}) {
    Averaged other({}, {});
    Load(other.model, folder_ + folder, {.weights = "average"});
    const HostTensor y = Evaluate({{"y", other.y}}).Run(other.MakeFeeds(7)).Get("y");
    EXPECT_LE(Difference(y, alone.at("y before 0")), 2e-6) << folder;
  }
}

// A folder of Hugging Face's has them, as `checkpoint convert --weights=average` makes it.
TEST_F(AverageFiles, AreExported) {
  SmallGpt given;
  given.mesh = "cpu:dp=2";
  given.zero_axis = "dp";
  given.layers = 1;
  given.average = 0.9;
  GptProgram program(given);
  Session train = program.MakeTrain();
  for (int step = 0; step < 3; ++step) train.Run(program.MakeFeeds(step)).Wait();
  auto saved = std::make_shared<CheckpointReader>(Save(program.model(), folder_).Wait());
  Gpt2Format().write(std::make_shared<ConvertedSource>(saved, Conversion{.weights = "average"}), {},
                     folder_ + "/gpt2");
  const std::shared_ptr<VariableSource> folder = Gpt2Format().read(folder_ + "/gpt2");
  EXPECT_GT(folder->variables().size(), 10u);
  for (const auto& [name, variable] : folder->variables()) {
    HostTensor got = HostTensor::Make(variable.dtype, variable.shape);
    folder->Read(name, Box::Whole(variable.shape), got.data.get());
    EXPECT_TRUE(SameBytes(got, program.model().Read("train:average/" + name))) << name;
    EXPECT_FALSE(SameBytes(got, program.model().Read(name))) << name;
  }
}

// A run that has kept none so far begins them with the weights that it has then, also where it kept others
// before it loaded; one that keeps none any longer drops them, and says so.
TEST_F(AverageFiles, BeginAndEndInTheMiddleOfATraining) {
  for (const Cutting& cut : kCuttings) {
    SCOPED_TRACE(cut.str());
    Averaged without(cut, {}), with({"cpu:dp=2"}, {.decay = 0.9});
    Session plain = without.TrainIt(), keeps = with.TrainIt();
    for (int step = 0; step < 3; ++step) plain.Run(without.MakeFeeds(step)).Wait();
    for (int step = 0; step < 2; ++step) keeps.Run(with.MakeFeeds(9 + step)).Wait();
    Save(without.model, folder_ + "/without").Wait();
    const Loaded begun = Load(with.model, folder_ + "/without");
    std::vector<std::string> begin = {"train:averages"};
    for (const char* name : kNames) begin.push_back(Cat("train:average/net/", name));
    std::sort(begin.begin(), begin.end());
    EXPECT_EQ(begun.left_alone, begin);
    EXPECT_TRUE(begun.dropped.empty());
    Session look = Evaluate({{"y", with.y}}, {.weights = "average"}), now = Evaluate({{"y", with.y}});
    EXPECT_TRUE(SameBytes(look.Run(with.MakeFeeds(7)).Get("y"), now.Run(with.MakeFeeds(7)).Get("y")));
    keeps.Run(with.MakeFeeds(3)).Wait();
    EXPECT_TRUE(SameBytes(with.model.Read("train:average/net/up"), with.model.Read("net/up")));
    keeps.Run(with.MakeFeeds(4)).Wait();
    EXPECT_FALSE(SameBytes(with.model.Read("train:average/net/up"), with.model.Read("net/up")));

    Save(with.model, folder_ + "/with").Wait();
    const Loaded ended = Load(without.model, folder_ + "/with");
    EXPECT_EQ(ended.dropped, begin);
    EXPECT_TRUE(ended.left_alone.empty());
    for (const char* name : kNames) {
      const std::string path = Cat("net/", name);
      EXPECT_TRUE(SameBytes(without.model.Read(path), with.model.Read(path))) << name;
    }
    EXPECT_EQ(without.model.next_step(), 5);
    std::filesystem::remove_all(folder_);
  }
  // Some averages of a training without others are still an error: its weights are others.
  Averaged one({}, {.decay = 0.9});
  Session train = one.TrainIt();
  Save(one.model, folder_).Wait();
  Model other(FullMesh("cpu:dp=1"));
  Tensor x = other.Input("x", {4, 2}, DType::kFloat32);
  Session of_other = Train(mean(square(matmul(x, other.scope().Weight("w", {2, 2}, Normal(1))))), Sgd{},
                           {.average = {.decay = 0.9}});
  EXPECT_NE(ErrorOf([&] { Load(other, folder_); }).find("train:average/w"), std::string::npos);
}

// --- Generation ---

TEST(Average, Generates) {
  Model model(FullMesh("cpu:dp=2"));
  auto logits = [](Scope s, Tensor tokens) {
    return matmul(embedding(s.Weight("table", {7, 4}, Normal(1)), tokens),
                  s.Weight("head", {4, 7}, Normal(1)));
  };
  Tensor tokens = model.Input("tokens", {4, 3}, DType::kInt32, {{"dp", S(0)}});
  TrainOptions options;
  options.average.decay = 0.5;
  Session train = Train(mean(square(logits(model.scope(), tokens))), Sgd{.lr = 0.5}, options);
  for (int step = 0; step < 3; ++step) train.Run({{"tokens", Ids(step, {4, 3}, 7)}}).Wait();
  auto next = [&](Scope s, Tensor t, const nn::Cache&) {
    return logits(s, slice(t, 1, t.shape()[1] - 1, t.shape()[1]));
  };
  GeneratorOptions how{.sequences = 2, .length = 8, .chunk = 2};
  how.weights = "average";
  Generator means(model, next, how);
  how.weights = "";
  how.session.name = "plain";
  Generator plain(model, next, how);
  const std::vector<std::vector<int32_t>> prompts = {{1, 2}, {3}};
  const HostTensor got = means.Prefill(prompts), then = means.Decode({4, 5});
  EXPECT_FALSE(SameBytes(got, plain.Prefill(prompts)));
  for (const char* name : {"table", "head"}) model.Write(name, model.Read(Cat("train:average/", name)));
  EXPECT_TRUE(SameBytes(got, plain.Prefill(prompts)));
  EXPECT_TRUE(SameBytes(then, plain.Decode({4, 5})));
}

// --- By hand ---

// The recipe of docs/from_pytorch.md: states that the network's function computes with.
TEST(AverageByHand, IsEvaluatedByTheNetworksFunction) {
  for (const Cutting& cut : kCuttings) {
    SCOPED_TRACE(cut.str());
    Averaged run(cut, {.decay = 0.75});
    const int last = run.model.mesh().axis_size(2) - 1;
    Scope averages = run.model.scope() / "mine";
    for (const std::string& name : run.model.Variables()) {
      Tensor w = run.model.Find(name);
      Tensor mean = averages.State(name, w.shape(), Zeros());
      run.options.also.push_back(assign(mean, scale(mean, 0.75) + scale(Updated(w), 0.25)));
    }
    Session train = run.TrainIt();
    ModelGraph graph = run.model.NewGraph("eval");
    Tensor x = graph.Input("x", {kRows, kIn}, DType::kFloat32, {{"dp", S(0)}});
    Tensor y = MeshNet(graph.scope() / "mine" / "net", x, kHidden, kOut, 0, last);
    Session look = Evaluate({{"y", y}});
    std::map<std::string, Numbers> wanted;
    for (int step = 0; step < 3; ++step) {
      train.Run(run.MakeFeeds(step)).Wait();
      for (const char* name : kNames) {
        const Numbers now = run.Of(Cat("net/", name));
        Numbers& mean = wanted[name];
        mean.resize(now.size());
        for (size_t i = 0; i < now.size(); ++i) mean[i] = 0.75 * mean[i] + 0.25 * now[i];
      }
    }
    const HostTensor probe = Floats(7, {kRows, kIn});
    EXPECT_LE(Apart(NumbersOf(look.Run({{"x", probe}}).Get("y")),
                    HostNet{kIn, kHidden, kOut, wanted}.Forward(NumbersOf(probe)).y),
              2e-6);
  }
}

// --- Wrong uses ---

TEST(Average, MistakesAreNamed) {
  auto refuse = [](const std::string& wanted, const std::function<void()>& make) {
    std::string error = ErrorOf(make);
    EXPECT_TRUE(std::regex_search(error, std::regex(wanted))) << error << "\n  wanted: " << wanted;
  };
  Averaged run({"cpu:dp=2"}, {.decay = 0.9});
  refuse(
      "^Evaluate at average_test.cc:\\d+: weights is \"average\" but no training made so far averages a "
      "weight",
      [&] {
        Evaluate({{"y", run.y}}, {.weights = "average"});
      });
  Session train = run.TrainIt();
  refuse("^Evaluate at .*: weights is \"mean\" but must be empty, \"average\" or \"<training>:average\"",
         [&] {
           Evaluate({{"y", run.y}}, {.weights = "mean"});
         });
  refuse("^Evaluate at .*: weights is \"other:average\" but no training", [&] {
    Evaluate({{"y", run.y}}, {.weights = "other:average"});
  });
  run.options.average = {};
  refuse("^Train at .*: an earlier session of training train keeps averages", [&] { run.TrainIt(); });
  run.options.average.decay = 0.5;
  run.options.name = "second";
  Session second = run.TrainIt();
  refuse(
      "^Evaluate at .*: both training second and training train average weight 'net/.*; say "
      "\"second:average\"",
      [&] {
        Evaluate({{"y", run.y}}, {.weights = "average"});
      });
  Session chosen = Evaluate({{"y", run.y}}, {.weights = "train:average"});
  refuse("^Evaluate at .*: assign .*gives weight 'net/bias' a new value, but the session reads its average",
         [&] {
           Tensor bias = run.model.Find("net/bias");
           Evaluate({{"b", assign(bias, shift(bias, 1))}}, {.weights = "train:average"});
         });
  const std::pair<const char*, Average> wrong[] = {{"average.decay is 1, with which", {.decay = 1}},
                                                   {"average.decay is -0.5", {.decay = -0.5}},
                                                   {"average.warmup is given without", {.warmup = 1}},
                                                   {"average.from is given without", {.from = 1}},
                                                   {"average.from is -1", {.decay = 0.9, .from = -1}}};
  for (const auto& [sentence, average] : wrong) {
    run.options.average = average;
    run.options.name = "third";
    refuse(Cat("^Train at average_test.cc:\\d+: ", sentence), [&] { run.TrainIt(); });
  }
  Tensor kept = run.model.scope().State("kept", {3}, Zeros());
  refuse(
      "^weight 'kept' at .*: its shape is \\[4\\] but the state of that name made at average_test.cc:\\d+ "
      "has \\[3\\]",
      [&] { run.model.scope().Weight("kept", {4}, Normal(1)); });
  refuse(
      "^weight 'kept' at .*: it says trainable=true but the state of that name made at .* is changed by no "
      "training",
      [&] { run.model.scope().Weight("kept", {3}, Normal(1), {.trainable = true}); });
  run.model.scope().State("number", {}, Zeros(), {.dtype = DType::kInt32});
  refuse("^weight 'number' at .*: a weight is of floating point numbers, but .* is i32",
         [&] { run.model.scope().Weight("number", {}, Normal(1)); });
}

}  // namespace
}  // namespace oneflow_like
