// Language models that were saved: which one lies in a folder, what it computes, and its weights.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "oneflow_like/generation/generator.h"
#include "oneflow_like/oneflow_like.h"

namespace examples {

using namespace oneflow_like;

struct SavedModel {
  std::string name;  // "a Llama of 12 layers, ..."
  int64_t vocabulary = 0;
  int64_t context = 0;        // positions that it knows
  std::vector<int32_t> ends;  // tokens that end a text, where its config.json or generation_config.json says
  std::string folder;         // where the files of its tokenizer lie, if there are any; empty: nowhere
  NextLogits next;            // after a piece of sequences, by a cache
  std::function<Tensor(Scope scope, Tensor tokens)>
      logits;  // of whole sequences i32[b, s] -> f32[b, s, vocabulary]
  // Reads the weights into a model, in whose own graph they are requested for this; they have `dtype` in
  // memory. In a job all processes call it.
  std::function<void(Model& model, DType dtype)> load;
  // Throws Error when the model does not fit on the mesh.
  std::function<void(const Mesh& mesh)> check;
};

// A model that `gpt` or `llama` saved: a checkpoint, or a folder of checkpoints, of which the newest is
// meant; of `gpt` also one safetensors file. `weights`: as of Conversion, "average" for the averages that its
// training kept. Throws Error for anything else.
SavedModel OpenSavedModel(const std::string& path, const std::string& weights = "");
// A folder of Hugging Face's, of a GPT-2, a Llama or a Qwen 2.
SavedModel OpenHuggingFaceModel(const std::string& folder);

}  // namespace examples
