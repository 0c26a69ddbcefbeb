// The place of nccl.cc in a build without NCCL: ranks on one GPU exchange without it, others cannot.
#include "actor/cuda/nccl.h"

#if !defined(OFL_HAVE_NCCL) && !defined(OFL_CUDA_EMULATED)

namespace oneflow_like::cuda {

bool HasGroups() { return false; }
bool GroupsShareDevices() { return false; }

std::string MakeGroupId() { Fail("ranks on several GPUs need NCCL, and this program was built without it"); }

std::vector<std::unique_ptr<GroupMember>> ConnectGroup(const std::string&, const GroupSpec& group,
                                                       const std::vector<int>&, const std::vector<Device*>&) {
  Fail("group ", group.name,
       " is of ranks on several GPUs, which need NCCL, and this program was built without it");
}

std::optional<std::map<int, std::unique_ptr<GroupMember>>> SplitGroup(const GroupSpec&,
                                                                      const std::map<int, GroupMember*>&,
                                                                      const GroupSpec&) {
  return std::nullopt;
}

Status LaunchTogether(const std::function<Status()>& calls) { return calls(); }

}  // namespace oneflow_like::cuda

#endif
