// Memory that other processes of the same host can read and write: one memfd for each process, of a large
// virtual size and as many pages as are used, mapped once by everybody at start-up. An address in it is an
// offset that is the same for all, so the pieces of a collective of one host are moved by plain loads and
// stores.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "actor/net/rendezvous/bootstrap.h"
#include "core/device.h"

namespace oneflow_like {

class SharedRegion : public MemorySource {
 public:
  // Throws Error when the system gives no memfd or address space.
  static std::unique_ptr<SharedRegion> Make();
  ~SharedRegion() override = default;

  // Where peers ask for it: what goes into PeerInfo::region (an abstract socket's name; unguessable).
  virtual std::string name() const = 0;
  // Maps the regions of all peers with our host key, and hands them ours; blocks until both are done for all
  // of them, at most `timeout` seconds (Error). Only processes of the same user are served.
  virtual void Exchange(int me, const std::vector<PeerInfo>& peers, double timeout) = 0;

  // Where process `peer` of this host has its region in our address space; nullptr when it is on another
  // host. Our own for ourselves.
  virtual char* base(int peer) const = 0;
  virtual size_t capacity() const = 0;
  bool Holds(int me, const void* p) const { return p >= base(me) && p < base(me) + capacity(); }
};

}  // namespace oneflow_like
