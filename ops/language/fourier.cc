// Fourier transforms as products with small matrices: of n = a b elements first those of a elements, b apart,
// then factors exp(-2 pi i j k / n), then those of b (Cooley and Tukey 1965). A complex matrix is a real one
// of twice the size.
#include <cmath>
#include <numbers>
#include <numeric>

#include "ops/language/calls.h"
#include "ops/language/composed.h"
#include "ops/language/expressions.h"
#include "ops/language/linear_algebra.h"
#include "ops/language/sparse.h"

namespace oneflow_like {
namespace {

constexpr int64_t kMostFactor = 64, kMostPrime = 2048, kMostExtent = int64_t{1} << 22;

double TransformAngle(int64_t product, int64_t n, double sign) {
  return sign * 2 * std::numbers::pi * static_cast<double>(product % n) / static_cast<double>(n);
}

// One extent's transform, of [rows, n, 2] with the middle axis transformed. sign: -1 forward, 1 back.
class Transform {
 public:
  Transform(GraphBuilder* graph, double sign, const Here& at) : graph_(graph), sign_(sign), at_(at) {}

  // A factor of n: n itself where it is small or prime; one near the root where the other is small then; else
  // as large as can be.
  static int64_t FactorOf(int64_t n) {
    if (n <= kMostFactor) return n;
    for (auto f = static_cast<int64_t>(std::sqrt(static_cast<double>(n))); f > 1 && n / f <= kMostFactor; --f)
      if (n % f == 0) return f;
    for (int64_t f = kMostFactor; f > 1; --f)
      if (n % f == 0) return f;
    for (int64_t f = kMostFactor + 1; f * f <= n; ++f)
      if (n % f == 0) return f;
    return n;
  }

  // x[rows n 2], or [rows n] of real numbers, -> [rows n 2].
  Tensor Of(Tensor x, int64_t n, bool real) const {
    const int64_t rows = x.shape()[0], a = FactorOf(n), b = n / a;
    if (b == 1) return Product(x, rows, n, real);
    // j = j1 b + j2, k = k1 + k2 a: over j1 first.
    const int64_t parts = real ? 1 : 2;
    Tensor y = transpose(reshape(x, {rows, a, b, parts}, at_), {0, 2, 1, 3}, at_);
    y = reshape(y, {rows * b, a, parts}, at_);
    y = reshape(Product(real ? reshape(y, {rows * b, a}, at_) : y, rows * b, a, real), {rows, b, a, 2}, at_);
    y = transpose(Twiddled(y, a, b), {0, 2, 1, 3}, at_);                                 // [rows k1 j2 2]
    y = reshape(Of(reshape(y, {rows * a, b, 2}, at_), b, false), {rows, a, b, 2}, at_);  // [rows k1 k2 2]
    return reshape(transpose(y, {0, 2, 1, 3}, at_), {rows, n, 2}, at_);
  }

 private:
  // With the matrix exp(sign 2 pi i j k / n), as the real one of (j, part) by (k, part).
  Tensor Product(Tensor x, int64_t rows, int64_t n, bool real) const {
    const int64_t parts = real ? 1 : 2;
    HostTensor matrix = HostTensor::Make(DType::kFloat32, {parts * n, 2 * n});
    float* at = matrix.as<float>();
    for (int64_t j = 0; j < n; ++j)
      for (int64_t part = 0; part < parts; ++part)
        for (int64_t k = 0; k < n; ++k) {
          const auto c = static_cast<float>(std::cos(TransformAngle(j * k, n, sign_))),
                     s = static_cast<float>(std::sin(TransformAngle(j * k, n, sign_)));
          *at++ = part == 0 ? c : -s;
          *at++ = part == 0 ? s : c;
        }
    Tensor y = One("matmul", {reshape(x, {rows, parts * n}, at_), constant(graph_, matrix, at_)},
                   {{"wide", int64_t{1}}}, at_);
    return reshape(y, {rows, n, 2}, at_);
  }

  // y[rows j2 k1 2] times exp(sign 2 pi i j2 k1 / (a b)).
  Tensor Twiddled(Tensor y, int64_t a, int64_t b) const {
    HostTensor cosines = HostTensor::Make(DType::kFloat32, {b, a, 1}),
               sines = HostTensor::Make(DType::kFloat32, {b, a, 2});
    for (int64_t j = 0; j < b; ++j)
      for (int64_t k = 0; k < a; ++k) {
        const double angle = TransformAngle(j * k, a * b, sign_);
        cosines.as<float>()[j * a + k] = static_cast<float>(std::cos(angle));
        sines.as<float>()[2 * (j * a + k)] = static_cast<float>(-std::sin(angle));
        sines.as<float>()[2 * (j * a + k) + 1] = static_cast<float>(std::sin(angle));
      }
    // (re, im) (cos + i sin) = (re, im) cos + (im, re) (-sin, sin).
    return add(mul(y, constant(graph_, cosines, at_), at_),
               mul(flip(y, {3}, at_), constant(graph_, sines, at_), at_), at_);
  }

  GraphBuilder* graph_;
  const double sign_;
  const Here at_;
};

void NeedTransformed(const char* op, int64_t axis, int64_t n, const Here& at) {
  if (n < 1) Fail(Who(op, at), ": axis ", axis, " has no elements");
  if (n > kMostExtent) Fail(Who(op, at), ": axis ", axis, " has ", n, " elements but may have 2^22 at most");
  int64_t rest = n;
  for (int64_t f = 2; f * f <= rest; ++f)
    while (rest % f == 0 && rest > f) rest /= f;
  if (rest > kMostPrime)
    Fail(Who(op, at), ": axis ", axis, " has ", n, " elements, whose prime factor ", rest, " is above ",
         kMostPrime, "; pad it");
}

// x in fp32, also in mixed precision.
Tensor InFull(const char* op, Tensor x, const Here& at) {
  NeedFloating(op, "x", x, at);
  return One("cast", {x}, {{"dtype", std::string("f32")}}, at);
}

// The axis of a complex tensor, and a check that it is one.
int64_t ComplexAxis(const char* op, int64_t axis, const Tensor& x, const Here& at) {
  NeedFloating(op, "x", x, at);
  const Dims s = x.shape();
  const int64_t rank = s.rank() - 1;
  if (rank < 1 || s.back() != 2)
    Fail(Who(op, at), ": x is ", s.str(), " but must have a last axis of 2, real and imaginary part");
  if (axis < -rank || axis >= rank)
    Fail(Who(op, at), ": axis ", axis, " does not exist, x ", s.str(), " has ", rank,
         rank == 1 ? " axis" : " axes", " before that of real and imaginary part");
  return axis < 0 ? axis + rank : axis;
}

// f of x with its axis last, of the first `rank`, all others in one: [rows n ..] -> [rows n' ..].
template <typename F>
Tensor AlongRows(Tensor x, int64_t axis, int64_t rank, const Here& at, F&& f) {
  std::vector<int64_t> order(x.shape().rank());
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[axis], order[rank - 1]);
  if (axis != rank - 1) x = transpose(x, order, at);
  const Dims moved = x.shape();
  const int64_t n = moved[static_cast<int>(rank) - 1];
  Dims flat = {n == 0 ? 0 : moved.elements() / n / (moved.rank() > rank ? 2 : 1), n};
  if (moved.rank() > rank) flat.push_back(2);
  Tensor y = f(reshape(x, flat, at));
  Dims result(moved.begin(), moved.begin() + rank - 1);
  for (int i = 1; i < y.shape().rank(); ++i) result.push_back(y.shape()[i]);
  y = reshape(y, result, at);
  if (axis == rank - 1) return y;
  order.resize(result.rank());
  for (int i = static_cast<int>(rank); i < result.rank(); ++i) order[i] = i;
  return transpose(y, order, at);
}

Tensor ComplexTransform(const char* op, Tensor x, int64_t axis, bool back, Here at) {
  at = at.In(op);
  axis = ComplexAxis(op, axis, x, at);
  const int64_t n = x.shape()[static_cast<int>(axis)];
  NeedTransformed(op, axis, n, at);
  Tensor y = AlongRows(InFull(op, x, at), axis, x.shape().rank() - 1, at, [&](Tensor rows) {
    return Transform(rows.graph(), back ? 1 : -1, at).Of(rows, n, false);
  });
  return cast(back ? scale(y, 1.0 / static_cast<double>(n), at) : y, x.dtype(), at);
}

}  // namespace

Tensor fft(Tensor x, int64_t axis, Here at) { return ComplexTransform("fft", x, axis, false, at); }
Tensor ifft(Tensor x, int64_t axis, Here at) { return ComplexTransform("ifft", x, axis, true, at); }

Tensor rfft(Tensor x, int64_t axis, Here at) {
  at = at.In("rfft");
  axis = NormalAxis("rfft", axis, x, at);
  const int64_t n = x.shape()[static_cast<int>(axis)];
  NeedTransformed("rfft", axis, n, at);
  Tensor y = AlongRows(InFull("rfft", x, at), axis, x.shape().rank(), at, [&](Tensor rows) {
    return slice(Transform(rows.graph(), -1, at).Of(rows, n, true), 1, 0, n / 2 + 1, at);
  });
  return cast(y, x.dtype(), at);
}

// The whole spectrum is x and its mirror image, conjugate; of the transform the real part is taken.
Tensor irfft(Tensor x, int64_t axis, int64_t n, Here at) {
  at = at.In("irfft");
  axis = ComplexAxis("irfft", axis, x, at);
  const int64_t half = x.shape()[static_cast<int>(axis)];
  if (n == 0) n = 2 * (half - 1);
  NeedTransformed("irfft", axis, n, at);
  if (half != n / 2 + 1)
    Fail(Who("irfft", at), ": axis ", axis, " of x has ", half, " elements but must have n / 2 + 1, ",
         n / 2 + 1, ", for n = ", n);
  Tensor y = AlongRows(InFull("irfft", x, at), axis, x.shape().rank() - 1, at, [&](Tensor rows) {
    Tensor real = slice(rows, 2, 0, 1, at), imaginary = slice(rows, 2, 1, 2, at);
    const int64_t mirrored = n - half;  // those from 1 on, in reverse
    const auto whole = [&](Tensor t, double sign) {
      if (mirrored == 0) return t;
      return concat({t, scale(flip(slice(t, 1, 1, 1 + mirrored, at), {1}, at), sign, at)}, 1, at);
    };
    // Imaginary parts of the first and, of an even number, the middle element cancel in no pair: they are not
    // of a real x, and have no part in the real result.
    Tensor spectrum = concat({whole(real, 1), whole(imaginary, -1)}, 2, at);
    Tensor back = Transform(rows.graph(), 1, at).Of(spectrum, n, false);
    return scale(squeeze(slice(back, 2, 0, 1, at), 2, at), 1.0 / static_cast<double>(n), at);
  });
  return cast(y, x.dtype(), at);
}

}  // namespace oneflow_like
