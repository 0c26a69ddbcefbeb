// Hazards that make a program with several devices hang: calls that wait for a device under the driver's lock
// while a collective is launched in part, hardware queues that streams share, and too few resident blocks.
#include <cstdlib>
#include <utility>

#include "tests/cuda_emulator/cuda_runtime.h"
#include "tests/cuda_emulator/state.h"

namespace cuda_emulator {
namespace {

struct HardwareQueue {
  int64_t given = 0, serving = 0;  // tickets
};

struct Hazards {
  std::mutex driver;  // the driver's lock: of calls that wait, and of launches of collectives
  std::mutex mutex;   // of all below
  std::condition_variable changed;
  std::map<std::pair<const void*, int64_t>, int> launched;  // members, of collectives launched in part
  std::set<std::pair<int, const void*>> loaded;             // code, by device
  std::map<std::pair<int, int>, HardwareQueue> queues;      // by device and number
  std::map<int, int> resident;                              // blocks of collectives, by device
};

Hazards& AllHazards() {
  static auto* hazards = new Hazards;
  return *hazards;
}

// False: it has taken too long.
template <typename Done>
bool WaitUntil(Hazards* hazards, std::unique_lock<std::mutex>* lock, Done done) {
  return hazards->changed.wait_for(*lock, std::chrono::milliseconds(TheWorld().options.hang_ms), done);
}

}  // namespace

void ResetHazards() {
  Hazards& hazards = AllHazards();
  std::lock_guard lock(hazards.mutex);
  hazards.launched.clear();
  hazards.loaded.clear();
  hazards.queues.clear();
  hazards.resident.clear();
}

void MayWait(const char* call) {
  Hazards& hazards = AllHazards();
  std::lock_guard driver(hazards.driver);
  std::unique_lock lock(hazards.mutex);
  if (WaitUntil(&hazards, &lock, [&] { return hazards.launched.empty(); })) return;
  hazards.launched.clear();
  lock.unlock();
  TellFault(std::string(call) +
            " waits for a collective whose launch on another device waits for the lock that it holds");
}

void LoadCode(const void* code) {
  Hazards& hazards = AllHazards();
  {
    std::lock_guard lock(hazards.mutex);
    if (!hazards.loaded.insert({ThisThread().device, code}).second) return;
  }
  MayWait("loading a kernel when it is first launched");
}

void LaunchMember(const void* group, int64_t number, int members) {
  Hazards& hazards = AllHazards();
  std::lock_guard driver(hazards.driver);
  std::lock_guard lock(hazards.mutex);
  if (++hazards.launched[{group, number}] < members) return;
  hazards.launched.erase({group, number});
  hazards.changed.notify_all();
}

void ForgetLaunches(const void* group) {
  Hazards& hazards = AllHazards();
  std::lock_guard lock(hazards.mutex);
  std::erase_if(hazards.launched, [&](const auto& launch) { return launch.first.first == group; });
  hazards.changed.notify_all();
}

Resident::Resident(int device) : device_(device) {
  const Options& options = TheWorld().options;
  if (options.blocks == 0) return;
  Hazards& hazards = AllHazards();
  std::unique_lock lock(hazards.mutex);
  const bool fits = WaitUntil(&hazards, &lock, [&] {
    return hazards.resident[device] + options.blocks_of_collective <= options.blocks;
  });
  hazards.resident[device] += options.blocks_of_collective;
  lock.unlock();
  if (!fits) TellFault("a collective waits for blocks that another one holds, which waits for its peer");
}

Resident::~Resident() {
  const Options& options = TheWorld().options;
  if (options.blocks == 0) return;
  Hazards& hazards = AllHazards();
  std::lock_guard lock(hazards.mutex);
  hazards.resident[device_] -= options.blocks_of_collective;
  hazards.changed.notify_all();
}

Work InTurn(cudaStream_t stream, Work work) {
  const int queues = TheWorld().options.hardware_queues;
  if (queues == 0 || stream->number < 0) return work;
  Hazards& hazards = AllHazards();
  const std::pair<int, int> queue(stream->device, stream->number % queues);
  std::lock_guard lock(hazards.mutex);
  const int64_t ticket = hazards.queues[queue].given++;
  return [queue, ticket, work = std::move(work)] {
    Hazards& all = AllHazards();
    {
      std::unique_lock waiting(all.mutex);
      if (!WaitUntil(&all, &waiting, [&] { return all.queues[queue].serving >= ticket; })) {
        all.queues[queue].serving = ticket;
        waiting.unlock();
        TellFault("a stream waits for another one that is before it in its hardware queue");
      }
    }
    work();
    std::lock_guard done(all.mutex);
    HardwareQueue& served = all.queues[queue];
    served.serving = std::max(served.serving, ticket + 1);
    all.changed.notify_all();
  };
}

}  // namespace cuda_emulator
