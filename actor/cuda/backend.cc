// What is there (driver, devices), and the devices of ranks.
#include "actor/cuda/backend.h"

#include <fstream>
#include <iomanip>
#include <map>
#include <mutex>
#include <sstream>

#include "actor/cuda/counts.h"
#include "actor/cuda/device.h"
#include "actor/cuda/error.h"
#include "actor/cuda/nccl.h"
#include "actor/cuda/stream.h"
#include "ops/cuda/driver_turn.h"
#include "ops/cuda/library_use.h"
#include "ops/cuda/manifest.h"
#include "ops/cuda/product_choices.h"

namespace oneflow_like::cuda {
namespace {

// 13000 -> "13.0"
std::string Version(int version) { return Cat(version / 1000, ".", version % 1000 / 10); }

// Of the kernel module, as people know drivers: "580.65.06". Empty where the system does not say.
std::string DriverRelease() {
  std::string release;
  std::getline(std::ifstream("/sys/module/nvidia/version"), release);
  return release;
}

int DriverVersion() {
  int version = 0;
  if (cudaDriverGetVersion(&version) != cudaSuccess) cudaGetLastError();
  return version;
}

// A driver serves every runtime of its major version, and older ones.
void CheckDriver() {
  int driver = DriverVersion(), runtime = 0;
  Require(cudaRuntimeGetVersion(&runtime), "the CUDA runtime does not start");
  if (driver == 0) {
    Fail("there is no NVIDIA driver on this machine (libcuda.so.1 was not found): install one for CUDA ",
         runtime / 1000, " or newer, or take a cpu mesh");
  }
  if (driver / 1000 < runtime / 1000) {
    std::string release = DriverRelease();
    Fail("the NVIDIA driver", release.empty() ? "" : " ", release, " is too old: it serves CUDA ",
         Version(driver), ", and this program needs CUDA ", runtime / 1000,
         ".0 or newer (it is built with CUDA ", Version(runtime), ")");
  }
}

int CountDevices() {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
    cudaGetLastError();
    Fail(
        "the NVIDIA driver is there, but no GPU: none is in this machine or container, or "
        "CUDA_VISIBLE_DEVICES "
        "hides it");
  }
  if (error == cudaErrorInsufficientDriver) {
    cudaGetLastError();
    int runtime = 0;
    cudaRuntimeGetVersion(&runtime);
    Fail("the NVIDIA driver is too old: it serves CUDA ", Version(DriverVersion()),
         ", and this program is built with CUDA ", Version(runtime));
  }
  Require(error, "the GPUs of this machine cannot be counted");
  return count;
}

class CudaBackend : public Backend {
 public:
  CudaBackend() {
    CheckDriver();
    count_ = CountDevices();
  }

  const std::string& kind() const override { return kind_; }
  int device_count() const override { return count_; }

  std::string Describe(int device) const override {
    CheckNumber(device);
    cudaDeviceProp properties;
    Require(cudaGetDeviceProperties(&properties, device), "GPU ", device, " cannot be described");
    std::ostringstream text;
    text << properties.name << ", " << std::fixed << std::setprecision(1)
         << static_cast<double>(properties.totalGlobalMem) / (1 << 30) << " GiB, ";
    if (std::string release = DriverRelease(); !release.empty()) text << "driver " << release << ", ";
    text << "CUDA " << Version(DriverVersion());
    return text.str();
  }

  std::unique_ptr<Device> MakeDevice(int rank, int device, MemorySource* host_memory) override {
    CheckNumber(device);
    return std::make_unique<CudaDevice>(rank, GetGpu(device), host_memory);
  }

  void AddKernels(KernelRegistry* registry) const override { AddCudaKernels(registry); }
  bool HasGroups() const override { return cuda::HasGroups(); }
  bool GroupsShareDevices() const override { return cuda::GroupsShareDevices(); }
  std::string MakeGroupId() override { return cuda::MakeGroupId(); }
  std::vector<std::unique_ptr<GroupMember>> Connect(const std::string& id, const GroupSpec& group,
                                                    const std::vector<int>& members,
                                                    const std::vector<Device*>& devices) override {
    CheckOwnGpus(group, members, devices);
    return ConnectGroup(id, group, members, devices);
  }
  std::optional<std::map<int, std::unique_ptr<GroupMember>>> Split(const GroupSpec& parent,
                                                                   const std::map<int, GroupMember*>& parents,
                                                                   const GroupSpec& group) override {
    return SplitGroup(parent, parents, group);
  }
  Status LaunchTogether(const std::function<Status()>& calls) override {
    CollectiveLaunch launch;
    return cuda::LaunchTogether(calls);
  }

  std::vector<LibraryChoice> OpenChoices(Device* device) override {
    return Choices().Open(static_cast<CudaDevice*>(device)->gpu().ordinal());
  }
  int64_t TimeProposals(const std::string& work, DeviceStream* device_stream, void* scratch, int64_t bytes,
                        std::map<int64_t, double>* all) override {
    auto* stream = static_cast<CudaStream*>(device_stream);
    const ChoosableWork* wanted = Choices().Find(work, stream->device().gpu().ordinal());
    LaunchContext launch;
    if (wanted == nullptr || !stream->ForLaunches(&launch).ok()) return -1;
    const std::map<int64_t, double> seconds = wanted->time(launch, scratch, bytes);
    if (all != nullptr) *all = seconds;
    return seconds.empty() ? -1 : FastestProposal(seconds);
  }
  void Decide(const std::vector<LibraryChoice>& choices, bool keep) override {
    Choices().Decide(choices, keep);
  }

  BackendCounts Counts() const override {
    const StreamCounts& streams = cuda::Counts();
    BackendCounts counts;
    counts.library_products = Counted(LibraryUse::kProduct);
    counts.library_attention = Counted(LibraryUse::kAttention);
    counts.library_convolutions = Counted(LibraryUse::kConvolution);
    counts.refused_products = Counted(LibraryUse::kRefusedProduct);
    counts.refused_epilogues = Counted(LibraryUse::kRefusedEpilogue);
    counts.refused_attention = Counted(LibraryUse::kRefusedAttention);
    counts.refused_convolutions = Counted(LibraryUse::kRefusedConvolution);
    counts.failed_recordings = streams.failed_recordings;
    counts.parts = streams.parts;
    counts.unrecorded_parts = streams.parts - streams.recorded_parts;
    counts.graphs = streams.graphs;
    counts.timed_products = Counted(LibraryUse::kTimedProduct);
    counts.other_proposals = Choices().OtherProposals();
    counts.products_together = Choices().Together();
    counts.graph_launches = streams.graph_launches;
    counts.lone_launches = streams.lone_launches;
    counts.graph_nodes = streams.graph_nodes;
    counts.graph_nanoseconds = streams.graph_nanoseconds;
    counts.graph_wait_nanoseconds = streams.graph_wait_nanoseconds;
    counts.recording_nanoseconds = streams.recording_nanoseconds;
    counts.lone_nanoseconds = streams.lone_nanoseconds;
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [ordinal, gpu] : gpus_) {
      counts.allocated_bytes += gpu->allocated_bytes();
      counts.other_bytes += gpu->OtherBytes();
      counts.ranks += gpu->ranks();
      counts.devices += gpu->ranks() > 0;
    }
    return counts;
  }

 private:
  void CheckNumber(int device) const {
    if (device >= 0 && device < count_) return;
    Fail("there is no GPU ", device, ": this machine has ", count_, count_ == 1 ? " GPU" : " GPUs",
         ", numbered from 0");
  }

  Gpu* GetGpu(int ordinal) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::unique_ptr<Gpu>& gpu = gpus_[ordinal];
    if (gpu == nullptr) gpu = std::make_unique<Gpu>(ordinal);
    return gpu.get();
  }

  const std::string kind_ = "cuda";
  int count_ = 0;
  mutable std::mutex mutex_;  // gpus_: ranks may be loaded by several threads
  std::map<int, std::unique_ptr<Gpu>> gpus_;
};

}  // namespace

std::unique_ptr<Backend> MakeBackend() { return std::make_unique<CudaBackend>(); }

}  // namespace oneflow_like::cuda

oneflow_like::Backend* OflBackend() {
  static std::mutex mutex;
  static oneflow_like::Backend* backend = nullptr;  // never destroyed: devices may outlive static objects
  std::lock_guard<std::mutex> lock(mutex);
  if (backend == nullptr) backend = oneflow_like::cuda::MakeBackend().release();
  return backend;
}
