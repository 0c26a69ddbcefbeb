// Processes of a job for tests of models and sessions: threads of one process with a job of the test's own,
// so that what they compare, share out and gather can be looked at without a network.
#pragma once

#include <gtest/gtest.h>

#include "actor/net/talk/job.h"
#include "tests/actor/peers_fixture.h"
#include "tests/oneflow_like/session_fixture.h"

namespace oneflow_like {

// Where the threads meet. A process that fails no longer comes, and whoever waits for it is told.
class Meeting {
 public:
  explicit Meeting(int processes) : texts_(processes), wire(processes) {}

  std::vector<std::string> AllGather(int process, const std::string& what, const std::string& mine) {
    std::unique_lock<std::mutex> lock(mutex_);
    longest = std::max(longest, mine.size());
    const int64_t round = rounds_;
    texts_[process] = what + '\n' + mine;
    if (++come_ == static_cast<int>(texts_.size())) {
      gathered_ = texts_;
      come_ = 0;
      ++rounds_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return rounds_ > round || !failure_.empty(); });
    if (rounds_ == round) throw Error(failure_);
    std::vector<std::string> all;
    for (const std::string& text : gathered_) {
      const size_t end = text.find('\n');
      EXPECT_EQ(text.substr(0, end), what) << "processes ask for different things";
      all.push_back(text.substr(end + 1));
    }
    return all;
  }
  void Fail(const std::string& message) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (failure_.empty()) failure_ = message;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;  // of a test
  std::condition_variable changed_;
  std::vector<std::string> texts_, gathered_;
  int come_ = 0;
  int64_t rounds_ = 0;
  std::string failure_;

 public:
  Wire wire;
  size_t longest = 0;  // of the texts that processes gave
};

class TestJob final : public Job {
 public:
  TestJob(Meeting* meeting, int process, int processes)
      : meeting_(meeting), connections_(meeting, process), peers_(processes) {
    identity_.process = process;
    identity_.processes = processes;
    for (int p = 0; p < processes; ++p) peers_[p].process = p;
  }

  Network* clock = nullptr;  // which knows process 0's
  void SetHost(int process, const std::string& key) { peers_[process].host_key = key; }
  void SetCores(int process, const std::string& limits) { peers_[process].cores = limits; }
  // When set, what this process says in place of its own text, as one whose clock shows another time would.
  std::function<std::string(const std::string& what, const std::string& mine)> says;

  const ProcessIdentity& identity() const override { return identity_; }
  const std::vector<PeerInfo>& peers() const override { return peers_; }
  Network* network() override { return clock; }
  SharedRegion* region() override { return nullptr; }
  std::string Describe(int process) const override { return Cat("process ", process); }
  void SetWorld(int ranks) override { ranks_ = ranks; }
  int ranks_per_process() const override { return ranks_ / processes(); }
  std::vector<std::string> AllGather(const std::string& what, const std::string& mine) override {
    return meeting_->AllGather(process(), what, says ? says(what, mine) : mine);
  }
  Peers* peers_of_runtimes() override { return &connections_; }
  void Fail(const std::string& message) override { meeting_->Fail(message); }
  std::string failure() const override { return ""; }
  void AddAwaited(const void*, std::function<std::string()>) override {}
  void RemoveAwaited(const void*) override {}
  void Finish(bool) override {}
  void AddFailureListener(const void*, std::function<void(const std::string&)>) override {}
  void RemoveFailureListener(const void*) override {}
  void SetDirectOutput(std::function<void(const std::string&)>) override {}

 private:
  // Plans are loaded everywhere before the first step of any.
  struct Connections final : Peers {
    Connections(Meeting* meeting, int process)
        : peers(&meeting->wire, process, [=] { (void)meeting->AllGather(process, "loaded", ""); }) {}
    std::unique_ptr<PeerLink> Connect(const std::string& plan, PeerListener* listener) override {
      return peers.Connect(plan, listener);
    }
    TestPeers peers;
  };

  Meeting* const meeting_;
  ProcessIdentity identity_;
  Connections connections_;
  std::vector<PeerInfo> peers_;
  int ranks_ = 1;
};

// Runs `body` as each of the processes; gives the message of the Error each threw, or nothing.
inline std::vector<std::string> RunProcesses(Meeting& meeting,
                                             const std::function<void(std::shared_ptr<Job>)>& body) {
  const int processes = meeting.wire.processes();
  std::vector<std::string> errors(processes);
  std::vector<std::thread> threads;
  for (int p = 0; p < processes; ++p) {
    threads.emplace_back([&, p] {
      errors[p] = ErrorOf([&] { body(std::make_shared<TestJob>(&meeting, p, processes)); });
      if (!errors[p].empty()) meeting.Fail(Cat("process ", p, ": ", errors[p]));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}
inline std::vector<std::string> RunProcesses(int processes,
                                             const std::function<void(std::shared_ptr<Job>)>& body) {
  Meeting meeting(processes);
  return RunProcesses(meeting, body);
}

}  // namespace oneflow_like
