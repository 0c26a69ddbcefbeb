// The executor for work: one thread for each worker, asleep when it has neither messages nor anything ready.
#include <glog/logging.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "actor/clock.h"
#include "actor/executor.h"
#include "actor/runtime.h"
#include "core/parallel_for.h"

namespace oneflow_like {
namespace {

class ThreadWorker final : public Worker {
 public:
  ThreadWorker(int kernel_threads, std::chrono::nanoseconds spin)
      : kernel_threads_(kernel_threads), spin_(spin), thread_([this] { Loop(); }) {}
  ~ThreadWorker() override {
    mailbox_.Post(&stop_);
    thread_.join();
  }

  void Post(Message* message) override { mailbox_.Post(message); }
  // Receive never acts, so calling it here and now cannot recurse: a queue of one thread to itself is not
  // needed.
  void Tell(const Receiver*, Receiver* to, int port, bool ok) override { to->Receive(port, ok); }
  void Ready(Runnable* runnable, bool first) override { ready_.Push(runnable, first); }
  void Forget(Runnable* runnable) override { ready_.Remove(runnable); }
  int64_t idle_ticks() const override { return idle_ticks_; }

 private:
  struct Stop : Message {
    bool received = false;
    void Receive() override { received = true; }
  };

  void Loop() {
    SetParallelThreads(kernel_threads_);
    FlushDenormals();
    while (!stop_.received) {
      while (Message* message = mailbox_.Take()) message->Receive();
      if (Runnable* runnable = ready_.Pop()) {
        runnable->RunOne();
      } else if (!stop_.received) {
        int64_t start = Ticks();
        mailbox_.Wait(spin_);
        idle_ticks_ += Ticks() - start;
      }
    }
  }

  const int kernel_threads_;
  const std::chrono::nanoseconds spin_;
  Mailbox mailbox_;
  ReadyList ready_;
  int64_t idle_ticks_ = 0;
  Stop stop_;
  std::thread thread_;  // last: starts when all else is there
};

class ThreadExecutor final : public Executor {
 public:
  ThreadExecutor(int threads, int kernel_threads) {
    // A thread that spins while others wait for a core makes every hop slower.
    int cores = static_cast<int>(std::thread::hardware_concurrency());
    std::chrono::nanoseconds spin(threads > cores ? 0 : 5000);
    for (int i = 0; i < threads; ++i)
      workers_.push_back(std::make_unique<ThreadWorker>(kernel_threads, spin));
  }

  int workers() const override { return static_cast<int>(workers_.size()); }
  Worker* worker(int index) override { return workers_[index].get(); }
  Status Await(Completion* completion) override {
    completion->Wait();
    return Status();
  }

  void Fence() override {
    struct Arrival : Message {
      std::atomic<int>* left;
      Completion* all;
      void Receive() override {
        if (left->fetch_sub(1, std::memory_order_acq_rel) == 1) all->Signal();
      }
    };
    std::atomic<int> left(workers());
    Completion all;
    std::vector<Arrival> arrivals(workers_.size());
    for (size_t i = 0; i < workers_.size(); ++i) {
      arrivals[i].left = &left;
      arrivals[i].all = &all;
      workers_[i]->Post(&arrivals[i]);
    }
    all.Wait();
  }

 private:
  std::vector<std::unique_ptr<ThreadWorker>> workers_;
};

}  // namespace

std::unique_ptr<Executor> MakeThreadExecutor(int threads, int kernel_threads) {
  CHECK_GE(threads, 1);
  CHECK_GE(kernel_threads, 1);
  return std::make_unique<ThreadExecutor>(threads, kernel_threads);
}

}  // namespace oneflow_like
