// A layer of experts: feed-forward networks of which each token uses the few that a router chooses for it
// (Shazeer et al. 2017; Lepikhin et al. 2021). Tokens are gathered at their experts' places by index and the
// results gathered back; between ranks whose tokens are others and ranks whose experts are others goes an
// all-to-all. Room is fixed before the step, so memory is known: room of each expert, or that of a rank, of
// which only rows that are used are sent.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "oneflow_like/model.h"
#include "ops/language/sparse.h"

namespace oneflow_like::nn {

enum class ExpertScore : uint8_t { kSoftmax, kSigmoid };
enum class ExpertOverflow : uint8_t {
  kDrop,   // choices without room are left out
  kError,  // the step fails, naming the experts, the pool, what was wanted, and the room
  // A training's step changes nothing and runs again in a second plan with `retry_room`, which shares the
  // memory of the first; so do the steps in flight behind it. Results are those of a training with
  // `retry_room` throughout; output "retried" is 1 in such steps, else 0. Evaluations have `retry_room`.
  // Needs `room`.
  kRetry
};
enum class ExpertOrder : uint8_t {
  kWeight,  // choices of the greatest weights have room first
  kChoice   // first choices of all tokens before second ones, each in the order of tokens
};

struct ExpertsOptions {
  int64_t experts = 8;
  int64_t inner =
      0;  // of each expert; 0: four times the width, gated eight thirds, as nn::Mlp and nn::SwiGlu
  // down(silu(x up_gate) * (x up)) instead of down(activation(x up)); there are no biases.
  bool gated = false;
  std::function<Tensor(Tensor)> activation = [](Tensor x) { return gelu(x); };
  int64_t top_k = 2;  // experts of a token

  // Number of pools into which a batch is divided, in its order; tokens of a pool share the experts' room. 0:
  // each sequence is a pool. The number of ranks times micro-batches must divide it, as each has whole pools.
  // It belongs to the model, so the same tokens are dropped on every mesh.
  int64_t pools = 0;
  // An expert has room for capacity * top_k * tokens / experts choices of a pool, rounded up; 0: for every
  // token, and nothing is dropped, at experts / top_k times the products.
  double capacity = 1.25;
  // Above 0 there is no capacity of experts: the ranks among which `ep` deals them, whose number must divide
  // them, have room for room * top_k * tokens / ranks choices of a pool each, rounded up. A token goes to a
  // rank once however many of its experts are there, and only rows that are used are sent and multiplied.
  // With as much room as there are ranks nothing is dropped. Larger pools need less, and fewer messages
  // between processes.
  double room = 0;
  ExpertOverflow overflow = ExpertOverflow::kDrop;
  // With kRetry: the room of steps that run again, at least `room`; a step that has not enough of it fails as
  // with kError. 0: for all choices, wherever they go. The second plan computes regions without a setting of
  // their own again, so that it hardly needs more memory than the first.
  double retry_room = 0;
  ExpertOrder order = ExpertOrder::kWeight;

  // Number of experts that every token uses. They are one network of that many times the inner width, or of
  // width `shared_inner`.
  int64_t shared = 0, shared_inner = 0;
  bool shared_gate = false;  // their result times sigmoid(x shared_gate)

  // The router is in fp32. Scores of experts are a softmax, or sigmoids each by itself; a token's weights are
  // those of its experts, divided by their sum where `normalise`.
  ExpertScore score = ExpertScore::kSoftmax;
  bool normalise = true;
  // Number of equal groups of experts. A token chooses among the experts of its best `top_groups` groups,
  // which are those with the greatest score, or with sigmoids the greatest sum of two scores (DeepSeek-V2 and
  // V3, 2024).
  int64_t groups = 1, top_groups = 1;
  // Step by which a training raises a bias of experts that were chosen less than the mean, and lowers that of
  // the others; it counts in choosing alone (Wang et al. 2024). 0: there is none.
  double bias_balance = 0;
  double aux_loss = 0;  // weight of the loss that spreads tokens over experts (Fedus et al. 2022)
  double z_loss = 0;    // weight of the mean of logsumexp(logits)^2 (Zoph et al. 2022)
  double jitter = 0;    // the router sees x times numbers drawn from 1 - jitter to 1 + jitter; for training

  Initializer gate_init = Normal(0.02);
  Initializer init = XavierUniform({.in = {1}, .out = {2}}),
              out_init = XavierUniform({.in = {1}, .out = {2}});
  // Mesh axes, or several by one name as "dp*tp", where the mesh has them: what cuts the experts, which may
  // be the batch's axes and more, what cuts their inner axis, but for axes of `ep`, and what cuts the batch.
  std::string ep = "ep", tp = "tp", batch = "dp";
};

struct ExpertsResult {
  Tensor y;  // of x's shape; 0 for a token whose choices were all dropped, but for what shared experts give
  Tensor loss;  // f32[]: aux_loss and z_loss times their losses, to add to the model's; undefined: both are 0
  Tensor load;  // f32[experts]: the share of all choices that went to each expert, dropped ones included
  Tensor dropped;  // f32[]: the share of choices that had no room
  // Of pools: to experts, or with `room` to ranks (RankRoutes). With kRetry their extents differ between the
  // plans.
  Routes routes;
};

// x[b s w], or x[n w] with `pools`. Weights gate[w experts], up[experts w inner] (and up_gate), down[experts
// inner w]; of shared experts shared/up, shared/down (and shared/gate), shared_gate[w 1]; the state
// balance_bias[experts]. In training the session has outputs <path>/load, <path>/load_max (the greatest, as a
// multiple of the mean), <path>/dropped, and <path>/capacity, or with `room` <path>/room: that with which
// nothing had been dropped. Where experts are dealt to several ranks, <path>/rank_load_max is that of these.
ExpertsResult Experts(Scope s, Tensor x, const ExpertsOptions& options = {}, OFL_HERE);

}  // namespace oneflow_like::nn
