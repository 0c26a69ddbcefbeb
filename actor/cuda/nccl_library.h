// NCCL, opened when the first group is created, because loading its two hundred megabytes would slow down the
// start of every program on one GPU, and so that a machine without it runs on one GPU.
#pragma once

#include <nccl.h>

#include <string>

#include "core/error.h"

namespace oneflow_like::cuda {

struct NcclLibrary {
  decltype(&ncclGetVersion) GetVersion;
  decltype(&ncclGetUniqueId) GetUniqueId;
  decltype(&ncclGetErrorString) GetErrorString;
  decltype(&ncclGetLastError) GetLastError;
  decltype(&ncclCommInitRankConfig) CommInitRankConfig;
  decltype(&ncclCommGetAsyncError) CommGetAsyncError;
  decltype(&ncclCommFinalize) CommFinalize;
  decltype(&ncclCommDestroy) CommDestroy;
  decltype(&ncclCommAbort) CommAbort;
  decltype(&ncclCommSplit) CommSplit;  // nullptr before 2.18
  decltype(&ncclGroupStart) GroupStart;
  decltype(&ncclGroupEnd) GroupEnd;
  decltype(&ncclAllReduce) AllReduce;
  decltype(&ncclReduceScatter) ReduceScatter;
  decltype(&ncclAllGather) AllGather;
  decltype(&ncclSend) Send;
  decltype(&ncclRecv) Recv;

  // "unhandled cuda error (run with NCCL_DEBUG=INFO for details): ..."
  std::string Say(ncclResult_t result, ncclComm_t comm = nullptr) const;
};

// Never closed. Null, with the reason, if it is missing or too old. Thread-safe.
const NcclLibrary* FindNccl(std::string* why = nullptr);
// Throws Error if it is missing or too old.
const NcclLibrary& OpenNccl();

}  // namespace oneflow_like::cuda
