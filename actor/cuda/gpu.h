// One GPU of this process, shared by all ranks on it. Created when the first rank needs it, because from then
// on the process holds a context there.
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
  // Throws Error when the GPU cannot be used: taken exclusively, broken, or too old for the kernels.
  explicit Gpu(int ordinal);
  int ordinal() const { return ordinal_; }
  const std::string& name() const { return name_; }  // "GPU 0 (NVIDIA H100 80GB HBM3)"
  const std::string& uuid() const { return uuid_; }  // unique: "GPU-4f5c..."
  int multiprocessors() const { return multiprocessors_; }
  int architecture() const { return architecture_; }  // 80, 90, ...
  // Makes it the calling thread's device, as the CUDA runtime requires before most calls.
  void Use() const;
  // Whether kernels on this GPU can use memory of the other; enables that access. Thread-safe.
  bool Reaches(const Gpu& other);
  // Bytes taken by Device::Allocate, and bytes taken otherwise since the GPU was opened: by code of
  // libraries, communicators, recorded graphs, and other processes.
  int64_t allocated_bytes() const { return allocated_.load(std::memory_order_relaxed); }
  int64_t OtherBytes() const;
  void AddBytes(int64_t bytes) { allocated_.fetch_add(bytes, std::memory_order_relaxed); }
  // Numbers of existing streams of ranks, which need hardware queues, and of ranks.
  std::atomic<int>& streams() { return streams_; }
  std::atomic<int>& ranks() { return ranks_; }
  Health& health() { return health_; }
  Completion& completion() { return *completion_; }

 private:
  const int ordinal_;
  std::string name_, uuid_;
  int multiprocessors_ = 1, architecture_ = 80;
  int64_t free_at_first_ = 0;  // after the context was created
  std::atomic<int64_t> allocated_{0};
  std::atomic<int> streams_{0}, ranks_{0};
  Health health_;
  std::unique_ptr<Completion> completion_;
  std::mutex mutex_;         // peers_: ranks on several threads ask while plans are loaded
  std::set<int> peers_;      // reached
  std::set<int> strangers_;  // not reached
};

}  // namespace oneflow_like::cuda
