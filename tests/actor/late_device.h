// Devices that are asynchronous and made of the host: memory is the host's, a stream is a thread that runs
// the kernels it is given some time later, after random waits. What acts on such devices must order by events
// alone.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/device/device.h"

namespace oneflow_like {

// How many of its tasks a stream has done. Events may be waited for after their stream has ended, as a GPU's.
class LateProgress {
 public:
  void Await(int64_t tasks) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= tasks; });
  }
  void DidOne() {
    std::lock_guard<std::mutex> lock(mutex_);
    ++done_;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t done_ = 0;
};

// Everything a stream had been given at some moment.
class LateEvent final : public DeviceEvent {
 public:
  struct Moment {
    std::shared_ptr<LateProgress> stream;
    int64_t tasks = 0;
  };
  void Set(Moment moment) {
    std::lock_guard<std::mutex> lock(mutex_);
    moment_ = std::move(moment);
  }
  Moment Get() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return moment_;
  }

 private:
  mutable std::mutex mutex_;
  Moment moment_;
};

class LateStream final : public DeviceStream {
 public:
  LateStream(uint64_t seed, int delay_us) : random_(seed), delay_us_(delay_us), thread_([this] { Work(); }) {}
  ~LateStream() override {
    Enqueue([] { return Status(); });
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

  bool synchronous() const override { return false; }
  Status Run(Kernel& kernel, const KernelContext& context) override {
    KernelRun run{&kernel, context};
    return RunSegment(nullptr, {&run, 1});
  }
  std::unique_ptr<DeviceSegment> MakeSegment() override { return std::make_unique<DeviceSegment>(); }
  Status RunSegment(DeviceSegment*, std::span<const KernelRun> kernels) override {
    for (const KernelRun& run : kernels) {
      // The operands are those of this act: the caller's change with the next.
      std::vector<TensorArg> in(run.context.in.begin(), run.context.in.end());
      std::vector<TensorArg> out(run.context.out.begin(), run.context.out.end());
      KernelContext c = run.context;
      Enqueue([kernel = run.kernel, in, out, spec = &run.context.spec, scratch = c.scratch, step = c.step,
               time = c.time, times = c.times, seed = c.seed] {
        KernelContext context{*spec, in, out, scratch, step, time, times, seed};
        Status status = kernel->Run(context);
        std::string where = spec->line.str();
        if (!status.ok())
          status = Status(Cat(spec->node, where.empty() ? "" : " at ", where, ": ", status.message()));
        return status;
      });
    }
    return Status();
  }
  void NotifyWhenDone(std::function<void(Status)> done) override {
    Enqueue([this, done = std::move(done)] {
      done(failure_);
      return Status();
    });
  }
  std::unique_ptr<DeviceEvent> MakeEvent() override { return std::make_unique<LateEvent>(); }
  void Record(DeviceEvent* event) override {
    static_cast<LateEvent*>(event)->Set({progress_, given_.load()});
  }
  void WaitFor(const DeviceEvent& event) override {
    LateEvent::Moment moment = static_cast<const LateEvent&>(event).Get();
    if (moment.stream == nullptr || moment.stream == progress_) return;
    Enqueue([moment] {
      moment.stream->Await(moment.tasks);
      return Status();
    });
  }
  void CopyIn(void* device, const void* host, size_t bytes) override { Copy(device, host, bytes); }
  void CopyOut(void* host, const void* device, size_t bytes) override { Copy(host, device, bytes); }
  Status Combine(DType dtype, Reduce reduce, const Box& box, std::span<const Piece> from,
                 std::span<const Piece> to) override {
    std::vector<Piece> sources(from.begin(), from.end()), dests(to.begin(), to.end());
    Enqueue([=] {
      if (reduce == Reduce::kNone && sources.size() == 1) {
        for (const Piece& piece : dests) CopyBox(dtype, box, sources[0], piece);
      } else {
        CombineBox(dtype, reduce, box, sources.data(), static_cast<int>(sources.size()), dests.data(),
                   static_cast<int>(dests.size()));
      }
      return Status();
    });
    return Status();
  }
  // Any task in the stream's order.
  void Enqueue(std::function<Status()> task) {
    std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
    ++given_;
    changed_.notify_all();
  }

 private:
  void Copy(void* to, const void* from, size_t bytes) {
    Enqueue([=] {
      if (bytes > 0) std::memcpy(to, from, bytes);
      return Status();
    });
  }
  void Work() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return !tasks_.empty() || stop_; });
      if (tasks_.empty()) return;
      std::function<Status()> task = std::move(tasks_.front());
      tasks_.pop_front();
      bool late = delay_us_ > 0 && random_() % 8 == 0;
      lock.unlock();
      if (late) std::this_thread::sleep_for(std::chrono::microseconds(random_() % delay_us_));
      Status status = task();
      task = nullptr;
      if (!status.ok() && failure_.ok()) failure_ = status;
      progress_->DidOne();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<Status()>> tasks_;
  std::atomic<int64_t> given_{0};
  const std::shared_ptr<LateProgress> progress_ = std::make_shared<LateProgress>();
  bool stop_ = false;
  Status failure_;
  std::mt19937_64 random_;
  const int delay_us_;
  std::thread thread_;
};

class LateDevice final : public Device {
 public:
  // AllocateHost takes from `shared` when given. `alone`: it reads no other device's memory.
  LateDevice(int rank, std::string hardware, uint64_t seed, int delay_us, MemorySource* shared = nullptr,
             bool alone = false)
      : host_(MakeHostDevice(rank)),
        shared_(MakeHostDevice(rank, shared)),
        hardware_(std::move(hardware)),
        seed_(seed),
        delay_us_(delay_us),
        alone_(alone) {}
  const std::string& kind() const override { return kind_; }
  int index() const override { return host_->index(); }
  std::unique_ptr<Memory> Allocate(size_t bytes, const std::string& what) override {
    return host_->Allocate(bytes, what);
  }
  std::unique_ptr<Memory> AllocateHost(size_t bytes, const std::string& what) override {
    return shared_->Allocate(bytes, what);
  }
  void CopyIn(void* device, const void* host, size_t bytes) override { host_->CopyIn(device, host, bytes); }
  void CopyOut(void* host, const void* device, size_t bytes) override { host_->CopyOut(host, device, bytes); }
  std::unique_ptr<DeviceStream> MakeStream(const std::string& name) override {
    return std::make_unique<LateStream>(seed_++, delay_us_);
  }
  std::string hardware() const override { return hardware_; }
  bool Reaches(const Device& other) const override {
    return other.kind() == kind_ && (!alone_ || other.hardware() == hardware_);
  }

 private:
  std::unique_ptr<Device> host_, shared_;
  const std::string kind_ = "cuda", hardware_;
  uint64_t seed_;
  const int delay_us_;
  const bool alone_;
};

}  // namespace oneflow_like
