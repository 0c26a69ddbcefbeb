// Keys and the choice among running, recording and replaying.
#include "actor/cuda/graph_policy.h"

#include <algorithm>
#include <utility>

namespace oneflow_like::cuda {
namespace {

constexpr int kMostFailures = 2;

class Hash {
 public:
  void Add(uint64_t word) {
    state_ = (state_ ^ word) * 0x9E3779B97F4A7C15ull;
    state_ ^= state_ >> 29;
  }
  void Add(const Dims& dims) {
    Add(static_cast<uint64_t>(dims.rank()));
    for (int64_t extent : dims) Add(static_cast<uint64_t>(extent));
  }
  void Add(std::span<const TensorArg> args) {
    Add(args.size());
    for (const TensorArg& arg : args) {
      Add(reinterpret_cast<uintptr_t>(arg.data));
      Add(arg.extent);
      Add(arg.begin);
    }
  }
  uint64_t state() const { return state_; }

 private:
  uint64_t state_ = 0x243F6A8885A308D3ull;
};

}  // namespace

uint64_t KeyOf(std::span<const KernelRun> kernels) {
  Hash hash;
  for (const KernelRun& run : kernels) {
    hash.Add(run.context.in);
    hash.Add(run.context.out);
    hash.Add(reinterpret_cast<uintptr_t>(run.context.scratch));
    hash.Add(run.context.seed);
    hash.Add(static_cast<uint64_t>(run.context.times));
  }
  return hash.state();
}

void GraphPolicy::Failed(int slot) {
  ++failures_;
  recorded_[static_cast<size_t>(slot)].failed = true;
}

GraphPolicy::Decision GraphPolicy::Decide(uint64_t key) {
  if (failures_ >= kMostFailures) return {};
  ++calls_;
  auto older = [](const Seen& a, const Seen& b) { return a.last < b.last; };
  auto same = [key](const Seen& seen) { return seen.key == key; };
  if (auto found = std::find_if(recorded_.begin(), recorded_.end(), same); found != recorded_.end()) {
    found->last = calls_;
    return {std::exchange(found->failed, false) ? Action::kRecord : Action::kReplay,
            static_cast<int>(found - recorded_.begin())};
  }
  auto again = std::find_if(seen_.begin(), seen_.end(), same);
  if (again == seen_.end()) {
    if (static_cast<int64_t>(seen_.size()) < Patience()) {
      seen_.push_back({key, calls_});
    } else {
      *std::min_element(seen_.begin(), seen_.end(), older) = {key, calls_};
    }
    return {};
  }
  again->last = calls_;
  if (static_cast<int>(recorded_.size()) < most_) {
    recorded_.push_back({key, calls_});
    seen_.erase(again);
    return {Action::kRecord, static_cast<int>(recorded_.size()) - 1};
  }
  auto oldest = std::min_element(recorded_.begin(), recorded_.end(), older);
  if (oldest == recorded_.end() || calls_ - oldest->last <= Patience()) return {};
  *oldest = {key, calls_};
  seen_.erase(again);
  return {Action::kRecord, static_cast<int>(oldest - recorded_.begin())};
}

}  // namespace oneflow_like::cuda
