// The runtime on real threads: values of collectives and in-place updates, several steps in flight, errors
// that travel, closing at any moment, no allocation after the first step, and runtimes that share a store.
// ctest: asan=10 tsan=10
#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <new>
#include <random>

#include "actor/runtime.h"
#include "tests/actor/actor_test_plans.h"
#include "tests/actor/late_device.h"
#include "tests/actor/seeded_executor.h"

// Counts allocations of all threads while on.
static std::atomic<bool> counting{false};
static std::atomic<int64_t> allocations{0};
// Not inlined: the compiler would see malloc met by delete and warn.
__attribute__((noinline)) void* operator new(size_t bytes) {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
  void* p = std::malloc(bytes == 0 ? 1 : bytes);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
__attribute__((noinline)) void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes == 0 ? 1 : bytes);
}
__attribute__((noinline)) void operator delete(void* p) noexcept { std::free(p); }
__attribute__((noinline)) void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace oneflow_like {
namespace {

// As the network's thread does: a sum must not depend on who makes it.
TEST(ThreadExecutor, ItsWorkersTakeDenormalsForZero) {
  struct Divide : Message {
    std::atomic<int>*kept, *ran;
    void Receive() override {
      volatile float tiny = std::numeric_limits<float>::min();
      volatile float less = tiny * 0.25f;
      *kept += less != 0.0f;
      ++*ran;
    }
  };
  for (int kernel_threads : {1, 2}) {
    auto executor = MakeThreadExecutor(3, kernel_threads);
    std::atomic<int> kept{0}, ran{0};
    Divide divide[3];
    for (int i = 0; i < 3; ++i) {
      divide[i].kept = &kept;
      divide[i].ran = &ran;
      executor->worker(i)->Post(&divide[i]);
    }
    executor->Fence();
    EXPECT_EQ(ran, 3);
    EXPECT_EQ(kept, 0) << kernel_threads << " threads for a kernel";
  }
}

struct Setup {
  int world, times, threads, in_flight;
};

class Train : public ::testing::TestWithParam<Setup> {};

TEST_P(Train, ValuesWithSeveralStepsInFlight) {
  auto [world, times, threads, in_flight] = GetParam();
  KernelRegistry registry = TestRegistry();
  auto store = MakeStore(world);
  auto executor = MakeThreadExecutor(threads, 1);
  Runtime runtime(TrainPlans(world, times), registry, store.get(), executor.get(),
                  {.steps_in_flight = in_flight});
  TrainModel model(world, times);
  const int steps = 30;
  std::vector<StepHandle> handles;
  for (int s = 0; s < steps; ++s) {
    Feeds feeds = TrainFeeds(world, times, s);
    handles.push_back(runtime.Launch(feeds));
    std::fill_n(feeds["x"].as<int64_t>(), feeds["x"].elements(), -1);  // the launch has its own copy
  }
  // Read long after: a handle keeps its results.
  for (int s = 0; s < steps; ++s) {
    ASSERT_TRUE(handles[s].Wait().ok()) << handles[s].Wait().message();
    EXPECT_TRUE(handles[s].Done());
    EXPECT_EQ(handles[s].step(), s);
    model.Step(TrainFeeds(world, times, s)["x"]);
    EXPECT_EQ(Values(handles[s].Get("w")), model.w) << "step " << s;
    EXPECT_EQ(Values(handles[s].Get("sums")), model.sums) << "step " << s;
  }
  for (int r = 0; r < world; ++r) {
    const int64_t* w = static_cast<const int64_t*>(store->Variable(r, "w"));
    EXPECT_EQ(std::vector<int64_t>(w, w + kWidth), model.w) << "rank " << r;
  }
  for (auto [where, peak] : runtime.PeakSlots()) EXPECT_LE(peak, 2);
}

INSTANTIATE_TEST_SUITE_P(Meshes, Train,
                         ::testing::Values(Setup{1, 1, 1, 1}, Setup{2, 1, 1, 2}, Setup{2, 3, 2, 1},
                                           Setup{3, 2, 2, 3}, Setup{3, 4, 3, 2}, Setup{4, 4, 4, 2}));

TEST(Runtime, SeededExecutorGivesTheSame) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    KernelRegistry registry = TestRegistry();
    auto store = MakeStore(3);
    auto executor = MakeSeededExecutor(seed);
    Runtime runtime(TrainPlans(3, 2), registry, store.get(), executor.get(), {.steps_in_flight = 3});
    TrainModel model(3, 2);
    std::vector<StepHandle> handles;
    for (int s = 0; s < 6; ++s) handles.push_back(runtime.Launch(TrainFeeds(3, 2, s)));
    for (int s = 0; s < 6; ++s) {
      ASSERT_TRUE(handles[s].Wait().ok()) << handles[s].Wait().message() << " seed " << seed;
      model.Step(TrainFeeds(3, 2, s)["x"]);
      EXPECT_EQ(Values(handles[s].Get("w")), model.w) << "seed " << seed;
      EXPECT_EQ(Values(handles[s].Get("sums")), model.sums) << "seed " << seed;
    }
  }
}

TEST(Runtime, AllocatesNothingAfterTheFirstStep) {
  KernelRegistry registry = TestRegistry();
  auto store = MakeStore(2);
  auto executor = MakeThreadExecutor(2, 1);
  Runtime runtime(TrainPlans(2, 4), registry, store.get(), executor.get(), {.steps_in_flight = 2});
  Feeds feeds = TrainFeeds(2, 4, 0);
  for (int s = 0; s < 4; ++s) ASSERT_TRUE(runtime.Launch(feeds).Wait().ok());
  int64_t device_allocations = GetHostMemoryStats().allocations;
  allocations = 0;
  counting = true;
  bool ok = true;
  for (int s = 0; s < 50; ++s) ok = runtime.Launch(feeds).Wait().ok() && ok;
  counting = false;
  EXPECT_TRUE(ok);
  EXPECT_EQ(allocations.load(), 0);
  EXPECT_EQ(GetHostMemoryStats().allocations, device_allocations);
}

std::string LaunchError(Runtime& runtime, const Feeds& feeds) {
  try {
    runtime.Launch(feeds);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Errors, Travel) {
  for (bool throws : {false, true}) {
    for (int threads : {0, 1, 3}) {  // 0: seeded
      for (int times : {1, 3}) {
        KernelRegistry registry = TestRegistry();
        int64_t blocks = GetHostMemoryStats().blocks;
        {
          auto store = MakeStore(3);
          auto executor = threads == 0 ? MakeSeededExecutor(5) : MakeThreadExecutor(threads, 1);
          Runtime runtime(TrainPlans(3, times, 1, 2, throws), registry, store.get(), executor.get(), {});
          for (int s = 0; s < 2; ++s) EXPECT_TRUE(runtime.Launch(TrainFeeds(3, times, s)).Wait().ok());
          StepHandle bad = runtime.Launch(TrainFeeds(3, times, 2));
          std::string got = bad.Wait().message();
          EXPECT_EQ(got.find("grad at test.cc:11: "), 0u) << got;
          EXPECT_NE(got.find(throws ? "thrown" : "no good"), std::string::npos) << got;
          EXPECT_EQ(LaunchError(runtime, TrainFeeds(3, times, 3)), got);
          // The update depends on the failed sum through the collective, so no rank has made it.
          TrainModel model(3, times);
          for (int s = 0; s < 2; ++s) model.Step(TrainFeeds(3, times, s)["x"]);
          for (int r = 0; r < 3; ++r) {
            const int64_t* w = static_cast<const int64_t*>(store->Variable(r, "w"));
            EXPECT_EQ(std::vector<int64_t>(w, w + kWidth), model.w) << "rank " << r;
          }
          runtime.Close();
          EXPECT_EQ(bad.Wait().message(), got);
          EXPECT_NE(LaunchError(runtime, TrainFeeds(3, times, 3)), "");
        }
        EXPECT_EQ(GetHostMemoryStats().blocks, blocks);
      }
    }
  }
}

TEST(Errors, StepsLaunchedBehindAFailureFailToo) {
  KernelRegistry registry = TestRegistry();
  auto store = MakeStore(2);
  auto executor = MakeSeededExecutor(1);  // nothing runs before the first wait
  Runtime runtime(TrainPlans(2, 2, 0, 0), registry, store.get(), executor.get(), {.steps_in_flight = 3});
  std::vector<StepHandle> handles;
  for (int s = 0; s < 3; ++s) handles.push_back(runtime.Launch(TrainFeeds(2, 2, s)));
  // The update that failed gives its weights on with an error.
  for (int s = 0; s < 3; ++s) EXPECT_EQ(handles[s].Wait().message(), "grad at test.cc:11: no good") << s;
}

TEST(Errors, Feeds) {
  KernelRegistry registry = TestRegistry();
  auto store = MakeStore(1);
  auto executor = MakeThreadExecutor(1, 1);
  Runtime runtime(TrainPlans(1, 2), registry, store.get(), executor.get(), {});
  Feeds good = TrainFeeds(1, 2, 0);
  EXPECT_EQ(LaunchError(runtime, {}), "input 'x' of plan 'train', i64[8], is missing in the feeds");
  Feeds extra = good;
  extra["z"] = extra["x"];
  EXPECT_EQ(LaunchError(runtime, extra), "feed 'z' is no input of plan 'train'; its inputs are 'x'");
  EXPECT_EQ(LaunchError(runtime, {{"x", HostTensor::Make(DType::kInt64, {9})}}),
            "feed 'x' is i64[9] but the input is i64[8]");
  EXPECT_EQ(LaunchError(runtime, {{"x", HostTensor::Make(DType::kFloat32, {8})}}),
            "feed 'x' is f32[8] but the input is i64[8]");
  EXPECT_EQ(runtime.next_step(), 0);
  EXPECT_TRUE(runtime.Launch(good).Wait().ok());
  runtime.SetNextStep(40);
  EXPECT_EQ(runtime.Launch(good).step(), 40);
}

TEST(Errors, MissingKernelAndMissingRank) {
  auto store = MakeStore(2);
  auto executor = MakeThreadExecutor(1, 1);
  KernelRegistry none;
  none.Add("ones", "cpu", &OnesKernel);
  EXPECT_THROW(Runtime(TrainPlans(2, 1), none, store.get(), executor.get(), {}), Error);
  std::vector<plan::Plan> one = {TrainPlans(2, 1)[0]};
  try {
    Runtime(one, TestRegistry(), store.get(), executor.get(), {});
    FAIL() << "a collective without its second rank was loaded";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("waits for rank 1"), std::string::npos) << error.what();
  }
}

TEST(Close, AtRandomMoments) {
  unsigned seed = 20;
  SCOPED_TRACE(Cat("seed ", seed));
  std::mt19937 random(seed);
  KernelRegistry registry = TestRegistry();
  int64_t blocks = GetHostMemoryStats().blocks;
  auto executor = MakeThreadExecutor(2, 1);
  int closed = 0;
  for (int i = 0; i < 100; ++i) {
    auto store = MakeStore(3);
    std::vector<StepHandle> handles;
    {
      std::vector<plan::Plan> plans = TrainPlans(3, 4);
      for (plan::Plan& plan : plans) {
        PlanBuilder::SetAttr(plan.mutable_actor(1)->mutable_kernel(0), "us", random() % 50);
      }
      Runtime runtime(plans, registry, store.get(), executor.get(), {.steps_in_flight = 3});
      for (int s = random() % 6; s >= 0; --s) handles.push_back(runtime.Launch(TrainFeeds(3, 4, s)));
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
      runtime.Close();
      runtime.Close();
    }
    bool was_closed = false;
    for (StepHandle& handle : handles) {
      Status status = handle.Wait();
      EXPECT_TRUE(status.ok() || status.message() == "closed") << status.message();
      EXPECT_FALSE(was_closed && status.ok());  // steps end in order
      was_closed = was_closed || !status.ok();
    }
    closed += was_closed;
  }
  EXPECT_EQ(GetHostMemoryStats().blocks, blocks);
  EXPECT_GT(closed, 0) << "no close came while a step was in flight";
}

TEST(Close, AtRandomMomentsSeeded) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    KernelRegistry registry = TestRegistry();
    auto store = MakeStore(2);
    auto executor = MakeSeededExecutor(seed);
    StepHandle first, last;
    {
      Runtime runtime(TrainPlans(2, 2), registry, store.get(), executor.get(), {.steps_in_flight = 2});
      first = runtime.Launch(TrainFeeds(2, 2, 0));
      last = runtime.Launch(TrainFeeds(2, 2, 1));
      if (seed % 2 == 0) {
        EXPECT_TRUE(first.Wait().ok());
      }
    }
    EXPECT_EQ(first.Wait().ok(), seed % 2 == 0);
    EXPECT_TRUE(last.Wait().ok() || last.Wait().message() == "closed");
    Completion never;
    EXPECT_EQ(executor->Await(&never).message(), "no event is left") << "of a runtime that is gone";
  }
}

TEST(Runtime, TwoShareAStore) {
  for (int threads : {0, 2}) {
    KernelRegistry registry = TestRegistry();
    auto store = MakeStore(2);
    auto executor = threads == 0 ? MakeSeededExecutor(3) : MakeThreadExecutor(threads, 1);
    Runtime a(TrainPlans(2, 2), registry, store.get(), executor.get(), {});
    int64_t arena = store->ArenaBytes(0);
    std::vector<plan::Plan> plans = TrainPlans(2, 4);
    for (plan::Plan& plan : plans) plan.mutable_arena(0)->set_bytes(plan.arena(0).bytes() + 4096);
    Runtime b(plans, registry, store.get(), executor.get(), {});
    EXPECT_EQ(store->ArenaBytes(0), arena + 4096);
    EXPECT_EQ(store->PersistentBytes(1), 64);
    TrainModel model_a(2, 2), model_b(2, 4);  // one w, moved between the models
    std::vector<StepHandle> handles;
    std::vector<std::vector<int64_t>> wanted;
    for (int s = 0; s < 20; ++s) {
      bool use_a = s % 5 < 3;
      int times = use_a ? 2 : 4;
      handles.push_back((use_a ? a : b).Launch(TrainFeeds(2, times, s)));
      TrainModel& model = use_a ? model_a : model_b;
      model.Step(TrainFeeds(2, times, s)["x"]);
      model_a.w = model_b.w = model.w;
      wanted.push_back(model.w);
    }
    for (int s = 0; s < 20; ++s) {
      ASSERT_TRUE(handles[s].Wait().ok()) << handles[s].Wait().message();
      EXPECT_EQ(Values(handles[s].Get("w")), wanted[s]) << "step " << s;
    }
    b.Close();
    EXPECT_TRUE(a.Launch(TrainFeeds(2, 2, 0)).Wait().ok());
  }
}

TEST(Store, RefusesAnotherShape) {
  KernelRegistry registry = TestRegistry();
  auto store = MakeStore(1);
  plan::Plan plan = TrainPlans(1, 1)[0];
  store->Prepare(plan, registry);
  store->Prepare(plan, registry);
  EXPECT_EQ(store->Variables(0).size(), 1u);
  plan.mutable_variable(0)->mutable_global()->set_at(0, 5);
  try {
    store->Prepare(plan, registry);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(
        error.what(),
        "variable 'w' of rank 0 is i64[4] box [0:4] in the store but the plan wants i64[5] box [0:4]");
  }
}

TEST(Device, ThatFinishesLater) {
  for (int fail_step : {-1, 3}) {
    KernelRegistry registry = TestRegistry();
    std::vector<std::unique_ptr<Device>> devices;
    for (int r = 0; r < 2; ++r) devices.push_back(std::make_unique<LateDevice>(r, "late", 7 * r, 50));
    Store store({0, 1}, std::move(devices));
    auto executor = MakeThreadExecutor(2, 1);
    std::vector<plan::Plan> plans = TrainPlans(2, 3, 0, fail_step);
    for (plan::Plan& plan : plans) plan.set_device_kinds("cuda");
    Runtime runtime(std::move(plans), registry, &store, executor.get(), {});
    TrainModel model(2, 3);
    for (int s = 0; s < 5; ++s) {
      if (s == 4 && fail_step >= 0) break;
      StepHandle handle = runtime.Launch(TrainFeeds(2, 3, s));
      Status status = handle.Wait();
      if (s == fail_step) {
        EXPECT_EQ(status.message(), "grad at test.cc:11: no good");
        continue;
      }
      ASSERT_TRUE(status.ok()) << status.message();
      model.Step(TrainFeeds(2, 3, s)["x"]);
      EXPECT_EQ(Values(handle.Get("w")), model.w);
    }
    if (fail_step < 0) {
      runtime.Launch(TrainFeeds(2, 3, 5));
      std::this_thread::sleep_for(std::chrono::microseconds(60));
      runtime.Close();  // while the device works
    }
  }
}

// Each kernel of a chain takes its time and then writes a slot of its own, which a fetch of another stream
// reads. A port that announced ahead of its kernel would hand over what the step before left.
TEST(Device, AReaderWaitsForTheKernelThatWritesItsSlot) {
  constexpr int kKernels = 4, kSteps = 4;
  const Dims shape{3};
  PlanBuilder b("chain", 0, 1, 1);
  plan::Actor* chain = b.Actor(0, "chain", 1);
  for (int i = 0; i < kKernels; ++i) {
    std::string name = Cat("y", i);
    plan::Operand slot = b.Operand(b.Buffer(name, 3, 1), shape, {Box::Whole(shape)});
    b.Kernel(chain, "stamp", {}, {slot});
    plan::Actor* fetch = b.Actor(1 + i, name, 1);
    fetch->set_fetch(name);
    b.Kernel(fetch, "fetch", {slot}, {});
    b.Output(name, shape);
    b.Edge(chain, fetch, 1, 1, 1, 0, i);
  }
  b.Stream("compute", {0});
  KernelRegistry registry = TestRegistry();
  registry.Add("stamp", "cpu", [](const KernelContext& c) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    for (int64_t i = 0; i < c.out[0].elements(); ++i) c.out[0].as<int64_t>()[i] = c.step + 1;
    return Status();
  });
  for (bool late : {false, true}) {
    std::vector<std::unique_ptr<Device>> devices;
    devices.push_back(late ? std::make_unique<LateDevice>(0, "late", 5, 0) : MakeHostDevice(0));
    Store store({0}, std::move(devices));
    auto executor = MakeThreadExecutor(1, 1);
    plan::Plan plan = b.plan();
    if (late) plan.set_device_kinds("cuda");
    Runtime runtime({plan}, registry, &store, executor.get(), {.steps_in_flight = 2});
    std::vector<StepHandle> handles;
    for (int64_t step = 0; step < kSteps; ++step) handles.push_back(runtime.Launch({}));
    for (int64_t step = 0; step < kSteps; ++step) {
      ASSERT_TRUE(handles[step].Wait().ok());
      for (int i = 0; i < kKernels; ++i)
        EXPECT_EQ(Values(handles[step].Get(Cat("y", i))), std::vector<int64_t>(3, step + 1))
            << "step " << step << " kernel " << i << (late ? " on a device" : " on the host");
    }
  }
}

}  // namespace
}  // namespace oneflow_like
