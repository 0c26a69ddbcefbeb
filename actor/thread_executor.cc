// The executor for work: one thread for each worker, asleep when it has neither messages nor anything ready.
#include <glog/logging.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "actor/clock.h"
#include "actor/executor.h"
#include "actor/runtime.h"
#include "core/device/parallel_for.h"
#include "core/system/cores.h"

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

  void Post(Message* message) override {
    if (!mailbox_.Put(message)) return;
    // It says how it sleeps before it says that it does. Should it have woken up and slept again since, then
    // it has taken the message, and is woken for nothing.
    IdleWork* working = sleeps_in_.load(std::memory_order_acquire);
    working != nullptr ? working->Wake() : mailbox_.EndWait();
  }
  void WhenIdle(std::shared_ptr<IdleWork> work) override { Post(new SetIdleWork(this, std::move(work))); }
  // Receive never acts, so calling it here and now cannot recurse: a queue of one thread to itself is not
  // needed.
  void Tell(const Receiver*, Receiver* to, int port, bool ok) override { to->Receive(port, ok); }
  void Ready(Runnable* runnable, bool first) override { ready_.Push(runnable, first); }
  void Forget(Runnable* runnable) override { ready_.Remove(runnable); }
  const IdleWork* idle_work() const override { return idle_work_.get(); }
  int kernel_threads() const override {
    granted_.wait(0);
    return granted_;
  }
  int64_t idle_ticks() const override { return idle_ticks_; }

 private:
  struct Stop : Message {
    bool received = false;
    void Receive() override { received = true; }
  };

  struct SetIdleWork : Message {
    SetIdleWork(ThreadWorker* worker, std::shared_ptr<IdleWork> work)
        : worker(worker), work(std::move(work)) {}
    ThreadWorker* const worker;
    std::shared_ptr<IdleWork> work;
    void Receive() override {
      // Others may be about to wake it: what there was stays as long as the worker.
      if (work != worker->idle_work_) worker->idle_works_.push_back(work);
      worker->idle_work_ = std::move(work);
      delete this;
    }
  };

  void WaitForMail() {
    const int64_t start = Ticks();
    bool worked = false;
    if (idle_work_ != nullptr) {
      sleeps_in_.store(idle_work_.get(), std::memory_order_release);
      worked = idle_work_->RunUntil(&mailbox_);
      sleeps_in_.store(nullptr, std::memory_order_release);
    }
    if (!worked) mailbox_.Wait(spin_);
    idle_ticks_ += Ticks() - start;
  }

  void Loop() {
    SetParallelThreads(kernel_threads_);
    granted_ = ParallelThreads();
    granted_.notify_all();
    FlushDenormals();
    while (!stop_.received) {
      while (Message* message = mailbox_.Take()) message->Receive();
      if (Runnable* runnable = ready_.Pop()) {
        if (idle_work_ != nullptr) idle_work_->GoesOn();
        runnable->RunOne();
      } else if (!stop_.received) {
        WaitForMail();
      }
    }
  }

  const int kernel_threads_;
  std::atomic<int> granted_{0};  // of them, by the environment
  const std::chrono::nanoseconds spin_;
  Mailbox mailbox_;
  ReadyList ready_;
  int64_t idle_ticks_ = 0;
  std::shared_ptr<IdleWork> idle_work_;
  std::vector<std::shared_ptr<IdleWork>> idle_works_;
  std::atomic<IdleWork*> sleeps_in_{nullptr};
  Stop stop_;
  std::thread thread_;  // last: starts when all else is there
};

class ThreadExecutor final : public Executor {
 public:
  ThreadExecutor(int threads, int kernel_threads) {
    // A thread that spins while others wait for a core makes every hop slower.
    std::chrono::nanoseconds spin(threads > UsableCores() ? 0 : 5000);
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
