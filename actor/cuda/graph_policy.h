// When a straight line of kernels is run, recorded or replayed: decided from what a recording would depend
// on. Knows nothing of CUDA.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/device.h"

namespace oneflow_like::cuda {

// Hash of everything a recorded launch of these kernels holds fixed: addresses, extents and global begins of
// operands, scratch, seed, number of micro-batches. Step and micro-batch are not in it: kernels read them in
// device memory.
uint64_t KeyOf(std::span<const KernelRun> kernels);

// What a segment with one key after another does. A key seen for the first time is run (plans rotate slots,
// so most keys come back, but warming-up ones do not), recorded when it comes again, replayed from then on.
// There are at most `most` recordings, enough for plans as they are: a key for each micro-batch (where begins
// differ) and each way the slots of its rings stand to each other. A new one takes the place of the one that
// was used least recently, if that has rested for several rounds: keys that come round in a circle longer
// than `most` would otherwise record for ever, which costs more than it saves.
class GraphPolicy {
 public:
  static constexpr int kMost = 256;

  enum class Action { kRun, kRecord, kReplay };
  struct Decision {
    Action action = Action::kRun;
    int slot = -1;  // of the recording to replay, or where the new one goes (in the place of what is there)
  };

  explicit GraphPolicy(int most = kMost) : most_(most) {}
  Decision Decide(uint64_t key);
  // Of the recording that Decide asked for. One that failed is asked for again when its key next comes, since
  // what was wrong may have passed (memory was short); after two in a row everything is run.
  void Failed(int slot);
  void Succeeded() { failures_ = 0; }

 private:
  struct Seen {
    uint64_t key = 0;
    int64_t last = 0;     // call it was last used in
    bool failed = false;  // its recording
  };

  int64_t Patience() const { return int64_t{8} * most_; }  // calls that a recording rests before it may go

  int most_;
  int failures_ = 0;  // in a row
  int64_t calls_ = 0;
  std::vector<Seen> recorded_;  // by slot
  std::vector<Seen> seen_;      // once, or more often while no slot was free; at most Patience() of them
};

}  // namespace oneflow_like::cuda
