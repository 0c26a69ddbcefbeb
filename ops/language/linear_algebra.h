// Fourier transforms and factorisations of matrices. As in ops/language/functional.h shapes are global, axes
// may be given negative, and every function throws Error naming itself, the axis, both numbers and the
// caller's line when operands do not fit. All compute in fp32, in mixed precision, too.
#pragma once

#include "ops/language/functional.h"

namespace oneflow_like {

// --- Fourier transforms along one axis, which is whole. A complex tensor has a last axis of 2, real and
// imaginary part (torch.view_as_real); `axis` does not count it, so -1 is the one before.
// An extent n is split into factors of at most 64 where its primes allow, and each is one product with a
// matrix: 2 n operations for each unit of the sum of the factors, 2 n^2 where n is prime. At most 2048 for a
// prime factor, 2^22 in all ---

// y[k] = sum over j of x[j] exp(-2 pi i j k / n).
Tensor fft(Tensor x, int64_t axis = -1, OFL_HERE);
// Its inverse, divided by n.
Tensor ifft(Tensor x, int64_t axis = -1, OFL_HERE);
// Of real x[.. n ..]: the first n / 2 + 1 of fft, complex, [.. n / 2 + 1 .. 2]; the others mirror them.
Tensor rfft(Tensor x, int64_t axis = -1, OFL_HERE);
// Its inverse: real, with n elements along the axis, of which x has n / 2 + 1. 0: 2 (n' - 1) of x's n'. The
// imaginary parts of the first element and, if n is even, of the last count as 0.
Tensor irfft(Tensor x, int64_t axis = -1, int64_t n = 0, OFL_HERE);

// --- Matrices, in the last two axes, of which each is whole; the axes before them are batches, which may be
// cut, as may the columns of b. They are computed in double, a matrix by a thread of the CPU or a block of
// the GPU: for many matrices of up to a few hundred rows. Every function has gradients of any order ---

// a[.. n n] -> [.. n n], lower triangular, l with l l^T = (a + a^T) / 2 + shift I. If that is not positive
// definite the step fails.
Tensor cholesky(Tensor a, double shift = 0, OFL_HERE);
// t[.. n n], b[.. n k] -> [.. n k], x with t x = b. Only the lower triangle of t is read, or the upper one;
// `transposed`: x with t^T x = b. With cholesky's l, two of them solve l l^T x = b.
struct Triangle {
  bool upper = false, transposed = false;
};
Tensor triangular_solve(Tensor t, Tensor b, const Triangle& options = {}, OFL_HERE);
// a[.. n n], b[.. n k] -> [.. n k], x with (a + shift I) x = b, by elimination with pivots. If a matrix is
// singular the step fails.
Tensor solve(Tensor a, Tensor b, double shift = 0, OFL_HERE);
struct Qr {
  Tensor q, r;
};
// a[.. m n], m >= n -> q[.. m n] with orthonormal columns and upper triangular r[.. n n], q r = a, with the
// signs of LAPACK and so of NumPy and PyTorch. The gradient needs columns that are independent.
Qr qr(Tensor a, OFL_HERE);

}  // namespace oneflow_like
