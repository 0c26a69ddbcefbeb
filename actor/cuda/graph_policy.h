// Decides when a chain of kernels is run, recorded or replayed, from everything that a recording depends on.
// Knows nothing of CUDA.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/device/device.h"

namespace oneflow_like::cuda {

// Hash of everything that is fixed in a recorded launch of these kernels: addresses, extents and global
// begins of operands, scratch, seed, number of micro-batches. Step and micro-batch are not in it: kernels
// read them from device memory.
uint64_t KeyOf(std::span<const KernelRun> kernels);

// Chooses for each key of a segment. A key seen for the first time is run (plans rotate slots, so most keys
// come back, but those of the warm-up do not), recorded when it comes again, and replayed from then on. There
// are at most `most` recordings, enough for usual plans: a key for each micro-batch (where begins differ) and
// each combination of the slots of its rings. A new recording replaces the least recently used one, if that
// was unused for several rounds: keys in a cycle longer than `most` would otherwise record for ever, which
// costs more than it saves.
class GraphPolicy {
 public:
  static constexpr int kMost = 256;

  enum class Action { kRun, kRecord, kReplay };
  struct Decision {
    Action action = Action::kRun;
    int slot = -1;  // of the recording to replay, or for the new one (replacing what is there)
  };

  explicit GraphPolicy(int most = kMost) : most_(most) {}
  Decision Decide(uint64_t key);
  // Reports that the recording requested by Decide failed. It is requested again when its key next comes,
  // because the cause may have passed (memory was short); after two failures in a row everything is run.
  void Failed(int slot);
  void Succeeded() { failures_ = 0; }

 private:
  struct Seen {
    uint64_t key = 0;
    int64_t last = 0;     // call in which it was last used
    bool failed = false;  // whether its recording failed
  };

  int64_t Patience() const {
    return int64_t{8} * most_;
  }  // calls without use before a recording may be
     // replaced

  int most_;
  int failures_ = 0;  // in a row
  int64_t calls_ = 0;
  std::vector<Seen> recorded_;  // by slot
  std::vector<Seen> seen_;      // keys seen once, or more often while no slot was free; at most Patience()
};

}  // namespace oneflow_like::cuda
