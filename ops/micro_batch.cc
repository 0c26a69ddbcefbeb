// whole_batch, for which the parts that micro-batches bring of a value are put together, and
// micro_batch_index.
#include <cstring>

#include "ops/along_axis.h"
#include "ops/language/functional.h"
#include "ops/manifest.h"

namespace oneflow_like {
namespace {

Status WholeBatch(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  if (x.data != y.data && y.elements() > 0) std::memcpy(y.data, x.data, y.elements() * SizeOf(y.dtype));
  return Status();
}

// Attribute "of_gradient": the gradient comes in sums over the micro-batches, and goes on in parts of them,
// beside those of other readers of x.
bool OfGradient(const Attrs& attrs) { return attrs.Int("of_gradient", 0) != 0; }

Status MicroBatchIndex(const KernelContext& context) {
  *context.out[0].as<int64_t>() = context.time;
  return Status();
}

}  // namespace

void AddMicroBatch(Catalog* catalog) {
  OpDef whole{.name = "whole_batch", .doc = "x, with one axis whole: of all micro-batches and ranks."};
  whole.axes_of = [](const OpCall& call) {
    std::string axes = "[" + LettersAround(call.shapes[0].rank(), RequireAxis(call), "batch") + "]";
    return "x" + axes + " -> y" + axes;
  };
  whole.whole_of = [](const OpCall& call) {
    return OfGradient(*call.attrs) ? std::set<std::string>() : std::set<std::string>{"batch"};
  };
  whole.whole_batch = true;
  whole.linear_of = [](const OpCall& call) {
    return OfGradient(*call.attrs) ? std::vector<std::set<std::string>>()
                                   : std::vector<std::set<std::string>>{{"x"}};
  };
  whole.check = [](const OpCall& call) {
    RequireInputs(call, 1);
    RequireAxis(call);
  };
  whole.view = true;
  whole.flops = NoFlops;
  whole.grad = [](const GradCall& c) {
    Attrs attrs = c.attrs;
    attrs.Set("of_gradient", int64_t{1});
    return Apply(c.in[0].graph(), "whole_batch", {c.dout[0]}, attrs);
  };
  whole.precision = Precision::kFollow;
  whole.reference = WholeBatch;
  whole.samples = {{.in = {{6, 4}}, .attrs = {{"axis", int64_t{0}}}},
                   {.in = {{3, 5, 2}}, .attrs = {{"axis", int64_t{1}}}},
                   {.in = {{7}}, .attrs = {{"axis", int64_t{0}}}, .dtypes = {DType::kInt32}},
                   {.in = {{6, 4}}, .attrs = {{"axis", int64_t{0}}, {"of_gradient", int64_t{1}}}}};
  catalog->Add(std::move(whole));

  OpDef index{.name = "micro_batch_index", .doc = "The number of the micro-batch, from 0 on."};
  index.axes = "-> y[]";
  index.check = [](const OpCall& call) { RequireInputs(call, 0); };
  index.dtypes = ResultTypes({DType::kInt64});
  index.each_micro_batch = true;
  index.flops = NoFlops;
  index.reference = MicroBatchIndex;
  index.samples = {{.attrs = {}}};
  catalog->Add(std::move(index));
}

}  // namespace oneflow_like
