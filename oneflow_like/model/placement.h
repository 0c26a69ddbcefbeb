// Assigns its host's devices to ranks, and computes the memory that a rank needs beside its plan.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "oneflow_like/model/model_impl.h"

namespace oneflow_like {

// The job's processes on the host of one process, and the place of that one among them.
struct ProcessesOfHost {
  int count = 1, me = 0;
};
ProcessesOfHost ProcessesBeside(const Job* job, int process);
// Cores for the threads of this process: what machine, affinity and control groups allow, shared equally with
// the job's processes that share each of them.
int CoresHere(const Job* job);
// Cores, of `cores` of a process, that kernels take: `threads` of them if that is given (not 0), else all; on
// a mesh of GPUs one for each GPU of the process, which is one of `processes`.
int CoresOfKernels(const Mesh& mesh, int processes, int cores, int threads);

// The device of a rank among the `given` devices of its host: one of its own if there are enough, else
// several ranks share one as virtual devices, neighbours together.
int64_t DeviceOf(const ModelImpl& model, int rank, int64_t given);

// Whether ranks of another process of the job are on a device of this process's ranks.
bool SharesDevices(const ModelImpl& model);
// Whether the job's processes, each of one rank, may share devices by the library for groups. Collective,
// once the backend is opened; if this process would and the job may not, a warning says why.
bool GroupsShareDevices(const ModelImpl& model);

// For a rank on a device other than the host. If devices have not been opened and are not named, each rank is
// assumed to have one of its own.
struct MemoryBesides {
  // In which groups pack, as much for each stream as one of its groups needs at most; of libraries and of
  // communicators.
  int64_t device = 0;
  int64_t libraries = 0;      // of `device`: the rank's part of what its process takes (library_memory.h)
  int64_t communicators = 0;  // of `device`: of the library's groups, at most
  int64_t host = 0;  // copied to and from by the device: inputs, outputs, groups that meet on the host
  std::vector<std::pair<std::string, int64_t>> consumers;  // of `device`
};
MemoryBesides MemoryBesidesPlan(const ModelImpl& model, const plan::Plan& plan);
// What a cuda device keeps beside arena and variables for a second plan of a session that has `besides`
// itself: streams and groups of its own.
int64_t DeviceBytesOfSecondPlan(const MemoryBesides& besides);

// RankSummary::feed_bytes, of any device.
int64_t FeedBytes(const plan::Plan& plan, int steps_in_flight);

}  // namespace oneflow_like
