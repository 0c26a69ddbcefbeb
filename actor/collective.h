// Collectives: acts in which all ranks of a group take part, the only place where data crosses ranks. Actors
// know only this interface; implementations connect members in one process, over a network or in a device's
// library.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "actor/executor.h"
#include "core/device/device.h"
#include "core/dtype.h"
#include "core/plan.pb.h"

namespace oneflow_like {

class CollectiveListener {
 public:
  virtual ~CollectiveListener() = default;
  // Called on the member's worker before CollectiveDone when it has moved data for the group: start and end
  // in Ticks(). Work on other threads is not reported.
  virtual void CollectiveWorked(int64_t start, int64_t end) = 0;
  // Called on the member's worker when its act has ended: its in piece may be overwritten, its out piece is
  // whole (on an asynchronous device: for what its stream runs from here on). `ok` is false for every member
  // that receives data of a member that arrived with `ok` false (in one process: for every member), or when
  // the movement failed; out pieces are then invalid.
  virtual void CollectiveDone(bool ok) = 0;
};

// One member's end of one collective.
class CollectiveMember {
 public:
  virtual ~CollectiveMember() = default;
  // Called by the member's worker with its pieces, by operand, for an act of `micro_batch`; returns at once.
  // A list is empty if the member has no such end. REQUIRES: its last act is done. The caller must not touch
  // the pieces until CollectiveDone; the lists are read before this returns.
  using Pieces = std::span<void* const>;
  virtual void Arrive(Pieces in, Pieces out, int micro_batch, bool ok) = 0;
};

struct CollectiveSpec {
  std::string plan;  // names the meeting point, with the collective's id and its ranks
  std::string actor;
  DType dtype = DType::kFloat32;
  int acts = 1;  // per step
  Worker* worker = nullptr;
  // The device of the pieces, and the stream in whose order an asynchronous device moves them.
  Device* device = nullptr;
  DeviceStream* stream = nullptr;
  CollectiveListener* listener = nullptr;
  std::vector<int64_t> positions = {};  // of each act in the order of the job (plan.Actor)
};

class Collectives {
 public:
  virtual ~Collectives() = default;
  // Called while plans are loaded. `collective` must outlive the member. Throws Error when the work is not
  // possible as written.
  virtual std::unique_ptr<CollectiveMember> Join(const CollectiveSpec& spec,
                                                 const plan::Collective& collective) = 0;
  // Called after the last Join: throws Error naming a collective whose members have not all joined.
  virtual void CheckComplete() = 0;
  // Any thread, after CheckComplete; called when some member will not arrive any more. Devices stop waiting
  // for it; acts in flight end, and later arrivals fail.
  virtual void Cancel() {}
  // Called before members are destroyed, when none of them arrives any more: returns once nothing will be
  // posted to a worker except as a result of its own messages.
  virtual void Quiesce() {}
};

// For members that are all ranks of this process. When all have arrived, each member's worker moves its own
// regions for all members, reading the others' pieces directly; when the last has finished, all are done.
std::unique_ptr<Collectives> MakeLocalCollectives();

}  // namespace oneflow_like
