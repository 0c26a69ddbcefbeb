// matmul and einsum: contraction.h says how, the library or strided.cu does it. Plans are made with the
// kernel, and again when an act brings pieces of other extents. What the library refuses as it lies is
// packed, and what it refuses then is done without it.
#include <utility>

#include "ops/cuda/contraction.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/library_use.h"
#include "ops/cuda/move.h"
#include "ops/cuda/products_together.h"
#include "ops/tf32.h"

namespace oneflow_like::cuda {
namespace {

// Packed operands take at most this of the work space; the library has the rest, and all of it otherwise.
constexpr int64_t kPackedBytes = int64_t{24} << 20;
// A loop over so many multiplications takes a millisecond or longer: the log tells of it.
constexpr int64_t kLongLoop = int64_t{1} << 29;

class Product : public ProductKernel {
 public:
  Product(const KernelSpec& spec, std::vector<LabelAxes> labels)
      : ProductKernel(spec.attrs), labels_(std::move(labels)) {
    types_ = {spec.in[0].dtype, spec.out[0].dtype, MayRoundToTf32(spec.attrs)};
    choice_ = spec.attrs.Int("gemm_choice", kDecided);
    accumulates_ = Accumulates(spec.attrs);
    Prepare(spec.in[0].extent, spec.in[1].extent);
  }

  Status Launch(const KernelContext& context, const LaunchContext& launch) override {
    const TensorArg &a = context.in[0], &b = context.in[1], &y = context.out[0];
    if (a.extent != a_ || b.extent != b_) Prepare(a.extent, b.extent);
    if (y.elements() == 0) return Status();
    if (gemm_ && !asked_) AskLibrary(context);
    switch (plan_.kind) {
      case ContractionPlan::kZero: {
        if (accumulates_) {
          LaunchZeroFirst(y, launch);
          return Status();
        }
        size_t bytes = y.elements() * SizeOf(y.dtype);
        cudaError_t error = cudaMemsetAsync(y.data, 0, bytes, launch.stream);
        return error == cudaSuccess ? Status() : Status(Cat("cudaMemsetAsync: ", cudaGetErrorString(error)));
      }
      case ContractionPlan::kGeneral:
        TellOfLoop(context);
        LaunchStridedProduct(plan_.kept, plan_.summed, y.data, y.dtype, a.data, b.data, a.dtype, accumulates_,
                             launch);
        return Status();
      case ContractionPlan::kDirect:
      case ContractionPlan::kPacked:
        break;
    }
    return Multiply(a, b, y, launch);
  }

 private:
  void Prepare(const Dims& a, const Dims& b) {
    a_ = a;
    b_ = b;
    asked_ = false;
    PlanWith(kPackedBytes, true);
  }

  void PlanWith(int64_t packed_bytes, bool as_they_lie) {
    plan_ = PlanContraction(labels_, a_, b_, types_, packed_bytes, as_they_lie);
    gemm_.reset();
    if (plan_.kind != ContractionPlan::kDirect && plan_.kind != ContractionPlan::kPacked) return;
    bool packed = plan_.kind == ContractionPlan::kPacked;
    plan_.gemm.workspace_bytes = static_cast<int64_t>(kWorkspaceBytes) - (packed ? kPackedBytes : 0);
    plan_.gemm.choice = choice_;
    plan_.gemm.adds_c = accumulates_ && !plan_.y.needed;
    gemm_ = MakeGemm(plan_.gemm);
    if (InOneCall()) WantTogether(plan_.gemm);
  }

  bool InOneCall() const {
    return gemm_ && plan_.kind == ContractionPlan::kDirect && plan_.outer.size() == 1;
  }
  const GemmDescriptor* OneCall(const KernelContext& context) const override {
    const bool one = InOneCall() && context.in[0].extent == a_ && context.in[1].extent == b_;
    return one ? &plan_.gemm : nullptr;
  }
  GemmOperands OperandsOf(const KernelContext& context, void* workspace) const override {
    return At(plan_.outer[0], context.in[0].data, context.in[1].data, context.out[0].data, workspace);
  }

  // The operands of one of several calls.
  GemmOperands At(const ContractionPlan::Place& place, const void* a, const void* b, void* y,
                  void* workspace) const {
    GemmOperands operands;
    operands.a = ElementAt(a, place.a, types_.in);
    operands.b = ElementAt(b, place.b, types_.in);
    if (plan_.gemm.swapped) std::swap(operands.a, operands.b);
    operands.d = ElementAt(y, place.y, static_cast<DType>(plan_.gemm.out));
    operands.c = plan_.gemm.adds_c ? operands.d : nullptr;
    operands.workspace = workspace;
    return operands;
  }

  std::string Kind(const KernelContext& context) const {
    return Cat(context.spec.name, " ", context.spec.attrs.Str("equation", "of matrices"), " of ",
               Name(types_.in), " to ", Name(types_.out));
  }

  void TellOfLoop(const KernelContext& context) {
    if (asked_) return;  // told with the reason, or before
    asked_ = true;
    if (!IsFloating(types_.in) || plan_.kept.elements() * plan_.summed.elements() < kLongLoop) return;
    SayRefused(Cat(Kind(context), " at ", context.spec.line.str()), "done by a slow loop",
               Status(Cat("operands of ", a_.str(), " and ", b_.str(),
                          " do not lie as matrices do, and are too large to be copied")));
  }

  // In the first act, which is never a recorded one.
  void AskLibrary(const KernelContext& context) {
    const std::string kind = Kind(context);
    for (const auto& [packed_bytes, instead] : {std::pair(kPackedBytes, "its operands are copied first"),
                                                std::pair(int64_t{-1}, "done by a slow loop")}) {
      Status status = gemm_ ? gemm_->Check() : Status();
      if (status.ok()) break;
      Count(LibraryUse::kRefusedProduct);
      SayRefused(kind, instead, status);
      PlanWith(packed_bytes, false);
    }
    asked_ = true;
  }

  Status Multiply(const TensorArg& a, const TensorArg& b, const TensorArg& y, const LaunchContext& launch) {
    char* free = static_cast<char*>(launch.workspace);
    char* base_a = static_cast<char*>(a.data);
    char* base_b = static_cast<char*>(b.data);
    char* base_y = static_cast<char*>(y.data);
    auto take = [&free](const Packing& p) {
      char* at = free;
      free += (p.elements * static_cast<int64_t>(SizeOf(p.dtype)) + 255) / 256 * 256;
      return at;
    };
    if (plan_.a.needed) {
      base_a = take(plan_.a);
      LaunchStridedCopy(plan_.a.walk, base_a, plan_.a.dtype, a.data, a.dtype, false, launch);
    }
    if (plan_.b.needed) {
      base_b = take(plan_.b);
      LaunchStridedCopy(plan_.b.walk, base_b, plan_.b.dtype, b.data, b.dtype, false, launch);
    }
    if (plan_.y.needed) base_y = take(plan_.y);
    if (plan_.gemm.adds_c) LaunchZeroFirst(y, launch);
    for (const ContractionPlan::Place& place : plan_.outer) {
      const GemmOperands operands = At(place, base_a, base_b, base_y, free);
      if (Status status = gemm_->Launch(operands, launch); !status.ok()) return status;
      Count(LibraryUse::kProduct);
    }
    if (plan_.y.needed) {
      StridedWalk back = plan_.y.walk;
      for (int i = 0; i < back.rank; ++i) std::swap(back.first[i], back.second[i]);
      LaunchStridedCopy(back, y.data, y.dtype, base_y, plan_.y.dtype, accumulates_, launch);
    }
    return Status();
  }

  std::vector<LabelAxes> labels_;
  ContractionTypes types_;
  Dims a_, b_;  // extents the plan is for
  ContractionPlan plan_;
  std::unique_ptr<Gemm> gemm_;
  bool asked_ = false;  // whether the library takes it
  int64_t choice_ = kDecided;
  bool accumulates_ = false;
};

KernelPtr MakeMatmul(const KernelSpec& spec) {
  return std::make_unique<Product>(spec,
                                   MatmulLabels(spec.in[0].global, spec.in[1].global, spec.out[0].global));
}

KernelPtr MakeEinsum(const KernelSpec& spec) {
  return std::make_unique<Product>(spec, EinsumLabels(spec.attrs.Str("equation")));
}

}  // namespace

void AddProductKernels(KernelRegistry* registry) {
  registry->Add("matmul", "cuda", MakeMatmul);
  registry->Add("einsum", "cuda", MakeEinsum);
}

}  // namespace oneflow_like::cuda
