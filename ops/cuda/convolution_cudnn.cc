// Convolutions by cuDNN.
#if defined(OFL_HAVE_CUDNN)

#include <cudnn.h>
#include <glog/logging.h>

#include "ops/cuda/convolution_graph_cudnn.h"
#include "ops/cuda/library_use.h"
#include "ops/cuda/plan_cache_cudnn.h"

namespace oneflow_like::cuda {
namespace {

// Plans are kept, so that a refusal is said once.
ConvolutionPlan PlanFor(const LibraryConvolution& c, const CudnnTarget& target, size_t room) {
  ConvolutionPlan made = MakeConvolutionPlan(c, room, target);
  if (made.plan) return made;
  const ConvolutionShape& s = c.shape;
  Count(LibraryUse::kRefusedConvolution);
  const char* const what = c.kind == ConvolutionKind::kForward     ? "a convolution"
                           : c.kind == ConvolutionKind::kGradInput ? "a convolution's gradient of its input"
                                                                   : "a convolution's gradient of its filter";
  LOG(WARNING) << what << " of " << s.batch << " planes of " << s.rows.in << " x " << s.columns.in << ", "
               << s.groups * s.in << " to " << s.groups * s.out << " channels in " << s.groups
               << " groups, window " << s.rows.window << " x " << s.columns.window << ", " << Name(c.dtype)
               << ": done by our own kernel, which is slower, as cuDNN does not take it: " << made.refused;
  return made;
}

class CudnnConvolutions : public ConvolutionLibrary {
 public:
  bool Takes(const LibraryConvolution& convolution, const LaunchContext& launch) override {
    const ConvolutionPlan* made = plans_.For(
        convolution, launch,
        [&](const CudnnTarget& target, size_t room) { return PlanFor(convolution, target, room); });
    return made != nullptr && made->plan != nullptr;
  }

  Status Launch(const LibraryConvolution&, const ConvolutionOperands& p,
                const LaunchContext& launch) override {
    return plans_.Launch(launch, [&](cudnnHandle_t handle, const ConvolutionPlan& made) {
      char* const rest = static_cast<char*>(launch.workspace) + made.narrow_bytes;
      void* const filter = made.widen ? launch.workspace : p.filter;
      Status status = LaunchPlan(handle, *made.plan, {kConvolutionX, kConvolutionFilter, kConvolutionY},
                                 {p.x, filter, p.y}, rest);
      if (status.ok() && made.widen)
        status =
            LaunchPlan(handle, *made.widen, {kNarrowFilter, kConvolutionFilter}, {filter, p.filter}, rest);
      return status.ok() ? status : Status(Cat("cuDNN convolution: ", status.message()));
    });
  }

 private:
  CachedPlan<LibraryConvolution, ConvolutionPlan> plans_;
};

}  // namespace

std::unique_ptr<ConvolutionLibrary> MakeConvolutionLibrary() { return std::make_unique<CudnnConvolutions>(); }

}  // namespace oneflow_like::cuda

#endif
