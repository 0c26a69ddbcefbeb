// The runtime on asynchronous devices, run on the emulator: loss curves and layout changes on virtual GPUs
// and on several, whatever order unordered work takes; kernels that fail, memory that ends, devices that are
// lost, sessions closed in the middle; nothing left behind, and no waiting of the host inside a step.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "core/backend.h"
#include "cuda/backend.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/device_runs.h"
#include "tests/error_of.h"

namespace oneflow_like {
namespace {

constexpr int kSteps = 5;

SmallGpt Small(const std::string& mesh, int micro_batches = 1) {
  SmallGpt given;
  given.mesh = mesh;
  given.micro_batches = micro_batches;
  given.layers = 2;
  given.width = 32;
  given.heads = 4;
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

TEST_F(CudaRuntime, SeveralDevicesFollowInAnyOrder) {
  cuda_emulator::Options options;
  options.devices = 4;
  options.longest_delay_us = 200;
  for (uint64_t seed : {11, 12}) {
    options.seed = seed;
    Start(options);
    ExpectFollows("cuda:dp=2,tp=2", 2, {0, 1, 2, 3}, seed);
    ExpectFollows("cuda:pp=2", 4, {0, 1}, seed);
    ExpectFollows("cuda:dp=2,tp=2,pp=2", 2, {0, 1}, seed);  // four virtual devices on each
  }
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

TEST_F(CudaRuntime, EveryChangeOfLayoutArrives) {
  cuda_emulator::SetDelays(100, 3);
  for (unsigned seed = 1; seed <= 60; ++seed) {
    const LayoutChange change("cuda", seed);
    ASSERT_EQ(change.Run({0}), "") << "seed " << seed << ": " << change.str();
  }
  cuda_emulator::Options options;
  options.devices = 6;
  Start(options);
  for (unsigned seed = 100; seed <= 120; ++seed) {
    const LayoutChange change("cuda", seed);
    ASSERT_EQ(change.Run({0, 1, 2, 3, 4, 5}), "") << "seed " << seed << ": " << change.str();
  }
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
    for (int step = 0; step < 3; ++step)
      EXPECT_TRUE(std::isfinite(session.Run(Lookup::FeedsWith(2)).Scalar("loss")));
    EXPECT_EQ(lookup.Missing(ErrorOf([&] { session.Run(Lookup::FeedsWith(77)).Wait(); })), "") << axes;
    session.Close();
    Session again = Train(lookup.loss, Sgd{});
    EXPECT_TRUE(std::isfinite(again.Run(Lookup::FeedsWith(2)).Scalar("loss"))) << axes;
  }
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

TEST_F(CudaRuntime, CloseInTheMiddle) {
  SmallGpt given = Small("cuda:dp=2,pp=2", 2);
  given.model_options = OnDevices({0});
  GptProgram program(given);
  cuda_emulator::SetDelays(300, 9);
  for (int round = 0; round < 6; ++round) {
    Session session = program.MakeTrain();
    std::vector<StepResult> results;
    for (int step = 0; step < round % 4; ++step) results.push_back(session.Run(program.MakeFeeds(step)));
    session.Close();
    for (const StepResult& result : results) {
      const std::string error = ErrorOf([&] { result.Wait(); });
      EXPECT_TRUE(error == "no error" || error.find("closed") != std::string::npos) << error;
    }
  }
  Session session = program.MakeTrain();
  EXPECT_TRUE(std::isfinite(session.Run(program.MakeFeeds(0)).Scalar("loss")));
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
