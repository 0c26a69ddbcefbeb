// Ranks on asynchronous devices: what orders acts there are events, since the host runs ahead. Here the
// devices are threads with random delays (asynchronous_backend.h), so any wait that is missing shows as a
// wrong loss.
// ctest: seconds=12 asan=300 tsan=300
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "actor/device_collectives.h"
#include "oneflow_like/oneflow_like.h"
#include "tests/actor/asynchronous_backend.h"
#include "tests/actor/plan_builder.h"
#include "tests/error_of.h"
#include "tests/oneflow_like/session_fixture.h"
#include "tests/oneflow_like/small_gpt.h"
#include "tests/sanitized.h"

namespace oneflow_like {
namespace {

// Seeds of delays, from `first` on: the second is a repetition, which sanitizers go without.
std::vector<uint64_t> Seeds(uint64_t first) {
  return kSanitized ? std::vector<uint64_t>{first} : std::vector<uint64_t>{first, first + 1};
}

std::vector<float> Losses(const SmallGpt& given, int steps = 5) {
  GptProgram program(given);
  Session session = program.MakeTrain();
  std::vector<StepResult> results;
  for (int step = 0; step < steps; ++step) results.push_back(session.Run(program.MakeFeeds(step)));
  std::vector<float> losses;
  for (const StepResult& result : results) losses.push_back(result.Scalar("loss"));
  return losses;
}

SmallGpt Gpt(const std::string& mesh, int micro_batches = 1) {
  SmallGpt given;
  given.mesh = mesh;
  given.micro_batches = micro_batches;
  given.width = 32;
  given.layers = 2;
  given.model_options.kernel_threads = 1;
  return given;
}

void ExpectCurve(const SmallGpt& given, uint64_t seed) {
  static const std::vector<float> one = Losses(Gpt("cpu:dp=1"));
  std::vector<float> losses = Losses(given);
  ASSERT_EQ(losses.size(), one.size());
  for (size_t i = 0; i < one.size(); ++i) {
    ASSERT_NEAR(losses[i], one[i], 2e-5 * std::abs(one[i]))
        << given.str() << " step " << i << " seed " << seed;
  }
}

TEST(AsynchronousDeviceTest, OneLossCurveOnVirtualDevices) {
  for (uint64_t seed : Seeds(1)) {
    LateBackend backend(1, seed, 300);
    ExpectCurve(Gpt("cuda:dp=1"), seed);
    ExpectCurve(Gpt("cuda:dp=2"), seed);
    ExpectCurve(Gpt("cuda:tp=2"), seed);
    ExpectCurve(Gpt("cuda:pp=2", 4), seed);
    ExpectCurve(Gpt("cuda:dp=2,tp=2,pp=2", 2), seed);
    SmallGpt zero = Gpt("cuda:dp=2");
    zero.zero_axis = "dp";
    ExpectCurve(zero, seed);
  }
}

// What is saved is copied beside the steps that follow, whose updates wait for it; the files are what a run
// that stands still writes.
TEST(AsynchronousDeviceTest, ASaveSeesOneMoment) {
  const std::string folder = testing::TempDir() + "/asynchronous_device_test." + std::to_string(getpid());
  auto save = [&](uint64_t seed, int after, const std::string& to) {
    LateBackend backend(1, seed, 300);
    GptProgram program(Gpt("cuda:dp=2,tp=2"));
    Session session = program.MakeTrain();
    for (int step = 0; step < 3; ++step) (void)session.Run(program.MakeFeeds(step));
    const SaveHandle handle = Save(program.model(), to);
    for (int step = 3; step < 3 + after; ++step) (void)session.Run(program.MakeFeeds(step));
    std::ifstream file(handle.Wait() + "/model-00001-of-00001.safetensors", std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string still = save(1, 0, folder + "/still");
  EXPECT_GT(still.size(), 100000u);
  for (uint64_t seed = 1; seed < (kSanitized ? 3 : 6); ++seed)
    EXPECT_TRUE(save(seed, 3, Cat(folder, "/", seed)) == still) << seed;
  std::filesystem::remove_all(folder);
}

// Per layer four products with a bias, one of them with gelu too, two that add to what there is; one slope of
// gelu, and six gradients of weights with those of their biases. Dropout keeps a residual from its product.
TEST(AsynchronousDeviceTest, ProductsTakeInWhatFollowsThem) {
  auto count = [](const SmallGpt& given) {
    GptProgram program(given);
    Session session = program.MakeTrain();
    const Graph& graph = session.impl()->compiled.graph;
    std::map<std::string, int> counts;
    for (int n : graph.Order()) ++counts[graph.node(n).op];
    return std::vector<int>{counts["linear"], counts["linear_grad_gelu"], counts["linear_grad_weight"]};
  };
  SmallGpt narrow = Gpt("cuda:dp=1");
  narrow.dtype = DType::kBFloat16;
  EXPECT_EQ(count(narrow), (std::vector<int>{12, 2, 12}));
  EXPECT_EQ(count(Gpt("cuda:dp=2", 2)), (std::vector<int>{12, 2, 12}));
  EXPECT_EQ(count(Gpt("cpu:dp=1")), (std::vector<int>{0, 0, 0}));
}

// Products with whatever is added to them, of every shape and in every order, with gelu anywhere: the library
// does some of that with the product, and the numbers are the host's.
TEST(AsynchronousDeviceTest, WhatFollowsAProductComesOutAsOnTheHost) {
  const std::vector<Dims> addends = {{8}, {4, 8}, {1, 8}, {4, 1}, {}};
  auto outputs_on = [&](const std::string& kind, std::map<std::string, HostTensor>* trained) {
    Model model(Mesh(kind, {{"dp", 1}}));
    Scope s = model.scope();
    Feeds feeds;
    auto input = [&](const std::string& name, const Dims& shape) {
      feeds[name] = HostTensor::Make(DType::kFloat32, shape);
      for (int64_t i = 0; i < shape.elements(); ++i)
        feeds[name].as<float>()[i] = 2 * ToUniform(RandomBits(name.size(), 0, i)) - 1;
      return model.Input(name, shape, DType::kFloat32);
    };
    Tensor x = input("x", {4, 6}), w = s.Weight("w", {6, 8}, KaimingNormal()),
           other = s.Weight("other", {6, 8}, KaimingNormal());
    std::vector<Tensor> added;
    for (const Dims& shape : addends) added.push_back(s.Weight("added " + shape.str(), shape, Normal(1)));
    std::map<std::string, Tensor> outputs;
    std::vector<Tensor> all;
    for (size_t first = 0; first <= added.size(); ++first) {
      for (size_t second = 0; second <= added.size(); ++second) {
        for (int order = 0; order < 4; ++order) {
          for (int gelus = 0; gelus < 3; ++gelus) {
            auto term = [&](size_t i) { return i < added.size() ? added[i] : matmul(x, other); };
            Tensor y = matmul(x, w);
            y = order % 2 ? term(first) + y : y + term(first);
            if (gelus == 1) y = gelu(y);
            y = order / 2 ? term(second) + y : y + term(second);
            if (gelus == 2) y = gelu(y);
            outputs[Cat("y", first, " ", second, " ", order, " ", gelus)] = y;
            all.push_back(y);
          }
        }
      }
    }
    std::map<std::string, HostTensor> got;
    {
      Session session = Evaluate(outputs);
      const StepResult result = session.Run(feeds);
      for (const auto& [name, output] : outputs) got[name] = result.Get(name);
    }
    Session train = Train(mean(square(add_n(all))), Sgd{.lr = 1e-4});
    train.Run(feeds).Wait();
    for (const std::string& name : model.Variables()) (*trained)[name] = model.Read(name);
    return got;
  };
  std::map<std::string, HostTensor> trained, trained_there;
  const std::map<std::string, HostTensor> here = outputs_on("cpu", &trained);
  LateBackend backend(1, 31);
  ExpectNear(outputs_on("cuda", &trained_there), here, 1e-5, "outputs");
  ExpectNear(trained_there, trained, 1e-5, "weights after a step");
}

TEST(AsynchronousDeviceTest, OneLossCurveWithALibraryForGroups) {
  for (uint64_t seed : Seeds(3)) {
    LateBackend backend(8, seed, 300, true);
    ExpectCurve(Gpt("cuda:dp=2"), seed);
    EXPECT_GT(backend.connected(), 0);
    ExpectCurve(Gpt("cuda:tp=2"), seed);
    ExpectCurve(Gpt("cuda:dp=2,tp=2,pp=2", 2), seed);
    SmallGpt zero = Gpt("cuda:dp=2");
    zero.zero_axis = "dp";
    ExpectCurve(zero, seed);
  }
}

// A value is the same in every layout, whichever way brings it there: its pieces are of equal size or not,
// some are empty, some are packed for several members, and those of one micro-batch are not those of another.
TEST(AsynchronousDeviceTest, LayoutsChangeNoValue) {
  const NdSbp layouts = {S(0), S(1), B(), P()};
  for (bool groups : {true, false}) {
    int connected = 0;
    for (int ranks : {2, 3, 4}) {
      for (const Dims& shape : {Dims{12, 12}, Dims{7, 5}, Dims{3, 10}, Dims{1, 4}}) {
        for (int micro_batches : {1, 3}) {
          if (micro_batches > shape[0]) continue;
          SCOPED_TRACE(Cat(shape.str(), " on ", ranks, " ranks in ", micro_batches, " micro-batches, groups ",
                           groups));
          LateBackend backend(groups ? ranks : 1, 30, 50, groups);
          Model model(Mesh("cuda", {{"tp", ranks}}));
          HostTensor value = HostTensor::Make(DType::kFloat32, shape),
                     identity = HostTensor::Make(DType::kFloat32, {shape[1], shape[1]});
          for (int64_t i = 0; i < value.elements(); ++i) value.as<float>()[i] = static_cast<float>(1 + i);
          for (int64_t i = 0; i < identity.elements(); ++i) identity.as<float>()[i] = i % (shape[1] + 1) == 0;
          Feeds feeds;
          std::map<std::string, Tensor> outputs;
          for (const Sbp& from : layouts) {
            const std::string name = "x " + from.str();
            // A partial sum comes of a product that is cut along what it sums over.
            Tensor x = model.Input(name, shape, DType::kFloat32, {{"tp", from.is_partial() ? S(1) : from}});
            if (from.is_partial())
              x = matmul(x, model.scope().Weight("identity", identity.shape, Zeros(), {{"tp", S(0)}}));
            feeds[name] = value;
            for (const Sbp& to : layouts)
              outputs[Cat(from.str(), " to ", to.str())] = annotate(x, {{"tp", to}});
          }
          Session session = Evaluate(outputs, {.micro_batches = micro_batches});
          model.Write("identity", identity);
          const StepResult result = session.Run(feeds);
          for (const auto& [name, output] : outputs) {
            const HostTensor& got = result.Get(name);
            for (int64_t i = 0; i < value.elements(); ++i)
              ASSERT_EQ(got.as<float>()[i], value.as<float>()[i]) << name << ", element " << i;
          }
          connected += backend.connected();
        }
      }
    }
    EXPECT_EQ(connected > 0, groups);
  }
}

// Of the library's calls that cut or join, all parts are of one size: others go member by member, or, where
// something is summed, not through the library.
TEST(LibraryCollectives, UnevenPartsAreNotTakenForEvenOnes) {
  using Kind = LibraryWork::Kind;
  for (int members = 2; members <= 5; ++members) {
    for (int64_t length = members; length <= 12; ++length) {
      for (bool rows : {true, false}) {
        for (const char* primitive : {"reduce_scatter", "all_gather"}) {
          const bool scatter = primitive == std::string("reduce_scatter"), even = length % members == 0;
          plan::Collective collective;
          collective.set_primitive(primitive);
          if (scatter) collective.set_reduce("sum");
          for (int m = 0; m < members; ++m) {
            const Interval cut = Cut({0, length}, members, m, 1);
            collective.add_rank(m);
            plan::Piece* piece = collective.add_piece();
            const Box whole = Box::Whole(rows ? Dims{length, 3} : Dims{3, length});
            Box part = whole;
            part.begin[rows ? 0 : 1] = cut.begin;
            part.extent[rows ? 0 : 1] = cut.extent;
            SetBox(piece->add_in(), scatter ? whole : part);
            SetBox(piece->add_out(), scatter ? part : whole);
          }
          const std::vector<LibraryWork> works = ChooseLibraryWork(collective);
          const LibraryWork work = works.empty() ? LibraryWork() : works[0];
          const Kind one_call = scatter ? Kind::kReduceScatter : Kind::kAllGather;
          const Kind otherwise = scatter ? Kind::kNone : Kind::kCopies;
          EXPECT_EQ(work.kind, even ? one_call : otherwise)
              << primitive << " of " << length << " over " << members << " members, rows " << rows;
          if (even) {
            EXPECT_EQ(work.count * members, 3 * length) << primitive;
          }
        }
      }
    }
  }
}

// Rows of one member become columns of another: what goes out is no run of its piece, and is packed. Of
// micro-batches that are cut unevenly any may be the largest.
TEST(LibraryCollectives, PackingHasRoomForEveryMicroBatch) {
  constexpr int64_t kMembers = 2, kColumns = 128;
  std::vector<int64_t> rows = {4, 6, 8};
  do {
    plan::Collective collective;
    collective.set_primitive("all_to_all");
    for (size_t act = 0; act < rows.size(); ++act) collective.add_work();
    for (int64_t m = 0; m < kMembers; ++m) {
      collective.add_rank(static_cast<int>(m));
      plan::Piece* piece = collective.add_piece();
      for (int64_t r : rows) {
        const int64_t own = r / kMembers, columns = kColumns / kMembers;
        SetBox(piece->add_in(), {{m * own, 0}, {own, kColumns}});
        SetBox(piece->add_out(), {{0, m * columns}, {r, columns}});
      }
    }
    const std::vector<LibraryWork> work = ChooseLibraryWork(collective);
    ASSERT_EQ(work.size(), 1u);
    EXPECT_EQ(work[0].kind, LibraryWork::Kind::kCopies);
    for (int me = 0; me < kMembers; ++me) {
      collective.set_me(me);
      EXPECT_EQ(PackedBytes(collective, work, DType::kFloat32), 4 * (8 / kMembers * kColumns / kMembers))
          << "rows " << rows[0] << ", " << rows[1] << ", " << rows[2] << " on member " << me;
    }
  } while (std::next_permutation(rows.begin(), rows.end()));
}

TEST(AsynchronousDeviceTest, StagesOnTheHostAndOnDevicesInOneJob) {
  for (uint64_t seed : Seeds(5)) {
    LateBackend backend(1, seed, 300);
    ExpectCurve(Gpt("cpu+cuda:pp=2", 4), seed);
    ExpectCurve(Gpt("cuda+cpu:dp=2,tp=2,pp=2", 2), seed);
  }
}

TEST(AsynchronousDeviceTest, AFailureNamesTheUsersLineAndEndsTheStep) {
  LateBackend backend(1, 7, 100);
  GptProgram program(Gpt("cuda:dp=2"));
  Session session = program.MakeTrain();
  Feeds feeds = program.MakeFeeds(0);
  session.Run(feeds).Wait();
  feeds["tokens"].as<int32_t>()[3] = 1000;
  std::string error = ErrorOf([&] { session.Run(feeds).Wait(); });
  EXPECT_NE(error.find("1000"), std::string::npos) << error;
  EXPECT_NE(error.find("gpt_model.cc:"), std::string::npos) << error;
  EXPECT_EQ(ErrorOf([&] { session.Run(program.MakeFeeds(1)).Wait(); }), error);
}

TEST(AsynchronousDeviceTest, ClosesInTheMiddleOfSteps) {
  for (uint64_t seed = 10; seed < 20; ++seed) {
    LateBackend backend(seed % 2 == 0 ? 1 : 4, seed, 1000, seed % 3 == 0);
    GptProgram program(Gpt("cuda:dp=2,pp=2", 2));
    Session session = program.MakeTrain();
    StepResult first = session.Run(program.MakeFeeds(0));
    StepResult second = session.Run(program.MakeFeeds(1));
    if (seed % 4 == 1) first.Wait();
    session.Close();
    std::string error = ErrorOf([&] { second.Wait(); });
    EXPECT_TRUE(error == "" || error == "closed") << error;
  }
}

TEST(AsynchronousDeviceTest, EvaluationAndCheckpointsShareTheDevices) {
  LateBackend backend(1, 21, 200);
  GptProgram program(Gpt("cuda:dp=2"));
  Session train = program.MakeTrain();
  Session evaluate = program.MakeEvaluate();
  train.Run(program.MakeFeeds(0)).Wait();
  float before = evaluate.Run(program.MakeFeeds(5)).Scalar("loss");
  std::map<std::string, HostTensor> kept;
  for (const std::string& name : program.model().Variables()) kept[name] = program.model().Read(name);
  for (int i = 1; i < 4; ++i) train.Run(program.MakeFeeds(i));
  float later = evaluate.Run(program.MakeFeeds(5)).Scalar("loss");
  EXPECT_NE(before, later);
  for (const auto& [name, value] : kept) program.model().Write(name, value);
  EXPECT_EQ(evaluate.Run(program.MakeFeeds(5)).Scalar("loss"), before);
}

TEST(AsynchronousDeviceTest, DevicesThatDoNotExistAreRefused) {
  LateBackend backend(2);
  SmallGpt given = Gpt("cuda:dp=2");
  given.model_options.devices = {0, 2};
  EXPECT_EQ(ErrorOf([&] { Losses(given); }),
            "mesh cuda:dp=2,tp=1,pp=1: device 2 of --devices does not exist, this host has 2 cuda devices, "
            "numbered "
            "from 0");
  EXPECT_THROW(Losses(given), UsageError);  // exit code 64
  EXPECT_NE(ErrorOf([&] { Mesh::Parse("cpu+cuda:dp=2"); }).find("axis pp"), std::string::npos);
  EXPECT_NE(ErrorOf([&] { Mesh::Parse("cpu+cuda:pp=3"); }).find("cannot share axis pp of extent 3 equally"),
            std::string::npos);
}

}  // namespace
}  // namespace oneflow_like
