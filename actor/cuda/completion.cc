// The thread that polls events. A query costs about a microsecond, so it sleeps between rounds in which
// nothing came, longer the longer nothing comes; with nothing pending it sleeps on its condition variable.
#include "actor/cuda/completion.h"

#include <glog/logging.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "actor/cuda/error.h"

namespace oneflow_like::cuda {
namespace {

// Short against the steps that wait for it (milliseconds), long against a query.
#if defined(OFL_CUDA_EMULATED)  // of a device that takes a hundred times as long
constexpr std::chrono::microseconds kFirstSleep(100), kLongestSleep(1000);
#else
constexpr std::chrono::microseconds kFirstSleep(10), kLongestSleep(100);
#endif

}  // namespace

Status Health::status() const {
  if (!lost()) return Status();
  std::lock_guard<std::mutex> lock(mutex_);
  return Status(why_);
}

void Health::Lose(const std::string& why) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!why_.empty()) return;
  why_ = why;
  lost_.store(true, std::memory_order_release);
}

Completion::Completion(int ordinal, std::string gpu, Health* health)
    : ordinal_(ordinal), gpu_(std::move(gpu)), health_(health), thread_([this] { Run(); }) {}

Completion::~Completion() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    CHECK(lines_.empty()) << "a stream outlives its GPU";
    stop_ = true;
  }
  work_.notify_one();
  thread_.join();
}

void Completion::Add(NotificationLine* line) {
  std::lock_guard<std::mutex> lock(mutex_);
  lines_.push_back(line);
}

void Completion::Push(NotificationLine* line, Notification* notification) {
  bool wake;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    notification->next = nullptr;
    (line->last_ == nullptr ? line->first_ : line->last_->next) = notification;
    line->last_ = notification;
    wake = pending_++ == 0;
  }
  if (wake) work_.notify_one();
}

void Completion::Remove(NotificationLine* line) {
  CHECK(std::this_thread::get_id() != thread_.get_id()) << "a callback of a stream destroys a stream";
  std::unique_lock<std::mutex> lock(mutex_);
  quiet_.wait(lock, [&] { return line->first_ == nullptr && calling_ != line; });
  lines_.erase(std::find(lines_.begin(), lines_.end(), line));
}

void Completion::Run() {
  pthread_setname_np(pthread_self(), "cuda_done");
  cudaSetDevice(ordinal_);  // else the first query would open the first GPU as well
  // Sleeps of this thread end on time; the system would otherwise add 50 microseconds to each.
  prctl(PR_SET_TIMERSLACK, 1000ul, 0ul, 0ul, 0ul);
  std::chrono::microseconds sleep = kFirstSleep;
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    work_.wait(lock, [this] { return stop_ || pending_ > 0; });
    if (pending_ == 0) return;
    if (Scan(&lock)) {
      sleep = kFirstSleep;
      continue;
    }
    lock.unlock();
    std::this_thread::sleep_for(sleep);
    sleep = std::min(sleep * 2, kLongestSleep);
    lock.lock();
  }
}

// One round over all lines; whether anything had come.
bool Completion::Scan(std::unique_lock<std::mutex>* lock) {
  bool any = false;
  // Lines may come and go while a callback runs: at worst one is left for the next round.
  for (size_t i = 0; i < lines_.size(); ++i) {
    NotificationLine* line = lines_[i];
    while (i < lines_.size() && lines_[i] == line && line->first_ != nullptr && HasCome(line)) {
      any = true;
      CallBack(line, lock);
    }
  }
  return any;
}

bool Completion::HasCome(NotificationLine* line) {
  if (health_->lost()) return true;
  queries_.fetch_add(1, std::memory_order_relaxed);
  cudaError_t error = cudaEventQuery(line->first_->event);
  if (error == cudaSuccess) return true;
  cudaGetLastError();  // else a callback that asks for it has an error that is none
  if (error == cudaErrorNotReady) return false;
  health_->Lose(
      Cat(gpu_, " stopped with ", Say(error), ", seen by ", line->Where(*line->first_), " at the latest"));
  LOG(ERROR) << health_->status().message();
  return true;
}

void Completion::CallBack(NotificationLine* line, std::unique_lock<std::mutex>* lock) {
  Notification* notification = line->first_;
  line->first_ = notification->next;
  if (line->first_ == nullptr) line->last_ = nullptr;
  --pending_;
  calling_ = line;
  lock->unlock();
  {
    Status status = line->StatusOf(*notification);
    std::function<void(Status)> done = std::move(notification->done);
    notification->done = nullptr;
    line->Recycle(notification);
    done(std::move(status));
  }
  lock->lock();
  calling_ = nullptr;
  quiet_.notify_all();
}

}  // namespace oneflow_like::cuda
