// The operator "scan": one node that runs a body (ops/body.h) once for each place along an axis. Its
// attributes say what the body's inputs and results are:
//
//   inputs    `states` values that a step hands to the next; a place of each of the xs; values that every
//   step
//             reads
//   results   the states after the step; a place of each of the ys; terms of the sums over all steps
//
//   body      the text
//   states    number of states                steps    number of steps
//   xs, ys    the axis of the steps of each   reverse  1: from the last place to the first
//   sums      number of terms of each         keep     1: the states before each step are results, too
//
// Operands: the first states, xs, values that are read. Results: the last states, ys, sums, kept states.
// The gradient of a scan is a scan in the other direction.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ops/body.h"

namespace oneflow_like {

// The attributes, read.
struct LoopCall {
  struct Operand {
    std::string name;
    int value = 0;      // of the body
    int64_t axis = -1;  // of the steps, which the body's value has not; -1: none
    DType dtype = DType::kFloat32;
    Dims shape;
    std::string labels;  // of the axes: the body's; '#' of the steps
  };
  Body body;
  size_t states = 0;
  std::vector<int64_t> xs, ys, sums;
  int64_t steps = 0;
  bool reverse = false, keep = false;
  std::vector<Operand> in, out;

  // Throws Error, beginning with `who`, for attributes that do not fit together. `catalog`: what operators
  // that are added to the body can be of.
  LoopCall(const Catalog& catalog, const Attrs& attrs, const std::string& who);
  // Numbers of the first y, sum and kept state among the results.
  size_t FirstY() const { return states; }
  size_t FirstSum() const { return states + ys.size(); }
  size_t FirstKept() const { return states + ys.size() + sums.size(); }
};

// The body's nodes with neighbouring elementwise ones joined (ops/fused.h). `invariant`: whether a node reads
// the same in every step; such nodes are joined with one another only.
std::vector<Body::Node> FusedNodes(const Body& body, const std::vector<bool>& invariant);

// What a loop asks of the device that runs it.
class LoopDevice {
 public:
  virtual ~LoopDevice() = default;
  virtual Status Run(Kernel* kernel, const KernelContext& context) = 0;
  // Copies rows of `bytes` bytes, strides apart.
  virtual Status Copy(void* to, int64_t to_stride, const void* from, int64_t from_stride, int64_t rows,
                      int64_t bytes) = 0;
  // sum = part, or sum += part.
  virtual Status Add(double* sum, const TensorArg& part, bool first) = 0;
  virtual Status Round(const TensorArg& to, const double* sum) = 0;
};

// A scan on a rank's pieces: its kernels, and one arena for all steps. Sums over the steps are kept in fp64
// and rounded once, as add_n does. Where a term is a product over the rows of a step, and the device has a
// kernel of its own for it, the rows of several steps go through one product: it reads and writes the sum
// more seldom.
class Loop {
 public:
  Loop(const KernelSpec& spec, const InnerKernels& kernels);
  ~Loop();
  Status Run(const KernelContext& context, LoopDevice* device);
  std::vector<Kernel*> kernels() const;  // of the body

  static int64_t Scratch(const KernelSpec& spec, const InnerKernels& kernels);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace oneflow_like
