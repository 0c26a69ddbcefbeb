// Elementwise operators of floating and bool operands, dropout and fused chains: kernels made of generated
// text. Operands of other types go to elementwise.cu, casts that change only the precision to cast.cu.
#include "ops/cuda/chain.h"

#include <algorithm>
#include <span>
#include <vector>

#include "ops/cuda/generate.h"
#include "ops/cuda/jit.h"
#include "ops/cuda/kernels.h"
#include "ops/op.h"

namespace oneflow_like::cuda {
namespace {

class ChainKernel : public CudaKernel {
 public:
  explicit ChainKernel(const KernelSpec& spec) : chain_(GenerateChain(ChainOf(spec), spec)) {
    launch_.args.resize(chain_.arg_bytes);
    compiled_ = CompileKernel(chain_.source, chain_.function, CurrentArchitecture());
  }
  // A compiler that still runs when the program ends would outlive what it uses.
  ~ChainKernel() override { (void)compiled_->Wait(); }

  Status Launch(const KernelContext& context, const LaunchContext& launch) override {
    if (compiled_->architecture() != launch.architecture) {
      compiled_ = CompileKernel(chain_.source, chain_.function, launch.architecture);
    }
    PlanLaunch(chain_, context, launch.act, launch.multiprocessors, &launch_);
    if (launch_.grid.x == 0) return Status();
    return compiled_->Launch(launch_.grid, launch.stream, launch_.args.data(), launch_.args.size());
  }

 private:
  GeneratedChain chain_;
  ChainLaunch launch_;
  std::shared_ptr<Launchable> compiled_;
};

// add_n of more terms than one launch takes (a gradient norm's, of every weight): the first ones, then what
// is there and some more. In the same order, so in fp32 the same bits; 16-bit sums are rounded after each
// launch.
class LongSum : public CudaKernel {
 public:
  static constexpr size_t kTerms = 48;
  explicit LongSum(const KernelSpec& spec) {
    for (size_t from = 0; from < spec.in.size(); from += kTerms) {
      KernelSpec part = spec;
      part.in = Terms(spec.in, spec.out[0], from);
      parts_.push_back(std::make_unique<ChainKernel>(part));
    }
  }

  Status Launch(const KernelContext& context, const LaunchContext& launch) override {
    for (size_t part = 0; part < parts_.size(); ++part) {
      const std::vector<TensorArg> in = Terms(context.in, context.out[0], part * kTerms);
      Status status = parts_[part]->Launch({context.spec, in, context.out, context.scratch, context.step,
                                            context.time, context.times, context.seed},
                                           launch);
      if (!status.ok()) return status;
    }
    return Status();
  }

 private:
  static std::vector<TensorArg> Terms(std::span<const TensorArg> all, const TensorArg& sum, size_t from) {
    std::vector<TensorArg> terms;
    if (from > 0) terms.push_back(sum);
    terms.insert(terms.end(), all.begin() + from, all.begin() + std::min(all.size(), from + kTerms));
    return terms;
  }

  std::vector<std::unique_ptr<ChainKernel>> parts_;
};

KernelPtr MakeElementwise(const KernelSpec& spec) {
  auto chained = [](const TensorArg& arg) { return IsFloating(arg.dtype) || arg.dtype == DType::kBool; };
  bool all = !spec.in.empty() && std::all_of(spec.in.begin(), spec.in.end(), chained) &&
             std::all_of(spec.out.begin(), spec.out.end(), chained);
  if (all && spec.name == "add_n" && spec.in.size() > LongSum::kTerms) return std::make_unique<LongSum>(spec);
  if (spec.name == "cast") {
    if (KernelPtr cast = MakeFloatCast(spec.in[0].dtype, spec.out[0].dtype)) return cast;
  }
  if (all) return std::make_unique<ChainKernel>(spec);
  return MakeTypedElementwise(spec);
}

}  // namespace

void AddElementwiseKernels(KernelRegistry* registry) {
  for (const std::string& name : BuiltinCatalog().names()) {
    if (name == "identity" || BuiltinCatalog().Get(name).scalar.empty()) continue;
    registry->Add(name, "cuda", MakeElementwise);
  }
  registry->Add("fused", "cuda", MakeElementwise);
  for (const char* name :
       {"bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "left_shift", "right_shift"})
    registry->Add(name, "cuda", MakeTypedElementwise);
}

}  // namespace oneflow_like::cuda
