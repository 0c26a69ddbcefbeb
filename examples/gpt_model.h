// A GPT-2-like decoder, written once, as if for one device: the annotations on its weights and inputs are all
// that data, tensor and pipeline parallel runs need. examples/gpt.cc trains it; tests build the same model.
#pragma once

#include <cstdint>

#include "oneflow_like/oneflow_like.h"

namespace examples {

using namespace oneflow_like;

struct GptConfig {
  int64_t layers = 4;
  int64_t width = 128;
  int64_t heads = 4;      // divides width
  int64_t context = 128;  // positions of one sequence
  int64_t vocabulary = 256;
  int64_t lora = 0;  // rank of adapters beside queries and values, which alone are to be trained; 0: none
  // Mesh axes that cut the sequence ("cp*sp*tp"): tp (between products), and others, of which attention
  // exchanges the one that `ulysses` names for heads, while over the rest it gathers keys and values. Empty:
  // none.
  std::string sequence = "";
  std::string ulysses = "";
  int64_t logits_tile = 0;  // rows of logits that the loss makes at a time (nn::HeadLoss); 0: all
  double dropout = 0;  // of embeddings, attention probabilities and both residual branches; 0 to evaluate
};

// Throws Error when the numbers contradict each other or the mesh: heads must divide width, every stage of
// mesh axis pp needs at least one layer.
void CheckGpt(const GptConfig& config, const Mesh& mesh);

// tokens i32[batch, s] with s <= context -> logits f32[batch, s, vocabulary]. `positions` i32[s], where
// given, are those of the tokens (nn::DealtSequence), else they lie in order. The mesh has axes dp, tp and pp
// (of any extent): heads, the hidden layer of each MLP and the rows of the embedding table are cut over tp,
// blocks are spread over pp. dp cuts whatever the caller's input says. Weights are the same variables
// whenever the same scope and config are given, whatever the dropout.
Tensor GptLogits(Scope scope, Tensor tokens, const GptConfig& config, Tensor positions = {});

// The cross entropy of each token, f32[batch, s]; targets i32[batch, s], a negative one counts as loss 0. The
// class axis of the logits is cut over tp like the table.
Tensor GptLosses(Scope scope, Tensor tokens, Tensor targets, const GptConfig& config, Tensor positions = {});

// The logits after the last of these tokens alone, f32[batch, 1, vocabulary], for generation: tokens
// i32[batch, s] are the next piece of sequences whose earlier tokens are in the cache. Sequences have at most
// `context` tokens, and none is cut (GptConfig::sequence); positions outside the table fail the step.
Tensor GptNext(Scope scope, Tensor tokens, const GptConfig& config, const nn::Cache& cache);

// The mean of GptLosses, one element.
Tensor GptLoss(Scope scope, Tensor tokens, Tensor targets, const GptConfig& config);

}  // namespace examples
