// What a runtime that is one of several processes tells the others and hears from them, beside its
// collectives: outputs (every process gets every output whole) and failures. Implemented by net/; a runtime
// alone has none.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "actor/collective.h"
#include "core/dims.h"

namespace oneflow_like {

class PeerListener {
 public:
  virtual ~PeerListener() = default;
  // On a thread of the job. A piece of output number `output` (in the order of the plan's outputs): `data` is
  // the box, packed row-major, valid during the call. `launch` counts the steps of this link from 0; this one
  // may not have been launched here yet.
  virtual void OutputArrived(int64_t launch, int output, const Box& box, const void* data, size_t bytes) = 0;
  // On a thread of the job. Another process has failed or is lost: no further step can complete.
  virtual void PeersFailed(const std::string& message) = 0;
  // On a thread of the job. The first launch of whose outputs others have yet to send pieces (-1: none), and
  // what to call them: "outputs of step 7".
  struct Awaited {
    int64_t launch = -1;
    std::string what;
  };
  virtual Awaited AwaitedOutputs() { return {}; }
};

// One runtime's line to the same runtime of the other processes. Made in the same order on all processes.
class PeerLink {
 public:
  virtual ~PeerLink() = default;  // nothing is told to the listener any more once it is destroyed
  virtual Collectives* collectives() = 0;
  // While plans are loaded, by the thread that makes the runtime: each process gives a text, all get all, by
  // process. Throws Error when another process has failed.
  virtual std::vector<std::string> Exchange(const std::string& what, const std::string& mine) = 0;
  // Any thread. Sends a box of an output to all other processes; `data` is copied. Costs nothing to wait for.
  virtual void SendOutput(int64_t launch, int output, const Box& box, const void* data, size_t bytes) = 0;
  // Any thread. What failed here first; the others' PeersFailed gets it, with this process named.
  virtual void SendFailure(const std::string& message) = 0;
};

class Peers {
 public:
  virtual ~Peers() = default;
  // `plan` is the plan's name, for messages. The listener stays until the link is destroyed.
  virtual std::unique_ptr<PeerLink> Connect(const std::string& plan, PeerListener* listener) = 0;
};

}  // namespace oneflow_like
