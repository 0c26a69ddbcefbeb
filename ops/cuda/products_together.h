// Products of one shape that share an operand, as those of queries, keys and values do, and the gradients of
// their weights: each by itself may be too small to fill a card. Where their other operands and their results
// lie equally far apart, they are one batch of the library, if that was timed and is faster
// (product_choices.h). The compiler puts such products side by side (compiler/passes/line_up_products.cc),
// and the memory planner places what is of one size and made at one time in a row.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>

#include "ops/cuda/gemm.h"

namespace oneflow_like::cuda {

// A kernel that may be one product of the library, and then takes along those behind it.
class ProductKernel : public CudaKernel {
 public:
  explicit ProductKernel(const Attrs& attrs);

  size_t Together(std::span<const KernelRun> runs) const final;
  // One batch; one after another where the library refuses it.
  Status LaunchTogether(std::span<const KernelRun> runs, const LaunchContext& launch) final;

 protected:
  // The product that one call of the library does for these operands; null: it is done otherwise.
  virtual const GemmDescriptor* OneCall(const KernelContext& context) const = 0;
  // REQUIRES: OneCall is not null.
  virtual GemmOperands OperandsOf(const KernelContext& context, void* workspace) const = 0;

  // Notes that the choice between a batch of such products and one after another is to be made when plans are
  // loaded; of kernels with attribute kTogether.
  void WantTogether(const GemmDescriptor& one) const;

 private:
  GemmDescriptor BatchOf(const GemmDescriptor& one) const;
  bool MayBatch(const GemmDescriptor& one) const;
  bool SharesA(const GemmDescriptor& one) const;    // else its B
  int64_t Choice(const GemmDescriptor& one) const;  // 0: one after another
  // With the distances of the operands; false if there is no such batch.
  bool Describe(std::span<const KernelRun> runs, GemmDescriptor* batch, GemmOperands* first) const;

  const int64_t count_;
  const bool shares_second_;  // of the node's operands; else the first
  const bool accumulates_;
  mutable bool refused_ = false;
  mutable int64_t choice_ = -1;  // for products like chosen_for_
  mutable GemmDescriptor chosen_for_;
  std::map<std::string, std::unique_ptr<Gemm>> batches_;  // by descriptor
};

}  // namespace oneflow_like::cuda
