// A GPT whose feed-forward layers are experts, of which each token uses the few that its gate chooses
// (Shazeer et al. 2017; Lepikhin et al. 2021). Written once, as if for one device; examples/moe.cc trains it.
#pragma once

#include <cstdint>

#include "oneflow_like/oneflow_like.h"

namespace examples {

using namespace oneflow_like;

struct MoeConfig {
  int64_t layers = 4, width = 128, heads = 4, context = 128, vocabulary = 256;
  int64_t experts = 8, top_k = 2, inner = 256;  // inner: of each expert
  int64_t shared = 0;                           // experts that every token uses
  // An expert takes at most capacity * top_k * context / experts tokens of a sequence, rounded up: first
  // choices before second ones, each in the order of tokens. The others pass it by.
  double capacity = 1.25;
  // Of a rank in place of capacity (nn::ExpertsOptions): there the least weights go first. 0: capacity.
  double room = 0;
  nn::ExpertOverflow overflow = nn::ExpertOverflow::kDrop;
  double retry_room = 0;  // with kRetry, which needs `room` (nn::ExpertsOptions)
  double balance = 0.01;  // weight of the loss that spreads tokens over experts (Fedus et al. 2022)
};

// Throws Error when the numbers contradict each other or the mesh, which has axes dp, tp and pp, and may have
// ep.
void CheckMoe(const MoeConfig& config, const Mesh& mesh);

// tokens i32[batch s], targets i32[batch s] -> the cross entropy of each token, f32[batch s], 0 where the
// target is negative. Experts are cut over mesh axis ep, where there is none over dp, and their inner axis
// over tp, heads and the table's rows over tp, blocks are spread over pp. `balance`, where not nullptr, gets
// the sum over the blocks of the weighted loss that spreads tokens, f32[]; undefined where its weight is 0.
Tensor MoeLosses(Scope scope, Tensor tokens, Tensor targets, const MoeConfig& config,
                 Tensor* balance = nullptr);

// The mean of MoeLosses plus that loss.
Tensor MoeLoss(Scope scope, Tensor tokens, Tensor targets, const MoeConfig& config);

}  // namespace examples
