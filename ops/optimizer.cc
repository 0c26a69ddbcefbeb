// Optimizers, and the operators they are made of. The update operators read a weight, its gradient and their
// state (adam and adamw also the number of updates made before), and give the new weight and state, in place.
// Optional inputs behind are a factor on the gradient (clip_factor's, for clipping by global norm), whether
// to update at all (unscale's, for gradients that overflowed), and with attribute "rated" the learning rate.
#include "ops/language/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/glob.h"
#include "ops/language/numbers.h"
#include "ops/language/schedule.h"
#include "ops/manifest.h"
#include "ops/reference.h"

namespace oneflow_like {
namespace {

// With attribute "rated" the last input is the learning rate.
size_t HasRate(const Attrs& attrs) { return attrs.Int("rated", 0) != 0 ? 1 : 0; }

// The numbers of one act, from the attributes and the step.
struct Update {
  explicit Update(const KernelContext& context, size_t factor_input) {
    const Attrs& attrs = context.spec.attrs;
    const size_t inputs = context.in.size() - HasRate(attrs);
    lr = HasRate(attrs) ? LoadFloat(context.in.back(), 0)
                        : attrs.Float("lr") * ScheduleFactor(attrs, context.step);
    decay = attrs.Float("weight_decay", 0);
    if (inputs > factor_input) factor = LoadFloat(context.in[factor_input], 0);
    skipped = inputs > factor_input + 1 && !*context.in[factor_input + 1].as<bool>();
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
  const double momentum = context.spec.attrs.Float("momentum", 0);
  const bool nesterov = context.spec.attrs.Int("nesterov", 0) != 0;
  for (int64_t i = 0; i < w.elements(); ++i) {
    double weight = LoadFloat(w, i);
    double gradient = update.factor * LoadFloat(g, i) + update.decay * weight;
    double velocity = momentum * LoadFloat(v, i) + gradient;
    StoreFloat(context.out[0], i,
               weight - update.lr * (nesterov ? gradient + momentum * velocity : velocity));
    StoreFloat(context.out[1], i, velocity);
  }
  return {};
}

Status SgdPlainReference(const KernelContext& context) {
  const TensorArg &w = context.in[0], &g = context.in[1];
  Update update(context, 2);
  if (update.skipped) return KeepAll(context);
  for (int64_t i = 0; i < w.elements(); ++i) {
    double weight = LoadFloat(w, i);
    StoreFloat(context.out[0], i,
               weight - update.lr * (update.factor * LoadFloat(g, i) + update.decay * weight));
  }
  return {};
}

// kApart: decay shrinks the weight (adamw) instead of adding to the gradient (adam).
template <bool kApart>
Status AdamReference(const KernelContext& context) {
  const TensorArg &w = context.in[0], &g = context.in[1], &m = context.in[2], &v = context.in[3];
  Update update(context, 5);
  if (update.skipped) return KeepAll(context);
  const Attrs& attrs = context.spec.attrs;
  double beta1 = attrs.Float("beta1", 0.9), beta2 = attrs.Float("beta2", 0.999),
         eps = attrs.Float("eps", 1e-8);
  double steps = LoadFloat(context.in[4], 0) + 1;
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

// The state that an update operator keeps beside its weight, and whether it reads the number of updates.
struct Reads {
  std::vector<std::string> state;
  bool counts = false;
  size_t least() const { return 2 + state.size() + counts; }  // with the factor one more, with finite two
};

// "w[a b], g[a b], v[a b], factor[] -> new_w[a b], new_v[a b]": one label for each axis, so nothing
// broadcasts.
std::string UpdateAxes(const OpCall& call, const Reads& reads) {
  std::string axes = "[" + Letters(0, call.shapes[0].rank()) + "]";
  std::string in = "w" + axes + ", g" + axes, out = "new_w" + axes;
  for (const std::string& name : reads.state) {
    in += ", " + name + axes;
    out += ", new_" + name + axes;
  }
  if (reads.counts) in += ", updates[]";
  const size_t inputs = call.shapes.size() - HasRate(*call.attrs);
  if (inputs > reads.least()) in += ", factor[]";
  if (inputs > reads.least() + 1) in += ", finite[]";
  if (HasRate(*call.attrs)) in += ", rate[]";
  return in + " -> " + out;
}

void CheckNumbers(const std::string& who, const Attrs& attrs) {
  for (const char* name : {"lr", "weight_decay", "initial"})
    NeedNumber(who, name, attrs.Float(name, 0), Domain::kNotNegative);
  NeedNumber(who, "eps", attrs.Float("eps", 0), Domain::kDivisor);
  for (const char* name : {"momentum", "alpha", "beta1", "beta2"})
    NeedNumber(who, name, attrs.Float(name, 0), Domain::kBelowOne);
  constexpr int64_t kMostIterations = 1000;  // each is three products of the graph
  const int64_t iterations = attrs.Int("iterations", 1);
  if (iterations < 1 || iterations > kMostIterations)
    Fail(who, ": iterations is ", iterations, " but must be in [1, ", kMostIterations, "]");
}

void CheckUpdate(const OpCall& call, const Reads& reads) {
  const size_t rate = HasRate(*call.attrs), least = reads.least();
  if (call.shapes.size() != least + rate && call.shapes.size() != least + 2 + rate)
    RequireInputs(call, least + 1 + rate);
  const size_t inputs = call.shapes.size() - rate;
  if (rate) RequireFloating(call, inputs);
  for (size_t i = 0; i < std::min(inputs, least + 1); ++i) RequireFloating(call, i);
  if (inputs == least + 2 && call.dtypes[inputs - 1] != DType::kBool)
    Fail(call.who, ": finite is ", Name(call.dtypes[inputs - 1]), " but must be bool");
  RequireAttr(call, "lr");
  CheckSchedule(call.who, *call.attrs);
  CheckNumbers(call.who, *call.attrs);
}

// Weight, then state: each keeps its type.
std::vector<DType> UpdateTypes(const OpCall& call, size_t state) {
  std::vector<DType> types = {call.dtypes[0]};
  for (size_t i = 0; i < state; ++i) types.push_back(call.dtypes[2 + i]);
  return types;
}

void AddUpdate(Catalog* catalog, const std::string& name, const std::string& doc, const Reads& reads,
               double flops, const Attrs& attrs, KernelFn reference) {
  size_t n = reads.state.size();
  OpDef def{
      .name = name,
      .doc = doc,
      .axes_of = [reads](const OpCall& call) { return UpdateAxes(call, reads); },
      .dtypes = [n](const OpCall& call) { return UpdateTypes(call, n); },
      .check = [reads](const OpCall& call) { CheckUpdate(call, reads); },
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
    if (reads.counts) in.push_back({});
    if (clipped) in.push_back({});
    def.samples.push_back({.in = in, .attrs = clipped ? cosine : attrs, .low = 0.1, .high = 1});
    if (!clipped) continue;
    Sample finite = def.samples.back();
    finite.in.push_back({});
    finite.dtypes.assign(finite.in.size(), DType::kFloat32);
    finite.dtypes.back() = DType::kBool;
    finite.limit = 2;
    def.samples.push_back(finite);
    finite.in.push_back({});
    finite.dtypes.push_back(DType::kFloat32);
    finite.attrs.Set("rated", int64_t{1});
    def.samples.push_back(finite);
  }
  if (name == "sgd") {
    def.samples.push_back(def.samples[0]);
    def.samples.back().attrs.Set("nesterov", int64_t{1});
  }
  catalog->Add(def);
}

Status RateReference(const KernelContext& context) {
  const Attrs& attrs = context.spec.attrs;
  StoreFloat(context.out[0], 0, attrs.Float("lr") * ScheduleFactor(attrs, context.step));
  return {};
}

void CheckRate(const OpCall& call) {
  RequireInputs(call, 0);
  RequireAttr(call, "lr");
  NeedNumber(call.who, "lr", call.attrs->Float("lr"), Domain::kNotNegative);
  CheckSchedule(call.who, *call.attrs);
}

void AddRate(Catalog* catalog) {
  catalog->Add({
      .name = "learning_rate",
      .doc = "lr times what the schedule says of the step.",
      .axes = "-> rate[]",
      .dtypes = ResultTypes({DType::kFloat32}),
      .check = CheckRate,
      .reference = RateReference,
      .samples =
          {{.attrs = {{"lr", 0.1}}},
           {.attrs = {{"lr", 0.1}, {"schedule", "cosine"}, {"warmup", int64_t{2}}, {"total", int64_t{9}}}}},
  });
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
  AddUpdate(catalog, "sgd", "v = momentum v + g + weight_decay w; w -= lr v.", {{"v"}}, 6,
            {{"lr", 0.1}, {"momentum", 0.9}, {"weight_decay", 0.01}}, SgdReference);
  AddUpdate(catalog, "sgd_plain", "w -= lr (g + weight_decay w).", {{}}, 4,
            {{"lr", 0.1}, {"weight_decay", 0.01}}, SgdPlainReference);
  const Attrs adam = {{"lr", 0.01}, {"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}, {"weight_decay", 0.01}};
  AddUpdate(
      catalog, "adam",
      "Adam (Kingma and Ba 2015) with bias correction; weight decay adds to the gradient before the moments.",
      {{"m", "v"}, true}, 14, adam, AdamReference<false>);
  AddUpdate(
      catalog, "adamw",
      "Adam with weight decay apart from the gradient (Loshchilov and Hutter 2019): w -= lr weight_decay w.",
      {{"m", "v"}, true}, 14, adam, AdamReference<true>);
  AddRate(catalog);
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

namespace {

// Numbers of an update operator, with the weight decay of this weight.
Attrs NumbersFor(WeightUpdate& u, Attrs numbers) {
  numbers.Set("weight_decay", numbers.Float("weight_decay") * u.Decay());
  return numbers;
}

// Adam and AdamW differ in their operator alone.
Optimizer AdamLike(const std::string& op, const Attrs& numbers) {
  Optimizer optimizer(op, [=](WeightUpdate& u) {
    u.Fused(op, {u.State("adam_m"), u.State("adam_v")}, true, NumbersFor(u, numbers));
  });
  optimizer.numbers = numbers;
  return optimizer;
}

}  // namespace

Sgd::operator Optimizer() const {
  const Attrs plain = {{"lr", lr}, {"weight_decay", weight_decay}};
  Attrs numbers = plain;
  numbers.Set("momentum", momentum);
  if (nesterov) numbers.Set("nesterov", int64_t{1});
  Optimizer optimizer("sgd", [plain, numbers](WeightUpdate& u) {
    if (u.Rows().rows.defined())
      return u.FusedRows("sgd_rows", u.weight(), u.Rows().values, NumbersFor(u, plain));
    if (numbers.Float("momentum") == 0) return u.Fused("sgd_plain", {}, false, NumbersFor(u, plain));
    u.Fused("sgd", {u.State("sgd_v")}, false, NumbersFor(u, numbers));
  });
  optimizer.numbers = numbers;
  optimizer.by_rows = momentum == 0 && weight_decay == 0;
  return optimizer;
}

Adam::operator Optimizer() const {
  return AdamLike(
      "adam", {{"lr", lr}, {"beta1", beta1}, {"beta2", beta2}, {"eps", eps}, {"weight_decay", weight_decay}});
}

AdamW::operator Optimizer() const {
  return AdamLike(
      "adamw",
      {{"lr", lr}, {"beta1", beta1}, {"beta2", beta2}, {"eps", eps}, {"weight_decay", weight_decay}});
}

Optimizer Groups(const std::vector<std::pair<std::string, Optimizer>>& groups) {
  if (groups.empty()) Fail("Groups: no group is given; the last one may be {\"*\", AdamW{}}");
  Optimizer all("groups", [groups](WeightUpdate& u) {
    for (const auto& [pattern, optimizer] : groups)
      if (MatchesGlob(pattern, u.path())) return optimizer.update(u);
    Fail("no pattern of Groups matches weight '", u.path(), "'; the last group may be {\"*\", AdamW{}}");
  });
  for (const auto& [pattern, optimizer] : groups) {
    all.patterns.push_back(pattern);
    all.others.push_back(optimizer);
  }
  return all;
}

void CheckOptimizer(const std::string& who, const Optimizer& optimizer, const Schedule& schedule) {
  Attrs attrs = optimizer.numbers;
  SetSchedule(schedule, &attrs);
  CheckSchedule(who, attrs);
  if (!optimizer.update)
    Fail(who, ": optimizer '", optimizer.name, "' has no function that updates a weight");
  if (!optimizer.numbers.map().empty()) CheckNumbers(who, attrs);
  for (size_t i = 0; i < optimizer.others.size(); ++i)
    CheckOptimizer(
        Cat(who, ": ", optimizer.patterns.empty() ? "others" : Cat("group \"", optimizer.patterns[i], "\"")),
        optimizer.others[i], schedule);
}

}  // namespace oneflow_like
