// Equations of products of two tensors ("bsw,whd->bshd"): parsing, lines of labelled axes, and the loops of
// reference kernels.
#pragma once

#include <string>

#include "ops/op.h"
#include "ops/reference.h"

namespace oneflow_like {

struct Equation {
  std::string a, b, y;  // labels, a letter each

  // "b,a->y": the same product with its operands exchanged.
  Equation Swapped() const { return {b, a, y}; }
  std::string str() const { return a + "," + b + "->" + y; }
  // Labels that the product sums over, in the order of a, then of b.
  std::string Summed() const;
};

inline bool HasLabel(const std::string& labels, char label) {
  return labels.find(label) != std::string::npos;
}

// Throws Error, beginning with `who`, for an invalid equation.
Equation ParseEquation(const std::string& who, const std::string& text);
// Parses the attribute "equation", which is required.
Equation EquationOf(const OpCall& call);
// A matmul of an operand of `rank` axes with a matrix: "abk,kn->abn". REQUIRES: 2 <= rank <= 10.
Equation MatmulEquation(int rank);

// The axis of a label in each operand; -1: absent.
struct LabelAxes {
  int a = -1, b = -1, y = -1;
};
// For matmul, from the global extents of its operands (a broadcast axis of extent 1 does not have the label);
// for an einsum, from its equation; labels of y come first.
std::vector<LabelAxes> MatmulLabels(const Dims& a, const Dims& b, const Dims& y);
std::vector<LabelAxes> EinsumLabels(const std::string& equation);

// Attribute of a product (OpDef::accumulates) whose first result is fp32: it holds the sum over the
// micro-batches of a step. The first one's product replaces what is there, later ones' are added to it.
constexpr char kAccumulates[] = "accumulates";
inline bool Accumulates(const Attrs& attrs) { return attrs.Int(kAccumulates, 0) != 0; }

// Attribute of a product, two numbers: how many products of one shape stand side by side in the order, none
// of which needs another's result, and the operand, 0 or 1, that is the same for all. A device may do them in
// one call.
constexpr char kTogether[] = "together";

// A multiplication and an addition for every point of the rule's axes.
inline double ProductFlops(const BoundRule& rule) { return 2 * rule.Volume(); }

// "b s w": for a rule's brackets.
std::string Spaced(const std::string& labels);
// A sum for every label the equation loses.
std::map<std::string, Reduce> SummedFolds(const Equation& e);

// Offsets in both operands for an index over named axes.
struct EquationWalk {
  Dims extent;
  Dims a_stride, b_stride;  // 0 where the operand has no such axis
};
EquationWalk MakeWalk(const std::string& labels, const Equation& e, const TensorArg& a, const TensorArg& b);

inline int64_t DotOf(const Dims& index, const Dims& stride) {
  int64_t offset = 0;
  for (int i = 0; i < index.rank(); ++i) offset += index[i] * stride[i];
  return offset;
}

// Calls f(offset, total) for every element of y in row-major order; totals are in double, their terms come in
// row-major order of the summed labels. REQUIRES: a and b are of one floating type.
template <typename F>
void ForEachTotal(const Equation& e, const TensorArg& a, const TensorArg& b, F&& f) {
  const EquationWalk kept = MakeWalk(e.y, e, a, b);
  EquationWalk summed = MakeWalk(e.Summed(), e, a, b);
  int64_t inner = 1, a_inner = 0, b_inner = 0;  // the last summed label
  if (summed.extent.rank() > 0) {
    int last = summed.extent.rank() - 1;
    inner = summed.extent[last];
    a_inner = summed.a_stride[last];
    b_inner = summed.b_stride[last];
    summed.extent[last] = 1;
  }
  DispatchFloating(a.dtype, [&](auto t) {
    using T = decltype(t);
    int64_t offset = 0;
    ForEachIndex(kept.extent, [&](const Dims& at) {
      const T* x = a.as<T>() + DotOf(at, kept.a_stride);
      const T* w = b.as<T>() + DotOf(at, kept.b_stride);
      double total = 0;
      ForEachIndex(summed.extent, [&](const Dims& k) {
        const T* xs = x + DotOf(k, summed.a_stride);
        const T* ws = w + DotOf(k, summed.b_stride);
        for (int64_t i = 0; i < inner; ++i) total += Load(xs + i * a_inner) * Load(ws + i * b_inner);
      });
      f(offset++, total);
    });
  });
}

}  // namespace oneflow_like
