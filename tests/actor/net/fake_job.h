// A job of several "processes" inside one: each has its own network thread, whose messages, pulls and
// completions happen in any order that actor/net/ucx/network.h allows, drawn from a seed; hosts share memory
// as far as their keys say.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actor/net/talk/job.h"
#include "tests/sbp/random_boxing.h"

namespace oneflow_like {

class FakeJob;

class FakeNetwork final : public Network {
 public:
  FakeNetwork(int me, unsigned seed) : me_(me), random_(seed) {
    for (int& weight : weights_) weight = Draw(random_, 2) == 0 ? 1 : 20;
    eager_percent_ = std::array<int, 4>{0, 30, 70, 100}[Draw(random_, 4)];
  }
  ~FakeNetwork() override { CHECK(!thread_.joinable()); }

  void Start(std::vector<FakeNetwork*> all) {
    all_ = std::move(all);
    lost_.resize(all_.size());
    sent_to_ = std::vector<std::atomic<int64_t>>(all_.size());
    thread_ = std::thread([this] { Loop(); });
  }
  // Once nothing is posted any more. Others may still acknowledge to this one until all have stopped.
  void Stop() {
    Post(&stop_);
    thread_.join();
  }
  // What came after the thread ended.
  void Drain() {
    while (Message* message = mailbox_.Take()) message->Receive();
  }
  // Packets and transfers of this process that are not at their end.
  int in_flight() const { return in_flight_.load(); }
  // Sends and receives of this process that have not been told of their end.
  int transfers() const { return transfers_.load(); }
  // The network's thread: `peer` is lost. Its own process loses everybody.
  void Lose(int peer) {
    for (size_t p = 0; p < all_.size(); ++p) {
      if (static_cast<int>(p) == me_ || (peer != me_ && peer != static_cast<int>(p))) continue;
      lost_[p] = true;
      arrived_[p].clear();
      for (size_t i = 0; i < pulls_.size();) {
        if (pulls_[i].from != static_cast<int>(p)) {
          ++i;
          continue;
        }
        Pull pull = pulls_[i];
        pulls_.erase(pulls_.begin() + static_cast<long>(i));
        End(pull, false);
        i = 0;  // whoever was told may have done anything
      }
    }
  }

  std::string address() const override { return ""; }
  void SetChannel(int id, Channel* channel) override { channels_.at(id) = channel; }
  void SetFailureListener(std::function<void(const Failure&)>) override {}
  void Connect(int, const std::vector<PeerInfo>&) override {}
  void Post(Message* message) override { mailbox_.Post(message); }
  void ExpectEnd(int) override {}
  void StopHeartbeats() override {}
  ClockOffset OffsetTo(int) const override { return {}; }
  Counts sent() const override { return {messages_.load(), bytes_.load()}; }
  int64_t sent_to(int peer) const { return sent_to_[peer]; }  // messages

  void Send(int to, int channel, const void* header, size_t header_bytes, const void* data, size_t bytes,
            Transfer* done) override {
    CheckThread();
    CHECK_NE(to, me_);
    CHECK_LE(header_bytes, size_t{1024});
    CHECK(bytes == 0 || done != nullptr);
    ++messages_;
    ++sent_to_[to];
    bytes_ += static_cast<int64_t>(bytes);
    if (lost_[to]) {
      if (done != nullptr) done->TransferDone(false);
      return;
    }
    ++in_flight_;
    auto* packet = new Packet;
    packet->to = all_[to];
    packet->from = me_;
    packet->channel = channel;
    packet->header.assign(static_cast<const char*>(header), static_cast<const char*>(header) + header_bytes);
    packet->bytes = bytes;
    const bool eager = bytes == 0 || Draw(random_, 100) < eager_percent_;
    if (eager) {
      packet->data.assign((bytes + 7) / 8, 0);
      if (bytes > 0) memcpy(packet->data.data(), data, bytes);
    } else {
      packet->at = data;
      packet->done = done;
      ++in_flight_;
      ++transfers_;
    }
    all_[to]->Post(packet);
    if (!eager || done == nullptr) return;
    if (Draw(random_, 2) == 0) {
      done->TransferDone(true);
    } else {
      ++transfers_;
      completions_.push_back(done);
    }
  }

 private:
  struct Packet : Message {
    FakeNetwork* to;
    int from, channel;
    std::vector<char> header;
    std::vector<int64_t> data;  // eager
    size_t bytes = 0;
    const void* at = nullptr;  // at the sender
    Transfer* done = nullptr;  // the sender's
    void Receive() override {
      if (to->lost_[from]) {
        if (at != nullptr) to->Acknowledge(from, done, false);
        --to->all_[from]->in_flight_;
        delete this;
        return;
      }
      to->arrived_[from].emplace_back(this);
    }
    ~Packet() override {
      if (at != nullptr && held) to->Acknowledge(from, done, false);
      if (held) --to->all_[from]->in_flight_;
    }
    bool held = false;  // among those that arrived
  };
  struct Acknowledgement : Message {
    FakeNetwork* to;
    Transfer* done;
    bool ok;
    void Receive() override {
      --to->in_flight_;
      --to->transfers_;
      done->TransferDone(ok);
      delete this;
    }
  };
  struct Pull {
    int from;
    void* to;
    const void* at;
    size_t bytes;
    Transfer *done, *sender_done;
    bool* pulling;
  };

  class FakeIncoming final : public Incoming {
   public:
    FakeIncoming(FakeNetwork* network, Packet* p)
        : network_(network),
          from_(p->from),
          bytes_(p->bytes),
          data_(std::move(p->data)),
          at_(p->at),
          sender_done_(p->done) {}
    ~FakeIncoming() override {
      network_->CheckThread();
      CHECK(!pulling_) << "dropped while it is received";
      if (at_ != nullptr) network_->Acknowledge(from_, sender_done_, true);
    }
    size_t bytes() const override { return bytes_; }
    const void* data() const override {
      return bytes_ == 0 ? static_cast<const void*>(this) : at_ != nullptr ? nullptr : data_.data();
    }
    void Receive(void* to, Transfer* done) override {
      network_->CheckThread();
      CHECK(!received_);
      received_ = true;
      if (at_ == nullptr) {
        memcpy(to, data_.data(), bytes_);
        done->TransferDone(true);
        return;
      }
      const void* at = at_;
      at_ = nullptr;
      pulling_ = true;
      Pull pull{from_, to, at, bytes_, done, sender_done_, &pulling_};
      ++network_->transfers_;
      if (network_->lost_[from_]) return network_->End(pull, false);
      network_->pulls_.push_back(pull);
    }

   private:
    FakeNetwork* const network_;
    const int from_;
    const size_t bytes_;
    std::vector<int64_t> data_;
    const void* at_;
    Transfer* sender_done_;
    bool received_ = false, pulling_ = false;
  };

  void CheckThread() const { CHECK(std::this_thread::get_id() == thread_.get_id()); }
  void Acknowledge(int to, Transfer* done, bool ok) {
    auto* message = new Acknowledgement;
    message->to = all_[to];
    message->done = done;
    message->ok = ok;
    all_[to]->Post(message);
  }
  void End(const Pull& pull, bool ok) {
    if (ok) memcpy(pull.to, pull.at, pull.bytes);
    Acknowledge(pull.from, pull.sender_done, ok);
    *pull.pulling = false;
    --transfers_;
    pull.done->TransferDone(ok);
  }

  void Loop() {
    for (;;) {
      const bool pending = Pending() > 0;
      Message* message = pending && Draw(random_, 3) == 0 ? nullptr : mailbox_.Take();
      if (message != nullptr) {
        message->Receive();
      } else if (pending) {
        Step();
      } else if (stop_.received) {
        return;
      } else {
        mailbox_.Wait(std::chrono::nanoseconds(0));
      }
    }
  }
  size_t Pending() const {
    size_t pending = completions_.size() + pulls_.size();
    for (const auto& [from, packets] : arrived_) pending += packets.size();
    return pending;
  }

  // One of what may happen next.
  void Step() {
    if (Draw(random_, 64) == 0) std::this_thread::sleep_for(std::chrono::microseconds(Draw(random_, 200)));
    std::vector<int> choices;  // -2: a pull, -1: a completion, else a message from there
    if (!pulls_.empty()) choices.insert(choices.end(), weights_[0], -2);
    if (!completions_.empty()) choices.insert(choices.end(), weights_[1], -1);
    for (const auto& [from, packets] : arrived_) {
      if (!packets.empty()) choices.insert(choices.end(), weights_[2 + from % 2], from);
    }
    const int choice = choices[Draw(random_, static_cast<int>(choices.size()))];
    if (choice == -2) {
      const auto at = pulls_.begin() + Draw(random_, static_cast<int>(pulls_.size()));
      const Pull pull = *at;
      pulls_.erase(at);
      End(pull, true);
    } else if (choice == -1) {
      const auto at = completions_.begin() + Draw(random_, static_cast<int>(completions_.size()));
      Transfer* done = *at;
      completions_.erase(at);
      --transfers_;
      done->TransferDone(true);
    } else {
      std::unique_ptr<Packet> packet = std::move(arrived_[choice].front().packet);
      arrived_[choice].pop_front();
      packet->held = false;
      --all_[packet->from]->in_flight_;
      if (channels_[packet->channel] == nullptr) {
        if (packet->at != nullptr) Acknowledge(packet->from, packet->done, true);
        return;
      }
      channels_[packet->channel]->Deliver(packet->from, packet->header.data(), packet->header.size(),
                                          std::make_unique<FakeIncoming>(this, packet.get()));
    }
  }

  struct Held {
    explicit Held(Packet* p) : packet(p) { p->held = true; }
    std::unique_ptr<Packet> packet;
  };
  struct StopMessage : Message {
    bool received = false;
    void Receive() override { received = true; }
  };

  const int me_;
  Random random_;
  std::array<int, 4> weights_;
  int eager_percent_;
  std::vector<FakeNetwork*> all_;
  std::array<Channel*, kChannels> channels_{};
  Mailbox mailbox_;
  std::map<int, std::deque<Held>> arrived_;  // by sender
  std::vector<Pull> pulls_;
  std::vector<Transfer*> completions_;
  std::vector<bool> lost_;
  std::atomic<int> in_flight_{0}, transfers_{0};
  std::atomic<int64_t> messages_{0}, bytes_{0};
  std::vector<std::atomic<int64_t>> sent_to_;
  StopMessage stop_;
  std::thread thread_;
};

// One block for each process, from which pieces are cut and never given back.
class FakeRegion final : public SharedRegion {
 public:
  static constexpr size_t kCapacity = 4 << 20;
  FakeRegion(int me, std::vector<char*> bases) : me_(me), bases_(std::move(bases)) {}

  std::string name() const override { return ""; }
  void Exchange(int, const std::vector<PeerInfo>&, double) override {}
  char* base(int peer) const override { return bases_[peer]; }
  size_t capacity() const override { return kCapacity; }
  std::unique_ptr<Memory> Allocate(size_t bytes, const std::string&) override {
    std::lock_guard<std::mutex> lock(mutex_);  // the user's thread, once for each piece
    struct Block : Memory {
      void* at;
      size_t size;
      void* data() override { return at; }
      size_t bytes() const override { return size; }
    };
    auto block = std::make_unique<Block>();
    block->at = bases_[me_] + used_;
    block->size = bytes;
    used_ += (bytes + 63) / 64 * 64;
    CHECK_LE(used_, kCapacity);
    return block;
  }

 private:
  const int me_;
  const std::vector<char*> bases_;  // nullptr: on another host
  std::mutex mutex_;
  size_t used_ = 0;
};

// Where the users' threads of all processes meet.
class Meeting {
 public:
  explicit Meeting(int processes) : processes_(processes) {}
  std::vector<std::string> Gather(int me, const std::string& what, const std::string& mine) {
    std::unique_lock<std::mutex> lock(mutex_);  // the users' threads, a few times
    const int round = rounds_[me]++;
    Round& r = table_[round];
    if (r.what.empty()) r.what = what;
    CHECK_EQ(r.what, what);
    r.texts.resize(processes_);
    r.texts[me] = mine;
    if (++r.come == processes_) changed_.notify_all();
    changed_.wait(lock, [&] { return r.come == processes_; });
    return r.texts;
  }

 private:
  struct Round {
    std::string what;
    std::vector<std::string> texts;
    int come = 0;
  };
  const int processes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, int> rounds_;
  std::map<int, Round> table_;
};

class FakeJob final : public Job {
 public:
  FakeJob(int me, const std::vector<PeerInfo>& peers, int ranks, Meeting* meeting, FakeNetwork* network,
          std::unique_ptr<FakeRegion> region, unsigned seed)
      : peers_(peers),
        ranks_(ranks),
        meeting_(meeting),
        network_(network),
        region_(std::move(region)),
        random_(seed) {
    identity_.process = me;
    identity_.processes = static_cast<int>(peers.size());
  }
  const ProcessIdentity& identity() const override { return identity_; }
  const std::vector<PeerInfo>& peers() const override { return peers_; }
  Network* network() override { return network_; }
  SharedRegion* region() override { return region_.get(); }
  std::string Describe(int process) const override { return Cat("process ", process); }
  void SetWorld(int) override {}
  int ranks_per_process() const override { return ranks_; }
  std::vector<std::string> AllGather(const std::string& what, const std::string& mine) override {
    std::vector<std::string> all = meeting_->Gather(process(), what, mine);
    // Somebody goes on long before others do.
    if (Draw(random_, 2) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(Draw(random_, 8)));
    return all;
  }
  Peers* peers_of_runtimes() override { return nullptr; }
  void Fail(const std::string&) override {}
  std::string failure() const override { return ""; }
  void AddAwaited(const void*, std::function<std::string()> awaited) override {
    std::lock_guard<std::mutex> lock(mutex_);
    awaited_ = std::move(awaited);
  }
  void RemoveAwaited(const void*) override {
    std::lock_guard<std::mutex> lock(mutex_);
    awaited_ = nullptr;
  }
  void Finish(bool) override {}
  void AddFailureListener(const void*, std::function<void(const std::string&)> listener) override {
    std::lock_guard<std::mutex> lock(mutex_);
    listener_ = std::move(listener);
  }
  void RemoveFailureListener(const void*) override {
    std::lock_guard<std::mutex> lock(mutex_);
    listener_ = nullptr;
  }
  void SetDirectOutput(std::function<void(const std::string&)>) override {}

  // The network's thread.
  std::string awaited() {
    std::lock_guard<std::mutex> lock(mutex_);
    return awaited_ == nullptr ? "" : awaited_();
  }
  int transfers() const { return network_->transfers(); }  // any thread
  bool has_listener() {                                    // any thread
    std::lock_guard<std::mutex> lock(mutex_);
    return listener_ != nullptr;
  }
  void Lost(int peer, bool told_first) {
    if (told_first) Tell();
    network_->Lose(peer);
    if (!told_first) Tell();
  }

 private:
  void Tell() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (listener_ != nullptr) listener_("lost");
  }

  ProcessIdentity identity_;
  const std::vector<PeerInfo> peers_;
  const int ranks_;
  Meeting* const meeting_;
  FakeNetwork* const network_;
  const std::unique_ptr<FakeRegion> region_;
  Random random_;
  std::mutex mutex_;  // whoever removes a callback waits for a call that is under way
  std::function<std::string()> awaited_;
  std::function<void(const std::string&)> listener_;
};

// The processes of a job: which host each is on; no host: no shared memory.
class FakeCluster {
 public:
  FakeCluster(const std::vector<int>& host, bool shared_memory, int ranks_per_process, unsigned seed)
      : meeting_(static_cast<int>(host.size())) {
    const int processes = static_cast<int>(host.size());
    std::vector<PeerInfo> peers(processes);
    std::vector<FakeNetwork*> networks;
    for (int p = 0; p < processes; ++p) {
      peers[p].process = p;
      peers[p].host_key = Cat("host ", host[p]);
      memory_.emplace_back(FakeRegion::kCapacity);
      networks_.push_back(std::make_unique<FakeNetwork>(p, seed * 31 + static_cast<unsigned>(p)));
      networks.push_back(networks_.back().get());
    }
    for (int p = 0; p < processes; ++p) {
      std::unique_ptr<FakeRegion> region;
      if (shared_memory) {
        std::vector<char*> bases;
        for (int q = 0; q < processes; ++q) bases.push_back(host[q] == host[p] ? memory_[q].data() : nullptr);
        region = std::make_unique<FakeRegion>(p, bases);
      }
      jobs_.push_back(std::make_unique<FakeJob>(p, peers, ranks_per_process, &meeting_, networks[p],
                                                std::move(region), seed * 17 + static_cast<unsigned>(p)));
    }
    for (FakeNetwork* network : networks) network->Start(networks);
  }
  ~FakeCluster() {
    for (auto& network : networks_) network->Stop();
    for (auto& network : networks_) network->Drain();
  }

  int processes() const { return static_cast<int>(jobs_.size()); }
  FakeJob* job(int process) { return jobs_[process].get(); }
  FakeNetwork* network(int process) { return networks_[process].get(); }
  // Runs on a process's network thread and waits for it.
  void On(int process, const std::function<void()>& what) {
    struct Run : Message {
      std::function<void()> what;
      Completion done;
      void Receive() override {
        what();
        done.Signal();
      }
    } run;
    run.what = what;
    network(process)->Post(&run);
    run.done.Wait();
  }
  // Every packet and transfer has ended (waits a little for those on their way).
  bool Settled() {
    for (int i = 0; i < 5000; ++i) {
      int left = 0;
      for (auto& network : networks_) left += network->in_flight();
      if (left == 0) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }
  int64_t messages() const {
    int64_t messages = 0;
    for (const auto& network : networks_) messages += network->sent().messages;
    return messages;
  }
  int64_t bytes() const {
    int64_t bytes = 0;
    for (const auto& network : networks_) bytes += network->sent().bytes;
    return bytes;
  }

 private:
  std::vector<std::vector<char>> memory_;
  Meeting meeting_;
  std::vector<std::unique_ptr<FakeNetwork>> networks_;
  std::vector<std::unique_ptr<FakeJob>> jobs_;
};

}  // namespace oneflow_like
