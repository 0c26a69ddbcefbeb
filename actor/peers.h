// Messages between the runtimes of a job of several processes, beside collectives: outputs (every process
// gets every output whole) and failures. Implemented by net/; a single process has none.
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
  // On a thread of the job. The first launch for whose outputs pieces of other processes are missing (-1:
  // none), and a name for them: "outputs of step 7".
  struct Awaited {
    int64_t launch = -1;
    std::string what;
  };
  virtual Awaited AwaitedOutputs() { return {}; }
};

// One runtime's connection to the same runtime in the other processes. Created in the same order on all
// processes.
class PeerLink {
 public:
  virtual ~PeerLink() = default;  // the listener is not called after the destructor
  virtual Collectives* collectives() = 0;
  // Called while plans are loaded, by the thread that creates the runtime: each process passes a text and
  // gets those of all, by process. Throws Error when another process has failed.
  virtual std::vector<std::string> Exchange(const std::string& what, const std::string& mine) = 0;
  // Any thread. Sends a box of an output to all other processes; `data` is copied. Does not block.
  virtual void SendOutput(int64_t launch, int output, const Box& box, const void* data, size_t bytes) = 0;
  // Any thread. Sends the first failure here to the others' PeersFailed, which names this process.
  virtual void SendFailure(const std::string& message) = 0;
};

class Peers {
 public:
  virtual ~Peers() = default;
  // `plan` is the plan's name, for messages. The listener must outlive the link.
  virtual std::unique_ptr<PeerLink> Connect(const std::string& plan, PeerListener* listener) = 0;
};

}  // namespace oneflow_like
