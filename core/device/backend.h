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

#include "core/device/device.h"

namespace oneflow_like {

// A group of ranks that each have a device of their own, and exchange data by the device vendor's library
// (NCCL). Members enqueue collectives on their streams; nothing waits on the host.
struct GroupSpec {
  std::string name;        // the same on all members: the communicator's name in logs
  std::vector<int> ranks;  // members, ordered
  // How long members may wait for each other when the group is created: they compile and load at different
  // speeds.
  double connect_seconds = 300;
  // How many groups may exchange data on a device at one time: each on a link stream of its own.
  int at_once = 1;
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
  // Called when a peer is lost: operations in flight end with an error instead of waiting for it.
  virtual void Abort() = 0;
  // Must be called on all members that this process hosts before any of them is destroyed. The destructor
  // waits until all members of the group, here and elsewhere, have begun to leave. Nothing else is called
  // afterwards.
  virtual void BeginLeaving() {}
};

// Memory of a CUDA device beside arenas and variables, for each rank: the work space of its compute stream,
// and an estimate for recordings, to compare, with libraries (library_memory.h) and communicators
// (communicators.h), with BackendCounts::other_bytes. It is here because it is also needed without a device.
constexpr int64_t kCudaBytesOfOthers = int64_t{64} << 20;
constexpr int64_t kCudaBytesBesides = (int64_t{128} << 20) + kCudaBytesOfOthers;

// Counts of a backend's work since the process began, and of work done in a slower way because a library
// refused or recording failed. They cover all devices of the process.
struct BackendCounts {
  // Enqueued by the vendor's libraries; replays of recordings do not count.
  int64_t library_products = 0, library_attention = 0, library_convolutions = 0;
  // Kernels (not launches) that a library refused.
  int64_t refused_products = 0, refused_epilogues = 0, refused_attention = 0, refused_convolutions = 0;
  int64_t failed_recordings = 0;
  int64_t parts = 0;             // existing chains of kernels that can be recorded
  int64_t unrecorded_parts = 0;  // of those, without a recording so far
  int64_t graphs = 0;            // existing recordings
  int64_t graph_launches = 0, lone_launches = 0;
  int64_t graph_nodes = 0;  // kernels and copies of the graphs that were launched
  // What the host's threads spent: in launching graphs, of that waiting (beyond the shortest launch of the
  // same kernels: the driver's queue was full), in recording graphs, in launching kernels alone.
  int64_t graph_nanoseconds = 0, graph_wait_nanoseconds = 0, recording_nanoseconds = 0, lone_nanoseconds = 0;
  // Products whose proposals this process timed, and those decided to be done by another than the first.
  int64_t timed_products = 0, other_proposals = 0;
  int64_t products_together = 0;  // kinds of products of which several are done in one call
  // Device memory taken by Device::Allocate, and by anything else since the devices were opened (code of
  // libraries, communicators, recordings).
  int64_t allocated_bytes = 0, other_bytes = 0;
  int64_t ranks = 0;    // with an existing device
  int64_t devices = 0;  // that these ranks are on

  int64_t Refused() const {
    return refused_products + refused_epilogues + refused_attention + refused_convolutions;
  }
};

// Work that can be done in several ways, the first of which the vendor's library holds to be the fastest: a
// product of matrices. Only timing them on the card tells.
struct LibraryChoice {
  std::string work;       // one line: shape, types, what is fused, the card, the library and its version
  int64_t proposal = -1;  // of the library, from 0; from kSumsApart on see there; -1: not known yet
};
// A product that also gives the gradient of a bias: kSumsApart + i is the library's proposal i for the
// product alone, followed by sums of our own.
inline constexpr int64_t kSumsApart = 512;

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const std::string& kind() const = 0;  // "cuda"
  virtual int device_count() const = 0;
  // "NVIDIA H100 80GB HBM3, 79.6 GB, driver 580.65, CUDA 13.0": for logs and errors.
  virtual std::string Describe(int device) const = 0;
  // Creates the Device of rank `rank` on device number `device`. Throws Error in one sentence when the device
  // cannot be used. Several ranks may have the same device (virtual devices): each has streams and memory of
  // its own. Host memory that the device uses comes from `host_memory` if given (so that other processes see
  // it, too).
  virtual std::unique_ptr<Device> MakeDevice(int rank, int device, MemorySource* host_memory = nullptr) = 0;
  virtual void AddKernels(KernelRegistry* registry) const = 0;
  // Whether the vendor's library for groups is available.
  virtual bool HasGroups() const = 0;
  // Whether ranks of one group may be on one device if each is the only rank of its process. False for NCCL
  // unless it is 2.30 or newer and the environment has its NCCL_MULTI_RANK_GPU_ENABLE=1.
  virtual bool GroupsShareDevices() const { return false; }
  // MakeGroupId: one member of a group creates an identifier and sends it to all. Connect: creates the ends
  // of all members that this process hosts, in one call (as the library requires); devices[i] is that of
  // `ranks[members[i]]`.
  virtual std::string MakeGroupId() = 0;
  virtual std::vector<std::unique_ptr<GroupMember>> Connect(const std::string& id, const GroupSpec& group,
                                                            const std::vector<int>& members,
                                                            const std::vector<Device*>& devices) = 0;
  // Creates a group of some ranks of `parent`, which shares the parent's memory if the library can.
  // Collective among the processes that host a member of the parent: `parents` are the members hosted here,
  // by their index in the parent's ranks. Returns the new group's ends here, by index in its own ranks. If
  // the library cannot split groups, returns nullopt on all processes; use Connect then.
  virtual std::optional<std::map<int, std::unique_ptr<GroupMember>>> Split(
      const GroupSpec& /*parent*/, const std::map<int, GroupMember*>& /*parents*/,
      const GroupSpec& /*group*/) {
    return std::nullopt;
  }
  // Runs `calls`, which makes one call for each of several members of one group that this process hosts, as
  // one launch: no other call of the process comes in between, which might wait for the first and delay the
  // second.
  virtual Status LaunchTogether(const std::function<Status()>& calls) { return calls(); }
  virtual BackendCounts Counts() const { return {}; }
  // The work of the kernels made so far in this process for which nothing is decided, as on this device, with
  // what an earlier run has kept on disk. Ordered by `work`.
  virtual std::vector<LibraryChoice> OpenChoices(Device* /*device*/) { return {}; }
  // Times the library's first proposals for work of OpenChoices and returns the fastest; the first one unless
  // another takes less than 98 % of its time. -1 where they cannot be compared: `scratch`, memory of the
  // stream's device that the work's operands lie in meanwhile, is too small, or the library refuses the work.
  // Nothing may be enqueued on the stream; waits for it. `seconds`, unless it is null, gets the time of each
  // proposal by its number; those that were far slower than the fastest ran only twice.
  virtual int64_t TimeProposals(const std::string& /*work*/, DeviceStream* /*stream*/, void* /*scratch*/,
                                int64_t /*bytes*/, std::map<int64_t, double>* /*seconds*/) {
    return -1;
  }
  // Decides, for the rest of the process: kernels that have not run yet take these proposals. `keep`: and
  // later runs of this user do.
  virtual void Decide(const std::vector<LibraryChoice>& /*choices*/, bool /*keep*/) {}
};

// The backend for devices of `kind`, opened once per process. Throws Error in one sentence that says what is
// missing: the library (a build without the toolkit), the driver, a new enough driver, a device.
Backend* OpenBackend(const std::string& kind);
// Replaces the library by a backend, for tests; nullptr restores it.
void SetBackend(const std::string& kind, Backend* backend);

}  // namespace oneflow_like
