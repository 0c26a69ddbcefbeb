// Collectives of ranks that each have a GPU of their own. The build selects the implementation: nccl.cc
// (NCCL), nccl_absent.cc (a build without it), or the emulator's substitute in tests/cuda_emulator.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actor/cuda/stream.h"
#include "core/device/backend.h"

namespace oneflow_like::cuda {

// Whether the library is available, so that groups can be created.
bool HasGroups();
bool GroupsShareDevices();
// As Backend's functions of these names (core/device/backend.h). Throw Error in one sentence. A member must
// be destroyed after its enqueued work is done, and before its device.
std::string MakeGroupId();
std::vector<std::unique_ptr<GroupMember>> ConnectGroup(const std::string& id, const GroupSpec& group,
                                                       const std::vector<int>& members,
                                                       const std::vector<Device*>& devices);

// Returns nullopt if the library is older than 2.18, or a parent's member was aborted.
std::optional<std::map<int, std::unique_ptr<GroupMember>>> SplitGroup(
    const GroupSpec& parent, const std::map<int, GroupMember*>& parents, const GroupSpec& group);
Status LaunchTogether(const std::function<Status()>& calls);

// Throws Error unless every member has a GPU of its own here: the library cannot serve two ranks of one group
// on one GPU (they exchange by Combine).
void CheckOwnGpus(const GroupSpec& group, const std::vector<int>& members,
                  const std::vector<Device*>& devices);

}  // namespace oneflow_like::cuda
