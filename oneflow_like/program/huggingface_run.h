// Flags --load_hf and --save_hf of programs that train: they load the weights of a Hugging Face folder before
// the first step, and write such a folder after the last.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "oneflow_like/checkpoint/huggingface.h"
#include "oneflow_like/oneflow_like.h"
#include "oneflow_like/program/huggingface_config.h"

namespace oneflow_like {

// Values of the flags of these names.
struct HuggingFaceFlags {
  std::string load_hf, save_hf;
};
HuggingFaceFlags& hugging_face_flags();  // of this process

FlagGroup HuggingFaceGroup();  // "huggingface"

// Throws Error for flags that contradict others; takes the slash off the end of folders.
void CheckHuggingFaceFlags();
// Throws Error if the folder of --save_hf exists already or cannot be created.
void RequireHuggingFaceFolder(const Launcher& launcher);

// Small files next to the weights that a run begins with: those of --load_hf, otherwise those of the
// checkpoint that it loads or resumes.
struct ModelFiles {
  std::string where;  // the folder or checkpoint; empty if the run begins without weights
  std::optional<HuggingFaceConfig> config;  // config.json
  FolderFiles others;                       // all other files: those of tokenizers, licences
};
ModelFiles FilesOfBeginning(const Launcher& launcher);

// Opens the weights of --load_hf under the names of this library. Returns nullptr if the flag is not given or
// the run will not read them, as it is resumed, simulated or a dry run. Call it before the first session is
// made: a missing or broken file is then reported as a mistake in the command.
std::shared_ptr<VariableSource> OpenHuggingFace(const Launcher& launcher, const ModelFormat& format);
// Reads the weights into the model, whose session has been made. Does nothing for nullptr. If `partial`,
// weights that the folder lacks keep their initial values.
void LoadHuggingFace(const Launcher& launcher, Model& model, std::shared_ptr<VariableSource> weights,
                     bool partial = false);
// Writes the folder of --save_hf, if the flag is given, from the last checkpoint; without --save it makes one
// and removes it. `config` is the text of the model's config.json.
void SaveHuggingFace(const Launcher& launcher, Model& model, const ModelFormat& format,
                     const std::string& config, const FolderFiles& others);

}  // namespace oneflow_like
