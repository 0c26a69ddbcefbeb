// One thread for each GPU that polls its events and calls back when they have completed. No other thread
// waits for the device.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "ops/cuda/kernel.h"

namespace oneflow_like::cuda {

// Whether a GPU is lost, and why: after such an error every call of this process fails.
class Health {
 public:
  bool lost() const { return lost_.load(std::memory_order_acquire); }
  Status status() const;              // OK unless lost
  void Lose(const std::string& why);  // keeps the first reason

 private:
  std::atomic<bool> lost_{false};
  mutable std::mutex mutex_;  // any stream and the completion thread may detect the loss
  std::string why_;
};

// One NotifyWhenDone. Belongs to its stream, which reuses it.
struct Notification {
  cudaEvent_t event = nullptr;
  Fault own;                      // used if there is no memory that the device sees
  Fault* fault = &own;            // host memory: the fault so far
  Fault* device_fault = nullptr;  // the same as the device sees it, if it does
  int last_kernel = 0;            // the last one enqueued before it, 0: none
  std::function<void(Status)> done;
  Notification* next = nullptr;
};

// The notifications of one stream, in order. The functions are called by the completion thread.
class NotificationLine {
 public:
  virtual ~NotificationLine() = default;
  virtual Status StatusOf(const Notification& notification) = 0;
  // The work of the device when it was lost: "stream compute, after matmul 'fc1' at gpt.cc:31".
  virtual std::string Where(const Notification& notification) = 0;
  virtual void Recycle(Notification* notification) = 0;

 private:
  friend class Completion;
  Notification* first_ = nullptr;
  Notification* last_ = nullptr;
};

// Callbacks run in order within a line. When the device is lost, all pending notifications are called back
// with the reason, so that nothing waits for a lost device. Thread-safe.
class Completion {
 public:
  Completion(int ordinal, std::string gpu, Health* health);  // for GPU `ordinal`, which messages call `gpu`
  ~Completion();                                             // REQUIRES: all lines removed
  void Add(NotificationLine* line);
  void Push(NotificationLine* line, Notification* notification);
  // Returns when everything pushed on the line has been called back. Not from a callback.
  void Remove(NotificationLine* line);
  // Number of event queries that its thread has made.
  int64_t queries() const { return queries_.load(std::memory_order_relaxed); }

 private:
  void Run();
  bool Scan(std::unique_lock<std::mutex>* lock);
  bool HasCome(NotificationLine* line);
  void CallBack(NotificationLine* line, std::unique_lock<std::mutex>* lock);

  const int ordinal_;
  const std::string gpu_;
  Health* const health_;
  std::atomic<int64_t> queries_{0};
  std::mutex mutex_;  // streams push from their threads; held for an event's query, never for a callback
  std::condition_variable work_, quiet_;
  std::vector<NotificationLine*> lines_;
  NotificationLine* calling_ = nullptr;  // the line whose callback runs now
  int64_t pending_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace oneflow_like::cuda
