// Matrices for the fast kernels of every kind of device: with more rows than a block has threads, many in a
// batch, of 16-bit types, and such as have no factors.
#pragma once

#include <string>
#include <vector>

#include "tests/ops/kernel_cases.h"

namespace oneflow_like {

inline void MatrixCases(KernelCases* cases) {
  using enum DType;
  uint64_t seed = 9900;
  const auto shift = [](double by) { return Attrs{{"shift", by}}; };
  for (DType type : {kFloat32, kBFloat16, kFloat16}) {
    cases->CheckCase({"cholesky", {{2, 70, 70}}, shift(200), {type}}, ++seed);
    cases->CheckCase({"cholesky", {{9, 3, 5, 5}}, shift(20), {type}}, ++seed);
    cases->CheckCase({"solve", {{2, 70, 70}, {2, 70, 3}}, shift(200), {type, type}}, ++seed);
    cases->CheckCase({"solve", {{9, 5, 5}, {9, 5, 80}}, shift(-20), {type, type}}, ++seed);
    cases->CheckCase({"qr", {{2, 90, 70}}, {}, {type}}, ++seed);
    cases->CheckCase({"qr", {{40, 4, 4}}, {}, {type}}, ++seed);
    for (int64_t upper : {0, 1}) {
      for (int64_t transposed : {0, 1}) {
        const Attrs attrs = {{"upper", upper}, {"transposed", transposed}};
        cases->CheckCase({"triangular_solve", {{9, 7, 7}, {9, 7, 90}}, attrs, {type, type}, 4, 1, 2}, ++seed);
      }
    }
  }
  std::mt19937_64 random(++seed);
  Operand a(kFloat32, {3, 6, 6}), b(kFloat32, {3, 6, 2});
  for (Operand* o : {&a, &b}) o->Draw(&random, 1, 2, 4);
  // One row of zeros: no pivot, wherever rows are swapped to.
  for (int64_t i = 0; i < 6; ++i) StoreFloat(a.Arg(), 36 + 4 * 6 + i, 0);
  cases->Check(Cat("a singular matrix, seed ", seed), "solve", shift(0), {a, b}, {b});
  cases->Check(Cat("a matrix that is not definite, seed ", seed), "cholesky", shift(0), {a}, {a});
  // The first pivot is 0, and rows must be swapped.
  for (int64_t m = 0; m < 3; ++m)
    for (int64_t i = 0; i < 6; ++i)
      for (int64_t j = 0; j < 6; ++j) StoreFloat(a.Arg(), m * 36 + i * 6 + j, i + j == 5 ? 2 + m : 0);
  cases->Check(Cat("a matrix with its numbers off the diagonal, seed ", seed), "solve", shift(0), {a, b},
               {b});
}

}  // namespace oneflow_like
