#include "ops/cuda/driver_turn.h"

#include <glog/logging.h>

#include <condition_variable>
#include <mutex>

namespace oneflow_like::cuda {
namespace {

// A std::shared_mutex prefers those who share: collectives might wait for long where many ranks launch. Here
// a collective that waits lets no new calls in.
class Turns {
 public:
  void BeginCall() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return launches_ == 0; });
    ++calls_;
  }
  void EndCall() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (--calls_ == 0 && launches_ > 0) changed_.notify_all();
  }
  void BeginLaunch() {
    std::unique_lock<std::mutex> lock(mutex_);
    ++launches_;
    changed_.wait(lock, [&] { return calls_ == 0 && !launching_; });
    launching_ = true;
  }
  void EndLaunch() {
    std::lock_guard<std::mutex> lock(mutex_);
    --launches_;
    launching_ = false;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int calls_ = 0;     // under way
  int launches_ = 0;  // under way or waiting
  bool launching_ = false;
};

Turns& AllTurns() {
  static auto* turns = new Turns;  // outlives what is destroyed when a process ends
  return *turns;
}

thread_local int depth = 0;  // of calls and launches of this thread

}  // namespace

DriverCall::DriverCall() {
  if (depth++ == 0) AllTurns().BeginCall();
}
DriverCall::~DriverCall() {
  if (--depth == 0) AllTurns().EndCall();
}

CollectiveLaunch::CollectiveLaunch() {
  CHECK_EQ(depth++, 0) << "a collective is launched from within another call";
  AllTurns().BeginLaunch();
}
CollectiveLaunch::~CollectiveLaunch() {
  --depth;
  AllTurns().EndLaunch();
}

}  // namespace oneflow_like::cuda
