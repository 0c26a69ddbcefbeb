// A runtime that is one of several processes: here two of them in one process, joined by peers of the test's
// own.
#include <gtest/gtest.h>

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
  TestProcess(Wire* wire, int process, const std::vector<plan::Plan>& plans) : peers(wire, process) {
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
    runtime = std::make_unique<Runtime>(mine, TestRegistry(), store.get(), executor.get(), options);
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
  void Start(const std::vector<plan::Plan>& plans) {
    for (int p = 0; p < kProcesses; ++p) {
      processes_.push_back(std::make_unique<TestProcess>(&wire_, p, plans));
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
  wire_.Fail("echo", "rank 2 (host b, pid 17) is lost");
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

}  // namespace
}  // namespace oneflow_like
