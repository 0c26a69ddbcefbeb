// dropout: the mask is a function of the seed, the node's key, the step and the global position, so every
// mesh and every number of micro-batches draws the same one, and the gradient draws it again instead of
// keeping it.
#include "core/random.h"
#include "ops/language/functional.h"
#include "ops/language/numbers.h"
#include "ops/manifest.h"
#include "ops/reference.h"

namespace oneflow_like {
namespace {

Status DropoutReference(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  const DropRule rule = DropRuleOf(context.spec.attrs.Float("p"));
  uint64_t key = RandomKey(context.seed, static_cast<uint64_t>(context.spec.attrs.Int("key", 0)));
  int64_t offset = 0;
  ForEachIndex(x.extent, [&](const Dims& at) {
    const bool keep = DropBits(key, context.step, GlobalIndex(x, at)) >= rule.least;
    StoreFloat(y, offset, keep ? LoadFloat(x, offset) * rule.scale : 0);
    ++offset;
  });
  return {};
}

}  // namespace

void AddDropout(Catalog* catalog) {
  catalog->Add({
      .name = "dropout",
      .doc = "Zeroes each element with probability p and divides the others by 1 - p.",
      .axes = "x[..] -> y[..]",
      .linear = {{"x"}},
      .check =
          [](const OpCall& call) {
            RequireInputs(call, 1);
            RequireFloating(call);
            RequireAttr(call, "p");
            NeedNumber(call.who, "p", call.attrs->Float("p"), Domain::kBelowOne);
          },
      .grad = [](const GradCall& call) -> std::vector<Tensor> {
        return {Apply(call.in[0].graph(), "dropout", {call.dout[0]}, call.attrs)[0]};
      },
      .reference = DropoutReference,
      .scalar = "dropout",
      .random = true,
      .precision = Precision::kFollow,
      .samples = {{.in = {Dims{5, 7}}, .attrs = {{"p", 0.5}, {"key", 11}}},
                  {.in = {Dims{3, 1, 5}}, .attrs = {{"p", 0.1}, {"key", 12}}},
                  {.in = {Dims{0, 3}}, .attrs = {{"p", 0.1}, {"key", 13}}},
                  {.in = {Dims{}}, .attrs = {{"p", 0.0}, {"key", 14}}}},
  });
}

}  // namespace oneflow_like
