// Cases of values.cc: functions on Tensors whose values and gradients PyTorch's are compared with. A case has
// a name, by which values.py's part of the same name finds its counterpart; "<function>" or
// "<function>/<variant>".
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ops/language/functional.h"

namespace oneflow_like::peers {

// An operand, drawn evenly from [low, high): whole numbers of an integer type, 0 and 1 of bool.
struct ValueInput {
  Dims shape;
  DType dtype = DType::kFloat32;
  double low = -1, high = 1;
};
inline ValueInput F(const Dims& shape, double low = -2, double high = 2) {
  return {shape, DType::kFloat32, low, high};
}
inline ValueInput I(const Dims& shape, int64_t below, int64_t from = 0, DType dtype = DType::kInt64) {
  return {shape, dtype, static_cast<double>(from), static_cast<double>(below)};
}
inline ValueInput Flags(const Dims& shape) { return {shape, DType::kBool, 0, 2}; }

// One Tensor or several.
struct ValueResults {
  std::vector<Tensor> tensors;
  ValueResults(Tensor t) : tensors{t} {}                                      // NOLINT: implicit on purpose
  ValueResults(std::vector<Tensor> several) : tensors(std::move(several)) {}  // NOLINT: the same
};
using ValueIn = const std::vector<Tensor>&;

struct ValueCase {
  std::string name;
  std::vector<ValueInput> in;
  std::function<ValueResults(ValueIn)> run;
};
using ValueCases = std::vector<ValueCase>;

// One file each, and values_<part>.py beside it.
ValueCases BasicCases();          // cases_basics.cc
ValueCases ReductionCases();      // cases_reductions.cc
ValueCases LossCases();           // cases_losses.cc
ValueCases VisionCases();         // cases_vision.cc
ValueCases SparseCases();         // cases_sparse.cc
ValueCases ComposedCases();       // cases_composed.cc
ValueCases LanguageCases();       // cases_language.cc
ValueCases LinearAlgebraCases();  // cases_linear_algebra.cc
ValueCases RecurrentCases();      // cases_recurrent.cc

}  // namespace oneflow_like::peers
