// planned >= observed, in a kernel: every operator of the catalog with a kernel, in every floating type, with
// each labelled axis made long in turn, so that whatever grows with an axis is seen. A kernel is made and run
// in the scratch that it states, and may allocate no more than bookkeeping of a fixed size; nobody looks at
// its results, which other tests compare.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/ops/allocations.h"
#include "tests/ops/kernel_cases.h"
#include "tests/ops/with_scratch.h"

namespace oneflow_like {

// Bytes that stay allocated when a kernel is made, and that a run of it has at a time. A primitive of oneDNN
// has descriptions of its work, and a call of it a list of operands.
constexpr int64_t kKeptOfKernel = 16 << 10, kKeptOfPrimitive = 256 << 10, kTakenInRun = 8 << 10;

inline bool UsesPrimitives(const std::string& op) {
  return op == "matmul" || op == "einsum" || op.starts_with("conv2d");
}

// A kernel whose allocations are counted.
class CountedKernel : public Kernel {
 public:
  CountedKernel(const KernelRegistry& registry, const KernelSpec& spec) : name_(spec.name) {
    Allocations::Begin();
    kernel_ = MakeWithScratch(registry, spec);
    Allocations::End();
    // Its scratch is WithScratch's own.
    const int64_t kept = Allocations::bytes - kernel_->bytes();
    const int64_t most = UsesPrimitives(spec.name) ? kKeptOfPrimitive : kKeptOfKernel;
    if (kCountsAllocations) EXPECT_LE(kept, most) << "allocated when a kernel of " << name_ << " is made";
  }
  Status Run(const KernelContext& context) override {
    Allocations::Begin();
    Status status = kernel_->Run(context);
    Allocations::End();
    if (kCountsAllocations) EXPECT_LE(Allocations::most, kTakenInRun) << "allocated in a run of " << name_;
    return status;
  }
  int64_t bytes() const { return kernel_->bytes(); }

 private:
  const std::string name_;
  std::unique_ptr<WithScratch> kernel_;
};

// The labels of one operand's axes, from the last to the first; "" for what is no label of its own.
inline std::vector<std::string> LabelsFromLast(const std::string& bracket) {
  std::vector<std::string> labels;
  std::istringstream words(bracket);
  std::string label;
  int depth = 0;
  for (std::string word; words >> word;) {
    depth += word.starts_with("(");
    label = depth > 0 ? "" : word;
    depth -= word.ends_with(")");
    if (depth == 0) labels.push_back(label == ".." || isdigit(label[0]) ? "" : label);
  }
  std::reverse(labels.begin(), labels.end());
  return labels;
}

// Of each input "[b s (h g) d]" of a line.
inline std::vector<std::vector<std::string>> LabelsOfInputs(const std::string& axes) {
  std::vector<std::vector<std::string>> all;
  const std::string inputs = axes.substr(0, axes.find("->"));
  for (size_t at = inputs.find('['); at != std::string::npos; at = inputs.find('[', at + 1))
    all.push_back(LabelsFromLast(inputs.substr(at + 1, inputs.find(']', at) - at - 1)));
  return all;
}

// The stated bytes of each case, which must be those of any other level of instructions.
using StatedScratch = std::map<std::string, int64_t>;

class ScratchCases {
 public:
  explicit ScratchCases(const KernelRegistry& registry) : registry_(registry) {}

  StatedScratch Run() {
    for (const std::string& name : BuiltinCatalog().names()) {
      const OpDef& def = BuiltinCatalog().Get(name);
      if (def.reference == nullptr) continue;
      int64_t longest = 0;
      for (const Sample& sample : def.samples)
        for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16})
          longest = std::max(longest, RunSample(def, sample, dtype));
      if (!def.samples.empty() && !def.samples[0].in.empty())
        EXPECT_GE(longest, kLong) << "no axis of " << name << " was made long";
    }
    return stated_;
  }
  int cases() const { return static_cast<int>(stated_.size()); }

 private:
  static constexpr int64_t kLong = 3000;

  // The longest axis that a case had.
  int64_t RunSample(const OpDef& def, const Sample& sample, DType dtype) {
    std::vector<DType> types = sample.dtypes;
    if (types.empty()) types.assign(sample.in.size(), DType::kFloat32);
    for (DType& type : types)
      if (type == DType::kFloat32) type = dtype;
    // Operands that stay fp32 beside narrow ones: both ways.
    int64_t longest = 0;
    std::set<std::string> labels = {""};
    const OpCall call{def.name, def.name, sample.in, types, &sample.attrs};
    const std::string axes = def.axes_of ? def.axes_of(call) : def.axes;
    const std::vector<std::vector<std::string>> of_inputs = LabelsOfInputs(axes);
    for (const auto& of_input : of_inputs) labels.insert(of_input.begin(), of_input.end());
    for (const std::string& label : labels) {
      std::vector<Dims> shapes = sample.in;
      if (!label.empty()) Lengthen(of_inputs, label, &shapes);
      longest = std::max(longest, RunCase(def, sample, shapes, types));
      if (dtype == DType::kFloat32) continue;
      std::vector<DType> mixed = types;
      for (size_t i = 0; i < of_inputs.size() && i < mixed.size(); ++i)
        if (def.wide.count(NameOfInput(axes, i)) && mixed[i] == dtype) mixed[i] = DType::kFloat32;
      if (mixed != types) longest = std::max(longest, RunCase(def, sample, shapes, mixed));
    }
    return longest;
  }

  static std::string NameOfInput(const std::string& axes, size_t input) {
    size_t end = axes.find('[');
    for (; input > 0; --input) end = axes.find('[', end + 1);
    const size_t begin = axes.find_last_of(" ,", end);
    return axes.substr(begin == std::string::npos ? 0 : begin + 1,
                       end - (begin == std::string::npos ? 0 : begin + 1));
  }

  static void Lengthen(const std::vector<std::vector<std::string>>& of_inputs, const std::string& label,
                       std::vector<Dims>* shapes) {
    for (size_t i = 0; i < shapes->size(); ++i) {
      Dims& shape = (*shapes)[i];
      const auto& labels = of_inputs[std::min(i, of_inputs.size() - 1)];
      for (int axis = 0; axis < shape.rank() && axis < static_cast<int>(labels.size()); ++axis)
        if (labels[axis] == label) shape[shape.rank() - 1 - axis] = kLong;
    }
  }

  int64_t RunCase(const OpDef& def, const Sample& sample, const std::vector<Dims>& shapes,
                  const std::vector<DType>& types) {
    const Case c{def.name, shapes, sample.attrs, types};
    std::string what = Cat(def.name, " ", sample.attrs.str());
    int64_t longest = 0, elements = 0;
    for (size_t i = 0; i < shapes.size(); ++i) {
      what += Cat(" ", Name(types[i]), shapes[i].str());
      elements += shapes[i].elements();
      for (int64_t extent : shapes[i]) longest = std::max(longest, extent);
    }
    SCOPED_TRACE(what);
    Operands in, out;
    try {
      out = OutputsOf(c);
    } catch (const Error&) {  // the attributes are for other extents, or the types do not go together
      return 0;
    }
    for (const Operand& o : out) elements += o.arg.elements();
    if (elements > 60 * kLong) return 0;  // two labels that go together
    std::mt19937_64 random(elements);
    KernelSpec spec;
    spec.name = def.name;
    spec.attrs = sample.attrs;
    for (size_t i = 0; i < shapes.size(); ++i) {
      in.emplace_back(types[i], shapes[i]);
      in.back().Draw(&random, sample.low, sample.high, sample.limit);
    }
    for (Operand& o : in) spec.in.push_back(o.Arg());
    for (Operand& o : out) spec.out.push_back(o.Arg());
    CountedKernel kernel(registry_, spec);
    (void)kernel.Run({spec, spec.in, spec.out, nullptr, 3, 0, 1, 77});
    stated_[what] = kernel.bytes();
    return longest;
  }

  const KernelRegistry& registry_;
  StatedScratch stated_;
};

}  // namespace oneflow_like
