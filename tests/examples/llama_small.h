// Small Llamas of every kind, and a training of them: what the tests of the model and of its names share.
#pragma once

#include <string>
#include <vector>

#include "examples/llama_model.h"
#include "oneflow_like/oneflow_like.h"
#include "oneflow_like/program/data.h"

namespace oneflow_like {

using namespace examples;

struct SmallLlama {
  const char* name;
  LlamaConfig config;
};

// Grouped queries; Qwen's biases, one table and one head of keys; odd sizes, wide heads, stretched positions;
// experts, and experts with a shared one.
inline std::vector<SmallLlama> SmallLlamas() {
  LlamaConfig llama = {.layers = 4, .width = 32, .heads = 4, .kv_heads = 2, .head_width = 8};
  llama.inner = 48;
  llama.vocabulary = 64;
  LlamaConfig qwen = llama;
  qwen.kv_heads = 1;
  qwen.tied = qwen.qkv_bias = true;
  qwen.norm_eps = 1e-6;
  qwen.rope = {.base = 10000};
  LlamaConfig odd = llama;
  odd.width = 27;
  odd.heads = odd.kv_heads = 3;
  odd.head_width = 10;
  odd.inner = 35;
  odd.vocabulary = 61;
  odd.rope = {.base = 500, .trained_length = 8, .factor = 4, .low_turns = 0.5, .high_turns = 2};
  LlamaConfig mixtral = llama;
  mixtral.inner = 24;
  mixtral.experts = {.experts = 4};
  LlamaConfig qwen_moe = mixtral;
  qwen_moe.kv_heads = 4;
  qwen_moe.qkv_bias = true;
  qwen_moe.norm_eps = 1e-6;
  qwen_moe.experts = {.experts = 6, .top_k = 3, .shared_inner = 20, .normalise = false, .capacity = 1};
  return {{"llama", llama}, {"qwen", qwen}, {"odd", odd}, {"mixtral", mixtral}, {"qwen_moe", qwen_moe}};
}

constexpr int kLlamaBatch = 8, kLlamaContext = 16;

// Rows that can be learnt, others for each step.
inline Feeds LlamaFeeds(int64_t step, int64_t vocabulary) {
  const LearnableRows rows(kLlamaContext, vocabulary, 0, 1 << 20);
  const Dims shape = {kLlamaBatch, kLlamaContext};
  HostTensor tokens = HostTensor::Make(DType::kInt32, shape),
             targets = HostTensor::Make(DType::kInt32, shape);
  for (int64_t b = 0; b < kLlamaBatch; ++b) {
    void* const to[] = {tokens.as<int32_t>() + b * kLlamaContext, targets.as<int32_t>() + b * kLlamaContext};
    rows.Read({.seed = 7, .index = step * kLlamaBatch + b}, to);
  }
  return {{"tokens", tokens}, {"targets", targets}};
}

inline Session TrainLlama(Model& model, const LlamaConfig& config, const TrainOptions& options,
                          const AdamW& optimizer) {
  Annotation cut = {{"dp", S(0)}};
  for (int a : model.mesh().FindAxes(config.sequence))
    if (model.mesh().axis_name(a) != "tp") cut.push_back({model.mesh().axis_name(a), S(1)});
  const Dims shape = {kLlamaBatch, kLlamaContext};
  Tensor tokens = model.Input("tokens", shape, DType::kInt32, cut);
  Tensor targets = model.Input("targets", shape, DType::kInt32, cut);
  return Train(LlamaLoss(model.scope(), tokens, targets, config), optimizer, options);
}

}  // namespace oneflow_like
