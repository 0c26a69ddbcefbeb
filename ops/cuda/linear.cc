// linear, linear_grad_gelu and linear_grad_weight: one launch of the library, which does what follows the
// product before it stores it; a gradient of a bias also by a launch of its own, where that was timed and is
// faster (gemm.h, MakeProduct). Where a piece does not suit (several launches, rows of odd length, gelu in
// fp32) or the library refuses, the same by steps: the product, then an elementwise loop or a sum.
// Attribute "steps"=1 asks for that too, so that both can be measured.
#include <span>

#include "ops/cuda/contraction.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/library_use.h"
#include "ops/cuda/move.h"
#include "ops/cuda/products_together.h"
#include "ops/fused.h"
#include "ops/tf32.h"

namespace oneflow_like::cuda {
namespace {

constexpr int64_t kAuxMultiple = 8;  // of the leading dimension of what gelu's slope is taken at

// Kernels that steps are made of.
const KernelRegistry& StepKernels() {
  static const KernelRegistry* const registry = [] {
    auto* all = new KernelRegistry;
    AddElementwiseKernels(all);
    AddReduceKernels(all);
    AddProductKernels(all);
    return all;
  }();
  return *registry;
}

// Which operand of the node is what; -1: none. Outputs are counted from kOutput.
constexpr int kOutput = 100;
struct Roles {
  int bias = -1, residual = -1, aux = -1;
};

using Args = std::span<const TensorArg>;
const TensorArg& ArgAt(int role, Args in, Args out) {
  return role < kOutput ? in[role] : out[role - kOutput];
}

class LinearKernel : public ProductKernel {
 public:
  LinearKernel(const KernelSpec& spec, Epilogue epilogue, Roles roles)
      : ProductKernel(spec.attrs),
        spec_(spec),
        epilogue_(epilogue),
        roles_(roles),
        accumulates_(Accumulates(spec.attrs)),
        labels_(EinsumLabels(spec.attrs.Str("equation"))),
        types_{spec.in[0].dtype, spec.out[0].dtype, MayRoundToTf32(spec.attrs)} {
    Prepare(spec.in, spec.out);
  }

  Status Launch(const KernelContext& context, const LaunchContext& launch) override {
    if (context.in[0].extent != a_ || context.in[1].extent != b_) Prepare(context.in, context.out);
    if (gemm_ && !asked_) {
      asked_ = true;
      Status status = gemm_->Check();
      if (status.ok()) status = Multiply(context, launch);  // which may be refused as late as here
      if (status.ok()) return status;
      Count(LibraryUse::kRefusedEpilogue);
      SayRefused(Kind(), "done step by step", status);
      gemm_.reset();
      cudaGetLastError();
    }
    return gemm_ ? Multiply(context, launch) : StepByStep(context, launch);
  }

 private:
  struct Step {
    KernelSpec spec;
    std::vector<int> in, out;  // operands of the node
    KernelPtr kernel;
  };

  void Prepare(Args in, Args out) {
    a_ = in[0].extent;
    b_ = in[1].extent;
    gemm_.reset();
    asked_ = false;
    ContractionPlan plan = PlanContraction(labels_, a_, b_, types_, 0);
    GemmDescriptor& gemm = plan.gemm;
    bool one = plan.kind == ContractionPlan::kDirect && plan.outer.size() == 1 && gemm.batch == 1;
    // The library's M runs along the memory of the result, as vectors have to.
    if (roles_.bias >= 0) one = one && gemm.m == ArgAt(roles_.bias, in, out).elements();
    if (roles_.aux >= 0) one = one && gemm.m % kAuxMultiple == 0;
    // The library's tanh is a short approximation: well below the rounding of 16-bit types, but not of fp32.
    bool gelu = epilogue_ == Epilogue::kGeluBias || epilogue_ == Epilogue::kGeluGrad;
    if (gelu && types_.out == DType::kFloat32 && !types_.tf32) one = false;
    if (epilogue_ == Epilogue::kBiasGradA) one = one && gemm.swapped;  // its A is dy
    if (!one || spec_.attrs.Int("steps", 0) != 0) return;
    gemm.epilogue = epilogue_;
    gemm.ld_aux = roles_.aux >= 0 ? gemm.ldd : 0;
    gemm.adds_c = roles_.residual >= 0 || accumulates_;
    gemm.workspace_bytes = static_cast<int64_t>(kWorkspaceBytes);
    gemm.choice = spec_.attrs.Int("gemm_choice", kDecided);
    gemm_ = MakeProduct(gemm);
    WantTogether(gemm);
  }

  const GemmDescriptor* OneCall(const KernelContext& context) const override {
    const bool one = gemm_ && context.in[0].extent == a_ && context.in[1].extent == b_;
    return one ? &gemm_->descriptor() : nullptr;
  }

  std::string Kind() const {
    const char* after = epilogue_ == Epilogue::kBias       ? " and bias"
                        : epilogue_ == Epilogue::kGeluBias ? " and bias and gelu"
                                                           : "";
    return Cat(spec_.name, after, roles_.residual >= 0 ? " and residual" : "", " of ", Name(types_.in),
               " to ", Name(types_.out));
  }

  GemmOperands OperandsOf(const KernelContext& context, void* workspace) const override {
    auto data = [&](int role) { return role >= 0 ? ArgAt(role, context.in, context.out).data : nullptr; };
    GemmOperands operands;
    operands.a = context.in[0].data;
    operands.b = context.in[1].data;
    if (gemm_->descriptor().swapped) std::swap(operands.a, operands.b);
    operands.c = accumulates_ ? context.out[0].data : data(roles_.residual);
    operands.d = context.out[0].data;
    operands.bias = data(roles_.bias);
    operands.aux = data(roles_.aux);
    operands.workspace = workspace;
    return operands;
  }

  Status Multiply(const KernelContext& context, const LaunchContext& launch) {
    if (accumulates_) LaunchZeroFirst(context.out[0], launch);
    Status status = gemm_->Launch(OperandsOf(context, launch.workspace), launch);
    if (status.ok()) Count(LibraryUse::kProduct);
    return status;
  }

  Status StepByStep(const KernelContext& context, const LaunchContext& launch) {
    if (steps_.empty()) MakeSteps();
    for (Step& step : steps_) {
      std::vector<TensorArg> in, out;
      for (int operand : step.in) in.push_back(ArgAt(operand, context.in, context.out));
      for (int operand : step.out) out.push_back(ArgAt(operand, context.in, context.out));
      Status status =
          static_cast<CudaKernel*>(step.kernel.get())
              ->Launch({step.spec, in, out, nullptr, context.step, context.time, context.times, context.seed},
                       launch);
      if (!status.ok()) return status;
    }
    return Status();
  }

  void MakeSteps() {
    Attrs product = {{"equation", spec_.attrs.Str("equation")}, {kTf32, int64_t{types_.tf32}}};
    switch (epilogue_) {
      case Epilogue::kGeluGrad:
        AddStep("einsum", product, {0, 1}, {kOutput});
        return AddStep("gelu_grad", {}, {kOutput, 2}, {kOutput});
      case Epilogue::kBiasGradA: {
        const Dims& shape = spec_.out[1].global;
        std::vector<int64_t> extents;
        for (int axis = 0; axis < shape.rank(); ++axis) extents.push_back(shape[axis]);
        product.Set(kAccumulates, static_cast<int64_t>(accumulates_));
        AddStep("einsum", product, {0, 1}, {kOutput});
        return AddStep("sum_to", {{"shape", extents}}, {1}, {kOutput + 1});
      }
      default:
        return AddForwardSteps(product);
    }
  }

  // The product goes to where the sum before gelu stays, or to the result; the rest is one loop in place.
  void AddForwardSteps(const Attrs& product) {
    int sum = roles_.aux >= 0 ? roles_.aux : kOutput;
    AddStep("einsum", product, {0, 1}, {sum});
    std::vector<int> in = {sum}, out = {kOutput};
    for (size_t i = 2; i < spec_.in.size(); ++i) in.push_back(static_cast<int>(i));
    std::vector<FusedStep> chain;
    int value = 0, next = static_cast<int>(in.size());
    for (int i = 1; i < static_cast<int>(in.size()); ++i) {
      chain.push_back({"add", {value, i}, {}});
      value = next++;
    }
    std::vector<int64_t> outputs = {value};
    if (epilogue_ == Epilogue::kGeluBias) {
      chain.push_back({"gelu", {value}, {}});
      outputs = {next};
      if (roles_.aux >= 0) {
        outputs.push_back(value);
        out.push_back(sum);
      }
    }
    AddStep("fused", {{"program", FusedProgram(chain)}, {"outputs", outputs}}, in, out);
  }

  void AddStep(const std::string& name, const Attrs& attrs, std::vector<int> in, std::vector<int> out) {
    Step step;
    step.spec = spec_;
    step.spec.name = name;
    step.spec.attrs = attrs;
    step.spec.in.clear();
    step.spec.out.clear();
    for (int operand : in) step.spec.in.push_back(ArgAt(operand, spec_.in, spec_.out));
    for (int operand : out) step.spec.out.push_back(ArgAt(operand, spec_.in, spec_.out));
    step.in = std::move(in);
    step.out = std::move(out);
    step.kernel = StepKernels().Make(step.spec, "cuda");
    steps_.push_back(std::move(step));
  }

  const KernelSpec spec_;
  const Epilogue epilogue_;
  const Roles roles_;
  const bool accumulates_;  // the first result: over micro-batches
  const std::vector<LabelAxes> labels_;
  const ContractionTypes types_;
  Dims a_, b_;                  // extents gemm_ is for
  std::unique_ptr<Gemm> gemm_;  // null: step by step
  bool asked_ = false;          // whether the library does it
  std::vector<Step> steps_;
};

KernelPtr MakeLinear(const KernelSpec& spec) {
  auto flag = [&](const char* name) { return spec.attrs.Int(name, 0) != 0; };
  Roles roles;
  if (flag("bias")) roles.bias = 2;
  if (flag("residual")) roles.residual = static_cast<int>(spec.in.size()) - 1;
  if (flag("pre")) roles.aux = kOutput + 1;
  Epilogue epilogue = flag("gelu")      ? Epilogue::kGeluBias
                      : roles.bias >= 0 ? Epilogue::kBias
                                        : Epilogue::kNone;
  return std::make_unique<LinearKernel>(spec, epilogue, roles);
}

KernelPtr MakeLinearGradGelu(const KernelSpec& spec) {
  return std::make_unique<LinearKernel>(spec, Epilogue::kGeluGrad, Roles{.aux = 2});
}

KernelPtr MakeLinearGradWeight(const KernelSpec& spec) {
  return std::make_unique<LinearKernel>(spec, Epilogue::kBiasGradA, Roles{.bias = kOutput + 1});
}

}  // namespace

void AddLinearKernels(KernelRegistry* registry) {
  registry->Add("linear", "cuda", MakeLinear);
  registry->Add("linear_grad_gelu", "cuda", MakeLinearGradGelu);
  registry->Add("linear_grad_weight", "cuda", MakeLinearGradWeight);
}

}  // namespace oneflow_like::cuda
