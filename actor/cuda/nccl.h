// Collectives of ranks that each have a GPU of their own. Which file is built decides who does them: nccl.cc
// (NCCL), nccl_absent.cc (a build without it), or the emulator's stand-in in tests/cuda_emulator.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
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

// Where the library is older than 2.18, or a parent's member was aborted, nullopt.
std::optional<std::map<int, std::unique_ptr<GroupMember>>> SplitGroup(
    const GroupSpec& parent, const std::map<int, GroupMember*>& parents, const GroupSpec& group);
Status LaunchTogether(const std::function<Status()>& calls);

// Throws Error unless every member has a GPU that no other one here has: the library cannot serve two ranks
// of one group on one GPU (they exchange by Combine).
void CheckOwnGpus(const GroupSpec& group, const std::vector<int>& members,
                  const std::vector<Device*>& devices);

}  // namespace oneflow_like::cuda
