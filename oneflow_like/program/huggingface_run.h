// Flags --load_hf and --save_hf of programs that train: weights from a Hugging Face folder before the first
// step, and a folder for transformers after the last.
#pragma once

#include <gflags/gflags_declare.h>

#include <memory>
#include <optional>
#include <string>

#include "oneflow_like/checkpoint/huggingface.h"
#include "oneflow_like/oneflow_like.h"
#include "oneflow_like/program/huggingface_config.h"

DECLARE_string(load_hf);
DECLARE_string(save_hf);

namespace oneflow_like {

// Throws Error for flags that contradict others; takes the slash off the end of folders.
void CheckHuggingFaceFlags();
// Throws Error where --save_hf is there already or cannot be made.
void RequireHuggingFaceFolder(const Launcher& launcher);

// What came with the weights that a run begins with or goes on from: of --load_hf, else of the checkpoint.
struct ModelFiles {
  std::string where;  // the folder or checkpoint; empty: the run begins with neither
  std::optional<HuggingFaceConfig> config;
  FolderFiles others;  // without config.json
};
ModelFiles FilesOfBeginning(const Launcher& launcher);

// The weights of --load_hf under our names, opened; nullptr where the flag is not given, or nothing will be
// read. Call it before the first session is made, so that what is missing or broken is a mistake of the
// command.
std::shared_ptr<VariableSource> OpenHuggingFace(const Launcher& launcher, const ModelFormat& format);
// Reads these weights, unless they are nullptr, into the model, whose session is made; where `partial`, those
// that the folder has.
void LoadHuggingFace(const Launcher& launcher, Model& model, std::shared_ptr<VariableSource> weights,
                     bool partial = false);
// Where --save_hf is given: writes it from the last checkpoint, or from one that is made for this and
// removed. `config` is the model's config.json.
void SaveHuggingFace(const Launcher& launcher, Model& model, const ModelFormat& format,
                     const std::string& config, const FolderFiles& others);

}  // namespace oneflow_like
