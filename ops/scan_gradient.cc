#include "ops/scan_gradient.h"

#include <algorithm>
#include <optional>

#include "ops/language/functional.h"
#include "ops/language/sum_parts.h"
#include "ops/loop.h"

namespace oneflow_like {
namespace {

// The body of the gradient, for a number of parts of each state's gradient.
class GradientBody {
 public:
  GradientBody(const GradCall& call, const LoopCall& loop, const std::vector<size_t>& parts)
      : call_(call), loop_(loop), body_(loop.body), parts_(parts) {
    Carry();
    Differentiate();
  }

  // The parts that a step gives, by state.
  std::vector<size_t> Parts() const {
    std::vector<size_t> parts;
    for (const std::vector<Tensor>& of : state_parts_) parts.push_back(of.size());
    return parts;
  }

  // Adds the loop to the graph, and gives the gradients of its operands.
  std::vector<Tensor> Add();

 private:
  bool Carried(size_t state) const { return IsFloating(TypeOf(loop_.body.inputs[state])); }
  DType TypeOf(int v) const { return loop_.body.values()[v].dtype; }
  const Dims& ShapeOf(int v) const { return loop_.body.values()[v].shape; }
  void Carry();
  void Differentiate();
  void Pair(int a, int b) { pairs_.push_back({a, b}); }

  const GradCall& call_;
  const LoopCall& loop_;
  Body body_;
  const std::vector<size_t>& parts_;
  // An input of the body, and the operand of the loop that it is.
  struct Input {
    int value;
    Tensor operand;
    int64_t axis = -1;
  };
  std::vector<std::vector<int>> carried_;  // by state: inputs
  std::vector<Input> dys_, dsums_, dkept_;
  std::map<int, std::vector<Tensor>> given_;
  std::vector<std::vector<Tensor>> state_parts_, other_parts_;  // others: xs, values that are read
  std::vector<std::pair<int, int>> pairs_;
};

// The gradients that come in: of the ys, and, of the states after the step, what the step after it gave.
void GradientBody::Carry() {
  const Body& primal = loop_.body;
  for (size_t i = 0; i < loop_.ys.size(); ++i) {
    const Tensor& dy = call_.dout[loop_.FirstY() + i];
    if (!dy.defined()) continue;
    const int v = primal.results[loop_.FirstY() + i];
    dys_.push_back({body_.AddInput(TypeOf(v), Dims(ShapeOf(v))).id(), dy, loop_.ys[i]});
    given_[v].emplace_back(&body_, dys_.back().value);
    Pair(v, dys_.back().value);
  }
  size_t term = loop_.FirstSum();
  for (size_t i = 0; i < loop_.sums.size(); ++i) {
    const Tensor& dsum = call_.dout[loop_.FirstSum() + i];
    const int v = primal.results[term];
    if (dsum.defined()) dsums_.push_back({body_.AddInput(TypeOf(v), Dims(ShapeOf(v))).id(), dsum});
    for (int64_t n = 0; n < loop_.sums[i]; ++n, ++term) {
      if (!dsum.defined()) continue;
      given_[primal.results[term]].emplace_back(&body_, dsums_.back().value);
      Pair(primal.results[term], dsums_.back().value);
    }
  }
  carried_.resize(loop_.states);
  for (size_t i = 0; i < loop_.states; ++i) {
    const int v = primal.inputs[i];
    const Tensor dkept = loop_.keep ? call_.dout[loop_.FirstKept() + i] : Tensor();
    if (parts_[i] > 0 && dkept.defined()) {  // of a gradient's gradient
      dkept_.push_back({body_.AddInput(TypeOf(v), Dims(ShapeOf(v))).id(), dkept, 0});
      given_[v].emplace_back(&body_, dkept_.back().value);
      Pair(v, dkept_.back().value);
    }
    for (size_t p = 0; p < parts_[i]; ++p) {
      const Tensor part = body_.AddInput(TypeOf(v), Dims(ShapeOf(v)));
      carried_[i].push_back(part.id());
      given_[primal.results[i]].push_back(part);
      Pair(v, part.id());
    }
  }
}

void GradientBody::Differentiate() {
  std::vector<int> of;
  const Body& primal = loop_.body;
  for (size_t i = 0; i < primal.inputs.size(); ++i) {
    const bool wanted = i < loop_.states ? Carried(i) : call_.wanted[i];
    if (wanted && IsFloating(TypeOf(primal.inputs[i]))) of.push_back(primal.inputs[i]);
  }
  const std::vector<std::vector<Tensor>> found = GradientParts(&body_, given_, of);
  state_parts_.resize(loop_.states);
  other_parts_.resize(primal.inputs.size() - loop_.states);
  for (size_t i = 0, next = 0; i < primal.inputs.size() && next < of.size(); ++i) {
    if (of[next] != primal.inputs[i]) continue;
    std::vector<Tensor> parts = found[next++];
    const bool slices = std::any_of(parts.begin(), parts.end(), [&](const Tensor& part) {
      const std::optional<GraphBuilder::Made> made = body_.MadeBy(part.id());
      return made && made->op == "pad";
    });
    const bool x = i >= loop_.states && i < loop_.states + loop_.xs.size();
    if (parts.size() > 1 && (slices || x)) parts = {SumOfParts(parts)};
    if (i < loop_.states && parts.empty())
      parts = {full(&body_, Dims(ShapeOf(primal.inputs[i])), 0, TypeOf(primal.inputs[i]))};
    for (const Tensor& part : parts) Pair(primal.inputs[i], part.id());
    (i < loop_.states ? state_parts_[i] : other_parts_[i - loop_.states]) = std::move(parts);
  }
}

std::vector<Tensor> GradientBody::Add() {
  const Body& primal = loop_.body;
  GraphBuilder* graph = call_.in[0].graph();
  std::vector<Input> states, xs, read;
  std::map<std::pair<std::string, DType>, Tensor> zeros;
  for (size_t i = 0; i < loop_.states; ++i)
    for (size_t p = 0; p < carried_[i].size(); ++p) {
      const int v = primal.inputs[i];
      Tensor first = p == 0 ? call_.dout[i] : Tensor();
      if (!first.defined()) {
        Tensor& zero = zeros[{ShapeOf(v).str(), TypeOf(v)}];
        if (!zero.defined()) zero = full(graph, Dims(ShapeOf(v)), 0, TypeOf(v));
        first = zero;
      }
      states.push_back({carried_[i][p], first});
      body_.results.push_back(state_parts_[i][p].id());
    }
  body_.results.erase(body_.results.begin(),
                      body_.results.begin() + static_cast<long>(primal.results.size()));
  std::vector<int64_t> x_axes, y_axes, sums;
  std::vector<size_t> dxs, dreads;  // operands whose gradients these are
  const size_t first_read = loop_.states + loop_.xs.size();
  for (size_t i = loop_.states; i < first_read; ++i) {
    const std::vector<Tensor>& parts = other_parts_[i - loop_.states];
    if (parts.empty()) continue;
    body_.results.push_back(parts[0].id());
    y_axes.push_back(loop_.xs[i - loop_.states]);
    dxs.push_back(i);
  }
  for (size_t i = first_read; i < primal.inputs.size(); ++i) {
    const std::vector<Tensor>& parts = other_parts_[i - loop_.states];
    if (parts.empty()) continue;
    for (const Tensor& part : parts) body_.results.push_back(part.id());
    sums.push_back(static_cast<int64_t>(parts.size()));
    dreads.push_back(i);
  }
  if (body_.results.empty()) return std::vector<Tensor>(call_.in.size());
  body_.DropUnread();
  std::vector<bool> needed(body_.values().size(), false);
  for (int v : body_.results) needed[v] = true;
  for (const Body::Node& node : body_.nodes())
    for (int v : node.in) needed[v] = true;
  for (size_t i = 0; i < primal.inputs.size(); ++i) {
    const int v = primal.inputs[i];
    if (!needed[v]) continue;
    if (i < loop_.states) xs.push_back({v, call_.out[loop_.FirstKept() + i], 0});
    if (i >= loop_.states && i < first_read) xs.push_back({v, call_.in[i], loop_.xs[i - loop_.states]});
    if (i >= first_read) read.push_back({v, call_.in[i]});
  }
  for (const auto* list : {&dys_, &dkept_})
    for (const Input& dy : *list)
      if (needed[dy.value]) xs.push_back(dy);
  for (const Input& dsum : dsums_)
    if (needed[dsum.value]) read.push_back(dsum);
  std::vector<Tensor> in;
  body_.inputs.clear();
  for (const auto* list : {&states, &xs, &read})
    for (const Input& input : *list) {
      body_.inputs.push_back(input.value);
      in.push_back(input.operand);
      if (list == &xs) x_axes.push_back(input.axis);
    }
  body_.SetLabels(pairs_, states.size());
  Attrs attrs{{"body", body_.Text()}, {"states", static_cast<int64_t>(states.size())},
              {"steps", loop_.steps}, {"xs", x_axes},
              {"ys", y_axes},         {"sums", sums}};
  if (!loop_.reverse) attrs.Set("reverse", int64_t{1});
  const std::vector<Tensor> out = Apply(graph, "scan", in, attrs);
  std::vector<Tensor> gradients(call_.in.size());
  size_t next = 0;
  for (size_t i = 0; i < loop_.states; ++i) {
    const size_t count = carried_[i].size();
    const std::vector<Tensor> parts(out.begin() + static_cast<long>(next),
                                    out.begin() + static_cast<long>(next + count));
    if (count > 0 && call_.wanted[i]) gradients[i] = SumOfParts(parts);
    next += count;
  }
  for (size_t i : dxs) gradients[i] = out[next++];
  for (size_t i : dreads) gradients[i] = out[next++];
  return gradients;
}

}  // namespace

std::vector<Tensor> ScanGradient(const GradCall& call) {
  const LoopCall loop(call.in[0].graph()->catalog(), call.attrs, "scan");
  std::vector<size_t> parts;
  for (size_t i = 0; i < loop.states; ++i)
    parts.push_back(IsFloating(loop.body.values()[loop.body.inputs[i]].dtype) ? 1 : 0);
  // How many parts a state's gradient has does not depend on how many come in.
  for (;;) {
    GradientBody body(call, loop, parts);
    if (body.Parts() == parts) return body.Add();
    parts = body.Parts();
  }
}

}  // namespace oneflow_like
