// More elementwise functions of one number: angles, logarithms near 1, rounding, bounds and activations;
// prelu, whose slope is a tensor. Also atan2, logaddexp, and functions of statistics: erfinv, lgamma.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "ops/elementwise.h"
#include "ops/inverse_normal.h"

namespace oneflow_like {
namespace {

// Values whose neighbours at a distance of a finite difference seldom cross a whole number or a kink.
constexpr double kApart = 20;

double HardSigmoid(double x) { return std::clamp(x / 6 + 0.5, 0.0, 1.0); }
double HardSwishSlope(double x) { return x < -3 ? 0 : x > 3 ? 1 : x / 3 + 0.5; }
double MishTanh(double x) { return std::tanh((x > 0 ? x : 0) + std::log1p(std::exp(-std::abs(x)))); }
double MishSlope(double x) {
  double t = MishTanh(x);
  return t + x * (1 - t * t) / (1 + std::exp(-x));
}

// With t = tanh(softplus(x)) and s = sigmoid(x): (1 - t^2) s (2 + x (1 - s) - 2 x t s).
Tensor MishCurvature(Tensor g, Tensor x, const Attrs&) {
  Tensor s = sigmoid(x), t = tanh(softplus(x));
  Tensor inner = shift(mul(x, shift(neg(mul(s, shift(scale(t, 2), 1))), 1)), 2);
  return mul(g, mul(mul(shift(neg(square(t)), 1), s), inner));
}

void AddAngles(Catalog* catalog) {
  catalog->Add(WidePrecision(UnaryOp(
      "sin", "The sine of x radians.", Unary<[](auto x, const Attrs&) { return std::sin(x); }>,
      [](Tensor dy, Tensor x, Tensor) { return mul(dy, cos(x)); }, -4, 4)));
  catalog->Add(WidePrecision(UnaryOp(
      "cos", "The cosine of x radians.", Unary<[](auto x, const Attrs&) { return std::cos(x); }>,
      [](Tensor dy, Tensor x, Tensor) { return neg(mul(dy, sin(x))); }, -4, 4)));
  catalog->Add(WidePrecision(UnaryOp(
      "tan", "The tangent of x radians.", Unary<[](auto x, const Attrs&) { return std::tan(x); }>,
      [](Tensor dy, Tensor, Tensor y) { return mul(dy, shift(square(y), 1)); }, -1.2, 1.2)));
  catalog->Add(WidePrecision(UnaryOp(
      "log1p", "log(1 + x), of full accuracy near 0.",
      Unary<[](auto x, const Attrs&) { return std::log1p(x); }>,
      [](Tensor dy, Tensor x, Tensor) { return div(dy, shift(x, 1)); }, -0.5, 2)));
  catalog->Add(WidePrecision(UnaryOp("expm1", "e^x - 1, of full accuracy near 0.",
                                     Unary<[](auto x, const Attrs&) { return std::expm1(x); }>,
                                     [](Tensor dy, Tensor, Tensor y) { return mul(dy, shift(y, 1)); })));
  catalog->Add(WidePrecision(UnaryOp(
      "reciprocal", "1 / x.", Unary<[](auto x, const Attrs&) { return static_cast<decltype(x)>(1.0 / x); }>,
      [](Tensor dy, Tensor, Tensor y) { return neg(mul(dy, square(y))); }, 0.5, 2)));
}

// The inverse normal distribution function, corrected by a step of Newton's.
double ErfInv(double x) {
  if (std::abs(x) == 1) return x * std::numeric_limits<double>::infinity();
  if (!(std::abs(x) < 1)) return NAN;
  if (std::abs(x) < 1e-8) return x * std::sqrt(std::numbers::pi) / 2;
  const double y = InverseNormal((1 + x) / 2) / std::numbers::sqrt2;
  return y - (std::erf(y) - x) * std::exp(y * y) * std::sqrt(std::numbers::pi) / 2;
}

constexpr double kPi = std::numbers::pi;

// Derivatives of log(gamma(x)) for x > 0 by recurrence and an asymptotic series, for others by reflection.
double Digamma(double x) {
  if (x == 0) return std::copysign(std::numeric_limits<double>::infinity(), -x);
  if (x < 0 && x == std::floor(x)) return NAN;
  if (x < 0.5) return Digamma(1 - x) - kPi / std::tan(kPi * (x - std::floor(x)));
  double y = 0;
  for (; x < 12; ++x) y -= 1 / x;
  const double z = 1 / (x * x);
  return y + std::log(x) - 0.5 / x - z * (1. / 12 - z * (1. / 120 - z * (1. / 252 - z / 240)));
}
double Trigamma(double x) {
  if (x < 0.5) {
    const double sine = std::sin(kPi * (x - std::round(x)));
    return kPi * kPi / (sine * sine) - Trigamma(1 - x);
  }
  double y = 0;
  for (; x < 12; ++x) y += 1 / (x * x);
  const double z = 1 / (x * x);
  return y + 1 / x + z / 2 + z / x * (1. / 6 - z * (1. / 30 - z * (1. / 42 - z / 30)));
}

double LogAddExp(double a, double b) {
  if (a == b) return a + std::numbers::ln2;
  return (a > b || a != a ? a : b) + std::log1p(std::exp(-std::abs(a - b)));
}

// Functions of two floating numbers.
OpDef OfFloats(OpDef def) {
  def.check = [](const OpCall& call) {
    RequireFloating(call);
    RequireSameTypes(call);
  };
  return WidePrecision(std::move(def));
}

void AddStatistics(Catalog* catalog) {
  catalog->Add(WidePrecision(UnaryOp(
      "log2", "The logarithm to base 2, exact for powers of 2.",
      Unary<[](auto x, const Attrs&) { return static_cast<decltype(x)>(std::log2(x)); }>,
      [](Tensor dy, Tensor x, Tensor) { return scale(div(dy, x), 1 / std::numbers::ln2); }, 0.5, 2)));
  catalog->Add(WidePrecision(
      UnaryOp("exp2", "2 to the power x, exact for whole numbers.",
              Unary<[](auto x, const Attrs&) { return static_cast<decltype(x)>(std::exp2(x)); }>,
              [](Tensor dy, Tensor, Tensor y) { return scale(mul(dy, y), std::numbers::ln2); })));
  catalog->Add(WidePrecision(
      UnaryOp("erfc", "1 - erf(x), of full accuracy for large x.",
              Unary<[](auto x, const Attrs&) { return static_cast<decltype(x)>(std::erfc(x)); }>,
              [](Tensor dy, Tensor x, Tensor) {
                return scale(mul(dy, exp(neg(square(x)))), -2 / std::sqrt(std::numbers::pi));
              })));
  catalog->Add(WidePrecision(
      UnaryOp("asinh", "The number whose hyperbolic sine is x.",
              Unary<[](auto x, const Attrs&) { return static_cast<decltype(x)>(std::asinh(x)); }>,
              [](Tensor dy, Tensor x, Tensor) { return mul(dy, rsqrt(shift(square(x), 1))); })));
  catalog->Add(WidePrecision(UnaryOp(
      "acosh", "The number, 0 or more, whose hyperbolic cosine is x; NaN below 1.",
      Unary<[](auto x, const Attrs&) { return static_cast<decltype(x)>(std::acosh(x)); }>,
      [](Tensor dy, Tensor x, Tensor) { return mul(dy, rsqrt(mul(shift(x, -1), shift(x, 1)))); }, 1.5, 4)));
  catalog->Add(WidePrecision(UnaryOp(
      "erfinv", "The number whose erf is x; infinite at -1 and 1, NaN beyond.",
      Unary<[](auto x, const Attrs&) { return static_cast<decltype(x)>(ErfInv(static_cast<double>(x))); }>,
      [](Tensor dy, Tensor, Tensor y) {
        return scale(mul(dy, exp(square(y))), std::sqrt(std::numbers::pi) / 2);
      },
      -0.8, 0.8)));
  catalog->Add(WidePrecision(UnaryOp(
      "lgamma", "The logarithm of |gamma(x)|.",
      Unary<[](auto x, const Attrs&) { return static_cast<decltype(x)>(std::lgamma(x)); }>,
      [](Tensor dy, Tensor x, Tensor) { return mul(dy, digamma(x)); }, 0.5, 4)));
  catalog->Add(WidePrecision(UnaryOp(
      "digamma", "The derivative of lgamma.",
      Unary<[](auto x, const Attrs&) { return static_cast<decltype(x)>(Digamma(static_cast<double>(x))); }>,
      [](Tensor dy, Tensor x, Tensor) { return mul(dy, Apply(x.graph(), "trigamma", {x})[0]); }, 0.5, 4)));
  catalog->Add(WidePrecision(UnaryOp(
      "trigamma", "The second derivative of lgamma.",
      Unary<[](auto x, const Attrs&) { return static_cast<decltype(x)>(Trigamma(static_cast<double>(x))); }>,
      nullptr, 0.5, 4)));
  catalog->Add(OfFloats(BinaryOp(
      "atan2", "The angle of the point (b, a), in (-pi, pi].",
      Binary<[](auto a, auto b) { return static_cast<decltype(a)>(std::atan2(a, b)); }, false>,
      [](const GradCall& c, Tensor dy) {
        Tensor each = div(dy, add(square(c.in[0]), square(c.in[1])));
        return std::vector<Tensor>{mul(each, c.in[1]), c.wanted[1] ? neg(mul(each, c.in[0])) : Tensor()};
      },
      {}, 0.5, 2)));
  catalog->Add(OfFloats(BinaryOp("logaddexp", "log(e^a + e^b), without their overflow.",
                                 Binary<[](auto a, auto b) {
                                   return static_cast<decltype(a)>(
                                       LogAddExp(static_cast<double>(a), static_cast<double>(b)));
                                 },
                                        false>,
                                 [](const GradCall& c, Tensor dy) {
                                   Tensor share = sigmoid(sub(c.in[0], c.in[1]));
                                   Tensor first = mul(dy, share);
                                   return std::vector<Tensor>{first, sub(dy, first)};
                                 })));
}

void AddRounding(Catalog* catalog) {
  auto add = [catalog](const char* name, const char* doc, KernelFn reference) {
    OpDef def = WidePrecision(UnaryOp(name, doc, reference, nullptr, -kApart, kApart));
    def.stops_gradient = true;
    catalog->Add(std::move(def));
  };
  add("floor", "The greatest whole number not above x; no gradient flows.",
      Unary<[](auto x, const Attrs&) { return std::floor(x); }>);
  add("ceil", "The least whole number not below x; no gradient flows.",
      Unary<[](auto x, const Attrs&) { return std::ceil(x); }>);
  add("round", "The nearest whole number, halves to the even one; no gradient flows.",
      Unary<[](auto x, const Attrs&) { return x - std::remainder(x, 1); }>);
}

// An operator with one number as an attribute, and its slope, which has the same.
struct WithNumber {
  std::string name, doc, attribute;
  double value;
  bool integers;  // whether it takes them; the number must be whole then
  KernelFn reference, slope;
  double low, high;
  Curvature curvature = nullptr;  // of the slope
};

void CheckNumber(const OpCall& call, const std::string& attribute, bool integers) {
  RequireAttr(call, attribute);
  double value = call.attrs->Float(attribute);
  integers ? RequireArithmetic(call) : RequireFloating(call);
  if (!IsFloating(call.dtypes[0]) && value != std::floor(value)) {
    Fail(call.who, ": ", attribute, " is ", value, " but must be whole for an operand of type ",
         Name(call.dtypes[0]));
  }
}

void AddWithNumber(Catalog* catalog, const WithNumber& f) {
  const std::string slope = f.name + "_grad", attribute = f.attribute;
  OpDef def = UnaryOp(f.name, f.doc, f.reference, nullptr, f.low, f.high);
  def.check = [f](const OpCall& call) { CheckNumber(call, f.attribute, f.integers); };
  def.grad = [slope, attribute](const GradCall& c) {
    return std::vector<Tensor>{
        Slope(slope.c_str(), c.dout[0], c.in[0], {{attribute, c.attrs.Float(attribute)}})};
  };
  for (Sample& s : def.samples) s.attrs.Set(attribute, f.value);
  if (f.integers) {
    for (DType dtype : {DType::kInt32, DType::kInt64})
      def.samples.push_back({.in = {{6, 4}}, .attrs = {{attribute, 5.0}}, .dtypes = {dtype}, .limit = 10});
  }
  catalog->Add(std::move(def));

  OpDef grad = SlopeOp(slope, "x", f.slope, f.curvature);
  grad.check = [attribute](const OpCall& call) {
    RequireFloating(call);
    RequireSameTypes(call);
    RequireAttr(call, attribute);
  };
  for (Sample& s : grad.samples) {
    s.attrs.Set(attribute, f.value);
    s.low = f.low;
    s.high = f.high;
  }
  catalog->Add(std::move(grad));
}

// dy * slope(x, number), for kernels of slope operators.
template <auto kSlope>
Status SlopeKernel(const KernelContext& context) {
  const TensorArg &dy = context.in[0], &x = context.in[1], &dx = context.out[0];
  const double number = context.spec.attrs.map().empty()
                            ? 0
                            : context.spec.attrs.Float(context.spec.attrs.map().begin()->first);
  int64_t i = 0;
  ForEachIndex(dx.extent, [&](const Dims& index) {
    StoreFloat(dx, i++,
               LoadFloat(dy, BroadcastOffset(dy.extent, index)) *
                   kSlope(LoadFloat(x, BroadcastOffset(x.extent, index)), number));
  });
  return Status();
}

template <typename V>
V Bound(const Attrs& attrs) {
  return static_cast<V>(attrs.Float("bound"));
}

void AddBounds(Catalog* catalog) {
  AddWithNumber(
      catalog, {"at_least", "x where it is above the bound, else the bound; a NaN stays.", "bound", 0.5, true,
                Unary<[](auto x, const Attrs& attrs) {
                  return x < attrs.Float("bound") ? Bound<decltype(x)>(attrs) : x;
                }>,
                SlopeKernel<[](double x, double bound) { return x < bound ? 0.0 : 1.0; }>, -kApart, kApart});
  AddWithNumber(catalog, {"at_most", "x where it is below the bound, else the bound; a NaN stays.", "bound",
                          0.5, true, Unary<[](auto x, const Attrs& attrs) {
                            return (x > attrs.Float("bound")) ? Bound<decltype(x)>(attrs) : x;
                          }>,
                          SlopeKernel<[](double x, double bound) { return (x > bound) ? 0.0 : 1.0; }>,
                          -kApart, kApart});
}

void AddMoreActivations(Catalog* catalog) {
  AddWithNumber(catalog,
                {"leaky_relu", "x where positive, else slope * x.", "slope", 0.1, false,
                 Unary<[](auto x, const Attrs& attrs) {
                   return static_cast<decltype(x)>(x < 0 ? x * attrs.Float("slope") : x);
                 }>,
                 SlopeKernel<[](double x, double slope) { return (x > 0) ? 1.0 : slope; }>, -kApart, kApart});
  AddWithNumber(
      catalog,
      {"elu", "x where positive, else alpha (e^x - 1).", "alpha", 0.7, false,
       Unary<[](auto x, const Attrs& attrs) { return x < 0 ? attrs.Float("alpha") * std::expm1(x) : x; }>,
       SlopeKernel<[](double x, double alpha) { return (x > 0) ? 1 : alpha * std::exp(x); }>, -kApart, kApart,
       [](Tensor g, Tensor x, const Attrs& attrs) {
         return mul(g, where(greater(x, 0), 0, scale(exp(x), attrs.Float("alpha"))));
       }});
  catalog->Add(UnaryOp(
      "hardsigmoid", "x / 6 + 1/2, held inside [0, 1].",
      Unary<[](auto x, const Attrs&) { return HardSigmoid(x); }>,
      [](Tensor dy, Tensor x, Tensor) { return Slope("hardsigmoid_grad", dy, x); }, -kApart, kApart));
  catalog->Add(UnaryOp(
      "hardswish", "x * hardsigmoid(x).", Unary<[](auto x, const Attrs&) { return x * HardSigmoid(x); }>,
      [](Tensor dy, Tensor x, Tensor) { return Slope("hardswish_grad", dy, x); }, -6, 6));
  catalog->Add(UnaryOp(
      "mish", "x tanh(log(1 + e^x)).", Unary<[](auto x, const Attrs&) { return x * MishTanh(x); }>,
      [](Tensor dy, Tensor x, Tensor) { return Slope("mish_grad", dy, x); }, -4, 4));
  for (OpDef def :
       {SlopeOp("hardsigmoid_grad", "x",
                SlopeKernel<[](double x, double) { return std::abs(x) < 3 ? 1.0 / 6 : 0.0; }>),
        SlopeOp(
            "hardswish_grad", "x", SlopeKernel<[](double x, double) { return HardSwishSlope(x); }>,
            [](Tensor g, Tensor x, const Attrs&) { return where(less(square(x), 9), scale(g, 1.0 / 3), 0); }),
        SlopeOp("mish_grad", "x", SlopeKernel<[](double x, double) { return MishSlope(x); }>,
                MishCurvature)}) {
    for (Sample& s : def.samples) {
      s.low = -6;
      s.high = 6;
    }
    catalog->Add(std::move(def));
  }
}

// dy * (x > 0 ? 1 : slope): the slope may be broadcast.
Status PReluGrad(const KernelContext& context) {
  const TensorArg &dy = context.in[0], &x = context.in[1], &slope = context.in[2], &dx = context.out[0];
  int64_t i = 0;
  ForEachIndex(dx.extent, [&](const Dims& index) {
    bool positive = LoadFloat(x, BroadcastOffset(x.extent, index)) > 0;
    double factor = positive ? 1 : LoadFloat(slope, BroadcastOffset(slope.extent, index));
    StoreFloat(dx, i++, LoadFloat(dy, BroadcastOffset(dy.extent, index)) * factor);
  });
  return Status();
}

void AddPRelu(Catalog* catalog) {
  OpDef def = BinaryOp(
      "prelu", "a where positive, else a * b: b is the slope.",
      Binary<[](auto a, auto b) { return a < 0 ? a * b : a; }, false>,
      [](const GradCall& c, Tensor dy) {
        std::vector<Tensor> d(2);
        if (c.wanted[0]) d[0] = Apply(dy.graph(), "prelu_grad", {dy, c.in[0], c.in[1]})[0];
        if (c.wanted[1]) d[1] = Slope("prelu_slope_grad", dy, c.in[0]);
        return d;
      },
      {}, -kApart, kApart);
  def.check = [](const OpCall& call) {
    RequireFloating(call);
    RequireSameTypes(call);
  };
  catalog->Add(std::move(def));

  OpDef grad = SlopeOp("prelu_grad", "x", PReluGrad);
  grad.doc = "The gradient of prelu with respect to what it is applied to: dy * (x > 0 ? 1 : slope).";
  grad.axes = "dy[..], x[..], slope[..] -> dx[..]";
  grad.samples = {{.in = {{6, 4}, {6, 4}, {4}}}, {.in = {{2, 3, 5}, {2, 3, 5}, {3, 1}}}};
  grad.grad = [](const GradCall& c) {
    std::vector<Tensor> d(3);
    if (c.wanted[0])
      d[0] = Fit(Apply(c.in[0].graph(), "prelu_grad", {c.dout[0], c.in[1], c.in[2]})[0], c.in[0]);
    if (c.wanted[2]) d[2] = Fit(where(greater(c.in[1], 0), 0, mul(c.dout[0], c.in[0])), c.in[2]);
    return d;
  };
  catalog->Add(std::move(grad));

  OpDef slope =
      SlopeOp("prelu_slope_grad", "x", SlopeKernel<[](double x, double) { return (x > 0) ? 0.0 : x; }>,
              [](Tensor g, Tensor x, const Attrs&) { return where(greater(x, 0), 0, g); });
  for (Sample& s : slope.samples) {
    s.low = -kApart;
    s.high = kApart;
  }
  slope.doc = "The gradient of prelu with respect to its slope, element by element: dy * min(x, 0).";
  catalog->Add(std::move(slope));
}

}  // namespace

void AddFunctions(Catalog* catalog) {
  AddAngles(catalog);
  AddStatistics(catalog);
  AddRounding(catalog);
  AddBounds(catalog);
  AddMoreActivations(catalog);
  AddPRelu(catalog);
}

}  // namespace oneflow_like
