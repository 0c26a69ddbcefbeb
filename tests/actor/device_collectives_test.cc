// Collectives of devices, member by member: what is enqueued, who is told, and what closing waits for. The
// devices are threads (asynchronous_backend.h).
// ctest: asan=10 tsan=10
#include "actor/device_collectives.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <vector>

#include "actor/peer_steps.h"
#include "actor/step.h"
#include "core/plan/plan_values.h"
#include "tests/actor/asynchronous_backend.h"
#include "tests/actor/peers_fixture.h"
#include "tests/error_of.h"

namespace oneflow_like {
namespace {

constexpr int64_t kWidth = 8;

// Handles messages at once, where they are posted.
class AtOnce final : public Worker {
 public:
  void Post(Message* message) override { message->Receive(); }
  void Tell(const Receiver*, Receiver*, int, bool) override {}
  void Ready(Runnable*, bool) override {}
  void Forget(Runnable*) override {}
};

struct Told final : CollectiveListener {
  std::atomic<int> done{0}, failed{0};
  void CollectiveWorked(int64_t, int64_t) override {}
  void CollectiveDone(bool ok) override { ++(ok ? done : failed); }
};

// The host's side, which counts those who come.
class HostSide final : public Collectives {
 public:
  std::atomic<int> joined{0}, arrived{0};
  std::unique_ptr<CollectiveMember> Join(const CollectiveSpec&, const plan::Collective&) override {
    ++joined;
    auto member = std::make_unique<Member>();
    member->host = this;
    return member;
  }
  void CheckComplete() override {}

 private:
  struct Member final : CollectiveMember {
    HostSide* host;
    void Arrive(Pieces, Pieces, int, bool) override { ++host->arrived; }
  };
};

// Without the work of its members.
plan::Collective SumOver(const std::vector<int>& ranks) {
  plan::Collective c;
  c.set_primitive("all_reduce");
  c.set_reduce("sum");
  const Box whole = Box::Whole(Dims{kWidth});
  for (int rank : ranks) {
    c.add_rank(rank);
    plan::Piece* piece = c.add_piece();
    Set(whole, piece->add_in());
    Set(whole, piece->add_out());
  }
  return c;
}

// One sum over two ranks, each on a device of its own.
class SumOfTwo {
 public:
  SumOfTwo(bool groups, bool alone) : backend_(2, 1, 0, groups) {
    DeviceCollectivesOptions options;
    options.plan = "sum";
    options.backend = &backend_;
    options.host = &host;
    for (int rank = 0; rank < 2; ++rank) {
      devices_.push_back(std::make_unique<LateDevice>(rank, Cat("late", rank), 1 + rank, 0, nullptr, alone));
      streams.push_back(devices_[rank]->MakeStream("link"));
      options.ranks.push_back(rank);
      options.devices.push_back(devices_[rank].get());
    }
    all = MakeDeviceCollectives(options);
    for (int rank = 0; rank < 2; ++rank) {
      plan::Collective& c = plans_[rank];
      c.set_primitive("all_reduce");
      c.set_reduce("sum");
      c.set_me(rank);
      const Box whole = Box::Whole(Dims{kWidth});
      for (int member = 0; member < 2; ++member) {
        c.add_rank(member);
        plan::Piece* piece = c.add_piece();
        Set(whole, piece->add_in());
        Set(whole, piece->add_out());
      }
      plan::Region* region = c.add_work()->add_region();
      if (rank == 0) {
        Set(whole, region->mutable_box());
        for (int member = 0; member < 2; ++member) {
          region->add_source(member);
          region->add_dest(member);
        }
      }
      CollectiveSpec spec;
      spec.plan = "sum";
      spec.actor = Cat("sum of rank ", rank);
      spec.worker = &worker_;
      spec.device = devices_[rank].get();
      spec.stream = streams[rank].get();
      spec.listener = &told[rank];
      members.push_back(all->Join(spec, c));
    }
  }
  void Arrive(int rank, bool ok) {
    void* piece = data_[rank];
    members[rank]->Arrive({&piece, 1}, {&piece, 1}, 0, ok);
  }
  const LateBackend::Asked& asked() const { return backend_.asked(); }

 private:
  LateBackend backend_;
  AtOnce worker_;
  plan::Collective plans_[2];
  float data_[2][kWidth] = {};
  std::vector<std::unique_ptr<Device>> devices_;

 public:
  HostSide host;
  Told told[2];
  std::unique_ptr<Collectives> all;
  std::vector<std::unique_ptr<CollectiveMember>> members;
  std::vector<std::unique_ptr<DeviceStream>> streams;  // they end first
};

TEST(DeviceCollectives, GoTheWayThatTheDevicesHave) {
  SumOfTwo library(true, false);
  library.all->CheckComplete();
  EXPECT_EQ(library.host.joined, 0);
  SumOfTwo in_reach(false, false);
  EXPECT_EQ(in_reach.host.joined, 0);
  in_reach.Arrive(0, true);
  in_reach.Arrive(1, true);
  EXPECT_EQ(in_reach.told[0].done + in_reach.told[1].done, 2);
  SumOfTwo apart(false, true);
  EXPECT_EQ(apart.host.joined, 2) << "neither reads the other's memory";
}

// The others have enqueued their parts, and would wait for ever.
TEST(DeviceCollectives, AMemberThatFailsTakesItsPartInTheLibrarysCall) {
  SumOfTwo sum(true, false);
  sum.all->CheckComplete();
  sum.Arrive(0, false);
  sum.Arrive(1, true);
  EXPECT_EQ(sum.asked().calls, 2);
  EXPECT_EQ(sum.told[0].failed, 1);
  sum.all->Cancel();  // where one is missing, the other's stream does not end
}

TEST(DeviceCollectives, CancelEndsGroupsAlsoThoseConnectedLater) {
  for (bool connected_before : {true, false}) {
    SumOfTwo sum(true, false);
    if (connected_before) sum.all->CheckComplete();
    sum.all->Cancel();
    if (!connected_before) sum.all->CheckComplete();
    ASSERT_EQ(sum.asked().aborts, 2);
    sum.Arrive(0, true);  // what arrives now waits for nobody
  }
}

TEST(DeviceCollectives, AreCancelledAfterAFailureElsewhere) {
  SumOfTwo sum(true, false);
  sum.all->CheckComplete();
  RunState run;
  PeerSteps steps(&run);
  steps.SetCollectives(sum.all.get());
  steps.PeersFailed("rank 2 (host b, pid 17) is lost");
  EXPECT_EQ(sum.asked().aborts, 2);
}

// The other processes cancel theirs when they learn of it, so what a device here has begun would not end. The
// step's error stays the reason, not that of a device whose collective was cancelled.
TEST(DeviceCollectives, AreCancelledAfterAFailureHere) {
  SumOfTwo sum(true, false);
  sum.all->CheckComplete();
  RunState run;
  Wire wire(2);
  PeerSteps steps(&run);
  TestPeers peers(&wire, 0);
  const std::unique_ptr<PeerLink> link = peers.Connect("sum", &steps);
  steps.SetLink(link.get());
  steps.SetCollectives(sum.all.get());
  run.peers = &steps;
  StepSlot slot;
  slot.state = std::make_shared<StepHandle::State>();
  run.FailDevice(&slot, "out of range");
  EXPECT_EQ(sum.asked().aborts, 2);
  run.FailDevice(&slot, "group 0 was aborted");
  EXPECT_EQ(slot.state->status().message(), "out of range");
  StepSlot next;
  next.state = std::make_shared<StepHandle::State>();
  run.FailDevice(&next, "group 0 was aborted");
  EXPECT_EQ(next.state->status().message(), "out of range");
}

// Two launches here and two there have no order that all keep: each process has one device, or all.
TEST(DeviceCollectives, SeveralDevicesOfSeveralProcessesAreRefused) {
  LateBackend backend(2, 1, 0, true);
  AtOnce worker;
  HostSide host;
  Told told;
  LateDevice first(0, "late0", 1, 0), second(1, "late1", 2, 0);
  auto stream = first.MakeStream("link");
  DeviceCollectivesOptions options;
  options.plan = "sum";
  options.backend = &backend;
  options.host = &host;
  options.ranks = {0, 1};
  options.devices = {&first, &second};
  options.exchange = [](const std::string&, const std::string& mine) {
    return std::vector<std::string>{mine, "2 1 late2\n"};
  };
  auto all = MakeDeviceCollectives(options);
  const plan::Collective c = SumOver({0, 2});
  CollectiveSpec spec;
  spec.plan = "sum";
  spec.actor = "sum of rank 0";
  spec.worker = &worker;
  spec.device = &first;
  spec.stream = stream.get();
  spec.listener = &told;
  const std::string error = ErrorOf([&] { all->Join(spec, c); });
  EXPECT_EQ(
      error,
      "collective sum of rank 0 joins ranks of several processes, and this process has 2 GPUs: start one "
      "process for each GPU (--processes), or one process with all");
}

// Ranks of several processes on one device go through the host unless the libraries of all processes say that
// they may share it and each process has one rank: several would launch onto it in an order that nobody
// keeps.
TEST(DeviceCollectives, ProcessesShareADeviceWhereTheirLibrariesAllowIt) {
  struct Case {
    bool share;                                     // the library here
    std::vector<std::pair<int, const char*>> here;  // ranks and their devices
    std::vector<std::string> others;                // what other processes say of theirs
    std::vector<int> ranks;                         // of the collective, the first one here
    bool by_library;
  };
  for (const Case& given : {
           Case{true, {{0, "late0"}}, {"1 2 late0\n"}, {0, 1}, true},
           Case{false, {{0, "late0"}}, {"1 2 late0\n"}, {0, 1}, false},
           Case{true, {{0, "late0"}}, {"1 1 late0\n"}, {0, 1}, false},
           Case{true, {{0, "late0"}}, {"1 0 late0\n"}, {0, 1}, false},
           Case{false, {{0, "late0"}}, {"1 1 late1\n"}, {0, 1}, true},
           Case{true, {{0, "late0"}}, {"1 2 late0\n", "2 2 late0\n"}, {0, 1}, true},
           Case{true, {{0, "late0"}}, {"1 2 late0\n", "2 1 late0\n"}, {0, 1}, false},
           Case{true, {{0, "late0"}, {2, "late0"}}, {"1 2 late0\n"}, {0, 1, 2}, false},
           Case{true, {{0, "late0"}, {1, "late0"}}, {"2 2 late0\n3 2 late0\n"}, {0, 2}, false},
           Case{true, {{0, "late0"}}, {"1 2 late0\n2 2 late0\n"}, {0, 1}, false},
           // Eight ranks on three devices.
           Case{true,
                {{3, "late1"}, {0, "late0"}, {1, "late0"}, {2, "late0"}},
                {"4 2 late1\n5 2 late2\n6 2 late2\n7 2 late2\n"},
                {3, 4},
                false},
       }) {
    std::string what = Cat(given.share ? "sharing" : "apart", ", ", given.here.size(), " ranks here; ");
    for (const std::string& other : given.others) what += other + "; ";
    SCOPED_TRACE(what);
    LateBackend backend(1, 1, 0, true, given.share);
    AtOnce worker;
    HostSide host;
    Told told;
    DeviceCollectivesOptions options;
    options.plan = "sum";
    options.backend = &backend;
    options.host = &host;
    std::vector<std::unique_ptr<LateDevice>> devices;
    for (const auto& [rank, hardware] : given.here) {
      devices.push_back(std::make_unique<LateDevice>(rank, hardware, 1 + rank, 0));
      options.ranks.push_back(rank);
      options.devices.push_back(devices.back().get());
    }
    auto stream = devices[0]->MakeStream("link");
    options.exchange = [&](const std::string&, const std::string& text) {
      std::vector<std::string> all = given.others;
      all.insert(all.begin(), text);
      return all;
    };
    auto all = MakeDeviceCollectives(options);
    const plan::Collective sum = SumOver(given.ranks);
    CollectiveSpec spec;
    spec.plan = "sum";
    spec.actor = "sum of rank 0";
    spec.worker = &worker;
    spec.device = devices[0].get();
    spec.stream = stream.get();
    spec.listener = &told;
    std::unique_ptr<CollectiveMember> member;
    EXPECT_EQ(ErrorOf([&] { member = all->Join(spec, sum); }), "");
    EXPECT_EQ(host.joined, given.by_library ? 0 : 1);
  }
}

// Otherwise the words that devices have still to say would find their members gone.
TEST(DeviceCollectives, QuiesceWaitsForTheDevicesWords) {
  SumOfTwo sum(false, true);
  std::promise<void> gate;
  std::shared_future<void> open = gate.get_future().share();
  static_cast<LateStream*>(sum.streams[0].get())->Enqueue([open] {
    open.wait();
    return Status();
  });
  sum.Arrive(0, true);
  std::future<int> quiet = std::async(std::launch::async, [&] {
    sum.all->Quiesce();
    return sum.host.arrived.load();
  });
  EXPECT_EQ(quiet.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  gate.set_value();
  EXPECT_EQ(quiet.get(), 1);
}

}  // namespace
}  // namespace oneflow_like
