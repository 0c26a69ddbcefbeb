// The scalar bodies of elementwise operators, written once for every device. Each is a functor on float,
// without branches, so that a loop over it vectorises; the transcendental ones are polynomials good to a few
// units in the last place (tests/ops/cpu_kernels_test.cc measures them against the C++ library).
//
// The lists at the end name every body by its operator; code that builds tables of loops expands them.
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

OFL_HOST_DEVICE uint64_t ToBits(double x) {
#if defined(__CUDA_ARCH__)
  return static_cast<uint64_t>(__double_as_longlong(x));
#else
  return __builtin_bit_cast(uint64_t, x);
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

// 2^x for -126 <= x <= 127, to 3e-7.
OFL_HOST_DEVICE float PowerInRange(float x) {
  const float shifted = x + 12582912.0f, r = x - (shifted - 12582912.0f);
  float p = 1.32764725e-3f;
  p = p * r + 9.67554096e-3f;
  p = p * r + 5.55071309e-2f;
  p = p * r + 0.240221202f;
  p = p * r + 0.693146944f;
  p = p * r + 1.00000012f;
  return FromBits(ToBits(p) + (ToBits(shifted) << 23));
}

// OFL_NARROW_RESULTS: what is computed is rounded to 16 bits, so that a GPU's units for powers and
// reciprocals, good to some 2^-20, do.
#if defined(__CUDA_ARCH__) && defined(OFL_NARROW_RESULTS)
OFL_HOST_DEVICE float Quotient(float a, float b) { return __fdividef(a, b); }
OFL_HOST_DEVICE float ExpOf(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
  return y;
}
#else
OFL_HOST_DEVICE float Quotient(float a, float b) { return a / b; }
// e^x; below -87.33 (a denormal) it is 0.
OFL_HOST_DEVICE float ExpOf(float x) {
  float inside = x > 88.8f ? 88.8f : x;
  inside = inside < -87.4f ? -87.4f : inside;
  Reduced reduced = ReduceByLog2(inside);
  int32_t half = reduced.n >> 1;  // 2^n itself may exceed the range where the product does not
  float y = (SmallExpm1(reduced.r) + 1.0f) * PowerOf2(half) * PowerOf2(reduced.n - half);
  return x < -87.33654f ? 0.0f : y;
}
#endif

// x = 2^n (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2); s = f / (2 + f), log(1 + f) = 2 atanh(s) = f - rest.
struct LogParts {
  float n, f, rest;
};
OFL_HOST_DEVICE LogParts LogPartsOf(float x) {
  uint32_t bits = ToBits(x);
  int32_t e = static_cast<int32_t>(bits - 0x3F3504F3u) >> 23;
  float f = FromBits(bits - (static_cast<uint32_t>(e) << 23)) - 1.0f;
  float s = f / (2.0f + f), z = s * s;
  float p = 0.2333046722f;
  p = p * z + 0.2855082082f;
  p = p * z + 0.4000012184f;
  p = p * z + 0.6666666655f;
  return {static_cast<float>(e), f, s * (f - z * p)};
}
// 2^x = 2^n e^(log(2) (x - n)) with the nearest whole n; below -126 (a denormal) it is 0.
OFL_HOST_DEVICE float Exp2Of(float x) {
  float inside = x > 129.0f ? 129.0f : x;
  inside = inside < -127.0f ? -127.0f : inside;
  float shifted = inside + 12582912.0f;
  int32_t n = static_cast<int32_t>(ToBits(shifted)) - 0x4B400000, half = n >> 1;
  float y = SmallExpm1((inside - (shifted - 12582912.0f)) * 0.693147181f) + 1.0f;
  y = y * PowerOf2(half) * PowerOf2(n - half);
  y = x < -126.0f ? 0.0f : y;
  return x != x ? x : y;
}

// y, the logarithm of x, where x is infinite, 0 (or a denormal), negative or NaN.
OFL_HOST_DEVICE float LogAtEnds(float x, float y) {
  y = x == kInfinity ? x : y;
  y = x < 1.17549435e-38f ? -kInfinity : y;
  return x < 0.0f || x != x ? FromBits(0x7FC00000u) : y;
}
OFL_HOST_DEVICE float LogOf(float x) {
  LogParts parts = LogPartsOf(x);
  float y = parts.n * 0.693359375f + (parts.f - (parts.rest + parts.n * 2.12194440e-4f));
  return LogAtEnds(x, y);
}
// Exact for powers of 2.
OFL_HOST_DEVICE float Log2Of(float x) {
  LogParts parts = LogPartsOf(x);
  return LogAtEnds(x, parts.n + (parts.f - parts.rest) * 1.44269504f);
}

// tanh(|x|) = -t / (2 + t) with t = e^(-2|x|) - 1: no digits cancel near 0.
OFL_HOST_DEVICE float TanhOf(float x) {
  float a = -2.0f * __builtin_fabsf(x);
  a = a < -20.0f ? -20.0f : a;
  Reduced reduced = ReduceByLog2(a);
  float power = PowerOf2(reduced.n);
  float t = SmallExpm1(reduced.r) * power + (power - 1.0f);
  return __builtin_copysignf(Quotient(-t, 2.0f + t), x);
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

// log(1 + x), corrected for the rounding error of 1 + x (Kahan).
OFL_HOST_DEVICE float Log1pOf(float x) {
  float u = 1.0f + x, rounded = u - 1.0f;
  return rounded == 0.0f ? x : LogOf(u) * (x / rounded);
}

// e^x - 1. Up to 20 as 2^n (e^r - 1) + (2^n - 1), so that no digits cancel near 0.
OFL_HOST_DEVICE float Expm1Of(float x) {
  float inside = x > 20.0f ? 20.0f : x;
  inside = inside < -20.0f ? -20.0f : inside;
  Reduced reduced = ReduceByLog2(inside);
  float power = PowerOf2(reduced.n);
  float small = SmallExpm1(reduced.r) * power + (power - 1.0f);
  return x > 20.0f ? ExpOf(x) - 1.0f : small;
}

// The nearest whole number, halves to the even one: beyond 2^23 there are no others. The sum with 2^23
// rounds.
OFL_HOST_DEVICE float RoundOf(float x) {
  float magic = __builtin_copysignf(8388608.0f, x);
  float whole = __builtin_copysignf((x + magic) - magic, x);
  return __builtin_fabsf(x) < 8388608.0f ? whole : x;
}
OFL_HOST_DEVICE float FloorOf(float x) {
  float whole = RoundOf(x);
  return whole > x ? whole - 1.0f : whole;
}
OFL_HOST_DEVICE float CeilOf(float x) {
  float whole = RoundOf(x);
  return __builtin_copysignf(whole < x ? whole + 1.0f : whole, x);
}

// x = n pi / 2 + r with |r| <= pi / 4, and sin(r), cos(r). The reduction is in double, with pi / 2 in two
// parts: the product with the first is exact up to |x| = 10^6, and good to 10^-7 up to 10^9.
struct Turned {
  uint32_t quarter;  // n, modulo 4 in the low two bits
  float sine, cosine;
};
OFL_HOST_DEVICE Turned TurnOf(float x) {
  constexpr double kShift = 6755399441055744.0;  // 1.5 * 2^52
  double wide = static_cast<double>(x);
  double shifted = wide * 0.63661977236758134 + kShift;
  double n = shifted - kShift;
  double reduced = (wide - n * 1.5707963267341256) - n * 6.0771005065061922e-11;  // 33 bits and the rest
  float r = static_cast<float>(reduced), z = r * r;
  float s = 2.724389105e-6f;
  s = s * z - 1.984004048e-4f;
  s = s * z + 8.333331905e-3f;
  s = s * z - 0.1666666716f;
  float c = -2.729591131e-7f;
  c = c * z + 2.480056173e-5f;
  c = c * z - 1.388888806e-3f;
  c = c * z + 4.166666791e-2f;
  return {static_cast<uint32_t>(ToBits(shifted)), r + r * z * s, 1.0f - z * 0.5f + z * z * c};
}
// Past 10^9 neighbouring floats are many turns apart: there it is NaN.
OFL_HOST_DEVICE float SignedTurn(float x, float y, uint32_t quarter) {
  y = (quarter & 2u) != 0 ? -y : y;
  return __builtin_fabsf(x) <= 1e9f ? y : FromBits(0x7FC00000u);
}
OFL_HOST_DEVICE float SinOf(float x) {
  Turned t = TurnOf(x);
  return SignedTurn(x, (t.quarter & 1u) != 0 ? t.cosine : t.sine, t.quarter);
}
OFL_HOST_DEVICE float CosOf(float x) {
  Turned t = TurnOf(x);
  return SignedTurn(x, (t.quarter & 1u) != 0 ? t.sine : t.cosine, t.quarter + 1u);
}
OFL_HOST_DEVICE float TanOf(float x) {
  Turned t = TurnOf(x);
  bool odd = (t.quarter & 1u) != 0;
  float y = (odd ? -t.cosine : t.sine) / (odd ? t.sine : t.cosine);
  return SignedTurn(x, y, 0u);
}

// The angle of (x, y): the arctangent of the smaller of |x| and |y| divided by the larger, a polynomial up to
// tan(pi / 8), beyond it pi / 4 more than that of (a - 1) / (a + 1).
OFL_HOST_DEVICE float Atan2Of(float y, float x) {
  float ax = __builtin_fabsf(x), ay = __builtin_fabsf(y);
  float large = ax > ay ? ax : ay, small = ax > ay ? ay : ax;
  bool equal = small == large, steep = equal ? large > 0.0f : small > large * 0.414213562f;
  float above = steep ? small - large : small, below = steep ? small + large : large;
  float t = equal ? 0.0f : above / below, z = t * t;
  float p = -6.459376186e-2f;
  p = p * z + 0.107462984f;
  p = p * z - 0.1426423255f;
  p = p * z + 0.1999955008f;
  p = p * z - 0.3333333181f;
  float angle = t + t * z * p;
  angle = steep ? angle + 0.785398163f : angle;
  angle = ay > ax ? 1.57079633f - angle : angle;
  angle = (ToBits(x) >> 31) != 0 ? 3.14159265f - angle : angle;
  return x != x || y != y ? x + y : __builtin_copysignf(angle, y);
}

// The inverse of erf (the form and coefficients of M. Giles, 2010): polynomials in -log(1 - x^2) where that
// is below 5, in its root beyond.
OFL_HOST_DEVICE float ErfInvOf(float x) {
  float w = -LogOf((1.0f - x) * (1.0f + x)), c = w - 2.5f;
  float p = 2.81022636e-8f;
  p = p * c + 3.43273939e-7f;
  p = p * c - 3.5233877e-6f;
  p = p * c - 4.39150654e-6f;
  p = p * c + 2.1858087e-4f;
  p = p * c - 1.25372503e-3f;
  p = p * c - 4.17768164e-3f;
  p = p * c + 0.246640727f;
  p = p * c + 1.50140941f;
  float t = __builtin_sqrtf(w < 5.0f ? 5.0f : w) - 3.0f;
  float q = -2.00214257e-4f;
  q = q * t + 1.00950558e-4f;
  q = q * t + 1.34934322e-3f;
  q = q * t - 3.67342844e-3f;
  q = q * t + 5.73950773e-3f;
  q = q * t - 7.6224613e-3f;
  q = q * t + 9.43887047e-3f;
  q = q * t + 1.00167406f;
  q = q * t + 2.83297682f;
  float y = x * (w < 5.0f ? p : q);
  return __builtin_fabsf(x) == 1.0f ? x * kInfinity : y;
}

// The first and the second derivative of log(gamma(x)): by recurrence to above 6, where an asymptotic series
// holds, and for x < 1/2 from 1 - x.
OFL_HOST_DEVICE float DigammaOf(float x) {
  bool mirrored = x < 0.5f;
  float at = mirrored ? 1.0f - x : x, y = 0.0f;
  for (int i = 0; i < 6; ++i) {
    bool low = at < 6.0f;
    y = low ? y - 1.0f / at : y;
    at = low ? at + 1.0f : at;
  }
  float inverse = 1.0f / at, z = inverse * inverse;
  float p = -3.96825397e-3f;
  p = p * z + 8.33333333e-3f;
  p = p * z - 8.33333333e-2f;
  y += LogOf(at) - 0.5f * inverse + p * z;
  float part = x - RoundOf(x);
  y = mirrored ? y - 3.14159265f / TanOf(3.14159265f * part) : y;
  return mirrored && part == 0.0f ? (x == 0.0f ? __builtin_copysignf(kInfinity, -x) : FromBits(0x7FC00000u))
                                  : y;
}
OFL_HOST_DEVICE float TrigammaOf(float x) {
  bool mirrored = x < 0.5f;
  float at = mirrored ? 1.0f - x : x, y = 0.0f;
  for (int i = 0; i < 6; ++i) {
    bool low = at < 6.0f;
    y = low ? y + 1.0f / (at * at) : y;
    at = low ? at + 1.0f : at;
  }
  float inverse = 1.0f / at, z = inverse * inverse;
  float p = 2.38095238e-2f;
  p = p * z - 3.33333333e-2f;
  p = p * z + 0.166666667f;
  y += inverse + 0.5f * z + p * z * inverse;
  float sine = SinOf(3.14159265f * (x - RoundOf(x)));
  return mirrored ? 9.86960440f / (sine * sine) - y : y;
}

// log(e^a + e^b).
OFL_HOST_DEVICE float LogAddExpOf(float a, float b) {
  float most = a > b || a != a ? a : b, apart = a == b ? 0.0f : -__builtin_fabsf(a - b);
  return most + Log1pOf(ExpOf(apart));
}

// a - b floor(a / b), of b's sign: in double the product is exact. The quotient may be rounded to its
// neighbour, so the remainder is checked again.
OFL_HOST_DEVICE float RemainderOf(float a, float b) {
  float quotient = FloorOf(a / b);
  double product = static_cast<double>(quotient) * static_cast<double>(b);
  float rest = quotient == 0.0f ? a : static_cast<float>(static_cast<double>(a) - product);
  rest = __builtin_fabsf(rest) >= __builtin_fabsf(b) && (rest < 0.0f) == (b < 0.0f) ? rest - b : rest;
  return rest != 0.0f && (rest < 0.0f) != (b < 0.0f) ? rest + b : rest;
}

// floor(a / b): a quotient of two floats, rounded to double, is whole only if it is exactly that.
OFL_HOST_DEVICE float FloorDivideOf(float a, float b) {
  // A quotient that is too small for a double is still below 0.
  const double quotient = static_cast<double>(a) / static_cast<double>(b);
  return quotient == 0 && a != 0.0f && (a < 0.0f) != (b < 0.0f) ? -1.0f
                                                                : static_cast<float>(::floor(quotient));
}

OFL_HOST_DEVICE float SigmoidOf(float x) { return Quotient(1.0f, 1.0f + ExpOf(-x)); }

// The tanh form of gelu is x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
constexpr float kGeluScale = 0.797884561f, kGeluCubic = 0.044715f;
OFL_HOST_DEVICE float GeluGate(float x) {
#if defined(__CUDA_ARCH__)
  return SigmoidOf(2.0f * kGeluScale * (x + kGeluCubic * x * x * x));
#else
  // 1 / (1 + 2^z): half of the instructions that e^(-2u) takes.
  constexpr float kOfTwo = -2.0f * kGeluScale * 1.44269504f;
  const float z = x * (kOfTwo + kOfTwo * kGeluCubic * (x * x));
  float inside = z < -126.0f ? -126.0f : z;
  inside = inside > 126.0f ? 126.0f : inside;
  const float gate = 1.0f / (1.0f + PowerInRange(inside));
  return z > 126.0f ? 0.0f : gate;
#endif
}

OFL_HOST_DEVICE float HardSigmoidOf(float x) {
  float y = x * 0.166666667f + 0.5f;
  y = y < 0.0f ? 0.0f : y;
  return y > 1.0f ? 1.0f : y;
}

// mish is x n / (n + 2) with n = e (e + 2), e = e^x: tanh(log(1 + e)) without its cancellation.
struct MishParts {
  float e, n;
};
OFL_HOST_DEVICE MishParts MishPartsOf(float x) {
  float e = ExpOf(x > 20.0f ? 20.0f : x);
  return {e, e * (e + 2.0f)};
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
#define OFL_TERNARY(name, body)                                                        \
  struct name {                                                                        \
    OFL_HOST_DEVICE float operator()(float a, float b, float c) const { return body; } \
  }

OFL_UNARY(Identity, x);
OFL_UNARY(Neg, -x);
OFL_UNARY(Exp, ExpOf(x));
OFL_UNARY(Log, LogOf(x));
OFL_UNARY(Log2, Log2Of(x));
OFL_UNARY(ErfInv, ErfInvOf(x));
OFL_UNARY(Exp2, Exp2Of(x));
OFL_UNARY(ErfC, ::erfcf(x));
OFL_UNARY(Asinh, ::asinhf(x));
OFL_UNARY(Acosh, ::acoshf(x));
OFL_UNARY(LGamma, ::lgammaf(x));
OFL_UNARY(Digamma, DigammaOf(x));
OFL_UNARY(Trigamma, TrigammaOf(x));
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
OFL_UNARY(Sin, SinOf(x));
OFL_UNARY(Cos, CosOf(x));
OFL_UNARY(Tan, TanOf(x));
OFL_UNARY(Log1p, x == kInfinity ? x : Log1pOf(x));
OFL_UNARY(Expm1, Expm1Of(x));
OFL_UNARY(Floor, FloorOf(x));
OFL_UNARY(Ceil, CeilOf(x));
OFL_UNARY(Round, RoundOf(x));
OFL_UNARY(Reciprocal, 1.0f / x);
OFL_UNARY(HardSigmoid, HardSigmoidOf(x));
OFL_UNARY(HardSwish, x* HardSigmoidOf(x));
struct Mish {
  OFL_HOST_DEVICE float operator()(float x) const {
    MishParts parts = MishPartsOf(x);
    return x > 20.0f ? x : x * (parts.n / (parts.n + 2.0f));
  }
};
OFL_UNARY(IsFinite, (ToBits(x) & 0x7F800000u) != 0x7F800000u ? 1.0f : 0.0f);
OFL_UNARY(IsNan, x != x ? 1.0f : 0.0f);
OFL_UNARY(LogicalNot, x == 0.0f ? 1.0f : 0.0f);

// --- Functors: two operands. Of gradients, a is dy and b what the derivative is written in ---

OFL_BINARY(Add, a + b);
OFL_BINARY(Sub, a - b);
OFL_BINARY(Mul, a* b);
OFL_BINARY(Div, a / b);
OFL_BINARY(Maximum, a > b || a != a ? a : b);
OFL_BINARY(Minimum, a < b || a != a ? a : b);
OFL_BINARY(Pow, ::powf(a, b));
OFL_BINARY(Atan2, Atan2Of(a, b));
OFL_BINARY(LogAddExp, LogAddExpOf(a, b));
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

OFL_BINARY(HardSigmoidGrad, b > -3.0f && b < 3.0f ? a * 0.166666667f : a * 0.0f);
struct HardSwishGrad {
  OFL_HOST_DEVICE float operator()(float dy, float x) const {
    float slope = x * 0.333333333f + 0.5f;
    slope = x < -3.0f ? 0.0f : slope;
    return dy * (x > 3.0f ? 1.0f : slope);
  }
};
struct MishGrad {
  OFL_HOST_DEVICE float operator()(float dy, float x) const {
    MishParts p = MishPartsOf(x);
    float below = 1.0f / (p.n + 2.0f), t = p.n * below;
    float slope = t + x * (4.0f * (p.n + 1.0f) * below * below) * (p.e / (1.0f + p.e));
    return dy * (x > 20.0f ? 1.0f : slope);
  }
};
OFL_BINARY(Remainder, RemainderOf(a, b));
OFL_BINARY(FloorDivide, FloorDivideOf(a, b));
OFL_BINARY(LogicalAnd, a* b != 0.0f ? 1.0f : 0.0f);
OFL_BINARY(LogicalOr, a + b != 0.0f ? 1.0f : 0.0f);
OFL_BINARY(LogicalXor, a != b ? 1.0f : 0.0f);
OFL_BINARY(PRelu, a > 0.0f || a != a ? a : a * b);
OFL_BINARY(PReluSlopeGrad, b > 0.0f ? a * 0.0f : a * b);

// --- Functors: one or two operands and a constant; three operands ---

OFL_BINARY(Scale, a* b);
OFL_BINARY(Shift, a + b);
OFL_BINARY(AtLeast, a < b ? b : a);
OFL_BINARY(AtMost, a > b ? b : a);
OFL_BINARY(LeakyRelu, a < 0.0f ? a * b : a);
OFL_BINARY(Elu, a < 0.0f ? b * Expm1Of(a) : a);
OFL_TERNARY(AtLeastGrad, b < c ? a * 0.0f : a);
OFL_TERNARY(AtMostGrad, b > c ? a * 0.0f : a);
OFL_TERNARY(LeakyReluGrad, b > 0.0f ? a : a * c);
OFL_TERNARY(EluGrad, b > 0.0f ? a : a * (c * ExpOf(b)));
OFL_TERNARY(PReluGrad, b > 0.0f ? a : a * c);
struct Where {
  OFL_HOST_DEVICE float operator()(float condition, float a, float b) const {
    return condition != 0.0f ? a : b;
  }
};

#undef OFL_UNARY
#undef OFL_BINARY
#undef OFL_TERNARY

// --- The lists: X(operator, functor) ---

// The formatter moves such lists at every run.
// clang-format off
#define OFL_UNARY_SCALARS(X) \
  X("identity", Identity) X("neg", Neg) X("exp", Exp) X("log", Log) X("sqrt", Sqrt) \
  X("rsqrt", Rsqrt) X("square", Square) X("abs", Abs) X("sign", Sign) X("tanh", Tanh) X("erf", Erf) \
  X("sigmoid", Sigmoid) X("relu", Relu) X("gelu", Gelu) X("gelu_erf", GeluErf) X("silu", Silu) \
  X("softplus", Softplus) X("sin", Sin) X("cos", Cos) X("tan", Tan) X("log1p", Log1p) X("expm1", Expm1) \
  X("floor", Floor) X("ceil", Ceil) X("round", Round) X("reciprocal", Reciprocal) \
  X("hardsigmoid", HardSigmoid) X("hardswish", HardSwish) X("mish", Mish) X("isfinite", IsFinite) \
  X("isnan", IsNan) X("logical_not", LogicalNot) X("log2", Log2) X("erfinv", ErfInv) X("lgamma", LGamma) \
  X("digamma", Digamma) X("trigamma", Trigamma) X("exp2", Exp2) X("erfc", ErfC) X("asinh", Asinh) \
  X("acosh", Acosh)

#define OFL_BINARY_SCALARS(X) \
  X("add", Add) X("sub", Sub) X("mul", Mul) X("div", Div) X("maximum", Maximum) \
  X("minimum", Minimum) X("pow", Pow) X("equal", Equal) X("not_equal", NotEqual) X("less", Less) \
  X("less_equal", LessEqual) X("greater", Greater) X("greater_equal", GreaterEqual) \
  X("relu_grad", ReluGrad) X("tanh_grad", TanhGrad) X("sigmoid_grad", SigmoidGrad) \
  X("gelu_grad", GeluGrad) X("gelu_erf_grad", GeluErfGrad) X("silu_grad", SiluGrad) \
  X("hardsigmoid_grad", HardSigmoidGrad) X("hardswish_grad", HardSwishGrad) X("mish_grad", MishGrad) \
  X("remainder", Remainder) X("floor_divide", FloorDivide) X("logical_and", LogicalAnd) \
  X("logical_or", LogicalOr) X("logical_xor", LogicalXor) X("prelu", PRelu) \
  X("prelu_slope_grad", PReluSlopeGrad) X("atan2", Atan2) X("logaddexp", LogAddExp)

// X(operator, functor, attribute that holds the constant): of one operand, and of two.
#define OFL_CONSTANT_SCALARS(X) \
  X("scale", Scale, "factor") X("shift", Shift, "offset") X("at_least", AtLeast, "bound") \
  X("at_most", AtMost, "bound") X("leaky_relu", LeakyRelu, "slope") X("elu", Elu, "alpha")
#define OFL_BINARY_CONSTANT_SCALARS(X) \
  X("at_least_grad", AtLeastGrad, "bound") X("at_most_grad", AtMostGrad, "bound") \
  X("leaky_relu_grad", LeakyReluGrad, "slope") X("elu_grad", EluGrad, "alpha")
// clang-format on

#define OFL_TERNARY_SCALARS(X) X("where", Where) X("prelu_grad", PReluGrad)

}  // namespace oneflow_like::scalar
