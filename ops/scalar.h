// The scalar bodies of elementwise operators, written once for every device. Each is a functor on float,
// without branches, so that a loop over it vectorises; the transcendental ones are polynomials good to a few
// units in the last place (tests/ops/cpu_kernels_test.cc measures them against the C++ library).
//
// The lists at the end name every body by its operator; whoever builds tables of loops expands them.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/host_device.h"

namespace oneflow_like::scalar {

OFL_HOST_DEVICE float FromBits(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  return __builtin_bit_cast(float, bits);
#endif
}
OFL_HOST_DEVICE uint32_t ToBits(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  return __builtin_bit_cast(uint32_t, x);
#endif
}

constexpr float kInfinity = __builtin_inff();

// --- Building blocks ---

// x = n log(2) + r with whole n and |r| <= log(2) / 2; n stands in the low bits of the sum with 1.5 * 2^23.
struct Reduced {
  int32_t n;
  float r;
};
OFL_HOST_DEVICE Reduced ReduceByLog2(float x) {
  constexpr float kShift = 12582912.0f;
  float shifted = x * 1.44269504f + kShift;
  float whole = shifted - kShift;
  float r = x - whole * 0.693359375f;  // nine bits: the product is exact
  r = r + whole * 2.12194440e-4f;
  return {static_cast<int32_t>(ToBits(shifted)) - 0x4B400000, r};
}

// e^r - 1 for |r| <= log(2) / 2.
OFL_HOST_DEVICE float SmallExpm1(float r) {
  float p = 1.989098846e-4f;
  p = p * r + 1.393364786e-3f;
  p = p * r + 8.333310928e-3f;
  p = p * r + 4.166646494e-2f;
  p = p * r + 0.1666666668f;
  p = p * r + 0.5f;
  return p * (r * r) + r;
}

// 2^n for -126 <= n <= 127.
OFL_HOST_DEVICE float PowerOf2(int32_t n) { return FromBits(static_cast<uint32_t>(n + 127) << 23); }

// e^x; below -87.33 (a denormal) it is 0.
OFL_HOST_DEVICE float ExpOf(float x) {
  float inside = x > 88.8f ? 88.8f : x;
  inside = inside < -87.4f ? -87.4f : inside;
  Reduced reduced = ReduceByLog2(inside);
  int32_t half = reduced.n >> 1;  // 2^n itself may exceed the range where the product does not
  float y = (SmallExpm1(reduced.r) + 1.0f) * PowerOf2(half) * PowerOf2(reduced.n - half);
  return x < -87.33654f ? 0.0f : y;
}

// log(x): x = 2^e (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2); s = f / (2 + f), log(1 + f) = 2 atanh(s).
OFL_HOST_DEVICE float LogOf(float x) {
  uint32_t bits = ToBits(x);
  int32_t e = static_cast<int32_t>(bits - 0x3F3504F3u) >> 23;
  float f = FromBits(bits - (static_cast<uint32_t>(e) << 23)) - 1.0f;
  float s = f / (2.0f + f), z = s * s;
  float p = 0.2333046722f;
  p = p * z + 0.2855082082f;
  p = p * z + 0.4000012184f;
  p = p * z + 0.6666666655f;
  float n = static_cast<float>(e);
  float y = n * 0.693359375f + (f - (s * (f - z * p) + n * 2.12194440e-4f));
  y = x == kInfinity ? x : y;
  y = x < 1.17549435e-38f ? -kInfinity : y;
  return x < 0.0f || x != x ? FromBits(0x7FC00000u) : y;
}

// tanh(|x|) = -t / (2 + t) with t = e^(-2|x|) - 1: no digits cancel near 0.
OFL_HOST_DEVICE float TanhOf(float x) {
  float a = -2.0f * __builtin_fabsf(x);
  a = a < -20.0f ? -20.0f : a;
  Reduced reduced = ReduceByLog2(a);
  float power = PowerOf2(reduced.n);
  float t = SmallExpm1(reduced.r) * power + (power - 1.0f);
  return __builtin_copysignf(-t / (2.0f + t), x);
}

// erf: an odd polynomial up to 1, beyond it 1 - e^(-q) with q a polynomial for -log(erfc).
OFL_HOST_DEVICE float ErfOf(float x) {
  float a = __builtin_fabsf(x), z = x * x;
  float p = -9.667044571e-6f;
  p = p * z + 1.126595903e-4f;
  p = p * z - 8.484080406e-4f;
  p = p * z + 5.221031808e-3f;
  p = p * z - 2.686543073e-2f;
  p = p * z + 0.112837825f;
  p = p * z - 0.3761263847f;
  p = p * z + 1.128379167f;
  float b = a > 4.0f ? 4.0f : a;
  float q = -1.637151415e-6f;
  q = q * b + 4.605804269e-5f;
  q = q * b - 5.968056257e-4f;
  q = q * b + 4.759596293e-3f;
  q = q * b - 2.642113601e-2f;
  q = q * b + 0.1100800829f;
  q = q * b + 0.6318260516f;
  q = q * b + 1.130233435f;
  q = q * b - 3.201380497e-4f;
  float large = __builtin_copysignf(1.0f - ExpOf(-q), x);
  float y = a < 1.0f ? p * x : large;
  return x != x ? x : y;
}

// log(1 + x) for x >= 0: what 1 + x rounds away is given back (Kahan).
OFL_HOST_DEVICE float Log1pOf(float x) {
  float u = 1.0f + x, rounded = u - 1.0f;
  return rounded == 0.0f ? x : LogOf(u) * (x / rounded);
}

OFL_HOST_DEVICE float SigmoidOf(float x) { return 1.0f / (1.0f + ExpOf(-x)); }

// The tanh form of gelu is x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
constexpr float kGeluScale = 0.797884561f, kGeluCubic = 0.044715f;
OFL_HOST_DEVICE float GeluGate(float x) {
  return SigmoidOf(2.0f * kGeluScale * (x + kGeluCubic * x * x * x));
}

// --- Functors: one operand ---

#define OFL_UNARY(name, body)                                        \
  struct name {                                                      \
    OFL_HOST_DEVICE float operator()(float x) const { return body; } \
  }
#define OFL_BINARY(name, body)                                                \
  struct name {                                                               \
    OFL_HOST_DEVICE float operator()(float a, float b) const { return body; } \
  }

OFL_UNARY(Identity, x);
OFL_UNARY(Neg, -x);
OFL_UNARY(Exp, ExpOf(x));
OFL_UNARY(Log, LogOf(x));
OFL_UNARY(Sqrt, __builtin_sqrtf(x));
OFL_UNARY(Rsqrt, 1.0f / __builtin_sqrtf(x));
OFL_UNARY(Square, x* x);
OFL_UNARY(Abs, __builtin_fabsf(x));
OFL_UNARY(Sign, (x > 0.0f ? 1.0f : 0.0f) - (x < 0.0f ? 1.0f : 0.0f));
OFL_UNARY(Tanh, TanhOf(x));
OFL_UNARY(Erf, ErfOf(x));
OFL_UNARY(Sigmoid, SigmoidOf(x));
OFL_UNARY(Relu, x > 0.0f || x != x ? x : 0.0f);
OFL_UNARY(Gelu, x* GeluGate(x));
OFL_UNARY(GeluErf, 0.5f * x * (1.0f + ErfOf(x * 0.707106781f)));
OFL_UNARY(Silu, x* SigmoidOf(x));
OFL_UNARY(Softplus, (x > 0.0f ? x : 0.0f) + Log1pOf(ExpOf(-__builtin_fabsf(x))));

// --- Functors: two operands. Of gradients, a is dy and b what the derivative is written in ---

OFL_BINARY(Add, a + b);
OFL_BINARY(Sub, a - b);
OFL_BINARY(Mul, a* b);
OFL_BINARY(Div, a / b);
OFL_BINARY(Maximum, a > b || a != a ? a : b);
OFL_BINARY(Minimum, a < b || a != a ? a : b);
OFL_BINARY(Pow, ::powf(a, b));
OFL_BINARY(Equal, a == b ? 1.0f : 0.0f);
OFL_BINARY(NotEqual, a != b ? 1.0f : 0.0f);
OFL_BINARY(Less, a < b ? 1.0f : 0.0f);
OFL_BINARY(LessEqual, a <= b ? 1.0f : 0.0f);
OFL_BINARY(Greater, a > b ? 1.0f : 0.0f);
OFL_BINARY(GreaterEqual, a >= b ? 1.0f : 0.0f);
OFL_BINARY(ReluGrad, b > 0.0f ? a : 0.0f);
OFL_BINARY(TanhGrad, a*(1.0f - b * b));
OFL_BINARY(SigmoidGrad, a*(b*(1.0f - b)));
struct GeluGrad {
  OFL_HOST_DEVICE float operator()(float dy, float x) const {
    float gate = GeluGate(x);
    float slope = 2.0f * kGeluScale * (1.0f + 3.0f * kGeluCubic * x * x);
    return dy * (gate + x * gate * (1.0f - gate) * slope);
  }
};
struct GeluErfGrad {
  OFL_HOST_DEVICE float operator()(float dy, float x) const {
    float below = 0.5f * (1.0f + ErfOf(x * 0.707106781f));
    return dy * (below + x * 0.398942280f * ExpOf(-0.5f * x * x));
  }
};
struct SiluGrad {
  OFL_HOST_DEVICE float operator()(float dy, float x) const {
    float s = SigmoidOf(x);
    return dy * (s * (1.0f + x * (1.0f - s)));
  }
};

// --- Functors: an operand and a constant; three operands ---

OFL_BINARY(Scale, a* b);
OFL_BINARY(Shift, a + b);
struct Where {
  OFL_HOST_DEVICE float operator()(float condition, float a, float b) const {
    return condition != 0.0f ? a : b;
  }
};

#undef OFL_UNARY
#undef OFL_BINARY

// --- The lists: X(operator, functor) ---

// The formatter moves such lists at every run.
// clang-format off
#define OFL_UNARY_SCALARS(X) \
  X("identity", Identity) X("neg", Neg) X("exp", Exp) X("log", Log) X("sqrt", Sqrt) \
  X("rsqrt", Rsqrt) X("square", Square) X("abs", Abs) X("sign", Sign) X("tanh", Tanh) X("erf", Erf) \
  X("sigmoid", Sigmoid) X("relu", Relu) X("gelu", Gelu) X("gelu_erf", GeluErf) X("silu", Silu) \
  X("softplus", Softplus)

#define OFL_BINARY_SCALARS(X) \
  X("add", Add) X("sub", Sub) X("mul", Mul) X("div", Div) X("maximum", Maximum) \
  X("minimum", Minimum) X("pow", Pow) X("equal", Equal) X("not_equal", NotEqual) X("less", Less) \
  X("less_equal", LessEqual) X("greater", Greater) X("greater_equal", GreaterEqual) \
  X("relu_grad", ReluGrad) X("tanh_grad", TanhGrad) X("sigmoid_grad", SigmoidGrad) \
  X("gelu_grad", GeluGrad) X("gelu_erf_grad", GeluErfGrad) X("silu_grad", SiluGrad)
// clang-format on

// X(operator, functor, attribute that holds the constant)
#define OFL_CONSTANT_SCALARS(X) X("scale", Scale, "factor") X("shift", Shift, "offset")

#define OFL_TERNARY_SCALARS(X) X("where", Where)

}  // namespace oneflow_like::scalar
