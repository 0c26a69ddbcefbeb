// One configured UCX context and worker, through which network.cc sends and receives.
#pragma once

#include <ucp/api/ucp.h>

#include <string>
#include <vector>

#include "actor/net/ucx/doors.h"
#include "actor/net/ucx/network.h"

namespace oneflow_like {

class UcxWorker {
 public:
  // Throws Error when a device does not exist or UCX finds nothing usable.
  explicit UcxWorker(const NetworkOptions& options);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  ucp_worker_h get() const { return worker_; }
  int event_fd() const { return event_fd_; }  // readable when armed and there is something to do
  const std::string& address() const { return address_; }
  size_t max_header() const { return max_header_; }  // of an active message
  // With true, no connection can be made to this worker any more.
  void ShutDoors(bool shut);

 private:
  void Open(const NetworkOptions& options);
  void Close();

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;
  size_t max_header_ = 0;
  std::string address_;
  std::vector<ListeningSocket> doors_;
};

}  // namespace oneflow_like
