// Attention by cuDNN's fused kernels: plans are kept by shape and device, launches are variant packs of a
// plan.
#if defined(OFL_HAVE_CUDNN)

#include <cudnn.h>
#include <glog/logging.h>

#include <limits>
#include <vector>

#include "ops/cuda/flash.h"
#include "ops/cuda/flash_graph_cudnn.h"
#include "ops/cuda/library_use.h"
#include "ops/cuda/plan_cache_cudnn.h"

namespace oneflow_like::cuda {
namespace {

// A right result that is slower must not go unnoticed. Plans are kept, so this is said once.
FlashPlans PlansFor(const FlashShape& s, const CudnnTarget& target, size_t room) {
  FlashPlans made = MakeFlashPlans(s, room, target);
  if (!made.plans.empty()) return made;
  Count(LibraryUse::kRefusedAttention);
  LOG(WARNING) << "attention" << (s.backward ? "'s gradient" : "") << " of " << s.batch << " x " << s.heads
               << " heads, " << s.key_heads << " of keys, " << s.queries << " queries, " << s.keys
               << " keys, width " << s.width << ", " << Name(s.dtype)
               << ": done by our own kernels, which are slower, as cuDNN does not take it: " << made.refused;
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
    const FlashPlans* made = plans_.For(
        shape, launch, [&](const CudnnTarget& target, size_t room) { return PlansFor(shape, target, room); });
    return made != nullptr && !made->plans.empty();
  }

  Status Launch(const FlashShape& shape, const FlashOperands& operands,
                const LaunchContext& launch) override {
    return plans_.Launch(launch, [&](cudnnHandle_t handle, const FlashPlans& made) {
      Status status;
      for (size_t i = 0; i < made.launches.size() && status.ok(); ++i)
        status = LaunchPart(handle, shape, operands, made, made.launches[i], launch);
      return status;
    });
  }

 private:
  static Status LaunchPart(cudnnHandle_t handle, const FlashShape& shape, const FlashOperands& p,
                           const FlashPlans& made, const FlashLaunch& part, const LaunchContext& launch) {
    const FlashPlan& plan = made.plans[part.plan];
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

  CachedPlan<FlashShape, FlashPlans> plans_;
};

}  // namespace

std::unique_ptr<Flash> MakeFlash() { return std::make_unique<CudnnFlash>(); }

}  // namespace oneflow_like::cuda

#endif
