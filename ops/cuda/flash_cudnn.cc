// Attention by cuDNN's fused kernels: plans are kept by shape and device, launches are variant packs of a
// plan.
#if defined(OFL_HAVE_CUDNN)

#include <cudnn.h>
#include <glog/logging.h>

#include <limits>
#include <map>
#include <mutex>
#include <utility>

#include "ops/cuda/flash.h"
#include "ops/cuda/flash_graph_cudnn.h"
#include "ops/cuda/library_use.h"

namespace oneflow_like::cuda {
namespace {

// The plan that serves a shape on a device. Launches are made by the threads of all ranks that share the
// device; a plan is not said to bear two at once, and enqueueing takes microseconds, so they take turns.
struct Entry {
  FlashShape shape;
  int device = 0;
  size_t room = 0;  // of work space it was made for
  FlashPlans plans;
  mutable std::mutex launching;
};

// A right result that is slower must not go unnoticed. Entries are kept, so this is said once.
void SayRefused(const Entry& entry) {
  const FlashShape& s = entry.shape;
  Count(LibraryUse::kRefusedAttention);
  LOG(WARNING) << "attention" << (s.backward ? "'s gradient" : "") << " of " << s.batch << " x " << s.heads
               << " heads, " << s.key_heads << " of keys, " << s.queries << " queries, " << s.keys
               << " keys, width " << s.width << ", " << Name(s.dtype)
               << ": done by our own kernels, which are slower, as cuDNN does not take it: "
               << entry.plans.refused;
}

// Kernels of equal shape (the layers of a model) share what is found here.
std::shared_ptr<const Entry> EntryOf(const FlashShape& shape, int device, size_t room, cudnnHandle_t handle) {
  static std::mutex mutex;  // threads of several ranks make plans
  static auto* entries = new std::vector<std::shared_ptr<const Entry>>;
  std::lock_guard lock(mutex);
  for (const auto& entry : *entries)
    if (entry->shape == shape && entry->device == device && entry->room == room) return entry;
  auto made = std::make_shared<Entry>();
  made->shape = shape;
  made->device = device;
  made->room = room;
  made->plans = MakeFlashPlans(shape, room, {handle, nullptr});
  if (made->plans.plans.empty()) SayRefused(*made);
  entries->push_back(made);
  return made;
}

// Masks hide scores behind this: -inf is what cuDNN's own interface gives from 9.10 on, and what its engines
// of today are built for.
float Lowest() {
  return cudnnGetVersion() >= 91000 ? -std::numeric_limits<float>::infinity()
                                    : std::numeric_limits<float>::lowest();
}

class CudnnFlash : public Flash {
 public:
  bool Takes(const FlashShape& shape, const LaunchContext& launch) override {
    int device = -1;
    cudnnHandle_t handle = nullptr;
    if (cudaGetDevice(&device) != cudaSuccess) return false;
    if (!entry_ || !(entry_->shape == shape) || entry_->device != device ||
        entry_->room != launch.workspace_bytes) {
      if (!CudnnHandle(device, &handle).ok()) return false;
      entry_ = EntryOf(shape, device, launch.workspace_bytes, handle);
    }
    return !entry_->plans.plans.empty();
  }

  Status Launch(const FlashShape& shape, const FlashOperands& operands,
                const LaunchContext& launch) override {
    cudnnHandle_t handle = nullptr;
    if (Status status = CudnnHandle(entry_->device, &handle); !status.ok()) return status;
    if (cudnnStatus_t status = cudnnSetStream(handle, launch.stream); status != CUDNN_STATUS_SUCCESS)
      return Status(Cat("cudnnSetStream: ", cudnnGetErrorString(status)));
    std::lock_guard lock(entry_->launching);
    for (const FlashLaunch& part : entry_->plans.launches)
      if (Status status = LaunchPart(handle, shape, operands, part, launch); !status.ok()) return status;
    return Status();
  }

 private:
  Status LaunchPart(cudnnHandle_t handle, const FlashShape& shape, const FlashOperands& p,
                    const FlashLaunch& part, const LaunchContext& launch) const {
    const FlashPlan& plan = entry_->plans.plans[part.plan];
    const int64_t b = part.batch, h = part.head;
    const int64_t row_q = shape.heads * shape.width, row_k = shape.key_heads * shape.width;
    const int64_t at_q = (b * shape.queries * row_q + h * shape.width) * 2,
                  at_k = (b * shape.all_keys * row_k + h / shape.group() * shape.width) * 2;
    auto at = [](const void* base, int64_t bytes) {
      return const_cast<char*>(static_cast<const char*>(base)) + bytes;
    };
    char* work = static_cast<char*>(launch.workspace);
    float scale = shape.scale, lowest = Lowest(), one = 1;
    float window = static_cast<float>(shape.window - shape.shift);
    int32_t keys = static_cast<int32_t>(shape.keys), queries = static_cast<int32_t>(shape.queries);
    std::vector<int64_t> ids = {kQ, kK, kV, kO, kLse, kScale};
    std::vector<void*> data = {at(p.q, at_q),
                               at(p.k, at_k),
                               at(p.v, at_k),
                               at(p.o, at_q),
                               p.lse + (b * shape.heads + h) * shape.queries,
                               &scale};
    auto add = [&](FlashId id, void* pointer) {
      ids.push_back(id);
      data.push_back(pointer);
    };
    if (shape.causal) {
      add(kLowest, &lowest);
      if (shape.shift != 0) {
        add(kKeys, &keys);
        add(kQueries, &queries);
      }
      if (shape.window != 0) add(kWindow, &window);
    }
    if (shape.masks != 0) {
      const int64_t before = shape.masks == 1 ? 0 : b;
      add(kMask, at(p.mask, before * shape.queries * shape.keys * 2));
    }
    if (shape.backward) {
      add(kDout, at(p.dout, at_q));
      add(kDq, at(p.dq, at_q));
      add(kDk, at(p.dk, at_k));
      add(kDv, at(p.dv, at_k));
      add(kDelta, work);
      add(kOne, &one);
      work += plan.part.DeltaBytes();
    }
    const Status status = LaunchPlan(handle, *plan.plan, ids, data, work);
    return status.ok() ? status : Status(Cat("cuDNN attention: ", status.message()));
  }

  std::shared_ptr<const Entry> entry_;  // of the last shape
};

}  // namespace

std::unique_ptr<Flash> MakeFlash() { return std::make_unique<CudnnFlash>(); }

}  // namespace oneflow_like::cuda

#endif
