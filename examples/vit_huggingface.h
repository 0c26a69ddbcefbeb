// The classifier of vit_model.h as Hugging Face's transformers knows it: ViTForImageClassification.
#pragma once

#include <string>
#include <vector>

#include "examples/vit_model.h"
#include "oneflow_like/checkpoint/huggingface.h"
#include "oneflow_like/program/huggingface_config.h"

namespace examples {

using namespace oneflow_like;

// A model and the square pictures that it reads, whose size its positions depend on.
struct VitFolder {
  VitConfig config;
  int64_t side = 224, channels = 3;
  std::vector<std::string> labels = {};  // names of the classes, to be written; empty: LABEL_0 and so on
};

// The tensors of a ViT of this size; with 0 classes those without the output, which is ignored.
NameTable VitNames(const VitFolder& vit);

// The model that the folder's config.json describes. Throws Error naming the file for what is missing, of
// another type, contradictory, or of a model that vit_model.h does not compute.
VitFolder ReadVitConfig(const std::string& folder);
VitFolder ReadVitConfig(const HuggingFaceConfig& file);
// With `theirs` that file, changed where it is of another model, or of other classes.
std::string VitConfigText(const VitFolder& vit, const HuggingFaceConfig* theirs = nullptr);

// The names of the classes in the order of their numbers; empty where some are missing, or are LABEL_0 and so
// on.
std::vector<std::string> VitLabels(const HuggingFaceConfig& file);

// Reads any folder, with 0 classes without the output; writes weights of this model.
ModelFormat VitFormat(const VitFolder& vit);

}  // namespace examples
