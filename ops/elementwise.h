// Helpers for table entries of elementwise operators: reference kernels from a scalar function, and entries
// of functions of one and two numbers and of their slopes.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/language/functional.h"
#include "ops/manifest.h"
#include "ops/reference.h"

namespace oneflow_like {

// --- Reference kernels ---------------------------------------------------------------------------

// out = f(x) for one input, in double or int64_t; `f` also takes the attributes.
template <auto kF>
Status Unary(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  return DispatchType(x.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t i = 0; i < y.elements(); ++i)
      Store(y.as<T>() + i, kF(Load(x.as<T>() + i), context.spec.attrs));
    return Status();
  });
}

// out = f(a, b); the output is of type T or, for comparisons, bool.
template <auto kF, bool kToBool>
Status Binary(const KernelContext& context) {
  const TensorArg &a = context.in[0], &b = context.in[1], &y = context.out[0];
  return DispatchType(a.dtype, [&](auto t) {
    using T = decltype(t);
    using Out = std::conditional_t<kToBool, bool, T>;
    int64_t i = 0;
    ForEachIndex(y.extent, [&](const Dims& index) {
      const int64_t second = BroadcastOffset(b.extent, index);
      Store(y.as<Out>() + i++,
            kF(Load(a.as<T>() + BroadcastOffset(a.extent, index)),
               // The types differ only inside a chain: a narrow operand beside fp32 numbers of its channels.
               b.dtype == a.dtype ? Load(b.as<T>() + second) : static_cast<Wide<T>>(LoadFloat(b, second))));
    });
    return Status();
  });
}

// --- Table entries -------------------------------------------------------------------------------

// g, summed down to the shape of an operand that was broadcast.
inline Tensor Fit(Tensor g, const Tensor& operand) {
  return g.shape() == operand.shape() ? g : sum_to(g, operand.shape());
}

using UnaryGrad = Tensor (*)(Tensor dy, Tensor x, Tensor y);
using BinaryGrad = std::vector<Tensor> (*)(const GradCall& call, Tensor dy);

inline std::vector<Sample> UnarySamples(double low, double high) {
  std::vector<Sample> samples = {{.in = {{6, 4}}}, {.in = {{2, 3, 5}}}, {.in = {{}}}};
  for (Sample& s : samples) {
    s.low = low;
    s.high = high;
  }
  return samples;
}

inline std::vector<Sample> BinarySamples(double low, double high) {
  std::vector<Sample> samples = {
      {.in = {{6, 4}, {6, 4}}}, {.in = {{2, 6, 4}, {4}}}, {.in = {{6, 1}, {3, 1, 4}}}, {.in = {{5, 3}, {}}}};
  for (Sample& s : samples) {
    s.low = low;
    s.high = high;
  }
  return samples;
}

// A function of one number, of floating type. Samples are drawn from [low, high).
inline OpDef UnaryOp(const std::string& name, const std::string& doc, KernelFn reference, UnaryGrad grad,
                     double low = -2, double high = 2) {
  OpDef def{.name = name, .doc = doc};
  def.scalar = name;
  def.axes = "x[..] -> y[..]";
  def.check = [](const OpCall& call) { RequireFloating(call); };
  if (grad != nullptr) {
    def.grad = [grad](const GradCall& c) { return std::vector<Tensor>{grad(c.dout[0], c.in[0], c.out[0])}; };
  }
  def.precision = Precision::kFollow;
  def.reference = reference;
  def.samples = UnarySamples(low, high);
  return def;
}

inline OpDef BinaryOp(const std::string& name, const std::string& doc, KernelFn reference, BinaryGrad grad,
                      std::vector<std::set<std::string>> linear = {}, double low = -2, double high = 2) {
  OpDef def{.name = name, .doc = doc};
  def.scalar = name;
  def.axes = "a[..], b[..] -> y[..]";
  def.linear = std::move(linear);
  def.check = RequireArithmetic;
  if (grad != nullptr) {
    def.grad = [grad](const GradCall& c) {
      std::vector<Tensor> d = grad(c, c.dout[0]);
      for (size_t i = 0; i < d.size(); ++i)
        d[i] = c.wanted[i] && d[i].defined() ? Fit(d[i], c.in[i]) : Tensor();
      return d;
    };
  }
  def.precision = Precision::kFollow;
  def.reference = reference;
  def.samples = BinarySamples(low, high);
  return def;
}

// What a slope operator's gradient with respect to `at` is: g * f''(at), where f' is written in `at`.
using Curvature = Tensor (*)(Tensor g, Tensor at, const Attrs& attrs);

// The gradient of a function of one number with its derivative fused in: dy * f'(at), linear in dy. `at` is
// the operand or the result of the function, whichever the derivative is written in. Without `curvature` f'
// is constant in pieces, and nothing flows to `at`.
inline OpDef SlopeOp(const std::string& name, const std::string& at, KernelFn reference,
                     Curvature curvature = nullptr) {
  OpDef def;
  def.name = def.scalar = name;
  def.doc = "dy times the derivative of " + name.substr(0, name.rfind("_grad")) + ", given " + at + ".";
  def.axes = "dy[..], " + at + "[..] -> dx[..]";
  def.linear = {{"dy"}};
  def.check = [](const OpCall& call) {
    RequireFloating(call);
    RequireSameTypes(call);
  };
  def.grad = [name, curvature](const GradCall& c) {
    std::vector<Tensor> d(2);
    if (c.wanted[0]) d[0] = Fit(Apply(c.in[0].graph(), name, {c.dout[0], c.in[1]}, c.attrs)[0], c.in[0]);
    if (c.wanted[1] && curvature != nullptr)
      d[1] = Fit(curvature(mul(c.dout[0], c.in[0]), c.in[1], c.attrs), c.in[1]);
    return d;
  };
  def.precision = Precision::kFollow;
  def.reference = reference;
  def.samples = {{.in = {{6, 4}, {6, 4}}}, {.in = {{2, 3, 5}, {2, 3, 5}}}};
  return def;
}

// For functions whose slope grows without bound: a rounding error of their operand or result in a narrow type
// would grow, too.
inline OpDef WidePrecision(OpDef def) {
  def.precision = Precision::kWide;
  return def;
}

// The node of a slope operator.
inline Tensor Slope(const char* op, Tensor dy, Tensor at, const Attrs& attrs = {}) {
  return Apply(dy.graph(), op, {dy, at}, attrs)[0];
}

}  // namespace oneflow_like
