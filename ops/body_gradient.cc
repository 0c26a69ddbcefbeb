// The gradients of a loop's body, operator by operator, as compiler/passes/autograd.cc goes through a graph.
#include <algorithm>

#include "ops/body.h"
#include "ops/language/sum_parts.h"

namespace oneflow_like {

std::vector<std::vector<Tensor>> GradientParts(Body* body, std::map<int, std::vector<Tensor>> given,
                                               const std::vector<int>& of) {
  const size_t nodes = body->nodes().size();
  std::vector<bool> depends(body->values().size(), false);  // on a value of `of`, through numbers
  const auto floating = [&](int v) { return IsFloating(body->values()[v].dtype); };
  for (int v : of) depends[v] = floating(v);
  for (const Body::Node& node : body->nodes()) {
    const bool any = std::any_of(node.in.begin(), node.in.end(), [&](int v) { return depends[v]; });
    for (int v : node.out) depends[v] = depends[v] || (any && floating(v));
  }
  const auto total = [&](int v) {
    std::vector<Tensor>& parts = given[v];
    if (parts.size() > 1) parts = {SumOfParts(parts)};
    return parts.empty() ? Tensor() : parts[0];
  };
  for (size_t n = nodes; n-- > 0;) {
    Body::Node node = body->nodes()[n];  // a copy, as the body grows below
    std::vector<bool> wanted;
    for (int v : node.in) wanted.push_back(depends[v]);
    if (std::find(wanted.begin(), wanted.end(), true) == wanted.end()) continue;
    std::vector<Tensor> dout;
    for (int v : node.out) dout.push_back(total(v));
    if (std::none_of(dout.begin(), dout.end(), [](const Tensor& t) { return t.defined(); })) continue;
    const OpDef& def = body->catalog().Get(node.op);
    if (!def.grad && def.stops_gradient) continue;
    if (!def.grad)
      Fail("scan: operator ", node.op,
           " of the body has no gradient, so none reaches what it reads; give its OpDef a `grad`, or stop "
           "the gradient of its operands");
    if (!def.keep.empty() && !node.attrs.Has(def.keep)) {
      body->Keep(static_cast<int>(n));
      node = body->nodes()[n];
      dout.resize(node.out.size());
    }
    GradCall call{node.attrs, {}, {}, dout, wanted};
    for (int v : node.in) call.in.emplace_back(body, v);
    for (int v : node.out) call.out.emplace_back(body, v);
    const std::vector<Tensor> grads = def.grad(call);
    if (grads.size() != node.in.size())
      Fail("scan: the gradient of operator ", node.op, " gives ", grads.size(), " tensors for its ",
           node.in.size(), " operands; give an undefined Tensor where none flows");
    for (size_t i = 0; i < grads.size(); ++i)
      if (grads[i].defined() && wanted[i]) given[node.in[i]].push_back(grads[i]);
  }
  std::vector<std::vector<Tensor>> parts;
  for (int v : of) parts.push_back(given[v]);
  return parts;
}

}  // namespace oneflow_like
