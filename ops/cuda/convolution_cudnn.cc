// Convolutions by cuDNN: plans are kept by convolution and device.
#if defined(OFL_HAVE_CUDNN)

#include <cudnn.h>
#include <glog/logging.h>

#include <mutex>
#include <vector>

#include "ops/cuda/convolution_graph_cudnn.h"
#include "ops/cuda/library_use.h"

namespace oneflow_like::cuda {
namespace {

// Threads of all ranks that share the device launch it in turn.
struct ConvolutionEntry {
  LibraryConvolution convolution;
  int device = 0;
  size_t room = 0;  // of work space it was made for
  ConvolutionPlan made;
  mutable std::mutex launching;
};

void SayRefusedConvolution(const LibraryConvolution& c, const std::string& why) {
  const ConvolutionShape& s = c.shape;
  Count(LibraryUse::kRefusedConvolution);
  const char* const what = c.kind == ConvolutionKind::kForward     ? "a convolution"
                           : c.kind == ConvolutionKind::kGradInput ? "a convolution's gradient of its input"
                                                                   : "a convolution's gradient of its filter";
  LOG(WARNING) << what << " of " << s.batch << " planes of " << s.rows.in << " x " << s.columns.in << ", "
               << s.groups * s.in << " to " << s.groups * s.out << " channels in " << s.groups
               << " groups, window " << s.rows.window << " x " << s.columns.window << ", " << Name(c.dtype)
               << ": done by our own kernel, which is slower, as cuDNN does not take it: " << why;
}

// Kernels of equal shape share what is found here.
std::shared_ptr<const ConvolutionEntry> ConvolutionEntryOf(const LibraryConvolution& convolution, int device,
                                                           size_t room, cudnnHandle_t handle) {
  static std::mutex mutex;  // threads of several ranks make plans
  static auto* entries = new std::vector<std::shared_ptr<const ConvolutionEntry>>;
  std::lock_guard lock(mutex);
  for (const auto& entry : *entries)
    if (entry->convolution == convolution && entry->device == device && entry->room == room) return entry;
  auto made = std::make_shared<ConvolutionEntry>();
  made->convolution = convolution;
  made->device = device;
  made->room = room;
  made->made = MakeConvolutionPlan(convolution, room, {handle, nullptr});
  if (!made->made.plan) SayRefusedConvolution(convolution, made->made.refused);
  entries->push_back(made);
  return made;
}

class CudnnConvolutions : public ConvolutionLibrary {
 public:
  bool Takes(const LibraryConvolution& convolution, const LaunchContext& launch) override {
    int device = -1;
    cudnnHandle_t handle = nullptr;
    if (cudaGetDevice(&device) != cudaSuccess) return false;
    if (!entry_ || !(entry_->convolution == convolution) || entry_->device != device ||
        entry_->room != launch.workspace_bytes) {
      if (!CudnnHandle(device, &handle).ok()) return false;
      entry_ = ConvolutionEntryOf(convolution, device, launch.workspace_bytes, handle);
    }
    return entry_->made.plan != nullptr;
  }

  Status Launch(const LibraryConvolution&, const ConvolutionOperands& p,
                const LaunchContext& launch) override {
    cudnnHandle_t handle = nullptr;
    if (Status status = CudnnHandle(entry_->device, &handle); !status.ok()) return status;
    if (cudnnStatus_t status = cudnnSetStream(handle, launch.stream); status != CUDNN_STATUS_SUCCESS)
      return Status(Cat("cudnnSetStream: ", cudnnGetErrorString(status)));
    std::lock_guard lock(entry_->launching);
    const ConvolutionPlan& made = entry_->made;
    char* const rest = static_cast<char*>(launch.workspace) + made.narrow_bytes;
    void* const filter = made.widen ? launch.workspace : p.filter;
    Status status = LaunchPlan(handle, *made.plan, {kConvolutionX, kConvolutionFilter, kConvolutionY},
                               {p.x, filter, p.y}, rest);
    if (status.ok() && made.widen)
      status = LaunchPlan(handle, *made.widen, {kNarrowFilter, kConvolutionFilter}, {filter, p.filter}, rest);
    return status.ok() ? status : Status(Cat("cuDNN convolution: ", status.message()));
  }

 private:
  std::shared_ptr<const ConvolutionEntry> entry_;  // of the last convolution
};

}  // namespace

std::unique_ptr<ConvolutionLibrary> MakeConvolutionLibrary() { return std::make_unique<CudnnConvolutions>(); }

}  // namespace oneflow_like::cuda

#endif
