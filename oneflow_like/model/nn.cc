#include "oneflow_like/nn.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "oneflow_like/model/layer.h"
#include "oneflow_like/model/limits.h"
#include "ops/language/calls.h"
#include "ops/language/losses.h"
#include "ops/language/numbers.h"

namespace oneflow_like::nn {

Tensor Linear(Scope s, Tensor x, int64_t out, const LinearOptions& o, Here at) {
  const Layer layer("Linear", s, at);
  at = layer.at;
  const int64_t in = layer.Width("x", x, 2);
  NeedEnum(layer.who, "parallel", o.parallel, Parallel::kRows, "nn::Parallel");
  const bool columns = o.parallel == Parallel::kColumns, rows = o.parallel == Parallel::kRows;
  const Annotation of_weight = columns ? CutBy(s, o.tp, 1) : rows ? CutBy(s, o.tp, 0) : Annotation{};
  Tensor y = matmul(x, s.Weight("weight", {in, out}, o.init, of_weight, at), at);
  if (!o.bias) return y;
  return add(y, s.Weight("bias", {out}, Zeros(), columns ? CutBy(s, o.tp, 0) : Annotation{}, at), at);
}

Tensor EmbeddingTable(Scope s, int64_t rows, int64_t width, const EmbeddingOptions& o, Here at) {
  const Layer layer("EmbeddingTable", s, at);
  at = layer.at;
  return s.Weight("table", {rows, width}, o.init, CutBy(s, o.tp, 0), at);
}

Tensor Embedding(Scope s, Tensor ids, int64_t rows, int64_t width, const EmbeddingOptions& o, Here at) {
  const Layer layer("Embedding", s, at);
  at = layer.at;
  return embedding(EmbeddingTable(s, rows, width, o, at), ids, at);
}

namespace {

// The weights of a recurrent layer with so many gates.
struct RecurrentWeights {
  Tensor input, recurrent;
  RecurrentOptions options;

  RecurrentWeights(const Layer& layer, const Scope& s, Tensor x, int64_t n, int64_t gates,
                   const RecurrentLayerOptions& o) {
    const Here& at = layer.at;
    const int64_t in = layer.Sequence("x", x);
    if (n < 1) layer.Bad("n", n);
    const double bound = 1 / std::sqrt(static_cast<double>(n));
    const Initializer init = o.init.value_or(Uniform(-bound, bound));
    input = s.Weight("input", {in, gates * n}, init, {}, at);
    recurrent = s.Weight("recurrent", {n, gates * n}, init, {}, at);
    if (o.bias) {
      options.bias = s.Weight("bias", {gates * n}, init, {}, at);
      options.recurrent_bias = s.Weight("recurrent_bias", {gates * n}, init, {}, at);
    }
    options.h = o.h;
    options.c = o.c;
    options.reverse = o.reverse;
  }
};

}  // namespace

LstmResult LSTM(Scope s, Tensor x, int64_t n, const RecurrentLayerOptions& o, Here at) {
  const Layer layer("LSTM", s, at);
  const RecurrentWeights w(layer, s, x, n, 4, o);
  return lstm(x, w.input, w.recurrent, w.options, layer.at);
}

GruResult GRU(Scope s, Tensor x, int64_t n, const RecurrentLayerOptions& o, Here at) {
  const Layer layer("GRU", s, at);
  const RecurrentWeights w(layer, s, x, n, 3, o);
  return gru(x, w.input, w.recurrent, w.options, layer.at);
}

Tensor LayerNorm(Scope s, Tensor x, double eps, Here at) {
  const Layer layer("LayerNorm", s, at);
  at = layer.at;
  const int64_t width = layer.Width("x", x, 1);
  return layer_norm(x, s.Weight("gamma", {width}, Ones(), {}, at), s.Weight("beta", {width}, Zeros(), {}, at),
                    eps, at);
}

Tensor RmsNorm(Scope s, Tensor x, double eps, Here at) {
  const Layer layer("RmsNorm", s, at);
  at = layer.at;
  return rms_norm(x, s.Weight("gamma", {layer.Width("x", x, 1)}, Ones(), {}, at), eps, at);
}

Tensor GroupNorm(Scope s, Tensor x, int64_t groups, double eps, Here at) {
  const Layer layer("GroupNorm", s, at);
  at = layer.at;
  const int64_t width = layer.Width("x", x, 2);
  return group_norm(x, groups, s.Weight("gamma", {width}, Ones(), {}, at),
                    s.Weight("beta", {width}, Zeros(), {}, at), eps, at);
}

namespace {

// By the statistics of each of `parts` parts of the batch.
oneflow_like::BatchNorm NormOfParts(Tensor x, Tensor gamma, Tensor beta, int64_t parts, double eps,
                                    const Here& at) {
  const Dims shape = x.shape();
  const int64_t channels = shape.back();
  Tensor rows = reshape(
      x, {parts, shape[0] / parts, shape.elements() / std::max<int64_t>(1, shape[0] * channels), channels},
      at);
  Tensor mu = mean(rows, {1, 2}, true, at), apart = sub(rows, mu, at);
  Tensor variance = mean(square(apart, at), {1, 2}, true, at);
  Tensor y = add(mul(mul(apart, rsqrt(shift(variance, eps, at), at), at), gamma, at), beta, at);
  auto average = [&](Tensor statistic) {
    return mean(reshape(statistic, {parts, channels}, at), {0}, false, at);
  };
  return {reshape(y, shape, at), average(mu), average(variance)};
}

}  // namespace

Tensor BatchNorm(Scope s, Tensor x, const BatchNormOptions& o, Here at) {
  const Layer layer("BatchNorm", s, at);
  at = layer.at;
  const int64_t width = layer.Width("x", x, 2);
  if (o.parts < 1 || x.shape()[0] % o.parts != 0)
    Fail(layer.who, ": a batch of ", x.shape()[0], " does not divide into ", o.parts, " equal parts");
  NeedNumber(layer.who, "momentum", o.momentum, Domain::kShare);
  NeedNumber(layer.who, "eps", o.eps, Domain::kPositive);
  Tensor gamma = s.Weight("gamma", {width}, Ones(), {}, at),
         beta = s.Weight("beta", {width}, Zeros(), {}, at);
  Tensor mean = s.State("mean", {width}, Zeros(), {}, at),
         variance = s.State("variance", {width}, Ones(), {}, at);
  if (!o.training) return batch_norm_eval(x, gamma, beta, mean, variance, o.eps, at);
  const auto now =
      o.parts == 1 ? batch_norm(x, gamma, beta, o.eps, at) : NormOfParts(x, gamma, beta, o.parts, o.eps, at);
  const double count = static_cast<double>(x.shape().elements()) / std::max<int64_t>(1, width * o.parts);
  const double unbiased = count > 1 ? count / (count - 1) : 1;
  auto keep = [&](Tensor running, Tensor value, double factor) {
    s.InTraining(
        assign(running, add(scale(running, 1 - o.momentum, at), scale(value, o.momentum * factor, at), at),
               at),
        at);
  };
  keep(mean, now.mean, 1);
  keep(variance, now.variance, unbiased);
  return now.y;
}

namespace {

// Keys or values y[b s h d] go into the cache; gives all that it holds then, in the type of y.
Tensor IntoCache(const Scope& s, Tensor y, const char* which, const Cache& cache, const std::string& tp,
                 const Here& at) {
  Annotation cut = CutBy(s, cache.batch, 0);
  for (const auto& axis : CutBy(s, tp, 2)) cut.push_back(axis);
  const Dims shape = {y.shape()[0], cache.slots, y.shape()[2], y.shape()[3]};
  Tensor kept = s.State(cache.name + which, shape, Zeros(), {.sbp = cut, .dtype = cache.dtype}, at);
  const DType dtype = y.dtype();
  if (dtype != cache.dtype) y = cast(y, cache.dtype, at);
  Tensor all = assign_slice(kept, 1, cache.begin, y, at);
  return dtype == cache.dtype ? all : cast(all, dtype, at);
}

void CheckCache(const std::string& who, const Cache& cache, const AttentionOptions& o, bool memory) {
  if (memory) Fail(who, ": a cache is of a sequence that attends to itself, but there is a memory");
  if (!o.causal) Fail(who, ": a cache is for causal attention; later tokens are not in it");
  if (!o.ulysses.empty()) Fail(who, ": a cache is cut by heads, not along the sequence; leave out ulysses");
  if (!cache.begin.defined() || !cache.positions.defined() || !cache.slot_positions.defined())
    Fail(who, ": its cache lacks begin, positions or slot_positions");
}

}  // namespace

Tensor Attention(Scope s, Tensor x, const AttentionOptions& o, Tensor memory, Here at) {
  const Layer layer("Attention", s, at);
  at = layer.at;
  const std::string& who = layer.who;
  const int64_t width = layer.Sequence("x", x), kv_heads = layer.OrDefault("kv_heads", o.kv_heads, o.heads);
  if (memory.defined()) layer.Sequence("memory", memory);
  if (o.heads < 1) Fail(who, ": heads is ", o.heads, " but must be at least 1");
  if (o.head_width == 0 && width % o.heads != 0)
    Fail(who, ": heads is ", o.heads, " and the width is ", width,
         ", but heads must divide it, or head_width be given");
  const int64_t depth = layer.OrDefault("head_width", o.head_width, width / o.heads);
  if (o.lora < 0) Fail(who, ": lora is ", o.lora, " but must be a rank, or 0");
  if (o.heads % kv_heads != 0)
    Fail(who, ": kv_heads is ", kv_heads, " and does not divide the ", o.heads, " heads");
  auto project = [&](Tensor from, const std::string& name, int64_t heads) {
    Tensor weight = s.Weight(name, {from.shape().back(), heads, depth}, o.init, CutBy(s, o.tp, 1), at);
    Tensor y = einsum("bsw,whd->bshd", from, weight, at);
    if (o.lora > 0 && name != "k") {
      Tensor down = s.Weight(name + "_lora_down", {from.shape().back(), o.lora}, KaimingUniform(), {}, at);
      Tensor up = s.Weight(name + "_lora_up", {o.lora, heads, depth}, Zeros(), CutBy(s, o.tp, 1), at);
      y = add(y, einsum("bsr,rhd->bshd", matmul(from, down, at), up, at), at);
    }
    return o.bias ? add(y, s.Weight(name + "_bias", {heads, depth}, Zeros(), CutBy(s, o.tp, 0), at), at) : y;
  };
  Tensor from = memory.defined() ? memory : x;
  Tensor q = project(x, "q", o.heads), k = project(from, "k", kv_heads), v = project(from, "v", kv_heads);
  oneflow_like::AttentionOptions options = o.masks;
  options.causal = o.causal;
  options.dropout = o.dropout;
  if (o.cache) {
    CheckCache(who, *o.cache, o, memory.defined());
    options.query_positions = options.key_positions = o.cache->positions;
  }
  if (o.rope) {
    auto positions = [&](Tensor given, Tensor of) {
      return given.defined() ? given
                             : arange(s.graph(), 0, static_cast<double>(of.shape()[1]), 1, DType::kInt32, at);
    };
    q = rope(q, positions(options.query_positions, q), *o.rope, at);
    k = rope(k, positions(options.key_positions, k), *o.rope, at);
  }
  if (o.cache) {
    k = IntoCache(s, k, "_k", *o.cache, o.tp, at);
    v = IntoCache(s, v, "_v", *o.cache, o.tp, at);
    options.key_positions = o.cache->slot_positions;
  }
  // Along the sequence (1) or by heads (2); gradients come as what they belong to came.
  auto cut_by = [&](int axis, Tensor y) {
    return o.ulysses.empty()
               ? y
               : annotate(y, {{o.ulysses, S(axis)}}, {.gradient = {{o.ulysses, S(3 - axis)}}}, at);
  };
  if (!o.ulysses.empty()) s.mesh().AxisOrFail(o.ulysses, who + ": ulysses");
  Tensor mixed = attention(cut_by(2, q), cut_by(2, k), cut_by(2, v), options, at);
  mixed = cut_by(1, mixed);
  Tensor out = s.Weight("out", {o.heads, depth, width}, o.out_init, CutBy(s, o.tp, 0), at);
  Tensor y = einsum("bshd,hdw->bsw", mixed, out, at);
  return o.bias && o.out_bias ? add(y, s.Weight("out_bias", {width}, Zeros(), {}, at), at) : y;
}

namespace {

// `gated`: what is activated is another projection, by which the first is multiplied.
Tensor FeedForward(const Layer& layer, Scope s, Tensor x, const MlpOptions& o, bool bias, bool gated,
                   const Activation& activation) {
  const Here at = layer.at;
  const int64_t width = layer.Width("x", x, 2);
  const int64_t inner = layer.OrDefault("inner", o.inner, gated ? (width * 8 / 3 + 63) / 64 * 64 : 4 * width);
  if (!activation) Fail(layer.who, ": activation is no function");
  auto up = [&](const std::string& name) {
    Tensor y = matmul(x, s.Weight(name, {width, inner}, o.init, CutBy(s, o.tp, 1), at), at);
    return bias ? add(y, s.Weight(name + "_bias", {inner}, Zeros(), CutBy(s, o.tp, 0), at), at) : y;
  };
  Tensor value = up("up"), hidden = gated ? mul(activation(up("gate")), value, at) : activation(value);
  Tensor y = matmul(hidden, s.Weight("down", {inner, width}, o.out_init, CutBy(s, o.tp, 0), at), at);
  return bias ? add(y, s.Weight("down_bias", {width}, Zeros(), {}, at), at) : y;
}

}  // namespace

Tensor Mlp(Scope s, Tensor x, const MlpOptions& o, Here at) {
  return FeedForward(Layer("Mlp", s, at), s, x, o, o.bias, false, o.activation);
}

Tensor GatedMlp(Scope s, Tensor x, const MlpOptions& o, Here at) {
  return FeedForward(Layer("GatedMlp", s, at), s, x, o, o.bias, true, o.activation);
}

Tensor SwiGlu(Scope s, Tensor x, const MlpOptions& o, Here at) {
  const Layer layer("SwiGlu", s, at);
  return FeedForward(layer, s, x, o, false, true, [&](Tensor y) { return silu(y, layer.at); });
}

Tensor TransformerBlock(Scope s, Tensor x, const TransformerOptions& o, Here at) {
  const Layer layer("TransformerBlock", s, at);
  at = layer.at;
  NeedNumber(layer.who, "dropout", o.dropout, Domain::kBelowOne);
  auto norm = [&](const char* name, Tensor y) {
    return o.rms_norm ? RmsNorm(s / name, y, o.norm_eps, at) : LayerNorm(s / name, y, o.norm_eps, at);
  };
  if (!o.sequence.empty()) s.mesh().AxesOrFail(o.sequence, layer.who + ": sequence");
  auto held = [&](Tensor y) { return o.sequence.empty() ? y : annotate(y, {{o.sequence, S(1)}}, at); };
  x = held(x);
  auto attend = [&](Tensor y) { return Attention(s / "attention", y, o.attention, {}, at); };
  auto feed = [&](Tensor y) {
    if (o.feed_forward) return o.feed_forward(s, y);
    return o.swiglu ? SwiGlu(s / "mlp", y, o.mlp, at) : Mlp(s / "mlp", y, o.mlp, at);
  };
  if (!o.norm_first) {
    x = held(norm("norm1", held(add(x, dropout(attend(x), o.dropout, at), at))));
    return held(norm("norm2", held(add(x, dropout(feed(x), o.dropout, at), at))));
  }
  x = held(add(x, dropout(attend(held(norm("norm1", x))), o.dropout, at), at));
  return held(add(x, dropout(feed(held(norm("norm2", x))), o.dropout, at), at));
}

std::vector<int32_t> DealtPositions(int64_t length, int64_t parts) {
  CheckRange<int64_t>("nn::DealtPositions: length", length, 0, INT32_MAX);
  CheckRange<int64_t>("nn::DealtPositions: parts", parts, 1, INT32_MAX);
  std::vector<int32_t> positions(length);
  int64_t front = 0, back = length;  // what is not dealt yet
  for (int64_t part = 0; part < parts; ++part) {
    const Interval places = Cut({0, length}, parts, part, 1);
    const int64_t from_front = places.extent / 2, from_back = places.extent - from_front;
    back -= from_back;
    for (int64_t i = 0; i < places.extent; ++i)
      positions[places.begin + i] = static_cast<int32_t>(i < from_front ? front + i : back + i - from_front);
    front += from_front;
  }
  return positions;
}

namespace {

HostTensor Ints(const std::vector<int32_t>& values) {
  HostTensor host = HostTensor::Make(DType::kInt32, {static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), host.as<int32_t>());
  return host;
}

}  // namespace

Tensor HeadLoss(Tensor x, Tensor table, Tensor targets, int64_t tile, Here at) {
  at = at.In("HeadLoss");
  if (tile != 0) return linear_cross_entropy(x, table, targets, {}, tile, at);
  NormalAxis("HeadLoss", -1, x, at);
  const std::string rows = std::string("acdefbs").substr(8 - x.shape().rank());
  return cross_entropy(einsum(Cat(rows, "w,vw->", rows, "v"), x, table, at), targets, at);
}

DealtSequence::DealtSequence(Scope s, int64_t length, const std::string& axis, Here at)
    : axis_(axis), length_(length) {
  const Layer layer("DealtSequence", s, at);
  at = layer.at;
  CheckRange<int64_t>(layer.who + ": length", length, 0, INT32_MAX);
  const int a = axis.empty() ? -1 : s.mesh().FindAxis(axis);
  if (a < 0 || s.mesh().axis_size(a) == 1) return;
  const std::vector<int32_t> order = DealtPositions(length, s.mesh().axis_size(a));
  std::vector<int32_t> places(order.size());
  for (size_t i = 0; i < order.size(); ++i) places[order[i]] = static_cast<int32_t>(i);
  positions_ = constant(s.graph(), Ints(order), at);
  places_ = constant(s.graph(), Ints(places), at);
}

void DealtSequence::CheckAxis(const char* operand, Tensor x, int64_t dim, const Here& at) const {
  const std::string who = SourceLine(at).Who("");
  if (!x.defined()) Fail(who, ": ", operand, " is a Tensor that was never given a value");
  const Dims& shape = x.shape();
  if (dim < 0 || dim >= shape.rank() || shape[static_cast<int>(dim)] != length_)
    Fail(who, ": axis ", dim, " of ", shape.str(), " is not a sequence of ", length_);
}

Tensor DealtSequence::Deal(Tensor x, int64_t dim, Here at) const {
  at = at.In("nn::DealtSequence::Deal");
  CheckAxis("x", x, dim, at);
  if (!positions_.defined()) return x;
  return annotate(take(x, dim, positions_, at), {{axis_, S(static_cast<int>(dim))}}, at);
}

Tensor DealtSequence::Restore(Tensor y, int64_t dim, Here at) const {
  at = at.In("nn::DealtSequence::Restore");
  CheckAxis("y", y, dim, at);
  return positions_.defined() ? take(y, dim, places_, at) : y;
}

Tensor Conv(Scope s, Tensor x, int64_t filters, int64_t kernel, const ConvLayerOptions& o, Here at) {
  const Layer layer("Conv", s, at);
  at = layer.at;
  const int64_t channels = layer.Width("x", x, 4);
  if (o.groups < 1 || channels % o.groups != 0)
    Fail(layer.who, ": groups is ", o.groups, " and does not divide the ", channels, " channels");
  const Initializer init = o.init.value_or(KaimingNormal({.in = {0, 1, 2}}));
  Tensor y =
      conv2d(x, s.Weight("weight", {filters, kernel, kernel, channels / o.groups}, init, {}, at), o, at);
  return o.bias ? add(y, s.Weight("bias", {filters}, Zeros(), {}, at), at) : y;
}

Tensor ConvBlock(Scope s, Tensor x, int64_t filters, int64_t kernel, const ConvBlockOptions& o, Here at) {
  const Layer layer("ConvBlock", s, at);
  at = layer.at;
  ConvLayerOptions conv;
  conv.stride = {o.stride};
  conv.groups = o.groups;
  conv.padding = {o.padding.value_or((kernel - 1) / 2)};
  Tensor y = BatchNorm(s / "norm", Conv(s / "conv", x, filters, kernel, conv, at), o.norm, at);
  return o.activation ? o.activation(y) : y;
}

Tensor layers(Scope s, Tensor x, int64_t n, const std::function<Tensor(Scope, Tensor, int64_t)>& block,
              const LayersOptions& o, Here at) {
  const Layer layer("layers", s, at);
  at = layer.at;
  if (n < 0) Fail(layer.who, ": n is ", n, " but must be 0 or more");
  if (!block) Fail(layer.who, ": block is no function");
  if (!x.defined()) Fail(layer.who, ": x is a Tensor that was never given a value");
  Blocks blocks(s, o.pipeline, n, o.per_stage, at);
  for (int64_t i = 0; i < blocks.size(); ++i) {
    const Scope here = blocks.Next(o.name + std::to_string(i), &x);
    x = block(here.Region(o.recompute, at), x, i);
    if (!x.defined())
      Fail(layer.who, ": block returned a Tensor that was never given a value, for layer ", i);
  }
  blocks.End();
  return x;
}

}  // namespace oneflow_like::nn
