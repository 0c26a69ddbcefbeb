// Steps one can trust: copies that must be equal are compared bit for bit, and the first number that is not
// finite is traced to its operator.
// ctest: long=10
#include <gtest/gtest.h>

#include <regex>

#include "oneflow_like/job/replicas_check.h"
#include "oneflow_like/model/model_impl.h"
#include "tests/oneflow_like/session_fixture.h"
#include "tests/oneflow_like/small_gpt.h"
#include "tests/oneflow_like/thread_job.h"

namespace oneflow_like {
namespace {

// --- Copies ---

SmallGpt Checked(const std::string& mesh, int64_t every) {
  SmallGpt given;
  given.mesh = mesh;
  given.layers = 2;
  given.width = 16;
  given.heads = 2;
  given.model_options.check_replicas = every;
  return given;
}

// What several ranks hold.
struct Copy {
  std::string variable;
  int rank;
  int64_t bytes;
};
std::vector<Copy> CopiesOf(const ModelImpl& model) {
  std::vector<Copy> copies;
  std::map<std::string, int> holders;
  for (int pass = 0; pass < 2; ++pass)
    for (int rank : model.store->ranks())
      for (const Store::VariableInfo& info : model.store->Variables(rank)) {
        const std::string piece = info.name + info.box.str();
        if (pass == 0) ++holders[piece];
        if (pass == 1 && holders[piece] > 1 && info.box.elements() > 0 &&
            info.name.find(':') == std::string::npos)
          copies.push_back({info.name, rank, info.box.elements() * static_cast<int64_t>(SizeOf(info.dtype))});
      }
  return copies;
}

// Whether all ranks hold the same of what several hold.
bool AllAlike(const ModelImpl& model) {
  std::map<std::string, std::string> first;
  for (int rank : model.store->ranks())
    for (const Store::VariableInfo& info : model.store->Variables(rank)) {
      const std::string held(static_cast<const char*>(model.store->Variable(rank, info.name)),
                             info.box.elements() * SizeOf(info.dtype));
      if (first.emplace(info.name + info.box.str(), held).first->second != held) return false;
    }
  return true;
}

// A bit of one rank's copy is turned between two steps; within K steps the run ends, naming variable and
// rank, unless an update has rounded the difference away.
void ExpectTurnedBitsFound(uint64_t flips) {
  const char* meshes[] = {"cpu:dp=2", "cpu:dp=3", "cpu:dp=2,tp=2", "cpu:dp=2,pp=2"};
  const int64_t every = 3;
  int named = 0, rounded_away = 0;
  for (uint64_t flip = 0; flip < flips; ++flip) {
    GptProgram program(Checked(meshes[flip % 4], every));
    Session train = program.MakeTrain();
    const int64_t when = 1 + static_cast<int64_t>(RandomBits(flip, 0, 0) % 3);
    for (int64_t step = 0; step < when; ++step) train.Run(program.MakeFeeds(step)).Wait();
    ModelImpl& model = *program.model().impl();
    const std::vector<Copy> copies = CopiesOf(model);
    ASSERT_FALSE(copies.empty());
    const Copy& copy = copies[RandomBits(flip, 1, 0) % copies.size()];
    const uint64_t bit = RandomBits(flip, 2, 0) % (8 * copy.bytes);
    static_cast<uint8_t*>(model.store->Variable(copy.rank, copy.variable))[bit / 8] ^= 1 << bit % 8;
    std::string error;
    int64_t step = when;
    for (; step < when + every && error.empty(); ++step)
      error = ErrorOf([&] { train.Run(program.MakeFeeds(step)).Wait(); });
    const std::string piece = Cat(copy.variable, " bit ", bit, " of rank ", copy.rank, ": ", error);
    if (std::regex_search(error, std::regex("loss is"))) continue;  // the bit was one of an exponent
    if (error.empty() && AllAlike(model)) {  // a last bit, as where the value passed a power of two
      ++rounded_away;
      continue;
    }
    std::smatch found;
    ASSERT_TRUE(std::regex_search(
        error, found,
        std::regex("^before step [36]: variable '.*' of (?:rank ([0-9, ]+)|half of its ranks) "
                   "differs from what other ranks hold of it")))
        << flip << ": " << piece;
    named += Cat(", ", found[1].str(), ",").find(Cat(", ", copy.rank, ",")) != std::string::npos;
  }
  EXPECT_LE(rounded_away, static_cast<int>(flips) / 50);
  // Others have spread over half of the ranks until they were seen.
  EXPECT_GE(named, static_cast<int>(flips) * 8 / 10);
}
TEST(Replicas, TurnedBitsAreFound) { ExpectTurnedBitsFound(24); }
TEST(LongReplicas, TurnedBitsAreFound) { ExpectTurnedBitsFound(100); }

TEST(Replicas, HealthyRunsAreLeftAlone) {
  for (const char* mesh : {"cpu:dp=3", "cpu:dp=2,tp=2", "cpu:dp=2,pp=2", "cpu:tp=4"})
    for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      SmallGpt given = Checked(mesh, 1);
      given.dtype = dtype;
      GptProgram program(given);
      Session train = program.MakeTrain();
      for (int64_t step = 0; step < 40; ++step) train.Run(program.MakeFeeds(step)).Wait();
    }
  for (int processes : {2, 4}) {
    std::vector<std::string> errors = RunProcesses(processes, [](std::shared_ptr<Job> job) {
      SmallGpt given = Checked("cpu:dp=2,tp=2", 1);
      given.model_options.job = job;
      GptProgram program(given);
      Session train = program.MakeTrain();
      for (int64_t step = 0; step < 10; ++step) train.Run(program.MakeFeeds(step)).Wait();
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

// All processes end with one sentence, and a save writes nothing.
TEST(Replicas, ADifferenceIsNotSaved) {
  const std::string folder = testing::TempDir() + "/trust_test." + std::to_string(getpid());
  std::vector<std::string> errors = RunProcesses(2, [&](std::shared_ptr<Job> job) {
    SmallGpt given = Checked("cpu:dp=2", 1000);
    given.model_options.job = job;
    GptProgram program(given);
    Session train = program.MakeTrain();
    train.Run(program.MakeFeeds(0)).Wait();
    if (job->process() == 1)
      *static_cast<uint8_t*>(program.model().impl()->store->Variable(1, "norm/gamma")) ^= 1;
    Save(program.model(), folder);
  });
  for (const std::string& error : errors)
    EXPECT_EQ(error.rfind("before step 1: variable 'norm/gamma' of rank 0, 1 differs", 0), 0u) << error;
  EXPECT_TRUE(Checkpoints(folder).empty());
}

TEST(Replicas, TheFewerAreNamed) {
  EXPECT_EQ(DifferenceOfReplicas({"w", {0, 1}, {7, 7}}), "");
  EXPECT_EQ(DifferenceOfReplicas({"w", {0, 1}, {7, 8}}), "rank 0, 1");
  EXPECT_EQ(DifferenceOfReplicas({"w", {0, 2, 4}, {7, 8, 7}}), "rank 2");
  EXPECT_EQ(DifferenceOfReplicas({"w", {0, 2, 4, 6}, {7, 8, 7, 9}}), "rank 2, 6");
  EXPECT_EQ(DifferenceOfReplicas({"w", {0, 2, 4, 6}, {7, 8, 7, 8}}), "half of its ranks");
}

TEST(Replicas, WhatHasNoneIsSaid) {
  Model model(FullMesh("cpu:tp=2"));
  (void)model.scope().Weight("cut", {4, 4}, Normal(1), {{"tp", S(0)}});
  (void)model.scope().Weight("copied", {4}, Normal(1));
  EXPECT_EQ(
      WithoutReplicas(model.impl()),
      "check_replicas: 1 of 2 variables (64 of 80 bytes) are held by one rank alone and cannot be compared "
      "with another");
  std::vector<std::string> errors = RunProcesses(2, [](std::shared_ptr<Job> job) {
    Model uneven(FullMesh("cpu:dp=3,tp=2"), {.job = job});
    (void)WithoutReplicas(uneven.impl());
  });
  for (const std::string& error : errors)
    EXPECT_EQ(error.rfind("check_replicas: 2 processes cut mesh cpu:dp=3,tp=2,pp=1 unevenly", 0), 0u)
        << error;
}

// --- Numbers that are none ---

struct Logarithm {
  explicit Logarithm(ModelOptions options, int64_t micro_batches = 2)
      : model(FullMesh("cpu:dp=2"), (options.check_nan = true, options)) {
    Tensor x = model.Input("x", {8, 3}, DType::kFloat32, {{"dp", S(0)}});
    Tensor w = model.scope().Weight("w", {3, 3}, Full(1));
    line = __LINE__ + 1;
    Tensor bad = log(matmul(x, w));
    session = std::make_unique<Session>(Train(mean(square(bad)), Sgd{.lr = 1e-4}, [&] {
      TrainOptions o;
      o.micro_batches = static_cast<int>(micro_batches);
      return o;
    }()));
  }
  HostTensor Batch(int bad_row) const {
    HostTensor x = HostTensor::Make(DType::kFloat32, {8, 3});
    for (int64_t i = 0; i < 24; ++i) x.as<float>()[i] = i / 3 == bad_row ? -1.f : 1.f + static_cast<float>(i);
    return x;
  }
  Model model;
  std::unique_ptr<Session> session;
  int line = 0;
};

TEST(CheckNan, NamesTheOperatorLineRankAndMicroBatch) {
  for (int row = 0; row < 8; ++row) {
    Logarithm program{ModelOptions{}};
    program.session->Run({{"x", program.Batch(-1)}}).Wait();
    const std::string error = ErrorOf([&] { program.session->Run({{"x", program.Batch(row)}}).Wait(); });
    // Rows go to micro-batches first, then to ranks.
    const std::string wanted =
        Cat("trust_test.cc:", program.line, ": it gives NaN, though all it reads is finite (rank ",
            row % 4 / 2, ", micro-batch ", row / 4, ", step 1, ");
    EXPECT_NE(error.find(wanted), std::string::npos) << error << "\n wanted: " << wanted;
    EXPECT_EQ(error.rfind("log", 0), 0u) << error;
  }
}

TEST(CheckNan, FeedsThatAreNoNumbersAreNamed) {
  Logarithm program{ModelOptions{}};
  HostTensor x = program.Batch(-1);
  x.as<float>()[4] = NAN;
  const std::string error = ErrorOf([&] { program.session->Run({{"x", x}}).Wait(); });
  EXPECT_NE(error.find("x at trust_test.cc"), std::string::npos) << error;
  EXPECT_NE(error.find("it gives NaN (rank 0"), std::string::npos) << error;
}

// A mask of minus infinity is meant so, and so is what it gives.
TEST(CheckNan, InfinityThatIsAskedForIsNot) {
  Model model(FullMesh("cpu:dp=2"), {.check_nan = true});
  Tensor x = model.Input("x", {4, 3}, DType::kFloat32, {{"dp", S(0)}});
  Tensor mask = model.Input("mask", {4, 3}, DType::kFloat32, {{"dp", S(0)}});
  Tensor w = model.scope().Weight("w", {3, 3}, Full(1));
  Session session = Train(mean(softmax(matmul(x, w) + mask)), Sgd{.lr = 1e-4});
  HostTensor hidden = HostTensor::Make(DType::kFloat32, {4, 3});
  for (int64_t i = 0; i < 12; ++i) hidden.as<float>()[i] = i % 3 == 1 ? -INFINITY : 0;
  for (int step = 0; step < 3; ++step) session.Run({{"x", Floats(1, {4, 3})}, {"mask", hidden}}).Wait();
}

TEST(CheckNan, WholeModelsRunAsWithoutIt) {
  for (const char* mesh : {"cpu:dp=2", "cpu:dp=3,tp=2", "cpu:pp=2"})
    for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      std::vector<float> losses[2];
      for (bool check : {false, true}) {
        SmallGpt given = Checked(mesh, 0);
        given.dtype = dtype;
        given.model_options.check_nan = check;
        GptProgram program(given);
        Session train = program.MakeTrain();
        losses[check] = program.Losses(train, 5);
      }
      for (size_t i = 0; i < losses[0].size(); ++i)
        EXPECT_NEAR(losses[0][i], losses[1][i], dtype == DType::kFloat32 ? 1e-5 : 2e-2 * losses[0][i])
            << mesh;
    }
  EXPECT_NE(ErrorOf([] {
              SmallGpt given = Checked("cpu:dp=1", 0);
              given.dtype = DType::kFloat16;
              given.model_options.check_nan = true;
              GptProgram program(given);
              (void)program.MakeTrain();
            }).find("gradients in fp16 overflow by design"),
            std::string::npos);
}

}  // namespace
}  // namespace oneflow_like
