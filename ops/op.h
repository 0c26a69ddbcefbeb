// An operator is one table entry, an OpDef, which contains everything that is known about it; shapes,
// signatures, costs and error texts are derived from its line of labelled axes (sbp/rule.h).
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/device/kernel.h"
#include "ops/language/tensor.h"
#include "sbp/rule.h"

namespace oneflow_like {

// One use of an operator: the argument of its table entry's functions.
struct OpCall {
  std::string op;             // operator name
  std::string who;            // "matmul at gpt.cc:31", for messages
  std::vector<Dims> shapes;   // of the inputs, global
  std::vector<DType> dtypes;  // of the inputs
  const Attrs* attrs = nullptr;
};

// A gradient function: given the forward node's inputs, outputs and the gradients of its outputs (an
// undefined Tensor where no gradient flows), returns the gradients of its inputs (undefined: none). It is
// written with the functions users have (ops/language/functional.h) and may read only inputs and outputs.
struct GradCall {
  const Attrs& attrs;
  std::vector<Tensor> in, out, dout;
  std::vector<bool> wanted;  // per input: whether its gradient is needed
};
using GradFn = std::function<std::vector<Tensor>(const GradCall&)>;

// An expansion: the same outputs from simpler operators, whose labels can be cut.
using ExpandFn = std::function<std::vector<Tensor>(const Attrs& attrs, const std::vector<Tensor>& in)>;

// The gradient of a table [v d] as rows, from the operator's inputs: ids[n] (a negative one names no row) and
// values[n d]; the table's gradient is the sum of values by id.
using RowsFn = std::function<std::pair<Tensor, Tensor>(const Attrs& attrs, const std::vector<Tensor>& in)>;

// The treatment of an operator by mixed precision (compiler/passes/mixed_precision.cc).
//   kNarrow  worth its rounding: reads the narrow type
//   kFollow  has the type of its floating operands: narrow if all of them are (weights and constants are
//            cast to it), otherwise fp32
//   kWide    needs fp32, and gives it
enum class Precision : uint8_t { kNarrow, kFollow, kWide };

// One choice of operand shapes with which the oracle tests run the operator.
struct Sample {
  std::vector<Dims> in;
  Attrs attrs;
  std::vector<DType> dtypes;  // empty: all f32. Integer inputs are drawn from [0, limit).
  int64_t limit = 4;
  double low = -1, high = 1;  // range of floating inputs
};

struct OpDef {
  std::string name, doc;

  // The rule: fixed, or computed from shapes and attributes.
  std::string axes;
  std::function<std::string(const OpCall&)> axes_of;
  std::map<std::string, Reduce> folds;
  std::function<std::map<std::string, Reduce>(const OpCall&)> folds_of;
  std::vector<std::set<std::string>> linear;
  std::function<std::vector<std::set<std::string>>(const OpCall&)> linear_of;
  std::set<std::string> whole;
  std::function<std::set<std::string>(const OpCall&)> whole_of;
  std::set<std::string> expandable;
  std::map<std::string, std::string> along;
  // Labels that the rule reduces or has whole, but that micro-batches may cut: each micro-batch then has a
  // result of its own.
  std::function<std::set<std::string>(const OpCall&)> turns_of;
  // Extents of labels that only outputs have.
  std::function<std::map<std::string, int64_t>(const OpCall&)> extents;
  // Types of the outputs; default: all that of the first input.
  std::function<std::vector<DType>(const OpCall&)> dtypes;
  // Throws Error for attributes or types that make no sense; shapes are checked by the rule.
  std::function<void(const OpCall&)> check;

  // The gradient function. If a weight reaches the loss through an entry without `grad`, Train throws an
  // Error, unless the entry sets `stops_gradient`: its gradient is zero by definition (sign, argmax).
  GradFn grad;
  // An attribute with which the operator has more outputs, at the end: what `grad` reads of the forward pass.
  // Only a graph with gradients has them. Empty: there are none.
  std::string keep;
  bool stops_gradient = false;
  ExpandFn expand;
  RowsFn rows;  // lets an optimizer update the rows of a table that a batch touched, and no others
  // The line of profiles that counts its time, and how near to a device's peak it comes (KindOfWork):
  // "matmul", "convolution", "attention", or one of the user's own.
  std::string category = "other";
  std::function<double(const BoundRule&)>
      flops;  // default: the volume of the iteration space; of a local rule
  // The same of an operator whose attributes say what it computes.
  std::function<std::function<double(const BoundRule&)>(const Attrs&)> flops_of;
  // A label of which only those parts are read, or updated in place, that the ids of operand `by` name: the
  // rows of a table. Empty: operands are read whole.
  struct Chosen {
    std::string label, by;
  };
  Chosen chosen;
  // Slow and obvious: the definition. An entry whose `scalar` is a program needs none.
  KernelFn reference = nullptr;
  // Instead of `reference` and of fast kernels: one that runs the kernels of other operators, on any device
  // whose kernels run on the host, and what it states as its scratch.
  ComposedFactory composed;
  ComposedScratch composed_scratch;
  // Scratch of the reference kernel, and of the operator's other kernels that are registered without a
  // statement of their own (KernelRegistry::Add).
  ScratchFn scratch;
  ScratchFn cuda_scratch;  // of its kernel on CUDA devices, where it differs
  UnitFn cuda_unit;        // what does its arithmetic there; empty: bytes decide how long it takes

  // Elementwise: out[i] = f(in0[i], in1[i], ...), all operands at equal local shapes or extent 1 (broadcast).
  // `scalar` is the name of the scalar body in ops/scalar.h or, for a user's operator, a program of operators
  // that have one ("exp 0;shift 1 offset=1.0;log 2", ops/fused.h: values 0, 1, ... are the operands). Such
  // operators are fused with their neighbours, on every device. Empty when the operator is not elementwise.
  // Without `dtypes` the result of a program has the type of its last step.
  std::string scalar;
  bool view = false;              // the output has the input's bytes (reshape)
  bool random = false;            // draws by attribute "key" (DrawKey), the step and global positions
  bool stays = false;             // its results wait for gradients: it is not computed again
  bool whole_batch = false;       // labels in `whole` that micro-batches cut are gathered over all of them
  bool each_micro_batch = false;  // without operands, but each micro-batch has a result of its own
  std::vector<std::pair<int, int>> inplace;  // (output, input): an update; the output replaces the variable
  bool writes_part = false;                  // an update of few of the elements: readers read the variable

  Precision precision = Precision::kWide;
  std::set<std::string> wide;  // operands that stay fp32 beside narrow ones (statistics, parameters of norms)
  bool any_type = false;       // kWide: reads narrow operands as they are, and widens them itself
  bool any_number = false;     // numbers of its attributes may be infinite or NaN: they are values
  bool typed = false;  // attribute "dtype" names the type of the first output; default: that of its operands
  bool accumulates = false;  // its kernels can add to what earlier micro-batches gave (ops/equation.h)

  std::vector<Sample> samples;
};

// What an operator's entry needs and has not, for messages; empty: nothing.
std::string LackOf(const OpDef& def);

class Catalog {
 public:
  void Add(OpDef def);                              // CHECKs that the name is new
  const OpDef& Get(const std::string& name) const;  // throws Error when there is none
  const OpDef* Find(const std::string& name) const;
  std::vector<std::string> names() const;  // sorted

 private:
  std::unordered_map<std::string, OpDef> ops_;
};

// OpDef::cuda_unit of products: a library's tensor cores, for operands in 16 bits or rounded to TF32.
ComputeUnit UnitOfProducts(const KernelSpec& spec);
// OpDef::cuda_unit of operators that have no kernel on tensor cores.
inline ComputeUnit OnPlainCores(const KernelSpec&) {
  return {ComputeUnit::Kind::kPlain, "it has no kernel on tensor cores"};
}

// The category of copies between the memory of a device and that of its host.
inline constexpr char kHostCopies[] = "host copies";
// Of an operator's category: products and convolutions, attention, copies from and to the host, or other
// work.
Work::Kind KindOfWork(const std::string& category);

// OpDef::flops of operators that only move numbers.
inline double NoFlops(const BoundRule&) { return 0; }

// All operators of this library: a manifest, one line each (ops/catalog.cc).
const Catalog& BuiltinCatalog();
// The entry's reference kernel: `reference`, or one made of its program. Empty: it has neither.
KernelFactory ReferenceKernel(const OpDef& def);
// The reference kernels of this library's operators, for one that runs others.
InnerKernels ReferenceInner();
// The reference kernels of all entries, under the device kind "reference".
void AddReferenceKernels(const Catalog& catalog, KernelRegistry* registry);

// Derived from the entry: the bound rule (throws Error on shapes that do not fit), output shapes and types.
BoundRule BindOp(const OpDef& def, const OpCall& call);
struct Inferred {
  BoundRule rule;
  std::vector<DType> dtypes;  // of the outputs; shapes are in rule.out
};
Inferred Infer(const OpDef& def, const OpCall& call);

}  // namespace oneflow_like
