// Collectives whose members are in several processes. The members of one host move their pieces through
// shared memory, as those of one process do; between hosts chunks go as active messages, once for each host,
// summed in the order of hosts. See README.md for the protocol.
#pragma once

#include <memory>

#include "actor/collective.h"

namespace oneflow_like {

class Job;

struct ProcessCollectivesOptions {
  int64_t chunk_bytes = 512 << 10;  // largest message
  int64_t latency_bound_bytes =
      4 << 10;                       // up to here every host combines for itself: one trip instead of two
  int64_t staging_bytes = 16 << 20;  // of this process, for chunks on their way; a runtime adds three chunks
};

// Lives on the job's network thread and the members' workers. One for each Job; serves all plans. `instance`
// sets runtimes apart: the same on all processes. Made, used and destroyed while the job's network runs.
class ProcessCollectives {
 public:
  static std::unique_ptr<ProcessCollectives> Make(Job* job, const ProcessCollectivesOptions& options = {});
  virtual ~ProcessCollectives() = default;
  // What one runtime joins its collectives with. Groups wholly inside this process meet there, without the
  // network. Its CheckComplete exchanges with the other processes what each moves, so all must call it.
  virtual std::unique_ptr<Collectives> Open(int64_t instance) = 0;
  virtual int64_t staging_bytes() const = 0;  // now, of all runtimes
  // Buffers that hold chunks on their way now. Waits for the network's thread.
  virtual int staging_taken() = 0;
};

}  // namespace oneflow_like
