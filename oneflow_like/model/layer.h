// What functions of layers (oneflow_like/nn.h) have in common: their scope, their name in messages, checks of
// operands and options, and cuts along an axis that a mesh may lack.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "oneflow_like/model.h"

namespace oneflow_like::nn {

// "tp:S1" on a mesh that has such an axis, else nothing.
inline Annotation CutBy(const Scope& s, const std::string& axis, int tensor_axis) {
  if (axis.empty() || s.mesh().FindAxes(axis).empty()) return {};
  return {{axis, S(tensor_axis)}};
}

// A layer while its function runs, in its scope. Messages of the layer and of its operators begin with its
// name, "nn::Linear 'head'"; in a layer that calls others, with the name of the outermost, which the user
// called.
struct Layer {
  const std::string name;
  const Here at;
  const std::string who;
  std::optional<RunningScope> running;

  Layer(const char* layer, const Scope& s, const Here& from)
      : name(Cat("nn::", layer, s.path().empty() ? "" : " '" + s.path() + "'")),
        at(from.In(name.c_str())),
        who(SourceLine(at).Who("")) {
    if (s.graph() == nullptr) Fail(who, ": the Scope was never given a value; start from Model::scope()");
    running.emplace(s, RunningScope::Of::kLayer);
  }
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  // The extent of the last axis of an operand with enough axes.
  int64_t Width(const char* operand, Tensor x, int least_rank) const {
    if (!x.defined()) Fail(who, ": ", operand, " is a Tensor that was never given a value");
    if (!IsFloating(x.dtype()))
      Fail(who, ": ", operand, " is ", Name(x.dtype()), " but must be of a floating type; cast it");
    if (x.shape().rank() < least_rank)
      Fail(who, ": ", operand, " is ", x.shape().str(), " but needs at least ", least_rank,
           least_rank == 1 ? " axis" : " axes");
    return x.shape().back();
  }
  // An option of which 0 stands for its default.
  int64_t OrDefault(const char* option, int64_t given, int64_t otherwise) const {
    if (given < 0) Fail(who, ": ", option, " is ", given, " but must be positive, or 0 for the default");
    return given > 0 ? given : otherwise;
  }
  [[noreturn]] void Bad(const char* argument, int64_t given) const {
    Fail(who, ": ", argument, " is ", given, " but must be positive");
  }
  int64_t Sequence(const char* operand, Tensor x) const {
    const int64_t width = Width(operand, x, 3);
    if (x.shape().rank() > 3)
      Fail(who, ": ", operand, " is ", x.shape().str(), " but must have 3 axes, [b s w]");
    return width;
  }
};

}  // namespace oneflow_like::nn
