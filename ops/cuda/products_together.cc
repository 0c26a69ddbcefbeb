#include "ops/cuda/products_together.h"

#include <cuda_runtime_api.h>
#include <glog/logging.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/cuda/library_use.h"
#include "ops/cuda/move.h"
#include "ops/cuda/product_choices.h"
#include "ops/equation.h"

namespace oneflow_like::cuda {
namespace {

constexpr size_t kMostBatches = 64;  // descriptors that a kernel keeps: of the slots that a plan rotates
// Between operands that are timed, so that their numbers, which come again and again, are not the same.
constexpr int64_t kApart = 128;

bool Same(const GemmDescriptor& x, const GemmDescriptor& y) { return std::memcmp(&x, &y, sizeof x) == 0; }

// How many elements each is behind the one before; false if that is not the same for all, or no multiple of
// what the product promises.
template <typename PointerOf>
bool Apart(std::span<const GemmOperands> all, PointerOf pointer, DType dtype, int64_t alignment,
           int64_t* elements) {
  const auto address = [&](size_t i) { return reinterpret_cast<intptr_t>(pointer(all[i])); };
  const int64_t bytes = address(1) - address(0);
  for (size_t i = 2; i < all.size(); ++i)
    if (address(i) - address(i - 1) != bytes) return false;
  *elements = bytes / static_cast<int64_t>(SizeOf(dtype));
  return bytes % alignment == 0;
}

}  // namespace

ProductKernel::ProductKernel(const Attrs& attrs)
    : count_(attrs.Has(kTogether) ? attrs.Ints(kTogether).at(0) : 1),
      shares_second_(attrs.Has(kTogether) && attrs.Ints(kTogether).at(1) == 1),
      accumulates_(Accumulates(attrs)) {}

bool ProductKernel::MayBatch(const GemmDescriptor& one) const {
  return count_ > 1 && one.batch == 1 && one.ld_aux == 0 && one.choice == kDecided;
}

bool ProductKernel::SharesA(const GemmDescriptor& one) const { return shares_second_ == (one.swapped != 0); }

GemmDescriptor ProductKernel::BatchOf(const GemmDescriptor& one) const {
  GemmDescriptor batch = one;
  batch.batch = count_;
  if (SharesA(one)) {
    batch.stride_b = kApart + one.ldb * (one.transposed_b ? one.k : one.n);
  } else {
    batch.stride_a = kApart + one.lda * (one.transposed_a ? one.m : one.k);
  }
  batch.stride_d = kApart + one.ldd * one.n;
  if (one.epilogue != Epilogue::kNone) batch.stride_bias = kApart + (one.m + kApart - 1) / kApart * kApart;
  return batch;
}

void ProductKernel::WantTogether(const GemmDescriptor& one) const {
  if (MayBatch(one)) Choices().WantTogether(BatchOf(one));
}

int64_t ProductKernel::Choice(const GemmDescriptor& one) const {
  if (choice_ >= 0 && Same(one, chosen_for_)) return choice_;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  const std::string work = TogetherWorkOf(BatchOf(one), device);
  choice_ = Choices().Decided(work);
  chosen_for_ = one;
  Choices().Settle(work);
  return choice_;
}

bool ProductKernel::Describe(std::span<const KernelRun> runs, GemmDescriptor* batch,
                             GemmOperands* first) const {
  const GemmDescriptor& one = *OneCall(runs[0].context);
  std::vector<GemmOperands> all;
  for (const KernelRun& run : runs)
    all.push_back(static_cast<const ProductKernel*>(run.kernel)->OperandsOf(run.context, nullptr));
  // The library counts upwards.
  if (all.front().d > all.back().d) std::reverse(all.begin(), all.end());
  *first = all.front();
  *batch = one;
  batch->batch = static_cast<int64_t>(runs.size());
  const DType in = static_cast<DType>(one.in), out = static_cast<DType>(one.out);
  const auto apart = [&](auto member, DType dtype, int64_t* elements) {
    return Apart(
        all, [member](const GemmOperands& p) { return p.*member; }, dtype, one.alignment, elements);
  };
  int64_t of_c = 0;
  if (!apart(&GemmOperands::a, in, &batch->stride_a) || !apart(&GemmOperands::b, in, &batch->stride_b) ||
      !apart(&GemmOperands::d, out, &batch->stride_d) ||
      !apart(&GemmOperands::bias, out, &batch->stride_bias) || !apart(&GemmOperands::c, out, &of_c))
    return false;
  const int64_t shared = SharesA(one) ? batch->stride_a : batch->stride_b,
                other = SharesA(one) ? batch->stride_b : batch->stride_a;
  const bool vectors = first->bias == nullptr || batch->stride_bias > 0;
  return shared == 0 && other > 0 && batch->stride_d > 0 && vectors &&
         (!one.adds_c || of_c == batch->stride_d);
}

size_t ProductKernel::Together(std::span<const KernelRun> runs) const {
  const auto count = static_cast<size_t>(count_);
  if (count < 2 || runs.size() < count || refused_) return 1;
  runs = runs.first(count);
  const GemmDescriptor* one = OneCall(runs[0].context);
  if (one == nullptr || !MayBatch(*one) || Choice(*one) == 0) return 1;
  for (const KernelRun& run : runs) {
    const auto* kernel = dynamic_cast<const ProductKernel*>(run.kernel);
    if (kernel == nullptr || kernel->accumulates_ != accumulates_) return 1;
    const GemmDescriptor* other = kernel->OneCall(run.context);
    if (other == nullptr || !Same(*other, *one)) return 1;
  }
  GemmDescriptor batch;
  GemmOperands first;
  return Describe(runs, &batch, &first) && Independent(runs) ? count : 1;
}

Status ProductKernel::LaunchTogether(std::span<const KernelRun> runs, const LaunchContext& launch) {
  if (runs.size() == 1) return Launch(runs[0].context, launch);
  GemmDescriptor batch;
  GemmOperands operands;
  CHECK(Describe(runs, &batch, &operands)) << "Together has looked at them";
  batch.choice = Choice(*OneCall(runs[0].context)) - 1;
  operands.workspace = launch.workspace;
  if (batches_.size() >= kMostBatches) batches_.clear();
  std::unique_ptr<Gemm>& gemm = batches_[std::string(reinterpret_cast<const char*>(&batch), sizeof batch)];
  if (gemm == nullptr) gemm = MakeProduct(batch);
  Status status = gemm->Check();
  if (status.ok()) {
    if (accumulates_)
      for (const KernelRun& run : runs) LaunchZeroFirst(run.context.out[0], launch);
    status = gemm->Launch(operands, launch);
  }
  if (status.ok()) {
    for (size_t i = 0; i < runs.size(); ++i) Count(LibraryUse::kProduct);
    return status;
  }
  refused_ = true;
  cudaGetLastError();
  SayRefused(Cat(runs.size(), " products in one call"), "done one after another", status);
  for (const KernelRun& run : runs)
    if (status = static_cast<CudaKernel*>(run.kernel)->Launch(run.context, launch); !status.ok())
      return status;
  return status;
}

}  // namespace oneflow_like::cuda
