// Peers of a runtime for tests: several "processes" in one, which share one meeting point for collectives and
// carry outputs and failures on a thread of the test's own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actor/peers.h"
#include "core/error.h"

namespace oneflow_like {

// Carries what processes tell one another, in order, on one thread.
class Wire {
 public:
  explicit Wire(int processes) : cancels(processes), listeners_(processes), thread_([this] { Carry(); }) {}
  ~Wire() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
      held_ = false;
    }
    changed_.notify_all();
    thread_.join();
  }

  int processes() const { return static_cast<int>(listeners_.size()); }
  std::atomic<int64_t> output_bytes{0};   // that processes have sent to all others
  std::vector<std::atomic<int>> cancels;  // by process: how often its collectives were told
  // What is told before the listener is there is lost: plans are loaded everywhere before the first step.
  void Connect(int process, const std::string& plan, PeerListener* listener) {
    std::lock_guard<std::mutex> lock(telling_);
    listeners_[process][plan] = listener;
  }
  void Disconnect(int process, const std::string& plan) {  // waits while something is told
    std::lock_guard<std::mutex> lock(telling_);
    listeners_[process].erase(plan);
  }
  void Tell(int process, const std::string& plan, std::function<void(PeerListener*)> what) {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back([this, process, plan, what = std::move(what)] {
      std::lock_guard<std::mutex> telling(telling_);
      auto listener = listeners_[process].find(plan);
      if (listener != listeners_[process].end()) what(listener->second);
    });
    changed_.notify_all();
  }
  void Fail(const std::string& plan, const std::string& message) {
    for (int p = 0; p < processes(); ++p) {
      Tell(p, plan, [message](PeerListener* listener) { listener->PeersFailed(message); });
    }
  }
  // While held nothing arrives.
  void Hold(bool on) {
    std::lock_guard<std::mutex> lock(mutex_);
    held_ = on;
    changed_.notify_all();
  }
  void WaitUntilSent(size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return queue_.size() >= count; });
  }
  // At least `count` altogether, and all there is.
  void WaitUntilCarried(int count = 0) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return queue_.empty() && !busy_ && carried_ >= count; });
  }

  // A lock, since processes load on threads of their own.
  std::unique_ptr<CollectiveMember> Join(const CollectiveSpec& spec, const plan::Collective& collective) {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::make_unique<Member>(this, meeting_point_->Join(spec, collective));
  }
  std::atomic<int64_t> arrived{0};  // members at their collectives, in all acts

 private:
  struct Member final : CollectiveMember {
    Member(Wire* wire, std::unique_ptr<CollectiveMember> end) : wire(wire), end(std::move(end)) {}
    void Arrive(Pieces in, Pieces out, int micro_batch, bool ok) override {
      end->Arrive(in, out, micro_batch, ok);
      ++wire->arrived;
    }
    Wire* const wire;
    const std::unique_ptr<CollectiveMember> end;
  };

  void Carry() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return (ended_ && queue_.empty()) || (!queue_.empty() && !held_); });
      if (queue_.empty()) return;
      std::function<void()> next = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
      lock.unlock();
      next();
      lock.lock();
      busy_ = false;
      ++carried_;
      changed_.notify_all();
    }
  }

  // Locks of a test: mutex_ for what is under way, telling_ for the listeners while they are told.
  std::mutex mutex_, telling_;
  std::vector<std::map<std::string, PeerListener*>> listeners_;  // by process, by plan
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  std::unique_ptr<Collectives> meeting_point_ = MakeLocalCollectives();
  bool ended_ = false, held_ = false, busy_ = false;
  int carried_ = 0;
  std::thread thread_;
};

class TestLink final : public PeerLink, public Collectives {
 public:
  // `loaded` is called when the plan is loaded here; returns when it is everywhere.
  TestLink(Wire* wire, int process, const std::string& plan, PeerListener* listener,
           const std::function<void()>& loaded)
      : wire_(wire), process_(process), plan_(plan), loaded_(loaded) {
    wire->Connect(process, plan, listener);
  }
  ~TestLink() override { wire_->Disconnect(process_, plan_); }

  Collectives* collectives() override { return this; }
  // Plans of the host's ranks exchange nothing.
  std::vector<std::string> Exchange(const std::string& what, const std::string&) override {
    Fail("nobody exchanges ", what);
  }
  void SendOutput(int64_t step, int output, const Box& box, const void* data, size_t bytes) override {
    const char* begin = static_cast<const char*>(data);
    wire_->output_bytes += bytes;
    ToOthers([=, copy = std::vector<char>(begin, begin + bytes)](PeerListener* listener) {
      listener->OutputArrived(step, output, box, copy.data(), copy.size());
    });
  }
  void SendFailure(const std::string& message) override {
    ToOthers([text = Cat("process ", process_, ": ", message)](PeerListener* listener) {
      listener->PeersFailed(text);
    });
  }

  std::unique_ptr<CollectiveMember> Join(const CollectiveSpec& spec,
                                         const plan::Collective& collective) override {
    return wire_->Join(spec, collective);
  }
  void CheckComplete() override {
    if (loaded_) loaded_();
  }
  void Cancel() override { ++wire_->cancels[process_]; }

 private:
  void ToOthers(const std::function<void(PeerListener*)>& what) {
    for (int p = 0; p < wire_->processes(); ++p) {
      if (p != process_) wire_->Tell(p, plan_, what);
    }
  }

  Wire* const wire_;
  const int process_;
  const std::string plan_;
  const std::function<void()> loaded_;
};

class TestPeers final : public Peers {
 public:
  TestPeers(Wire* wire, int process, std::function<void()> loaded = {})
      : wire_(wire), process_(process), loaded_(std::move(loaded)) {}
  std::unique_ptr<PeerLink> Connect(const std::string& plan, PeerListener* listener) override {
    return std::make_unique<TestLink>(wire_, process_, plan, listener, loaded_);
  }

 private:
  Wire* const wire_;
  const int process_;
  const std::function<void()> loaded_;
};

}  // namespace oneflow_like
