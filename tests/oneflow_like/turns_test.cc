// Trainings of some of the weights (TrainOptions::weights), and two in turn over one store: a generator and a
// discriminator beside plain loops on every mesh, resumed, their memory; wrong uses.
// ctest: seconds=8 asan=90 tsan=90
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <regex>

#include "oneflow_like/session/session_impl.h"
#include "tests/oneflow_like/host_net.h"

namespace oneflow_like {
namespace {

constexpr int kRows = 12, kNoise = 3, kWide = 5, kHidden = 4;
const char* const kNames[] = {"up", "bias", "down"};

// Two networks, each on all stages, and their losses of least squares: the discriminator's is that it says 1
// of what is real and 0 of what is made, the generator's that it says 1 of what is made.
struct Game {
  explicit Game(const Cutting& cut, DType dtype = DType::kFloat32)
      : model(FullMesh(cut.mesh), cut.options()), micro_batches(cut.micro_batches), dtype(dtype) {
    const int last = model.mesh().axis_size(2) - 1;
    Tensor z = model.Input("z", {kRows, kNoise}, DType::kFloat32, {{"dp", S(0)}});
    Tensor real = model.Input("real", {kRows, kWide}, DType::kFloat32, {{"dp", S(0)}});
    Scope d = model.scope() / "discriminator";
    Tensor made = MeshNet(model.scope() / "generator", z, kHidden, kWide, 0, last);
    Tensor said = MeshNet(d, to_stage(made, "pp", 0), kHidden, 1, 0, last);
    of_generator = mean(square(said - 1));
    of_discriminator = mean(square(MeshNet(d, real, kHidden, 1, 0, last) - 1)) + mean(square(said));
  }
  Session Training(const std::string& name, const Optimizer& optimizer) {
    TrainOptions options;
    options.name = name;
    options.weights = {name + "/*"};
    options.micro_batches = micro_batches;
    options.dtype = dtype;
    return Train(name == "generator" ? of_generator : of_discriminator, optimizer, options);
  }
  Session Generator() { return Training("generator", Sgd{.lr = 0.3, .momentum = 0.5}); }
  Session Discriminator() { return Training("discriminator", Sgd{.lr = 0.2, .momentum = 0.8}); }
  Feeds MakeFeeds(int step) const {
    return {{"z", Floats(100 + step, {kRows, kNoise})}, {"real", Floats(200 + step, {kRows, kWide})}};
  }

  Model model;
  const int micro_batches;
  const DType dtype;
  Tensor of_generator, of_discriminator;
};

void Move(HostNet* net, const std::map<std::string, Numbers>& gradients, double lr, double momentum,
          std::map<std::string, Numbers>* velocity) {
  for (const auto& [name, g] : gradients) {
    Numbers& v = (*velocity)[name];
    v.resize(g.size());
    for (size_t i = 0; i < g.size(); ++i) {
      v[i] = momentum * v[i] + g[i];
      net->weights[name][i] -= lr * v[i];
    }
  }
}

TEST(Turns, OfAGameFollowPlainLoopsOnEveryMesh) {
  for (const Cutting& cut : kCuttings) {
    SCOPED_TRACE(cut.str());
    Game game(cut);
    Session of_d = game.Discriminator(), of_g = game.Generator();
    HostNet g = HostNetOf(game.model, "generator/", kNoise, kHidden, kWide),
            d = HostNetOf(game.model, "discriminator/", kWide, kHidden, 1);
    std::map<std::string, Numbers> moving_g, moving_d;
    for (int step = 0; step < 6; ++step) {
      const Feeds feeds = game.MakeFeeds(step);
      const Numbers z = NumbersOf(feeds.at("z")), real = NumbersOf(feeds.at("real"));
      if (step % 3 != 2) {  // two steps of the discriminator for one of the generator
        const float loss = of_d.Run(feeds).Scalar("loss");
        const HostNet::Pass of_real = d.Forward(real), of_made = d.Forward(g.Forward(z).y);
        const auto [right, d_right] = MeanSquare(of_real.y, 1);
        const auto [wrong, d_wrong] = MeanSquare(of_made.y, 0);
        std::map<std::string, Numbers> gradients;
        (void)d.Backward(of_real, d_right, &gradients);
        (void)d.Backward(of_made, d_wrong, &gradients);
        Move(&d, gradients, 0.2, 0.8, &moving_d);
        EXPECT_NEAR(loss, right + wrong, 2e-6) << step;
      } else {
        const float loss = of_g.Run(feeds).Scalar("loss");
        const HostNet::Pass made = g.Forward(z), said = d.Forward(made.y);
        const auto [wanted, dy] = MeanSquare(said.y, 1);
        std::map<std::string, Numbers> unused, gradients;
        (void)g.Backward(made, d.Backward(said, dy, &unused), &gradients);
        Move(&g, gradients, 0.3, 0.5, &moving_g);
        EXPECT_NEAR(loss, wanted, 2e-6) << step;
      }
      for (const char* name : kNames) {
        EXPECT_LE(Apart(NumbersOf(game.model.Read(Cat("generator/", name))), g.weights[name]), 2e-6) << step;
        EXPECT_LE(Apart(NumbersOf(game.model.Read(Cat("discriminator/", name))), d.weights[name]), 2e-6)
            << step;
      }
    }
    EXPECT_EQ(game.model.next_step("discriminator"), 4);
    EXPECT_EQ(game.model.next_step("generator"), 2);
    for (const std::string& name : game.model.Variables())
      EXPECT_TRUE(!name.starts_with("generator:") || name.starts_with("generator:sgd_v/generator/")) << name;
  }
}

// In 16 bits the game is that of fp32, as far as the type goes, and each training keeps a loss scale of its
// own: gradients that overflow in one change neither its weights nor anything of the other's.
TEST(Turns, OfAGameInSixteenBits) {
  for (const Cutting& cut : kCuttings)
    for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      SCOPED_TRACE(Cat(cut.str(), " in ", Name(dtype)));
      Game game(cut, dtype), wide(cut);
      Session of_d = game.Discriminator(), of_g = game.Generator();
      Session wide_d = wide.Discriminator(), wide_g = wide.Generator();
      const double most = dtype == DType::kBFloat16 ? 2e-2 : 2e-3;
      double apart = 0;
      for (const char* name : {"generator:loss_scale", "discriminator:loss_scale"})  // nothing overflows
        if (dtype == DType::kFloat16) game.model.Write(name, ToHost<float>({1024}, {}));
      for (int step = 0; step < 9; ++step) {
        const Feeds feeds = game.MakeFeeds(step);
        const bool d = step % 3 != 2;  // two steps of the discriminator for one of the generator
        const float loss = (d ? of_d : of_g).Run(feeds).Scalar("loss");
        EXPECT_NEAR(loss, (d ? wide_d : wide_g).Run(feeds).Scalar("loss"), most) << step;
      }
      for (const char* name : kNames)
        for (const char* whose : {"generator/", "discriminator/"}) {
          const double here =
              Difference(game.model.Read(Cat(whose, name)), wide.model.Read(Cat(whose, name)));
          EXPECT_LE(here, most) << whose << name;
          apart = std::max(apart, here);
        }
      EXPECT_GT(apart, 0) << "it computed in fp32";
      if (dtype == DType::kBFloat16) continue;
      EXPECT_EQ(NumbersOf(game.model.Read("generator:loss_scale")), Numbers{1024});
      EXPECT_EQ(NumbersOf(game.model.Read("discriminator:loss_scale_finite_steps")), Numbers{6});
      EXPECT_EQ(NumbersOf(game.model.Read("generator:loss_scale_finite_steps")), Numbers{3});
      game.model.Write("generator:loss_scale", ToHost<float>({1e30f}, {}));
      std::map<std::string, HostTensor> before;
      for (const std::string& name : game.model.Variables()) before[name] = game.model.Read(name);
      of_g.Run(game.MakeFeeds(20)).Wait();
      for (const auto& [name, value] : before)
        EXPECT_EQ(!SameBytes(value, game.model.Read(name)), name.starts_with("generator:loss_scale")) << name;
      EXPECT_FLOAT_EQ(game.model.Read("generator:loss_scale").as<float>()[0], 5e29f);
    }
}

// Neither training changes a bit of the other's weights, whatever they are made with.
TEST(Turns, LeaveTheOthersWeightsAlone) {
  for (const Cutting& cut : kCuttings) {
    Game game(cut);
    Session of_d = game.Training("discriminator", AdamW{.lr = 0.1}),
            of_g = game.Training("generator", Muon{});
    for (int step = 0; step < 4; ++step) {
      std::map<std::string, HostTensor> before;
      for (const std::string& name : game.model.Variables()) before[name] = game.model.Read(name);
      const std::string moves = step % 2 ? "generator" : "discriminator";
      (step % 2 ? of_g : of_d).Run(game.MakeFeeds(step)).Wait();
      for (const auto& [name, value] : before)
        EXPECT_EQ(!SameBytes(value, game.model.Read(name)), name.starts_with(moves))
            << cut.str() << " step " << step << ": " << name;
    }
  }
}

class TurnsFiles : public testing::Test {
 protected:
  ~TurnsFiles() override { std::filesystem::remove_all(folder_); }
  const std::string folder_ = testing::TempDir() + "/turns_test." + std::to_string(getpid());
};

// One checkpoint has the states and the steps of both.
TEST_F(TurnsFiles, GoOnFromOneCheckpoint) {
  for (const Cutting& cut : kCuttings) {
    Game whole(cut);
    Session of_d = whole.Discriminator(), of_g = whole.Generator();
    auto play = [](Game& game, Session& d, Session& g, int first, int last) {
      for (int step = first; step < last; ++step) (step % 2 ? g : d).Run(game.MakeFeeds(step)).Wait();
    };
    play(whole, of_d, of_g, 0, 3);
    SaveOptions save;
    save.training = "generator";
    EXPECT_TRUE(Save(whole.model, folder_, save).Wait().ends_with("step-00000001"));
    play(whole, of_d, of_g, 3, 7);
    for (const Cutting& other : kCuttings) {
      SCOPED_TRACE(Cat("from ", cut.str(), " to ", other.str()));
      Game resumed(other);
      Session d = resumed.Discriminator(), g = resumed.Generator();
      Load(resumed.model, folder_);
      EXPECT_EQ(resumed.model.next_step("discriminator"), 2);
      EXPECT_EQ(resumed.model.next_step("generator"), 1);
      play(resumed, d, g, 3, 7);
      for (const std::string& name : whole.model.Variables()) {
        const HostTensor a = resumed.model.Read(name), b = whole.model.Read(name);
        EXPECT_TRUE(&cut == &other ? SameBytes(a, b) : Difference(a, b) <= 4e-6) << name;
      }
    }
    std::filesystem::remove_all(folder_);
  }
}

// Gradients and states are those of the weights that are trained, and so is what is computed for them.
TEST(Turns, TakeNothingForTheOthersWeights) {
  for (const Cutting& cut : kCuttings) {
    auto taken = [&](const std::vector<std::string>& weights) {
      Game game(cut);
      TrainOptions options;
      options.weights = weights;
      options.micro_batches = cut.micro_batches;
      Session session = Train(game.of_discriminator, AdamW{}, options);
      std::map<std::string, double> sums;
      for (const RankSummary& rank : session.Summaries()) {
        for (const auto& [purpose, bytes] : rank.purposes)
          sums[purpose] += static_cast<double>(bytes * std::ssize(rank.ranks));
        sums["flops"] += rank.flops * static_cast<double>(rank.ranks.size());
      }
      for (const std::string& name : game.model.Variables())
        sums["states of the generator"] += name.find(":adam_m/generator/") != std::string::npos;
      const Graph& graph = session.impl()->compiled.graph;
      for (int n : graph.Order())
        sums["gradients of the generator"] +=
            IsGradient(graph.node(n).phase) && graph.node(n).name.starts_with("generator/");
      return sums;
    };
    std::map<std::string, double> both = taken({}), some = taken({"discriminator/*"}),
                                  last = taken({"*/down"});
    EXPECT_EQ(both["states of the generator"], 3);
    EXPECT_EQ(some["states of the generator"], 0);
    EXPECT_EQ(last["states of the generator"], 1);
    EXPECT_GT(both["gradients of the generator"], 0);
    EXPECT_EQ(some["gradients of the generator"], 0);
    EXPECT_EQ(both["weights"], some["weights"]) << cut.str();
    EXPECT_LT(some["optimizer state"], both["optimizer state"]) << cut.str();
    EXPECT_LT(last["optimizer state"], both["optimizer state"]) << cut.str();
    EXPECT_LT(some["flops"], both["flops"]) << cut.str();
    EXPECT_LT(last["flops"], both["flops"]) << cut.str();
  }
}

// A pattern frozen by the model stays frozen, and one that is trained keeps its own rate.
TEST(Turns, FrozenWeightsStayFrozen) {
  ModelOptions options;
  options.weights = {{"b*", {.trainable = false}}, {"a2", {.rate = 0}}};
  Model model(FullMesh("cpu:dp=2"), options);
  Tensor x = model.Input("x", {4, 3}, DType::kFloat32, {{"dp", S(0)}}), sum = x;
  for (const char* name : {"a1", "a2", "b1", "c1"}) sum = sum * model.scope().Weight(name, {3}, Ones());
  TrainOptions some;
  some.weights = {"?1", "a*"};
  Session session = Train(mean(square(sum + 1)), Sgd{.lr = 0.5}, some);
  session.Run({{"x", Floats(1, {4, 3})}}).Wait();
  for (const auto& [name, moves] : {std::pair{"a1", true}, {"a2", false}, {"b1", false}, {"c1", true}})
    EXPECT_EQ(NumbersOf(model.Read(name)) != Numbers(3, 1.0), moves) << name;
}

TEST(Turns, MistakesAreNamed) {
  auto refuse = [](const std::string& wanted, const std::function<void()>& make) {
    std::string error = ErrorOf(make);
    EXPECT_TRUE(std::regex_search(error, std::regex(wanted))) << error << "\n  wanted: " << wanted;
  };
  ModelOptions model_options;
  model_options.weights = {{"b*", {.trainable = false}}};
  Model model(FullMesh("cpu:dp=2"), model_options);
  Tensor x = model.Input("x", {4, 3}, DType::kFloat32, {{"dp", S(0)}}), product = x;
  for (const char* name : {"a1", "a2", "b1"}) product = product * model.scope().Weight(name, {3}, Ones());
  Tensor apart = model.scope().Weight("elsewhere", {3}, Ones());
  Tensor loss = mean(square(product));
  TrainOptions options;
  auto train = [&](std::vector<std::string> weights, const std::string& name = "train") {
    options.weights = std::move(weights);
    options.name = name;
    return Train(loss, Sgd{}, options);
  };
  refuse(
      "^Train at turns_test.cc:\\d+: pattern \"generator/\\*\" of TrainOptions::weights matches no weight "
      "that "
      "could be trained for the loss '.*'; it depends on 'a1', 'a2'$",
      [&] {
        train({"a1", "generator/*"});
      });
  refuse("pattern \"else\\*\" of TrainOptions::weights matches no weight", [&] { train({"else*"}); });
  refuse(
      "pattern \"b1\" of TrainOptions::weights matches no weight .*, only frozen ones, 'b1' among them; it "
      "depends",
      [&] {
        train({"a*", "b1"});
      });
  Session first = train({"a1"});
  refuse(
      "^Train at .*: an earlier session of training train trains other weights \\(TrainOptions::weights\\); "
      ".*give "
      "this one another name",
      [&] { train({"a2"}); });
  Session second = train({"a2"}, "other"), again = train({"a1"});
}

}  // namespace
}  // namespace oneflow_like
