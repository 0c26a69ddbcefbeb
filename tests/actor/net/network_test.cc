// The network between real processes: order and contents under load, the loss of peers at any moment,
// silence, clean ends, and what is left behind. Latency and bandwidth are printed.
// ctest: seconds=60 long=30 asan=100 tsan=100
#include "actor/net/ucx/network.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include "actor/net/ucx/in_order.h"
#include "actor/net/ucx/peer_clock.h"
#include "tests/actor/net/network_processes.h"
#include "tests/sanitized.h"

namespace oneflow_like {
namespace {

constexpr size_t kKiB = 1 << 10, kMiB = 1 << 20;

// Everybody knows these bytes; what is sent is cut from them.
const std::vector<char>& KnownBytes() {
  static const std::vector<char> bytes = [] {
    std::vector<char> b(17 * kMiB);
    std::mt19937_64 random(7);
    for (size_t i = 0; i + 8 <= b.size(); i += 8) {
      uint64_t word = random();
      std::memcpy(&b[i], &word, 8);
    }
    return b;
  }();
  return bytes;
}

// The plan of message `index` from one process to another, on one of two channels: all know it from the seed.
struct Planned {
  size_t bytes, offset, header_bytes;
  int treatment;  // 0, 1: received at once; 2: later; 3: dropped
};

Planned Plan(uint32_t seed, int from, int to, int channel, int index) {
  static const size_t kSizes[] = {0,         0,         1,         100,           4 * kKiB,
                                  8 * kKiB,  9 * kKiB,  16 * kKiB, 32 * kKiB + 1, 40 * kKiB,
                                  64 * kKiB, 65 * kKiB, kMiB,      kMiB + 4321,   8 * kMiB};
  std::mt19937 random(seed * 1000003u + from * 7919u + to * 104729u + channel * 15485863u + index * 31u);
  Planned plan;
  plan.bytes = kSizes[random() % std::size(kSizes)];
  if (plan.bytes == 8 * kMiB && random() % 4 != 0) plan.bytes = 3;
  plan.offset = random() % (8 * kMiB);
  plan.header_bytes = 4 + random() % 1021;
  plan.treatment = static_cast<int>(random() % 4);
  return plan;
}

// Sends all of its plan, some at a time, and receives all of the others'.
class MixedLoad {
 public:
  MixedLoad(NetworkNode* node, int count, uint32_t seed, int messages)
      : node_(node), count_(count), seed_(seed), messages_(messages) {
    node->Run([this, node] {
      node->handler = [this](int from, const std::string& header, std::unique_ptr<Incoming> data) {
        Arrived(from, 0, header, std::move(data));
      };
      node->second_handler = [this](int from, const std::string& header, std::unique_ptr<Incoming> data) {
        Arrived(from, 1, header, std::move(data));
      };
    });
  }

  void Start() {
    node_->Run([this] {
      for (int to = 0; to < count_; ++to) {
        if (to == node_->me) continue;
        for (int k = 0; k < 8; ++k) SendNext(to);
      }
    });
  }
  bool done() const {
    int all = 2 * messages_ * (count_ - 1);
    return sent_ == all && arrived_ == all && received_ + dropped_ == all;
  }
  int dropped() const { return dropped_; }

 private:
  struct Sending : Transfer {
    MixedLoad* load;
    int to;
    void TransferDone(bool ok) override {
      REQUIRE(ok, "seed ", load->seed_);
      ++load->sent_;
      MixedLoad* l = load;
      int t = to;
      delete this;
      l->later_.push_back([l, t] { l->SendNext(t); });
      l->PostLater();
    }
  };
  struct Receiving : Transfer {
    MixedLoad* load;
    std::unique_ptr<Incoming> data;
    Planned plan;
    std::vector<char> to;
    void TransferDone(bool ok) override {
      REQUIRE(ok, "seed ", load->seed_);
      REQUIRE(std::memcmp(to.data(), KnownBytes().data() + plan.offset, plan.bytes) == 0, "seed ",
              load->seed_);
      REQUIRE(to[plan.bytes] == 77);
      ++load->received_;
      delete this;
    }
  };

  void SendNext(int to) {
    int n = next_[to]++;
    if (n >= 2 * messages_) return;
    int channel = n % 2, index = n / 2;
    Planned plan = Plan(seed_, node_->me, to, channel, index);
    std::string header(plan.header_bytes, static_cast<char>(index));
    std::memcpy(header.data(), &index, sizeof index);
    auto* sending = new Sending;
    sending->load = this;
    sending->to = to;
    node_->network->Send(to, Network::kFree + channel, header.data(), header.size(),
                         KnownBytes().data() + plan.offset, plan.bytes, sending);
  }

  void Arrived(int from, int channel, const std::string& header, std::unique_ptr<Incoming> data) {
    int index = -1;
    std::memcpy(&index, header.data(), sizeof index);
    int due = expected_[{from, channel}]++;
    REQUIRE(index == due, index, " seed ", seed_);
    Planned plan = Plan(seed_, from, node_->me, channel, index);
    REQUIRE(header.size() == plan.header_bytes &&
            header.back() == (header.size() > 4 ? static_cast<char>(index) : header.back()));
    REQUIRE(data->bytes() == plan.bytes, "seed ", seed_);
    REQUIRE(plan.bytes != 0 || data->data() != nullptr);
    REQUIRE(data->data() == nullptr ||
            std::memcmp(data->data(), KnownBytes().data() + plan.offset, plan.bytes) == 0);
    ++arrived_;
    if (plan.treatment == 3) {
      ++dropped_;
      return;
    }
    auto* receiving = new Receiving;
    receiving->load = this;
    receiving->plan = plan;
    receiving->to.assign(plan.bytes + 1, 77);
    receiving->data = std::move(data);
    if (plan.treatment < 2) return receiving->data->Receive(receiving->to.data(), receiving);
    later_.push_front([receiving] { receiving->data->Receive(receiving->to.data(), receiving); });
    PostLater();
  }

  // What is done in a later turn of the network's thread, the last first.
  void PostLater() {
    if (posted_) return;
    posted_ = true;
    call_.what = [this] {
      posted_ = false;
      std::deque<std::function<void()>> later;
      later.swap(later_);
      for (auto& what : later) what();
    };
    node_->network->Post(&call_);
  }

  NetworkNode* node_;
  const int count_;
  const uint32_t seed_;
  const int messages_;  // on each channel to each other
  std::map<int, int> next_;
  std::map<std::pair<int, int>, int> expected_;
  std::atomic<int> sent_{0}, arrived_{0}, received_{0}, dropped_{0};
  std::deque<std::function<void()>> later_;
  bool posted_ = false;
  Call call_;
};

void RunMixedLoad(int count, int messages, uint32_t seed) {
  SCOPED_TRACE(Cat("seed ", seed));
  Processes processes(count, [=](int me, Line* line) {
    NetworkNode node(me, count, line);
    MixedLoad load(&node, count, seed, messages);
    line->Say("");
    for (int k = 0; k < count; ++k) line->Hear();  // all have their handlers
    load.Start();
    WaitUntil([&] { return load.done(); });
    REQUIRE(load.dropped() > 0);
    REQUIRE(node.failures().empty());
    REQUIRE(node.network->sent().messages == 2 * messages * (count - 1));
    line->Say("");
    for (int k = 0; k < count; ++k) line->Hear();
    node.End();
  });
  processes.Exchange();
  processes.Exchange();
  processes.Exchange();
  processes.ExpectAllWell();
}

TEST(NetworkTest, TwoProcessesMixedSizesInOrder) {
  for (uint32_t seed : {1, 2, 3}) RunMixedLoad(2, 200, seed);
}

TEST(NetworkTest, FourProcessesMixedSizesInOrder) { RunMixedLoad(4, 60, 4); }

TEST(NetworkTest, LargeDataLiesAtTheSenderUntilReceived) {
  Processes processes(2, [](int me, Line* line) {
    std::unique_ptr<Incoming> held;
    std::atomic<int> got{0};
    NetworkNode node(me, 2, line, {}, [&](int, const std::string& header, std::unique_ptr<Incoming> data) {
      if (header == "data") held = std::move(data);
      ++got;
    });
    if (me == 0) {
      Flag large;
      node.Send(1, "data", KnownBytes().data(), 4 * kMiB, &large);
      WaitUntil([&] { return got == 1; });  // the other has it, and sleeps on it
      Sleep(0.2);
      REQUIRE(!large.done());
      node.Send(1, "go");
      WaitUntil([&] { return large.done(); });
      REQUIRE(large.ok && large.ended == 1);
    } else {
      WaitUntil([&] { return got == 1; });
      node.Send(0, "have it");
      WaitUntil([&] { return got == 2; });
      std::vector<char> to(4 * kMiB);
      Flag received;
      node.Run([&] {
        REQUIRE(held->data() == nullptr && held->bytes() == to.size());
        held->Receive(to.data(), &received);
      });
      WaitUntil([&] { return received.done(); });
      REQUIRE(received.ok && std::memcmp(to.data(), KnownBytes().data(), to.size()) == 0);
      node.Run([&] { held.reset(); });
    }
    line->Say("");
    for (int k = 0; k < 2; ++k) line->Hear();
    node.End();
  });
  processes.Exchange();
  processes.Exchange();
  processes.ExpectAllWell();
}

TEST(NetworkTest, DroppedDataFreesItsSender) {
  Processes processes(2, [](int me, Line* line) {
    std::vector<std::unique_ptr<Incoming>> held;
    std::atomic<int> got{0};
    NetworkNode node(me, 2, line, {}, [&](int, const std::string& header, std::unique_ptr<Incoming> data) {
      if (header == "later") held.push_back(std::move(data));  // the other one is dropped right here
      ++got;
    });
    if (me == 0) {
      Flag at_once, later;
      node.Send(1, "at once", KnownBytes().data(), kMiB, &at_once);
      node.Send(1, "later", KnownBytes().data(), kMiB, &later);
      WaitUntil([&] { return at_once.done(); });
      REQUIRE(!later.done());
      node.Send(1, "drop it");
      WaitUntil([&] { return later.done(); });
      REQUIRE(at_once.ok && later.ok);
    } else {
      WaitUntil([&] { return got == 3; });
      node.Run([&] { held.clear(); });
    }
    line->Say("");
    for (int k = 0; k < 2; ++k) line->Hear();
    node.End();
  });
  processes.Exchange();
  processes.Exchange();
  processes.ExpectAllWell();
}

// Endless traffic with every other process, in both directions, large and small, until told to stop.
class Traffic {
 public:
  Traffic(NetworkNode* node, int count) : node_(node), count_(count), sending_(count), receiving_(count) {
    node->Run([this, node] {
      node->handler = [this](int from, const std::string&, std::unique_ptr<Incoming> data) {
        if (data->bytes() == 0) return;
        ++arrived_[from];
        auto* receiving = new Receiving(this, from, std::move(data));
        ++receiving_[from];
        receiving->data->Receive(receiving->to.data(), receiving);
      };
    });
  }
  void Start() {
    node_->Run([this] {
      for (int to = 0; to < count_; ++to) {
        if (to == node_->me) continue;
        for (int k = 0; k < 6; ++k) SendNext(to, k % 3 == 0 ? 8 * kMiB : k % 3 == 1 ? 300 * kKiB : 5 * kKiB);
      }
    });
  }
  void Stop() { stop_ = true; }
  bool NonePendingWith(int peer) const { return sending_[peer] == 0 && receiving_[peer] == 0; }
  int arrived(int peer) const { return arrived_[peer]; }
  int failed(int peer) const { return failed_[peer]; }

 private:
  struct Sending : Transfer {
    Traffic* traffic;
    int to;
    size_t bytes;
    void TransferDone(bool ok) override {
      Traffic* t = traffic;
      int peer = to;
      size_t again = bytes;
      delete this;
      --t->sending_[peer];
      if (!ok) ++t->failed_[peer];
      if (ok && !t->stop_) t->again_.push_back({peer, again});
      t->PostAgain();
    }
  };
  struct Receiving : Transfer {
    Receiving(Traffic* traffic, int from, std::unique_ptr<Incoming> incoming)
        : traffic(traffic), from(from), data(std::move(incoming)), to(data->bytes()) {}
    Traffic* traffic;
    int from;
    std::unique_ptr<Incoming> data;
    std::vector<char> to;
    void TransferDone(bool ok) override {
      REQUIRE(!ok || std::memcmp(to.data(), KnownBytes().data(), to.size()) == 0);
      --traffic->receiving_[from];
      if (!ok) ++traffic->failed_[from];
      delete this;
    }
  };
  void SendNext(int to, size_t bytes) {
    ++sending_[to];
    auto* sending = new Sending;
    sending->traffic = this;
    sending->to = to;
    sending->bytes = bytes;
    node_->network->Send(to, Network::kFree, "x", 1, KnownBytes().data(), bytes, sending);
  }
  void PostAgain() {
    if (posted_) return;
    posted_ = true;
    call_.what = [this] {
      posted_ = false;
      std::vector<std::pair<int, size_t>> again;
      again.swap(again_);
      for (auto [to, bytes] : again) SendNext(to, bytes);
    };
    node_->network->Post(&call_);
  }

  NetworkNode* node_;
  const int count_;
  std::vector<std::atomic<int>> sending_, receiving_;
  std::atomic<int> arrived_[8] = {}, failed_[8] = {};
  std::atomic<bool> stop_{false};
  std::vector<std::pair<int, size_t>> again_;
  bool posted_ = false;
  Call call_;
};

// What processes 0 and 2 of three do when 1 is lost: they are told once, and what is between them goes on.
void Survive(NetworkNode* node, Traffic* traffic, Line* line, const std::string& reason) {
  WaitUntil([&] { return !node->failures().empty(); });
  WaitUntil([&] { return traffic->NonePendingWith(1); });
  int other = 2 - node->me, before = traffic->arrived(other);
  WaitUntil([&] { return traffic->arrived(other) >= before + 3; });
  Flag late;
  node->Send(1, "late", KnownBytes().data(), kMiB, &late);
  REQUIRE(late.done() && !late.ok);
  REQUIRE(node->failures().size() == 1u);
  REQUIRE(node->failures()[0].peer == 1);
  REQUIRE(node->failures()[0].reason.find(reason) == 0, node->failures()[0].reason);
  line->Say("");
  line->Hear();
  traffic->Stop();
  WaitUntil([&] { return traffic->NonePendingWith(other); });
  node->Run([&] { node->network->ExpectEnd(other); });
  line->Say("");
  line->Hear();
  REQUIRE(node->failures().size() == 1u);
  node->End();
}

void ExpectSurvival(Processes* processes) {
  for (int phase = 0; phase < 2; ++phase) {
    for (int k : {0, 2}) processes->line(k).Hear();
    for (int k : {0, 2}) processes->line(k).Say("");
  }
  for (int k : {0, 2}) EXPECT_EQ(processes->Ended(k), 0);
}

// Process 1 of three is sent `signal` after a while of traffic; the others tell how they took it.
void LoseOneOfThree(int signal, double after, double peer_timeout, const std::string& reason) {
  SCOPED_TRACE(Cat("after ", after, " s"));
  Processes processes(3, [=](int me, Line* line) {
    NetworkOptions options;
    options.peer_timeout = peer_timeout;
    NetworkNode node(me, 3, line, options);
    Traffic traffic(&node, 3);
    line->Say("");
    for (int k = 0; k < 3; ++k) line->Hear();
    traffic.Start();
    if (me == 1) {
      for (;;) pause();
    }
    line->Say("running");
    line->Hear();  // the loss was done
    Survive(&node, &traffic, line, reason);
  });
  processes.Exchange();
  processes.Exchange();
  for (int k : {0, 2}) processes.line(k).Hear();
  Sleep(after);
  processes.Signal(1, signal);
  for (int k : {0, 2}) processes.line(k).Say("");
  ExpectSurvival(&processes);
}

TEST(NetworkTest, AKilledPeerEndsItsTransfersAndIsToldOnce) {
  uint32_t seed = 11;
  std::mt19937 random(seed);
  for (int k = 0; k < 8; ++k) {
    SCOPED_TRACE(Cat("seed ", seed, " round ", k));
    LoseOneOfThree(SIGKILL, (random() % 200) * 1e-3, 10, "its connection was closed");
    if (HasFailure()) return;
  }
}

// Connections are made while one of the two ends of them goes away, and the first messages wait for them.
TEST(NetworkTest, APeerThatDiesWhileConnectingIsLost) {
  uint32_t seed = 12;
  std::mt19937 random(seed);
  for (int round = 0; round < 80; ++round) {
    SCOPED_TRACE(Cat("seed ", seed, " round ", round));
    Processes processes(3, [=](int me, Line* line) {
      NetworkNode node(me, 3, line);
      Traffic traffic(&node, 3);
      traffic.Start();
      if (me == 1) {
        for (;;) pause();
      }
      Survive(&node, &traffic, line, "");
    });
    processes.Exchange();
    Sleep((random() % 800) * 1e-6);
    processes.Signal(1, SIGKILL);
    ExpectSurvival(&processes);
    if (HasFailure()) return;
  }
}

TEST(NetworkTest, ASilentPeerIsLostAfterItsTime) {
  LoseOneOfThree(SIGSTOP, 0.1, 3, "nothing heard of it for ");
  LoseOneOfThree(SIGSTOP, 0.35, 3, "nothing heard of it for ");
}

// A peer that has said nothing yet may be busy with its start, and has the time of that.
TEST(NetworkTest, APeerThatStartsLateIsNotLost) {
  Processes processes(2, [](int me, Line* line) {
    std::atomic<bool> heard{false};
    NetworkOptions options;
    options.peer_timeout = 3;  // 1.8 s of silence, of one that has spoken
    NetworkNode node(me, 2, line, options,
                     [&](int, const std::string&, std::unique_ptr<Incoming>) { heard = true; });
    node.Send(1 - me, "here");
    WaitUntil([&] { return heard || !node.failures().empty(); });
    REQUIRE(node.failures().empty(), node.failures()[0].reason);
    line->Say("");
    for (int k = 0; k < 2; ++k) line->Hear();
    node.End();
  });
  std::vector<std::string> addresses;
  for (int k : {0, 1}) addresses.push_back(processes.line(k).Hear());
  for (int k : {0, 1}) {
    if (k == 1) Sleep(3);  // it has an address, and nobody at it
    for (const std::string& address : addresses) processes.line(k).Say(address);
  }
  processes.Exchange();
  processes.ExpectAllWell();
}

// Who was stopped itself heard nothing of the others, and must not take that for their silence.
TEST(NetworkTest, AProcessThatWasStoppedDoesNotTakeOthersForSilent) {
  Processes processes(2, [](int me, Line* line) {
    NetworkOptions options;
    options.peer_timeout = me == 0 ? 1 : 600;  // process 1 is patient, and speaks seldom
    NetworkNode node(me, 2, line, options);
    line->Say("");
    for (int k = 0; k < 2; ++k) line->Hear();
    line->Say("running");
    line->Hear();  // it was stopped
    Sleep(0.3);
    REQUIRE(node.failures().empty(), node.failures()[0].reason);
    line->Say("");
    line->Hear();  // both have seen that
    node.End();
  });
  processes.Exchange();
  processes.Exchange();
  for (int k : {0, 1}) processes.line(k).Hear();
  processes.Signal(0, SIGSTOP);
  Sleep(1.2);
  processes.Signal(0, SIGCONT);
  for (int k : {0, 1}) processes.line(k).Say("");
  for (int k : {0, 1}) processes.line(k).Hear();
  for (int k : {0, 1}) processes.line(k).Say("");
  processes.ExpectAllWell();
}

TEST(NetworkTest, AnExpectedEndIsNoFailure) {
  for (bool expected : {true, false}) {
    Processes processes(2, [=](int me, Line* line) {
      NetworkNode node(me, 2, line);
      line->Say("");
      for (int k = 0; k < 2; ++k) line->Hear();
      if (me == 1) {
        line->Hear();
        return node.End();
      }
      if (expected) node.Run([&] { node.network->ExpectEnd(1); });
      line->Say("tell it to end");
      // It has ended once sends to it fail; large ones, as small ones may still fit into a buffer.
      for (bool ok = true; ok;) {
        Flag sent;
        node.Send(1, "x", KnownBytes().data(), kMiB, &sent);
        WaitUntil([&] { return sent.done(); });
        ok = sent.ok;
      }
      REQUIRE(node.failures().size() == (expected ? 0u : 1u));
      if (!expected)
        REQUIRE(node.failures()[0].reason == "its connection was closed", node.failures()[0].reason);
      node.End();
    });
    processes.Exchange();
    processes.Exchange();
    processes.line(0).Hear();
    processes.line(1).Say("");
    processes.ExpectAllWell();
  }
}

// It gave its address and died before anybody used it.
TEST(NetworkTest, APeerThatIsGoneAlreadyIsLost) {
  Processes processes(2, [](int me, Line* line) {
    if (me == 1) {
      line->Say(Network::Make({})->address());
      return;
    }
    Flag sent;
    NetworkNode node(me, 2, line);
    node.Send(1, "x", KnownBytes().data(), kMiB, &sent);
    WaitUntil([&] { return sent.done() && !node.failures().empty(); });
    REQUIRE(!sent.ok && node.failures().size() == 1u);
    line->Say(node.failures()[0].reason);
    node.End();
  });
  std::string address = processes.line(1).Hear();
  EXPECT_EQ(processes.Ended(1), 0);
  std::string mine = processes.line(0).Hear();
  processes.line(0).Say(mine);
  processes.line(0).Say(address);
  std::string reason = processes.line(0).Hear();
  EXPECT_TRUE(reason == "it cannot be reached" || reason == "its connection was closed") << reason;
  processes.ExpectAllWell();
}

// What waits for a connection that never opens has failed, too.
TEST(NetworkTest, APeerThatNeverSpeaksIsLost) {
  Processes processes(2, [](int me, Line* line) {
    if (me == 1) {
      const std::unique_ptr<Network> silent = Network::Make({});
      line->Say(silent->address());
      line->Hear();
      return;
    }
    NetworkOptions options;
    options.start_timeout = 0.5;
    Flag large, small;
    NetworkNode node(me, 2, line, options);
    node.Send(1, "x", KnownBytes().data(), kMiB, &large);
    node.Send(1, "y", KnownBytes().data(), 100, &small);
    WaitUntil([&] { return large.done() && small.done() && !node.failures().empty(); });
    REQUIRE(!large.ok && !small.ok && node.failures().size() == 1u);
    line->Say(node.failures()[0].reason);
    node.End();
  });
  const std::string address = processes.line(1).Hear(), mine = processes.line(0).Hear();
  processes.line(0).Say(mine);
  processes.line(0).Say(address);
  const std::string reason = processes.line(0).Hear();
  EXPECT_EQ(reason.rfind("nothing heard of it for ", 0), 0u) << reason;
  processes.line(1).Say("");
  processes.ExpectAllWell();
}

// A message just before the end arrives before the end is noticed, on whatever connection.
TEST(NetworkTest, LastWordsAreHeard) {
  for (int round = 0; round < 20; ++round) {
    Processes processes(2, [=](int me, Line* line) {
      std::atomic<bool> heard{false};
      NetworkNode node(me, 2, line);
      node.Run([&] {
        node.handler = [&](int, const std::string&, std::unique_ptr<Incoming>) {
          heard = true;
          node.network->ExpectEnd(1);
        };
      });
      line->Say("");
      for (int k = 0; k < 2; ++k) line->Hear();
      if (me == 1) {
        node.Run([&] { node.network->Send(0, Network::kFree, "farewell", 8, nullptr, 0, nullptr); });
        return node.End();
      }
      WaitUntil([&] { return heard || !node.failures().empty(); });
      Sleep(0.05);
      REQUIRE(node.failures().empty());
      node.End();
    });
    processes.Exchange();
    processes.Exchange();
    processes.ExpectAllWell();
    if (HasFailure()) return;
  }
}

// This process's connections, with the bytes that the other end has acknowledged.
std::map<int, uint64_t> BytesOfConnections() {
  std::map<int, uint64_t> bytes;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::atoi(entry.path().filename().c_str());
    tcp_info info = {};
    socklen_t size = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_state == 1)  // established
      bytes[fd] = info.tcpi_bytes_acked;
  }
  return bytes;
}

// What was said on the line for data, and is still to be read, is heard for a while; then the peer is lost
// all the same.
TEST(NetworkTest, ABrokenLineForHeartbeatsLeavesTimeForTheOther) {
  Processes processes(2, [](int me, Line* line) {
    std::atomic<int> heard{0};
    std::vector<char> to(4 * kMiB);
    Flag received;
    NetworkOptions options;
    options.peer_timeout = 40;  // a beat each 2 s; lost 4 s after the line has broken, or 24 s of silence
    NetworkNode node(me, 2, line, options, [&](int, const std::string&, std::unique_ptr<Incoming> data) {
      if (data->bytes() > 0) data->Receive(to.data(), &received);
      ++heard;
    });
    Flag sent;
    node.Send(1 - me, "large", to.data(), to.size(), &sent);
    WaitUntil([&] { return sent.done() && received.done(); });
    line->Say("both lines are open");
    for (int k = 0; k < 2; ++k) line->Hear();
    if (me == 1) {
      // The data has come; that it has is acknowledged a little later. Until then its line looks like the
      // other.
      std::map<int, uint64_t> bytes;
      const auto large = [&](const auto& line) { return line.second >= to.size(); };
      WaitUntil([&] {
        bytes = BytesOfConnections();
        return bytes.size() >= 2 && std::any_of(bytes.begin(), bytes.end(), large);
      });
      int broken = 0;
      for (const auto& line : bytes)
        if (!large(line)) broken += shutdown(line.first, SHUT_RDWR) == 0;
      REQUIRE(broken == 1 && bytes.size() == 2, broken, " of ", bytes.size(), " connections");
    }
    line->Say("one is broken");
    for (int k = 0; k < 2; ++k) line->Hear();
    Sleep(0.5);  // it has been noticed
    node.Send(1 - me, "small");
    WaitUntil([&] { return heard == 2 || !node.failures().empty(); });
    REQUIRE(heard == 2, node.failures()[0].reason);
    WaitUntil([&] { return !node.failures().empty(); });
    REQUIRE(node.failures()[0].reason == "its connection was closed", node.failures()[0].reason);
    line->Say("");
    for (int k = 0; k < 2; ++k) line->Hear();
    node.End();
  });
  for (int k = 0; k < 4; ++k) processes.Exchange();
  processes.ExpectAllWell();
}

// Two processes, the second of which is stopped for `seconds`; both can talk afterwards and mind nothing.
// `deaf`: the first does not listen for heartbeats.
void ExpectAStopIsForgiven(double peer_timeout, double seconds, bool deaf) {
  Processes processes(2, [&](int me, Line* line) {
    std::atomic<int> got{0};
    NetworkOptions options;
    options.peer_timeout = peer_timeout;
    NetworkNode node(me, 2, line, options,
                     [&](int, const std::string&, std::unique_ptr<Incoming>) { ++got; });
    if (deaf && me == 0) node.Run([&] { node.network->StopHeartbeats(); });
    line->Say("ready");
    line->Hear();
    node.Send(1 - me, "still here");
    WaitUntil([&] { return got == 1 || !node.failures().empty(); });
    if (deaf) Sleep(0.5);
    REQUIRE(node.failures().empty(), node.failures()[0].reason);
    line->Say("");
    for (int k = 0; k < 2; ++k) line->Hear();
    node.End();
  });
  processes.Exchange();
  for (int k : {0, 1}) processes.line(k).Hear();
  processes.Signal(1, SIGSTOP);
  Sleep(seconds);
  processes.Signal(1, SIGCONT);
  Sleep(0.3);
  for (int k : {0, 1}) processes.line(k).Say("");
  processes.Exchange();
  processes.ExpectAllWell();
}

// Who was stopped did not listen, so it must not say that others were silent (for more than 1.2 s).
TEST(NetworkTest, OnesOwnStopIsNotTheSilenceOfOthers) { ExpectAStopIsForgiven(2, 2, true); }

// Shorter than the limit of 2.4 s: nobody minds.
TEST(NetworkTest, AShortStopIsForgiven) { ExpectAStopIsForgiven(4, 1.2, false); }

// One whose every turn is long, as on a machine with far too much to do, still notices who is silent.
TEST(NetworkTest, LongTurnsDoNotHideSilence) {
  Processes processes(2, [](int me, Line* line) {
    NetworkOptions options;
    options.peer_timeout = 2;  // a beat each 0.1 s
    std::atomic<bool> heard{false};
    NetworkNode node(me, 2, line, options,
                     [&](int, const std::string&, std::unique_ptr<Incoming>) { heard = true; });
    node.Send(1 - me, "hello");
    WaitUntil([&] { return heard.load(); });
    line->Say("");
    for (int k = 0; k < 2; ++k) line->Hear();
    line->Say("running");
    line->Hear();  // the other was stopped
    while (node.failures().empty()) node.Run([] { Sleep(0.5); });
    const std::string reason = node.failures()[0].reason;
    REQUIRE(reason.find("nothing heard of it for ") == 0, reason);
    line->Say("");
    line->Hear();
    node.End();
  });
  processes.Exchange();
  processes.Exchange();
  for (int k : {0, 1}) processes.line(k).Hear();
  processes.Signal(1, SIGSTOP);
  processes.line(0).Say("");
  processes.line(0).Hear();
  processes.line(0).Say("");
  EXPECT_EQ(processes.Ended(0), 0);
}

// A large message on a slow line takes longer than the silence that counts as death.
TEST(NetworkTest, ASlowLineIsNotSilence) {
  Processes probe(1, [](int, Line*) {
    if (unshare(CLONE_NEWNET) != 0 || std::system("ip link set lo up && tc qdisc add dev lo root tbf rate "
                                                  "80mbit burst 256kb latency 100ms >/dev/null 2>&1") != 0)
      _exit(3);
  });
  int ended = probe.Ended(0);
  if (ended == 3) GTEST_SKIP() << "no network namespace or traffic shaping for this user";
  ASSERT_EQ(ended, 0);
  Processes namespaces(1, [](int, Line*) {
    if (unshare(CLONE_NEWNET) != 0 ||
        std::system(
            "ip link set lo up && tc qdisc add dev lo root tbf rate 80mbit burst 256kb latency 100ms") != 0)
      _exit(3);
    Processes processes(2, [](int me, Line* line) {
      std::vector<char> to(32 * kMiB);
      std::unique_ptr<Incoming> held;
      Flag received;
      NetworkOptions options;
      options.peer_timeout = 2;  // 1.2 s of silence; the message takes 3.4 s
      NetworkNode node(me, 2, line, options, [&](int, const std::string&, std::unique_ptr<Incoming> data) {
        held = std::move(data);
        held->Receive(to.data(), &received);
      });
      Flag sent;
      int64_t start = ClockNow();
      if (me == 0) node.Send(1, "large", to.data(), to.size(), &sent);
      WaitUntil([&] { return sent.done() || received.done() || !node.failures().empty(); });
      REQUIRE(node.failures().empty(), node.failures()[0].reason);
      REQUIRE(ClockNow() - start > 2'000'000'000, "the line was not slow");
      line->Say("");
      for (int k = 0; k < 2; ++k) line->Hear();
      node.Run([&] { held.reset(); });
      node.End();
    });
    processes.Exchange();
    processes.Exchange();
    for (int k : {0, 1}) REQUIRE(processes.Ended(k) == 0);
  });
  namespaces.ExpectAllWell();
}

TEST(NetworkTest, AnUnknownDeviceIsNamed) {
  Processes processes(1, [](int, Line*) {
    NetworkOptions options;
    options.loopback_only = false;
    options.devices = "lo,eth77";
    std::string message;
    try {
      Network::Make(options);
    } catch (const Error& error) {
      message = error.what();
    }
    REQUIRE(message.find("network device 'eth77' does not exist on this host, which has ") == 0, message);
    REQUIRE(message.find("lo") != std::string::npos);
  });
  processes.ExpectAllWell();
}

size_t Entries(const char* folder) {
  size_t n = 0;
  DIR* dir = opendir(folder);
  while (readdir(dir) != nullptr) ++n;
  closedir(dir);
  return n;
}

// Inodes of this process's sockets.
std::set<std::string> Sockets() {
  std::set<std::string> inodes;
  DIR* dir = opendir("/proc/self/fd");
  while (dirent* entry = readdir(dir)) {
    char target[64] = {};
    if (readlink(Cat("/proc/self/fd/", entry->d_name).c_str(), target, sizeof target - 1) < 0) continue;
    std::string name = target;
    if (name.find("socket:[") == 0) inodes.insert(name.substr(8, name.size() - 9));
  }
  closedir(dir);
  return inodes;
}

// The local addresses that sockets of this process are bound to, as /proc writes them.
std::vector<std::string> BoundTo() {
  std::set<std::string> mine = Sockets();
  std::vector<std::string> bound;
  for (const char* table :
       {"/proc/self/net/tcp", "/proc/self/net/tcp6", "/proc/self/net/udp", "/proc/self/net/udp6"}) {
    std::ifstream in(table);
    std::string line;
    std::getline(in, line);
    while (std::getline(in, line)) {
      std::istringstream words(line);
      std::vector<std::string> word(10);
      for (std::string& w : word) words >> w;
      if (mine.count(word[9]) != 0) bound.push_back(word[1].substr(0, word[1].find(':')));
    }
  }
  return bound;
}

TEST(NetworkTest, OnlyTheLoopbackIsBound) {
  Processes processes(2, [](int me, Line* line) {
    NetworkNode node(me, 2, line);
    line->Say("");
    for (int k = 0; k < 2; ++k) line->Hear();
    std::vector<std::string> bound = BoundTo();
    REQUIRE(!bound.empty());
    for (const std::string& address : bound) REQUIRE(address == "0100007F", address);
    line->Say("");
    for (int k = 0; k < 2; ++k) line->Hear();
    node.End();
  });
  for (int k = 0; k < 3; ++k) processes.Exchange();
  processes.ExpectAllWell();
}

TEST(NetworkTest, NothingIsLeftBehind) {
  constexpr int kRounds = 3;
  Processes processes(2, [](int me, Line* line) {
    const size_t threads = CountLastingThreads(), fds = Entries("/proc/self/fd");
    for (int round = 0; round < kRounds; ++round) {
      {
        NetworkNode node(me, 2, line);
        Traffic traffic(&node, 2);
        line->Say("");
        for (int k = 0; k < 2; ++k) line->Hear();
        traffic.Start();
        Sleep(0.05);
        REQUIRE(CountThreads() > threads);
        traffic.Stop();
        WaitUntil([&] { return traffic.NonePendingWith(1 - me); });
        node.Run([&] { node.network->ExpectEnd(1 - me); });
        line->Say("");
        for (int k = 0; k < 2; ++k) line->Hear();
        node.End();
      }
      REQUIRE(Entries("/proc/self/fd") == fds, Entries("/proc/self/fd"), " of ", fds, " round ", round);
      WaitUntil([&] { return CountThreads() <= threads; });
    }
  });
  for (int k = 0; k < 3 * kRounds; ++k) processes.Exchange();
  processes.ExpectAllWell();
}

// The network ends while transfers are under way: they are told, and so is the peer.
TEST(NetworkTest, TheEndTellsWhatWasUnderWay) {
  Processes processes(2, [](int me, Line* line) {
    std::unique_ptr<Incoming> held;
    std::atomic<int> got{0};
    NetworkNode node(me, 2, line, {}, [&](int, const std::string&, std::unique_ptr<Incoming> data) {
      held = std::move(data);
      ++got;
    });
    Flag sent;
    if (me == 0) {
      node.Send(1, "nobody receives this", KnownBytes().data(), kMiB, &sent);
      line->Hear();
      node.End();
      REQUIRE(sent.ended == 1 && !sent.ok);
    } else {
      WaitUntil([&] { return got == 1; });
      line->Say("");
      WaitUntil([&] { return !node.failures().empty(); });
      std::vector<char> to(kMiB);
      Flag received;
      node.Run([&] { held->Receive(to.data(), &received); });
      WaitUntil([&] { return received.done(); });
      REQUIRE(!received.ok);
      node.End();
      held.reset();  // its network is gone
    }
  });
  processes.Exchange();
  processes.line(1).Hear();
  processes.line(0).Say("");
  processes.ExpectAllWell();
}

TEST(NetworkTest, ClocksOfOneHostAgree) {
  Processes processes(2, [](int me, Line* line) {
    NetworkNode node(me, 2, line);
    WaitUntil([&] { return node.network->OffsetTo(1 - me).round_trip_ns != 0; });
    Sleep(0.3);
    Network::ClockOffset offset = node.network->OffsetTo(1 - me);
    REQUIRE(offset.round_trip_ns > 0);
    REQUIRE(std::abs(offset.offset_ns) <= offset.round_trip_ns, offset.offset_ns, " of ",
            offset.round_trip_ns);
    REQUIRE(node.network->OffsetTo(me).offset_ns == 0 && node.network->OffsetTo(me).round_trip_ns == 0);
    line->Say("");
    for (int k = 0; k < 2; ++k) line->Hear();
    node.End();
  });
  processes.Exchange();
  processes.Exchange();
  processes.ExpectAllWell();
}

TEST(PeerClockTest, ShortAndFreshRoundTripsCount) {
  PeerClock clock;
  constexpr int64_t kFast = 20'000, kSlow = 2'000'000, kAhead = 5'000'000'000, kSecondNs = 1'000'000'000;
  // The way there takes much longer than the way back: half of the difference is what one gets wrong.
  clock.Add(0, kAhead + kSlow - 10, kSlow);
  EXPECT_EQ(clock.Best(kSlow).offset_ns, kAhead + kSlow / 2 - 10);
  clock.Add(kSlow, kAhead + kSlow + kFast / 2, kSlow + kFast);
  EXPECT_EQ(clock.Best(kSlow + kFast).offset_ns, kAhead);
  EXPECT_EQ(clock.Best(kSlow + kFast).round_trip_ns, kFast);
  // The peer's clock has moved: after a minute the old sample is worth less than a fresh one that took
  // longer.
  clock.Add(60 * kSecondNs, kAhead + 60 * kSecondNs + 700'000 + 500'000, 60 * kSecondNs + 1'000'000);
  EXPECT_EQ(clock.Best(60 * kSecondNs + 1'000'000).offset_ns, kAhead + 700'000);
}

TEST(InOrderTest, EarlyOnesWaitAndNumbersWrapAround) {
  std::mt19937 random(5);
  InOrder<int> order;
  for (uint32_t start = 0; start < 1000; start += 10) {
    std::vector<uint32_t> numbers;
    for (uint32_t k = 0; k < 10; ++k) numbers.push_back(start + k);
    std::shuffle(numbers.begin(), numbers.end(), random);
    std::vector<uint32_t> seen;
    for (uint32_t number : numbers) {
      if (!order.Due(number)) {
        order.Hold(number, static_cast<int>(number));
        continue;
      }
      order.Advance();
      seen.push_back(number);
      for (int early; order.Take(&early);) {
        order.Advance();
        seen.push_back(static_cast<uint32_t>(early));
      }
    }
    EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
    EXPECT_EQ(seen.size(), 10u);
    EXPECT_EQ(order.held(), 0u);
  }
}

// Figures. Process 0 asks, process 1 answers from Deliver, both on their network threads.
struct Figures {
  Figures(int me, Line* line, int spin_us) : buffer(64 * kMiB) {
    NetworkOptions options;
    options.spin_us = spin_us;
    node = std::make_unique<NetworkNode>(me, 2, line, options);
    receiving.figures = this;
    sending.figures = this;
    me_ = me;
    node->Run([this] {  // the network's thread sees all of the above, then
      node->handler = [this](int from, const std::string& header, std::unique_ptr<Incoming> data) {
        if (data->bytes() != 0) {
          held = std::move(data);
          held->Receive(buffer.data(), &receiving);
        } else {
          Next();
        }
      };
    });
  }
  struct Receiving : Transfer {
    Figures* figures;
    void TransferDone(bool ok) override {
      REQUIRE(ok);
      figures->held.reset();
      figures->Next();
    }
  };
  struct Sending : Transfer {
    Figures* figures;
    void TransferDone(bool ok) override { REQUIRE(ok); }
  };
  // Answers, or counts an answer and asks again.
  void Next() {
    if (me_ == 1) return node->network->Send(0, Network::kFree, "", 0, nullptr, 0, nullptr);
    if (--left > 0) return Ask();
    took = ClockNow() - start;
  }
  void Ask() { node->network->Send(1, Network::kFree, "", 0, buffer.data(), bytes, &sending); }
  double Seconds(size_t size, int times) {
    bytes = size;
    for (int warm : {std::min(times, 20), times}) {
      left = warm;
      took = 0;
      start = ClockNow();
      node->Run([&] { Ask(); });
      WaitUntil([&] { return took != 0; });
    }
    return static_cast<double>(took) / 1e9;
  }
  std::vector<char> buffer;
  std::unique_ptr<Incoming> held;
  Receiving receiving;
  Sending sending;
  size_t bytes = 0;
  int left = 0, me_ = 0;
  int64_t start = 0;
  std::atomic<int64_t> took{0};
  std::unique_ptr<NetworkNode> node;
};

// Prints what messages of many sizes take: `most` of each, but at least two, and of large ones no more
// than `all_bytes` together. A message of no bytes is answered so many `times`.
void PrintFigures(int times, int most, size_t all_bytes) {
  for (int spin_us : {1000, 20, 0}) {
    Processes processes(2, [=](int me, Line* line) {
      Figures figures(me, line, spin_us);
      line->Say("");
      for (int k = 0; k < 2; ++k) line->Hear();
      if (me == 0) {
        std::printf("spin %4d us: one way %.2f us", spin_us, figures.Seconds(0, times) / times / 2 * 1e6);
        if (spin_us == 20) {
          for (size_t bytes : {1 * kKiB, 4 * kKiB, 8 * kKiB, 12 * kKiB, 16 * kKiB, 32 * kKiB, 33 * kKiB,
                               64 * kKiB, 256 * kKiB, 512 * kKiB, kMiB, 8 * kMiB, 64 * kMiB}) {
            const int each = static_cast<int>(std::clamp<size_t>(all_bytes / bytes, 2, most));
            double seconds = figures.Seconds(bytes, each) / each;
            std::printf("\n  %8zu KiB and its answer: %9.1f us, %.2f GB/s", bytes / kKiB, seconds * 1e6,
                        bytes / seconds / 1e9);
          }
        }
        std::printf("\n");
        std::fflush(stdout);
      }
      line->Say("");
      for (int k = 0; k < 2; ++k) line->Hear();
      figures.node->End();
    });
    for (int k = 0; k < 3; ++k) processes.Exchange();
    processes.ExpectAllWell();
  }
}

TEST(NetworkTest, MessagesOfEverySizeAreAnswered) { PrintFigures(500, 50, 32 * kMiB); }
TEST(LongNetworkTest, Figures) { PrintFigures(20000, 4000, 1024 * kMiB); }

}  // namespace
}  // namespace oneflow_like
