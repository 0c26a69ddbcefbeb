// The world of emulated devices: what there is, what goes wrong, what was counted.
#include <cstdio>
#include <cstdlib>

#include "tests/cuda_emulator/state.h"

namespace cuda_emulator {
namespace {

std::mutex faults_mutex;  // faults come from threads of streams
bool catching = false;
std::vector<std::string> caught;

}  // namespace

World& TheWorld() {
  static auto* world = [] {
    auto* made = new World;
    return made;
  }();
  return *world;
}

ThreadState& ThisThread() {
  static thread_local ThreadState state;
  return state;
}

void TellFault(const std::string& sentence) {
  std::lock_guard lock(faults_mutex);
  if (!catching) {
    std::fprintf(stderr, "CUDA emulator: %s\n", sentence.c_str());
    std::abort();
  }
  caught.push_back(sentence);
}

void KernelFailed() {
  if (ThisThread().running != nullptr) LoseDevice(ThisThread().running->device, cudaErrorLaunchFailure);
}

Order CurrentOrder() { return TheWorld().order; }
void CountKernel() { ++TheWorld().kernels; }

CatchFaults::CatchFaults() {
  std::lock_guard lock(faults_mutex);
  catching = true;
  caught.clear();
}
CatchFaults::~CatchFaults() {
  std::lock_guard lock(faults_mutex);
  catching = false;
}
std::vector<std::string> CatchFaults::faults() const {
  std::lock_guard lock(faults_mutex);
  return caught;
}

DeviceState& DeviceOf(int device) {
  static std::mutex mutex;  // devices are made by the first call that asks, on any thread
  std::lock_guard lock(mutex);
  std::unique_ptr<DeviceState>& state = TheWorld().devices[device];
  if (state == nullptr) {
    state = std::make_unique<DeviceState>();
    state->legacy = std::make_unique<CUstream_st>();
    state->legacy->device = device;
    state->legacy->number = -1 - device;
    StartStream(state->legacy.get());
  }
  return *state;
}

cudaStream_t StreamOf(cudaStream_t stream) {
  if (stream != nullptr && stream != cudaStreamLegacy && stream != cudaStreamPerThread) return stream;
  return DeviceOf(ThisThread().device).legacy.get();
}

cudaError_t Tell(cudaError_t error) {
  if (error != cudaSuccess) ThisThread().last = error;
  return error;
}

cudaError_t Look() {
  World& world = TheWorld();
  if (ThisThread().host_function) return Tell(cudaErrorNotPermitted);
  if (world.options.start != cudaSuccess) return Tell(world.options.start);
  if (world.options.driver == 0 || world.options.driver < CUDART_VERSION / 1000 * 1000)
    return Tell(cudaErrorInsufficientDriver);
  if (world.options.devices == 0) return Tell(cudaErrorNoDevice);
  return Tell(DeviceOf(ThisThread().device).sticky);
}

cudaError_t Enter() {
  cudaError_t error = Look();
  if (error == cudaSuccess) DeviceOf(ThisThread().device).opened = true;
  return error;
}

void Reset(const Options& options) {
  World& world = TheWorld();
  {
    std::lock_guard lock(world.mutex);
    world.pauses = 0;
    world.resumed.notify_all();
  }
  for (auto& [number, device] : world.devices) {
    for (cudaStream_t stream : device->streams) {
      StopStream(stream);
      delete stream;
    }
    StopStream(device->legacy.get());
  }
  world.devices.clear();
  FreeAllMemory();
  for (cudaEvent_t event : world.events) delete event;
  for (cudaGraph_t graph : world.graphs) delete graph;
  for (cudaGraphExec_t exec : world.execs) delete exec;
  world.events.clear();
  world.graphs.clear();
  world.execs.clear();
  world.captures.clear();
  ResetHazards();
  world.options = options;
  world.next_stream = 1;
  world.fail_allocation = world.fail_capture = -1;
  world.longest_delay_us = options.longest_delay_us;
  world.copy_delay_us = world.tf32_delay_us = 0;
  world.seed = options.seed;
  world.order = options.order;
  for (auto* count : {&world.host_synchronisations, &world.operations, &world.kernels, &world.instantiated,
                      &world.launches, &world.allocations, &world.host_bytes})
    *count = 0;
  SetProposalTimes({});
  SpoilWarpgroups(false);
  SetBiasGradTime(0);
  SetBatchTime(0);
  SpoilProposals(false);
  ThisThread() = {};
}

void SetOrder(Order order) { TheWorld().order = order; }
void SetDelays(int longest_delay_us, uint64_t seed) {
  TheWorld().longest_delay_us = longest_delay_us;
  TheWorld().seed = seed;
}
void SetCopyDelay(int delay_us) { TheWorld().copy_delay_us = delay_us; }
void SetTf32Delay(int delay_us) { TheWorld().tf32_delay_us = delay_us; }
void FailAllocation(int after) {
  std::lock_guard lock(TheWorld().mutex);
  TheWorld().fail_allocation = after;
}
void FailCapture(int after) {
  std::lock_guard lock(TheWorld().mutex);
  TheWorld().fail_capture = after;
}
void LoseDevice(int device, cudaError_t error) {
  cudaError_t none = cudaSuccess;
  DeviceOf(device).sticky.compare_exchange_strong(none, error);
}
void FailOperation(cudaStream_t stream, int after, cudaError_t error) {
  stream = StreamOf(stream);
  std::lock_guard lock(stream->mutex);
  stream->fail_at = stream->enqueued + after;
  stream->fail_with = error;
}

Pause::Pause() {
  std::lock_guard lock(TheWorld().mutex);
  ++TheWorld().pauses;
}
Pause::~Pause() {
  std::lock_guard lock(TheWorld().mutex);
  --TheWorld().pauses;
  TheWorld().resumed.notify_all();
}

Counts GetCounts() {
  World& world = TheWorld();
  Counts counts;
  counts.host_synchronisations = world.host_synchronisations;
  counts.operations = world.operations;
  counts.kernels = world.kernels;
  counts.graphs_instantiated = world.instantiated;
  counts.graph_launches = world.launches;
  counts.allocations = world.allocations;
  counts.host_bytes = world.host_bytes;
  std::lock_guard lock(world.mutex);
  counts.events = static_cast<int64_t>(world.events.size());
  counts.graphs = static_cast<int64_t>(world.graphs.size() + world.execs.size());
  for (auto& [number, device] : world.devices) {
    counts.bytes += static_cast<int64_t>(device->used.load());
    counts.streams += static_cast<int64_t>(device->streams.size());
    counts.contexts += device->opened ? 1 : 0;
  }
  return counts;
}

bool Exists(int device) { return device >= 0 && device < TheWorld().options.devices; }

}  // namespace cuda_emulator
