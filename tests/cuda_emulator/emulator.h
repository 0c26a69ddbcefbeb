// What tests ask of the emulated devices beside CUDA's own functions: how many there are, what goes wrong and
// when, and counts of what happened. Everything here is for the test's thread while nothing is enqueued,
// unless it says otherwise.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/cuda_emulator/cuda_runtime_api.h"

namespace cuda_emulator {

// In which order the threads of a block run between two barriers, and the blocks of a grid. A barrier that is
// missing shows in one order or the other; kAlternate changes from block to block and from launch to launch.
enum class Order { kForward, kReverse, kAlternate };

struct Options {
  int devices = 2;
  size_t memory = size_t{16} << 30;  // of each device; only what is written takes memory of the host
  int multiprocessors = 4;
  int driver = 13000;  // version the driver supports; 0: there is no driver
  cudaError_t start =
      cudaSuccess;    // what the first call says instead: cudaErrorNoDevice, cudaErrorInsufficientDriver
  bool peers = true;  // devices can reach each other
  Order order = Order::kAlternate;
  // Before an operation a stream sleeps up to so long, drawn from the seed and the stream's number: what was
  // not ordered by events comes in any order. 0: never.
  int longest_delay_us = 0;
  uint64_t seed = 1;
  // Operations run when they are enqueued, on the caller's thread: for tests of kernels, most of whose time
  // would go by in threads that wake each other. Streams then cannot wait for what comes later: no
  // collectives.
  bool at_once = false;
  // A call that may wait for a device (allocating, freeing, loading a kernel's code when it is first
  // launched, instantiating a graph) waits while a collective has been launched on some of its devices and
  // not on all, and holds the driver's lock, which launches of collectives need. After so long it is told as
  // a fault.
  int hang_ms = 10000;
  // Of each device; 0: as many as are wanted. Hardware queues: streams take them in turn, and what is in one
  // is done in the order in which it was enqueued. Blocks that can be resident at once, of which a collective
  // takes some from its launch until it has ended. What waits for either longer than hang_ms is a fault.
  int hardware_queues = 0;
  int blocks = 0, blocks_of_collective = 1;
  // Of device memory that a communicator takes, beside what anybody asked for.
  size_t bytes_of_communicator = 0;
  double stated_of_communicator = 0;  // and in BytesOfCommunicator
};

// Frees whatever is left of devices, streams and memory, and starts anew: every test begins with it.
void Reset(const Options& options = {});
// May be called at any time.
void SetOrder(Order order);
void SetDelays(int longest_delay_us, uint64_t seed);
// Each copy from one memory to another takes so long, as on a slow link; Reset ends that.
void SetCopyDelay(int delay_us);
// So does each of the library's products that rounds to TF32.
void SetTf32Delay(int delay_us);

// --- Injected failures; any thread, any time
void FailAllocation(int after = 0);  // the allocation after `after` others says that memory is short; once
void LoseDevice(int device, cudaError_t error = cudaErrorLaunchFailure);  // sticky: all that follows fails
// The device is lost when the stream comes to the operation after `after` others.
void FailOperation(cudaStream_t stream, int after = 0, cudaError_t error = cudaErrorLaunchFailure);
void FailCapture(int after = 0);  // the end of the capture after `after` others fails; once

// While one lives no stream starts another operation: what the host does meanwhile does not wait for the
// device.
class Pause {
 public:
  Pause();
  ~Pause();
  Pause(const Pause&) = delete;
};

// --- Counts since Reset; any thread
struct Counts {
  int64_t host_synchronisations = 0;  // calls that may wait for the device
  int64_t operations = 0;             // enqueued or recorded: kernels, copies, events
  int64_t kernels = 0;                // grids run
  int64_t graphs_instantiated = 0, graph_launches = 0;
  int64_t allocations = 0;                      // cudaMalloc, cudaMallocAsync and cudaHostAlloc
  int64_t bytes = 0, host_bytes = 0;            // held now: of devices, pinned
  int64_t streams = 0, events = 0, graphs = 0;  // alive
  int64_t contexts = 0;                         // devices that a call has opened
};
Counts GetCounts();

// Whether the library of matrix products refuses all that has an epilogue or adds to something, as a real one
// may.
void RefuseEpilogues(bool refuse);
// Which products it refuses altogether: batches whose results lie between each other, or all.
enum class Refused { kNone, kInterleaved, kAll };
void RefuseProducts(Refused which);

// What the library's proposals for a product, at most three, take on the clock of events, each further one as
// the last. Without times they are all the same, and none is timed; Reset ends it.
void SetProposalTimes(const std::vector<double>& seconds);
// What the gradient of a bias adds to the time of its product, and what a batch does: without it several
// products in one call take the time of one. And: from now on all proposals but the first are wrong. Reset
// ends these.
void SetBiasGradTime(double seconds);
void SetBatchTime(double seconds);
void SpoilProposals(bool spoil);

// From now on products by warpgroups (wgmma) are wrong, as on a card that reads operands otherwise than
// described; Reset ends it.
void SpoilWarpgroups(bool spoil);

// --- Faults of the programs that are run: a barrier that not all threads reach, a shuffle without all its
// lanes, bytes written around a block of memory. They print a sentence and abort, unless one of these lives:
// then they are kept here, and a kernel's fault is a lost device (cudaErrorLaunchFailure). One at a time.
class CatchFaults {
 public:
  CatchFaults();
  ~CatchFaults();
  CatchFaults(const CatchFaults&) = delete;
  std::vector<std::string> faults() const;
};
// Looks at the bytes around every block of device memory; freeing a block looks at its own.
void CheckGuards();
// Whether memory of devices cannot be touched by threads of the host: where the processor has protection
// keys.
bool HostIsKeptOut();

}  // namespace cuda_emulator
