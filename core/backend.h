// A kind of device whose implementation is a library opened at run time, so that a program starts without it
// on machines that have no such device or no driver: liboneflow_like_cuda.so (cuda/).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/device.h"

namespace oneflow_like {

// What a group of ranks that each have a device of their own moves in one act: a collective of the device
// vendor's library (NCCL). Members enqueue it on their stream; nothing waits on the host.
struct GroupSpec {
  std::string name;        // the same on all members: what the communicator is called in logs
  std::vector<int> ranks;  // members, ordered
  // How long members may come apart when the group is made: they compile and load at different speeds.
  double connect_seconds = 300;
};

class GroupMember {
 public:
  virtual ~GroupMember() = default;
  // The whole group calls the same functions in the same order. Element counts are per call; pieces are
  // contiguous. `from` of member m for ReduceScatter holds `counts` elements of each member in order;
  // AllGather writes them so.
  virtual Status AllReduce(DeviceStream* stream, DType dtype, Reduce reduce, const void* from, void* to,
                           int64_t count) = 0;
  virtual Status ReduceScatter(DeviceStream* stream, DType dtype, Reduce reduce, const void* from, void* to,
                               int64_t count_each) = 0;
  virtual Status AllGather(DeviceStream* stream, DType dtype, const void* from, void* to,
                           int64_t count_each) = 0;
  // Anything else: sends and receives of contiguous runs, all posted together. `peer` is an index of a
  // member.
  struct Transfer {
    bool send;
    int peer;
    void* data;
    int64_t bytes;
  };
  virtual Status Exchange(DeviceStream* stream, const std::vector<Transfer>& transfers) = 0;
  // A peer is lost: operations under way end with an error instead of waiting for it.
  virtual void Abort() = 0;
  // Before members go: called on all that this process hosts, then they are destroyed. Destroying one waits
  // until the group's others, here too, have begun to leave. Nothing is called afterwards.
  virtual void BeginLeaving() {}
};

// Memory of a CUDA device beside arenas and variables, for each rank: the work space of its compute stream
// and what others take (libraries, communicators, recordings), an estimate that BackendCounts::other_bytes
// measures. Here, since it is also told where there is no device.
constexpr int64_t kCudaBytesOfOthers = int64_t{64} << 20;
constexpr int64_t kCudaBytesBesides = (int64_t{128} << 20) + kCudaBytesOfOthers;

// Counts of a backend's work since the process began, and of work done in a slower way than it could be: a
// library refused, or recording failed. Counts are the process's, of all its devices.
struct BackendCounts {
  // Enqueued by the vendor's libraries; replays of recordings do not count.
  int64_t library_products = 0, library_attention = 0;
  // Kernels (not launches) that a library refused.
  int64_t refused_products = 0, refused_epilogues = 0, refused_attention = 0;
  int64_t failed_recordings = 0;
  int64_t parts = 0;             // straight lines of kernels that can be recorded, alive
  int64_t unrecorded_parts = 0;  // of those, with no recording so far
  int64_t graphs = 0;            // recordings, alive
  int64_t graph_launches = 0, lone_launches = 0;
  // Of the devices' memory: taken by Device::Allocate, and by anything else since the devices were opened
  // (code of libraries, communicators, recordings).
  int64_t allocated_bytes = 0, other_bytes = 0;
  int64_t ranks = 0;  // whose devices exist

  int64_t Refused() const { return refused_products + refused_epilogues + refused_attention; }
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const std::string& kind() const = 0;  // "cuda"
  virtual int device_count() const = 0;
  // "NVIDIA H100 80GB HBM3, 79.6 GB, driver 580.65, CUDA 13.0": for logs and errors.
  virtual std::string Describe(int device) const = 0;
  // Of rank `rank` on device number `device`. Throws Error in one sentence when the device cannot be used.
  // Several ranks may have the same device (virtual devices): each has streams and memory of its own. Memory
  // of the host that the device uses comes from `host_memory` when given (what other processes see, too).
  virtual std::unique_ptr<Device> MakeDevice(int rank, int device, MemorySource* host_memory = nullptr) = 0;
  virtual void AddKernels(KernelRegistry* registry) const = 0;
  // Whether the vendor's library for groups is there.
  virtual bool HasGroups() const = 0;
  // An identifier that one member of a group makes and all get, and a member's end of the group. `Connect`
  // for all members that this process hosts is one call (the library wants it so); devices[i] is that of
  // `ranks[members[i]]`.
  virtual std::string MakeGroupId() = 0;
  virtual std::vector<std::unique_ptr<GroupMember>> Connect(const std::string& id, const GroupSpec& group,
                                                            const std::vector<int>& members,
                                                            const std::vector<Device*>& devices) = 0;
  // A group of some ranks of `parent`, which shares its memory where the library can. Every process that
  // hosts a member of the parent calls it, in the same order as the others: `parents` are the members it
  // hosts, by their index in the parent's ranks. Returns the new group's ends here, by index in its own
  // ranks; nullopt where the library cannot, on all processes alike: then Connect does it.
  virtual std::optional<std::map<int, std::unique_ptr<GroupMember>>> Split(
      const GroupSpec& /*parent*/, const std::map<int, GroupMember*>& /*parents*/,
      const GroupSpec& /*group*/) {
    return std::nullopt;
  }
  // Runs `calls`, which makes one call of each of several members of one group that this process hosts, as
  // one launch: nothing else of the process comes between, which might wait for the first and hold up the
  // second.
  virtual Status LaunchTogether(const std::function<Status()>& calls) { return calls(); }
  virtual BackendCounts Counts() const { return {}; }
};

// The backend for devices of `kind`, opened once per process. Throws Error in one sentence that says what is
// missing: the library (a build without the toolkit), the driver, a new enough driver, a device.
Backend* OpenBackend(const std::string& kind);
// Puts a backend in the place of the library, for tests; nullptr takes it away again.
void SetBackend(const std::string& kind, Backend* backend);

}  // namespace oneflow_like
