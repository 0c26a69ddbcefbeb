// rope: rotary position embedding of queries and keys. Its gradient is the rotation back, the same operator
// with the attribute "inverse".
#include "ops/rope.h"

#include <cmath>

#include "ops/language/functional.h"
#include "ops/language/numbers.h"
#include "ops/manifest.h"
#include "ops/reference.h"

namespace oneflow_like {
namespace {

Status RopeReference(const KernelContext& context) {
  const TensorArg &x = context.in[0], &positions = context.in[1], &y = context.out[0];
  int64_t width = x.extent[3];
  RopeTurns turns = TurnsOf(context.spec.attrs, width);
  ForEachIndex({x.extent[0], x.extent[1], x.extent[2]}, [&](const Dims& index) {
    int64_t at = OffsetOf({x.extent[0], x.extent[1], x.extent[2]}, index) * width;
    int64_t row = positions.extent.rank() == 2 ? index[0] * x.extent[1] + index[1] : index[1];
    double position = static_cast<double>(LoadInt(positions, row));
    for (int64_t pair = 0; pair < turns.dims / 2; ++pair) {
      double angle = position * turns.Frequency(pair), c = std::cos(angle), s = std::sin(angle);
      int64_t first = at + turns.First(pair), second = at + turns.Second(pair);
      double a = LoadFloat(x, first), b = LoadFloat(x, second);
      StoreFloat(y, first, a * c - b * s);
      StoreFloat(y, second, b * c + a * s);
    }
    for (int64_t d = turns.dims; d < width; ++d) StoreFloat(y, at + d, LoadFloat(x, at + d));
  });
  return Status();
}

void CheckRopeNumbers(const OpCall& call) {
  const Attrs& attrs = *call.attrs;
  auto positive = [&](const char* name, double otherwise) {
    double value = attrs.Float(name, otherwise);
    NeedNumber(call.who, name, value, Domain::kPositive);
    return value;
  };
  positive("base", 10000);
  positive("scale", 1);
  if (attrs.Int("trained_length", 0) < 0)
    Fail(call.who, ": trained_length is ", attrs.Int("trained_length"), " but must be 0 or more");
  if (attrs.Int("trained_length", 0) == 0) return;
  positive("factor", 8);
  double low = positive("low_turns", 1), high = positive("high_turns", 4);
  if (low >= high)
    Fail(call.who, ": low_turns is ", low, " but must be less than high_turns, which is ", high);
}

void CheckRope(const OpCall& call) {
  RequireInputs(call, 2);
  RequireFloating(call, 0);
  RequireInteger(call, 1);
  CheckRopeNumbers(call);
  int rank = call.shapes[1].rank();
  if (rank != 1 && rank != 2)
    Fail(call.who, ": positions have ", rank, rank == 1 ? " axis" : " axes",
         " but must have 1 or 2, [s] or [b s]");
  if (call.shapes[0].rank() != 4) return;  // the rule will say so
  int64_t width = call.shapes[0][3], dims = call.attrs->Int("dims", 0);
  if (dims < 0 || dims > width)
    Fail(call.who, ": dims is ", dims, " but must be in [0, ", width, "], axis d of x");
  if (dims == 0) dims = width;
  if (dims % 2 != 0)
    Fail(call.who, ": axis d is rotated in pairs, but ", dims, " is not an even number of elements");
}

}  // namespace

void AddRope(Catalog* catalog) {
  OpDef def;
  def.name = "rope";
  def.doc =
      "Rotates the pairs of elements of each head by position * base^(-2 pair / dims). inverse: the other "
      "way round.";
  def.axes_of = [](const OpCall& call) {
    bool of_batch = call.shapes.size() > 1 && call.shapes[1].rank() == 2;
    return Cat("x[b s h d], positions[", of_batch ? "b s" : "s", "] -> y[b s h d]");
  };
  def.linear = {{"x"}};
  def.whole = {"d"};
  def.check = CheckRope;
  def.grad = [](const GradCall& call) {
    Attrs attrs = call.attrs;
    attrs.Set("inverse", int64_t{1} - call.attrs.Int("inverse", 0));
    return std::vector<Tensor>{Apply(call.in[0].graph(), "rope", {call.dout[0], call.in[1]}, attrs)[0],
                               Tensor()};
  };
  def.flops = [](const BoundRule& rule) { return 3 * rule.Volume(); };
  def.reference = RopeReference;
  def.precision = Precision::kFollow;
  using enum DType;
  def.samples = {
      {.in = {{2, 5, 3, 4}, {5}}, .attrs = {{"base", 10000.0}}, .dtypes = {kFloat32, kInt32}, .limit = 1000},
      {.in = {{2, 3, 2, 6}, {2, 3}},
       .attrs = {{"base", 500.0}, {"dims", 4}, {"interleaved", 1}, {"scale", 2.5}},
       .dtypes = {kFloat32, kInt64},
       .limit = 50},
      {.in = {{1, 3, 1, 8}, {3}},
       .attrs = {{"base", 500000.0},
                 {"trained_length", 8192},
                 {"factor", 8.0},
                 {"low_turns", 1.0},
                 {"high_turns", 4.0},
                 {"inverse", 1}},
       .dtypes = {kFloat32, kInt32},
       .limit = 100000}};
  catalog->Add(std::move(def));
}

}  // namespace oneflow_like
