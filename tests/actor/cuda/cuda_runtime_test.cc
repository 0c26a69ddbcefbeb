// The runtime on asynchronous devices, run on the emulator: loss curves and layout changes on virtual GPUs
// and on several, whatever order unordered work takes; kernels that fail, memory that ends, devices that are
// lost, sessions closed in the middle; nothing left behind, and no waiting of the host inside a step.
// ctest: seconds=40 long=15 asan=190
// ctest: asan_filter=-*Counts*:*ManyMicro*:*Narrow*:*Schedules*:*ZeroAnd*:*Repetition*:*Little*:*MemoryIs*
// ctest: tsan=400 tsan_filter=*Close*:*Lost*:*AnId*
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actor/cuda/backend.h"
#include "core/device/backend.h"
#include "core/device/library_memory.h"
#include "core/hash_bytes.h"
#include "oneflow_like/data/files.h"
#include "oneflow_like/model/placement.h"
#include "ops/cuda/kernel.h"
#include "tests/actor/cuda/device_runs.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/error_of.h"
#include "tests/oneflow_like/session_fixture.h"
#include "tests/sanitized.h"

namespace oneflow_like {
namespace {

constexpr int kSteps = 4;  // the third may be recorded, the fourth a replay

SmallGpt Small(const std::string& mesh, int micro_batches = 1) {
  SmallGpt given;
  given.mesh = mesh;
  given.micro_batches = micro_batches;
  given.layers = 2;
  given.width = 32;
  given.heads = 2;  // a head's attention is a tile of 32 rows, however few there are
  return given;
}

const std::vector<float>& OnCpu() {
  static const std::vector<float> losses = Losses(Small("cpu:dp=1"), {}, kSteps);
  return losses;
}

class CudaRuntime : public testing::Test {
 protected:
  void SetUp() override { Start({}); }
  void TearDown() override { End(); }
  void Start(const cuda_emulator::Options& options) {
    if (backend_ != nullptr) End();
    cuda_emulator::Reset(options);
    backend_ = cuda::MakeBackend();
    SetBackend("cuda", backend_.get());
  }
  // Of whatever the test did nothing is left.
  void End() {
    SetBackend("cuda", nullptr);
    backend_.reset();
    const cuda_emulator::Counts counts = cuda_emulator::GetCounts();
    EXPECT_EQ(counts.bytes, 0) << "bytes of device memory that nobody gave back";
    EXPECT_EQ(counts.host_bytes, 0) << "bytes of pinned memory that nobody gave back";
    EXPECT_EQ(counts.streams, 0);
    EXPECT_EQ(counts.graphs, 0);
  }
  // Of the emulated run against the CPU's.
  void ExpectFollows(const std::string& mesh, int micro_batches, const std::vector<int>& devices,
                     uint64_t seed) {
    SmallGpt given = Small(mesh, micro_batches);
    const std::vector<float> losses = Losses(given, devices, kSteps);
    EXPECT_LE(WorstDifference(losses, OnCpu()), 1e-4)
        << given.str() << " on " << devices.size() << " devices, seed " << seed;
  }

 private:
  std::unique_ptr<Backend> backend_;
};

TEST_F(CudaRuntime, OneDeviceFollowsTheCpu) { ExpectFollows("cuda:dp=1", 1, {0}, 0); }
TEST_F(CudaRuntime, MicroBatchesFollow) { ExpectFollows("cuda:dp=1", 4, {0}, 0); }

// In 16 bits gelu and its slope are done with the products.
TEST_F(CudaRuntime, NarrowTypesFollow) {
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    SmallGpt given = Small("cuda:dp=1", 2);
    given.dtype = dtype;
    EXPECT_LE(WorstDifference(Losses(given, {0}, kSteps), OnCpu()), dtype == DType::kFloat16 ? 2e-3 : 1e-2)
        << Name(dtype);
  }
}

TEST_F(CudaRuntime, VirtualDevicesFollowInAnyOrder) {
  uint64_t seed = 0;
  for (const char* mesh : {"cuda:dp=2", "cuda:tp=2", "cuda:pp=2", "cuda:dp=2,tp=2,pp=2"}) {
    cuda_emulator::SetDelays(200, ++seed);
    ExpectFollows(mesh, 2, {0}, seed);
  }
}

class CudaRuntimeInAnyOrder : public CudaRuntime {
 protected:
  void ExpectSeveralFollow(uint64_t seed) {
    cuda_emulator::Options options;
    options.devices = 4;
    options.longest_delay_us = 200;
    options.seed = seed;
    Start(options);
    ExpectFollows("cuda:dp=2,tp=2", 2, {0, 1, 2, 3}, seed);
    ExpectFollows("cuda:pp=2", 4, {0, 1}, seed);
    ExpectFollows("cuda:dp=2,tp=2,pp=2", 2, {0, 1}, seed);  // four virtual devices on each
  }
  void ExpectChangesOfLayoutToArrive(unsigned first, unsigned behind, const std::vector<int>& devices) {
    cuda_emulator::Options options;
    options.devices = static_cast<int>(devices.size());
    if (devices.size() == 1) options.longest_delay_us = 100, options.seed = 3;
    Start(options);
    for (unsigned seed = first; seed < behind; ++seed) {
      const LayoutChange change("cuda", seed);
      ASSERT_EQ(change.Run(devices), "") << "seed " << seed << ": " << change.str();
    }
  }
};
using LongCudaRuntime = CudaRuntimeInAnyOrder;

TEST_F(CudaRuntimeInAnyOrder, SeveralDevicesFollow) { ExpectSeveralFollow(11); }
TEST_F(LongCudaRuntime, SeveralDevicesFollow) {
  for (uint64_t seed = 12; seed < 16; ++seed) ExpectSeveralFollow(seed);
}

// Streams of a device share a queue in which everything waits for what came before, and collectives have no
// room beside another one: whatever order a plan's ranks come in, nothing waits for ever.
TEST_F(CudaRuntime, LittleHardwareIsEnough) {
  cuda_emulator::Options options;
  options.devices = 4;
  options.hardware_queues = 1;
  options.blocks = 1;
  options.longest_delay_us = 50;
  options.seed = 21;
  Start(options);
  ExpectFollows("cuda:dp=2,tp=2", 2, {0, 1, 2, 3}, options.seed);
  ExpectFollows("cuda:dp=2,tp=2,pp=2", 2, {0, 1}, options.seed);
}

TEST_F(CudaRuntime, StagesOnTheHostAndOnDevicesFollow) {
  cuda_emulator::SetDelays(200, 21);
  ExpectFollows("cpu+cuda:pp=2", 4, {0}, 21);
  ExpectFollows("cuda+cpu:dp=2,pp=2", 2, {0}, 21);
}

TEST_F(CudaRuntime, RepetitionIsBitEqualInAnyOrder) {
  SmallGpt given = Small("cuda:dp=2,tp=2", 2);
  cuda_emulator::SetDelays(200, 5);
  const std::vector<float> first = Losses(given, {0}, kSteps);
  cuda_emulator::SetDelays(200, 6);
  EXPECT_EQ(first, Losses(given, {0}, kSteps));
}

TEST_F(CudaRuntimeInAnyOrder, EveryChangeOfLayoutArrives) {
  ExpectChangesOfLayoutToArrive(1, 31, {0});
  ExpectChangesOfLayoutToArrive(100, 112, {0, 1, 2, 3, 4, 5});
}
TEST_F(LongCudaRuntime, EveryChangeOfLayoutArrives) {
  ExpectChangesOfLayoutToArrive(31, 100, {0});
  ExpectChangesOfLayoutToArrive(112, 160, {0, 1, 2, 3, 4, 5});
}

TEST_F(CudaRuntime, StepsReplayGraphs) {
  GptProgram program([] {
    SmallGpt given = Small("cuda:dp=1");
    given.model_options = OnDevices({0});
    return given;
  }());
  Session session = program.MakeTrain();
  for (int step = 0; step < 4; ++step) session.Run(program.MakeFeeds(step)).Wait();
  const int64_t made = cuda_emulator::GetCounts().graphs_instantiated;
  const int64_t launched = cuda_emulator::GetCounts().graph_launches;
  EXPECT_GT(made, 0);
  for (int step = 4; step < 8; ++step) session.Run(program.MakeFeeds(step)).Wait();
  EXPECT_EQ(cuda_emulator::GetCounts().graphs_instantiated, made)
      << "addresses are fixed, nothing is recorded again";
  EXPECT_GE(cuda_emulator::GetCounts().graph_launches, launched + 4);
}

// Where begins follow the micro-batch every micro-batch has recordings of its own: of so many, too.
int KernelsOfAStep(Session& session) {
  int kernels = 0;
  const plan::Plan plan = PlanOf(session.impl()->compiled, 0).plan;
  for (const plan::Actor& actor : plan.actor()) {
    if (actor.feed().empty() && actor.fetch().empty() && !actor.has_collective())
      kernels += actor.kernel_size() * actor.acts();
  }
  return kernels;
}

// The plan of 124M parameters has the kernels of one with the same layers and less in each, which the
// emulator can run. Almost all of them are launched by replays.
TEST_F(CudaRuntime, CountsTheLaunchesOfAStepOf124MParameters) {
  SmallGpt given{.mesh = "cuda:dp=1", .batch = 2, .layers = 12, .width = 96, .heads = 12};
  given.dtype = DType::kBFloat16;
  given.dropout = 0;
  given.model_options = OnDevices({0});
  SmallGpt real = given;
  real.batch = 32, real.context = 1024, real.width = 768, real.vocabulary = 50304;
  GptProgram large(real), small(given);
  Session compiled = large.MakeTrain(), session = small.MakeTrain();
  const int kernels = KernelsOfAStep(compiled);
  EXPECT_EQ(KernelsOfAStep(session), kernels);
  constexpr int kWarm = 6, kCounted = 2;
  for (int step = 0; step < kWarm; ++step) session.Run(small.MakeFeeds(step)).Wait();
  (void)session.TakeProfile();
  const cuda_emulator::Counts before = cuda_emulator::GetCounts();
  for (int step = 0; step < kCounted; ++step) session.Run(small.MakeFeeds(kWarm + step)).Wait();
  const cuda_emulator::Counts after = cuda_emulator::GetCounts();
  const StepProfile profile = session.TakeProfile();
  const BackendCounts& counts = profile.devices;
  const double graphs = static_cast<double>(counts.graph_launches) / kCounted,
               alone = static_cast<double>(counts.lone_launches) / kCounted;
  std::printf(
      "a step of a GPT of 124M parameters: %d kernels, %.1f graph launches, %.1f kernels launched alone, "
      "%.1f grids of our own, %.1f operations enqueued; %lld recordings\n",
      kernels, graphs, alone, static_cast<double>(after.kernels - before.kernels) / kCounted,
      static_cast<double>(after.operations - before.operations) / kCounted,
      static_cast<long long>(counts.graphs));
  EXPECT_EQ(after.graph_launches - before.graph_launches, counts.graph_launches);
  EXPECT_GT(graphs, 0);
  EXPECT_LE(graphs, 16);
  EXPECT_LE(alone, 0.02 * kernels);
  EXPECT_EQ(counts.Refused(), 0);
  EXPECT_EQ(counts.failed_recordings, 0);
  EXPECT_EQ(counts.unrecorded_parts, 0);
  const std::string text = ToText(profile, "train");
  EXPECT_NE(text.find("graph launches a step"), std::string::npos);
  // Nothing says how fast a kernel was whose launch alone took the host time.
  EXPECT_NE(text.find("started, not timed"), std::string::npos) << text;
  for (const char* rate : {"GFLOP/s", "GB/s", "hottest"})
    EXPECT_EQ(text.find(rate), std::string::npos) << text;
}

// Refusals of libraries and segments that are never recorded stand beside the step's figures.
TEST_F(CudaRuntime, TheProfileSaysWhatWasRefused) {
  cuda_emulator::RefuseEpilogues(true);
  SmallGpt given = Small("cuda:dp=1");
  given.dtype = DType::kBFloat16;
  given.model_options = OnDevices({0});
  GptProgram program(given);
  Session session = program.MakeTrain();
  const int64_t refused = OpenBackend("cuda")->Counts().refused_epilogues;
  for (int step = 0; step < 3; ++step) session.Run(program.MakeFeeds(step)).Wait();
  cuda_emulator::RefuseEpilogues(false);
  const StepProfile profile = session.TakeProfile();
  EXPECT_GT(profile.devices.refused_epilogues, refused);
  EXPECT_GT(profile.devices.library_products, 0);
  const std::string text = ToText(profile, "train");
  EXPECT_NE(text.find("SLOWER THAN IT COULD BE"), std::string::npos) << text;
  EXPECT_NE(text.find("epilogues of products that cuBLASLt refused"), std::string::npos) << text;
  EXPECT_NE(session.ProfileText().find(" of them on plain cores\n"), std::string::npos);
}

TEST_F(CudaRuntime, ManyMicroBatchesReplayGraphs) {
  auto launches = [](int micro_batches) {
    SmallGpt given = Small("cuda:pp=2", micro_batches);
    given.batch = 32, given.context = 4, given.width = 16;
    given.model_options = OnDevices({0});
    GptProgram program(given);
    Session session = program.MakeTrain();
    for (int step = 0; step < 8; ++step) session.Run(program.MakeFeeds(step)).Wait();
    const int64_t made = cuda_emulator::GetCounts().graphs_instantiated;
    const int64_t before = cuda_emulator::GetCounts().graph_launches;
    session.Run(program.MakeFeeds(8)).Wait();
    EXPECT_EQ(cuda_emulator::GetCounts().graphs_instantiated, made) << micro_batches;
    return cuda_emulator::GetCounts().graph_launches - before;
  };
  // Some for each micro-batch, and those of the update.
  const int64_t four = launches(4), eight = launches(8), sixteen = launches(16);
  EXPECT_GT(eight, four);
  EXPECT_EQ(sixteen - eight, 2 * (eight - four));
}

// What a session says it takes is what it takes: of devices to a few numbers for each stream, of the host's
// memory that devices copy to and from to the faults that streams keep there.
TEST_F(CudaRuntime, MemoryIsKnownBeforeTheFirstStep) {
  struct Given {
    const char* mesh;
    int micro_batches;
    std::vector<int> devices;
    bool packs, stages;
  };
  for (const Given& given :
       {Given{"cuda:dp=1", 1, {0}, false, false}, Given{"cuda:dp=2,tp=2", 2, {0, 1, 2, 3}, true, false},
        Given{"cuda:dp=2,tp=2", 2, {0}, false, false}, Given{"cuda:tp=2,pp=2", 4, {0, 1, 2, 3}, true, false},
        Given{"cpu+cuda:dp=2,pp=2", 2, {0}, false, true},
        Given{"cpu+cuda:dp=2,pp=2", 2, {0, 1}, true, true}}) {
    cuda_emulator::Options options;
    options.devices = 4;
    options.stated_of_communicator = 1;
    Start(options);
    SmallGpt small = Small(given.mesh, given.micro_batches);
    small.model_options = OnDevices(given.devices);
    small.parallel.batch = "";  // so that layouts change, which packs
    GptProgram program(small);
    const Mesh& mesh = program.model().mesh();
    Session session = program.MakeTrain();
    int64_t device = 0, packing = 0, host = 0, ranks = 0, communicators = 0, libraries = 0;
    for (const RankSummary& s : session.Summaries()) {
      for (int rank : s.ranks) {
        if (mesh.KindOf(rank) != "cuda") continue;
        ++ranks;
        communicators += s.communicator_bytes;
        const MemoryBesides besides =
            MemoryBesidesPlan(*session.impl()->model, PlanOf(session.impl()->compiled, rank).plan);
        const int64_t not_here = s.communicator_bytes + besides.libraries + kCudaBytesBesides;
        libraries += besides.libraries;
        device += s.peak_bytes - not_here + static_cast<int64_t>(cuda::kWorkspaceBytes);
        packing += s.library_bytes - not_here;
        host += besides.host;
      }
    }
    EXPECT_EQ(packing > 2048 * ranks, given.packs) << packing;
    session.Run(program.MakeFeeds(0)).Wait();
    const cuda_emulator::Counts counts = cuda_emulator::GetCounts();
    const int64_t taken = counts.bytes - communicators;
    EXPECT_GE(taken, device) << given.mesh;
    EXPECT_LE(taken, device + 1024 * ranks) << given.mesh;
    EXPECT_GE(counts.host_bytes, host) << given.mesh;
    EXPECT_LE(counts.host_bytes, host + 4096 * ranks) << given.mesh;
    EXPECT_EQ(host > 8192 * ranks, given.stages) << given.mesh << " " << host;
    EXPECT_EQ(OpenBackend("cuda")->Counts().other_bytes, communicators) << given.mesh;
    EXPECT_EQ(communicators > 0, given.devices.size() > 1 && mesh.size() > 2) << given.mesh;
  }
}

// Communicators have a row in the table, and code of libraries has one for each process and card. Where more
// is taken the profile says so, and tables of later runs allow for it.
TEST_F(CudaRuntime, WhatLibrariesTakeIsToldOfAndKept) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / Cat("library_memory.", getpid());
  const char* before = std::getenv("XDG_CACHE_HOME");
  const std::string home = before ? before : "";
  const auto caches = [&](const char* name) {
    fs::create_directories(folder / name / "oneflow_like");
    setenv("XDG_CACHE_HOME", (folder / name).c_str(), 1);
    return folder / name / "oneflow_like" / "library_memory";
  };
  int64_t allowed = kCudaBytesOfLibraries;
  for (const double share : {1.0, 4.0, 4.0}) {
    cuda_emulator::Options options;
    options.devices = 2;
    options.stated_of_communicator = share;
    const bool later = allowed != kCudaBytesOfLibraries;
    const fs::path file = caches(share == 1 ? "none" : later ? "later" : "first");
    if (later) fs::copy_file(folder / "first" / "oneflow_like" / "library_memory", file);
    Start(options);
    SmallGpt small = Small("cuda:dp=2");
    small.model_options = OnDevices({0, 1});
    GptProgram program(small);
    Session session = program.MakeTrain();
    const RankSummary summary = session.Summaries()[0];
    ASSERT_GT(summary.communicator_bytes, 0);
    EXPECT_EQ(summary.purposes.back(), std::pair(std::string("communicators"), summary.communicator_bytes));
    EXPECT_NE(session.SummaryText().find("libraries, communicators and packing"), std::string::npos);
    EXPECT_EQ(MemoryBesidesPlan(*session.impl()->model, PlanOf(session.impl()->compiled, 0).plan).libraries,
              allowed);
    for (int step = 0; step < 3; ++step) session.Run(program.MakeFeeds(step)).Wait();
    const std::string text = session.ProfileText();
    EXPECT_EQ(text.find("communicators and graphs hold") != std::string::npos, share > 1 && !later) << text;
    EXPECT_EQ(fs::exists(file), share > 1);
    if (share == 1) continue;
    int64_t kept = 0;
    std::string card;
    std::ifstream(file) >> kept >> card;
    const int64_t taken = 3 * summary.communicator_bytes - kCudaBytesOfOthers;
    EXPECT_GE(kept, taken + taken / 8);
    EXPECT_LE(kept, taken + taken / 8 + (1 << 20));
    allowed = kept;
  }
  if (before)
    setenv("XDG_CACHE_HOME", home.c_str(), 1);
  else
    unsetenv("XDG_CACHE_HOME");
  fs::remove_all(folder);
}

TEST_F(CudaRuntime, NothingIsAllocatedAndTheHostNeverWaitsAfterTheFirstSteps) {
  SmallGpt given = Small("cuda:dp=2", 2);
  given.model_options = OnDevices({0});
  GptProgram program(given);
  Session session = program.MakeTrain();
  for (int step = 0; step < 4; ++step) session.Run(program.MakeFeeds(step)).Wait();
  const cuda_emulator::Counts before = cuda_emulator::GetCounts();
  for (int step = 4; step < 8; ++step) session.Run(program.MakeFeeds(step)).Wait();
  const cuda_emulator::Counts after = cuda_emulator::GetCounts();
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.host_synchronisations, before.host_synchronisations);
}

TEST_F(CudaRuntime, AnIdOutsideTheTableIsReportedWithTheUsersLine) {
  for (const char* axes : {"dp=1", "dp=2"}) {
    Lookup lookup(Mesh::Parse(Cat("cuda:", axes)), {0});
    Session session = Train(lookup.loss, Sgd{});
    Lookup wanted(Mesh::Parse(Cat("cpu:", axes)), {});
    Session on_cpu = Train(wanted.loss, Sgd{});
    auto loss_of = [](Session& trained) { return trained.Run(Lookup::FeedsWith(2)).Scalar("loss"); };
    const float first = loss_of(session);
    EXPECT_NEAR(first, loss_of(on_cpu), 1e-5);
    for (int step = 1; step < 3; ++step) EXPECT_NEAR(loss_of(session), loss_of(on_cpu), 1e-5) << step;
    EXPECT_EQ(lookup.Missing(ErrorOf([&] { session.Run(Lookup::FeedsWith(77)).Wait(); })), "") << axes;
    session.Close();
    Session again = Train(lookup.loss, Sgd{});
    EXPECT_LT(loss_of(again), first) << axes;
  }
}

// The device looks at targets; the host waits for nothing.
TEST_F(CudaRuntime, ATargetThatIsNoProbabilityIsReportedWithTheUsersLine) {
  for (const char* axes : {"dp=1", "dp=2"}) {
    struct Clicks {
      Model model;
      int line = 0;
      Tensor loss;
      Clicks(const Mesh& mesh, const std::vector<int>& devices) : model(mesh, OnDevices(devices)) {
        Tensor t = model.Input("t", {8}, DType::kFloat32), x = model.Input("x", {8}, DType::kFloat32);
        Tensor logits = x * model.scope().Weight("w", {8}, Ones());
        line = __LINE__ + 1;
        Tensor each = bce_with_logits_loss(logits, t);
        loss = mean(each);
      }
      static Feeds FeedsWith(float target) {
        return {{"t", ToHost<float>({0, 1, 0.5f, 0, 1, target, 0, 1}, {8})},
                {"x", ToHost<float>({-1, 2, 0.5f, 1, 1, -2, 0, 3}, {8})}};
      }
    };
    Clicks clicks(Mesh::Parse(Cat("cuda:", axes)), {0}), wanted(Mesh::Parse(Cat("cpu:", axes)), {});
    Session session = Train(clicks.loss, Sgd{}), on_cpu = Train(wanted.loss, Sgd{});
    for (int step = 0; step < 3; ++step)
      EXPECT_NEAR(session.Run(Clicks::FeedsWith(0.25f)).Scalar("loss"),
                  on_cpu.Run(Clicks::FeedsWith(0.25f)).Scalar("loss"), 1e-5);
    const cuda_emulator::Counts before = cuda_emulator::GetCounts();
    for (int step = 0; step < 4; ++step) session.Run(Clicks::FeedsWith(1)).Wait();
    EXPECT_EQ(cuda_emulator::GetCounts().host_synchronisations, before.host_synchronisations);
    const std::string said = ErrorOf([&] { session.Run(Clicks::FeedsWith(2)).Wait(); });
    for (const std::string& word : {Cat("bce_with_logits_loss at cuda_runtime_test.cc:", clicks.line),
                                    std::string("target 2 is outside [0, 1]")})
      EXPECT_NE(said.find(word), std::string::npos) << axes << ": " << said;
  }
}

// Steps of a loop are launches of one act, which is recorded and replayed.
TEST_F(CudaRuntime, LoopsFollow) {
  struct Recurrent {
    Model model;
    std::optional<Session> train;
    Recurrent(const Mesh& mesh, const std::vector<int>& devices, int micro_batches)
        : model(mesh, OnDevices(devices)) {
      Tensor x = model.Input("x", {4, 7, 16}, DType::kFloat32, {{"dp", S(0)}});
      Tensor y = nn::GRU(model.scope() / "gru", nn::LSTM(model.scope() / "lstm", x, 16).y, 16).y;
      y = linear_recurrence(sigmoid(y), x, 1);
      TrainOptions options;
      options.micro_batches = micro_batches;
      train.emplace(Train(mean(square(y)), Sgd{.lr = 0.5}, options));
    }
    std::vector<float> Losses() {
      std::vector<float> losses;
      for (int step = 0; step < kSteps + 2; ++step)
        losses.push_back(train->Run({{"x", Floats(step, {4, 7, 16})}}).Scalar("loss"));
      return losses;
    }
  };
  const std::vector<float> wanted = Recurrent(Mesh::Parse("cpu:dp=1"), {}, 1).Losses();
  for (const auto& [mesh, micro_batches] : {std::pair{"cuda:dp=1", 1}, {"cuda:dp=2", 1}, {"cuda:dp=1", 2}})
    EXPECT_LE(WorstDifference(Recurrent(Mesh::Parse(mesh), {0}, micro_batches).Losses(), wanted), 1e-5)
        << mesh;
}

// Rows go to ranks up to the bound, on devices of their own and on shared ones; counts stay on the devices.
TEST_F(CudaRuntime, ExpertsWithRoomOfRanksFollow) {
  cuda_emulator::Options options;
  options.devices = 4;
  Start(options);
  struct Experts {
    Model model;
    int line = 0;
    std::optional<Session> train;
    Experts(const std::string& mesh, const std::vector<int>& devices, int micro_batches,
            const nn::ExpertsOptions& o)
        : model(Mesh::Parse(mesh), OnDevices(devices)) {
      Tensor x = model.Input("x", {8, 6, 16}, DType::kFloat32, {{"dp", S(0)}});
      TrainOptions train_options;
      train_options.micro_batches = micro_batches;
      Tensor h = nn::RmsNorm(model.scope() / "norm", x);
      line = __LINE__ + 1;
      Tensor y = nn::Experts(model.scope() / "e", h, o).y;
      train.emplace(Train(mean(square(y - x)), Sgd{.lr = 0.5}, train_options));
    }
    StepResult Step(int step) { return train->Run({{"x", Floats(step, {8, 6, 16})}}); }
    std::vector<float> Losses() {
      std::vector<float> losses;
      for (int step = 0; step < kSteps; ++step) losses.push_back(Step(step).Scalar("loss"));
      return losses;
    }
  };
  nn::ExpertsOptions o;
  o.experts = 8;
  o.inner = 16;
  o.ep = "dp";
  o.gate_init = Normal(1);
  o.room = 4;
  const std::vector<float> wanted = Experts("cpu:dp=4", {}, 1, o).Losses();
  for (const auto& [devices, micro_batches] : std::vector<std::pair<std::vector<int>, int>>{
           {{0, 1, 2, 3}, 1}, {{0, 0, 0, 0}, 1}, {{0, 1, 2, 3}, 2}, {{0, 0, 1, 1}, 2}}) {
    cuda_emulator::SetDelays(50, 31);
    EXPECT_LE(WorstDifference(Experts("cuda:dp=4", devices, micro_batches, o).Losses(), wanted), 1e-4)
        << devices[1] << devices[3] << " in " << micro_batches;
  }
  cuda_emulator::SetDelays(0, 0);
  const auto expect_planned = [](const Experts& watched) {
    int64_t device = 0, host = 0, plans = 1;
    for (const RankSummary& s : watched.train->Summaries())
      for (int rank : s.ranks) {
        const Session::Impl& impl = *watched.train->impl();
        const MemoryBesides besides = MemoryBesidesPlan(*impl.model, PlanOf(impl.compiled, rank).plan);
        device += s.peak_bytes - s.communicator_bytes - besides.libraries - kCudaBytesOfOthers;
        host += besides.host;
        if (!impl.retries) continue;
        host += MemoryBesidesPlan(*impl.model, PlanOf(impl.retries->compiled(), rank).plan).host;
        plans = 2;
      }
    static_assert(kCudaBytesBesides - kCudaBytesOfOthers == static_cast<int64_t>(cuda::kWorkspaceBytes));
    const cuda_emulator::Counts counts = cuda_emulator::GetCounts();
    EXPECT_GE(counts.bytes, device);
    EXPECT_LE(counts.bytes, device + plans * 1024 * 4);
    EXPECT_GE(counts.host_bytes, host);
    EXPECT_LE(counts.host_bytes, host + plans * 4096 * 4);
  };
  // Memory is what was planned, whatever the routes: those of drawn tokens, and of tokens that are all alike.
  for (const std::vector<int>& devices : {std::vector<int>{0, 1, 2, 3}, std::vector<int>{0, 0, 1, 1}}) {
    Start(options);
    Experts watched("cuda:dp=4", devices, 1, o);
    watched.Losses();
    expect_planned(watched);
    const cuda_emulator::Counts before = cuda_emulator::GetCounts();
    for (int step = 0; step < 4; ++step) {
      HostTensor alike = Floats(step, {8, 6, 16});
      for (int64_t i = 16; i < alike.elements(); ++i) alike.as<float>()[i] = alike.as<float>()[i % 16];
      watched.train->Run({{"x", alike}}).Wait();
      watched.Step(step).Wait();
    }
    const cuda_emulator::Counts after = cuda_emulator::GetCounts();
    EXPECT_EQ(after.bytes, before.bytes);
    EXPECT_EQ(after.host_bytes, before.host_bytes);
    EXPECT_EQ(after.allocations, before.allocations);
    EXPECT_EQ(after.host_synchronisations, before.host_synchronisations);
  }
  // Where too little room is given, steps run again in a second plan, whose streams were planned for.
  nn::ExpertsOptions retry = o;
  retry.room = 1;
  retry.retry_room = 4;
  retry.overflow = nn::ExpertOverflow::kRetry;
  for (const std::vector<int>& devices : {std::vector<int>{0, 1, 2, 3}, std::vector<int>{0, 0, 1, 1}}) {
    Start(options);
    Experts again("cuda:dp=4", devices, 1, retry);
    EXPECT_LE(WorstDifference(again.Losses(), wanted), 1e-4);
    EXPECT_GT(again.train->impl()->retries->count(), 0);
    expect_planned(again);
  }
  o.room = .5;
  o.overflow = nn::ExpertOverflow::kError;
  Experts narrow("cuda:dp=4", {0, 1, 2, 3}, 1, o);
  const std::string said = ErrorOf([&] { narrow.Step(0).Wait(); });
  for (const std::string& word : {Cat("nn::Experts 'e' at cuda_runtime_test.cc:", narrow.line),
                                  std::string("their rank has room for 2; give more room")})
    EXPECT_NE(said.find(word), std::string::npos) << said;
}

TEST_F(CudaRuntime, OutOfMemoryNamesWhatAndHowMuch) {
  cuda_emulator::Options options;
  options.memory = size_t{64} << 20;
  Start(options);
  Model model(Mesh::Parse("cuda:dp=1"), OnDevices({0}));
  Tensor x = model.Input("x", {4, 1 << 12}, DType::kFloat32);
  Tensor loss = mean(square(matmul(x, model.scope().Weight("huge", {1 << 12, 1 << 12}, Zeros()))));
  Session session = Train(loss, Sgd{});
  HostTensor fed = HostTensor::Make(DType::kFloat32, {4, 1 << 12});
  const std::string error = ErrorOf([&] { session.Run({{"x", fed}}).Wait(); });
  for (const char* word : {"bytes", "free"}) EXPECT_NE(error.find(word), std::string::npos) << error;
}

TEST_F(CudaRuntime, ALostDeviceEndsTheStepAndSaysSo) {
  SmallGpt given = Small("cuda:dp=2");
  given.model_options = OnDevices({0});
  GptProgram program(given);
  Session session = program.MakeTrain();
  session.Run(program.MakeFeeds(0)).Wait();
  cuda_emulator::LoseDevice(0);
  const std::string error = ErrorOf([&] { session.Run(program.MakeFeeds(1)).Wait(); });
  EXPECT_NE(error.find("cudaErrorLaunchFailure"), std::string::npos) << error;
  session.Close();
}

// Trained on the CPU, carried on by GPUs: every variable is written there, read back to the bit, and used.
TEST_F(CudaRuntime, VariablesAreReadAndWrittenWhateverTheirCut) {
  cuda_emulator::Options options;
  options.devices = 4;
  Start(options);
  SmallGpt alone = Small("cpu:dp=1");
  alone.model_options = OnDevices({});
  GptProgram cpu(alone);
  Session on_cpu = cpu.MakeTrain();
  for (int step = 0; step < 2; ++step) on_cpu.Run(cpu.MakeFeeds(step)).Wait();
  std::map<std::string, HostTensor> variables;
  for (const std::string& name : cpu.model().Variables()) variables.emplace(name, cpu.model().Read(name));
  const float wanted = on_cpu.Run(cpu.MakeFeeds(2)).Scalar("loss");
  for (const char* zero : {"", "dp"})
    for (const std::vector<int>& devices : {std::vector<int>{0}, std::vector<int>{0, 1, 2, 3}}) {
      SmallGpt given = Small("cuda:dp=2,tp=2");
      given.zero_axis = zero;
      given.model_options = OnDevices(devices);
      GptProgram program(given);
      Session session = program.MakeTrain();
      cuda_emulator::SetDelays(100, 7);
      for (const auto& [name, value] : variables) program.model().Write(name, value);
      for (const auto& [name, value] : variables)
        EXPECT_TRUE(SameBytes(program.model().Read(name), value)) << name << " " << given.str();
      program.model().SetNextStep("train", 2);
      EXPECT_NEAR(session.Run(program.MakeFeeds(2)).Scalar("loss"), wanted, 1e-4) << given.str();
    }
}

TEST_F(CudaRuntime, ZeroAndRecomputationFollow) {
  cuda_emulator::SetDelays(100, 7);
  for (int stage : {2, 3}) {
    SmallGpt given = Small("cuda:dp=2,tp=2", 3);
    given.zero_axis = "dp";
    given.zero_stage = stage;
    given.recompute = stage == 2 ? Recompute::kSelective : Recompute::kFull;
    EXPECT_LE(WorstDifference(Losses(given, {0}, kSteps), OnCpu()), 1e-4) << given.str();
  }
}

// Messages of the forward pass between devices, sent again beside the backward pass.
TEST_F(CudaRuntime, MessagesSentAgainFollow) {
  cuda_emulator::Options options;
  options.devices = 2;
  Start(options);
  for (const char* axis : {"tp", "cp"}) {
    SmallGpt given = Small(Cat("cuda:", axis, "=2"), 2);
    given.sequence = axis;
    if (given.sequence == "cp") given.parallel.context = "cp";
    std::vector<std::vector<float>> losses;
    for (bool again : {false, true}) {
      given.gather_again = again;
      cuda_emulator::SetDelays(100, 3);
      losses.push_back(Losses(given, {0, 1}, kSteps));
      EXPECT_LE(WorstDifference(losses.back(), OnCpu()), 1e-4) << given.str();
    }
    EXPECT_EQ(losses[0], losses[1]) << given.str();
  }
}

// Several sets of axes send, on devices with one queue and room for one collective.
TEST_F(CudaRuntime, NestedCutsFollow) {
  cuda_emulator::Options options;
  options.devices = 8;
  options.hardware_queues = 1;
  options.blocks = 1;
  Start(options);
  for (const char* axis : {"b", "dp"}) {
    SmallGpt given = Small("cuda:a=2,b=2,tp=2;dp=a*b", 2);
    given.zero_axis = axis;
    given.zero_stage = 3;
    cuda_emulator::SetDelays(50, 22);
    EXPECT_LE(WorstDifference(Losses(given, {0, 1, 2, 3, 4, 5, 6, 7}, kSteps), OnCpu()), 1e-4) << given.str();
  }
}

// Copies from and to pinned memory run on streams of their own, whatever their delays, and from recordings.
TEST_F(CudaRuntime, OffloadFollows) {
  for (int queues : {8, 1}) {
    cuda_emulator::Options options;
    options.devices = 4;
    options.hardware_queues = queues;
    Start(options);
    for (const char* what : {"activations", "optimizer,weights", "activations,optimizer,weights"}) {
      SmallGpt given = Small("cuda:dp=2,pp=2", 2);
      given.layers = 6;
      SmallGpt alone = given;
      alone.mesh = "cpu:dp=1";
      given.zero_axis = "dp";
      given.zero_stage = 3;
      given.model_options.offload = ParseOffload(what, "the test");
      given.model_options.offload.small = 16;
      cuda_emulator::SetDelays(80, 31);
      EXPECT_LE(WorstDifference(Losses(given, {0, 1, 2, 3}, kSteps), Losses(alone, {}, kSteps)), 1e-4)
          << given.str();
    }
  }
}

// What a save writes is copied beside the next step, which waits for it on the device alone; it is what a
// save writes that nothing runs beside. The host has no room for it: the next step waits for all of it.
TEST_F(CudaRuntime, ASaveRunsBesideTheNextStep) {
  const auto saved = [&](const std::string& name, bool beside) {
    const std::string folder = testing::TempDir() + "cuda_runtime_test." + name;
    std::filesystem::remove_all(folder);
    cuda_emulator::Options options;
    options.devices = 2;
    Start(options);
    SmallGpt given = Small("cuda:dp=2", 2);
    given.zero_axis = "dp";
    given.model_options = OnDevices({0, 1});
    GptProgram program(given);
    Session train = program.MakeTrain();
    (void)train.Run(program.MakeFeeds(0)).Scalar("loss");
    std::vector<float> losses;
    std::optional<SaveHandle> handle;
    if (beside) {
      std::future<StepResult> step;
      {
        cuda_emulator::Pause pause;
        cuda_emulator::SetCopyDelay(3000);  // updates overtake them where nothing holds these
        handle = Save(program.model(), folder);
        step = std::async(std::launch::async, [&] { return train.Run(program.MakeFeeds(1)); });
        EXPECT_EQ(step.wait_for(std::chrono::minutes(1)), std::future_status::ready)
            << "Run waits for copies";
      }
      losses.push_back(step.get().Scalar("loss"));
    } else {
      handle = Save(program.model(), folder);
      handle->Wait();
      losses.push_back(train.Run(program.MakeFeeds(1)).Scalar("loss"));
    }
    losses.push_back(train.Run(program.MakeFeeds(2)).Scalar("loss"));
    return std::pair(losses, ReadFile(handle->Wait() + "/model-00001-of-00001.safetensors", 1 << 30));
  };
  const auto [wanted_losses, wanted] = saved("alone", false);
  const auto [losses, bytes] = saved("beside", true);
  EXPECT_EQ(losses, wanted_losses);
  EXPECT_EQ(HashOfBytes(bytes.data(), bytes.size()), HashOfBytes(wanted.data(), wanted.size()));
}

// The order of acts is the list of a device's stream: gradients of weights behind those that others wait for.
TEST_F(CudaRuntime, SchedulesFollow) {
  SmallGpt alone = Small("cpu:dp=1");
  alone.layers = 4;
  const std::vector<float> wanted = Losses(alone, {}, kSteps);
  cuda_emulator::SetDelays(100, 5);
  for (auto [schedule, rounds] :
       {std::pair{PipelineSchedule::kInterleaved, 2}, std::pair{PipelineSchedule::kZeroBubble, 1}}) {
    SmallGpt given = Small("cuda:dp=2,pp=2", 4);
    given.layers = alone.layers;
    given.schedule = schedule;
    given.model_options.pipeline.virtual_stages = rounds;
    EXPECT_LE(WorstDifference(Losses(given, {0}, kSteps), wanted), 1e-4) << given.str();
  }
}

TEST_F(CudaRuntime, CloseInTheMiddle) {
  SmallGpt given = Small("cuda:dp=2,pp=2", 2);
  given.model_options = OnDevices({0});
  GptProgram program(given);
  cuda_emulator::SetDelays(300, 9);
  std::vector<int> fed;
  // ThreadSanitizer leaves mappings of each session's threads behind, of which a process may have 65,530.
  const int rounds = kSanitized ? 4 : 6;  // the first steps again
  for (int round = 0; round < rounds; ++round) {
    Session session = program.MakeTrain();
    std::vector<StepResult> results;
    for (int step = 0; step < round % 4; ++step) {
      results.push_back(session.Run(program.MakeFeeds(step)));
      fed.push_back(step);
    }
    session.Close();
    for (const StepResult& result : results) {
      const std::string error = ErrorOf([&] { result.Wait(); });
      EXPECT_TRUE(error == "" || error.find("closed") != std::string::npos) << error;
    }
  }
  // Steps of training come to their end: a session made now goes on where they stopped.
  SmallGpt alone = Small("cpu:dp=1");
  alone.model_options = OnDevices({});
  GptProgram other(alone);
  Session on_cpu = other.MakeTrain();
  const int64_t steps = program.model().next_step("train");
  for (int64_t step = 0; step < steps; ++step) on_cpu.Run(other.MakeFeeds(fed[step])).Wait();
  Session session = program.MakeTrain();
  EXPECT_NEAR(session.Run(program.MakeFeeds(0)).Scalar("loss"), on_cpu.Run(other.MakeFeeds(0)).Scalar("loss"),
              1e-4);
}

TEST_F(CudaRuntime, ADryRunNeedsNoDevice) {
  SetBackend("cuda", nullptr);
  cuda_emulator::Options none;
  none.start = cudaErrorNoDevice;
  cuda_emulator::Reset(none);
  EXPECT_NE(ErrorOf([] { (void)cuda::MakeBackend(); }).find("no GPU"), std::string::npos);
  GptProgram program(Small("cuda:dp=2,tp=2"));
  EXPECT_NE(program.MakeTrain().SummaryText().find("rank"), std::string::npos);
}

}  // namespace
}  // namespace oneflow_like
