// The GPT of gpt_model.h as Hugging Face's transformers knows it: GPT-2, whose folders of model.safetensors
// and config.json are read and written with the names below.
#pragma once

#include <string>

#include "examples/gpt_model.h"
#include "oneflow_like/checkpoint/huggingface.h"
#include "oneflow_like/program/huggingface_config.h"

namespace examples {

using namespace oneflow_like;

// The tensors of a GPT-2 of this size.
NameTable Gpt2Names(const GptConfig& config);

// The size that the folder's config.json gives; dropout is 0. Throws Error naming the file for what is
// missing, of another type, contradictory, or of a model that gpt_model.h does not compute.
GptConfig ReadGpt2Config(const std::string& folder);
GptConfig ReadGpt2Config(const HuggingFaceConfig& file);
// With `theirs` that file, changed where it is of another model.
std::string Gpt2ConfigText(const GptConfig& config, const HuggingFaceConfig* theirs = nullptr);

// The size of the GPT whose variables these are, by their shapes. Throws Error when they are of no GPT.
GptConfig GptConfigOf(const VariableSource& ours);

ModelFormat Gpt2Format();

}  // namespace examples
