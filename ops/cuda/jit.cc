// Every text of the process once: a table from text to what is, or is being, compiled. As many compile at a
// time as the host has processors.
#include "ops/cuda/jit.h"

#include <condition_variable>
#include <future>
#include <map>
#include <mutex>
#include <utility>

#include "core/system/cores.h"
#include "ops/cuda/jit_loaded.h"

namespace oneflow_like::cuda {
namespace {

// Lets a few in at a time. Shared by threads: the lock guards the count.
class Gate {
 public:
  explicit Gate(int most) : free_(most) {}
  void Enter() {
    std::unique_lock<std::mutex> lock(mutex_);
    opened_.wait(lock, [this] { return free_ > 0; });
    --free_;
  }
  void Leave() {
    std::lock_guard<std::mutex> lock(mutex_);
    ++free_;
    opened_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  int free_;
};

struct Result {
  Status status;
  std::unique_ptr<LoadedKernel> loaded;
};

class CompiledKernel : public Launchable {
 public:
  CompiledKernel(int architecture, std::shared_future<Result> result)
      : architecture_(architecture), result_(std::move(result)) {}
  int architecture() const override { return architecture_; }
  const Status& Wait() override { return result_.get().status; }
  Status Launch(const Grid& grid, cudaStream_t stream, const void* args, size_t bytes) override {
    const Result& result = result_.get();
    return result.status.ok() ? result.loaded->Launch(grid, stream, args, bytes) : result.status;
  }

 private:
  int architecture_;
  std::shared_future<Result> result_;
};

// Threads that load plans come at the same time; the lock guards the table.
struct Table {
  std::mutex mutex;
  std::map<std::pair<int, std::string>, std::shared_ptr<Launchable>> kernels;
  Gate gate{UsableCores()};
};
Table& TheTable() {
  static Table* const table = new Table;  // outlives threads that end with the process
  return *table;
}

}  // namespace

std::shared_ptr<Launchable> CompileKernel(const std::string& source, const std::string& function,
                                          int architecture) {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) (void)cudaGetLastError();
  Table& table = TheTable();
  std::lock_guard<std::mutex> lock(table.mutex);
  std::shared_ptr<Launchable>& kernel = table.kernels[{architecture, source}];
  if (kernel == nullptr) {
    kernel = std::make_shared<CompiledKernel>(
        architecture, std::async(std::launch::async, [&table, source, function, architecture, device] {
                        if (device > 0)
                          cudaSetDevice(device);  // not to open device 0 for what another one wants
                        table.gate.Enter();
                        Result result;
                        result.status = CompileAndLoad(source, function, architecture, &result.loaded);
                        table.gate.Leave();
                        return result;
                      }).share());
  }
  return kernel;
}

int CurrentArchitecture() {
  int device = 0, major = 0, minor = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess) {
    (void)cudaGetLastError();
    return 80;
  }
  return major * 10 + minor;
}

}  // namespace oneflow_like::cuda
