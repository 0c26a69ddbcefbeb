// The functions of ops/language/functional.h: each turns its arguments into attributes and adds one node.
// Axes are made non-negative here, so that operators see only axes that exist.
#include "ops/language/functional.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/random.h"
#include "ops/language/calls.h"
#include "ops/language/expressions.h"
#include "ops/language/numbers.h"
#include "ops/language/sparse.h"

namespace oneflow_like {

std::string Who(const char* op, const Here& at) { return SourceLine(at).Who(op); }

// The graph of an operand; every function with operands begins with it.
GraphBuilder* GraphOf(const char* op, const Tensor& x, const Here& at) {
  return NeedGiven(op, x.defined() ? "" : FirstOperandName(op).c_str(), x, at);
}

Tensor One(const char* op, const std::vector<Tensor>& in, const Attrs& attrs, const Here& at) {
  if (in.empty()) Fail(Who(op, at), ": takes at least 1 input but was given 0");
  return Apply(GraphOf(op, in[0], at), op, in, attrs, at)[0];
}

int64_t NormalAxis(const char* op, int64_t axis, const Tensor& x, const Here& at, int64_t more) {
  GraphOf(op, x, at);
  int64_t rank = x.shape().rank() + more;
  if (axis < -rank || axis >= rank) {
    Fail(Who(op, at), ": axis ", axis, " does not exist, its ", more ? "result of " : "operand ",
         x.shape().str(), " has ", rank, rank == 1 ? " axis" : " axes");
  }
  return axis < 0 ? axis + rank : axis;
}

std::vector<int64_t> NormalAxes(const char* op, std::vector<int64_t> axes, const Tensor& x, const Here& at) {
  GraphOf(op, x, at);
  if (axes.empty()) {
    for (int i = 0; i < x.shape().rank(); ++i) axes.push_back(i);
  }
  for (int64_t& axis : axes) axis = NormalAxis(op, axis, x, at);
  for (size_t i = 0; i < axes.size(); ++i) {
    if (std::find(axes.begin(), axes.begin() + static_cast<long>(i), axes[i]) !=
        axes.begin() + static_cast<long>(i))
      Fail(Who(op, at), ": axis ", axes[i], " is named twice");
  }
  return axes;
}

GraphBuilder* NeedGiven(const char* op, const char* operand, const Tensor& x, const Here& at) {
  if (!x.defined()) Fail(Who(op, at), ": ", operand, " is a Tensor that was never given a value");
  return x.graph();
}

void NeedFloating(const char* op, const char* operand, const Tensor& x, const Here& at) {
  NeedGiven(op, operand, x, at);
  if (!IsFloating(x.dtype()))
    Fail(Who(op, at), ": ", operand, " is ", Name(x.dtype()), " but must be of a floating type; cast it");
}

void NeedInteger(const char* op, const char* operand, const Tensor& x, const Here& at) {
  NeedGiven(op, operand, x, at);
  if (x.dtype() != DType::kInt32 && x.dtype() != DType::kInt64)
    Fail(Who(op, at), ": ", operand, " is ", Name(x.dtype()), " but must be i32 or i64");
}

void NeedBool(const char* op, const char* operand, const Tensor& x, const Here& at) {
  NeedGiven(op, operand, x, at);
  if (x.dtype() != DType::kBool)
    Fail(Who(op, at), ": ", operand, " is ", Name(x.dtype()), " but must be bool; compare it with a number");
}

int64_t Count(const Tensor& x, const std::vector<int64_t>& axes) {
  int64_t count = 1;
  for (int64_t axis : axes) count *= x.shape()[static_cast<int>(axis)];
  return count;
}

Tensor Dropped(Tensor x, const std::vector<int64_t>& axes, bool keep, const Here& at) {
  if (keep || axes.empty()) return x;
  Dims shape;
  for (int axis = 0; axis < x.shape().rank(); ++axis)
    if (std::find(axes.begin(), axes.end(), axis) == axes.end()) shape.push_back(x.shape()[axis]);
  return reshape(x, shape, at);
}

namespace {

Tensor ReduceBy(const char* op, Tensor x, std::vector<int64_t> axes, bool keep, const Here& at) {
  axes = NormalAxes(op, std::move(axes), x, at);
  return One(op, {x}, {{"axes", axes}, {"keep", int64_t{keep}}}, at);
}

// A shape the user asks for, as an attribute.
std::vector<int64_t> Wanted(const char* op, const Dims& shape, const Here& at) {
  RequireExtents(Who(op, at), shape);
  return std::vector<int64_t>(shape.begin(), shape.end());
}

void NeedDeviation(const char* op, double stddev, const Here& at) {
  NeedNumber(Who(op, at), "stddev", stddev, Domain::kNotNegative);
}

Tensor Source(GraphBuilder* graph, const char* op, const Attrs& attrs, const Here& at) {
  return Apply(graph, op, {}, attrs, at)[0];
}

}  // namespace

std::vector<Tensor> Apply(GraphBuilder* graph, const std::string& op, const std::vector<Tensor>& in,
                          const Attrs& attrs, Here at) {
  // What reads a value of a loop's body belongs to that.
  for (const Tensor& x : in)
    for (const GraphBuilder* g = x.graph(); g != nullptr; g = g->outer())
      if (g == graph) graph = x.graph();
  for (size_t i = 0; i < in.size(); ++i) {
    if (!in[i].defined()) {
      Fail(Who(op.c_str(), at), ": ", OperandName(op, i), " is a Tensor that was never given a value");
    }
    if (graph != nullptr && !graph->Take(in[i]).defined())
      Fail(Who(op.c_str(), at), ": ", OperandName(op, i),
           " belongs to another model, or to another graph of this one", graph->OfAnother(),
           in[i].graph()->OfAnother());
  }
  if (graph == nullptr) Fail(Who(op.c_str(), at), ": no graph was given to make the tensor in");
  return graph->AddNode(op, in, attrs, SourceLine(at));
}

// --- Products ------------------------------------------------------------------------------------

Tensor matmul(Tensor a, Tensor b, Here at) { return One("matmul", {a, b}, {}, at); }

// --- Elementwise ---------------------------------------------------------------------------------

Tensor add(Tensor a, Tensor b, Here at) { return One("add", {a, b}, {}, at); }
Tensor sub(Tensor a, Tensor b, Here at) { return One("sub", {a, b}, {}, at); }
Tensor mul(Tensor a, Tensor b, Here at) { return One("mul", {a, b}, {}, at); }
Tensor div(Tensor a, Tensor b, Here at) { return One("div", {a, b}, {}, at); }
Tensor maximum(Tensor a, Tensor b, Here at) { return One("maximum", {a, b}, {}, at); }
Tensor minimum(Tensor a, Tensor b, Here at) { return One("minimum", {a, b}, {}, at); }
Tensor pow(Tensor a, Tensor b, Here at) { return One("pow", {a, b}, {}, at); }
Tensor add_n(const std::vector<Tensor>& terms, Here at) { return One("add_n", terms, {}, at); }
Tensor scale(Tensor x, double factor, Here at) { return One("scale", {x}, {{"factor", factor}}, at); }
Tensor shift(Tensor x, double offset, Here at) { return One("shift", {x}, {{"offset", offset}}, at); }
Tensor neg(Tensor x, Here at) { return One("neg", {x}, {}, at); }
Tensor equal(Tensor a, Tensor b, Here at) { return One("equal", {a, b}, {}, at); }
Tensor not_equal(Tensor a, Tensor b, Here at) { return One("not_equal", {a, b}, {}, at); }
Tensor less(Tensor a, Tensor b, Here at) { return One("less", {a, b}, {}, at); }
Tensor less_equal(Tensor a, Tensor b, Here at) { return One("less_equal", {a, b}, {}, at); }
Tensor greater(Tensor a, Tensor b, Here at) { return One("greater", {a, b}, {}, at); }
Tensor greater_equal(Tensor a, Tensor b, Here at) { return One("greater_equal", {a, b}, {}, at); }
Tensor remainder(Tensor a, Tensor b, Here at) { return One("remainder", {a, b}, {}, at); }
Tensor floor_divide(Tensor a, Tensor b, Here at) { return One("floor_divide", {a, b}, {}, at); }
Tensor logical_and(Tensor a, Tensor b, Here at) { return One("logical_and", {a, b}, {}, at); }
Tensor logical_or(Tensor a, Tensor b, Here at) { return One("logical_or", {a, b}, {}, at); }
Tensor logical_xor(Tensor a, Tensor b, Here at) { return One("logical_xor", {a, b}, {}, at); }
Tensor logical_not(Tensor x, Here at) { return One("logical_not", {x}, {}, at); }
Tensor bitwise_and(Tensor a, Tensor b, Here at) { return One("bitwise_and", {a, b}, {}, at); }
Tensor bitwise_or(Tensor a, Tensor b, Here at) { return One("bitwise_or", {a, b}, {}, at); }
Tensor bitwise_xor(Tensor a, Tensor b, Here at) { return One("bitwise_xor", {a, b}, {}, at); }
Tensor bitwise_not(Tensor x, Here at) { return One("bitwise_not", {x}, {}, at); }
Tensor left_shift(Tensor a, Tensor b, Here at) { return One("left_shift", {a, b}, {}, at); }
Tensor right_shift(Tensor a, Tensor b, Here at) { return One("right_shift", {a, b}, {}, at); }
Tensor isfinite(Tensor x, Here at) { return One("isfinite", {x}, {}, at); }
Tensor isnan(Tensor x, Here at) { return One("isnan", {x}, {}, at); }
Tensor where(Tensor condition, Tensor a, Tensor b, Here at) {
  return One("where", {condition, a, b}, {}, at);
}
Tensor logaddexp(Tensor a, Tensor b, Here at) { return One("logaddexp", {a, b}, {}, at); }
Tensor atan2(Tensor y, Tensor x, Here at) { return One("atan2", {y, x}, {}, at); }
Tensor exp2(Tensor x, Here at) { return One("exp2", {x}, {}, at); }
Tensor erfc(Tensor x, Here at) { return One("erfc", {x}, {}, at); }
Tensor asinh(Tensor x, Here at) { return One("asinh", {x}, {}, at); }
Tensor acosh(Tensor x, Here at) { return One("acosh", {x}, {}, at); }
Tensor erfinv(Tensor x, Here at) { return One("erfinv", {x}, {}, at); }
Tensor lgamma(Tensor x, Here at) { return One("lgamma", {x}, {}, at); }
Tensor digamma(Tensor x, Here at) { return One("digamma", {x}, {}, at); }
Tensor log2(Tensor x, Here at) { return One("log2", {x}, {}, at); }
Tensor exp(Tensor x, Here at) { return One("exp", {x}, {}, at); }
Tensor log(Tensor x, Here at) { return One("log", {x}, {}, at); }
Tensor sqrt(Tensor x, Here at) { return One("sqrt", {x}, {}, at); }
Tensor rsqrt(Tensor x, Here at) { return One("rsqrt", {x}, {}, at); }
Tensor square(Tensor x, Here at) { return One("square", {x}, {}, at); }
Tensor abs(Tensor x, Here at) { return One("abs", {x}, {}, at); }
Tensor sign(Tensor x, Here at) { return One("sign", {x}, {}, at); }
Tensor reciprocal(Tensor x, Here at) { return One("reciprocal", {x}, {}, at); }
Tensor log1p(Tensor x, Here at) { return One("log1p", {x}, {}, at); }
Tensor expm1(Tensor x, Here at) { return One("expm1", {x}, {}, at); }
Tensor sin(Tensor x, Here at) { return One("sin", {x}, {}, at); }
Tensor cos(Tensor x, Here at) { return One("cos", {x}, {}, at); }
Tensor tan(Tensor x, Here at) { return One("tan", {x}, {}, at); }
Tensor floor(Tensor x, Here at) { return One("floor", {x}, {}, at); }
Tensor ceil(Tensor x, Here at) { return One("ceil", {x}, {}, at); }
Tensor round(Tensor x, Here at) { return One("round", {x}, {}, at); }
Tensor tanh(Tensor x, Here at) { return One("tanh", {x}, {}, at); }
Tensor erf(Tensor x, Here at) { return One("erf", {x}, {}, at); }
Tensor sigmoid(Tensor x, Here at) { return One("sigmoid", {x}, {}, at); }
Tensor relu(Tensor x, Here at) { return One("relu", {x}, {}, at); }
Tensor gelu(Tensor x, Here at) { return One("gelu", {x}, {}, at); }
Tensor gelu_erf(Tensor x, Here at) { return One("gelu_erf", {x}, {}, at); }
Tensor silu(Tensor x, Here at) { return One("silu", {x}, {}, at); }
Tensor softplus(Tensor x, Here at) { return One("softplus", {x}, {}, at); }
Tensor leaky_relu(Tensor x, double slope, Here at) { return One("leaky_relu", {x}, {{"slope", slope}}, at); }
Tensor elu(Tensor x, double alpha, Here at) { return One("elu", {x}, {{"alpha", alpha}}, at); }
Tensor hardsigmoid(Tensor x, Here at) { return One("hardsigmoid", {x}, {}, at); }
Tensor hardswish(Tensor x, Here at) { return One("hardswish", {x}, {}, at); }
Tensor mish(Tensor x, Here at) { return One("mish", {x}, {}, at); }
Tensor cast(Tensor x, DType dtype, Here at) {
  GraphOf("cast", x, at);
  NeedType(Who("cast", at), dtype);
  if (x.dtype() == dtype) return x;
  return One("cast", {x}, {{"dtype", std::string(Name(dtype))}}, at);
}

// --- Reductions ----------------------------------------------------------------------------------

Tensor sum(Tensor x, std::vector<int64_t> axes, bool keep, Here at) {
  return ReduceBy("sum", x, std::move(axes), keep, at);
}
Tensor mean(Tensor x, std::vector<int64_t> axes, bool keep, Here at) {
  return ReduceBy("mean", x, std::move(axes), keep, at);
}
Tensor max(Tensor x, std::vector<int64_t> axes, bool keep, Here at) {
  return ReduceBy("max", x, std::move(axes), keep, at);
}
Tensor min(Tensor x, std::vector<int64_t> axes, bool keep, Here at) {
  return ReduceBy("min", x, std::move(axes), keep, at);
}
Tensor argmax(Tensor x, int64_t axis, Here at) {
  return One("argmax", {x}, {{"axis", NormalAxis("argmax", axis, x, at)}}, at);
}
Tensor sum_to(Tensor x, const Dims& shape, Here at) {
  return One("sum_to", {x}, {{"shape", Wanted("sum_to", shape, at)}}, at);
}
Tensor broadcast_to(Tensor x, const Dims& shape, Here at) {
  return One("broadcast_to", {x}, {{"shape", Wanted("broadcast_to", shape, at)}}, at);
}

// --- Shape ---------------------------------------------------------------------------------------

Tensor reshape(Tensor x, const Dims& shape, Here at) {
  GraphOf("reshape", x, at);
  Dims to = shape;
  int unknown = -1;
  int64_t known = 1;
  for (int i = 0; i < to.rank(); ++i) {
    if (to[i] != -1) continue;
    if (unknown >= 0)
      Fail(Who("reshape", at), ": axes ", unknown, " and ", i, " are both -1, only one may be");
    unknown = i;
    to[i] = 1;
  }
  Wanted("reshape", to, at);  // so that its product is a number
  for (int64_t extent : to) known *= extent;
  int64_t elements = x.shape().elements();
  if (unknown >= 0) {
    if (known == 0 || elements % known != 0) {
      Fail(Who("reshape", at), ": ", x.shape().str(), " has ", elements, " elements, which do not divide by ",
           known, " to settle axis ", unknown, " of ", shape.str());
    }
    to[unknown] = elements / known;
  }
  return One("reshape", {x}, {{"shape", Wanted("reshape", to, at)}}, at);
}

Tensor transpose(Tensor x, std::vector<int64_t> order, Here at) {
  for (int64_t& axis : order) axis = NormalAxis("transpose", axis, x, at);
  return One("transpose", {x}, {{"order", order}}, at);
}

namespace {

// The part as [begin, end) of numbers that are not negative, or an Error in the user's numbers.
Attrs PartOf(Tensor x, int64_t axis, int64_t begin, int64_t end, int64_t step, const Here& at) {
  axis = NormalAxis("slice", axis, x, at);
  const int64_t extent = x.shape()[static_cast<int>(axis)];
  const int64_t first = begin < 0 ? begin + extent : begin;
  const int64_t last = end == kEnd ? extent : end < 0 ? end + extent : end;
  if (step < 1) Fail(Who("slice", at), ": step is ", step, " but must be at least 1");
  if (first < 0 || first > last || last > extent) {
    Fail(Who("slice", at), ": [", begin, ", ", end == kEnd ? std::string("end") : std::to_string(end),
         ") is not a part of axis ", axis, ", which is ", extent);
  }
  return {{"axis", axis}, {"begin", first}, {"end", last}};
}

}  // namespace

Tensor slice(Tensor x, int64_t axis, int64_t begin, int64_t end, Here at) {
  return One("slice", {x}, PartOf(x, axis, begin, end, 1, at), at);
}

Tensor slice(Tensor x, int64_t axis, int64_t begin, int64_t end, int64_t step, Here at) {
  Attrs attrs = PartOf(x, axis, begin, end, step, at);
  if (step != 1) attrs.Set("step", step);
  return One("slice", {x}, attrs, at);
}

Tensor concat(const std::vector<Tensor>& parts, int64_t axis, Here at) {
  if (parts.empty()) Fail(Who("concat", at), ": takes at least 1 part but was given 0");
  return One("concat", parts, {{"axis", NormalAxis("concat", axis, parts[0], at)}}, at);
}

std::vector<Tensor> split(Tensor x, int64_t axis, int64_t parts, Here at) {
  at = at.In("split");
  axis = NormalAxis("split", axis, x, at);
  int64_t extent = x.shape()[static_cast<int>(axis)];
  if (parts < 1 || extent % parts != 0) {
    Fail(Who("split", at), ": axis ", axis, " is ", extent, " and does not divide into ", parts,
         " equal parts");
  }
  constexpr int64_t kMostParts = 1 << 16;  // each is an operator of its own
  if (parts > kMostParts)
    Fail(Who("split", at), ": ", parts, " parts of axis ", axis, " are more than ", kMostParts);
  std::vector<Tensor> pieces;
  int64_t part = extent / parts;
  for (int64_t i = 0; i < parts; ++i) pieces.push_back(slice(x, axis, i * part, (i + 1) * part, at));
  return pieces;
}

Tensor pad(Tensor x, int64_t axis, int64_t before, int64_t after, Here at) {
  axis = NormalAxis("pad", axis, x, at);
  return One("pad", {x}, {{"axis", axis}, {"before", before}, {"after", after}}, at);
}

Tensor gather(Tensor table, Tensor ids, Here at) {
  NeedInteger("gather", "ids", ids, at);
  return One("gather", {table, ids}, {}, at);
}
Tensor pick(Tensor x, Tensor ids, Here at) {
  NeedInteger("pick", "ids", ids, at);
  return One("pick", {x, ids}, {}, at);
}
Tensor one_hot(Tensor ids, int64_t classes, Here at) {
  NeedInteger("one_hot", "ids", ids, at);
  return One("one_hot", {ids}, {{"classes", classes}}, at);
}

// --- Constants and random tensors ----------------------------------------------------------------

Tensor full(GraphBuilder* graph, const Dims& shape, double value, DType dtype, Here at) {
  NeedType(Who("full", at), dtype);
  if (!Holds(dtype, value))
    Fail(Who("full", at), ": value is ", value, ", which is no number of type ", Name(dtype));
  return Source(graph, "full",
                {{"shape", Wanted("full", shape, at)}, {"value", value}, {"dtype", std::string(Name(dtype))}},
                at);
}
Tensor uniform(GraphBuilder* graph, const Dims& shape, double low, double high, Here at) {
  if (!(low <= high)) Fail(Who("uniform", at), ": low is ", low, " but high is ", high);
  return Source(graph, "uniform", {{"shape", Wanted("uniform", shape, at)}, {"low", low}, {"high", high}},
                at);
}
Tensor normal(GraphBuilder* graph, const Dims& shape, double mean, double stddev, Here at) {
  NeedDeviation("normal", stddev, at);
  return Source(graph, "normal", {{"shape", Wanted("normal", shape, at)}, {"mean", mean}, {"stddev", stddev}},
                at);
}
Tensor truncated_normal(GraphBuilder* graph, const Dims& shape, double mean, double stddev, Here at) {
  NeedDeviation("truncated_normal", stddev, at);
  return Source(graph, "truncated_normal",
                {{"shape", Wanted("truncated_normal", shape, at)}, {"mean", mean}, {"stddev", stddev}}, at);
}

// --- Neural networks -----------------------------------------------------------------------------

Tensor softmax(Tensor x, Here at) { return One("softmax", {x}, {}, at); }
Tensor log_softmax(Tensor x, Here at) { return One("log_softmax", {x}, {}, at); }
Tensor cross_entropy(Tensor logits, Tensor target, Here at) {
  NeedInteger("cross_entropy", "target", target, at);
  return One("cross_entropy", {logits, target}, {}, at);
}
Tensor layer_norm(Tensor x, Tensor gamma, Tensor beta, double eps, Here at) {
  return One("layer_norm", {x, gamma, beta}, {{"eps", eps}}, at);
}
Tensor rms_norm(Tensor x, Tensor gamma, double eps, Here at) {
  return One("rms_norm", {x, gamma}, {{"eps", eps}}, at);
}
Tensor embedding(Tensor table, Tensor ids, Here at) {
  NeedInteger("embedding", "ids", ids, at);
  return One("embedding", {table, ids}, {}, at);
}

namespace {

// The bias, with minus infinity where mask or lengths hide a key.
Tensor BiasOf(const AttentionOptions& options, const Tensor& q, const Tensor& k, const Here& at) {
  Tensor bias = options.bias;
  const auto keep = [&](Tensor seen) {
    Tensor none = full(seen.graph(), {}, 0, DType::kFloat32, at);
    Tensor more = where(seen, none, -std::numeric_limits<double>::infinity(), at);
    bias = bias.defined() ? add(bias, more, at) : more;
  };
  if (options.mask.defined()) {
    NeedBool("attention", "mask", options.mask, at);
    const Dims mask = options.mask.shape();
    if (q.shape().rank() == 4 && k.shape().rank() == 4) {
      const Dims scores = {q.shape()[0], q.shape()[2], q.shape()[1], k.shape()[1]};
      bool fits = mask.rank() <= 4;
      for (int a = 0; fits && a < mask.rank(); ++a)
        fits = mask[a] == 1 || mask[a] == scores[4 - mask.rank() + a];
      if (!fits)
        Fail(Who("attention", at), ": mask ", mask.str(), " is not broadcast to the scores [b h s t], here ",
             scores.str());
    }
    keep(options.mask);
  }
  if (options.key_lengths.defined()) {
    NeedInteger("attention", "key_lengths", options.key_lengths, at);
    GraphOf("attention", k, at);
    const Dims lengths = options.key_lengths.shape(), keys = k.shape();
    if (keys.rank() != 4 || lengths != Dims{keys[0]})
      Fail(Who("attention", at), ": key_lengths is ", lengths.str(),
           " but must have a number for each of the ", "sequences of k ", keys.str());
    Tensor place = arange(k.graph(), 0, static_cast<double>(keys[1]), 1, options.key_lengths.dtype(), at);
    keep(less(place, reshape(options.key_lengths, {keys[0], 1, 1, 1}, at), at));
  }
  return bias;
}

}  // namespace

Tensor attention(Tensor q, Tensor k, Tensor v, const AttentionOptions& options, Here at) {
  GraphOf("attention", q, at);
  double factor = options.scale;
  const int64_t width = q.shape().rank() > 0 ? q.shape().back() : 1;
  if (factor == 0 && width == 0) Fail(Who("attention", at), ": q ", q.shape().str(), " has heads of width 0");
  if (factor == 0) factor = 1 / std::sqrt(static_cast<double>(width));
  Attrs attrs = {{"causal", int64_t{options.causal}}, {"dropout", options.dropout}, {"scale", factor}};
  if (!options.draws.empty()) attrs.Set("key", DrawKey(options.draws));
  if (options.window != 0) attrs.Set("window", options.window);
  std::vector<Tensor> in = {q, k, v};
  std::string masks;
  const std::pair<const char*, Tensor> operands[] = {{"bias", BiasOf(options, q, k, at)},
                                                     {"query_positions", options.query_positions},
                                                     {"key_positions", options.key_positions},
                                                     {"query_documents", options.query_documents},
                                                     {"key_documents", options.key_documents}};
  for (const auto& [name, operand] : operands) {
    if (!operand.defined()) continue;
    in.push_back(operand);
    masks += (masks.empty() ? "" : " ") + std::string(name);
  }
  if (!masks.empty()) attrs.Set("masks", masks);
  return One("attention", in, attrs, at);
}

Tensor rope(Tensor x, Tensor positions, const RopeOptions& options, Here at) {
  NeedFloating("rope", "x", x, at);
  NeedInteger("rope", "positions", positions, at);
  Attrs attrs = {{"base", options.base}};
  if (options.interleaved) attrs.Set("interleaved", int64_t{1});
  if (options.dims != 0) attrs.Set("dims", options.dims);
  if (options.scale != 1) attrs.Set("scale", options.scale);
  if (options.trained_length != 0) {
    attrs.Set("trained_length", options.trained_length);
    attrs.Set("factor", options.factor);
    attrs.Set("low_turns", options.low_turns);
    attrs.Set("high_turns", options.high_turns);
  }
  return One("rope", {x, positions}, attrs, at);
}

int64_t DrawKey(const std::string& name) { return static_cast<int64_t>(HashName(name) >> 1); }

Tensor dropout(Tensor x, double p, const std::string& draws, Here at) {
  GraphOf("dropout", x, at);
  NeedNumber(Who("dropout", at), "p", p, Domain::kBelowOne);
  if (p == 0) return x;
  Attrs attrs = {{"p", p}};
  if (!draws.empty()) attrs.Set("key", DrawKey(draws));
  return One("dropout", {x}, attrs, at);
}

Tensor dropout(Tensor x, double p, Here at) { return dropout(x, p, "", at); }

// --- Variables -----------------------------------------------------------------------------------

namespace {

Attrs With(const AssignOptions& options, Attrs attrs) {
  if (options.each_micro_batch) attrs.Set("each_micro_batch", int64_t{1});
  return attrs;
}

}  // namespace

Tensor assign(Tensor variable, Tensor value, Here at) { return assign(variable, value, {}, at); }
Tensor assign(Tensor variable, Tensor value, const AssignOptions& options, Here at) {
  return One("assign", {variable, value}, With(options, {}), at);
}
Tensor assign_slice(Tensor variable, int64_t axis, Tensor begin, Tensor value, Here at) {
  return assign_slice(variable, axis, begin, value, {}, at);
}
Tensor assign_slice(Tensor variable, int64_t axis, Tensor begin, Tensor value, const AssignOptions& options,
                    Here at) {
  return One("assign_slice", {variable, value, begin},
             With(options, {{"axis", NormalAxis("assign_slice", axis, variable, at)}}), at);
}

Tensor micro_batch_sum(Tensor x, std::vector<int64_t> axes, bool keep, Here at) {
  at = at.In("micro_batch_sum");
  return One("sum", {x},
             {{"axes", NormalAxes("micro_batch_sum", std::move(axes), x, at)},
              {"keep", int64_t{keep}},
              {"micro_batch", int64_t{1}}},
             at);
}
// How many elements there are differs between micro-batches of unequal size: ones are added up, which are
// made of x, so that micro-batches cut them as they cut x. Where x is no number, nor is the mean.
Tensor micro_batch_mean(Tensor x, std::vector<int64_t> axes, bool keep, Here at) {
  at = InFloating("micro_batch_mean", x, at);
  Tensor count = micro_batch_sum(cast(equal(x, x, at), x.dtype(), at), axes, keep, at);
  return div(micro_batch_sum(x, axes, keep, at), count, at);
}

}  // namespace oneflow_like
