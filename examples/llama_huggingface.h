// The decoder of llama_model.h as Hugging Face's transformers knows it: Llama, and Qwen 2 where queries, keys
// and values have biases; with experts Mixtral, and Qwen 2 MoE where one of them is shared.
#pragma once

#include <string>

#include "examples/llama_model.h"
#include "oneflow_like/checkpoint/huggingface.h"
#include "oneflow_like/program/huggingface_config.h"

namespace examples {

using namespace oneflow_like;

// The tensors of a Llama of this size.
NameTable LlamaNames(const LlamaConfig& config);

// What the folder's config.json says, which is of a model_type llama, qwen2, mixtral or qwen2_moe.
struct LlamaFolder {
  LlamaConfig config;
  int64_t context = 0;  // the longest that the model is meant for
};
// Throws Error naming the file for what is missing, of another type, contradictory, or of a model that
// llama_model.h does not compute.
LlamaFolder ReadLlamaConfig(const std::string& folder);
LlamaFolder ReadLlamaConfig(const HuggingFaceConfig& file);
// With `theirs` that file, changed where it is of another model.
std::string LlamaConfigText(const LlamaConfig& config, int64_t context,
                            const HuggingFaceConfig* theirs = nullptr);

// Reads any folder; writes weights of this model, whose positions their shapes do not tell.
ModelFormat LlamaFormat(const LlamaConfig& config, int64_t context);

}  // namespace examples
