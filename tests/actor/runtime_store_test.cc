// What runtimes share and hand out: an arena that grows between their steps and comes back when it cannot,
// variables of a plan that was refused, and results that stay as they were while the user holds them.
// ctest: asan=10 tsan=10
#include <gtest/gtest.h>

#include <thread>

#include "tests/actor/actor_test_plans.h"
#include "tests/error_of.h"

namespace oneflow_like {
namespace {

// A device of the host with so much memory and no more.
class SmallDevice final : public Device {
 public:
  SmallDevice(int rank, int64_t bytes) : host_(MakeHostDevice(rank)), left_(bytes) {}
  const std::string& kind() const override { return host_->kind(); }
  int index() const override { return host_->index(); }
  std::unique_ptr<Memory> Allocate(size_t bytes, const std::string& what) override {
    if (static_cast<int64_t>(bytes) > left_)
      Fail(what, " does not fit: ", bytes, " bytes, ", left_, " are free");
    struct Block final : Memory {
      Block(SmallDevice* device, std::unique_ptr<Memory> memory)
          : device(device), memory(std::move(memory)) {}
      ~Block() override { device->left_ += static_cast<int64_t>(memory->bytes()); }
      void* data() override { return memory->data(); }
      size_t bytes() const override { return memory->bytes(); }
      SmallDevice* const device;
      const std::unique_ptr<Memory> memory;
    };
    left_ -= static_cast<int64_t>(bytes);
    return std::make_unique<Block>(this, host_->Allocate(bytes, what));
  }
  std::unique_ptr<Memory> AllocateHost(size_t bytes, const std::string& what) override {
    return host_->AllocateHost(bytes, what);
  }
  void CopyIn(void* device, const void* host, size_t bytes) override { host_->CopyIn(device, host, bytes); }
  void CopyOut(void* host, const void* device, size_t bytes) override { host_->CopyOut(host, device, bytes); }
  std::unique_ptr<DeviceStream> MakeStream(const std::string& name) override {
    return host_->MakeStream(name);
  }
  bool Reaches(const Device& other) const override { return host_->Reaches(other); }
  int64_t left() const { return left_; }

 private:
  const std::unique_ptr<Device> host_;
  int64_t left_;
};

struct SmallStore {
  explicit SmallStore(int64_t bytes) {
    auto made = std::make_unique<SmallDevice>(0, bytes);
    device = made.get();
    std::vector<std::unique_ptr<Device>> devices;
    devices.push_back(std::move(made));
    store = std::make_unique<Store>(std::vector<int>{0}, std::move(devices));
  }
  SmallDevice* device;
  std::unique_ptr<Store> store;
};

plan::Plan PlanOfOne(int64_t arena_bytes, const std::string& rename = "w") {
  plan::Plan plan = TrainPlans(1, 2)[0];
  plan.mutable_arena(0)->set_bytes(std::max(plan.arena(0).bytes(), arena_bytes));
  plan.mutable_variable(0)->set_name(rename);
  for (plan::Buffer& buffer : *plan.mutable_buffer())
    if (!buffer.variable().empty()) buffer.set_variable(rename);
  return plan;
}

TEST(RuntimeStore, AnArenaThatCannotGrowIsAsItWas) {
  SmallStore small(100'000);
  KernelRegistry registry = TestRegistry();
  auto executor = MakeThreadExecutor(1, 1);
  Runtime runtime({PlanOfOne(50'000)}, registry, small.store.get(), executor.get(), {});
  TrainModel model(1, 2);
  auto step = [&](int64_t s) {
    StepHandle handle = runtime.Launch(TrainFeeds(1, 2, s));
    ASSERT_TRUE(handle.Wait().ok()) << handle.Wait().message();
    model.Step(TrainFeeds(1, 2, s)["x"]);
    EXPECT_EQ(Values(handle.Get("w")), model.w) << "step " << s;
  };
  step(0);
  const int64_t left = small.device->left();
  for (int again = 0; again < 2; ++again) {
    const std::string error = ErrorOf(
        [&] { Runtime large({PlanOfOne(200'000)}, registry, small.store.get(), executor.get(), {}); });
    EXPECT_NE(error.find("the arena of plan 'train' does not fit: 200000 bytes"), std::string::npos) << error;
    EXPECT_EQ(small.store->ArenaBytes(0), 50'000);
    EXPECT_EQ(small.device->left(), left);
    ASSERT_NE(small.store->Arena(0), nullptr);
    step(1 + again);  // the runtime that was there goes on
  }
}

// Its bytes are of the other memory then, and the device has them again.
TEST(RuntimeStore, AVariableMovesToTheHostWhereAPlanWantsItThere) {
  SmallStore small(100'000);
  KernelRegistry registry = TestRegistry();
  plan::Plan plan = PlanOfOne(0);
  small.store->Prepare(plan, registry);
  const int64_t bytes = plan.variable(0).bytes(), before = small.store->PersistentBytes(0);
  const int64_t left = small.device->left();
  char* const there = static_cast<char*>(small.store->Variable(0, "w"));
  const std::string values(there, there + small.store->Find(0, "w")->box.elements() * sizeof(float));
  EXPECT_EQ(small.store->PersistentBytes(0, "host"), 0);
  plan.mutable_variable(0)->set_memory("host");
  for (int again = 0; again < 2; ++again) {
    small.store->Prepare(plan, registry);
    EXPECT_EQ(small.store->PersistentBytes(0), before - bytes);
    EXPECT_EQ(small.store->PersistentBytes(0, "host"), bytes);
    EXPECT_EQ(small.device->left(), left + bytes);
    EXPECT_EQ(std::memcmp(small.store->Variable(0, "w"), values.data(), values.size()), 0);
  }
}

// Every second buffer lies in the host's memory; each arena grows by itself.
TEST(RuntimeStore, BuffersLieInArenasOfTwoMemories) {
  SmallStore small(100'000);
  KernelRegistry registry = TestRegistry();
  auto executor = MakeThreadExecutor(1, 1);
  plan::Plan plan = PlanOfOne(0);
  const int64_t bytes = plan.arena(0).bytes();
  plan::Arena* host = plan.add_arena();
  host->set_memory("host");
  host->set_bytes(bytes);
  for (plan::Buffer& buffer : *plan.mutable_buffer()) buffer.set_arena(buffer.id() % 2);
  plan::Plan larger = plan;
  larger.mutable_arena(1)->set_bytes(2 * bytes);
  Runtime runtime({plan}, registry, small.store.get(), executor.get(), {});
  EXPECT_EQ(small.store->ArenaBytes(0), bytes);
  EXPECT_EQ(small.store->ArenaBytes(0, "host"), bytes);
  const char* device = small.store->Arena(0);
  small.store->Prepare(larger, registry);
  EXPECT_EQ(small.store->ArenaBytes(0), bytes);
  EXPECT_EQ(small.store->ArenaBytes(0, "host"), 2 * bytes);
  EXPECT_EQ(small.store->Arena(0), device);
  // What lies in one is not in the other: the kernels write to both.
  std::memset(small.store->Arena(0), 0x5a, bytes);
  std::memset(small.store->Arena(0, "host"), 0x5a, 2 * bytes);
  TrainModel model(1, 2);
  for (int64_t s = 0; s < 3; ++s) {
    StepHandle handle = runtime.Launch(TrainFeeds(1, 2, s));
    ASSERT_TRUE(handle.Wait().ok()) << handle.Wait().message();
    model.Step(TrainFeeds(1, 2, s)["x"]);
    EXPECT_EQ(Values(handle.Get("w")), model.w) << "step " << s;
  }
  for (const char* memory : {"device", "host"}) {
    const char* arena = small.store->Arena(0, memory);
    EXPECT_TRUE(std::any_of(arena, arena + bytes, [](char c) { return c != 0x5a; })) << memory;
  }
  plan.mutable_arena(1)->set_memory("tape");
  EXPECT_NE(ErrorOf([&] { small.store->Prepare(plan, registry); }).find("is of memory 'tape'"),
            std::string::npos);
  plan.mutable_buffer(0)->set_arena(2);
  plan.mutable_arena(1)->set_memory("host");
  EXPECT_NE(ErrorOf([&] {
              Runtime({plan}, registry, small.store.get(), executor.get(), {});
            }).find("lies in arena 2 of a plan with 2"),
            std::string::npos);
}

// The peak is the larger of the two arenas and not their sum.
TEST(RuntimeStore, AnArenaGrowsToAllThereIs) {
  SmallStore small(100'000);
  KernelRegistry registry = TestRegistry();
  small.store->Prepare(PlanOfOne(60'000), registry);
  small.store->Prepare(PlanOfOne(99'000), registry);
  EXPECT_EQ(small.store->ArenaBytes(0), 99'000);
  EXPECT_LT(small.device->left(), 1'000);
}

TEST(RuntimeStore, APlanThatDoesNotFitLeavesNoVariable) {
  SmallStore small(100'000);
  KernelRegistry registry = TestRegistry();
  small.store->Prepare(PlanOfOne(0), registry);
  const int64_t left = small.device->left(), held = small.store->PersistentBytes(0);
  EXPECT_NE(ErrorOf([&] { small.store->Prepare(PlanOfOne(200'000, "other"), registry); }), "");
  EXPECT_EQ(small.store->Variables(0).size(), 1u);
  EXPECT_EQ(small.store->Variable(0, "other"), nullptr);
  EXPECT_EQ(small.store->PersistentBytes(0), held);
  EXPECT_EQ(small.device->left(), left) << "bytes of the device that nobody gave back";
}

TEST(RuntimeStore, AVariableOfAnotherTypeOrBoxIsRefused) {
  KernelRegistry registry = TestRegistry();
  auto store = MakeStore(1);
  store->Prepare(PlanOfOne(0), registry);
  plan::Plan typed = PlanOfOne(0), cut = PlanOfOne(0);
  typed.mutable_variable(0)->set_dtype(static_cast<int>(DType::kInt32));
  EXPECT_EQ(ErrorOf([&] { store->Prepare(typed, registry); }),
            "variable 'w' of rank 0 is i64[4] box [0:4] in the store but the plan wants i32[4] box [0:4]");
  cut.mutable_variable(0)->mutable_box()->set_extent(0, 2);
  EXPECT_EQ(ErrorOf([&] { store->Prepare(cut, registry); }),
            "variable 'w' of rank 0 is i64[4] box [0:4] in the store but the plan wants i64[4] box [0:2]");
}

// --- What waits for steps under way ---

// A kernel that waits in the middle of a step until it is let on, and looks at the store before and after.
struct Gate {
  Store* store = nullptr;
  std::atomic<bool> reached{false}, open{false};
  std::atomic<int64_t> bytes_before{-1}, bytes_after{-1};
};
Gate* gate = nullptr;

Status GateKernel(const KernelContext&) {
  gate->bytes_before = gate->store->ArenaBytes(0);
  gate->reached = true;
  while (!gate->open) std::this_thread::yield();
  gate->bytes_after = gate->store->ArenaBytes(0);
  return Status();
}

plan::Plan GatePlan(int64_t arena_bytes) {
  PlanBuilder b("gate", 0, 1, 1);
  b.Buffer("room", arena_bytes / 8, 1);
  b.Kernel(b.Actor(0, "gate", 1), "gate", {}, {});
  return b.plan();
}

TEST(RuntimeStore, ALargerPlanIsLoadedWhenTheStepUnderWayHasEnded) {
  KernelRegistry registry;
  registry.Add("gate", "cpu", &GateKernel);
  auto store = MakeStore(1);
  Gate here;
  here.store = store.get();
  gate = &here;
  auto executor = MakeThreadExecutor(1, 1);
  Runtime runtime({GatePlan(4096)}, registry, store.get(), executor.get(), {});
  StepHandle step = runtime.Launch({});
  while (!here.reached) std::this_thread::yield();
  std::thread opens([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // time to do the wrong thing
    here.open = true;
  });
  Runtime larger({GatePlan(1 << 20)}, registry, store.get(), executor.get(), {});
  EXPECT_TRUE(here.open) << "the plan was loaded in the middle of a step";
  opens.join();
  EXPECT_TRUE(step.Wait().ok());
  EXPECT_EQ(here.bytes_before, 4096);
  EXPECT_EQ(here.bytes_after, 4096);
  EXPECT_EQ(store->ArenaBytes(0), 1 << 20);
}

// --- Results ---

TEST(RuntimeStore, AResultStaysWhileItsTensorIsHeld) {
  KernelRegistry registry = TestRegistry();
  auto store = MakeStore(1);
  auto executor = MakeThreadExecutor(1, 1);
  Runtime runtime({PlanOfOne(0)}, registry, store.get(), executor.get(), {.steps_in_flight = 2});
  TrainModel model(1, 2);
  std::vector<HostTensor> kept;
  std::vector<std::vector<int64_t>> wanted;
  for (int64_t s = 0; s < 16; ++s) {
    StepHandle handle = runtime.Launch(TrainFeeds(1, 2, s));
    ASSERT_TRUE(handle.Wait().ok());
    model.Step(TrainFeeds(1, 2, s)["x"]);
    if (s >= 8) continue;
    kept.push_back(handle.Get("w"));  // the handle goes, the tensor stays
    wanted.push_back(model.w);
  }
  for (size_t i = 0; i < kept.size(); ++i) EXPECT_EQ(Values(kept[i]), wanted[i]) << "step " << i;
}

}  // namespace
}  // namespace oneflow_like
