// A runtime that is one of several processes: here two of them in one process, joined by peers of the test's
// own.
// ctest: asan=10 tsan=10
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <future>
#include <thread>

#include "tests/actor/actor_test_plans.h"
#include "tests/actor/peers_fixture.h"

namespace oneflow_like {
namespace {

constexpr int kProcesses = 2, kRanksEach = 2, kWorld = kProcesses * kRanksEach;

// Hosts the ranks [p * kRanksEach, (p + 1) * kRanksEach) of the plans.
struct TestProcess {
  TestProcess(Wire* wire, int process, const std::vector<plan::Plan>& plans,
              const KernelRegistry& registry = TestRegistry())
      : peers(wire, process) {
    std::vector<int> ranks;
    std::vector<std::unique_ptr<Device>> devices;
    std::vector<plan::Plan> mine;
    for (int r = process * kRanksEach; r < (process + 1) * kRanksEach; ++r) {
      ranks.push_back(r);
      devices.push_back(MakeHostDevice(r));
      mine.push_back(plans[r]);
    }
    store = std::make_unique<Store>(ranks, std::move(devices));
    RuntimeOptions options;
    options.peers = &peers;
    runtime = std::make_unique<Runtime>(mine, registry, store.get(), executor.get(), options);
  }

  TestPeers peers;
  std::unique_ptr<Executor> executor = MakeThreadExecutor(2, 1);
  std::unique_ptr<Store> store;
  std::unique_ptr<Runtime> runtime;
};

// Every rank gives its part of x back as its part of y; nobody waits for anybody.
std::vector<plan::Plan> EchoPlans(int times) {
  std::vector<plan::Plan> plans;
  Dims all{times * kWorld * kWidth};
  for (int r = 0; r < kWorld; ++r) {
    PlanBuilder b("echo", r, kWorld, times);
    b.Input("x", all);
    b.Output("y", all);
    int x = b.Buffer("x", kWidth, 2);
    std::vector<Box> boxes;
    for (int t = 0; t < times; ++t) boxes.push_back({{(t * kWorld + r) * kWidth}, {kWidth}});
    plan::Actor* feed = b.Actor(0, "feed x", times);
    feed->set_feed("x");
    b.Kernel(feed, "feed", {}, {b.Operand(x, all, boxes)});
    plan::Actor* fetch = b.Actor(1, "fetch y", times);
    fetch->set_fetch("y");
    b.Kernel(fetch, "fetch", {b.Operand(x, all, boxes)}, {});
    b.Edge(feed, fetch, 2);
    plans.push_back(b.plan());
  }
  return plans;
}

class RuntimePeersTest : public ::testing::Test {
 protected:
  void Start(const std::vector<plan::Plan>& plans, const KernelRegistry& registry = TestRegistry()) {
    for (int p = 0; p < kProcesses; ++p) {
      processes_.push_back(std::make_unique<TestProcess>(&wire_, p, plans, registry));
    }
  }
  Runtime& runtime(int process) { return *processes_[process]->runtime; }

  Wire wire_{kProcesses};
  std::vector<std::unique_ptr<TestProcess>> processes_;
};

TEST_F(RuntimePeersTest, EveryProcessGetsEveryOutputWhole) {
  constexpr int kTimes = 3, kSteps = 40;
  Start(TrainPlans(kWorld, kTimes));
  auto body = [&](int process) {
    TrainModel model(kWorld, kTimes);
    std::deque<StepHandle> in_flight;
    auto check = [&] {
      Status status = in_flight.front().Wait();
      ASSERT_TRUE(status.ok()) << status.message();
      const int64_t step = in_flight.front().step();
      model.Step(TrainFeeds(kWorld, kTimes, step).at("x"));
      EXPECT_EQ(Values(in_flight.front().Get("w")), model.w) << "process " << process << " step " << step;
      EXPECT_EQ(Values(in_flight.front().Get("sums")), model.sums)
          << "process " << process << " step " << step;
      in_flight.pop_front();
    };
    for (int64_t step = 0; step < kSteps; ++step) {
      in_flight.push_back(runtime(process).Launch(TrainFeeds(kWorld, kTimes, step)));
      if (in_flight.size() == 2) check();
    }
    while (!in_flight.empty()) check();
    EXPECT_EQ(runtime(process).TakeProfile().steps, kSteps);
  };
  std::thread other(body, 1);
  body(0);
  other.join();
}

TEST_F(RuntimePeersTest, OutputsMayArriveBeforeTheirStepIsLaunched) {
  constexpr int kTimes = 2;
  Start(EchoPlans(kTimes));
  std::vector<StepHandle> ahead, behind;
  for (int64_t step = 0; step < 2; ++step)
    ahead.push_back(runtime(0).Launch(TrainFeeds(kWorld, kTimes, step)));
  wire_.WaitUntilCarried(2 * kTimes * kRanksEach);  // all that process 0 has to give
  for (int64_t step = 0; step < 2; ++step) EXPECT_FALSE(ahead[step].Done());
  for (int64_t step = 0; step < 2; ++step)
    behind.push_back(runtime(1).Launch(TrainFeeds(kWorld, kTimes, step)));
  for (int64_t step = 0; step < 2; ++step) {
    const std::vector<int64_t> x = Values(TrainFeeds(kWorld, kTimes, step).at("x"));
    for (const StepHandle& handle : {ahead[step], behind[step]}) {
      Status status = handle.Wait();
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(Values(handle.Get("y")), x) << step;
    }
  }
}

TEST_F(RuntimePeersTest, AStepWaitsForTheLastPieceOfTheOthers) {
  Start(EchoPlans(1));
  wire_.Hold(true);
  StepHandle first = runtime(0).Launch(TrainFeeds(kWorld, 1, 0));
  StepHandle second = runtime(1).Launch(TrainFeeds(kWorld, 1, 0));
  wire_.WaitUntilSent(kWorld);
  EXPECT_FALSE(first.Done());
  EXPECT_FALSE(second.Done());
  wire_.Hold(false);
  EXPECT_TRUE(first.Wait().ok());
  EXPECT_TRUE(second.Wait().ok());
}

TEST_F(RuntimePeersTest, AFailedKernelEndsTheStepsOfAllWithItsMessage) {
  Start(TrainPlans(kWorld, 2, 3, 1));  // rank 3, of process 1, in step 1
  std::vector<StepHandle> steps[kProcesses];
  for (int p = 0; p < kProcesses; ++p) steps[p].push_back(runtime(p).Launch(TrainFeeds(kWorld, 2, 0)));
  for (int p = 0; p < kProcesses; ++p) EXPECT_TRUE(steps[p][0].Wait().ok());
  // The word of what failed comes late: nobody makes up another reason meanwhile.
  wire_.Hold(true);
  for (int p = 0; p < kProcesses; ++p) steps[p].push_back(runtime(p).Launch(TrainFeeds(kWorld, 2, 1)));
  const std::string at_fault = steps[1][1].Wait().message();
  EXPECT_NE(at_fault.find("no good"), std::string::npos) << at_fault;
  EXPECT_FALSE(steps[0][1].Done());
  wire_.Hold(false);
  EXPECT_EQ(steps[0][1].Wait().message(), "process 1: " + at_fault);
  for (int p = 0; p < kProcesses; ++p) {
    try {
      runtime(p).Launch(TrainFeeds(kWorld, 2, 2));
      ADD_FAILURE() << "process " << p << " went on";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(at_fault), std::string::npos) << error.what();
    }
    runtime(p).Close();
  }
}

TEST_F(RuntimePeersTest, ALostPeerEndsAStepThatWaitsForItsOutputsAlone) {
  Start(EchoPlans(1));
  StepHandle step = runtime(0).Launch(TrainFeeds(kWorld, 1, 0));
  wire_.WaitUntilCarried(kRanksEach);  // all that is done here is done
  wire_.Fail("echo", "rank 2 (host b, pid 17) is lost");
  EXPECT_FALSE(step.Wait().ok());
  EXPECT_EQ(step.Wait().message(), "rank 2 (host b, pid 17) is lost");
  EXPECT_THROW(runtime(0).Launch(TrainFeeds(kWorld, 1, 1)), Error);
  wire_.WaitUntilCarried();
  EXPECT_THROW(runtime(1).Launch(TrainFeeds(kWorld, 1, 0)), Error);
  // Late pieces of the step that was ended are no trouble.
  wire_.Tell(0, "echo", [](PeerListener* listener) {
    const int64_t zeros[kWidth] = {};
    listener->OutputArrived(0, 0, {{2 * kWidth}, {kWidth}}, zeros, sizeof zeros);
  });
  wire_.WaitUntilCarried();
  runtime(0).Close();
}

TEST_F(RuntimePeersTest, CloseDoesNotWaitForAPeerThatIsLost) {
  Start(TrainPlans(kWorld, 1));
  StepHandle step = runtime(0).Launch(TrainFeeds(kWorld, 1, 0));  // its collectives never end
  std::future<void> closed = std::async(std::launch::async, [&] { runtime(0).Close(); });
  wire_.Fail("train", "rank 2 (host b, pid 17) is lost");
  closed.get();
  EXPECT_EQ(step.Wait().message(), "rank 2 (host b, pid 17) is lost");
}

TEST_F(RuntimePeersTest, CloseGivesTheOthersWhatTheyWaitFor) {
  Start(TrainPlans(kWorld, 1));
  StepHandle early = runtime(0).Launch(TrainFeeds(kWorld, 1, 0));
  std::future<void> closed = std::async(std::launch::async, [&] { runtime(0).Close(); });
  StepHandle late = runtime(1).Launch(TrainFeeds(kWorld, 1, 0));
  EXPECT_TRUE(late.Wait().ok()) << late.Wait().message();
  closed.get();
  EXPECT_TRUE(early.Wait().ok()) << early.Wait().message();
  EXPECT_EQ(Values(early.Get("w")), Values(late.Get("w")));
}

// --- A kernel that is held up until the test lets it on ---

std::atomic<bool> gate_open{true};
std::atomic<int> gate_reached{0}, runs_behind_gate{0};

KernelRegistry GateRegistry() {
  KernelRegistry registry = TestRegistry();
  registry.Add("gate", "cpu", [](const KernelContext& c) {
    ++gate_reached;
    while (!gate_open) std::this_thread::yield();
    return c.spec.attrs.Int("fail", 0) != 0 ? Status("no good") : Status();
  });
  registry.Add("behind", "cpu", [](const KernelContext&) {
    ++runs_behind_gate;
    return Status();
  });
  return registry;
}

// One slot between two actors of EchoPlans and those added to them.
void Join(plan::Plan* plan, int writer, int reader) {
  plan::Port* out = plan->mutable_actor(writer)->add_out();
  plan::Port* in = plan->mutable_actor(reader)->add_in();
  out->set_credits(1);
  out->set_peer(reader);
  in->set_peer(writer);
  for (plan::Port* port : {out, in}) {
    port->set_edge(100 + writer);
    port->set_period(1);
  }
}

// EchoPlans; each rank's actor 2, "gate", comes after its output was sent, and `add` gives it what it does.
template <typename Add>
std::vector<plan::Plan> EchoPlansAndAGate(Add add) {
  std::vector<plan::Plan> plans = EchoPlans(1);
  for (int r = 0; r < kWorld; ++r) {
    PlanBuilder b("echo", r, kWorld, 1);
    b.plan() = plans[r];
    b.Actor(2, "gate", 1);
    add(&b, r);
    Join(&b.plan(), 1, 2);
    plans[r] = b.plan();
  }
  return plans;
}

// Rank 3 fails at its gate, which an all-reduce tells all.
std::vector<plan::Plan> EchoPlansWithAFailure() {
  const Dims one{1};
  return EchoPlansAndAGate([&](PlanBuilder* builder, int r) {
    PlanBuilder& b = *builder;
    const int in = b.Buffer("in", 1, 1), out = b.Buffer("out", 1, 1);
    plan::Kernel* kernel = b.Kernel(b.plan().mutable_actor(2), r == 3 ? "gate" : "behind", {},
                                    {b.Operand(in, one, {Box::Whole(one)})});
    if (r == 3) b.SetAttr(kernel, "fail", 1);
    plan::Actor* reduce = b.Actor(3, "reduce", 1);
    b.Kernel(reduce, "all_reduce", {b.Operand(in, one, {Box::Whole(one)})},
             {b.Operand(out, one, {Box::Whole(one)})});
    const std::vector<std::vector<Box>> everywhere(kWorld, {Box::Whole(one)});
    plan::Collective* c = b.Collective(reduce, 1, {0, 1, 2, 3}, r, "sum", everywhere, everywhere);
    if (r == 0) b.Region(c, Box::Whole(one), {0, 1, 2, 3}, {0, 1, 2, 3});
    Join(&b.plan(), 2, 3);
  });
}

// Nothing here depends on what has failed there, but one process must not take for good what another does
// not.
TEST_F(RuntimePeersTest, AStepThatFailedElsewhereFailsThoughItsOutputsAreWhole) {
  gate_open = false;
  gate_reached = 0;
  Start(EchoPlansWithAFailure(), GateRegistry());
  runtime(0).Record(true);
  StepHandle here = runtime(0).Launch(TrainFeeds(kWorld, 1, 0)),
             there = runtime(1).Launch(TrainFeeds(kWorld, 1, 0));
  wire_.WaitUntilCarried(kWorld);  // all outputs are everywhere
  while (gate_reached == 0) std::this_thread::yield();
  wire_.Hold(true);
  gate_open = true;
  const std::string at_fault = there.Wait().message();
  EXPECT_NE(at_fault.find("no good"), std::string::npos) << at_fault;
  // Here all acts end, and nobody knows the reason yet.
  for (size_t ended = 0; ended < 4 * kRanksEach; std::this_thread::yield())
    ended += runtime(0).TakeRecords().size();
  EXPECT_FALSE(here.Done());
  wire_.Hold(false);
  EXPECT_EQ(here.Wait().message(), "process 1: " + at_fault);
  EXPECT_THROW(runtime(0).Launch(TrainFeeds(kWorld, 1, 1)), Error);
}

// All that is left of the step is a collective, whose other members never come: nothing acts any more that
// would look for a failure.
TEST_F(RuntimePeersTest, AStepInACollectiveEndsWithTheLossOfAPeerWhenItIsClosed) {
  Start(EchoPlansWithAFailure(), GateRegistry());
  StepHandle step = runtime(0).Launch(TrainFeeds(kWorld, 1, 0));
  while (wire_.arrived < kRanksEach) std::this_thread::yield();
  wire_.Fail("echo", "rank 2 (host b, pid 17) is lost");
  runtime(0).Close();
  EXPECT_EQ(step.Wait().message(), "rank 2 (host b, pid 17) is lost");
}

TEST_F(RuntimePeersTest, AFailureElsewhereStopsAnActBeforeItsNextKernel) {
  const std::vector<plan::Plan> plans = EchoPlansAndAGate([](PlanBuilder* b, int) {
    for (const char* kernel : {"gate", "behind", "behind", "behind"})
      b->Kernel(b->plan().mutable_actor(2), kernel, {}, {});
  });
  gate_open = false;
  gate_reached = runs_behind_gate = 0;
  Start(plans, GateRegistry());
  StepHandle step = runtime(0).Launch(TrainFeeds(kWorld, 1, 0));
  while (gate_reached < kRanksEach) std::this_thread::yield();
  wire_.Fail("echo", "rank 2 (host b, pid 17) is lost");
  wire_.WaitUntilCarried(kRanksEach + kProcesses);
  gate_open = true;
  EXPECT_EQ(step.Wait().message(), "rank 2 (host b, pid 17) is lost");
  runtime(0).Close();
  EXPECT_EQ(runs_behind_gate, 0);
}

// Devices would wait for ever for those who do not come any more.
TEST_F(RuntimePeersTest, ClosingCancelsTheCollectives) {
  Start(EchoPlans(1));
  EXPECT_EQ(wire_.cancels[0], 0);
  runtime(0).Close();
  EXPECT_EQ(wire_.cancels[0], 1);
  EXPECT_EQ(wire_.cancels[1], 0);
}

// What a process says it waits for when somebody is lost.
TEST_F(RuntimePeersTest, TheAwaitedStepIsTheFirstWhoseOutputsAreNotWhole) {
  Start(EchoPlans(1));
  auto awaited = [&] {
    int64_t step = -2;
    std::promise<void> asked;
    wire_.Tell(0, "echo", [&](PeerListener* listener) {
      step = listener->AwaitedOutputs().launch;
      asked.set_value();
    });
    asked.get_future().get();
    return step;
  };
  EXPECT_EQ(awaited(), -1) << "nothing is under way";
  StepHandle steps[2];
  for (int s = 0; s < 2; ++s) steps[s] = runtime(0).Launch(TrainFeeds(kWorld, 1, s));
  EXPECT_EQ(awaited(), 0);
  EXPECT_TRUE(runtime(1).Launch(TrainFeeds(kWorld, 1, 0)).Wait().ok());
  EXPECT_TRUE(steps[0].Wait().ok());
  EXPECT_EQ(awaited(), 1);
  EXPECT_TRUE(runtime(1).Launch(TrainFeeds(kWorld, 1, 1)).Wait().ok());
  EXPECT_TRUE(steps[1].Wait().ok());
  EXPECT_EQ(awaited(), -1);
}

// Outputs whole, acts not: what is awaited then is not of others.
TEST_F(RuntimePeersTest, AStepWhoseOutputsAreWholeAwaitsNobody) {
  const std::vector<plan::Plan> plans =
      EchoPlansAndAGate([](PlanBuilder* b, int) { b->Kernel(b->plan().mutable_actor(2), "gate", {}, {}); });
  gate_open = false;
  gate_reached = 0;
  Start(plans, GateRegistry());
  StepHandle steps[kProcesses];
  for (int p = 0; p < kProcesses; ++p) steps[p] = runtime(p).Launch(TrainFeeds(kWorld, 1, 0));
  wire_.WaitUntilCarried(kWorld);
  std::promise<int64_t> awaited;
  wire_.Tell(0, "echo",
             [&](PeerListener* listener) { awaited.set_value(listener->AwaitedOutputs().launch); });
  EXPECT_EQ(awaited.get_future().get(), -1);
  gate_open = true;
  for (const StepHandle& step : steps) EXPECT_TRUE(step.Wait().ok());
}

// --- Who waits, between two messages ---

// A process without others, whose rank 1 is not told that its first act of "gather" has ended.
class LateEnd final : public Peers {
 public:
  std::unique_ptr<PeerLink> Connect(const std::string&, PeerListener*) override {
    return std::make_unique<Link>(this);
  }
  bool kept() const { return member_ != nullptr; }
  void LetGo() { member_.load()->worker->Post(member_); }

 private:
  struct Member final : CollectiveMember, CollectiveListener, Message {
    std::unique_ptr<CollectiveMember> end;
    CollectiveListener* listener = nullptr;
    Worker* worker = nullptr;
    LateEnd* late = nullptr;  // of others
    void Arrive(Pieces in, Pieces out, int micro_batch, bool ok) override {
      end->Arrive(in, out, micro_batch, ok);
    }
    void CollectiveWorked(int64_t start, int64_t end) override { listener->CollectiveWorked(start, end); }
    void CollectiveDone(bool ok) override {
      if (late == nullptr || late->kept()) return listener->CollectiveDone(ok);
      late->member_ = this;
    }
    void Receive() override { listener->CollectiveDone(true); }
  };
  struct Link final : PeerLink, Collectives {
    explicit Link(LateEnd* late) : late(late) {}
    Collectives* collectives() override { return this; }
    std::vector<std::string> Exchange(const std::string&, const std::string& mine) override { return {mine}; }
    void SendOutput(int64_t, int, const Box&, const void*, size_t) override {}
    void SendFailure(const std::string&) override {}
    std::unique_ptr<CollectiveMember> Join(const CollectiveSpec& spec,
                                           const plan::Collective& collective) override {
      auto member = std::make_unique<Member>();
      member->listener = spec.listener;
      member->worker = spec.worker;
      if (collective.id() == 2 && collective.me() == 1) member->late = late;
      CollectiveSpec behind = spec;
      behind.listener = member.get();
      member->end = local->Join(behind, collective);
      return member;
    }
    void CheckComplete() override { local->CheckComplete(); }
    LateEnd* const late;
    const std::unique_ptr<Collectives> local = MakeLocalCollectives();
  };
  std::atomic<Member*> member_{nullptr};
};

// Rank 0 is at the collective of the next step while rank 1 has not heard of the end of the one before: both
// are at the same collective, but not at one act of it.
TEST(WhoWaitsTest, ActsOfACollectiveAreToldApart) {
  LateEnd late;
  std::unique_ptr<Executor> executor = MakeThreadExecutor(2, 1);
  std::unique_ptr<Store> store = MakeStore(2);
  RuntimeOptions options;
  options.peers = &late;
  Runtime runtime(TrainPlans(2, 1), TestRegistry(), store.get(), executor.get(), options);
  StepHandle steps[] = {runtime.Launch(TrainFeeds(2, 1, 0)), runtime.Launch(TrainFeeds(2, 1, 1))};
  const auto line_of = [](const std::vector<std::string>& lines, const std::string& begin) {
    for (const std::string& line : lines)
      if (line.rfind(begin, 0) == 0 && line.find(" gather ") != std::string::npos &&
          line.find(" has arrived and ") != std::string::npos)
        return line;
    return std::string();
  };
  std::vector<std::string> lines;
  std::string ahead, behind;
  while (!late.kept() || ahead.empty() || behind.empty()) {  // until both are there
    lines = runtime.WhoWaits(10);
    ahead = line_of(lines, "rank 0, link, step 1");
    behind = line_of(lines, "rank 1, link, step 0");
  }
  EXPECT_NE(ahead.find(" has arrived and waits for rank 1"), std::string::npos) << ahead;
  EXPECT_NE(behind.find(" has arrived and waits for its data to be moved"), std::string::npos) << behind;
  late.LetGo();
  for (const StepHandle& step : steps) EXPECT_TRUE(step.Wait().ok()) << step.Wait().message();
}

}  // namespace
}  // namespace oneflow_like
