// Elementwise operators: out[i] = f(in0[i], in1[i], ...), operands broadcast against each other. Their
// gradients are sums back to the operands' shapes of products with other elementwise operators.
#include "ops/elementwise.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ops/language/numbers.h"

namespace oneflow_like {
namespace {

Status AddN(const KernelContext& context) {
  const TensorArg& y = context.out[0];
  return DispatchType(y.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t i = 0; i < y.elements(); ++i) {
      Wide<T> sum = 0;
      for (const TensorArg& x : context.in) sum += Load(x.as<T>() + i);
      Store(y.as<T>() + i, sum);
    }
    return Status();
  });
}

Status Where(const KernelContext& context) {
  const TensorArg &c = context.in[0], &a = context.in[1], &b = context.in[2], &y = context.out[0];
  return DispatchType(y.dtype, [&](auto t) {
    using T = decltype(t);
    int64_t i = 0;
    ForEachIndex(y.extent, [&](const Dims& index) {
      bool first = c.as<bool>()[BroadcastOffset(c.extent, index)];
      y.as<T>()[i++] =
          first ? a.as<T>()[BroadcastOffset(a.extent, index)] : b.as<T>()[BroadcastOffset(b.extent, index)];
    });
    return Status();
  });
}

Status Cast(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  return DispatchType(x.dtype, [&](auto from) {
    return DispatchType(y.dtype, [&](auto to) {
      using From = decltype(from);
      using To = decltype(to);
      for (int64_t i = 0; i < y.elements(); ++i) Store(y.as<To>() + i, Load(x.as<From>() + i));
      return Status();
    });
  });
}

// --- Mathematics ---------------------------------------------------------------------------------

double NormalBelow(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }
double GeluErfSlope(double x) {
  return NormalBelow(x) + x * std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
}
double Sigmoid(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }
double SiluSlope(double x) {
  double s = Sigmoid(x);
  return s * (1 + x * (1 - s));
}

// --- Second derivatives, times g ------------------------------------------------------------------

// With u = s (x + c x^3) and t = tanh u: (1 - t^2) (u' + x u'' / 2 - x t u'^2).
Tensor GeluCurvature(Tensor g, Tensor x, const Attrs&) {
  Tensor squares = square(x),
         t = tanh(scale(mul(x, shift(scale(squares, kGeluTanhCubic), 1)), kGeluTanhScale));
  Tensor first = scale(shift(scale(squares, 3 * kGeluTanhCubic), 1), kGeluTanhScale);
  Tensor half_second = scale(squares, 3 * kGeluTanhScale * kGeluTanhCubic);  // x u'' / 2
  Tensor inner = sub(add(first, half_second), mul(mul(x, t), square(first)));
  return mul(g, mul(inner, shift(neg(square(t)), 1)));
}
// phi(x) (2 - x^2) with the normal density phi.
Tensor GeluErfCurvature(Tensor g, Tensor x, const Attrs&) {
  Tensor density = scale(exp(scale(square(x), -0.5)), 1 / std::sqrt(2 * std::numbers::pi));
  return mul(g, mul(density, shift(neg(square(x)), 2)));
}
// With s = sigmoid(x): s (1 - s) (2 + x (1 - 2 s)).
Tensor SiluCurvature(Tensor g, Tensor x, const Attrs&) {
  Tensor s = sigmoid(x), inner = shift(mul(x, shift(scale(s, -2), 1)), 2);
  return mul(g, mul(sub(s, square(s)), inner));
}

template <typename V>
V Power(V a, V b) {
  return static_cast<V>(std::pow(a, b));
}
// a / b rounded down; of integers 0 where b is 0. The quotient of two floats rounded to double is not whole
// unless it is exactly that.
template <typename V>
V FloorDivide(V a, V b) {
  if constexpr (std::is_integral_v<V>) {
    if (b == 0) return 0;
    if (b == -1) return static_cast<V>(uint64_t{0} - static_cast<uint64_t>(a));
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
  } else {
    const V quotient = a / b;  // too small for its type it is still below 0
    return quotient == 0 && a != 0 && (a < 0) != (b < 0) ? V{-1} : std::floor(quotient);
  }
}
template <typename V>
V Divide(V a, V b) {
  if constexpr (std::is_integral_v<V>) return FloorDivide(a, b);
  return a / b;
}

// --- Table entries -------------------------------------------------------------------------------

OpDef CompareOp(const std::string& name, const std::string& doc, KernelFn reference) {
  OpDef def = BinaryOp(name, doc, reference, nullptr);
  def.check = [](const OpCall& call) { RequireSameTypes(call); };
  def.stops_gradient = true;
  def.dtypes = ResultTypes({DType::kBool});
  std::vector<Sample> integers = def.samples;
  for (Sample& s : integers) s.dtypes = {DType::kInt32, DType::kInt32};
  def.samples.insert(def.samples.end(), integers.begin(), integers.end());
  return def;
}

// Integers round each part: their quotients and multiples do not carry partial sums.
std::function<std::vector<std::set<std::string>>(const OpCall&)> LinearIfFloating(
    const std::string& operand) {
  return [operand](const OpCall& call) {
    return IsFloating(call.dtypes[0]) ? std::vector<std::set<std::string>>{{operand}}
                                      : std::vector<std::set<std::string>>{};
  };
}

// maximum or minimum. Samples lie far apart: moving one a little seldom changes which is taken.
void AddExtreme(Catalog* catalog, const std::string& name, const std::string& doc, KernelFn reference,
                BinaryGrad grad) {
  OpDef def = BinaryOp(name, doc, reference, grad);
  def.samples = {{.in = {{6, 4}, {6, 4}}}, {.in = {{2, 6, 4}, {4}}}, {.in = {{5, 1}, {2, 1, 3}}}};
  for (Sample& s : def.samples) {
    s.low = -20;
    s.high = 20;
  }
  catalog->Add(std::move(def));
}

// Half of dy for each of equals, so that maximum and minimum treat their operands alike.
std::vector<Tensor> ShareByOrder(Tensor dy, Tensor strictly, Tensor weakly) {
  Tensor share = scale(add(cast(strictly, dy.dtype()), cast(weakly, dy.dtype())), 0.5);
  Tensor first = mul(dy, share);
  return {first, sub(dy, first)};
}

void AddArithmetic(Catalog* catalog) {
  catalog->Add(BinaryOp("add", "a + b.", Binary<[](auto a, auto b) { return a + b; }, false>,
                        [](const GradCall&, Tensor dy) {
                          return std::vector<Tensor>{dy, dy};
                        },
                        {{"a", "b"}}));
  catalog->Add(BinaryOp("sub", "a - b.", Binary<[](auto a, auto b) { return a - b; }, false>,
                        [](const GradCall& c, Tensor dy) {
                          return std::vector<Tensor>{dy, c.wanted[1] ? neg(Fit(dy, c.in[1])) : Tensor()};
                        },
                        {{"a", "b"}}));
  catalog->Add(BinaryOp("mul", "a * b.", Binary<[](auto a, auto b) { return a * b; }, false>,
                        [](const GradCall& c, Tensor dy) {
                          return std::vector<Tensor>{c.wanted[0] ? mul(dy, c.in[1]) : Tensor(),
                                                     c.wanted[1] ? mul(dy, c.in[0]) : Tensor()};
                        },
                        {{"a"}, {"b"}}));
  OpDef quotient = BinaryOp(
      "div", "a / b; integers round down, and their division by zero gives 0.",
      Binary<[](auto a, auto b) { return Divide(a, b); }, false>,
      [](const GradCall& c, Tensor dy) {
        Tensor da = div(dy, c.in[1]);
        return std::vector<Tensor>{da, c.wanted[1] ? neg(mul(da, c.out[0])) : Tensor()};
      },
      {}, 0.5, 2);
  quotient.linear_of = LinearIfFloating("a");
  catalog->Add(std::move(quotient));
  OpDef whole = BinaryOp("floor_divide", "a / b rounded down, of integers 0 where b is 0; no gradient flows.",
                         Binary<[](auto a, auto b) { return FloorDivide(a, b); }, false>, nullptr, {}, 1, 20);
  whole.stops_gradient = true;
  for (int i = 0, floating = static_cast<int>(whole.samples.size()); i < floating; ++i) {
    Sample integers = whole.samples[i];
    integers.dtypes = {DType::kInt32, DType::kInt32};
    integers.limit = 50;
    whole.samples.push_back(integers);
  }
  catalog->Add(WidePrecision(std::move(whole)));
  AddExtreme(catalog, "maximum", "The greater of a and b; a NaN wins.",
             Binary<[](auto a, auto b) { return (a > b) || a != a ? a : b; }, false>,
             [](const GradCall& c, Tensor dy) {
               return ShareByOrder(dy, greater(c.in[0], c.in[1]), greater_equal(c.in[0], c.in[1]));
             });
  AddExtreme(catalog, "minimum", "The lesser of a and b; a NaN wins.",
             Binary<[](auto a, auto b) { return a < b || a != a ? a : b; }, false>,
             [](const GradCall& c, Tensor dy) {
               return ShareByOrder(dy, less(c.in[0], c.in[1]), less_equal(c.in[0], c.in[1]));
             });
  OpDef power = BinaryOp(
      "pow", "a to the power b. Where a is not positive no gradient flows to b.",
      Binary<[](auto a, auto b) { return Power(a, b); }, false>,
      [](const GradCall& c, Tensor dy) {
        const Tensor &a = c.in[0], &b = c.in[1];
        Tensor da, db;
        if (c.wanted[0]) da = mul(dy, mul(b, pow(a, shift(b, -1))));
        if (c.wanted[1]) {
          Tensor slope = mul(dy, mul(c.out[0], log(a)));
          db = where(greater(a, scale(a, 0)), slope, scale(dy, 0));
        }
        return std::vector<Tensor>{da, db};
      },
      {}, 0.5, 2);
  power.precision = Precision::kWide;  // its slope grows without bound
  catalog->Add(std::move(power));
}

void AddComparisons(Catalog* catalog) {
  catalog->Add(CompareOp("equal", "a == b.", Binary<[](auto a, auto b) { return a == b; }, true>));
  catalog->Add(CompareOp("not_equal", "a != b.", Binary<[](auto a, auto b) { return a != b; }, true>));
  catalog->Add(CompareOp("less", "a < b.", Binary<[](auto a, auto b) { return a < b; }, true>));
  catalog->Add(CompareOp("less_equal", "a <= b.", Binary<[](auto a, auto b) { return a <= b; }, true>));
  catalog->Add(CompareOp("greater", "a > b.", Binary<[](auto a, auto b) { return (a > b); }, true>));
  catalog->Add(CompareOp("greater_equal", "a >= b.", Binary<[](auto a, auto b) { return a >= b; }, true>));
}

// A number of the operand's type.
void RequireNumber(const OpCall& call, const char* name) {
  RequireAttr(call, name);
  const double number = call.attrs->Float(name);
  if (!IsFloating(call.dtypes[0]) && !Holds(call.dtypes[0], number))
    Fail(call.who, ": ", name, " is ", number, ", which is no number of type ", Name(call.dtypes[0]));
}

void AddScaleAndShift(Catalog* catalog) {
  OpDef scaled = UnaryOp(
      "scale", "x * factor.",
      Unary<[](auto x, const Attrs& attrs) { return static_cast<decltype(x)>(x * attrs.Float("factor")); }>,
      nullptr);
  scaled.linear_of = LinearIfFloating("x");
  scaled.check = [](const OpCall& call) {
    RequireArithmetic(call);
    RequireNumber(call, "factor");
  };
  scaled.grad = [](const GradCall& c) {
    return std::vector<Tensor>{scale(c.dout[0], c.attrs.Float("factor"))};
  };
  for (Sample& s : scaled.samples) s.attrs.Set("factor", 0.7);
  catalog->Add(std::move(scaled));

  OpDef shifted = UnaryOp(
      "shift", "x + offset.",
      Unary<[](auto x, const Attrs& attrs) { return static_cast<decltype(x)>(x + attrs.Float("offset")); }>,
      [](Tensor dy, Tensor, Tensor) { return dy; });
  shifted.check = [](const OpCall& call) {
    RequireArithmetic(call);
    RequireNumber(call, "offset");
  };
  for (Sample& s : shifted.samples) s.attrs.Set("offset", 0.3);
  catalog->Add(std::move(shifted));
}

// Operators that carry partial sums, or pass the values of any type.
void AddCarriers(Catalog* catalog) {
  OpDef identity = UnaryOp("identity", "x itself.", Unary<[](auto x, const Attrs&) { return x; }>,
                           [](Tensor dy, Tensor, Tensor) { return dy; });
  identity.check = nullptr;
  identity.linear = {{"x"}};
  identity.view = true;
  catalog->Add(std::move(identity));

  OpDef stop = UnaryOp("stop_gradient", "x itself; no gradient flows.",
                       Unary<[](auto x, const Attrs&) { return x; }>, nullptr);
  stop.scalar.clear();
  stop.check = nullptr;
  stop.linear = {{"x"}};
  stop.view = stop.stops_gradient = true;
  catalog->Add(std::move(stop));

  OpDef negative = UnaryOp("neg", "-x.", Unary<[](auto x, const Attrs&) { return -x; }>,
                           [](Tensor dy, Tensor, Tensor) { return neg(dy); });
  negative.check = RequireArithmetic;
  negative.linear = {{"x"}};
  catalog->Add(std::move(negative));
  AddScaleAndShift(catalog);

  OpDef sum{.name = "add_n", .doc = "The sum of any number of tensors of one shape."};
  sum.scalar = "add_n";
  sum.axes = "*x[..] -> y[..]";
  sum.linear = {{"x"}};
  sum.check = [](const OpCall& call) {
    RequireArithmetic(call);
    for (size_t i = 1; i < call.shapes.size(); ++i) {
      if (call.shapes[i] != call.shapes[0]) {
        Fail(call.who, ": operand 1 has shape ", call.shapes[0].str(), " but operand ", i + 1, " has ",
             call.shapes[i].str());
      }
    }
  };
  sum.grad = [](const GradCall& c) { return std::vector<Tensor>(c.in.size(), c.dout[0]); };
  sum.flops = [](const BoundRule& rule) { return rule.Volume() * static_cast<double>(rule.in.size() - 1); };
  sum.precision = Precision::kFollow;
  sum.reference = AddN;
  sum.samples = {{.in = {{6, 4}, {6, 4}, {6, 4}}}, {.in = {{2, 3, 5}}}, {.in = {{7}, {7}}}};
  catalog->Add(std::move(sum));
}

void AddWhereAndCast(Catalog* catalog) {
  OpDef choose{.name = "where", .doc = "condition ? a : b."};
  choose.scalar = "where";
  choose.axes = "condition[..], a[..], b[..] -> y[..]";
  choose.linear = {{"a", "b"}};
  choose.check = [](const OpCall& call) {
    if (call.dtypes[0] != DType::kBool) {
      Fail(call.who, ": condition is ", Name(call.dtypes[0]), " but must be bool; compare it with a number");
    }
    RequireSameTypes(call, 1);
  };
  choose.dtypes = ResultTypes({1});
  choose.grad = [](const GradCall& c) {
    Tensor dy = c.dout[0], none = scale(dy, 0);
    std::vector<Tensor> d(3);
    if (c.wanted[1]) d[1] = Fit(where(c.in[0], dy, none), c.in[1]);
    if (c.wanted[2]) d[2] = Fit(where(c.in[0], none, dy), c.in[2]);
    return d;
  };
  choose.precision = Precision::kFollow;
  choose.reference = Where;
  DType f = DType::kFloat32, b = DType::kBool;
  choose.samples = {{.in = {{6, 4}, {6, 4}, {6, 4}}, .dtypes = {b, f, f}, .limit = 2},
                    {.in = {{4}, {6, 1}, {3, 1, 4}}, .dtypes = {b, f, f}, .limit = 2}};
  catalog->Add(std::move(choose));

  OpDef convert =
      UnaryOp("cast",
              "x in another type. To a narrower one it rounds, so it does not carry partial sums. Attribute "
              "\"terms\" says otherwise: with 1 each term of a sum is rounded, with 0 the sum must be made.",
              Cast, nullptr);
  convert.check = [](const OpCall& call) {
    RequireAttr(call, "dtype");
    DType to;
    if (!ParseDType(call.attrs->Str("dtype"), &to)) {
      Fail(call.who, ": there is no type named \"", call.attrs->Str("dtype"), "\"");
    }
  };
  convert.dtypes = [](const OpCall& call) {
    DType to = DType::kFloat32;
    ParseDType(call.attrs->Str("dtype"), &to);
    return std::vector<DType>{to};
  };
  convert.linear_of = [](const OpCall& call) {
    DType from = call.dtypes[0], to = from;
    ParseDType(call.attrs->Str("dtype"), &to);
    const bool exact = from == to || (IsFloating(from) && to == DType::kFloat32);
    const bool carries = call.attrs->Has("terms") ? call.attrs->Int("terms") == 1 : exact;
    return carries ? std::vector<std::set<std::string>>{{"x"}} : std::vector<std::set<std::string>>{};
  };
  convert.grad = [](const GradCall& c) {
    bool flows = IsFloating(c.in[0].dtype()) && IsFloating(c.out[0].dtype());
    return std::vector<Tensor>{flows ? cast(c.dout[0], c.in[0].dtype()) : Tensor()};
  };
  convert.precision = Precision::kWide;  // its attribute says the type
  convert.any_type = true;
  convert.samples = {{.in = {{6, 4}}, .attrs = {{"dtype", std::string("f32")}}},
                     {.in = {{6, 4}}, .attrs = {{"dtype", std::string("bf16")}}},
                     {.in = {{6, 4}}, .attrs = {{"dtype", std::string("f32")}}, .dtypes = {DType::kInt32}},
                     {.in = {{6, 4}}, .attrs = {{"dtype", std::string("i64")}}},
                     {.in = {{6, 4}}, .attrs = {{"dtype", std::string("f32")}, {"terms", int64_t{0}}}}};
  catalog->Add(std::move(convert));
}

void AddPowersAndRoots(Catalog* catalog) {
  catalog->Add(WidePrecision(UnaryOp("exp", "e to the power x.",
                                     Unary<[](auto x, const Attrs&) { return std::exp(x); }>,
                                     [](Tensor dy, Tensor, Tensor y) { return mul(dy, y); })));
  catalog->Add(WidePrecision(UnaryOp(
      "log", "The natural logarithm.", Unary<[](auto x, const Attrs&) { return std::log(x); }>,
      [](Tensor dy, Tensor x, Tensor) { return div(dy, x); }, 0.5, 2)));
  catalog->Add(UnaryOp(
      "sqrt", "The square root.", Unary<[](auto x, const Attrs&) { return std::sqrt(x); }>,
      [](Tensor dy, Tensor, Tensor y) { return scale(div(dy, y), 0.5); }, 0.5, 2));
  catalog->Add(WidePrecision(UnaryOp(
      "rsqrt", "1 / sqrt(x).", Unary<[](auto x, const Attrs&) { return 1 / std::sqrt(x); }>,
      [](Tensor dy, Tensor x, Tensor y) { return scale(mul(dy, div(y, x)), -0.5); }, 0.5, 2)));
  catalog->Add(UnaryOp("square", "x * x.", Unary<[](auto x, const Attrs&) { return x * x; }>,
                       [](Tensor dy, Tensor x, Tensor) { return scale(mul(dy, x), 2); }));
  catalog->Add(
      UnaryOp("abs", "|x|; its slope at 0 is 0.", Unary<[](auto x, const Attrs&) { return x < 0 ? -x : x; }>,
              [](Tensor dy, Tensor x, Tensor) { return mul(dy, Apply(x.graph(), "sign", {x})[0]); }));
  OpDef sign = UnaryOp(
      "sign", "-1, 0 or 1; no gradient flows.",
      Unary<[](auto x, const Attrs&) { return static_cast<decltype(x)>((x > 0) - (x < 0)); }>, nullptr);
  sign.stops_gradient = true;
  catalog->Add(std::move(sign));
  catalog->Add(UnaryOp("erf", "The error function.", Unary<[](auto x, const Attrs&) { return std::erf(x); }>,
                       [](Tensor dy, Tensor x, Tensor) {
                         return scale(mul(dy, exp(neg(square(x)))), 2 / std::sqrt(std::numbers::pi));
                       }));
}

void AddActivations(Catalog* catalog) {
  catalog->Add(UnaryOp("tanh", "The hyperbolic tangent.",
                       Unary<[](auto x, const Attrs&) { return std::tanh(x); }>,
                       [](Tensor dy, Tensor, Tensor y) { return Slope("tanh_grad", dy, y); }));
  catalog->Add(UnaryOp("sigmoid", "1 / (1 + exp(-x)).",
                       Unary<[](auto x, const Attrs&) { return Sigmoid(x); }>,
                       [](Tensor dy, Tensor, Tensor y) { return Slope("sigmoid_grad", dy, y); }));
  catalog->Add(UnaryOp("relu", "x where positive, else 0.",
                       Unary<[](auto x, const Attrs&) { return x < 0 ? 0 : x; }>,
                       [](Tensor dy, Tensor, Tensor y) { return Slope("relu_grad", dy, y); }));
  catalog->Add(UnaryOp("gelu", "x times the normal distribution function, in its tanh approximation.",
                       Unary<[](auto x, const Attrs&) { return GeluOf(x); }>,
                       [](Tensor dy, Tensor x, Tensor) { return Slope("gelu_grad", dy, x); }));
  catalog->Add(UnaryOp("gelu_erf", "x times the normal distribution function.",
                       Unary<[](auto x, const Attrs&) { return x * NormalBelow(x); }>,
                       [](Tensor dy, Tensor x, Tensor) { return Slope("gelu_erf_grad", dy, x); }));
  catalog->Add(UnaryOp("silu", "x * sigmoid(x).", Unary<[](auto x, const Attrs&) { return x * Sigmoid(x); }>,
                       [](Tensor dy, Tensor x, Tensor) { return Slope("silu_grad", dy, x); }));

  catalog->Add(UnaryOp(
      "softplus", "log(1 + e^x).",
      Unary<[](auto x, const Attrs&) { return (x > 0 ? x : 0) + std::log1p(std::exp(-std::abs(x))); }>,
      [](Tensor dy, Tensor x, Tensor) { return mul(dy, sigmoid(x)); }));

  catalog->Add(SlopeOp("tanh_grad", "y", Binary<[](auto dy, auto y) { return dy * (1 - y * y); }, false>,
                       [](Tensor g, Tensor y, const Attrs&) { return scale(mul(g, y), -2); }));
  catalog->Add(SlopeOp("sigmoid_grad", "y", Binary<[](auto dy, auto y) { return dy * y * (1 - y); }, false>,
                       [](Tensor g, Tensor y, const Attrs&) { return mul(g, shift(scale(y, -2), 1)); }));
  catalog->Add(
      SlopeOp("relu_grad", "y", Binary<[](auto dy, auto y) { return (y > 0) ? dy : 0 * dy; }, false>));
  catalog->Add(SlopeOp("gelu_grad", "x", Binary<[](auto dy, auto x) { return dy * GeluSlopeOf(x); }, false>,
                       GeluCurvature));
  catalog->Add(SlopeOp("gelu_erf_grad", "x",
                       Binary<[](auto dy, auto x) { return dy * GeluErfSlope(x); }, false>,
                       GeluErfCurvature));
  catalog->Add(SlopeOp("silu_grad", "x", Binary<[](auto dy, auto x) { return dy * SiluSlope(x); }, false>,
                       SiluCurvature));
}

}  // namespace

void AddElementwise(Catalog* catalog) {
  AddArithmetic(catalog);
  AddComparisons(catalog);
  AddCarriers(catalog);
  AddWhereAndCast(catalog);
  AddPowersAndRoots(catalog);
  AddActivations(catalog);
}

}  // namespace oneflow_like
