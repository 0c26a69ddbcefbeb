// The memory that groups of ranks take on their devices, as far as it is known without a device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace oneflow_like {

// Channels of a communicator at most, which are the thread blocks of its kernels. Where several are under
// way on a device at one time (GroupSpec::at_once) they leave half of its multiprocessors to other kernels.
constexpr int kMostChannels = 32;
constexpr int ChannelsOf(int at_once, int multiprocessors) {
  return at_once > 1 ? std::clamp(multiprocessors / (2 * at_once), 1, kMostChannels) : kMostChannels;
}

// Device memory of a communicator of NCCL on each of its members, at most: for each channel what a ring
// receives in, of each protocol (ncclComm::buffSizes in NCCL's sources): 4 MiB for Simple, the default of
// NCCL_BUFFSIZE; for LL128 8 steps of 640 threads of 120 words of 8 bytes; for LL 8 steps of 512 threads of 8
// lines of 16 bytes. On a device of 132 multiprocessors, as an H100 has. Trees and NVLS are not counted.
constexpr int64_t kBytesOfChannel = (int64_t{4} << 20) + 8 * 640 * 120 * 8 + 8 * 512 * 8 * 16;
constexpr int64_t BytesOfCommunicator(int at_once) { return ChannelsOf(at_once, 132) * kBytesOfChannel; }

// Of groups in the order in which they are made, the largest first, the place of the one that group `g` is
// split from: the first before it that has all of its ranks; `g`: none.
size_t ParentOf(const std::vector<std::vector<int>>& groups, size_t g);
// Whether a group that is split from another has no memory of its own: not where several may be under way, as
// groups that share memory take turns.
constexpr bool SharesMemory(int at_once) { return at_once == 1; }

}  // namespace oneflow_like
