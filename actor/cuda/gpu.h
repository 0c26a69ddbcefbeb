// One GPU of this process: what all ranks that have it share. Made when the first rank asks for it, since
// from then on the process holds a context there.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "actor/cuda/completion.h"

namespace oneflow_like::cuda {

class Gpu {
 public:
  // Throws Error when the GPU cannot be used: taken exclusively, broken, too old for our kernels.
  explicit Gpu(int ordinal);
  int ordinal() const { return ordinal_; }
  const std::string& name() const { return name_; }  // "GPU 0 (NVIDIA H100 80GB HBM3)"
  const std::string& uuid() const { return uuid_; }  // no other GPU has it: "GPU-4f5c..."
  int multiprocessors() const { return multiprocessors_; }
  int architecture() const { return architecture_; }  // 80, 90, ...
  // Makes it the calling thread's device, as the CUDA runtime wants it before most calls.
  void Use() const;
  // Whether kernels here can use memory there; sees to it that they may. Thread safe.
  bool Reaches(const Gpu& other);
  // Bytes that this process has taken by Device::Allocate, and by whatever else since the GPU was opened:
  // code of libraries, communicators, recorded graphs, and other processes in the meantime.
  int64_t allocated_bytes() const { return allocated_.load(std::memory_order_relaxed); }
  int64_t OtherBytes() const;
  void AddBytes(int64_t bytes) { allocated_.fetch_add(bytes, std::memory_order_relaxed); }
  // That exist now: streams of ranks, which want hardware queues, and ranks.
  std::atomic<int>& streams() { return streams_; }
  std::atomic<int>& ranks() { return ranks_; }
  Health& health() { return health_; }
  Completion& completion() { return *completion_; }

 private:
  const int ordinal_;
  std::string name_, uuid_;
  int multiprocessors_ = 1, architecture_ = 80;
  int64_t free_at_first_ = 0;  // once the context was there
  std::atomic<int64_t> allocated_{0};
  std::atomic<int> streams_{0}, ranks_{0};
  Health health_;
  std::unique_ptr<Completion> completion_;
  std::mutex mutex_;         // peers_: ranks on several threads ask while plans are loaded
  std::set<int> peers_;      // reached
  std::set<int> strangers_;  // not reached
};

}  // namespace oneflow_like::cuda
