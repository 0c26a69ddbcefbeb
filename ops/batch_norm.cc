// The parts of batch normalisation (Ioffe and Szegedy 2015): sums per channel over all other axes, which
// fold over the mesh, and the elementwise use of per-channel numbers, which is fused with its neighbours. The
// gradients of the four operators are made of the same four. A training step reads an activation once for
// its statistics (and a part of it for a centre), once to normalise it and twice for its gradient, and no
// broadcast number is ever stored.
#include "ops/language/calls.h"
#include "ops/language/functional.h"
#include "ops/manifest.h"
#include "ops/reference.h"
#include "ops/statistics.h"

namespace oneflow_like {
namespace {

// --- Reference kernels ---------------------------------------------------------------------------

Status Moments(const KernelContext& context) {
  const TensorArg &x = context.in[0], &centre = context.in[1];
  int64_t channels = x.extent.back();
  for (int64_t c = 0; c < channels; ++c) {
    double total = 0, squares = 0;
    for (int64_t i = c; i < x.elements(); i += channels) {
      double away = LoadFloat(x, i) - LoadFloat(centre, c);
      total += away;
      squares += away * away;
    }
    StoreFloat(context.out[0], c, total);
    StoreFloat(context.out[1], c, squares);
  }
  return {};
}

Status Products(const KernelContext& context) {
  const TensorArg &dy = context.in[0], &x = context.in[1], &centre = context.in[2];
  int64_t channels = x.extent.back();
  for (int64_t c = 0; c < channels; ++c) {
    double total = 0, products = 0;
    for (int64_t i = c; i < x.elements(); i += channels) {
      total += LoadFloat(dy, i);
      products += LoadFloat(dy, i) * (LoadFloat(x, i) - LoadFloat(centre, c));
    }
    StoreFloat(context.out[0], c, total);
    StoreFloat(context.out[1], c, products);
  }
  return {};
}

Status Affine(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  int64_t channels = x.extent.back();
  for (int64_t i = 0; i < y.elements(); ++i) {
    int64_t c = i % channels;
    StoreFloat(y, i,
               (LoadFloat(x, i) - LoadFloat(context.in[1], c)) * LoadFloat(context.in[2], c) +
                   LoadFloat(context.in[3], c));
  }
  return {};
}

Status ScaledChannels(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  int64_t channels = x.extent.back();
  for (int64_t i = 0; i < y.elements(); ++i)
    StoreFloat(y, i, LoadFloat(x, i) * LoadFloat(context.in[1], i % channels));
  return {};
}

// --- Gradients -----------------------------------------------------------------------------------

Tensor Zeros(Tensor like) { return full(like.graph(), like.shape(), 0); }

Tensor ApplyAffine(Tensor x, Tensor centre, Tensor factor, Tensor offset) {
  Tensor wide = InType(x, DType::kFloat32);
  auto as_wide = [](Tensor t) { return InType(t, DType::kFloat32); };
  return Apply(x.graph(), "channel_affine", {wide, as_wide(centre), as_wide(factor), as_wide(offset)})[0];
}

Tensor Times(Tensor a, Tensor b) { return mul(InType(a, DType::kFloat32), InType(b, DType::kFloat32)); }

Tensor ScaleChannels(Tensor x, Tensor factor) {
  return Apply(x.graph(), "channel_scale", {x, InType(factor, DType::kFloat32)})[0];
}

// Both sums are fp32; so are what comes to them.
std::vector<Tensor> MomentsGrad(const GradCall& call) {
  Tensor x = call.in[0], centre = call.in[1], dtotal = call.dout[0], dsquares = call.dout[1];
  Tensor twice = dsquares.defined() ? scale(dsquares, 2) : Tensor();
  std::vector<Tensor> din(2);
  if (call.wanted[0]) {
    Tensor factor = twice.defined() ? twice : Zeros(dtotal),
           offset = dtotal.defined() ? dtotal : Zeros(factor);
    din[0] = InType(ApplyAffine(x, centre, factor, offset), x.dtype());
  }
  if (call.wanted[1]) {
    int64_t channels = x.shape().back(), count = channels == 0 ? 0 : x.shape().elements() / channels;
    if (dtotal.defined()) din[1] = Accumulate(din[1], scale(dtotal, -static_cast<double>(count)), centre);
    if (twice.defined()) din[1] = Accumulate(din[1], neg(mul(call.out[0], twice)), centre);
  }
  return din;
}

std::vector<Tensor> ProductsGrad(const GradCall& call) {
  Tensor dy = call.in[0], x = call.in[1], centre = call.in[2], dtotal = call.dout[0],
         dproducts = call.dout[1];
  std::vector<Tensor> din(3);
  if (call.wanted[0]) {
    Tensor factor = dproducts.defined() ? dproducts : Zeros(dtotal),
           offset = dtotal.defined() ? dtotal : Zeros(factor);
    din[0] = InType(ApplyAffine(x, centre, factor, offset), dy.dtype());
  }
  if (!dproducts.defined()) return din;
  if (call.wanted[1]) din[1] = InType(ScaleChannels(dy, dproducts), x.dtype());
  if (call.wanted[2]) din[2] = InType(neg(mul(call.out[0], dproducts)), centre.dtype());
  return din;
}

std::vector<Tensor> AffineGrad(const GradCall& call) {
  Tensor x = call.in[0], centre = call.in[1], factor = call.in[2], offset = call.in[3], dy = call.dout[0];
  std::vector<Tensor> din(4);
  if (call.wanted[0]) din[0] = InType(ScaleChannels(dy, factor), x.dtype());
  if (!call.wanted[1] && !call.wanted[2] && !call.wanted[3]) return din;
  std::vector<Tensor> sums = Apply(x.graph(), "channel_products", {dy, x, centre});
  if (call.wanted[1]) din[1] = InType(neg(Times(factor, sums[0])), centre.dtype());
  if (call.wanted[2]) din[2] = InType(sums[1], factor.dtype());
  if (call.wanted[3]) din[3] = InType(sums[0], offset.dtype());
  return din;
}

std::vector<Tensor> ScaleGrad(const GradCall& call) {
  Tensor x = call.in[0], factor = call.in[1], dy = call.dout[0];
  std::vector<Tensor> din(2);
  if (call.wanted[0]) din[0] = InType(ScaleChannels(dy, factor), x.dtype());
  if (call.wanted[1])
    din[1] = InType(Apply(x.graph(), "channel_products", {dy, x, Zeros(factor)})[1], factor.dtype());
  return din;
}

// --- Checks --------------------------------------------------------------------------------------

// Operands from `first` on are numbers of the channels of the operand before.
void CheckNormChannels(const OpCall& call, size_t inputs, size_t first) {
  RequireInputs(call, inputs);
  RequireFloating(call);
  const Dims& x = call.shapes[first - 1];
  if (x.rank() == 0) Fail(call.who, ": x has no axes but needs one of channels");
  for (size_t i = first; i < inputs; ++i) {
    if (call.shapes[i] != Dims{x.back()})
      Fail(call.who, ": ", OperandName(call.op, i), " is ", call.shapes[i].str(), " but x has ", x.back(),
           " channels");
  }
  if (first == 2 && call.shapes[0] != x)
    Fail(call.who, ": dy is ", call.shapes[0].str(), " but x is ", x.str());
}

std::vector<DType> TwoSums(const OpCall&) { return {DType::kFloat32, DType::kFloat32}; }

}  // namespace

// Four entries of the table of operators.
void AddBatchNorm(Catalog* catalog) {
  using enum DType;
  catalog->Add({
      .name = "channel_moments",
      .doc = "Sums of x - centre and of its square, per channel; both fp32.",
      .axes = "x[.. c], centre[c] -> total[c], squares[c]",
      .folds = {{"..", Reduce::kSum}},
      .dtypes = TwoSums,
      .check = [](const OpCall& call) { CheckNormChannels(call, 2, 1); },
      .grad = MomentsGrad,
      .flops = [](const BoundRule& rule) { return 4 * rule.Volume(); },
      .reference = Moments,
      .any_type = true,
      .samples =
          {{.in = {{5, 7}, {7}}}, {.in = {{3, 1, 2, 5}, {5}}}, {.in = {{0, 3}, {3}}}, {.in = {{4}, {4}}}},
  });
  catalog->Add({
      .name = "channel_products",
      .doc = "Sums of dy and of dy (x - centre), per channel; both fp32.",
      .axes = "dy[.. c], x[.. c], centre[c] -> total[c], products[c]",
      .folds = {{"..", Reduce::kSum}},
      .linear = {{"dy"}},
      .dtypes = TwoSums,
      .check = [](const OpCall& call) { CheckNormChannels(call, 3, 2); },
      .grad = ProductsGrad,
      .flops = [](const BoundRule& rule) { return 4 * rule.Volume(); },
      .reference = Products,
      .any_type = true,
      .samples = {{.in = {{5, 7}, {5, 7}, {7}}},
                  {.in = {{3, 1, 2, 5}, {3, 1, 2, 5}, {5}}},
                  {.in = {{0, 3}, {0, 3}, {3}}},
                  {.in = {{5, 3}, {5, 3}, {3}}, .dtypes = {kFloat32, kBFloat16, kFloat32}}},
  });
  catalog->Add({
      .name = "channel_affine",
      .doc = "(x - centre) * factor + offset, with a centre, a factor and an offset for every channel.",
      .axes = "x[.. c], centre[c], factor[c], offset[c] -> y[.. c]",
      .check = [](const OpCall& call) { CheckNormChannels(call, 4, 1); },
      .grad = AffineGrad,
      .flops = [](const BoundRule& rule) { return 3 * rule.Volume(); },
      .reference = Affine,
      .scalar = "sub 0 1;mul 4 2;add 5 3",
      .precision = Precision::kFollow,
      .wide = {"centre", "factor", "offset"},
      .samples = {{.in = {{5, 7}, {7}, {7}, {7}}},
                  {.in = {{3, 1, 2, 5}, {5}, {5}, {5}}},
                  {.in = {{0, 3}, {3}, {3}, {3}}},
                  {.in = {{5, 3}, {3}, {3}, {3}}, .dtypes = {kBFloat16, kFloat32, kFloat32, kFloat32}}},
  });
  catalog->Add({
      .name = "channel_scale",
      .doc = "x times a factor for every channel; beside a narrow x the factor stays fp32.",
      .axes = "x[.. c], factor[c] -> y[.. c]",
      .linear = {{"x"}},
      .check = [](const OpCall& call) { CheckNormChannels(call, 2, 1); },
      .grad = ScaleGrad,
      .reference = ScaledChannels,
      .scalar = "mul 0 1",
      .precision = Precision::kFollow,
      .wide = {"factor"},
      .samples = {{.in = {{5, 7}, {7}}},
                  {.in = {{3, 1, 2, 5}, {5}}},
                  {.in = {{0, 3}, {3}}},
                  {.in = {{5, 3}, {3}}, .dtypes = {kBFloat16, kFloat32}}},
  });
}

}  // namespace oneflow_like
