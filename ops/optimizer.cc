// The update operators: they read a weight, its gradient and their state, and give the new weight and state,
// in place. Two last, optional inputs are a factor on the gradient (clip_factor's, for clipping by global
// norm), and whether to update at all (unscale's, for gradients that overflowed).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/manifest.h"
#include "ops/reference.h"
#include "ops/schedule.h"

namespace oneflow_like {
namespace {

// The numbers of one act, from the attributes and the step.
struct Update {
  explicit Update(const KernelContext& context, size_t factor_input) {
    const Attrs& attrs = context.spec.attrs;
    lr = attrs.Float("lr") * ScheduleFactor(attrs, context.step);
    decay = attrs.Float("weight_decay", 0);
    if (context.in.size() > factor_input) factor = LoadFloat(context.in[factor_input], 0);
    skipped = context.in.size() > factor_input + 1 && !*context.in[factor_input + 1].as<bool>();
  }
  double lr, decay, factor = 1;
  bool skipped = false;
};

// What a step that is skipped leaves: weight and state as they were.
Status KeepAll(const KernelContext& context) {
  for (size_t o = 0; o < context.out.size(); ++o) {
    const TensorArg& from = context.in[o == 0 ? 0 : o + 1];
    if (from.data != context.out[o].data && from.elements() > 0)
      std::memcpy(context.out[o].data, from.data, from.elements() * SizeOf(from.dtype));
  }
  return {};
}

Status SgdReference(const KernelContext& context) {
  const TensorArg &w = context.in[0], &g = context.in[1], &v = context.in[2];
  Update update(context, 3);
  if (update.skipped) return KeepAll(context);
  double momentum = context.spec.attrs.Float("momentum", 0);
  for (int64_t i = 0; i < w.elements(); ++i) {
    double weight = LoadFloat(w, i);
    double gradient = update.factor * LoadFloat(g, i) + update.decay * weight;
    double velocity = momentum * LoadFloat(v, i) + gradient;
    StoreFloat(context.out[0], i, weight - update.lr * velocity);
    StoreFloat(context.out[1], i, velocity);
  }
  return {};
}

// kApart: decay shrinks the weight (adamw) instead of adding to the gradient (adam).
template <bool kApart>
Status AdamReference(const KernelContext& context) {
  const TensorArg &w = context.in[0], &g = context.in[1], &m = context.in[2], &v = context.in[3];
  Update update(context, 4);
  if (update.skipped) return KeepAll(context);
  const Attrs& attrs = context.spec.attrs;
  double beta1 = attrs.Float("beta1", 0.9), beta2 = attrs.Float("beta2", 0.999),
         eps = attrs.Float("eps", 1e-8);
  double steps = static_cast<double>(context.step + 1);
  double correct1 = 1 - std::pow(beta1, steps), correct2 = 1 - std::pow(beta2, steps);
  for (int64_t i = 0; i < w.elements(); ++i) {
    double weight = LoadFloat(w, i), gradient = update.factor * LoadFloat(g, i);
    if (!kApart) gradient += update.decay * weight;
    double mean = beta1 * LoadFloat(m, i) + (1 - beta1) * gradient;
    double square = beta2 * LoadFloat(v, i) + (1 - beta2) * gradient * gradient;
    if (kApart) weight -= update.lr * update.decay * weight;
    StoreFloat(context.out[0], i,
               weight - update.lr * (mean / correct1) / (std::sqrt(square / correct2) + eps));
    StoreFloat(context.out[1], i, mean);
    StoreFloat(context.out[2], i, square);
  }
  return {};
}

// "w[a b], g[a b], v[a b], factor[] -> new_w[a b], new_v[a b]": one label for each axis, so nothing
// broadcasts.
std::string UpdateAxes(const OpCall& call, const std::vector<std::string>& state) {
  std::string axes = "[" + Letters(0, call.shapes[0].rank()) + "]";
  std::string in = "w" + axes + ", g" + axes, out = "new_w" + axes;
  for (const std::string& name : state) {
    in += ", " + name + axes;
    out += ", new_" + name + axes;
  }
  if (call.shapes.size() >= 3 + state.size()) in += ", factor[]";
  if (call.shapes.size() == 4 + state.size()) in += ", finite[]";
  return in + " -> " + out;
}

void RequireFraction(const OpCall& call, const std::string& name, double otherwise) {
  double value = call.attrs->Float(name, otherwise);
  if (!(value >= 0 && value < 1)) Fail(call.who, ": ", name, " is ", value, " but must be in [0, 1)");
}

void CheckUpdate(const OpCall& call, size_t state) {
  size_t least = 2 + state, inputs = call.shapes.size();  // with the factor one more, with finite two
  if (inputs != least && inputs != least + 2) RequireInputs(call, least + 1);
  for (size_t i = 0; i < std::min(inputs, least + 1); ++i) RequireFloating(call, i);
  if (inputs == least + 2 && call.dtypes.back() != DType::kBool)
    Fail(call.who, ": finite is ", Name(call.dtypes.back()), " but must be bool");
  RequireAttr(call, "lr");
  CheckSchedule(call.who, *call.attrs);
  for (const char* name : {"lr", "eps", "weight_decay"}) {
    double number = call.attrs->Float(name, 0);
    if (!(number >= 0 && std::isfinite(number)))
      Fail(call.who, ": ", name, " is ", number, " but must be 0 or more, and finite");
  }
  RequireFraction(call, "momentum", 0);
  RequireFraction(call, "beta1", 0.9);
  RequireFraction(call, "beta2", 0.999);
}

// Weight, then state: each keeps its type.
std::vector<DType> UpdateTypes(const OpCall& call, size_t state) {
  std::vector<DType> types = {call.dtypes[0]};
  for (size_t i = 0; i < state; ++i) types.push_back(call.dtypes[2 + i]);
  return types;
}

void AddUpdate(Catalog* catalog, const std::string& name, const std::string& doc,
               std::vector<std::string> state, double flops, const Attrs& attrs, KernelFn reference) {
  size_t n = state.size();
  OpDef def{
      .name = name,
      .doc = doc,
      .axes_of = [state](const OpCall& call) { return UpdateAxes(call, state); },
      .dtypes = [n](const OpCall& call) { return UpdateTypes(call, n); },
      .check = [n](const OpCall& call) { CheckUpdate(call, n); },
      .flops = [flops](const BoundRule& rule) { return flops * rule.Volume(); },
      .reference = reference,
      .inplace = {{0, 0}},
  };
  for (size_t i = 0; i < n; ++i) def.inplace.push_back({static_cast<int>(1 + i), static_cast<int>(2 + i)});
  Attrs cosine = attrs;
  cosine.Set("schedule", "cosine");
  cosine.Set("warmup", int64_t{2});
  cosine.Set("total", int64_t{10});
  for (const Dims& shape : {Dims{5, 7}, Dims{3}, Dims{1, 3}, Dims{0, 3}}) {
    bool clipped = shape.rank() == 2;
    std::vector<Dims> in(2 + n, shape);
    if (clipped) in.push_back({});
    def.samples.push_back({.in = in, .attrs = clipped ? cosine : attrs, .low = 0.1, .high = 1});
    if (!clipped) continue;
    Sample finite = def.samples.back();
    finite.in.push_back({});
    finite.dtypes.assign(finite.in.size(), DType::kFloat32);
    finite.dtypes.back() = DType::kBool;
    finite.limit = 2;
    def.samples.push_back(finite);
  }
  catalog->Add(def);
}

Status ClipFactorReference(const KernelContext& context) {
  double norm = std::sqrt(LoadFloat(context.in[0], 0));
  double factor = context.spec.attrs.Float("max_norm") / (norm + 1e-6);
  StoreFloat(context.out[0], 0, factor > 1 ? 1 : factor);  // a NaN stays one
  StoreFloat(context.out[1], 0, norm);
  return {};
}

}  // namespace

void AddOptimizers(Catalog* catalog) {
  AddUpdate(catalog, "sgd", "v = momentum v + g + weight_decay w; w -= lr v.", {"v"}, 6,
            {{"lr", 0.1}, {"momentum", 0.9}, {"weight_decay", 0.01}}, SgdReference);
  const Attrs adam = {{"lr", 0.01}, {"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}, {"weight_decay", 0.01}};
  AddUpdate(
      catalog, "adam",
      "Adam (Kingma and Ba 2015) with bias correction; weight decay adds to the gradient before the moments.",
      {"m", "v"}, 14, adam, AdamReference<false>);
  AddUpdate(
      catalog, "adamw",
      "Adam with weight decay apart from the gradient (Loshchilov and Hutter 2019): w -= lr weight_decay w.",
      {"m", "v"}, 14, adam, AdamReference<true>);
  catalog->Add({
      .name = "clip_factor",
      .doc = "From a sum of squares: the factor min(1, max_norm / (norm + 1e-6)) that clips to a norm, and "
             "the norm.",
      .axes = "s[] -> factor[], norm[]",
      .check =
          [](const OpCall& call) {
            RequireInputs(call, 1);
            RequireFloating(call);
            RequireAttr(call, "max_norm");
            double max_norm = call.attrs->Float("max_norm");
            if (!(max_norm > 0)) Fail(call.who, ": max_norm is ", max_norm, " but must be greater than 0");
          },
      .reference = ClipFactorReference,
      .samples = {{.in = {Dims{}}, .attrs = {{"max_norm", 0.5}}, .low = 1, .high = 9},
                  {.in = {Dims{}}, .attrs = {{"max_norm", 5.0}}, .low = 0, .high = 1}},
  });
}

}  // namespace oneflow_like
