// within: x itself, if all its elements lie in a range. Losses put it around what they are given, so that
// a number that makes no sense fails the step as an index out of range does, and is not learnt from.
#include "ops/within.h"

#include <cstring>

#include "ops/language/functional.h"
#include "ops/manifest.h"
#include "ops/reference.h"

namespace oneflow_like {
namespace {

Status WithinReference(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  const NumberRange range(context.spec.attrs);
  for (int64_t i = 0; i < x.elements(); ++i)
    if (const double value = LoadFloat(x, i); !range.Has(value)) return Status(range.Outside(value));
  if (x.elements() > 0 && x.data != y.data)
    std::memcpy(y.data, x.data, static_cast<size_t>(x.elements()) * SizeOf(x.dtype));
  return {};
}

}  // namespace

void AddWithin(Catalog* catalog) {
  catalog->Add({
      .name = "within",
      .doc = "x itself; an element outside [low, high], or NaN, fails the step.",
      .axes = "x[..] -> y[..]",
      .check =
          [](const OpCall& call) {
            RequireInputs(call, 1);
            RequireFloating(call);
            RequireAttr(call, "low");
            RequireAttr(call, "high");
            if (call.attrs->Float("low") > call.attrs->Float("high"))
              Fail(call.who, ": low is ", call.attrs->Float("low"), " but high is ",
                   call.attrs->Float("high"));
          },
      .grad = [](const GradCall& call) -> std::vector<Tensor> { return {call.dout[0]}; },
      .flops = NoFlops,
      .reference = WithinReference,
      .precision = Precision::kFollow,
      .samples = {{.in = {{5, 7}}, .attrs = {{"low", 0.0}, {"high", 1.0}}, .low = 0.1, .high = 0.9},
                  {.in = {{3}}, .attrs = {{"low", -2.0}, {"high", 2.0}, {"operand", std::string("p")}}},
                  {.in = {{}}, .attrs = {{"low", -2.0}, {"high", 2.0}}},
                  {.in = {{0, 4}}, .attrs = {{"low", 0.0}, {"high", 1.0}}}},
  });
}

}  // namespace oneflow_like
