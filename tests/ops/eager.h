// Eager execution for tests: the oracle's Tape runs each node where it is added; here it gets reverse mode
// through the operators' own gradient functions.
#pragma once

#include <glog/logging.h>

#include <map>
#include <vector>

#include "ops/oracle/gradient.h"

namespace oneflow_like::oracle {

// Gradients of the sum of `loss`'s elements; undefined where `loss` does not depend on a tensor.
inline std::vector<Tensor> Backward(Tape* tape, Tensor loss, const std::vector<Tensor>& wrt) {
  std::map<int, Tensor> gradient;
  gradient[loss.id()] = full(tape, loss.shape(), 1);
  std::vector<Tape::Node> nodes = tape->nodes();  // a copy: gradients add nodes of their own
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    GradCall call{node->attrs, {}, {}, {}, {}};
    bool reached = false;
    for (int id : node->out) {
      call.out.emplace_back(tape, id);
      call.dout.push_back(gradient.count(id) ? gradient[id] : Tensor());
      reached |= call.dout.back().defined();
    }
    const OpDef& def = BuiltinCatalog().Get(node->op);
    if (!reached || !def.grad) continue;
    for (int id : node->in) {
      call.in.emplace_back(tape, id);
      call.wanted.push_back(IsFloating(tape->DTypeOf(id)));
    }
    std::vector<Tensor> din = def.grad(call);
    for (size_t i = 0; i < din.size(); ++i) {
      if (!din[i].defined() || !call.wanted[i]) continue;
      Tensor& sum = gradient[node->in[i]];
      sum = sum.defined() ? add(sum, din[i]) : din[i];
    }
  }
  std::vector<Tensor> out;
  for (const Tensor& t : wrt) out.push_back(gradient.count(t.id()) ? gradient[t.id()] : Tensor());
  return out;
}

// A tensor of these values, row-major.
inline Tensor Give(Tape* tape, const Dims& shape, const std::vector<double>& values,
                   DType dtype = DType::kFloat32) {
  Value value(dtype, shape);
  CHECK_EQ(static_cast<int64_t>(values.size()), value.elements());
  for (int64_t i = 0; i < value.elements(); ++i) value.Set(i, values[i]);
  return tape->Input(std::move(value));
}

inline std::vector<double> Read(Tensor t) {
  const Value& value = static_cast<Tape*>(t.graph())->At(t);
  std::vector<double> values;
  for (int64_t i = 0; i < value.elements(); ++i) values.push_back(value.Get(i));
  return values;
}

}  // namespace oneflow_like::oracle
