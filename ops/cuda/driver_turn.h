// Decides which calls into CUDA may run at the same time. A kernel of a collective spins until its peers'
// kernels run. Calls that allocate, free, load code or instantiate a graph may wait for such a kernel while
// they hold a lock of the driver, and the launch of a peer on another card of the same process needs that
// lock: neither continues. NVIDIA's remedy (NCCL's documentation, "Concurrency between NCCL and CUDA calls")
// is a lock around both.
//
// So every call into CUDA is made in a DriverCall, of which there may be any number at a time. The launches
// of one collective on all cards of the process are made in a CollectiveLaunch, during which there is no
// DriverCall. A running collective then never needs a launch of its own process, and every call that waits
// for it ends. Calls that wait without a lock of the driver (cudaStreamSynchronize) are in neither.
#pragma once

namespace oneflow_like::cuda {

// Nests: inside another one of the thread, or inside its CollectiveLaunch, it does nothing.
class DriverCall {
 public:
  DriverCall();
  ~DriverCall();
  DriverCall(const DriverCall&) = delete;
};

// REQUIRES: the thread is in no DriverCall.
class CollectiveLaunch {
 public:
  CollectiveLaunch();
  ~CollectiveLaunch();
  CollectiveLaunch(const CollectiveLaunch&) = delete;
};

}  // namespace oneflow_like::cuda
