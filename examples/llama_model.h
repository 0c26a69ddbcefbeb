// A decoder as Llama 3 and Qwen 2 are built: rotary positions, RMS norms, grouped queries, SwiGLU; or with
// experts, as Mixtral and Qwen 2 MoE. Written once, as if for one device; examples/llama.cc trains it, and
// tests build the same model.
#pragma once

#include <cstdint>
#include <string>

#include "oneflow_like/oneflow_like.h"

namespace examples {

using namespace oneflow_like;

// Experts in place of SwiGLU; `inner` of the config is that of each.
struct LlamaExperts {
  int64_t experts = 0, top_k = 2;  // 0: there are none
  int64_t shared_inner = 0;        // of an expert for every token, with a gate, as Qwen 2 MoE has; 0: none
  bool normalise = true;           // weights of a token's experts add up to 1
  double capacity = 1.25;          // in training (nn::ExpertsOptions); generation has room for every token
  double room = 0;                 // of a rank, in place of capacity, in training; 0: capacity
  double aux_loss = 0.02;
};

struct LlamaConfig {
  int64_t layers = 4;
  int64_t width = 128;
  int64_t heads = 4, kv_heads = 2;  // of queries; of keys and values, which divides it
  int64_t head_width = 32;          // even
  int64_t inner = 384;              // of SwiGLU
  int64_t vocabulary = 256;
  RopeOptions rope = {.base = 500000};
  double norm_eps = 1e-5;
  bool tied = false;      // the output reads the embedding's table
  bool qkv_bias = false;  // of queries, keys and values: Qwen's
  LlamaExperts experts = {};
  int64_t logits_tile = 0;  // rows of logits that the loss makes at a time (nn::HeadLoss); 0: all
  // Mesh axes that cut the sequence, and the one that attention exchanges for heads: as GptConfig has them.
  std::string sequence = "";
  std::string ulysses = "";
};

// tiny; 160m; 1b, 8b and 70b, which are Llama 3.2 1B, Llama 3 8B and 70B; mixtral_tiny, qwen_moe_tiny;
// mixtral_8x7b. Throws Error for other names.
LlamaConfig LlamaOfSize(const std::string& size);

int64_t LlamaWeights(const LlamaConfig& config);  // how many numbers

// Throws Error when the numbers contradict each other or the mesh, which has axes dp, tp and pp: kv_heads
// must divide heads, every stage of pp needs at least one layer. The Error begins with `who`.
void CheckLlama(const LlamaConfig& config, const Mesh& mesh, const std::string& who = "llama");

// tokens i32[batch, s] -> logits f32[batch, s, vocabulary]. `router_loss`, where not nullptr, gets the sum
// over the blocks of the experts' losses; undefined where there are none. `positions` i32[s], where given,
// are those of the tokens (nn::DealtSequence), else they lie in order. Heads, the inner axis and the rows of
// both tables are cut over tp, experts over ep (where there is none, over dp), blocks are spread over pp, dp
// cuts whatever the caller's input says. Weights are the same variables whenever the same scope and config
// are given.
//
// `before` f32[batch, p, width], where given, stands before the tokens, as pictures do; the logits are those
// of the tokens alone.
Tensor LlamaLogits(Scope scope, Tensor tokens, const LlamaConfig& config, Tensor positions = {},
                   Tensor* router_loss = nullptr, Tensor before = {});

// The cross entropy of each token, f32[batch, s]; targets i32[batch, s], a negative one counts as loss 0.
Tensor LlamaLosses(Scope scope, Tensor tokens, Tensor targets, const LlamaConfig& config,
                   Tensor positions = {}, Tensor* router_loss = nullptr);

// The logits after the last of these tokens alone, f32[batch, 1, vocabulary], for generation: tokens
// i32[batch, s] are the next piece of sequences whose earlier tokens are in the cache, none of them cut.
Tensor LlamaNext(Scope scope, Tensor tokens, const LlamaConfig& config, const nn::Cache& cache);

// The mean of LlamaLosses plus the experts' losses, one element.
Tensor LlamaLoss(Scope scope, Tensor tokens, Tensor targets, const LlamaConfig& config);

}  // namespace examples
