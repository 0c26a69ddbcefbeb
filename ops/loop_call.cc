// The attributes of a scan, read: its operands and results from those of the body.
#include <algorithm>

#include "ops/loop.h"

namespace oneflow_like {
namespace {

std::vector<int64_t> ListOf(const Attrs& attrs, const std::string& name, const std::string& who) {
  if (!attrs.Has(name)) Fail(who, ": attribute \"", name, "\" is missing");
  return attrs.Ints(name);
}

// A value of the body as an operand or a result, with an axis for the steps if `axis` is one.
LoopCall::Operand OperandOf(const Body& body, std::string name, int v, int64_t axis, int64_t steps,
                            const std::string& who) {
  const Body::Value& value = body.values()[v];
  if (axis > value.shape.rank() || value.shape.rank() + (axis >= 0) > Dims::kMaxRank)
    Fail(who, ": ", name, " has no axis ", axis, " for the steps: in the body it is ", value.shape.str());
  LoopCall::Operand operand{std::move(name), v, axis, value.dtype, {}, ""};
  for (int64_t i = 0; i <= value.shape.rank(); ++i) {
    if (i == axis) {
      operand.shape.push_back(steps);
      operand.labels += '#';
    }
    if (i == value.shape.rank()) break;
    operand.shape.push_back(value.shape[static_cast<int>(i)]);
    operand.labels += value.labels[i];
  }
  return operand;
}

}  // namespace

LoopCall::LoopCall(const Catalog& catalog, const Attrs& attrs, const std::string& who)
    : body(Body::Parse(catalog, attrs.Str("body"), who)) {
  xs = ListOf(attrs, "xs", who);
  ys = ListOf(attrs, "ys", who);
  sums = ListOf(attrs, "sums", who);
  steps = attrs.Int("steps");
  reverse = attrs.Int("reverse", 0) != 0;
  keep = attrs.Int("keep", 0) != 0;
  const int64_t count = attrs.Int("states");
  if (steps < 1) Fail(who, ": steps is ", steps, " but must be at least 1");
  size_t terms = 0;
  for (const std::vector<int64_t>* list : {&xs, &ys, &sums})
    for (int64_t n : *list)
      if (n < 0) Fail(who, ": the axes of xs and ys, and numbers of terms, must not be negative");
  for (int64_t n : sums) terms += static_cast<size_t>(std::min<int64_t>(n, 1 << 20));
  if (count < 0 || static_cast<size_t>(count) + xs.size() > body.inputs.size() ||
      static_cast<size_t>(count) + ys.size() + terms != body.results.size())
    Fail(who, ": a body of ", body.inputs.size(), " inputs and ", body.results.size(),
         " results cannot have ", count, " states, ", xs.size(), " xs, ", ys.size(), " ys and ", terms,
         " terms of sums");
  states = static_cast<size_t>(count);
  const auto add_in = [&](const char* name, size_t number, size_t input, int64_t axis) {
    in.push_back(OperandOf(body, Cat(name, number), body.inputs[input], axis, steps, who));
  };
  const auto add_out = [&](const char* name, size_t number, int value, int64_t axis) {
    out.push_back(OperandOf(body, Cat(name, number), value, axis, steps, who));
  };
  for (size_t i = 0; i < states; ++i) add_in("state", i, i, -1);
  for (size_t i = 0; i < xs.size(); ++i) add_in("x", i, states + i, xs[i]);
  for (size_t i = states + xs.size(); i < body.inputs.size(); ++i)
    add_in("read", i - states - xs.size(), i, -1);
  for (size_t i = 0; i < states; ++i) {
    const Body::Value &before = body.values()[body.inputs[i]], &after = body.values()[body.results[i]];
    if (before.shape != after.shape || before.dtype != after.dtype || before.labels != after.labels)
      Fail(who, ": state ", i, " is ", Name(before.dtype), before.shape.str(), " before a step but ",
           Name(after.dtype), after.shape.str(), " after it");
    add_out("last", i, body.results[i], -1);
  }
  for (size_t i = 0; i < ys.size(); ++i) add_out("y", i, body.results[states + i], ys[i]);
  size_t term = states + ys.size();
  for (size_t i = 0; i < sums.size(); ++i) {
    const Body::Value& first = body.values()[body.results[std::min(term, body.results.size() - 1)]];
    if (sums[i] < 1 || !IsFloating(first.dtype))
      Fail(who, ": sum ", i, " must have at least one term, of a floating type");
    add_out("sum", i, body.results[term], -1);
    for (int64_t n = 0; n < sums[i]; ++n) {
      const Body::Value& value = body.values()[body.results[term++]];
      if (value.shape != first.shape || value.dtype != first.dtype)
        Fail(who, ": the terms of sum ", i, " differ in shape or type");
    }
  }
  for (size_t i = 0; keep && i < states; ++i) add_out("kept", i, body.inputs[i], 0);
  if (in.empty() || out.empty()) Fail(who, ": a loop needs an operand and a result");
}

}  // namespace oneflow_like
