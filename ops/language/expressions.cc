// Numbers beside tensors, parts, constants: each as one or two nodes of existing operators.
#include "ops/language/expressions.h"

#include <cfloat>
#include <cmath>

#include "ops/language/calls.h"
#include "ops/language/numbers.h"

namespace oneflow_like {
namespace {

// Throws Error unless x can be computed with the number: one of its type, or of fp32 if it is floating.
void NeedWhole(const char* op, const Tensor& x, double number, const Here& at,
               const char* name = "the number") {
  NeedGiven(op, "x", x, at);
  if (x.dtype() == DType::kBool)
    Fail(Who(op, at), ": its operand is bool but must be of a type of numbers; cast it");
  if (IsFloating(x.dtype())) {
    NeedNumber(Who(op, at), name, number, Domain::kFinite);
  } else if (!(std::isfinite(number) && number == std::floor(number))) {
    Fail(Who(op, at), ": ", number, " is not whole, but its operand is ", Name(x.dtype()),
         "; cast the operand to a floating type");
  } else if (!Holds(x.dtype(), number)) {
    Fail(Who(op, at), ": ", name, " is ", number, ", more than the ", Name(x.dtype()),
         " of its operand holds");
  }
}

// The same, where the number itself, not what is computed with it, must be one of x's type.
void NeedHeld(const char* op, const Tensor& x, double number, const Here& at) {
  NeedWhole(op, x, number, at);
  if (!Holds(x.dtype(), number))
    Fail(Who(op, at), ": the number is ", number, ", more than the ", Name(x.dtype()),
         " of its operand holds");
}

// The number as a tensor of one element and of the type of x, which it meets. A `value` that is compared or
// chosen, not computed with, may be infinite or NaN where x is floating.
Tensor AsTensor(const char* op, const Tensor& x, double number, const Here& at, bool value = false) {
  NeedGiven(op, "x", x, at);
  if (!(value && IsFloating(x.dtype()) && !std::isfinite(number))) NeedHeld(op, x, number, at);
  return full(x.graph(), {}, number, x.dtype(), at);
}

Tensor Shifted(const char* op, Tensor x, double number, const Here& at) {
  NeedHeld(op, x, number, at);
  return number == 0 ? x : shift(x, number, at.In(op));
}

Tensor Scaled(const char* op, Tensor x, double number, const Here& at) {
  NeedWhole(op, x, number, at);
  return number == 1 ? x : number == -1 ? neg(x, at.In(op)) : scale(x, number, at.In(op));
}

// The same for a number by which x is divided without being multiplied by its inverse.
Tensor Divisor(const char* op, const Tensor& x, double number, const Here& at) {
  Tensor by = AsTensor(op, x, number, at);
  constexpr double kLeastNormalOfFloat16 = 0x1p-14;
  const double least = x.dtype() == DType::kFloat16 ? kLeastNormalOfFloat16 : FLT_MIN;
  if (IsFloating(x.dtype()) && std::fabs(number) < least)
    Fail(Who(op, at), ": the number is ", number, ", by which ", Name(x.dtype()), " cannot divide");
  return by;
}

}  // namespace

// --- With numbers --------------------------------------------------------------------------------

Tensor operator+(Located x, double number) { return Shifted("add", x.tensor, number, x.at); }
Tensor operator+(double number, Located x) { return Shifted("add", x.tensor, number, x.at); }
Tensor operator-(Located x, double number) {
  NeedHeld("sub", x.tensor, number, x.at);
  // The type may hold one sign only: 3 of u8.
  if (!IsFloating(x.tensor.dtype()) && !Holds(x.tensor.dtype(), -number))
    return sub(x.tensor, AsTensor("sub", x.tensor, number, x.at), x.at);
  return Shifted("sub", x.tensor, -number, x.at);
}
Tensor operator-(double number, Located x) {
  NeedWhole("sub", x.tensor, number, x.at);
  return Shifted("sub", neg(x.tensor, x.at.In("sub")), number, x.at);
}
Tensor operator*(Located x, double number) { return Scaled("mul", x.tensor, number, x.at); }
Tensor operator*(double number, Located x) { return Scaled("mul", x.tensor, number, x.at); }
Tensor operator/(Located x, double number) {
  NeedWhole("div", x.tensor, number, x.at);
  if (IsFloating(x.tensor.dtype())) {
    if (!Holds(DType::kFloat32, 1 / number) || number == 0)
      Fail(Who("div", x.at), ": the number is ", number, ", whose inverse fp32 does not hold");
    return Scaled("div", x.tensor, 1 / number, x.at);
  }
  return div(x.tensor, AsTensor("div", x.tensor, number, x.at), x.at);
}
Tensor operator/(double number, Located x) {
  NeedWhole("div", x.tensor, number, x.at);
  if (IsFloating(x.tensor.dtype())) return Scaled("div", reciprocal(x.tensor, x.at.In("div")), number, x.at);
  return div(AsTensor("div", x.tensor, number, x.at), x.tensor, x.at);
}

Tensor maximum(Tensor x, double number, Here at) {
  at = at.In("maximum");
  NeedWhole("maximum", x, number == -INFINITY ? 0 : number, at);
  if (number == -INFINITY) return x;
  return One("at_least", {x}, {{"bound", number}}, at);
}
Tensor minimum(Tensor x, double number, Here at) {
  at = at.In("minimum");
  NeedWhole("minimum", x, number == INFINITY ? 0 : number, at);
  if (number == INFINITY) return x;
  return One("at_most", {x}, {{"bound", number}}, at);
}
Tensor clamp(Tensor x, double low, double high, Here at) {
  at = at.In("clamp");
  NeedWhole("clamp", x, std::isinf(low) ? 0 : low, at, "low");
  NeedWhole("clamp", x, std::isinf(high) ? 0 : high, at, "high");
  if (!(low <= high) || low == INFINITY || high == -INFINITY)
    Fail(Who("clamp", at), ": low is ", low, " but high is ", high);
  Tensor y = std::isinf(low) ? x : One("at_least", {x}, {{"bound", low}}, at);
  return std::isinf(high) ? y : One("at_most", {y}, {{"bound", high}}, at);
}
Tensor remainder(Tensor x, double number, Here at) {
  return remainder(x, Divisor("remainder", x, number, at), at);
}
Tensor floor_divide(Tensor x, double number, Here at) {
  return floor_divide(x, Divisor("floor_divide", x, number, at), at);
}
Tensor pow(Tensor x, double number, Here at) {
  at = at.In("pow");
  NeedWhole("pow", x, number, at);
  if (number == 1) return x;
  if (IsFloating(x.dtype())) {
    if (number == 2) return square(x, at);
    if (number == 0.5) return sqrt(x, at);
    if (number == -0.5) return rsqrt(x, at);
    if (number == -1) return reciprocal(x, at);
  }
  return pow(x, AsTensor("pow", x, number, at), at);
}
Tensor where(Tensor condition, Tensor a, double b, Here at) {
  NeedGiven("where", "a", a, at);
  return where(condition, a, AsTensor("where", a, b, at, true), at);
}
Tensor where(Tensor condition, double a, Tensor b, Here at) {
  NeedGiven("where", "b", b, at);
  return where(condition, AsTensor("where", b, a, at, true), b, at);
}

Tensor where(Tensor condition, double a, double b, DType dtype, Here at) {
  at = at.In("where");
  GraphBuilder* const graph = NeedGiven("where", "condition", condition, at);
  NeedType(Who("where", at), dtype);
  const Tensor like = full(graph, {}, 0, dtype, at);  // not read
  return where(condition, AsTensor("where", like, a, at, true), AsTensor("where", like, b, at, true), at);
}

Tensor nan_to_num(Tensor x, const NanToNum& numbers, Here at) {
  at = InFloating("nan_to_num", x, at);
  constexpr double kMostOfBFloat16 = 0x1.FEp127, kMostOfFloat16 = 65504;
  const double most = x.dtype() == DType::kFloat32    ? FLT_MAX
                      : x.dtype() == DType::kBFloat16 ? kMostOfBFloat16
                                                      : kMostOfFloat16;
  const auto other = [&](const char* name, double number, double standard) {
    if (number == standard) return standard > 0 ? most : -most;
    NeedNumber(Who("nan_to_num", at), name, number, Domain::kFinite);
    return number;
  };
  NeedNumber(Who("nan_to_num", at), "nan", numbers.nan, Domain::kFinite);
  const double above = other("infinity", numbers.infinity, INFINITY),
               below = other("minus_infinity", numbers.minus_infinity, -INFINITY);
  Tensor y = where(isnan(x, at), numbers.nan, x, at);
  y = where(equal(x, INFINITY, at), above, y, at);
  return where(equal(x, -INFINITY, at), below, y, at);
}

Tensor equal(Tensor x, double number, Here at) {
  return equal(x, AsTensor("equal", x, number, at, true), at);
}
Tensor not_equal(Tensor x, double number, Here at) {
  return not_equal(x, AsTensor("not_equal", x, number, at, true), at);
}
Tensor less(Tensor x, double number, Here at) { return less(x, AsTensor("less", x, number, at, true), at); }
Tensor less_equal(Tensor x, double number, Here at) {
  return less_equal(x, AsTensor("less_equal", x, number, at, true), at);
}
Tensor greater(Tensor x, double number, Here at) {
  return greater(x, AsTensor("greater", x, number, at, true), at);
}
Tensor greater_equal(Tensor x, double number, Here at) {
  return greater_equal(x, AsTensor("greater_equal", x, number, at, true), at);
}

// --- Parts ---------------------------------------------------------------------------------------

Tensor select(Tensor x, int64_t axis, int64_t index, Here at) {
  at = at.In("select");
  axis = NormalAxis("select", axis, x, at);
  const int64_t extent = x.shape()[static_cast<int>(axis)];
  if (index < -extent || index >= extent)
    Fail(Who("select", at), ": index ", index, " is outside axis ", axis, ", which is ", extent);
  const int64_t begin = index < 0 ? index + extent : index;
  return Dropped(slice(x, axis, begin, begin + 1, at), {axis}, false, at);
}

Tensor Tensor::operator[](Index index) const {
  return select(*this, 0, index.value, index.at.In("operator[]"));
}

// --- Constants -----------------------------------------------------------------------------------

Tensor full_like(Tensor x, double value, Here at) {
  at = at.In("full_like");
  GraphBuilder* const graph = NeedGiven("full_like", "x", x, at);  // first: x may be undefined
  return full(graph, Dims(x.shape()), value, x.dtype(), at);
}
Tensor zeros_like(Tensor x, Here at) { return full_like(x, 0, at.In("zeros_like")); }
Tensor ones_like(Tensor x, Here at) { return full_like(x, 1, at.In("ones_like")); }
Tensor full(Tensor x, const Dims& shape, double value, Here at) {
  GraphBuilder* const graph = NeedGiven("full", "x", x, at);
  return full(graph, shape, value, x.dtype(), at);
}
Tensor zeros(Tensor x, const Dims& shape, Here at) { return full(x, shape, 0, at.In("zeros")); }

Tensor arange_like(Tensor x, int64_t axis, Here at) {
  at = at.In("arange_like");
  axis = NormalAxis("arange_like", axis, x, at);
  const Dims shape = x.shape();
  const int64_t extent = shape[static_cast<int>(axis)];
  if (extent > int64_t{1} << 23)
    Fail(Who("arange_like", at), ": axis ", axis, " is ", extent, " but may be 2^23 at most");
  HostTensor numbers = HostTensor::Make(DType::kInt64, {extent});
  for (int64_t i = 0; i < extent; ++i) numbers.as<int64_t>()[i] = i;
  Dims along(shape.rank() - static_cast<int>(axis), int64_t{1});
  along[0] = extent;
  Tensor line = cast(constant(x.graph(), numbers, at), x.dtype(), at);
  return broadcast_to(reshape(line, along, at), shape, at);
}

Tensor constant(GraphBuilder* graph, const HostTensor& values, Here at) {
  constexpr size_t kMost = size_t{1} << 26;
  if (values.bytes() > kMost) {
    Fail(Who("constant", at), ": ", Name(values.dtype), values.shape.str(), " takes ", values.bytes(),
         " bytes but a literal may take ", kMost, "; make it a weight or an input");
  }
  if (values.data == nullptr && values.bytes() > 0)
    Fail(Who("constant", at), ": the HostTensor has no values; make one with HostTensor::Make");
  Attrs attrs = {{"shape", std::vector<int64_t>(values.shape.begin(), values.shape.end())},
                 {"dtype", std::string(Name(values.dtype))},
                 {"values", Blob(values.data.get(), values.bytes())}};
  return Apply(graph, "constant", {}, attrs, at)[0];
}

// --- Gradients -----------------------------------------------------------------------------------

Tensor stop_gradient(Tensor x, Here at) { return One("stop_gradient", {x}, {}, at); }

}  // namespace oneflow_like
