// Gradients of whole graphs: random graphs over the catalog, on one device, whose values are read one to five
// times. What Autograd says is compared with finite differences of the loss, and with the sum of separate
// trainings: the same model written so that every use of a value has a copy of its own, weights included,
// whose gradients are then added up here.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "compiler/graph/graph.h"
#include "compiler/passes/passes.h"
#include "core/random.h"
#include "ops/language/composed.h"
#include "ops/language/functional.h"
#include "ops/language/linear_algebra.h"
#include "ops/language/losses.h"
#include "ops/language/scan.h"
#include "ops/language/sparse.h"
#include "ops/language/vision.h"
#include "ops/oracle/check.h"

namespace oneflow_like {
namespace {

using oracle::Value;

constexpr int64_t kRows = 3, kColumns = 4;
const Dims kShape{kRows, kColumns};

// One value of the recipe: an operator over values before it and weights.
struct Step {
  int kind = 0;
  std::vector<int> from;     // values of shape kShape; 0 and 1 are weights
  std::vector<int> weights;  // into the recipe's weights
};

struct Recipe {
  std::vector<Dims> weights;
  std::vector<Step> steps;  // the first two are the weights 0 and 1 themselves
  std::vector<int> reads;   // of each step's value
};

// An operator of the user's: y = 2 x and z = x * x. None of the catalog's has gradients of two results.
OpDef TwoResults() {
  OpDef def;
  def.name = "two_results";
  def.axes = "x[a b] -> y[a b], z[a b]";
  def.grad = [](const GradCall& c) {
    std::vector<Tensor> parts;
    if (c.dout[0].defined()) parts.push_back(scale(c.dout[0], 2));
    if (c.dout[1].defined()) parts.push_back(scale(c.in[0] * c.dout[1], 2));
    return std::vector<Tensor>{parts.size() == 1 ? parts[0] : add_n(parts)};
  };
  def.reference = [](const KernelContext& c) {
    for (int64_t i = 0; i < c.in[0].elements(); ++i) {
      float x = c.in[0].as<float>()[i];
      c.out[0].as<float>()[i] = 2 * x;
      c.out[1].as<float>()[i] = x * x;
    }
    return Status();
  };
  return def;
}

const Catalog& CatalogWithTwoResults() {
  static const Catalog* const catalog = [] {
    auto* made = new Catalog(BuiltinCatalog());
    made->Add(TwoResults());
    return made;
  }();
  return *catalog;
}

// How a step's value is made. x are its operands, w its weights; ids and target are inputs of the model.
struct Inputs {
  Tensor ids, target;
};
using Tensors = const std::vector<Tensor>&;
struct Kind {
  size_t operands;
  std::vector<Dims> weights;
  std::function<Tensor(Tensors x, Tensors w, const Inputs& in)> make;
  bool rounds = false;  // steps, so that differences say nothing
};
Kind Unary(Tensor (*f)(Tensor)) {
  return {1, {}, [f](Tensors x, Tensors, const Inputs&) { return f(x[0]); }};
}
Kind Binary(Tensor (*f)(Tensor, Tensor)) {
  return {2, {}, [f](Tensors x, Tensors, const Inputs&) { return f(x[0], x[1]); }};
}
Kind Ternary(Tensor (*f)(Tensor, Tensor, Tensor)) {
  return {3, {}, [f](Tensors x, Tensors, const Inputs&) { return f(x[0], x[1], x[2]); }};
}
Kind Indexed(Tensor (*f)(Tensor, const Inputs&)) {
  return {1, {}, [f](Tensors x, Tensors, const Inputs& in) { return f(x[0], in); }};
}
Kind Weighted(std::vector<Dims> weights, Tensor (*f)(Tensor, Tensors w, const Inputs&)) {
  return {1, std::move(weights), [f](Tensors x, Tensors w, const Inputs& in) { return f(x[0], w, in); }};
}
Kind Rounding(Kind kind) {
  kind.rounds = true;
  return kind;
}

Tensor Positive(Tensor x) { return shift(square(x), .5); }
Tensor Turned(Tensor x) { return reshape(transpose(reshape(x, {kRows, 2, 2}), {0, 2, 1}), kShape); }
Tensor Cut(Tensor x) { return pad(slice(x, 1, 1, 3), 1, 0, 2) + broadcast_to(sum(x, {0}), kShape); }
Tensor Halves(Tensor x) {
  std::vector<Tensor> halves = split(x, 1, 2);
  return concat({halves[1] * halves[0], tanh(halves[1])}, 1);
}
Tensor BothResults(Tensor x) {
  std::vector<Tensor> both = Apply(x.graph(), "two_results", {x});
  return tanh(both[1]) + both[0];
}
Tensor Normalised(Tensor x) { return x * sqrt(shift(Apply(x.graph(), "square_sum", {x})[0], 1)); }
Tensor Attention(Tensor q, Tensor k, Tensor v) {
  const Dims heads{1, kRows, 2, kColumns / 2};
  return reshape(attention(reshape(q, heads), reshape(k, heads), reshape(v, heads)), kShape);
}

Tensor Image(Tensor x) { return reshape(x, {1, kRows, kColumns, 1}); }
Tensor Flat(Tensor x) { return reshape(x, kShape); }
Tensor Number(Tensor like, const Dims& shape, int value) {
  return full(like.graph(), shape, value, DType::kInt32);
}
Tensor Everywhere(Tensor ids) { return broadcast_to(reshape(ids, {kRows, 1}), kShape); }

// The gradients that the operator that made y passes back of dy: gradients of second order go through it.
std::vector<Tensor> PassedBack(Tensor y, Tensor dy) {
  const auto& graph = *static_cast<Graph*>(y.graph());
  const Node node = graph.producer(y.id());
  GradCall call{node.attrs, {}, {}, {}, {}};
  for (int v : node.in) call.in.emplace_back(y.graph(), v);
  for (int v : node.out) call.out.emplace_back(y.graph(), v);
  call.dout.resize(node.out.size());
  call.dout[0] = dy;
  call.wanted.assign(node.in.size(), true);
  return graph.catalog().Get(node.op).grad(call);
}

const PoolOptions kPool = {.kernel = {3}, .stride = {1}, .padding = {1}};
const InterpolateOptions kSmooth = {.mode = ResizeMode::kBilinear};

std::vector<Kind> KindsOfVision() {
  return {
      Unary([](Tensor x) { return Flat(avg_pool2d(Image(x), kPool)); }),
      Unary([](Tensor x) { return Flat(max_pool2d(Image(x), kPool)); }),
      Binary([](Tensor x, Tensor y) { return Flat(PassedBack(avg_pool2d(Image(x), kPool), Image(y))[0]); }),
      Unary([](Tensor x) { return Flat(avg_pool2d(interpolate(Image(x), 6, 8, kSmooth))); }),
      Binary([](Tensor x, Tensor y) {
        Tensor large = interpolate(Image(x), 6, 8, kSmooth);
        return Flat(PassedBack(large, tanh(interpolate(Image(y), 6, 8)))[0]);
      }),
      Weighted({{1, 3, 3, 1}}, [](Tensor x, Tensors w,
                                  const Inputs&) { return Flat(conv2d(Image(x), w[0], {.padding = {1}})); }),
      Weighted({{1, 3, 3, 1}},
               [](Tensor x, Tensors w, const Inputs&) {
                 return Flat(conv2d_transpose(Image(x), w[0], {.padding = {1}}));
               }),
      Weighted({{1, 3, 3, 1}},
               [](Tensor x, Tensors w, const Inputs&) {
                 Tensor y = conv2d(Image(x), w[0], {.padding = {1}});
                 return x * sum(tanh(PassedBack(y, Image(tanh(x)))[1]));
               }),
      Weighted(
          {{kColumns}, {kColumns}},
          [](Tensor x, Tensors w, const Inputs&) {
            return reshape(group_norm(reshape(x, {1, kRows, kColumns}), 2, shift(w[0], 1), w[1]), kShape);
          }),
      Weighted({{kColumns}, {kColumns}},
               [](Tensor x, Tensors w, const Inputs&) { return batch_norm(x, shift(w[0], 1), w[1], .1).y; }),
      Weighted({{kColumns}},
               [](Tensor x, Tensors w, const Inputs&) {
                 std::vector<Tensor> sums = Apply(x.graph(), "channel_products", {tanh(x), x, w[0]});
                 return x * tanh(sums[0] + sums[1]);
               }),
      Weighted({{kColumns}},
               [](Tensor x, Tensors w, const Inputs&) {
                 return Apply(x.graph(), "channel_scale", {tanh(x), shift(w[0], 1)})[0];
               }),
  };
}

// What an elementwise operator passes back, or any that keeps the shape.
Kind Back(Tensor (*f)(Tensor)) {
  return {2, {}, [f](Tensors x, Tensors, const Inputs&) { return PassedBack(f(x[0]), tanh(x[1]))[0]; }};
}

// The gradients that attention passes back, of two heads of queries; keys and values have as many or one, in
// which case they are halves of k.
Tensor AttentionBack(Tensor q, Tensor k, Tensor v, const AttentionOptions& options) {
  const Dims heads{1, kRows, 2, kColumns / 2};
  Tensor y = v.defined() ? attention(reshape(q, heads), reshape(k, heads), reshape(v, heads), options)
                         : attention(reshape(q, heads), reshape(slice(k, 1, 0, 2), {1, kRows, 1, 2}),
                                     reshape(slice(k, 1, 2, 4), {1, kRows, 1, 2}), options);
  std::vector<Tensor> back = PassedBack(y, reshape(tanh(q), heads));
  if (!v.defined()) {
    Tensor both = concat({reshape(back[1], {kRows, 2}), reshape(tanh(back[2]), {kRows, 2})}, 1);
    return reshape(back[0], kShape) * tanh(both);
  }
  Tensor of_values = reshape(back[0], kShape) + reshape(tanh(back[1]), kShape) * reshape(back[2], kShape);
  return options.bias.defined() ? of_values * sum(tanh(back[3])) : of_values;
}

std::vector<Kind> KindsOfSecondOrderOfAttention() {
  return {
      Ternary([](Tensor x, Tensor y, Tensor z) { return AttentionBack(x, y, z, {}); }),
      Ternary([](Tensor x, Tensor y, Tensor z) {
        return AttentionBack(x, y, z, {.causal = false, .scale = .8, .window = 2});
      }),
      Binary([](Tensor x, Tensor y) { return AttentionBack(x, y, {}, {}); }),
      Weighted({{kRows, kRows}},
               [](Tensor x, Tensors w, const Inputs& in) {
                 return AttentionBack(x, tanh(x), x,
                                      {.bias = w[0], .query_positions = in.ids, .key_positions = in.target});
               }),
  };
}

// Rows of x to experts, of which some have room for fewer rows than choose them; and a weight of each row.
Routes RoutesOf(const Inputs& in) { return route(reshape(in.target, {1, kRows, 1}), kColumns, 2); }
Tensor FirstColumn(Tensor x) { return reshape(slice(tanh(x), 1, 0, 1), {1, kRows, 1}); }

std::vector<Kind> KindsOfSecondOrder() {
  return {
      Back([](Tensor x) { return tanh(x); }),
      Back([](Tensor x) { return sigmoid(x); }),
      Back([](Tensor x) { return relu(x); }),
      Back([](Tensor x) { return gelu(x); }),
      Back([](Tensor x) { return gelu_erf(x); }),
      Back([](Tensor x) { return silu(x); }),
      Back([](Tensor x) { return elu(x); }),
      Back([](Tensor x) { return leaky_relu(x); }),
      Back([](Tensor x) { return hardsigmoid(x); }),
      Back([](Tensor x) { return hardswish(x); }),
      Back([](Tensor x) { return mish(x); }),
      Back([](Tensor x) {
        return Apply(x.graph(), "at_least", {x}, {{"bound", -.45}})[0];
      }),
      Back([](Tensor x) {
        return Apply(x.graph(), "at_most", {x}, {{"bound", .55}})[0];
      }),
      Back([](Tensor x) { return softmax(x); }),
      Back([](Tensor x) { return log_softmax(x); }),
      Binary([](Tensor x, Tensor y) { return Flat(PassedBack(max_pool2d(Image(x), kPool), Image(y))[0]); }),
      Indexed([](Tensor x, const Inputs& in) { return PassedBack(gather(x, in.target), tanh(x))[0]; }),
      Indexed([](Tensor x, const Inputs& in) {
        return PassedBack(pick(x, in.target), reshape(slice(tanh(x), 1, 0, 1), {kRows}))[0];
      }),
      Indexed([](Tensor x, const Inputs& in) {
        return PassedBack(cross_entropy(x, in.target), reshape(slice(tanh(x), 1, 0, 1), {kRows}))[0];
      }),
      Weighted({{kColumns, kColumns}},
               [](Tensor x, Tensors w, const Inputs& in) {
                 return PassedBack(linear_cross_entropy(x, w[0], in.target),
                                   reshape(slice(tanh(x), 1, 0, 1), {kRows}))[0];
               }),
      Weighted({{kColumns}, {kColumns}},
               [](Tensor x, Tensors w, const Inputs&) {
                 return PassedBack(layer_norm(x, shift(w[0], 1), w[1]), tanh(x))[0];
               }),
      Weighted({{kColumns}},
               [](Tensor x, Tensors w, const Inputs&) {
                 return PassedBack(rms_norm(x, shift(w[0], 1)), tanh(x))[0];
               }),
      Weighted({{kColumns}, {kColumns}},
               [](Tensor x, Tensors w, const Inputs&) {
                 const Dims image{1, kRows, kColumns};
                 Tensor y = group_norm(reshape(x, image), 2, shift(w[0], 1), w[1]);
                 return reshape(PassedBack(y, reshape(tanh(x), image))[0], kShape);
               }),
      Weighted({{kColumns}},
               [](Tensor x, Tensors w, const Inputs&) {
                 const std::vector<Tensor> back = PassedBack(prelu(x, w[0]), tanh(x));
                 return back[0] * tanh(back[1]);
               }),
      Weighted({{7, kColumns}},
               [](Tensor x, Tensors w, const Inputs& in) {
                 return x * sum(tanh(PassedBack(embedding(w[0], in.ids), tanh(x))[0]));
               }),
      Weighted({{7, kColumns}},
               [](Tensor x, Tensors w, const Inputs& in) {
                 Tensor bags = embedding_bag(w[0], reshape(in.ids, {kRows, 1}), Number(x, {kRows}, 1),
                                             slice(x, 1, 0, 1));
                 const std::vector<Tensor> back = PassedBack(bags, tanh(x));
                 return x * back[3] * sum(tanh(back[0]));
               }),
      Weighted({{7, kColumns}},
               [](Tensor x, Tensors w, const Inputs& in) {
                 Tensor ids = concat({reshape(in.ids, {kRows, 1}), reshape(in.target, {kRows, 1})}, 1);
                 Tensor bags = embedding_bag(w[0], ids, in.target, Bag::kMax);
                 return x * sum(tanh(PassedBack(bags, tanh(x))[0]));
               }),
      Weighted({{2, kColumns, kColumns}},
               [](Tensor x, Tensors w, const Inputs&) {
                 Tensor y = grouped_matmul(x, w[0], Number(x, {2}, 1));
                 return x * sum(tanh(PassedBack(y, tanh(x))[1]));
               }),
      Indexed([](Tensor x, const Inputs& in) {
        const Routes routes = RoutesOf(in);
        Tensor there = take_rows(unsqueeze(x, 0), routes, FirstColumn(x));
        return x * sum(tanh(PassedBack(there, tanh(there)).back()));
      }),
  };
}

std::vector<Kind> KindsThatChoose() {
  return {
      Unary([](Tensor x) { return cumsum(x, 1); }),
      Unary([](Tensor x) { return flip(x, {1}); }),
      Binary([](Tensor x, Tensor y) { return linear_recurrence(tanh(x), y, 0); }),
      Weighted({{kColumns, kColumns}},
               [](Tensor x, Tensors w, const Inputs&) {
                 const auto step = [&](Tensors h, Tensors row) -> ScanResult {
                   Tensor next = tanh(row[0] + matmul(h[0], w[0]));
                   return {{next}, {next}};
                 };
                 return reshape(scan(step, {full(x, {1, kColumns}, 1)}, {unsqueeze(x, 1)}).ys[0], kShape);
               }),
      Indexed([](Tensor x, const Inputs& in) { return take(x, 0, in.target); }),
      Indexed([](Tensor x, const Inputs& in) { return take_along_axis(x, Everywhere(in.target), 1); }),
      Indexed([](Tensor x, const Inputs& in) { return index_add(x, 0, in.target, tanh(x)); }),
      Indexed([](Tensor x, const Inputs& in) {
        const Routes routes = RoutesOf(in);
        Tensor there = take_rows(unsqueeze(x, 0), routes);
        return reshape(return_rows(tanh(there), routes, FirstColumn(x)), kShape);
      }),
      Indexed([](Tensor x, const Inputs& in) { return scatter_add(x, 1, Everywhere(in.target), tanh(x)); }),
      Indexed([](Tensor x, const Inputs& in) { return index_max(x, 0, in.target, tanh(x)); }),
      Unary([](Tensor x) { return whole_batch(tanh(x), 1); }),
      Indexed([](Tensor x, const Inputs& in) { return scatter_max(x, 1, Everywhere(in.target), tanh(x)); }),
      Unary([](Tensor x) {
        return x * ctc_loss(reshape(log_softmax(x), {1, kRows, kColumns}), Number(x, {1, 1}, 2),
                            Number(x, {1}, kRows), Number(x, {1}, 1));
      }),
      Indexed([](Tensor x, const Inputs& in) {
        return reshape(rope(reshape(x, {1, kRows, 2, 2}), in.ids), kShape);
      }),
      Weighted({{7, kColumns}},
               [](Tensor x, Tensors w, const Inputs& in) {
                 return x * embedding_bag(w[0], reshape(in.ids, {kRows, 1}), Number(x, {kRows}, 1));
               }),
      Weighted({{2, kColumns, kColumns}},
               [](Tensor x, Tensors w, const Inputs&) { return grouped_matmul(x, w[0], Number(x, {2}, 1)); }),
  };
}

// Of columns of x, a positive definite matrix.
Tensor Products(Tensor x) { return matmul(transpose(tanh(x), {1, 0}), tanh(x)); }

std::vector<Kind> KindsOfMatrices() {
  return {
      Unary([](Tensor x) { return matmul(x, cholesky(Products(x), 2)); }),
      Unary([](Tensor x) {
        return transpose(triangular_solve(cholesky(Products(x), 2), transpose(x, {1, 0})), {1, 0});
      }),
      Unary([](Tensor x) {
        return transpose(solve(Products(x), transpose(x, {1, 0}), 2), {1, 0});
      }),
      Unary([](Tensor x) {
        const Qr of = qr(cholesky(Products(x), 2));
        return matmul(x, of.r + of.q);
      }),
  };
}

std::vector<Kind> KindsOfFunctions() {
  return {
      Unary([](Tensor x) { return sin(x); }),
      Unary([](Tensor x) { return cos(x); }),
      Unary([](Tensor x) { return tan(scale(tanh(x), .5)); }),
      Unary([](Tensor x) { return expm1(scale(x, .3)); }),
      Unary([](Tensor x) { return log1p(square(x)); }),
      Unary([](Tensor x) { return reciprocal(Positive(x)); }),
      Unary([](Tensor x) { return log2(Positive(x)); }),
      Unary([](Tensor x) { return exp2(scale(x, .3)); }),
      Unary([](Tensor x) { return erfc(x); }),
      Unary([](Tensor x) { return asinh(x); }),
      Unary([](Tensor x) { return acosh(shift(Positive(x), 1)); }),
      Unary([](Tensor x) { return erfinv(scale(tanh(x), .5)); }),
      Unary([](Tensor x) { return lgamma(shift(square(x), 1)); }),
      Unary([](Tensor x) { return digamma(shift(square(x), 1)); }),
      Binary([](Tensor x, Tensor y) { return atan2(Positive(x), Positive(y)); }),
      Binary([](Tensor x, Tensor y) { return logaddexp(x, y); }),
      Unary([](Tensor x) { return clamp(x, -.45, .55); }),
      Unary([](Tensor x) { return elu(x); }),
      Unary([](Tensor x) { return leaky_relu(x); }),
      Unary([](Tensor x) { return hardsigmoid(x); }),
      Unary([](Tensor x) { return hardswish(x); }),
      Unary([](Tensor x) { return mish(x); }),
      Rounding(Binary([](Tensor x, Tensor y) { return remainder(x, shift(scale(square(y), .1), 3)); })),
      Weighted({{kColumns}}, [](Tensor x, Tensors w, const Inputs&) { return prelu(x, w[0]); }),
  };
}

// A table: an operator a line.
std::vector<Kind> KindsOfNetworks() {
  return {
      Unary([](Tensor x) { return exp(scale(x, .3)); }),
      Unary([](Tensor x) { return tanh(x); }),
      Unary([](Tensor x) { return erf(x); }),
      Unary([](Tensor x) { return sigmoid(x); }),
      Unary([](Tensor x) { return relu(x); }),
      Unary([](Tensor x) { return gelu(x); }),
      Unary([](Tensor x) { return gelu_erf(x); }),
      Unary([](Tensor x) { return silu(x); }),
      Unary([](Tensor x) { return softplus(x); }),
      Unary([](Tensor x) {
        return Apply(x.graph(), "within", Apply(x.graph(), "copy", {x}), {{"low", -1e30}, {"high", 1e30}})[0];
      }),
      Unary([](Tensor x) { return sqrt(Positive(x)); }),
      Unary([](Tensor x) { return log(Positive(x)); }),
      Unary([](Tensor x) { return rsqrt(Positive(x)); }),
      Unary([](Tensor x) { return shift(neg(abs(x)), 1); }),
      Unary([](Tensor x) { return softmax(x); }),
      Unary([](Tensor x) { return log_softmax(x); }),
      Unary([](Tensor x) { return x - mean(x, {1}, true); }),
      Unary([](Tensor x) { return x * max(x, {1}, true); }),
      Unary([](Tensor x) { return x + min(x, {0}, true); }),
      Unary([](Tensor x) {
        return x * sum_to(x, {1, kColumns});
      }),
      Unary([](Tensor x) { return Apply(x.graph(), "identity", {x})[0]; }),
      Unary(Turned),
      Unary(Cut),
      Unary(Halves),
      Unary(BothResults),
      Unary([](Tensor x) { return Apply(x.graph(), "two_results", {x})[1]; }),
      Unary(Normalised),
      Rounding(Unary([](Tensor x) { return cast(cast(x, DType::kFloat16), DType::kFloat32); })),
      Binary([](Tensor x, Tensor y) { return x + y; }),
      Binary([](Tensor x, Tensor y) { return x - y; }),
      Binary([](Tensor x, Tensor y) { return x * y; }),
      Binary([](Tensor x, Tensor y) { return x / Positive(y); }),
      Binary([](Tensor x, Tensor y) { return maximum(x, y); }),
      Binary([](Tensor x, Tensor y) { return minimum(x, y); }),
      Binary([](Tensor x, Tensor y) { return pow(Positive(x), tanh(y)); }),
      Binary([](Tensor x, Tensor y) { return where(less(x, y), x, tanh(y)); }),
      Binary([](Tensor x, Tensor y) { return matmul(einsum("ab,cb->ac", x, y), x); }),
      Binary([](Tensor x, Tensor y) {
        return concat({slice(y, 1, 2, 4), slice(x, 1, 0, 2)}, 1);
      }),
      Ternary([](Tensor x, Tensor y, Tensor z) {
        return add_n({x, y, z, x});
      }),
      Ternary(Attention),
      Indexed([](Tensor x, const Inputs& in) { return gather(x, in.target); }),
      Indexed([](Tensor x, const Inputs& in) {
        return x * reshape(pick(x, in.target), {kRows, 1});
      }),
      Indexed([](Tensor x, const Inputs& in) {
        return x * reshape(cross_entropy(x, in.target), {kRows, 1});
      }),
      Weighted({{kColumns, kColumns}}, [](Tensor x, Tensors w, const Inputs&) { return matmul(x, w[0]); }),
      Weighted({{kColumns, kColumns}},
               [](Tensor x, Tensors w, const Inputs& in) {
                 return x * reshape(linear_cross_entropy(x, w[0], in.target), {kRows, 1});
               }),
      Weighted({{kColumns, kColumns}},
               [](Tensor x, Tensors w, const Inputs& in) {
                 return x * mean_linear_cross_entropy(x, w[0], in.target);
               }),
      Weighted({{kColumns}, {kColumns}},
               [](Tensor x, Tensors w, const Inputs&) { return layer_norm(x, shift(w[0], 1), w[1]); }),
      Weighted({{kColumns}}, [](Tensor x, Tensors w, const Inputs&) { return rms_norm(x, shift(w[0], 1)); }),
      Weighted({{7, kColumns}},
               [](Tensor x, Tensors w, const Inputs& in) { return x * embedding(w[0], in.ids); }),
  };
}

const std::vector<Kind>& Kinds() {
  static const std::vector<Kind> kinds = [] {
    std::vector<Kind> all = KindsOfNetworks();
    for (const std::vector<Kind>& more :
         {KindsOfVision(), KindsThatChoose(), KindsOfMatrices(), KindsOfFunctions(), KindsOfSecondOrder(),
          KindsOfSecondOrderOfAttention()})
      all.insert(all.end(), more.begin(), more.end());
    return all;
  }();
  return kinds;
}

Recipe DrawRecipe(uint64_t seed) {
  uint64_t count = 0;
  auto draw = [&](int64_t limit) { return static_cast<int>(RandomBits(seed, 31, count++) % limit); };
  Recipe r;
  r.weights = {kShape, kShape};
  r.steps = {{-1, {}, {0}}, {-1, {}, {1}}};
  r.reads = {0, 0};
  std::vector<int64_t> copies = {1, 1};  // nodes a use of the value costs when all is written out
  int hub = -1, steps = 3 + draw(5);
  for (int s = 0; s < steps; ++s) {
    Step step;
    step.kind = draw(static_cast<int64_t>(Kinds().size()));
    const Kind& kind = Kinds()[step.kind];
    int64_t cost = 1;
    for (size_t i = 0; i < kind.operands; ++i) {
      // Near the end, or one value again and again.
      int values = static_cast<int>(r.steps.size());
      int from = hub >= 0 && draw(3) ? hub : i == 0 ? values - 1 : draw(values);
      if (r.reads[from] >= 5 || cost + copies[from] > 200) from = draw(2);
      ++r.reads[from];
      cost += copies[from];
      step.from.push_back(from);
    }
    for (const Dims& shape : kind.weights) {  // one that is there already, or a new one
      int found = -1;
      for (size_t w = 2; w < r.weights.size(); ++w)
        if (r.weights[w] == shape && draw(2)) found = static_cast<int>(w);
      if (found < 0) {
        found = static_cast<int>(r.weights.size());
        r.weights.push_back(shape);
      }
      step.weights.push_back(found);
    }
    r.steps.push_back(step);
    r.reads.push_back(0);
    copies.push_back(cost);
    if (draw(3) == 0) hub = static_cast<int>(r.steps.size()) - 1;
  }
  return r;
}

// A graph of the recipe, its loss, and for each weight the variables that stand for it: one, or with `apart`
// one for each use.
struct Written {
  Graph graph{&CatalogWithTwoResults(), Mesh("cpu", {{"dp", 1}})};
  int loss = -1;
  std::vector<std::vector<int>> variables;
  std::map<int, Value> given;  // variables and inputs by value
};

class Writer {
 public:
  Writer(const Recipe& recipe, uint64_t seed, bool apart, Written* out)
      : recipe_(recipe), apart_(apart), out_(*out), seed_(seed) {
    out_.variables.resize(recipe.weights.size());
    in_.ids = Input("ids", 7);
    in_.target = Input("target", static_cast<int>(std::min(kRows, kColumns)));
  }

  void Write() {
    Tensor last = At(static_cast<int>(recipe_.steps.size()) - 1);
    // A loss that weighs all elements differently; values that nobody read count too.
    Tensor loss = sum(last * Weighing(0));
    for (size_t s = 2; s + 1 < recipe_.steps.size(); ++s)
      if (recipe_.reads[s] == 0) loss = loss + sum(At(static_cast<int>(s)) * Weighing(static_cast<int>(s)));
    out_.loss = loss.id();
  }

 private:
  int Raw(const std::string& op, const std::string& name, DType dtype, const Dims& shape, Value value) {
    Node node;
    node.op = op;
    node.name = out_.graph.UniqueName(name);
    std::string unique = node.name;
    int id = out_.graph.AddRaw(std::move(node), {{unique, dtype, shape}});
    int v = out_.graph.node(id).out[0];
    out_.given.emplace(v, std::move(value));
    return v;
  }

  Value Drawn(uint64_t purpose, DType dtype, const Dims& shape, int limit) {
    Value value(dtype, shape);
    for (int64_t i = 0; i < value.elements(); ++i) {
      uint64_t bits = RandomBits(seed_, 1000 + purpose, i);
      value.Set(i, limit > 0 ? static_cast<double>(bits % limit) : 1.6 * ToUniform(bits) - .8);
    }
    return value;
  }

  Tensor Input(const std::string& name, int limit) {
    return Tensor(&out_.graph, Raw("input", name, DType::kInt32, {kRows},
                                   Drawn(HashName(name) % 1000, DType::kInt32, {kRows}, limit)));
  }
  Tensor Weighing(int step) {
    return Tensor(&out_.graph, Raw("input", Cat("weighing", step), DType::kFloat32, kShape,
                                   Drawn(5000 + step, DType::kFloat32, kShape, 0)));
  }

  Tensor Weight(int w) {
    std::vector<int>& made = out_.variables[w];
    if (made.empty() || apart_)
      made.push_back(Raw("variable", Cat("w", w), DType::kFloat32, recipe_.weights[w],
                         Drawn(2000 + w, DType::kFloat32, recipe_.weights[w], 0)));
    return Tensor(&out_.graph, made.back());
  }

  Tensor At(int s) {
    if (!apart_ && done_.count(s)) return done_.at(s);
    const Step& step = recipe_.steps[s];
    Tensor value;
    if (step.kind < 0) {
      value = Weight(step.weights[0]);
    } else {
      std::vector<Tensor> x, w;
      for (int f : step.from) x.push_back(At(f));
      for (int i : step.weights) w.push_back(Weight(i));
      value = Kinds()[step.kind].make(x, w, in_);
    }
    done_[s] = value;
    return value;
  }

  const Recipe& recipe_;
  const bool apart_;
  Written& out_;
  const uint64_t seed_;
  Inputs in_;
  std::map<int, Tensor> done_;
};

// All values of the graph by the reference kernels.
std::map<int, Value> Compute(const Written& written, const std::map<int, Value>& given) {
  std::map<int, Value> values = given;
  const Graph& graph = written.graph;
  for (int n : graph.Order()) {
    const Node& node = graph.node(n);
    if (node.op == "input" || node.op == "variable") continue;
    const OpDef& def = graph.catalog().Get(node.op);
    std::vector<Value> in, out;
    for (int v : node.in) in.push_back(values.at(v));
    for (int v : node.out) out.emplace_back(graph.value(v).dtype, graph.value(v).shape);
    Status status = oracle::RunWhole(def, node.attrs, in, &out, oracle::ReferenceOf(def));
    if (!status.ok()) Fail(graph.Describe(n), ": ", status.message());
    for (size_t o = 0; o < node.out.size(); ++o) values.insert_or_assign(node.out[o], std::move(out[o]));
  }
  return values;
}

double Largest(const std::vector<double>& x) {
  double most = 0;
  for (double e : x) most = std::max(most, std::fabs(e));
  return most;
}

// Per weight its gradient, those of its copies added up; into `sizes` the largest sum of their absolute
// values.
std::vector<std::vector<double>> GradientsOf(Written* written, std::vector<double>* sizes = nullptr) {
  const int train = written->graph.AddTrain(written->loss, {});
  Autograd(&written->graph, {});
  std::map<int, int> gradients;  // by weight
  const std::vector<int>& found = written->graph.node(train).in;
  for (size_t i = 1; i + 1 < found.size(); i += 2) gradients[found[i]] = found[i + 1];
  written->graph.Remove(train);
  std::map<int, Value> values = Compute(*written, written->given);
  std::vector<std::vector<double>> sums;
  for (const std::vector<int>& copies : written->variables) {
    std::vector<double> sum, size;
    for (int copy : copies) {
      sum.resize(written->graph.value(copy).shape.elements());
      size.resize(sum.size());
      if (!gradients.count(copy)) continue;
      for (size_t i = 0; i < sum.size(); ++i) {
        const double g = values.at(gradients.at(copy)).Get(static_cast<int64_t>(i));
        sum[i] += g;
        size[i] += std::fabs(g);
      }
    }
    if (sizes != nullptr) sizes->push_back(Largest(size));
    sums.push_back(std::move(sum));
  }
  return sums;
}

// How many of its steps round.
int Rounds(const Recipe& recipe) {
  return static_cast<int>(std::count_if(recipe.steps.begin(), recipe.steps.end(), [](const Step& step) {
    return step.kind >= 0 && Kinds()[step.kind].rounds;
  }));
}

TEST(Gradients, OfAValueReadManyTimesAreThoseOfAllItsUses) {
  std::map<int, int> readers;
  for (uint64_t seed = 0; seed < 700; ++seed) {
    Recipe recipe = DrawRecipe(seed);
    for (int r : recipe.reads) ++readers[r];
    Written together, apart;
    Writer(recipe, seed, false, &together).Write();
    Writer(recipe, seed, true, &apart).Write();
    // Each rounding to fp16 is off by at most 2^-11 of what it rounds, on either side, and what follows may
    // amplify that; uses that cancel are rounded as what they are, not as their sum.
    std::vector<double> sizes;
    std::vector<std::vector<double>> got = GradientsOf(&together), want = GradientsOf(&apart, &sizes);
    for (size_t w = 0; w < got.size(); ++w) {
      if (together.variables[w].empty()) continue;
      ASSERT_EQ(got[w].size(), want[w].size()) << "seed " << seed << " weight " << w;
      double slack = 2e-5 * (1 + Largest(want[w])) + std::ldexp(Rounds(recipe), -8) * (1 + sizes[w]);
      for (size_t i = 0; i < got[w].size(); ++i)
        ASSERT_NEAR(got[w][i], want[w][i], slack) << "seed " << seed << " weight " << w << " element " << i;
    }
  }
  for (int r = 1; r <= 5; ++r) EXPECT_GE(readers[r], 20) << "values read " << r << " times";
}

// Along one direction of each weight: central differences with two steps, extrapolated, where they agree and
// where those to either side come together as the step shrinks: at a kink they do not.
TEST(Gradients, OfWholeGraphsAreFiniteDifferences) {
  int compared = 0, rough = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Recipe recipe = DrawRecipe(seed);
    if (Rounds(recipe)) continue;
    Written written, plain;
    Writer(recipe, seed, false, &written).Write();
    Writer(recipe, seed, false, &plain).Write();  // without gradients: the loss alone
    std::vector<std::vector<double>> gradients = GradientsOf(&written);
    for (size_t w = 0; w < gradients.size(); ++w) {
      if (plain.variables[w].empty()) continue;
      const int v = plain.variables[w][0];
      std::vector<double> direction(gradients[w].size());
      for (size_t i = 0; i < direction.size(); ++i)
        direction[i] = 2 * ToUniform(RandomBits(seed, 40 + w, i)) - 1;
      auto loss = [&](double h) {
        std::map<int, Value> moved = plain.given;
        Value& weight = moved.at(v);
        for (size_t i = 0; i < direction.size(); ++i)
          weight.Set(static_cast<int64_t>(i), weight.Get(static_cast<int64_t>(i)) + h * direction[i]);
        return Compute(plain, moved).at(plain.loss).Get(0);
      };
      struct Differences {
        double slope, gap;  // between the differences to either side
      };
      const double here = loss(0);
      auto differences = [&](double h) {
        double after = (loss(h) - here) / h, before = (here - loss(-h)) / h;
        return Differences{(after + before) / 2, std::fabs(after - before)};
      };
      double got = 0, want = NAN;
      for (size_t i = 0; i < direction.size(); ++i) got += direction[i] * gradients[w][i];
      for (double h : {0x1p-6, 0x1p-8}) {
        Differences coarse = differences(h), fine = differences(h / 2);
        // A large loss in fp32 has too few digits for so small a step.
        if (std::fabs(here) * 0x1p-22 / h > 2e-3 * (1 + std::fabs(fine.slope))) continue;
        if (!(fine.gap <= .6 * coarse.gap + 3e-3)) continue;
        if (!(std::fabs(coarse.slope - fine.slope) <= 5e-3 * (1 + std::fabs(fine.slope)))) continue;
        want = (4 * fine.slope - coarse.slope) / 3;
        break;
      }
      if (std::isnan(want)) {  // a kink is near
        ++rough;
        continue;
      }
      ++compared;
      EXPECT_NEAR(got, want, 1e-2 * (1 + std::fabs(want))) << "seed " << seed << " weight " << w;
    }
  }
  EXPECT_GT(compared, 9 * rough) << rough << " directions lie near kinks";
}

// The test of the test: every operator that has a gradient is in some graph, but those that draw, copies to
// and from the host, which the compiler inserts, and the exchange of experts (rank_experts_test).
TEST(Gradients, OfTheWholeCatalogAreDrawn) {
  std::set<std::string> seen;
  for (uint64_t seed = 0; seed < 800; ++seed) {
    Written written;
    Writer(DrawRecipe(seed), seed, false, &written).Write();
    for (int n : written.graph.Order()) seen.insert(written.graph.node(n).op);
  }
  std::string missing;
  for (const std::string& name : BuiltinCatalog().names()) {
    const OpDef& def = BuiltinCatalog().Get(name);
    if (def.category == kHostCopies || name == "exchange") continue;
    if (def.grad && !def.random && !seen.count(name)) missing += " " + name;
  }
  EXPECT_EQ(missing, "");
}

}  // namespace
}  // namespace oneflow_like
