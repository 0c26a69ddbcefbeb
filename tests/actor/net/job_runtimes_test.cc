// Runtimes of several processes find one another through the job: outputs arrive whole, failures reach their
// like. Every process is a forked one.
// ctest: asan=10 tsan=10 waits
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "actor/net/job/process_job.h"
#include "actor/net/talk/runtime_links.h"
#include "tests/actor/net/job_processes.h"
#include "tests/actor/net/stub_network.h"

namespace oneflow_like {
namespace {

TEST(RuntimeLinksTest, OutputsArriveWholeWhetherTheRuntimeIsThereOrNot) {
  Meeting meeting(3);
  Flags flags;
  Processes processes(3, [&](int me, Line*) {
    std::unique_ptr<Job> job = meeting.Join(me);
    std::string large = Pattern(9, 3 << 20);
    Box box{{2, 0, 5}, {1, 4, 3}};
    Box scalar;
    Listener first, second;
    if (me != 0) flags.Meet(0, 3);  // the others have sent before we connect
    std::unique_ptr<PeerLink> a = job->peers_of_runtimes()->Connect("train", &first);
    std::unique_ptr<PeerLink> b = job->peers_of_runtimes()->Connect("evaluate", &second);
    if (me == 0) {
      std::string small = "small";
      a->SendOutput(3, 1, box, small.data(), small.size());
      small = "overwritten";
      a->SendOutput(4, 0, scalar, large.data(), large.size());
      b->SendOutput(5, 2, scalar, "four", 4);
      Sleep(0.3);  // so that some of it is there already
      flags.Meet(0, 3);
      for (int i = 0; i < 1000; ++i) a->SendOutput(i, 7, box, &i, sizeof(i));
    } else {
      WaitUntil([&] { return first.count() == 1002 && second.count() == 1; });
      auto of = [](Listener& listener, int output) {
        std::vector<Listener::Output> found;
        for (const auto& one : listener.outputs) {
          if (one.output == output) found.push_back(one);
        }
        return found;
      };
      std::lock_guard lock(first.mutex);
      REQUIRE(of(first, 1).size() == 1 && of(first, 0).size() == 1 && of(first, 7).size() == 1000);
      Listener::Output small = of(first, 1)[0], big = of(first, 0)[0];
      REQUIRE(small.step == 3 && small.box == box && small.data == "small", small.data);
      REQUIRE(big.step == 4 && big.box.extent.rank() == 0 && big.data == large);
      std::vector<bool> seen(1000);
      for (const auto& one : of(first, 7)) {
        int value = -1;
        REQUIRE(one.data.size() == sizeof(value));
        std::memcpy(&value, one.data.data(), sizeof(value));
        REQUIRE(value == one.step && !seen[value]);
        seen[value] = true;
      }
      std::lock_guard second_lock(second.mutex);
      REQUIRE(second.outputs[0].step == 5 && second.outputs[0].data == "four");
    }
    a.reset();
    b.reset();
    job->Finish(true);
    REQUIRE(job->failure().empty());
  });
  processes.ExpectAllWell();
}

TEST(RuntimeLinksTest, OutputsForARuntimeThatIsGoneAreDropped) {
  Meeting meeting(2);
  Flags flags;
  Processes processes(2, [&](int me, Line*) {
    std::unique_ptr<Job> job = meeting.Join(me);
    Listener listener, next;
    std::unique_ptr<PeerLink> link = job->peers_of_runtimes()->Connect("train", &listener);
    if (me == 1) link.reset();
    flags.Meet(0, 2);
    std::string large = Pattern(1, 2 << 20);
    if (me == 0) {
      for (int i = 0; i < 20; ++i) link->SendOutput(i, 0, Box{}, large.data(), i % 2 == 0 ? large.size() : 8);
      link->SendFailure("matmul at gpt.cc:31: NaN");
      link.reset();
    }
    link = job->peers_of_runtimes()->Connect("train", &next);
    if (me == 0) link->SendOutput(1, 2, Box{}, "12345678", 8);
    if (me == 1) {
      WaitUntil([&] { return next.count() == 1; });
      REQUIRE(next.outputs[0].step == 1 && next.outputs[0].output == 2 && next.outputs[0].data == "12345678");
      REQUIRE(listener.count() == 0 && listener.Failures().empty() && next.Failures().empty());
    }
    link.reset();
    job->Finish(true);
  });
  processes.ExpectAllWell();
}

TEST(RuntimeLinksTest, AFailedRuntimeIsToldToItsLikeAlone) {
  Meeting meeting(3);
  Flags flags;
  Processes processes(3, [&](int me, Line*) {
    std::unique_ptr<Job> job = meeting.Join(me);
    job->SetWorld(3);
    Listener first, second;
    std::unique_ptr<PeerLink> a, b;
    auto connect = [&] {
      a = job->peers_of_runtimes()->Connect("train", &first);
      b = job->peers_of_runtimes()->Connect("evaluate", &second);
    };
    if (me != 2) connect();
    flags.Meet(0, 3);
    if (me == 1) b->SendFailure("embedding at gpt.cc:31: token 900 of 512");
    if (me == 2) {  // it comes after the failure
      Sleep(0.3);
      connect();
    }
    if (me != 1) {
      WaitUntil([&] { return !second.Failures().empty(); });
      std::string expected =
          Cat("rank 1 (host ", job->peers()[1].host, "): embedding at gpt.cc:31: token 900 of 512");
      REQUIRE(second.Failures() == std::vector<std::string>{expected}, second.Failures()[0]);
      b->SendFailure(expected);  // is not sent back
    }
    REQUIRE(job->AllGather("after it", "") == std::vector<std::string>(3));
    Sleep(0.1);
    REQUIRE(first.Failures().empty() && job->failure().empty());
    REQUIRE(second.Failures().size() == (me == 1 ? 0u : 1u));
    a.reset();
    b.reset();
    job->Finish(true);
  });
  processes.ExpectAllWell();
}

// Runtimes of four processes that send outputs without data, which process 0 gets when the test says so.
class Awaiting {
 public:
  static constexpr int kProcesses = 4;

  Awaiting() {
    for (int p = 0; p < kProcesses; ++p) {
      RuntimeLinks::Host host;
      host.network = &networks_[p];
      host.me = p;
      host.processes = kProcesses;
      host.describe = [](int process) { return Cat("process ", process); };
      host.failure = [] { return ""; };
      host.open = [](int64_t) { return nullptr; };
      links_[p] = std::make_unique<RuntimeLinks>(host);
      ends_[p] = links_[p]->Connect("train", &listener_);
    }
  }
  void Send(int from, int64_t launch) {
    ends_[from]->SendOutput(launch, 0, Box{}, "", 0);
    const std::string header = networks_[from].sent_to[0].back();
    links_[0]->Deliver(from, header.data(), header.size(), std::make_unique<Nothing>());
  }
  std::string AwaitedAt(int64_t launch) {
    listener_.launch = launch;
    return links_[0]->Awaited();
  }

 private:
  struct Nothing final : Incoming {
    size_t bytes() const override { return 0; }
    const void* data() const override { return this; }
    void Receive(void*, Transfer* done) override { done->TransferDone(true); }
  };
  struct Awaits final : Listener {
    int64_t launch = -1;
    Awaited AwaitedOutputs() override { return {launch, Cat("outputs of step ", launch)}; }
  } listener_;
  StubNetwork networks_[kProcesses];
  std::unique_ptr<RuntimeLinks> links_[kProcesses];
  std::unique_ptr<PeerLink> ends_[kProcesses];
};

// In any order of arrivals those are named who have sent before and not of the awaited launch yet.
TEST(RuntimeLinksTest, ThoseWhoOweOutputsAreNamed) {
  Awaiting all;
  EXPECT_EQ(all.AwaitedAt(-1), "");
  EXPECT_EQ(all.AwaitedAt(0), "outputs of step 0 (train) of process 1 and process 2 and process 3");
  std::mt19937 random(5);
  std::map<int, int64_t> newest;
  for (int i = 0; i < 200; ++i) {
    const int from = static_cast<int>(1 + random() % (i < 20 ? 1 : 2));  // process 3 never sends
    const int64_t launch = i / 4 + static_cast<int>(random() % 3);
    all.Send(from, launch);
    newest[from] = newest.count(from) ? std::max(newest[from], launch) : launch;
    for (int64_t awaited = std::max(0, i / 4 - 2); awaited < i / 4 + 4; ++awaited) {
      std::string wanted = Cat("outputs of step ", awaited, " (train)"), of = " of ";
      for (const auto& [process, sent] : newest) {
        if (sent >= awaited) continue;
        wanted += Cat(of, "process ", process);
        of = " and ";
      }
      ASSERT_EQ(all.AwaitedAt(awaited), wanted);
    }
  }
}

}  // namespace
}  // namespace oneflow_like
