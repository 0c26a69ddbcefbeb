// The Peers of a job (actor/peers.h): a runtime is matched with those of the other processes by the order of
// creation; they exchange outputs and failures.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "actor/net/ucx/network.h"
#include "actor/peers.h"

namespace oneflow_like {

class RuntimeLinks final : public Peers, public Channel {
 public:
  struct Host {
    Network* network = nullptr;
    int me = 0, processes = 1;
    std::function<std::string(int process)> describe;
    std::function<std::string()> failure;  // of the job; any thread
    std::function<std::unique_ptr<Collectives>(int64_t instance)> open;
    // Any thread. Tells all others that runtime `instance` has failed here.
    std::function<void(int64_t instance, const std::string& message)> send_failure;
    // The user's thread. Job::AllGather.
    std::function<std::vector<std::string>(const std::string& what, const std::string& mine)> exchange;
  };

  explicit RuntimeLinks(Host host);  // destroyed after the network
  ~RuntimeLinks() override;

  // Throws Error when the job has failed already.
  std::unique_ptr<PeerLink> Connect(const std::string& plan, PeerListener* listener) override;

  // The network's thread. JobFailed tells every listener that the job has failed; the other that runtime
  // `instance` has failed elsewhere.
  void JobFailed(const std::string& message);
  void RuntimeFailed(int64_t instance, const std::string& message);
  // The network's thread: outputs that are awaited here, and from which process, by Host::describe: "outputs
  // of step 7 (train) of rank 3 (host b, pid 17)"; empty: none.
  std::string Awaited();
  void Deliver(int from, const void* header, size_t header_bytes, std::unique_ptr<Incoming> data) override;

 private:
  struct OutputHeader;
  struct OutputSend;
  struct OutputArrival;
  struct Held;
  struct Release;
  class RuntimeLink;

  void Disconnect(int64_t instance);
  void Note(int from, const OutputHeader& header);
  OutputSend* TakeSend();
  void GiveSend(OutputSend* send);
  void Arrived(const OutputHeader& header, const void* data, size_t bytes);
  bool Hold(int64_t instance);
  void ReleaseHeld(int64_t instance);
  void Tell(PeerListener* listener, const OutputHeader& header, const void* data, size_t bytes);
  void TellFailure(RuntimeLink* link, const std::string& message);

  const Host host_;
  // A lock, because runtimes are created and destroyed on the user's thread while the network's thread calls
  // them; held during these calls, so that none happens after a link is destroyed.
  std::mutex links_mutex_;
  std::map<int64_t, RuntimeLink*> links_;
  int64_t next_instance_ = 0;
  std::map<int64_t, std::vector<Held>> held_;  // arrived before the runtime was created here
  // By instance and process: the launch of the newest piece of an output. Processes that never send have no
  // entry.
  std::map<int64_t, std::map<int, int64_t>> newest_;

  std::mutex sends_mutex_;  // workers take buffers, and the network's thread returns them
  std::vector<std::unique_ptr<OutputSend>> sends_;
  std::vector<OutputSend*> free_sends_;
};

}  // namespace oneflow_like
