// The CUDA backend on the emulator: order, events, recordings, faults, failures, groups. Streams sleep at
// random, so what the backend does not order comes in any order; every seed is printed where it matters.
// ctest: asan=10 tsan=10
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <numeric>
#include <thread>

#include "actor/cuda/backend.h"
#include "actor/cuda/nccl.h"
#include "actor/cuda/stream.h"
#include "ops/cuda/driver_turn.h"
#include "ops/cuda/jit.h"
#include "ops/cuda/launch.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/error_of.h"

namespace oneflow_like::cuda {
namespace {

constexpr int kCount = 64;
constexpr auto kDeadline = std::chrono::seconds(60);

// y = x * factor + step + 100 * time, where step and time are the device's.
OFL_KERNEL void MixKernel(const float* x, float* y, int count, float factor, const ActState* act) {
  int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) {
    y[i] = x[i] * factor + static_cast<float>(act->step) + 100.0f * static_cast<float>(act->time);
  }
}

OFL_KERNEL void FindNegativeKernel(const float* x, int count, Fault* fault, int number) {
  int i = static_cast<int>(threadIdx.x);
  if (i < count && x[i] < 0 && atomicCAS(&fault->kernel, 0, number) == 0) {
    fault->value = static_cast<int64_t>(x[i]);
    fault->limit = 7;
  }
}

class Mix : public CudaKernel {
 public:
  explicit Mix(float factor, bool recordable = true) : factor_(factor), recordable_(recordable) {}
  Status Launch(const KernelContext& context, const LaunchContext& launch) override {
    ++launches;
    if (failure.size() > 0) return Status(failure);
    cuda::Launch(MixKernel, Grid{.x = 2, .y = 1, .threads = 32, .shared = 0}, launch.stream,
                 context.in[0].as<float>(), context.out[0].as<float>(),
                 static_cast<int>(context.in[0].elements()), factor_, launch.act);
    return Status();
  }
  bool Recordable() const override { return recordable_; }

  int launches = 0;
  std::string failure;

 private:
  float factor_;
  bool recordable_;
};

class FindNegative : public CudaKernel {
 public:
  Status Launch(const KernelContext& context, const LaunchContext& launch) override {
    cuda::Launch(FindNegativeKernel, Grid{.x = 1, .y = 1, .threads = kCount, .shared = 0}, launch.stream,
                 context.in[0].as<float>(), kCount, launch.fault, launch.number);
    return Status();
  }
  std::string Explain(const Fault& fault) const override {
    return Cat("value ", fault.value, " is below 0, limit ", fault.limit);
  }
};

class HostKernel : public Kernel {
 public:
  Status Run(const KernelContext&) override { return Status(); }
};

// A kernel with operands, as an actor would hold it.
struct Call {
  Call(std::unique_ptr<Kernel> k, const std::string& node, void* in, void* out) : kernel(std::move(k)) {
    spec.name = "mix";
    spec.node = node;
    spec.line = SourceLine("model.cc", 12);
    TensorArg arg;
    arg.global = arg.extent = {kCount};
    arg.begin = {0};
    arg.data = in;
    args[0] = arg;
    arg.data = out;
    args[1] = arg;
  }
  KernelContext At(int64_t step, int64_t time = 0) const {
    return {.spec = spec, .in = {&args[0], 1}, .out = {&args[1], 1}, .step = step, .time = time};
  }
  KernelRun RunAt(int64_t step, int64_t time = 0) const { return {kernel.get(), At(step, time)}; }
  Mix& mix() const { return static_cast<Mix&>(*kernel); }

  std::unique_ptr<Kernel> kernel;
  KernelSpec spec;
  TensorArg args[2];
};

std::future<Status> Ask(DeviceStream* stream) {
  auto promise = std::make_shared<std::promise<Status>>();
  stream->NotifyWhenDone([promise](Status status) { promise->set_value(std::move(status)); });
  return promise->get_future();
}

std::string Come(std::future<Status> future) {
  if (future.wait_for(kDeadline) != std::future_status::ready) return "nothing came";
  return future.get().message();
}
std::string Wait(DeviceStream* stream) { return Come(Ask(stream)); }

class CudaBackendTest : public ::testing::Test {
 protected:
  CudaBackendTest() { Begin({}); }

  void Begin(const cuda_emulator::Options& options) {
    memory_.clear();
    devices_.clear();
    backend_.reset();
    cuda_emulator::Reset(options);
    backend_ = MakeBackend();
  }
  Device* MakeDevice(int rank, int gpu) {
    devices_.push_back(backend_->MakeDevice(rank, gpu));
    return devices_.back().get();
  }
  float* Put(Device* device, const std::vector<float>& values) {
    memory_.push_back(device->Allocate(values.size() * sizeof(float), "a test"));
    void* data = memory_.back()->data();
    device->CopyIn(data, values.data(), values.size() * sizeof(float));
    return static_cast<float*>(data);
  }
  static std::vector<float> Get(Device* device, const float* data, int count = kCount) {
    std::vector<float> values(count);
    device->CopyOut(values.data(), data, values.size() * sizeof(float));
    return values;
  }
  static std::unique_ptr<Call> Make(float factor, float* in, float* out, bool recordable = true) {
    return std::make_unique<Call>(std::make_unique<Mix>(factor, recordable), Cat("mix", factor), in, out);
  }

  std::unique_ptr<Backend> backend_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::unique_ptr<Memory>> memory_;
};

using Action = GraphPolicy::Action;

TEST(GraphPolicyTest, RunsThenRecordsThenReplays) {
  GraphPolicy policy(2);
  EXPECT_EQ(policy.Decide(1).action, Action::kRun);
  EXPECT_EQ(policy.Decide(2).action, Action::kRun);
  GraphPolicy::Decision first = policy.Decide(1);
  EXPECT_EQ(first.action, Action::kRecord);
  EXPECT_EQ(first.slot, 0);
  GraphPolicy::Decision second = policy.Decide(2);
  EXPECT_EQ(second.action, Action::kRecord);
  EXPECT_EQ(second.slot, 1);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(policy.Decide(1).action, Action::kReplay);
    EXPECT_EQ(policy.Decide(1).slot, 0);
    EXPECT_EQ(policy.Decide(2).slot, 1);
  }
}

TEST(GraphPolicyTest, ARecordingThatFailedIsTriedAgainOnce) {
  GraphPolicy policy(2);
  policy.Decide(1);
  ASSERT_EQ(policy.Decide(1).action, Action::kRecord);
  policy.Failed(0);
  EXPECT_EQ(policy.Decide(1).action, Action::kRecord);
  policy.Succeeded();
  EXPECT_EQ(policy.Decide(1).action, Action::kReplay);
  policy.Decide(2);
  for (int failures = 0; failures < 2; ++failures) {
    const GraphPolicy::Decision again = policy.Decide(2);
    EXPECT_EQ(again.action, Action::kRecord);
    EXPECT_EQ(again.slot, 1);
    policy.Failed(again.slot);
  }
  for (uint64_t key : {1, 2}) EXPECT_EQ(policy.Decide(key).action, Action::kRun);
}

TEST(GraphPolicyTest, TheLeastRecentlyUsedGoesAfterARest) {
  GraphPolicy policy(2);
  for (uint64_t key : {1, 1, 2, 2}) policy.Decide(key);
  // Key 1 rests, key 2 does not: the newcomer gets the slot of 1, but not while 1 may come round again.
  EXPECT_EQ(policy.Decide(3).action, Action::kRun);
  EXPECT_EQ(policy.Decide(3).action, Action::kRun);
  for (int i = 0; i < 20; ++i) policy.Decide(2);
  GraphPolicy::Decision decision = policy.Decide(3);
  EXPECT_EQ(decision.action, Action::kRecord);
  EXPECT_EQ(decision.slot, 0);
  EXPECT_EQ(policy.Decide(3).action, Action::kReplay);
  EXPECT_EQ(policy.Decide(2).action, Action::kReplay);
  EXPECT_EQ(policy.Decide(1).action, Action::kRun);
}

TEST(GraphPolicyTest, ACircleLongerThanTheSlotsDoesNotRecordForEver) {
  GraphPolicy policy(4);
  int recorded = 0, replayed = 0;
  for (int round = 0; round < 100; ++round) {
    for (uint64_t key = 0; key < 10; ++key) {
      Action action = policy.Decide(key).action;
      recorded += action == Action::kRecord;
      replayed += action == Action::kReplay;
    }
  }
  EXPECT_EQ(recorded, 4);
  EXPECT_EQ(replayed, 4 * 98);
}

// Begins that follow 16 micro-batches, slots in rings of two, three and five.
TEST(GraphPolicyTest, KeysOfAPlanAreAllReplayed) {
  GraphPolicy policy;
  auto key = [](int64_t act) {
    return static_cast<uint64_t>(act % 2 + 2 * (act % 3) + 6 * (act % 5) + 30 * (act % 16));
  };
  for (int64_t act = 0; act < 480; ++act) policy.Decide(key(act));
  for (int64_t act = 480; act < 720; ++act) EXPECT_EQ(policy.Decide(key(act)).action, Action::kReplay) << act;
}

TEST(GraphPolicyTest, TheKeyIsWhatARecordingHoldsFixed) {
  float x = 0, y = 0;
  Call call(std::make_unique<HostKernel>(), "n", &x, &y);
  auto key = [](const KernelContext& context) {
    KernelRun run{nullptr, context};
    return KeyOf({&run, 1});
  };
  const uint64_t plain = key(call.At(0));
  EXPECT_EQ(key(call.At(5, 3)), plain);
  auto changed = [&](auto change) {
    Call other(std::make_unique<HostKernel>(), "n", &x, &y);
    change(other.args);
    return key(other.At(0)) != plain;
  };
  EXPECT_TRUE(changed([&](TensorArg* args) { args[0].data = &y; }));
  EXPECT_TRUE(changed([&](TensorArg* args) { args[1].data = &x; }));
  EXPECT_TRUE(changed([](TensorArg* args) { args[0].extent = {kCount - 1}; }));
  EXPECT_TRUE(changed([](TensorArg* args) { args[0].begin = {1}; }));
  EXPECT_TRUE(changed([](TensorArg* args) { args[0].extent = {kCount, 1}; }));
  KernelContext context = call.At(0);
  context.seed = 1;
  EXPECT_NE(key(context), plain);
  KernelContext scratch = call.At(0);
  scratch.scratch = &x;
  EXPECT_NE(key(scratch), plain);
  KernelContext times{.spec = call.spec, .in = {&call.args[0], 1}, .out = {&call.args[1], 1}, .times = 2};
  EXPECT_NE(key(times), plain);
}

TEST_F(CudaBackendTest, EventsOrderStreamsOfSeveralDevices) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(Cat("seed ", seed));
    cuda_emulator::Options options;
    options.longest_delay_us = 300;
    options.seed = seed;
    Begin(options);
    Device* devices[] = {MakeDevice(0, 0), MakeDevice(1, 0), MakeDevice(2, 1)};
    for (Device* a : devices) {
      for (Device* b : devices) EXPECT_TRUE(a->Reaches(*b));
    }
    std::vector<std::unique_ptr<DeviceStream>> streams;
    std::vector<std::unique_ptr<DeviceEvent>> events;
    for (Device* device : devices) streams.push_back(device->MakeStream("compute"));
    for (auto& stream : streams) events.push_back(stream->MakeEvent());
    float* x = Put(devices[0], std::vector<float>(kCount, 1.0f));
    auto call = Make(1.5f, x, x);
    float expected = 1;
    // An event that was never recorded is no wait.
    streams[0]->WaitFor(*events[2]);
    for (int i = 0; i < 30; ++i) {
      int now = i % 3;
      if (i > 0) streams[now]->WaitFor(*events[(i - 1) % 3]);
      ASSERT_TRUE(streams[now]->Run(*call->kernel, call->At(i, 1)).ok());
      streams[now]->Record(events[now].get());
      expected = expected * 1.5f + static_cast<float>(i) + 100.0f;
    }
    EXPECT_EQ(Wait(streams[29 % 3].get()), "");
    EXPECT_EQ(Get(devices[0], x), std::vector<float>(kCount, expected));
    streams.clear();
  }
}

TEST_F(CudaBackendTest, CopiesGoWithTheStream) {
  Device* device = MakeDevice(0, 0);
  cuda_emulator::SetDelays(300, 5);
  auto stream = device->MakeStream("feeds");
  auto host = device->AllocateHost(kCount * sizeof(float), "input 'x'");
  auto* values = static_cast<float*>(host->data());
  std::iota(values, values + kCount, 0.0f);
  float* x = Put(device, std::vector<float>(kCount, -1.0f));
  float* y = Put(device, std::vector<float>(kCount, -1.0f));
  auto call = Make(2, x, y);
  stream->CopyIn(x, values, kCount * sizeof(float));
  ASSERT_TRUE(stream->Run(*call->kernel, call->At(1)).ok());
  auto out = device->AllocateHost(kCount * sizeof(float), "output 'y'");
  stream->CopyOut(out->data(), y, kCount * sizeof(float));
  ASSERT_EQ(Wait(stream.get()), "");
  for (int i = 0; i < kCount; ++i) ASSERT_EQ(static_cast<float*>(out->data())[i], 2.0f * i + 1);
}

// x -> a -> b -> c by three kernels, in a ring of two slots.
TEST_F(CudaBackendTest, AReplayedSegmentReadsTheStepOfItsAct) {
  Device* device = MakeDevice(0, 0);
  cuda_emulator::SetDelays(100, 7);
  auto stream = device->MakeStream("compute");
  std::vector<std::unique_ptr<Call>> slots[2];
  float* last[2];
  std::vector<float> x(kCount);
  std::iota(x.begin(), x.end(), 1.0f);
  for (int s = 0; s < 2; ++s) {
    float* at = Put(device, x);
    for (float factor : {2.0f, 3.0f, 0.5f}) {
      float* next = Put(device, std::vector<float>(kCount, -5.0f));
      slots[s].push_back(Make(factor, at, next));
      at = next;
    }
    last[s] = at;
  }
  auto segment = stream->MakeSegment();
  for (int step = 0; step < 12; ++step) {
    int64_t time = step % 3;
    // The same kernels whatever the slot: what differs are operands.
    std::vector<KernelRun> runs;
    for (size_t i = 0; i < 3; ++i) {
      runs.push_back({slots[0][i]->kernel.get(), slots[step % 2][i]->At(step, time)});
    }
    ASSERT_TRUE(stream->RunSegment(segment.get(), runs).ok());
    ASSERT_EQ(Wait(stream.get()), "");
    std::vector<float> y = Get(device, last[step % 2]);
    float add = static_cast<float>(step + 100 * time);
    for (int i = 0; i < kCount; ++i) ASSERT_EQ(y[i], ((x[i] * 2 + add) * 3 + add) * 0.5f + add) << step;
  }
  cuda_emulator::Counts counts = cuda_emulator::GetCounts();
  EXPECT_EQ(counts.graphs_instantiated, 2);
  EXPECT_EQ(counts.graph_launches, 10);
  EXPECT_EQ(slots[0][0]->mix().launches, 4);  // each slot: run, recorded
}

TEST_F(CudaBackendTest, ASegmentIsCutWhereAKernelIsNotRecordable) {
  Device* device = MakeDevice(0, 0);
  auto stream = device->MakeStream("compute");
  float* x = Put(device, std::vector<float>(kCount, 1.0f));
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 6; ++i) calls.push_back(Make(2, x, x, i != 2));  // 2 recordable, 1 not, 3 recordable
  auto segment = stream->MakeSegment();
  for (int step = 0; step < 4; ++step) {
    std::vector<KernelRun> runs;
    for (auto& call : calls) runs.push_back(call->RunAt(0));
    ASSERT_TRUE(stream->RunSegment(segment.get(), runs).ok());
  }
  ASSERT_EQ(Wait(stream.get()), "");
  EXPECT_EQ(Get(device, x)[0], static_cast<float>(1 << 24));
  EXPECT_EQ(cuda_emulator::GetCounts().graphs_instantiated, 2);
  EXPECT_EQ(cuda_emulator::GetCounts().graph_launches, 6);
  EXPECT_EQ(calls[2]->mix().launches, 4);
  EXPECT_EQ(calls[1]->mix().launches, 2);
  EXPECT_EQ(calls[5]->mix().launches, 2);
}

TEST_F(CudaBackendTest, ASegmentThatCannotBeRecordedRuns) {
  Device* device = MakeDevice(0, 0);
  auto stream = device->MakeStream("compute");
  for (int failures : {1, 2}) {
    SCOPED_TRACE(failures);
    float* x = Put(device, std::vector<float>(kCount, 1.0f));
    auto a = Make(2, x, x), b = Make(3, x, x);
    auto segment = stream->MakeSegment();
    const int64_t launched = cuda_emulator::GetCounts().graph_launches;
    const BackendCounts before = backend_->Counts();
    for (int step = 0; step < 5; ++step) {
      if (step >= 1 && step <= failures) cuda_emulator::FailCapture();
      KernelRun runs[] = {a->RunAt(0), b->RunAt(0)};
      ASSERT_TRUE(stream->RunSegment(segment.get(), runs).ok());
    }
    ASSERT_EQ(Wait(stream.get()), "");
    EXPECT_EQ(Get(device, x)[0], 7776.0f);
    // Tried again after one failure: steps 3 to 5 are one recording's. Given up after two: each was in vain.
    const bool recorded = failures == 1;
    EXPECT_EQ(cuda_emulator::GetCounts().graph_launches - launched, recorded ? 3 : 0);
    EXPECT_EQ(b->mix().launches, recorded ? 4 : 7);
    const BackendCounts after = backend_->Counts();
    EXPECT_EQ(after.failed_recordings - before.failed_recordings, failures);
    EXPECT_EQ(after.parts - before.parts, 1);
    EXPECT_EQ(after.unrecorded_parts - before.unrecorded_parts, recorded ? 0 : 1);
    EXPECT_EQ(after.graph_launches - before.graph_launches, recorded ? 3 : 0);
    EXPECT_EQ(after.lone_launches - before.lone_launches, recorded ? 4 : 10);
  }
}

TEST_F(CudaBackendTest, NothingOnTheWayOfAStepWaitsForTheDevice) {
  Device* device = MakeDevice(0, 0);
  auto compute = device->MakeStream("compute"), link = device->MakeStream("link");
  float* x = Put(device, std::vector<float>(kCount, 1.0f));
  float* y = Put(device, std::vector<float>(kCount, 1.0f));
  auto a = Make(1, x, x), b = Make(1, x, x);
  auto segment = compute->MakeSegment();
  auto written = compute->MakeEvent(), read = link->MakeEvent();
  std::vector<std::future<Status>> asked;
  auto step = [&](int number) {
    compute->WaitFor(*read);
    KernelRun runs[] = {a->RunAt(number), b->RunAt(number)};
    ASSERT_TRUE(compute->RunSegment(segment.get(), runs).ok());
    compute->Record(written.get());
    link->WaitFor(*written);
    Box box = Box::Whole({kCount});
    Piece from{x, box}, to{y, box};
    ASSERT_TRUE(link->Combine(DType::kFloat32, Reduce::kNone, box, {&from, 1}, {&to, 1}).ok());
    link->Record(read.get());
    asked.push_back(Ask(compute.get()));
    asked.push_back(Ask(link.get()));
  };
  // The first steps allocate and record.
  for (int i = 0; i < 3; ++i) step(i);
  for (auto& future : asked) EXPECT_EQ(Come(std::move(future)), "");
  asked.clear();
  cuda_emulator::Counts before = cuda_emulator::GetCounts();
  {
    cuda_emulator::Pause pause;  // whatever waits for the device now waits for ever
    for (int i = 3; i < 8; ++i) step(i);
    cuda_emulator::Counts after = cuda_emulator::GetCounts();
    EXPECT_EQ(after.host_synchronisations, before.host_synchronisations);
    EXPECT_EQ(after.allocations, before.allocations);
    EXPECT_EQ(after.graph_launches, before.graph_launches + 5);
    for (auto& future : asked) {
      EXPECT_EQ(future.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
    }
  }
  for (auto& future : asked) EXPECT_EQ(Come(std::move(future)), "");
  EXPECT_EQ(Get(device, y)[0], 1.0f + 2 * (0 + 1 + 2 + 3 + 4 + 5 + 6 + 7));
}

TEST_F(CudaBackendTest, AFaultIsToldOnceByTheNotificationAfterItsKernel) {
  Device* device = MakeDevice(0, 0);
  auto stream = device->MakeStream("compute");
  std::vector<float> values(kCount, 1.0f);
  float* good = Put(device, values);
  values[40] = -3;
  float* bad = Put(device, values);
  Call right(std::make_unique<FindNegative>(), "early", good, good);
  Call wrong(std::make_unique<FindNegative>(), "lookup", bad, bad);
  Call also_wrong(std::make_unique<FindNegative>(), "later", bad, bad);
  std::vector<std::future<Status>> asked;
  {
    cuda_emulator::Pause pause;
    auto run = [&](Call& call) { ASSERT_TRUE(stream->Run(*call.kernel, call.At(0)).ok()); };
    run(right);
    asked.push_back(Ask(stream.get()));
    run(right);
    run(wrong);
    run(also_wrong);
    asked.push_back(Ask(stream.get()));
    run(right);
    asked.push_back(Ask(stream.get()));
  }
  EXPECT_EQ(Come(std::move(asked[0])), "");
  EXPECT_EQ(Come(std::move(asked[1])), "lookup at model.cc:12: value -3 is below 0, limit 7");
  EXPECT_EQ(Come(std::move(asked[2])), "");
}

TEST_F(CudaBackendTest, WithoutMemoryForFaultsTheyAreToldLater) {
  Device* device = MakeDevice(0, 0);
  auto stream = device->MakeStream("compute");
  float* bad = Put(device, std::vector<float>(kCount, -3.0f));
  Call wrong(std::make_unique<FindNegative>(), "lookup", bad, bad);
  std::vector<std::future<Status>> asked;
  {
    cuda_emulator::Pause pause;
    for (int i = 0; i < StreamMemory::kFaults; ++i) asked.push_back(Ask(stream.get()));
    ASSERT_TRUE(stream->Run(*wrong.kernel, wrong.At(0)).ok());
    cuda_emulator::FailAllocation();
    asked.push_back(Ask(stream.get()));
  }
  for (auto& future : asked) EXPECT_EQ(Come(std::move(future)), "");
  EXPECT_EQ(Wait(stream.get()), "lookup at model.cc:12: value -3 is below 0, limit 7");
}

TEST_F(CudaBackendTest, AFaultOfARecordedKernelIsTold) {
  Device* device = MakeDevice(0, 0);
  auto stream = device->MakeStream("compute");
  std::vector<float> values(kCount, 1.0f);
  float* x = Put(device, values);
  Call first(std::make_unique<FindNegative>(), "first", x, x),
      second(std::make_unique<FindNegative>(), "second", x, x);
  auto segment = stream->MakeSegment();
  for (int step = 0; step < 4; ++step) {
    values[3] = step == 3 ? -9.0f : 1.0f;
    device->CopyIn(x, values.data(), kCount * sizeof(float));
    KernelRun runs[] = {first.RunAt(step), second.RunAt(step)};
    ASSERT_TRUE(stream->RunSegment(segment.get(), runs).ok());
    EXPECT_EQ(Wait(stream.get()), step < 3 ? "" : "first at model.cc:12: value -9 is below 0, limit 7");
  }
  EXPECT_EQ(cuda_emulator::GetCounts().graph_launches, 3);
}

TEST_F(CudaBackendTest, AKernelThatRefusesIsNamed) {
  Device* device = MakeDevice(0, 0);
  auto stream = device->MakeStream("compute");
  float* x = Put(device, std::vector<float>(kCount, 1.0f));
  auto a = Make(2, x, x), b = Make(3, x, x);
  b->mix().failure = "its extents do not fit";
  auto segment = stream->MakeSegment();
  for (int step = 0; step < 3; ++step) {
    KernelRun runs[] = {a->RunAt(0), b->RunAt(0)};
    EXPECT_EQ(stream->RunSegment(segment.get(), runs).message(),
              "mix3 at model.cc:12: its extents do not fit");
  }
  HostKernel host;
  EXPECT_EQ(stream->Run(host, a->At(0)).message(), "kernel mix is not one for CUDA");
  EXPECT_EQ(Wait(stream.get()), "");
  EXPECT_EQ(Get(device, x)[0], 8.0f);
}

// The runtime's "not ready" is an error of the thread's until somebody asks for it.
TEST_F(CudaBackendTest, ARefusalWhileTheStreamIsBusySpoilsNothing) {
  Device* device = MakeDevice(0, 0);
  auto stream = device->MakeStream("compute");
  float* x = Put(device, std::vector<float>(kCount, 1.0f));
  auto a = Make(2, x, x), b = Make(3, x, x);
  b->mix().failure = "its extents do not fit";
  {
    cuda_emulator::Pause pause;
    ASSERT_TRUE(stream->Run(*a->kernel, a->At(0)).ok());
    EXPECT_EQ(stream->Run(*b->kernel, b->At(0)).message(), "its extents do not fit");
    EXPECT_EQ(stream->Run(*a->kernel, a->At(0)).message(), "");
  }
  EXPECT_EQ(Wait(stream.get()), "");
  EXPECT_EQ(Get(device, x)[0], 4.0f);
}

TEST_F(CudaBackendTest, ACallbackFindsNoErrorThatIsNone) {
  Device* device = MakeDevice(0, 0);
  auto stream = device->MakeStream("compute");
  float* x = Put(device, std::vector<float>(kCount, 1.0f));
  auto call = Make(1, x, x);
  std::promise<cudaError_t> last;
  {
    cuda_emulator::Pause pause;
    ASSERT_TRUE(stream->Run(*call->kernel, call->At(0)).ok());
    stream->NotifyWhenDone([&](Status) { last.set_value(cudaGetLastError()); });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // it is asked for, and is not ready
  }
  EXPECT_EQ(last.get_future().get(), cudaSuccess);
}

// A context on a GPU takes hundreds of megabytes there.
TEST_F(CudaBackendTest, OnlyTheGpuThatIsAskedForIsOpened) {
  backend_->Describe(0);
  Device* device = MakeDevice(0, 1);
  EXPECT_EQ(cuda_emulator::GetCounts().contexts, 1);
  auto stream = device->MakeStream("compute");
  float* x = Put(device, std::vector<float>(kCount, 1.0f));
  auto a = Make(2, x, x), b = Make(3, x, x);
  auto segment = stream->MakeSegment();
  auto event = stream->MakeEvent();
  auto host = device->AllocateHost(64, "a test");
  // Each time by a thread that has called nothing before.
  auto elsewhere = [](auto&& work) { std::thread(work).join(); };
  for (int step = 0; step < 3; ++step) {
    elsewhere([&] {
      KernelRun runs[] = {a->RunAt(step), b->RunAt(step)};
      ASSERT_TRUE(stream->RunSegment(segment.get(), runs).ok());
    });
    elsewhere([&] { stream->Record(event.get()); });
    elsewhere([&] { stream->WaitFor(*event); });
    elsewhere([&] { stream->CopyOut(host->data(), x, 64); });
    elsewhere([&] { EXPECT_EQ(Wait(stream.get()), ""); });
  }
  elsewhere([&] { EXPECT_GT(Get(device, x)[0], 1.0f); });
  elsewhere([&] { event.reset(); });
  elsewhere([&] { segment.reset(); });
  elsewhere([&] { host.reset(); });
  elsewhere([&] { stream.reset(); });
  elsewhere([&] { memory_.clear(); });
  elsewhere([&] { devices_.clear(); });
  EXPECT_EQ(cuda_emulator::GetCounts().contexts, 1);
}

TEST_F(CudaBackendTest, ShortMemoryIsSaidWithBothNumbers) {
  cuda_emulator::Options options;
  options.memory = size_t{64} << 20;
  Begin(options);
  Device* device = MakeDevice(3, 1);
  auto half = device->Allocate(size_t{32} << 20, "half");
  std::string text = ErrorOf([&] { device->Allocate(size_t{48} << 20, "the arena"); });
  EXPECT_NE(text.find("device cuda:3 on GPU 1 ("), std::string::npos) << text;
  EXPECT_NE(text.find("has no memory for the arena: 50331648 bytes are needed, "), std::string::npos) << text;
  EXPECT_NE(text.find("bytes are free"), std::string::npos) << text;
  // Where what is free is in pieces, or another process was faster.
  cuda_emulator::FailAllocation();
  text = ErrorOf([&] { device->Allocate(1000, "variable 'w'"); });
  EXPECT_NE(text.find("variable 'w': 1000 bytes are needed"), std::string::npos) << text;
  device->Allocate(1000, "variable 'w'");
  half.reset();
  device->Allocate(size_t{48} << 20, "the arena");
}

TEST_F(CudaBackendTest, ALostDeviceAnswersEverybody) {
  Device* device = MakeDevice(0, 0);
  Device* virtual_device = MakeDevice(1, 0);
  Device* other = MakeDevice(2, 1);
  auto compute = device->MakeStream("compute"), link = virtual_device->MakeStream("link");
  float* x = Put(device, std::vector<float>(kCount, 1.0f));
  auto call = Make(2, x, x);
  auto event = compute->MakeEvent();
  std::vector<std::future<Status>> asked;
  {
    cuda_emulator::Pause pause;
    ASSERT_TRUE(compute->Run(*call->kernel, call->At(0)).ok());
    compute->Record(event.get());
    link->WaitFor(*event);
    for (int i = 0; i < 20; ++i) {
      asked.push_back(Ask(compute.get()));
      asked.push_back(Ask(link.get()));
    }
    cuda_emulator::LoseDevice(0, cudaErrorIllegalAddress);
  }
  const std::string why = Come(std::move(asked[0]));
  EXPECT_NE(why.find("GPU 0"), std::string::npos) << why;
  EXPECT_NE(why.find("cudaErrorIllegalAddress"), std::string::npos) << why;
  for (size_t i = 1; i < asked.size(); ++i) EXPECT_EQ(Come(std::move(asked[i])), why);
  EXPECT_EQ(compute->Run(*call->kernel, call->At(1)).message(), why);
  EXPECT_EQ(Wait(compute.get()), why);
  EXPECT_EQ(Wait(link.get()), why);
  EXPECT_EQ(ErrorOf([&] { device->Allocate(8, "more"); }), why);
  EXPECT_EQ(ErrorOf([&] { Get(virtual_device, x); }), why);
  // The other GPU works on.
  auto there = other->MakeStream("compute");
  float* y = Put(other, std::vector<float>(kCount, 1.0f));
  auto there_call = Make(2, y, y);
  ASSERT_TRUE(there->Run(*there_call->kernel, there_call->At(0)).ok());
  EXPECT_EQ(Wait(there.get()), "");
  EXPECT_EQ(Get(other, y)[0], 2.0f);
}

TEST_F(CudaBackendTest, AStreamEndsWithItsCallbacks) {
  Device* device = MakeDevice(0, 0);
  cuda_emulator::SetDelays(300, 11);
  std::vector<int> order;
  {
    auto stream = device->MakeStream("compute");
    float* x = Put(device, std::vector<float>(kCount, 1.0f));
    auto call = Make(1, x, x);
    for (int i = 0; i < 50; ++i) {
      ASSERT_TRUE(stream->Run(*call->kernel, call->At(i)).ok());
      stream->NotifyWhenDone([&order, i](Status status) {
        EXPECT_TRUE(status.ok());
        order.push_back(i);
      });
    }
    stream.reset();
  }
  std::vector<int> expected(50);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST_F(CudaBackendTest, StreamsHandOnTheirMemory) {
  Device* device = MakeDevice(0, 0);
  float* x = Put(device, std::vector<float>(kCount, 1.0f));
  auto call = Make(1, x, x);
  auto initialise = [&] {
    auto stream = device->MakeStream("init");
    ASSERT_TRUE(stream->Run(*call->kernel, call->At(0)).ok());
    EXPECT_EQ(Wait(stream.get()), "");
  };
  initialise();
  cuda_emulator::Counts before = cuda_emulator::GetCounts();
  for (int i = 0; i < 20; ++i) initialise();
  cuda_emulator::Counts after = cuda_emulator::GetCounts();
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.events, before.events);
  EXPECT_EQ(after.streams, before.streams);
}

TEST_F(CudaBackendTest, TheCompletionThreadRestsWhenNothingIsPending) {
  Device* device = MakeDevice(0, 0);
  auto stream = device->MakeStream("compute");
  EXPECT_EQ(Wait(stream.get()), "");
  Completion& completion = static_cast<CudaDevice*>(device)->gpu().completion();
  int64_t queries = completion.queries();
  EXPECT_GT(queries, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(completion.queries(), queries);
}

TEST_F(CudaBackendTest, WhatIsMissingIsSaid) {
  EXPECT_EQ(ErrorOf([&] { MakeDevice(0, 2); }),
            "there is no GPU 2: this machine has 2 GPUs, numbered from 0");
  auto refused = [](const cuda_emulator::Options& options) {
    cuda_emulator::Reset(options);
    return ErrorOf([] { MakeBackend(); });
  };
  backend_.reset();
  cuda_emulator::Options options;
  options.driver = 0;
  std::string text = refused(options);
  EXPECT_NE(text.find("there is no NVIDIA driver on this machine (libcuda.so.1 was not found)"),
            std::string::npos)
      << text;
  options.driver = 12040;
  text = refused(options);
  EXPECT_NE(text.find("is too old: it serves CUDA 12.4, and this program needs CUDA 13.0"), std::string::npos)
      << text;
  options.driver = 13000;
  options.start = cudaErrorNoDevice;
  text = refused(options);
  EXPECT_NE(text.find("the NVIDIA driver is there, but no GPU"), std::string::npos) << text;
  options.start = cudaErrorInsufficientDriver;
  text = refused(options);
  EXPECT_NE(text.find("too old: it serves CUDA 13.0"), std::string::npos) << text;
  cuda_emulator::Reset();
}

TEST_F(CudaBackendTest, DevicesAreDescribed) {
  std::string text = backend_->Describe(1);
  EXPECT_NE(text.find(" GiB, "), std::string::npos) << text;
  EXPECT_NE(text.find("CUDA 13.0"), std::string::npos) << text;
  EXPECT_EQ(backend_->device_count(), 2);
  EXPECT_GE(kCudaBytesBesides, static_cast<int64_t>(kWorkspaceBytes));
}

TEST_F(CudaBackendTest, DevicesWithoutPeerAccessDoNotReachEachOther) {
  cuda_emulator::Options options;
  options.peers = false;
  Begin(options);
  Device *a = MakeDevice(0, 0), *b = MakeDevice(1, 1), *c = MakeDevice(2, 0);
  EXPECT_FALSE(a->Reaches(*b));
  EXPECT_FALSE(a->Reaches(*b));
  EXPECT_TRUE(a->Reaches(*c));
  EXPECT_FALSE(a->Reaches(*MakeHostDevice(0)));
}

TEST_F(CudaBackendTest, GroupsMoveWhatTheirMembersHave) {
  cuda_emulator::SetDelays(200, 3);
  std::vector<Device*> devices = {MakeDevice(0, 0), MakeDevice(1, 1)};
  auto ends = backend_->Connect(backend_->MakeGroupId(), {"tp", {0, 1}}, {0, 1}, devices);
  std::vector<std::unique_ptr<DeviceStream>> streams;
  std::vector<float*> x, y;
  for (int i = 0; i < 2; ++i) {
    streams.push_back(devices[i]->MakeStream("link"));
    x.push_back(Put(devices[i], {1.0f + 10 * i, 2.0f + 10 * i}));
    y.push_back(Put(devices[i], {0, 0, 0, 0}));
  }
  auto each = [&](auto call) {
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(call(i).ok());
    for (int i = 0; i < 2; ++i) ASSERT_EQ(Wait(streams[i].get()), "");
  };
  using Values = std::vector<float>;
  each([&](int i) { return ends[i]->AllGather(streams[i].get(), DType::kFloat32, x[i], y[i], 2); });
  for (int i = 0; i < 2; ++i) EXPECT_EQ(Get(devices[i], y[i], 4), (Values{1, 2, 11, 12}));
  each([&](int i) {
    return ends[i]->ReduceScatter(streams[i].get(), DType::kFloat32, Reduce::kSum, y[i], x[i], 2);
  });
  EXPECT_EQ(Get(devices[0], x[0], 2), (Values{2, 4}));
  EXPECT_EQ(Get(devices[1], x[1], 2), (Values{22, 24}));
  each([&](int i) {
    return ends[i]->AllReduce(streams[i].get(), DType::kFloat32, Reduce::kMax, x[i], x[i], 2);
  });
  for (int i = 0; i < 2; ++i) EXPECT_EQ(Get(devices[i], x[i], 2), (Values{22, 24}));
  each([&](int i) {
    return ends[i]->Exchange(streams[i].get(), {{true, 1 - i, y[i] + i, 4}, {false, 1 - i, x[i], 4}});
  });
  EXPECT_EQ(Get(devices[0], x[0], 2), (Values{2, 24}));
  EXPECT_EQ(Get(devices[1], x[1], 2), (Values{1, 24}));

  // Member 1 is lost before it comes: what member 0 has under way ends, and with an error.
  ASSERT_TRUE(ends[0]->AllReduce(streams[0].get(), DType::kFloat32, Reduce::kSum, x[0], x[0], 2).ok());
  auto asked = Ask(streams[0].get());
  EXPECT_EQ(asked.wait_for(std::chrono::milliseconds(30)), std::future_status::timeout);
  ends[0]->Abort();
  EXPECT_EQ(Come(std::move(asked)), "group tp was aborted: one of its ranks is lost");
  EXPECT_EQ(ends[0]->AllGather(streams[0].get(), DType::kFloat32, x[0], y[0], 1).message(),
            "group tp was aborted: one of its ranks is lost");
  for (auto& end : ends) end->BeginLeaving();
}

// --- What hangs on real devices (tests/cuda_emulator/hazards.cc)

// Two members of a group, each on a device of its own, with a stream and something to move.
class CudaHazardsTest : public CudaBackendTest {
 protected:
  void Open(cuda_emulator::Options options, int streams_each = 1) {
    options.hang_ms = hang_ms;
    Begin(options);
    for (int i = 0; i < 2; ++i) {
      devices.push_back(MakeDevice(i, i));
      for (int s = 0; s < streams_each; ++s) {
        streams[s].push_back(devices[i]->MakeStream("link"));
        sums[s].push_back(Put(devices[i], std::vector<float>(kCount, 1.0f)));
      }
      x.push_back(Put(devices[i], std::vector<float>(kCount, 1.0f)));
    }
    for (int s = 0; s < streams_each; ++s)
      groups.push_back(backend_->Connect(backend_->MakeGroupId(), {"tp", {0, 1}}, {0, 1}, devices));
  }
  void TearDown() override {
    for (auto& group : groups)
      for (auto& end : group) end->BeginLeaving();
    groups.clear();
    for (auto& each : streams) each.clear();
    memory_.clear();
    devices_.clear();
    backend_.reset();
    cuda_emulator::Reset();
  }
  Status Reduce(int stream, int member) {
    return groups[stream][member]->AllReduce(streams[stream][member].get(), DType::kFloat32, Reduce::kSum,
                                             sums[stream][member], sums[stream][member], 2);
  }
  void WaitForAll() {
    for (auto& each : streams)
      for (auto& stream : each) EXPECT_EQ(Wait(stream.get()), "");
  }

  int hang_ms = 200;
  cuda_emulator::CatchFaults faults;
  std::vector<Device*> devices;
  std::vector<std::unique_ptr<DeviceStream>> streams[2];
  std::vector<std::vector<std::unique_ptr<GroupMember>>> groups;
  std::vector<float*> x, sums[2];  // by device: of kernels; of each stream's collectives
};

// The hazard itself: without LaunchTogether the calls meet a collective that one card has and the other not.
TEST_F(CudaHazardsTest, CallsBetweenTheLaunchesOfACollectiveHang) {
  Open({});
  auto a = Make(2, x[0], x[0]), b = Make(3, x[0], x[0]);
  auto compute = devices[0]->MakeStream("compute");
  auto segment = compute->MakeSegment();
  KernelRun runs[] = {a->RunAt(0), b->RunAt(0)};
  ASSERT_TRUE(compute->RunSegment(segment.get(), runs).ok());
  const std::pair<const char*, std::function<void()>> calls[] = {
      {"cudaMalloc", [&] { memory_.push_back(devices[0]->Allocate(64, "a test")); }},
      {"cudaHostAlloc", [&] { memory_.push_back(devices[1]->AllocateHost(64, "a test")); }},
      {"cudaGraphInstantiate", [&] { ASSERT_TRUE(compute->RunSegment(segment.get(), runs).ok()); }},
  };
  size_t told = 0;
  for (const auto& [name, call] : calls) {
    ASSERT_TRUE(Reduce(0, 0).ok());
    call();
    ASSERT_TRUE(Reduce(0, 1).ok());
    WaitForAll();
    ASSERT_GT(faults.faults().size(), told) << name << " did not wait";
    EXPECT_NE(faults.faults()[told].find(name), std::string::npos) << faults.faults()[told];
    told = faults.faults().size();
  }
}

// Threads allocate, load code and record all the time, and generated kernels become ready; collectives go on.
TEST_F(CudaHazardsTest, LaunchedTogetherNothingComesBetween) {
  Open({});
  std::atomic<bool> stop{false};
  std::atomic<int> generated{0};
  constexpr int kGenerated = 8;
  std::vector<std::thread> others;
  others.emplace_back([&] {
    auto stream = devices[0]->MakeStream("compute");
    for (; generated < kGenerated; ++generated) {
      const std::string name = Cat("between_", generated.load());
      const std::string text =
          Cat("extern \"C\" void ", name, "(const void*, unsigned, unsigned, unsigned, unsigned) {}\n");
      auto kernel = CompileKernel(text, name, 80);
      EXPECT_EQ(kernel->Wait().message(), "");
      const int64_t args = 0;
      DriverCall call;
      EXPECT_TRUE(kernel->Launch({}, static_cast<CudaStream&>(*stream).handle(), &args, sizeof args).ok());
    }
    EXPECT_EQ(Wait(stream.get()), "");
  });
  for (int i = 0; i < 2; ++i) {
    others.emplace_back([&, i] {
      while (!stop) {
        auto memory = devices[i]->Allocate(kCount * sizeof(float), "a test");
        auto host = devices[i]->AllocateHost(64, "a test");
        auto compute = devices[i]->MakeStream("compute");
        auto* data = static_cast<float*>(memory->data());
        auto a = Make(2, data, data), b = Make(3, data, data);
        auto segment = compute->MakeSegment();
        KernelRun runs[] = {a->RunAt(0), b->RunAt(0)};
        for (int step = 0; step < 3; ++step) EXPECT_TRUE(compute->RunSegment(segment.get(), runs).ok());
        EXPECT_EQ(Wait(compute.get()), "");
      }
    });
  }
  for (int round = 0; round < 40 || generated < kGenerated; ++round) {
    Status status = backend_->LaunchTogether([&] {
      Status first = Reduce(0, 0);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      Status second = Reduce(0, 1);
      return first.ok() ? second : first;
    });
    ASSERT_TRUE(status.ok()) << status.message();
  }
  WaitForAll();
  stop = true;
  for (std::thread& other : others) other.join();
  EXPECT_EQ(faults.faults(), std::vector<std::string>());
}

// Two link streams with a communicator each, and little room: in one order on all devices all is well, in two
// orders each waits for what the other holds.
TEST_F(CudaHazardsTest, SeveralLinkStreamsWantOneOrder) {
  const char* kBlocks = "waits for blocks that another one holds";
  const char* kQueue = "before it in its hardware queue";
  // Faults of one run; `patience`: until a launch has its blocks.
  auto run = [&](int queues, int blocks, bool one_order, std::chrono::milliseconds patience) {
    TearDown();
    devices.clear(), x.clear();
    for (std::vector<float*>& each : sums) each.clear();
    cuda_emulator::Options options;
    options.hardware_queues = queues;
    options.blocks = blocks;
    hang_ms = static_cast<int>(10 * patience.count());
    Open(options, 2);
    const size_t told = faults.faults().size();
    const int first = one_order ? 0 : 1;
    for (const auto& [stream, member] : {std::pair(0, 0), {1, 0}, {first, 1}, {1 - first, 1}}) {
      EXPECT_TRUE(Reduce(stream, member).ok());
      std::this_thread::sleep_for(patience);
    }
    WaitForAll();
    const std::vector<std::string> all = faults.faults();
    return std::vector<std::string>(all.begin() + told, all.end());
  };
  for (const auto& [queues, blocks, hang] : {std::tuple(0, 1, kBlocks), std::tuple(1, 0, kQueue)}) {
    // On a busy machine a launch may take long to get its blocks; then another one is before it.
    std::vector<std::string> none = {"not run"}, some;
    for (int patience = 20; !none.empty() && patience < 2000; patience *= 4)
      none = run(queues, blocks, true, std::chrono::milliseconds(patience));
    EXPECT_TRUE(none.empty()) << none.back();
    for (int patience = 20; some.empty() && patience < 2000; patience *= 4)
      some = run(queues, blocks, false, std::chrono::milliseconds(patience));
    ASSERT_FALSE(some.empty()) << hang;
    EXPECT_NE(some[0].find(hang), std::string::npos) << some[0];
  }
}

TEST_F(CudaHazardsTest, CollectivesInFlightFitTheDevice) {
  for (const auto& [of_each, fits] : {std::pair(2, true), std::pair(3, false)}) {
    bool is_told = false;
    // On a busy machine a launch may take long to get its blocks; then none is in the other's way.
    for (int patience = 20; !is_told && patience < 2000; patience = fits ? 2000 : patience * 4) {
      TearDown();
      devices.clear(), x.clear();
      for (std::vector<float*>& each : sums) each.clear();
      cuda_emulator::Options options;
      options.blocks = 4;
      options.blocks_of_collective = of_each;
      Open(options, 2);
      const size_t told = faults.faults().size();
      ASSERT_TRUE(Reduce(0, 0).ok() && Reduce(1, 1).ok());
      std::this_thread::sleep_for(std::chrono::milliseconds(patience));
      ASSERT_TRUE(Reduce(1, 0).ok() && Reduce(0, 1).ok());
      WaitForAll();
      is_told = faults.faults().size() > told;
    }
    EXPECT_EQ(is_told, !fits) << of_each;
  }
}

TEST_F(CudaHazardsTest, MembersBeginToLeaveBeforeAnyIsWaitedFor) {
  Open({});
  groups.clear();
  ASSERT_EQ(faults.faults().size(), 1u);
  EXPECT_NE(faults.faults()[0].find("have begun to leave"), std::string::npos);
}

// Communicators are not ours: what they take shows beside what was allocated.
TEST_F(CudaHazardsTest, MemoryOfOthersIsMeasured) {
  cuda_emulator::Options options;
  options.bytes_of_communicator = 7 << 20;
  Open(options);
  const BackendCounts one = backend_->Counts();
  EXPECT_EQ(one.other_bytes, 2 * (7 << 20));
  std::map<int, GroupMember*> parents = {{0, groups[0][0].get()}, {1, groups[0][1].get()}};
  auto split = backend_->Split({"tp", {0, 1}}, parents, {"half", {1}});
  ASSERT_TRUE(split.has_value());
  EXPECT_EQ(split->size(), 1u);
  EXPECT_EQ(backend_->Counts().other_bytes, one.other_bytes) << "a group of a group shares its memory";
  auto block = devices[0]->Allocate(1 << 20, "a test");
  EXPECT_EQ(backend_->Counts().other_bytes, one.other_bytes);
  EXPECT_EQ(backend_->Counts().allocated_bytes, one.allocated_bytes + (1 << 20));
}

TEST_F(CudaBackendTest, RanksOnOneGpuMakeNoGroup) {
  std::vector<Device*> devices = {MakeDevice(4, 1), MakeDevice(7, 1)};
  std::string text = ErrorOf([&] { backend_->Connect("id", {"dp", {4, 7}}, {0, 1}, devices); });
  EXPECT_NE(text.find("ranks 4 and 7 of group dp are both on GPU 1"), std::string::npos) << text;
}

TEST(OpenBackendTest, TestsMayPutTheirOwnInItsPlace) {
  cuda_emulator::Reset();
  auto backend = MakeBackend();
  SetBackend("cuda", backend.get());
  EXPECT_EQ(OpenBackend("cuda"), backend.get());
  SetBackend("cuda", nullptr);
  EXPECT_EQ(ErrorOf([] { OpenBackend("tpu"); }),
            "there are no devices of kind 'tpu': a mesh is of cpu or cuda");
}

// Opens what this build has: nothing, or the library, which says that it finds no driver or device. On a
// machine with a GPU there is nothing to say.
TEST(OpenBackendTest, OneSentenceSaysWhatIsMissing) {
  std::string texts[2];
  for (std::string& text : texts) {
    try {
      OpenBackend("cuda");
      GTEST_SKIP() << "this machine has a GPU";
    } catch (const Error& error) {
      text = error.what();
    }
  }
  EXPECT_EQ(texts[0], texts[1]);
  bool known = false;
  for (const char* part : {"built with the CUDA toolkit", "liboneflow_like_cuda.so", "no NVIDIA driver",
                           "too old", "but no GPU"}) {
    known = known || texts[0].find(part) != std::string::npos;
  }
  EXPECT_TRUE(known) << texts[0];
}

}  // namespace
}  // namespace oneflow_like::cuda
