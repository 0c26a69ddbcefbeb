// Memory that other processes of the same host can read and write: one memfd for each process, of a large
// virtual size (less where `ulimit -v` or `-f` bounds it) and as many pages as are used, mapped once by all
// processes at start-up. Addresses are exchanged as offsets in it, so the pieces of a collective of one host
// are moved by plain loads and stores.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "actor/net/rendezvous/bootstrap.h"
#include "core/device/device.h"

namespace oneflow_like {

class SharedRegion : public MemorySource {
 public:
  // For so many processes of this host, each of which maps the regions of all. Throws Error when the system
  // provides no memfd or address space.
  static std::unique_ptr<SharedRegion> Make(int processes);
  ~SharedRegion() override = default;

  // The address at which peers request it, for PeerInfo::region (an abstract socket's name; unguessable).
  virtual std::string name() const = 0;
  // Maps the regions of all peers with the same host key, and sends them this one; blocks until both are done
  // for all of them, at most `timeout` seconds (Error). Only processes of the same user are served.
  virtual void Exchange(int me, const std::vector<PeerInfo>& peers, double timeout) = 0;

  // The address in this process of the region of process `peer`; nullptr when that is on another host. `peer`
  // may be this process.
  virtual char* base(int peer) const = 0;
  virtual size_t capacity() const = 0;
  bool Holds(int me, const void* p) const { return p >= base(me) && p < base(me) + capacity(); }
};

}  // namespace oneflow_like
