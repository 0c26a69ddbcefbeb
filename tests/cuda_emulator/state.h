// What the emulator's files share: devices, streams, events, graphs, and how faults are told.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/cuda_emulator/cuda_runtime.h"
#include "tests/cuda_emulator/emulator.h"

namespace cuda_emulator {

// --- Faults (world.cc)
void TellFault(const std::string& sentence);
// On a stream's thread: its device is lost, as after cudaErrorLaunchFailure.
void KernelFailed();
std::string PlaceOfBlock();
Order CurrentOrder();
void CountKernel();

// --- Memory (memory.cc)
// A block of device memory of 0xFF with guarded ends, closed to threads of the host; nullptr when mmap fails.
void* AllocateDevice(int device, size_t bytes);
void FreeDevice(void* data);  // looks at the guards
void* AllocatePinned(size_t bytes);
struct BlockOfMemory {
  char* mapping = nullptr;  // where it was mapped, and how much; nullptr: it is only registered
  size_t mapped = 0;
  char* data = nullptr;
  size_t bytes = 0;
  int device = -1;  // -1: pinned memory of the host
};
// The block that `data` points into, or one without data.
BlockOfMemory FindMemory(const void* data);
// Makes memory of the host pinned, which others allocated; false where some of it is pinned. And ends that.
bool RegisterMemory(void* data, size_t bytes);
bool UnregisterMemory(void* data);
void FreeAllMemory();
// What the calling thread may touch: of every device whose bit is set.
void OpenDevices(unsigned devices);
unsigned OpenAllDevices();  // returns what it could touch before

// --- Streams and events
struct Moment {  // what an event was when it was recorded
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::chrono::steady_clock::time_point time;
  void Finish();
  void Wait();
  bool Done();
};

struct Capture {
  cudaStreamCaptureMode mode;
  cudaStream_t origin;
  std::thread::id thread;
  std::vector<std::function<void()>> operations;
  std::set<cudaStream_t> streams;   // that take part
  std::set<cudaStream_t> unjoined;  // with work that the origin has not waited for
  bool invalid = false;
};

using Work = std::function<void()>;

// --- What can hang (hazards.cc)
// A call that may wait for the device under the driver's lock begins.
void MayWait(const char* call);
// A member of a group of `members`, all in this process, launches call `number` of `group`.
void LaunchMember(const void* group, int64_t number, int members);
// Those of the group that were launched in part end.
void ForgetLaunches(const void* group);
// While one lives a collective has its blocks of the device.
class Resident {
 public:
  explicit Resident(int device);
  ~Resident();
  Resident(const Resident&) = delete;

 private:
  int device_;
};
// The work in its turn in the hardware queue of its stream.
Work InTurn(cudaStream_t stream, Work work);
void ResetHazards();

}  // namespace cuda_emulator

struct CUstream_st {
  int device = 0, number = 0, priority = 0;
  bool blocking = false;  // waits for the legacy stream and the other way round
  std::shared_ptr<cuda_emulator::Capture> capture;
  // Below: under `mutex`.
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<cuda_emulator::Work> queue;
  bool awake = false;  // the thread works until the queue is empty
  int64_t enqueued = 0, done = 0;
  int waiting = 0;       // threads that wait for it
  int64_t fail_at = -1;  // number of the operation that loses the device
  cudaError_t fail_with = cudaErrorLaunchFailure;
  bool closing = false;
  std::thread thread;
  std::chrono::nanoseconds stated{0};  // that its work is stated to take, beyond what it takes; its thread's
};

struct CUevent_st {
  int device = 0;
  bool timing = true;
  std::shared_ptr<cuda_emulator::Moment> moment;    // nullptr: never recorded
  std::shared_ptr<cuda_emulator::Capture> capture;  // of the capture it was recorded in
  cudaStream_t captured_on = nullptr;
};

struct CUgraph_st {
  std::vector<std::function<void()>> operations;
};
struct CUgraphExec_st {
  std::shared_ptr<const std::vector<std::function<void()>>> operations;
};

namespace cuda_emulator {

struct DeviceState {
  std::atomic<cudaError_t> sticky{cudaSuccess};
  std::atomic<size_t> used{0};
  std::atomic<bool> opened{false};  // it has a context: hundreds of megabytes of a real device
  std::set<int> peers;              // whose memory its kernels may touch
  std::unique_ptr<CUstream_st> legacy;
  std::set<cudaStream_t> streams;
};

struct World {
  std::mutex mutex;  // of everything here but atomics
  Options options;
  std::map<int, std::unique_ptr<DeviceState>> devices;
  int next_stream = 1;
  std::set<std::shared_ptr<Capture>> captures;  // under way
  std::set<cudaEvent_t> events;
  std::set<cudaGraph_t> graphs;
  std::set<cudaGraphExec_t> execs;
  int fail_allocation = -1, fail_capture = -1;
  int pauses = 0;
  std::condition_variable resumed;
  std::atomic<int> longest_delay_us{0};
  std::atomic<int> copy_delay_us{0}, tf32_delay_us{0};
  std::atomic<uint64_t> seed{1};
  std::atomic<Order> order{Order::kAlternate};
  std::atomic<int64_t> host_synchronisations{0}, operations{0}, kernels{0}, instantiated{0}, launches{0},
      allocations{0}, host_bytes{0};
};
World& TheWorld();

// --- What the files of the runtime share (world.cc, streams.cc, capture.cc)
struct ThreadState {
  int device = 0;
  cudaError_t last = cudaSuccess;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  cudaStream_t running = nullptr;  // on a stream's thread
  bool host_function = false;
};
ThreadState& ThisThread();
// Keeps what is no success as the thread's last error.
cudaError_t Tell(cudaError_t error);
// What every call asks first: a driver, a device that is not lost, no callback. Enter also opens the thread's
// device, as most calls do.
cudaError_t Look();
cudaError_t Enter();
// Calls that a capture under way forbids (CUDA: "potentially unsafe").
cudaError_t EnterUnsafe();
DeviceState& DeviceOf(int device);
bool Exists(int device);
cudaStream_t StreamOf(cudaStream_t stream);  // 0: the device's legacy stream
void StartStream(cudaStream_t stream);
void StopStream(cudaStream_t stream);  // after what it has still to do
// Nobody may wait for what is pushed until the stream is woken: a kernel takes less than waking a thread
// does.
void Push(cudaStream_t stream, Work work);
void Wake(cudaStream_t stream);
// Enqueues, or records when the stream is capturing.
void Submit(cudaStream_t stream, Work work);
void WaitForStream(cudaStream_t stream);
void Invalidate(const std::shared_ptr<Capture>& capture);

}  // namespace cuda_emulator
