// scan: the operator, the kernel for devices of the host, and the function that records a body.
#include "ops/language/scan.h"

#include <cstring>

#include "core/device/parallel_for.h"
#include "ops/language/calls.h"
#include "ops/loop.h"
#include "ops/manifest.h"
#include "ops/reference.h"
#include "ops/scan_gradient.h"

namespace oneflow_like {
namespace {

// --- Kernel ----------------------------------------------------------------------------------------

class HostLoop : public Kernel, LoopDevice {
 public:
  HostLoop(const KernelSpec& spec, const InnerKernels& kernels) : loop_(spec, kernels) {}
  Status Run(const KernelContext& context) override { return loop_.Run(context, this); }

 private:
  static constexpr int64_t kGrain = 8192;  // elements that outweigh the start of a team

  Status Run(Kernel* kernel, const KernelContext& context) override { return kernel->Run(context); }

  Status Copy(void* to, int64_t to_stride, const void* from, int64_t from_stride, int64_t rows,
              int64_t bytes) override {
    if (bytes == 0) return Status();
    ParallelFor(rows, 1 + 4 * kGrain / bytes, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        std::memcpy(static_cast<char*>(to) + i * to_stride, static_cast<const char*>(from) + i * from_stride,
                    static_cast<size_t>(bytes));
    });
    return Status();
  }

  Status Add(double* sum, const TensorArg& part, bool first) override {
    DispatchFloating(part.dtype, [&](auto t) {
      const auto* from = part.as<decltype(t)>();
      ParallelFor(part.elements(), kGrain, [&](int64_t begin, int64_t end) {
        if (first)
          for (int64_t i = begin; i < end; ++i) sum[i] = Load(from + i);
        else
          for (int64_t i = begin; i < end; ++i) sum[i] += Load(from + i);
      });
    });
    return Status();
  }

  Status Round(const TensorArg& to, const double* sum) override {
    DispatchFloating(to.dtype, [&](auto t) {
      ParallelFor(to.elements(), kGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) Store(to.as<decltype(t)>() + i, sum[i]);
      });
    });
    return Status();
  }

  Loop loop_;
};

// --- Table entry -----------------------------------------------------------------------------------

LoopCall CallOf(const OpCall& call) { return LoopCall(BuiltinCatalog(), *call.attrs, call.who); }

std::string LabelName(const LoopCall::Operand& operand, int axis) {
  const char label = operand.labels[axis];
  return label == '#' ? "steps" : label == ' ' ? Cat("of_", operand.name, "_", axis) : std::string(1, label);
}

std::string LineOf(const LoopCall& loop) {
  std::string line;
  for (const auto* operands : {&loop.in, &loop.out}) {
    if (operands == &loop.out) line += " -> ";
    for (size_t i = 0; i < operands->size(); ++i) {
      const LoopCall::Operand& operand = (*operands)[i];
      line += (i ? ", " : "") + operand.name + "[";
      for (int axis = 0; axis < operand.shape.rank(); ++axis)
        line += (axis ? " " : "") + LabelName(operand, axis);
      line += "]";
    }
  }
  return line;
}

template <typename F>
void ForEachAxis(const LoopCall& loop, F&& f) {
  for (const auto* operands : {&loop.in, &loop.out})
    for (const LoopCall::Operand& operand : *operands)
      for (int axis = 0; axis < operand.shape.rank(); ++axis) f(operand, axis);
}

void CheckLoop(const OpCall& call) {
  for (const char* name : {"body", "states", "steps", "xs", "ys", "sums"}) RequireAttr(call, name);
  const LoopCall loop = CallOf(call);
  RequireInputs(call, loop.in.size());
  for (size_t i = 0; i < loop.in.size(); ++i)
    if (call.shapes[i] != loop.in[i].shape || call.dtypes[i] != loop.in[i].dtype)
      Fail(call.who, ": ", loop.in[i].name, " is ", Name(call.dtypes[i]), call.shapes[i].str(),
           " but the loop's body takes ", Name(loop.in[i].dtype), loop.in[i].shape.str());
}

// Operations of the steps on a rank's pieces: a node's share is that of its labels' extents.
std::function<double(const BoundRule&)> FlopsOf(const Attrs& attrs) {
  const LoopCall loop(BuiltinCatalog(), attrs, "scan");
  std::map<std::string, double> by_labels;
  for (const Body::Node& node : loop.body.nodes()) {
    std::set<char> labels;
    for (const auto* values : {&node.in, &node.out})
      for (int v : *values)
        for (char label : loop.body.values()[v].labels)
          if (label != ' ') labels.insert(label);
    by_labels[std::string(labels.begin(), labels.end())] += node.flops * static_cast<double>(loop.steps);
  }
  std::map<char, double> whole;
  ForEachAxis(loop, [&](const LoopCall::Operand& operand, int axis) {
    whole[operand.labels[axis]] = static_cast<double>(operand.shape[axis]);
  });
  return [by_labels, whole](const BoundRule& rule) {
    double flops = 0;
    for (const auto& [labels, all] : by_labels) {
      double share = all;
      for (char label : labels) {
        const auto local = rule.extents.find(std::string(1, label));
        if (local != rule.extents.end() && whole.count(label) && whole.at(label) > 0)
          share *= static_cast<double>(local->second) / whole.at(label);
      }
      flops += share;
    }
    return flops;
  };
}

// A step of these operators as a sample: with its gradient's outputs, as the oracle asks for gradients.
Sample LoopSample(const Catalog& catalog, const std::vector<Dims>& states, const std::vector<Dims>& xs,
                  const std::vector<Dims>& read, int64_t steps, int64_t axis, bool reverse,
                  const std::function<ScanResult(const std::vector<Tensor>&)>& step) {
  Body body(catalog);
  std::vector<Tensor> in;
  std::vector<std::pair<int, int>> pairs;
  Sample sample;
  for (const auto* shapes : {&states, &xs, &read})
    for (const Dims& shape : *shapes) {
      in.push_back(body.AddInput(DType::kFloat32, shape));
      Dims operand = shape;
      if (shapes == &xs) {
        operand = {};
        for (int64_t i = 0; i <= shape.rank(); ++i) {
          if (i == axis) operand.push_back(steps);
          if (i < shape.rank()) operand.push_back(shape[static_cast<int>(i)]);
        }
      }
      sample.in.push_back(operand);
    }
  const ScanResult made = step(in);
  for (const auto* tensors : {&made.states, &made.ys})
    for (const Tensor& t : *tensors) body.results.push_back(t.id());
  for (size_t i = 0; i < states.size(); ++i) pairs.push_back({in[i].id(), made.states[i].id()});
  body.SetLabels(pairs, states.size());
  sample.attrs = {{"body", body.Text()},
                  {"states", static_cast<int64_t>(states.size())},
                  {"steps", steps},
                  {"xs", std::vector<int64_t>(xs.size(), axis)},
                  {"ys", std::vector<int64_t>(made.ys.size(), axis)},
                  {"sums", std::vector<int64_t>()},
                  {"reverse", int64_t{reverse}},
                  {"keep", int64_t{1}}};
  return sample;
}

}  // namespace

void AddScan(Catalog* catalog) {
  OpDef def{.name = "scan", .doc = "A body of operators, once for each place along an axis."};
  def.axes_of = [](const OpCall& call) { return LineOf(CallOf(call)); };
  def.whole_of = [](const OpCall& call) {
    std::set<std::string> whole;
    ForEachAxis(CallOf(call), [&](const LoopCall::Operand& operand, int axis) {
      if (const std::string name = LabelName(operand, axis); name.size() > 1) whole.insert(name);
    });
    return whole;
  };
  def.folds_of = [](const OpCall& call) {
    std::map<std::string, Reduce> folds;
    for (char label : CallOf(call).body.folds) folds[std::string(1, label)] = Reduce::kSum;
    return folds;
  };
  def.extents = [](const OpCall& call) {
    std::map<std::string, int64_t> extents;
    ForEachAxis(CallOf(call), [&](const LoopCall::Operand& operand, int axis) {
      extents[LabelName(operand, axis)] = operand.shape[axis];
    });
    return extents;
  };
  def.dtypes = [](const OpCall& call) {
    std::vector<DType> types;
    for (const LoopCall::Operand& operand : CallOf(call).out) types.push_back(operand.dtype);
    return types;
  };
  def.check = CheckLoop;
  def.grad = ScanGradient;
  def.keep = "keep";
  def.category = "loop";
  def.flops_of = FlopsOf;
  def.cuda_unit = UnitOfProducts;  // of its body, whose kernels it runs; none of these rounds to TF32
  def.composed = [](const KernelSpec& spec, const InnerKernels& kernels) -> std::unique_ptr<Kernel> {
    return std::make_unique<HostLoop>(spec, kernels);
  };
  def.composed_scratch = Loop::Scratch;
  def.scratch = [](const KernelSpec& spec) { return Loop::Scratch(spec, ReferenceInner()); };
  using Tensors = std::vector<Tensor>;
  const auto recurrent = [](const Tensors& t) -> ScanResult {
    Tensor h = tanh(add(t[1], matmul(t[0], t[2])));
    return {{h}, {h}};
  };
  const auto elementwise = [](const Tensors& t) -> ScanResult {
    Tensor h = add(mul(sigmoid(t[2]), t[0]), t[3]), count = add(t[1], t[0]);
    return {{h, count}, {mul(h, t[1])}};
  };
  const auto apart =
      [](const Tensors& t) -> ScanResult {  // a state without the batch, which can't be cut then
    Tensor h = tanh(add(mul(t[2], t[0]), t[1]));
    return {{h, mul(t[1], t[1])}, {sum(h, {0})}};
  };
  const auto sums = [](const Tensors& t) -> ScanResult {  // of the batch, in a y
    Tensor h = add(t[0], t[1]);
    return {{h}, {sum(mul(h, h), {0})}};
  };
  def.samples = {
      LoopSample(*catalog, {{4, 3}}, {{4, 3}}, {{3, 3}}, 5, 1, false, recurrent),
      LoopSample(*catalog, {{2, 16}}, {{2, 16}}, {{16, 16}}, 3, 0, true, recurrent),  // nothing is copied
      LoopSample(*catalog, {{3, 4}, {3, 4}}, {{3, 4}, {3, 4}}, {}, 3, 2, true, elementwise),
      LoopSample(*catalog, {{4, 3}, {3}}, {{4, 3}}, {}, 3, 1, false, apart),
      LoopSample(*catalog, {{5, 2}}, {{5, 2}}, {}, 3, 0, false, sums)};
  catalog->Add(std::move(def));
}

// --- The function ----------------------------------------------------------------------------------

namespace {

const char* const kScan = "scan";

// The graph that the loop is a node of: of graphs one in the other, the inner one.
GraphBuilder* LoopGraph(const std::vector<Tensor>& states, const std::vector<Tensor>& xs, const Here& at) {
  GraphBuilder* graph = nullptr;
  for (const auto* tensors : {&states, &xs})
    for (const Tensor& t : *tensors) {
      GraphBuilder* of = NeedGiven(kScan, tensors == &xs ? "one of the xs" : "a state", t, at);
      for (GraphBuilder* g = of; g != nullptr; g = g->outer())
        if (graph == nullptr || g == graph) {
          graph = of;
          break;
        }
    }
  if (graph == nullptr)
    Fail(Who(kScan, at), ": no state and no x was given; a loop needs one to say what it runs on");
  return graph;
}

int64_t StepsOf(const std::vector<Tensor>& xs, const ScanOptions& options, const Here& at) {
  int64_t steps = options.steps;
  for (size_t i = 0; i < xs.size(); ++i) {
    const int64_t axis = NormalAxis(kScan, options.axis, xs[i], at);
    const int64_t extent = xs[i].shape()[static_cast<int>(axis)];
    if (steps != 0 && extent != steps)
      Fail(Who(kScan, at), ": axis ", axis, " of x ", i, " ", xs[i].shape().str(), " is ", extent,
           i ? ", but that of x 0 is " : ", but ScanOptions::steps is ", steps,
           "; all have one place for each step");
    steps = extent;
  }
  if (steps < 1)
    Fail(Who(kScan, at), ": it would have ", steps, " steps but needs at least 1",
         xs.empty() ? "; without xs, ScanOptions::steps says how many" : "");
  return steps;
}

}  // namespace

ScanResult scan(const ScanBody& function, const std::vector<Tensor>& states, const std::vector<Tensor>& xs,
                const ScanOptions& options, Here at) {
  at = at.In(kScan);
  GraphBuilder* graph = LoopGraph(states, xs, at);
  const int64_t steps = StepsOf(xs, options, at);
  if (!function) Fail(Who(kScan, at), ": the body is an empty function");
  auto body = std::make_shared<Body>(graph->catalog(), graph);
  graph->Own(body);
  std::vector<Tensor> before, places;
  std::vector<int64_t> axes, ys;
  for (const Tensor& t : states) before.push_back(body->AddInput(t.dtype(), Dims(t.shape())));
  for (const Tensor& t : xs) {
    axes.push_back(NormalAxis(kScan, options.axis, t, at));
    Dims place;
    for (int i = 0; i < t.shape().rank(); ++i)
      if (i != axes.back()) place.push_back(t.shape()[i]);
    places.push_back(body->AddInput(t.dtype(), place));
  }
  const ScanResult step = function(before, places);
  if (step.states.size() != states.size())
    Fail(Who(kScan, at), ": the body gives ", step.states.size(), " states but has ", states.size());
  std::vector<std::pair<int, int>> pairs;
  for (const auto* tensors : {&step.states, &step.ys})
    for (size_t i = 0; i < tensors->size(); ++i) {
      const bool is_state = tensors == &step.states;
      const std::string what = Cat(is_state ? "state " : "y ", i);
      const Tensor& given = (*tensors)[i];
      const Tensor t = given.defined() ? body->Take(given) : given;
      if (!t.defined())
        Fail(Who(kScan, at), ": ", what, " that the body gives ",
             given.defined() ? "belongs to another model" : "is a Tensor that was never given a value");
      if (is_state && (t.shape() != before[i].shape() || t.dtype() != before[i].dtype()))
        Fail(Who(kScan, at), ": ", what, " is ", Name(before[i].dtype()), before[i].shape().str(),
             " before a step but ", Name(t.dtype()), t.shape().str(),
             " after it; a state keeps shape and type");
      body->results.push_back(t.id());
      if (is_state) pairs.push_back({before[i].id(), t.id()});
      if (!is_state) ys.push_back(NormalAxis(kScan, options.axis, t, at, 1));
    }
  body->DropUnread();
  body->SetLabels(pairs, states.size());
  body->Close();
  Attrs attrs{{"body", body->Text()},
              {"states", static_cast<int64_t>(states.size())},
              {"steps", steps},
              {"xs", axes},
              {"ys", ys},
              {"sums", std::vector<int64_t>()}};
  if (options.reverse) attrs.Set("reverse", int64_t{1});
  std::vector<Tensor> in = states;
  in.insert(in.end(), xs.begin(), xs.end());
  in.insert(in.end(), body->read.begin(), body->read.end());
  const std::vector<Tensor> out = Apply(graph, "scan", in, attrs, at);
  const auto split = out.begin() + static_cast<long>(states.size());
  return {{out.begin(), split}, {split, split + static_cast<long>(ys.size())}};
}

}  // namespace oneflow_like
