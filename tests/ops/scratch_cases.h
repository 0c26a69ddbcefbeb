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
// has descriptions of its work, of a convolution for each of at most 512 columns, and a call of it a list of
// operands.
constexpr int64_t kKeptOfKernel = 16 << 10, kKeptOfPrimitive = 128 << 10, kKeptOfColumn = 4 << 10,
                  kMostColumns = 512, kTakenInRun = 8 << 10;

inline int64_t KeptOf(const KernelSpec& spec) {
  if (spec.name == "matmul" || spec.name == "einsum") return kKeptOfPrimitive;
  if (!spec.name.starts_with("conv2d")) return kKeptOfKernel;
  return 3 * kKeptOfPrimitive + kKeptOfColumn * std::min(kMostColumns, spec.in[0].extent[2]);
}

// A kernel whose allocations are counted.
class CountedKernel : public Kernel {
 public:
  CountedKernel(const KernelRegistry& registry, const KernelSpec& spec) : name_(spec.name) {
    Allocations::Begin();
    kernel_ = MakeWithScratch(registry, spec);
    Allocations::End();
    // Its scratch is WithScratch's own.
    const int64_t kept = Allocations::bytes - kernel_->allocated();
    EXPECT_LE(kept, KeptOf(spec)) << "allocated when a kernel of " << name_ << " is made";
  }
  Status Run(const KernelContext& context) override {
    Allocations::Begin();
    Status status = kernel_->Run(context);
    Allocations::End();
    EXPECT_LE(Allocations::most, kTakenInRun) << "allocated in a run of " << name_;
    return status;
  }
  int64_t bytes() const { return kernel_->bytes(); }

 private:
  const std::string name_;
  std::unique_ptr<WithScratch> kernel_;
};

// The labels of one operand's axes, from the last to the first; "" for what is no label of its own. ".."
// stands for the last of the axes that it means.
inline std::vector<std::string> LabelsFromLast(const std::string& bracket) {
  std::vector<std::string> labels;
  std::istringstream words(bracket);
  int depth = 0;
  for (std::string word; words >> word;) {
    const bool inside = depth > 0 || word.starts_with("(");
    depth += word.starts_with("(");
    depth -= word.ends_with(")");
    if (depth == 0) labels.push_back(inside || isdigit(word[0]) ? "" : word);
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
      if (HasLongAxes(def)) {
        EXPECT_GE(longest, kLong) << "no axis of " << name << " was made long";
      }
    }
    RunLarger();
    return stated_;
  }
  int cases() const { return static_cast<int>(stated_.size()); }

 private:
  static constexpr int64_t kLong = 3000;

  // Others have no inputs, numbers alone, or extents that their attributes say.
  static bool HasLongAxes(const OpDef& def) {
    if (def.name == "reshape" || def.name == "broadcast_to") return false;
    for (const Sample& sample : def.samples)
      for (const Dims& shape : sample.in)
        if (shape.elements() > 1) return true;
    return false;
  }

  // The longest axis that a case had.
  int64_t RunSample(const OpDef& def, const Sample& sample, DType dtype) {
    std::vector<DType> types = sample.dtypes;
    if (types.empty()) types.assign(sample.in.size(), DType::kFloat32);
    for (DType& type : types)
      if (type == DType::kFloat32) type = dtype;
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
      // With the operands in fp32 that stay so beside narrow ones.
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
        if (int64_t& extent = shape[shape.rank() - 1 - axis]; labels[axis] == label && extent > 1)
          extent = kLong;
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
    if (elements > 100 * kLong) return 0;  // two labels that go together
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
    for (int64_t step : {3, 4}) (void)kernel.Run({spec, spec.in, spec.out, nullptr, step, 0, 1, 77});
    stated_[what] = kernel.bytes();
    return longest;
  }

  // Of sizes at which kernels take other ways: products that a library makes, tiles, many heads and images.
  void RunLarger() {
    const auto run = [&](const std::string& op, const std::vector<Dims>& shapes, const Attrs& attrs = {}) {
      for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
        const Sample sample{shapes, attrs};
        const OpDef& def = BuiltinCatalog().Get(op);
        std::vector<DType> types(shapes.size(), dtype);
        int64_t ran = RunCase(def, sample, shapes, types);
        if (op == "attention_grad" && dtype != DType::kFloat32) {  // its log-sum-exp may be wide alone
          types[5] = DType::kFloat32;
          ran = std::max(ran, RunCase(def, sample, shapes, types));
        }
        EXPECT_GT(ran, 0) << op << " " << attrs.str();
      }
    };
    run("reshape", {{60, 100}}, {{"shape", std::vector<int64_t>{6000}}});
    run("broadcast_to", {{1, 100}}, {{"shape", std::vector<int64_t>{60, 100}}});
    run("matmul", {{300, 260}, {260, 130}});
    run("matmul", {{3, 300}, {300, 130}});
    run("matmul", {{6, 70, 90}, {6, 90, 80}});
    for (const char* equation : {"mk,nk->mn", "km,kn->mn", "km,nk->nm"}) {
      const bool turned_a = equation[0] == 'k', turned_b = equation[3] == 'n';
      run("einsum", {turned_a ? Dims{200, 150} : Dims{150, 200}, turned_b ? Dims{170, 200} : Dims{200, 170}},
          {{"equation", std::string(equation)}});
    }
    run("einsum", {{60, 16, 40}, {50, 16, 40}}, {{"equation", std::string("sdb,tdb->stb")}});
    const Attrs attention = {{"causal", int64_t{1}}, {"dropout", 0.1}, {"scale", 0.0}, {"key", int64_t{5}}};
    const Dims q = {2, 100, 4, 32}, lse = {2, 4, 100};
    run("attention", {q, q, q}, attention);
    run("attention_grad", {q, q, q, q, q, lse}, attention);
    run("attention", {{1, 2, 4, 32}, {1, 300, 2, 32}, {1, 300, 2, 32}},
        {{"causal", int64_t{0}}, {"dropout", 0.0}, {"scale", 0.0}, {"key", int64_t{5}}});
    struct Convolved {
      int64_t in, out, window, stride, groups;
    };
    for (const Convolved& c :
         {Convolved{32, 48, 3, 1, 1}, Convolved{32, 48, 3, 2, 1}, Convolved{32, 64, 1, 2, 1},
          Convolved{3, 40, 7, 2, 1}, Convolved{32, 32, 3, 1, 4}, Convolved{24, 24, 3, 1, 24},
          Convolved{5, 7, 1, 3, 1}}) {
      const int64_t pad = c.window / 2, size = 14, to = (size + 2 * pad - c.window) / c.stride + 1;
      Attrs attrs = {{"stride", std::vector<int64_t>{c.stride, c.stride}},
                     {"padding", std::vector<int64_t>{pad, pad}},
                     {"dilation", std::vector<int64_t>{1, 1}},
                     {"groups", c.groups}};
      const Dims x = {4, size, size, c.in}, filter = {c.out, c.window, c.window, c.in / c.groups},
                 y = {4, to, to, c.out};
      run("conv2d", {x, filter}, attrs);
      attrs.Set("size", std::vector<int64_t>{size, size});
      run("conv2d_grad_input", {y, filter}, attrs);
      attrs.Set("window", std::vector<int64_t>{c.window, c.window});
      run("conv2d_grad_filter", {x, y}, attrs);
    }
  }

  const KernelRegistry& registry_;
  StatedScratch stated_;
};

}  // namespace oneflow_like
