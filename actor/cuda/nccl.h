// Collectives of ranks that each have a GPU of their own. Which file is built decides who does them: nccl.cc
// (NCCL), nccl_absent.cc (a build without it), or the emulator's stand-in in tests/cuda_emulator.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "actor/cuda/stream.h"
#include "core/backend.h"

namespace oneflow_like::cuda {

// Whether a group can be made: the library is there.
bool HasGroups();
// As Backend's functions of these names (core/backend.h). Throw Error in one sentence. A member is destroyed
// after what it enqueued is done, and before its device.
std::string MakeGroupId();
std::vector<std::unique_ptr<GroupMember>> ConnectGroup(const std::string& id, const GroupSpec& group,
                                                       const std::vector<int>& members,
                                                       const std::vector<Device*>& devices);

// Throws Error unless every member has a GPU that no other one here has: the library cannot serve two ranks
// of one group on one GPU (they exchange by Combine).
void CheckOwnGpus(const GroupSpec& group, const std::vector<int>& members,
                  const std::vector<Device*>& devices);

}  // namespace oneflow_like::cuda
