// Gradients and expansions for the operator oracle: a builder of graphs that computes at once, and the
// comparison of an operator's gradient with finite differences of its reference kernel.
#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "ops/language/functional.h"
#include "ops/oracle/check.h"

namespace oneflow_like::oracle {

// Runs every node where it is added, with the given kernels or the reference's, and remembers the nodes.
class Tape : public GraphBuilder {
 public:
  Tape() = default;
  explicit Tape(MakeKernel make) : make_(std::move(make)) {}
  explicit Tape(const Catalog& catalog) : catalog_(catalog) {}

  struct Node {
    std::string op;
    Attrs attrs;
    std::vector<int> in, out;
  };

  Tensor Input(Value value) {
    values_.push_back(std::move(value));
    names_.push_back(Cat("input.", values_.size()));
    return Tensor(this, static_cast<int>(values_.size()) - 1);
  }
  const Value& At(Tensor tensor) const { return values_[tensor.id()]; }
  const std::vector<Node>& nodes() const { return nodes_; }

  std::vector<Tensor> AddNode(const std::string& op, const std::vector<Tensor>& in, const Attrs& given,
                              const SourceLine& line) override {
    const OpDef& def = catalog_.Get(op);
    Attrs attrs = given;
    if (!def.keep.empty()) attrs.Set(def.keep, int64_t{1});  // gradients may be asked for
    if (def.random && !attrs.Has("key")) attrs.Set("key", static_cast<int64_t>(HashName(op) >> 1));
    OpCall call{op, op, {}, {}, &attrs};
    std::vector<Value> in_values, out_values;
    Node node{op, attrs, {}, {}};
    for (const Tensor& t : in) {
      node.in.push_back(t.id());
      call.shapes.push_back(ShapeOf(t.id()));
      call.dtypes.push_back(DTypeOf(t.id()));
      in_values.push_back(values_[t.id()]);
    }
    Inferred inferred = Infer(def, call);
    for (size_t o = 0; o < inferred.rule.out.size(); ++o) {
      out_values.emplace_back(inferred.dtypes[o], inferred.rule.out[o].shape);
    }
    Status status = RunWhole(def, attrs, in_values, &out_values, make_ ? make_ : ReferenceOf(def));
    if (!status.ok()) Fail(op, ": ", status.message());
    std::vector<Tensor> out;
    for (Value& v : out_values) out.push_back(Input(std::move(v)));
    for (const Tensor& t : out) node.out.push_back(t.id());
    nodes_.push_back(std::move(node));
    return out;
  }
  const Dims& ShapeOf(int id) const override { return values_[id].shape(); }
  DType DTypeOf(int id) const override { return values_[id].dtype(); }
  const std::string& NameOf(int id) const override { return names_[id]; }

 private:
  const Catalog& catalog_ = BuiltinCatalog();
  MakeKernel make_;
  std::vector<Value> values_;
  std::vector<std::string> names_;
  std::vector<Node> nodes_;
};

inline double Dot(const Value& a, const Value& weights) {
  double sum = 0;
  for (int64_t i = 0; i < a.elements(); ++i) {
    if (weights.Get(i) != 0) sum += a.Get(i) * weights.Get(i);
  }
  return sum;
}

// The sum of cotangent * output, as a function of the trial's inputs with input `which` moved by `step` *
// direction.
inline double Along(const Trial& trial, size_t which, const Value& direction, double step, size_t output,
                    const Value& cotangent) {
  std::vector<Value> in = trial.in, out = trial.out;
  for (int64_t i = 0; i < direction.elements(); ++i)
    in[which].Set(i, in[which].Get(i) + step * direction.Get(i));
  Status status = RunWhole(*trial.def, trial.sample.attrs, in, &out, ReferenceOf(*trial.def));
  return status.ok() ? Dot(out[output], cotangent) : NAN;
}

// The derivative along a direction: central differences with two steps, extrapolated, where they and one of a
// much smaller step agree; else there is a kink nearby, and smaller steps are tried. NaN when none will do.
inline double Derivative(const Trial& trial, size_t which, const Value& direction, size_t output,
                         const Value& cotangent) {
  auto central = [&](double h) {
    return (Along(trial, which, direction, h, output, cotangent) -
            Along(trial, which, direction, -h, output, cotangent)) /
           (2 * h);
  };
  for (double h : {0x1p-5, 0x1p-7, 0x1p-8}) {
    double coarse = central(h), fine = central(h / 2), finest = central(h / 16),
           slack = 4e-3 * (1 + std::fabs(fine));
    if (std::fabs(fine - coarse) <= slack && std::fabs(finest - fine) <= slack)
      return (4 * fine - coarse) / 3;
  }
  return NAN;
}

// What the gradient function says of one output's cotangent. Undefined: no gradient.
inline std::vector<Tensor> Gradients(Tape* tape, const Trial& trial, size_t output, const Value& cotangent,
                                     const std::vector<bool>& wanted) {
  std::vector<Tensor> in;
  for (const Value& v : trial.in) in.push_back(tape->Input(v));
  std::vector<Tensor> out = tape->AddNode(trial.def->name, in, trial.sample.attrs, {});
  std::vector<Tensor> dout(out.size());
  dout[output] = tape->Input(cotangent);
  return trial.def->grad({trial.sample.attrs, in, out, dout, wanted});
}

// Compares one input's gradient along drawn directions and along single elements. Tolerance 3e-3 of the
// derivative and of the size of the cotangent: half of f32's digits, which is what differences of f32 leave.
inline void CheckInputGradient(const Trial& trial, size_t input, size_t output, const Value& cotangent,
                               const Value& gradient, Draws* draws, Report* report) {
  int64_t n = trial.in[input].elements();
  for (int64_t k = 0; k < 3 + std::min<int64_t>(n, 6) && n > 0; ++k) {
    Value direction(DType::kFloat32, trial.in[input].shape());
    std::memset(direction.data(), 0, direction.bytes());
    if (k < 3) {
      for (int64_t i = 0; i < n; ++i) direction.Set(i, draws->Uniform() * 2 - 1);
    } else {
      direction.Set(draws->Below(n), 1);
    }
    ++report->cases;
    double want = Derivative(trial, input, direction, output, cotangent);
    if (std::isnan(want)) {
      ++report->rough;
      continue;
    }
    double got = Dot(gradient, direction);
    if (std::fabs(got - want) <= 3e-3 * (1 + std::fabs(want))) continue;
    report->Fail(Cat("gradient: ", trial.text, " output ", output, " along a direction of input ", input,
                     k < 3 ? "" : " (one element)", " is ", got, ", by differences ", want));
    return;
  }
}

// The gradient of one output with respect to all floating inputs, asked for together and one by one.
inline void CheckGradient(const Trial& trial, size_t output, const Catalog& catalog, Report* report) {
  Draws draws(kSeed ^ HashName(trial.text) ^ output);
  Value cotangent(trial.out_dtypes[output], trial.out[output].shape());
  for (int64_t i = 0; i < cotangent.elements(); ++i) {  // nothing flows to the maximum over nothing
    cotangent.Set(i, std::isfinite(trial.out[output].Get(i)) ? draws.Uniform() * 2 - 1 : 0);
  }
  std::vector<bool> wanted;
  for (const Value& v : trial.in) wanted.push_back(IsFloating(v.dtype()));
  Tape tape(catalog);
  std::vector<Tensor> gradients = Gradients(&tape, trial, output, cotangent, wanted);
  if (gradients.size() != trial.in.size()) {
    report->Fail(Cat("gradient: ", trial.text, " gives ", gradients.size(), " gradients for ",
                     trial.in.size(), " inputs"));
    return;
  }
  for (size_t i = 0; i < trial.in.size(); ++i) {
    if (!wanted[i]) continue;
    Value gradient(DType::kFloat32, trial.in[i].shape());
    std::memset(gradient.data(), 0, gradient.bytes());
    if (gradients[i].defined()) {
      if (gradients[i].shape() != trial.in[i].shape() || gradients[i].dtype() != trial.in[i].dtype()) {
        report->Fail(Cat("gradient: ", trial.text, " input ", i, " has a gradient of ",
                         Name(gradients[i].dtype()), gradients[i].shape().str()));
        return;
      }
      gradient = tape.At(gradients[i]);
    }
    CheckInputGradient(trial, i, output, cotangent, gradient, &draws, report);
    // Asked for alone it is the same.
    std::vector<bool> only(trial.in.size(), false);
    only[i] = true;
    std::vector<Tensor> alone = Gradients(&tape, trial, output, cotangent, only);
    if (alone[i].defined() != gradients[i].defined()) {
      report->Fail(
          Cat("gradient: ", trial.text, " input ", i, " has a gradient only with or without the others'"));
    } else if (alone[i].defined()) {
      Compare(Cat("gradient alone of ", trial.text, " input ", i), tape.At(alone[i]), gradient, true, report);
    }
  }
}

// Whether one sample of an operator has finite differences to compare with. Rounding to a narrower or an
// integer type is a staircase, and 16 bits are too few; beside an output of numbers there may be one of
// places.
inline bool HasDifferences(const Trial& trial) {
  bool any = false;
  for (DType dtype : trial.out_dtypes) {
    any |= dtype == DType::kFloat32;
    if (IsFloating(dtype) && dtype != DType::kFloat32) return false;
  }
  for (const Value& v : trial.in)
    if (IsFloating(v.dtype()) && v.dtype() != DType::kFloat32) return false;
  return any;
}

// Of all samples and what becomes of them. Gives how many outputs were compared.
inline int CheckGradients(const OpDef& def, const Catalog& catalog, Report* report) {
  int compared = 0;
  for (const Sample& sample : def.samples) {
    try {
      InferSample(def, sample);
    } catch (const Error&) {
      continue;  // CheckOperator tells it
    }
    for (const Sample& varied : Vary(def, sample)) {
      Trial trial = MakeTrial(def, varied, ReferenceOf(def), false);
      if (!trial.status.ok() || !HasDifferences(trial)) continue;
      for (size_t output = 0; output < trial.out.size(); ++output) {
        if (trial.out_dtypes[output] != DType::kFloat32) continue;
        try {
          CheckGradient(trial, output, catalog, report);
          ++compared;
        } catch (const Error& error) {
          // Saved statistics (log-sum-exp, mean) may say that they pass none.
          const bool says_so = std::string(error.what()).find("no gradient flows") != std::string::npos;
          if (!says_so || output == 0) report->Fail(Cat("gradient: ", trial.text, " threw ", error.what()));
        }
      }
    }
  }
  return compared;
}

}  // namespace oneflow_like::oracle
