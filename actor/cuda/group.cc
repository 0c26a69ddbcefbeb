// What all implementations of groups check.
#include <map>

#include "actor/cuda/nccl.h"

namespace oneflow_like::cuda {

void CheckOwnGpus(const GroupSpec& group, const std::vector<int>& members,
                  const std::vector<Device*>& devices) {
  std::map<int, int> rank_of;  // by GPU
  for (size_t i = 0; i < members.size(); ++i) {
    const Gpu& gpu = static_cast<CudaDevice*>(devices[i])->gpu();
    int rank = group.ranks[members[i]];
    auto [other, added] = rank_of.emplace(gpu.ordinal(), rank);
    if (!added) {
      Fail("ranks ", other->second, " and ", rank, " of group ", group.name, " are both on ", gpu.name(),
           ", but NCCL wants a GPU of its own for every rank");
    }
  }
}

}  // namespace oneflow_like::cuda
