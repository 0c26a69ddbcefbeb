// Collectives: acts that all ranks of a group take part in, the only place where data crosses ranks. Actors
// know this interface alone; whether the members meet in one process, over a network or in a device's library
// is the implementation's affair.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "actor/executor.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/plan.pb.h"

namespace oneflow_like {

class CollectiveListener {
 public:
  virtual ~CollectiveListener() = default;
  // Called on the member's worker before CollectiveDone when it has moved something for the group: from when
  // to when, in Ticks(). What runs elsewhere than on the worker is not told.
  virtual void CollectiveWorked(int64_t start, int64_t end) = 0;
  // Called on the member's worker when its act has ended: its in piece may be overwritten, its out piece is
  // whole (on an asynchronous device: for what its stream runs from here on). `ok` is false for every member
  // that gets anything of one that arrived so (in one process: for every member), or when the movement
  // failed; out pieces hold nothing then.
  virtual void CollectiveDone(bool ok) = 0;
};

// One member's end of one collective.
class CollectiveMember {
 public:
  virtual ~CollectiveMember() = default;
  // The member's worker brings its pieces, by operand, for an act of `micro_batch`, and goes on at once.
  // Where it has no such end a list is empty. REQUIRES: its last act is done. The pieces are left alone by
  // the caller until CollectiveDone, the lists are read before this returns.
  using Pieces = std::span<void* const>;
  virtual void Arrive(Pieces in, Pieces out, int micro_batch, bool ok) = 0;
};

struct CollectiveSpec {
  std::string plan;  // with the collective's id and its ranks: the name of the meeting point
  std::string actor;
  DType dtype = DType::kFloat32;
  int acts = 1;  // per step
  Worker* worker = nullptr;
  // Where the pieces lie, and the stream in whose order an asynchronous device moves them.
  Device* device = nullptr;
  DeviceStream* stream = nullptr;
  CollectiveListener* listener = nullptr;
};

class Collectives {
 public:
  virtual ~Collectives() = default;
  // While plans are loaded. `collective` outlives the member. Throws Error when the work cannot be done as
  // written.
  virtual std::unique_ptr<CollectiveMember> Join(const CollectiveSpec& spec,
                                                 const plan::Collective& collective) = 0;
  // After the last Join: throws Error naming a collective whose members have not all joined.
  virtual void CheckComplete() = 0;
  // Any thread, after CheckComplete: some member will not arrive any more. Devices stop waiting for it; what
  // was under way ends, and what arrives later fails.
  virtual void Cancel() {}
  // Before the members go, when none of them arrives any more: returns once nothing will be posted to a
  // worker beyond what its own messages still bring about.
  virtual void Quiesce() {}
};

// All members are ranks of this process. When all have arrived each member's worker moves its own regions for
// everybody, reading the others' pieces directly; when the last has finished all are done.
std::unique_ptr<Collectives> MakeLocalCollectives();

}  // namespace oneflow_like
