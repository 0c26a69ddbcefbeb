// Collectives whose members are in several processes. The members of one host move their pieces through
// shared memory, like those of one process; between hosts chunks are sent as active messages, by the
// algorithm that the plan names, and summed in a fixed order. See README.md for the protocol.
#pragma once

#include <memory>

#include "actor/collective.h"

namespace oneflow_like {

class Job;

struct ProcessCollectivesOptions {
  int64_t chunk_bytes = 512 << 10;  // largest message
  // Where the plan names no algorithm, up to this size every host combines for itself: one trip instead of
  // two.
  int64_t latency_bound_bytes = 4 << 10;
  int64_t staging_bytes = 16 << 20;  // of this process, for chunks in flight; a runtime adds three chunks
};

// Works on the job's network thread and the members' workers. One for each Job; serves all plans. `instance`
// identifies a runtime, the same on all processes. Must be created, used and destroyed while the job's
// network runs.
class ProcessCollectives {
 public:
  static std::unique_ptr<ProcessCollectives> Make(Job* job, const ProcessCollectivesOptions& options = {});
  virtual ~ProcessCollectives() = default;
  // The Collectives of one runtime. Groups wholly inside this process do not use the network. CheckComplete
  // is collective: the processes exchange what each moves.
  virtual std::unique_ptr<Collectives> Open(int64_t instance) = 0;
  virtual int64_t staging_bytes() const = 0;  // now, of all runtimes
  // Number of buffers that hold chunks in flight now. Waits for the network's thread.
  virtual int staging_taken() = 0;
};

}  // namespace oneflow_like
