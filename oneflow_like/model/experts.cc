#include "oneflow_like/experts.h"

#include <algorithm>
#include <cmath>

#include "compiler/graph/training.h"
#include "oneflow_like/model/layer.h"
#include "oneflow_like/model/limits.h"
#include "oneflow_like/model/model_impl.h"
#include "oneflow_like/nn.h"
#include "ops/language/expressions.h"
#include "ops/language/numbers.h"

namespace oneflow_like::nn {
namespace {

// Ranks among which experts are dealt.
int64_t RanksOf(const Mesh& mesh, const ExpertsOptions& o) { return mesh.SizeAlong(mesh.FindAxes(o.ep)); }

void CheckExperts(const Layer& layer, const Mesh& mesh, const ExpertsOptions& o) {
  const std::string& who = layer.who;
  auto least = [&](const char* option, int64_t value, int64_t bound) {
    if (value < bound) Fail(who, ": ", option, " is ", value, " but must be at least ", bound);
  };
  least("experts", o.experts, 1);
  least("top_k", o.top_k, 1);
  least("pools", o.pools, 0);
  least("shared", o.shared, 0);
  least("groups", o.groups, 1);
  least("top_groups", o.top_groups, 1);
  if (o.experts > INT32_MAX) Fail(who, ": experts is ", o.experts, " but must be at most ", INT32_MAX);
  if (o.experts % o.groups != 0)
    Fail(who, ": groups is ", o.groups, " and does not divide the ", o.experts, " experts");
  if (o.top_groups > o.groups)
    Fail(who, ": top_groups is ", o.top_groups, " but there are only ", o.groups, " groups");
  if (const int64_t among = o.experts / o.groups * o.top_groups; o.top_k > among)
    Fail(who, ": top_k is ", o.top_k, " but a token chooses among only ", among, " experts");
  if (!(o.capacity >= 0 && o.capacity <= 1e6))
    Fail(who, ": capacity is ", o.capacity, " but must be at least 0, at most 1e6");
  if (!(o.room >= 0 && o.room <= 1e6))
    Fail(who, ": room is ", o.room, " but must be at least 0, at most 1e6");
  if (const int64_t ranks = RanksOf(mesh, o); o.room > 0 && o.experts % ranks != 0)
    Fail(who, ": room is that of a rank, but the ", ranks, " ranks of mesh axis ", o.ep,
         " do not divide the ", o.experts, " experts; make them a multiple, or set room to 0");
  if (!(o.retry_room >= 0 && o.retry_room <= 1e6))
    Fail(who, ": retry_room is ", o.retry_room, " but must be at least 0, at most 1e6");
  NeedEnum(who, "overflow", o.overflow, ExpertOverflow::kRetry, "nn::ExpertOverflow");
  const bool retries = o.overflow == ExpertOverflow::kRetry;
  if (retries && o.room == 0)
    Fail(who,
         ": overflow is kRetry, but steps run again for lack of room of ranks alone; set room, or let it "
         "drop");
  if (!retries && o.retry_room > 0)
    Fail(who, ": retry_room is ", o.retry_room, ", which only overflow kRetry has a use for");
  if (o.retry_room > 0 && o.retry_room < o.room)
    Fail(who, ": retry_room is ", o.retry_room, " but must be at least room, which is ", o.room);
  NeedEnum(who, "order", o.order, ExpertOrder::kChoice, "nn::ExpertOrder");
  NeedEnum(who, "score", o.score, ExpertScore::kSigmoid, "nn::ExpertScore");
  NeedNumber(who, "bias_balance", o.bias_balance, Domain::kNotNegative);
  NeedNumber(who, "aux_loss", o.aux_loss, Domain::kNotNegative);
  NeedNumber(who, "z_loss", o.z_loss, Domain::kNotNegative);
  NeedNumber(who, "jitter", o.jitter, Domain::kBelowOne);
  if (!o.gated && !o.activation) Fail(who, ": activation is no function");
  if (o.shared_gate && o.shared == 0 && o.shared_inner == 0)
    Fail(who, ": shared_gate is of shared experts, but there are none");
}

MeshAxes Without(MeshAxes axes, const MeshAxes& others) {
  std::erase_if(axes, [&](int a) { return HasAxis(others, a); });
  return axes;
}

// x as pools [p n w].
Tensor InPools(const Layer& layer, const Scope& s, Tensor x, const ExpertsOptions& o) {
  const Dims shape = x.shape();
  const int64_t batch = shape[0], pools = o.pools > 0 ? o.pools : batch;
  if (shape.rank() == 2 && o.pools == 0)
    Fail(layer.who, ": x is ", shape.str(), ", tokens that are of no sequence; say how many pools they are");
  const int64_t tokens = shape.elements() / std::max<int64_t>(1, shape.back());
  const bool fits = pools > 0 && tokens % pools == 0 && (batch % pools == 0 || pools % batch == 0);
  if (!fits)
    Fail(layer.who, ": pools is ", pools, " but x ", shape.str(), " has a batch of ", batch, " and ", tokens,
         " tokens; pools must divide the batch, or be a multiple of it that divides the tokens");
  const Mesh& mesh = s.mesh();
  const MeshAxes of_batch = mesh.FindAxes(o.batch), of_experts = mesh.FindAxes(o.ep);
  const int64_t parts = mesh.SizeAlong(of_batch), ranks = mesh.SizeAlong(of_experts);
  if (o.pools > 0 && pools % parts != 0)
    Fail(layer.who, ": pools is ", pools, ", but mesh axis ", o.batch, " cuts tokens into ", parts,
         " parts, each of whole pools; make it a multiple of ", parts);
  Tensor in_pools =
      shape.rank() == 3 && pools == batch ? x : reshape(x, {pools, tokens / pools, shape.back()}, layer.at);
  // Each rank of experts serves some of the pools, too, where these are enough.
  const int64_t all = parts * mesh.SizeAlong(Without(of_experts, of_batch));
  if (ranks == 1 || pools % all != 0) return in_pools;
  return annotate(in_pools, {{o.ep, S(0)}}, layer.at);
}

// `factor` times the mean of so many choices, rounded up, at most `most`.
int64_t RoomWith(double factor, int64_t choices, int64_t parts, int64_t most) {
  const double share = factor * static_cast<double>(choices) / static_cast<double>(parts);
  return std::clamp<int64_t>(static_cast<int64_t>(std::min(std::ceil(share), 2e9)), 1,
                             std::max<int64_t>(1, most));
}

// Choices of an expert in a pool of so many tokens.
int64_t RoomOf(const ExpertsOptions& o, int64_t tokens) {
  if (o.capacity == 0) return std::max<int64_t>(1, tokens);
  return RoomWith(o.capacity, o.top_k * tokens, o.experts, tokens);
}

// Choices of a rank's experts in a pool of so many tokens.
int64_t RoomOfRank(double room, const ExpertsOptions& o, int64_t tokens, int64_t ranks) {
  const int64_t most = std::min(o.top_k, o.experts / ranks) * tokens;
  return room == 0 ? std::max<int64_t>(1, most) : RoomWith(room, o.top_k * tokens, ranks, most);
}

// A product in fp32, whatever the session's type is.
Tensor WideProduct(Tensor x, Tensor w, const Here& at) {
  return Apply(x.graph(), "matmul", {x, w}, {{"wide", int64_t{1}}}, at)[0];
}

// What experts are chosen by: scores [p n e] with the bias, and only those of the best groups.
Tensor Eligible(Tensor score, Tensor bias, const ExpertsOptions& o, const Here& at) {
  Tensor by = bias.defined() ? add(score, bias, at) : score;
  if (o.groups == 1 || o.top_groups == o.groups) return by;
  const Dims shape = by.shape();
  const int64_t each = o.experts / o.groups;
  Tensor in_groups = reshape(by, {shape[0], shape[1], o.groups, each}, at);
  Tensor of_group =
      o.score == ExpertScore::kSigmoid
          ? sum(top_k(in_groups, std::min<int64_t>(2, each), 3, true, at).values, {3}, false, at)
          : max(in_groups, {3}, false, at);
  Tensor kept = sum(one_hot(top_k(of_group, o.top_groups, 2, true, at).indices, o.groups, at), {2}, true, at);
  kept = reshape(kept, {shape[0], shape[1], o.groups, 1}, at);
  constexpr double kNever = -1e30;
  Tensor shown = where(greater(kept, 0.5, at), in_groups, kNever, at);
  return reshape(shown, shape, at);
}

struct Router {
  Tensor scores, logits;   // [p n e]
  Tensor weights;          // [p n k]
  Routes routes;           // to experts, or ranks
  Tensor kept;             // of choices that go to ranks
  Tensor chosen;           // i32[p e]
  int64_t ranks = 0;       // 0: to experts
  int64_t room = 0;        // of an expert, or a rank, for choices of a pool
  int64_t retry_room = 0;  // of a rank where steps run again; 0: none does
};

// Gives the operator the room that it has in plans with more (WithMoreRoom).
void SetRetryRoom(Tensor made, int64_t room, const std::string& who) {
  Graph* graph = GraphOf(made, who);
  if (room > 0) graph->node(graph->value(made.id()).producer).attrs.Set(kRetryRoom, room);
}

Router RouteTokens(const Layer& layer, const Scope& s, Tensor x, const ExpertsOptions& o) {
  const Here& at = layer.at;
  const Dims shape = x.shape();
  Router router;
  Tensor seen = x;
  if (o.jitter > 0) seen = mul(x, uniform(s.graph(), shape, 1 - o.jitter, 1 + o.jitter, at), at);
  router.logits = WideProduct(seen, s.Weight("gate", {shape.back(), o.experts}, o.gate_init, {}, at), at);
  router.scores = o.score == ExpertScore::kSoftmax ? softmax(router.logits, at) : sigmoid(router.logits, at);
  Tensor bias;
  if (o.bias_balance > 0) bias = s.State("balance_bias", {o.experts}, Zeros(), {}, at);
  const Tensor by = Eligible(router.scores, bias, o, at);
  const Sorted best = top_k(by, o.top_k, 2, true, at);
  const bool own = by.id() == router.scores.id();
  Tensor weights = own ? best.values : take_along_axis(router.scores, best.indices, 2, at);
  if (o.normalise) weights = div(weights, sum(weights, {2}, true, at), at);
  router.weights = weights;
  RouteOptions options;
  if (o.order == ExpertOrder::kWeight) options.weights = weights;
  options.may_drop = o.overflow != ExpertOverflow::kError;
  if (o.room == 0) {
    router.room = RoomOf(o, shape[1]);
    router.routes = route(best.indices, o.experts, router.room, options, at);
    router.chosen = router.routes.counts;
    return router;
  }
  router.ranks = RanksOf(s.mesh(), o);
  router.room = RoomOfRank(o.room, o, shape[1], router.ranks);
  if (o.overflow == ExpertOverflow::kRetry) {
    router.retry_room = RoomOfRank(o.retry_room, o, shape[1], router.ranks);
    const bool for_all = router.room == RoomOfRank(0, o, shape[1], router.ranks);
    if (for_all) router.retry_room = 0;
  }
  const RankRoutes of_ranks = route_ranks(best.indices, o.experts, router.ranks, router.room, options, at);
  SetRetryRoom(of_ranks.kept, router.retry_room, layer.who);
  router.routes = of_ranks.routes;
  router.kept = of_ranks.kept;
  router.chosen = of_ranks.chosen;
  return router;
}

// The networks of the experts; multiply(x, w) is x times each expert's matrix w[e k m].
Tensor Networks(const Scope& s, Tensor rows, const ExpertsOptions& o, int64_t inner, const Here& at,
                const std::function<Tensor(Tensor, Tensor)>& multiply) {
  const int64_t width = rows.shape().back();
  const Mesh& mesh = s.mesh();
  const MeshAxes of_experts = mesh.FindAxes(o.ep), of_tensor = mesh.FindAxes(o.tp);
  // Axes that hold experts cut none of them.
  const std::string within = of_experts == of_tensor ? o.tp : mesh.NameOf(Without(of_tensor, of_experts));
  Annotation up_cut = CutBy(s, within, 2), down_cut = CutBy(s, within, 1);
  if (of_experts != of_tensor)
    for (Annotation* cut : {&up_cut, &down_cut})
      for (const auto& axis : CutBy(s, o.ep, 0)) cut->push_back(axis);
  auto up = [&](const char* name) {
    return multiply(rows, s.Weight(name, {o.experts, width, inner}, o.init, up_cut, at));
  };
  Tensor hidden = up("up");
  hidden = o.gated ? mul(silu(up("up_gate"), at), hidden, at) : o.activation(hidden);
  return multiply(hidden, s.Weight("down", {o.experts, inner, width}, o.out_init, down_cut, at));
}

// What experts make of x[p n w], at places of their own.
Tensor AtExperts(const Scope& s, Tensor x, const Router& router, const ExpertsOptions& o, int64_t inner,
                 const Here& at) {
  Tensor made = Networks(s, take_rows(x, router.routes, {}, at), o, inner, at,
                         [&](Tensor rows, Tensor w) { return einsum("epck,ekm->epcm", rows, w, at); });
  return return_rows(made, router.routes, router.weights, at);
}

// The same at places of their rank: rows go there once, with their choices and weights, are sorted by expert,
// added up, and go back.
Tensor AtRanks(const Scope& s, Tensor x, const Router& router, const ExpertsOptions& o, int64_t inner,
               const Here& at) {
  const int64_t k = o.top_k, ranks = router.ranks;
  // Of tokens that choose at random: those that come to a rank, and their choices.
  const auto parts = static_cast<double>(ranks), tokens = static_cast<double>(x.shape()[1]);
  const double chosen = 1 - std::pow(1 - 1 / parts, static_cast<double>(k));
  auto share_of = [](double expected, int64_t room) {
    return std::clamp(expected / std::max(1.0, static_cast<double>(room)), 1e-6, 1.0);
  };
  const double share = share_of(chosen * tokens, router.routes.slots.shape()[2]),
               of_choices = share_of(static_cast<double>(k) * tokens / parts, router.room);
  auto between_ranks = [&](Tensor rows) { return exchange(rows, router.routes.counts, share, at); };
  // Rows [r p c ..] at the ranks whose experts they are for.
  auto there = [&](Tensor rows) { return ranks == 1 ? rows : annotate(rows, {{o.ep, S(0)}}, at); };
  Tensor rows = there(between_ranks(take_rows(x, router.routes, {}, at)));
  Tensor choices =
      there(between_ranks(take_rows(concat({router.kept, router.weights}, 2, at), router.routes, {}, at)));
  const Routes runs = sort_choices(slice(choices, 3, 0, k, at), o.experts, router.room, at);
  SetRetryRoom(runs.slots, router.retry_room, "sort_choices");
  Tensor made = Networks(s, take_rows(rows, runs, {}, at), o, inner, at, [&](Tensor sorted, Tensor w) {
    const Dims all = w.shape();
    return grouped_matmul(sorted, reshape(w, {ranks, o.experts / ranks, all[1], all[2]}, at), runs.counts,
                          of_choices, at);
  });
  Tensor back = there(return_rows(made, runs, slice(choices, 3, k, 2 * k, at), at));
  return return_rows(between_ranks(back), router.routes, {}, at);
}

// The losses of the router, weighted; undefined where there are none.
Tensor RouterLoss(const Router& router, Tensor used, const ExpertsOptions& o, const Here& at) {
  std::vector<Tensor> terms;
  if (o.aux_loss > 0) {
    Tensor scores = router.scores;
    if (o.score == ExpertScore::kSigmoid) scores = div(scores, sum(scores, {2}, true, at), at);
    Tensor likely = mean(scores, {1}, false, at);  // [p e]
    terms.push_back(scale(mean(sum(mul(used, likely, at), {1}, false, at), {}, false, at),
                          o.aux_loss * static_cast<double>(o.experts), at));
  }
  if (o.z_loss > 0)
    terms.push_back(
        scale(mean(square(logsumexp(router.logits, {2}, false, at), at), {}, false, at), o.z_loss, at));
  if (terms.empty()) return {};
  return terms.size() == 1 ? terms[0] : add(terms[0], terms[1], at);
}

Tensor SharedExperts(const Scope& s, Tensor x, const ExpertsOptions& o, int64_t inner, const Here& at) {
  MlpOptions mlp;
  mlp.inner = o.shared_inner > 0 ? o.shared_inner : o.shared * inner;
  mlp.bias = false;
  mlp.activation = o.activation;
  if (o.init.fans.in.empty()) mlp.init = o.init;  // not one that names axes of matrices of experts
  if (o.out_init.fans.in.empty()) mlp.out_init = o.out_init;
  mlp.tp = o.tp;
  Tensor y = o.gated ? SwiGlu(s / "shared", x, mlp, at) : Mlp(s / "shared", x, mlp, at);
  if (!o.shared_gate) return y;
  Tensor gate = s.Weight("shared_gate", {x.shape().back(), 1}, o.gate_init, {}, at);
  return mul(y, sigmoid(WideProduct(x, gate, at), at), at);
}

}  // namespace

ExpertsResult Experts(Scope s, Tensor x, const ExpertsOptions& o, Here at) {
  const Layer layer("Experts", s, at);
  at = layer.at;
  layer.Width("x", x, 2);
  CheckExperts(layer, s.mesh(), o);
  const Dims shape = x.shape();
  const int64_t width = shape.back(), usual = o.gated ? (width * 8 / 3 + 63) / 64 * 64 : 4 * width,
                inner = layer.OrDefault("inner", o.inner, usual);
  layer.OrDefault("shared_inner", o.shared_inner, 0);
  Tensor pools = InPools(layer, s, x, o);
  const Router router = RouteTokens(layer, s, pools, o);
  ExpertsResult result;
  result.routes = router.routes;
  result.y = (o.room > 0 ? AtRanks : AtExperts)(s, pools, router, o, inner, at);
  if (result.y.shape() != shape) result.y = reshape(result.y, shape, at);
  if (o.shared > 0 || o.shared_inner > 0) result.y = add(result.y, SharedExperts(s, x, o, inner, at), at);

  const double choices = static_cast<double>(pools.shape()[1] * o.top_k),  // of a pool
      all = choices * static_cast<double>(pools.shape()[0]);
  Tensor counts = cast(router.chosen, DType::kFloat32, at);  // [p e]
  result.loss = RouterLoss(router, scale(counts, 1 / std::max(1.0, choices), at), o, at);
  // Whole numbers, whose sums are the same in every order.
  Tensor total = cast(sum(router.chosen, {0}, false, at), DType::kFloat32, at);
  result.load = scale(total, 1 / std::max(1.0, all), at);
  if (router.ranks > 0)
    counts =
        sum(reshape(counts, {counts.shape()[0], router.ranks, o.experts / router.ranks}, at), {2}, false, at);
  // Whole numbers, too. With kRetry `kept` tells them, as the room is another one in each plan.
  Tensor without = router.retry_room > 0 ? shift(neg(router.kept, at), 1, at)  // 1, or at most 0
                                         : shift(counts, -static_cast<double>(router.room), at);
  Tensor beyond = sum(relu(without, at), {}, false, at);
  if (router.retry_room > 0) GraphOf(beyond, layer.who)->no_room.push_back(beyond);
  result.dropped = scale(beyond, 1 / std::max(1.0, all), at);
  s.Output("load", result.load, at);
  s.Output("load_max", scale(max(result.load, {}, false, at), static_cast<double>(o.experts), at), at);
  s.Output("dropped", result.dropped, at);
  const int64_t ranks = RanksOf(s.mesh(), o);
  if (ranks > 1 && o.experts % ranks == 0) {
    Tensor of_ranks = sum(reshape(result.load, {ranks, o.experts / ranks}, at), {1}, false, at);
    s.Output("rank_load_max", scale(max(of_ranks, {}, false, at), static_cast<double>(ranks), at), at);
  }
  // What has the room, an expert or a rank, and its even share of a pool.
  const double share = choices / static_cast<double>(router.ranks > 0 ? router.ranks : o.experts);
  s.Output(router.ranks > 0 ? "room" : "capacity",
           scale(max(counts, {}, false, at), 1 / std::max(1e-9, share), at), at);
  if (o.bias_balance > 0) {
    Tensor bias = s.State("balance_bias", {o.experts}, Zeros(), {}, at);
    Tensor less = sign(shift(neg(total, at), all / static_cast<double>(o.experts), at), at);
    s.InTraining(assign(bias, add(bias, scale(less, o.bias_balance, at), at), at), at);
  }
  return result;
}

}  // namespace oneflow_like::nn
