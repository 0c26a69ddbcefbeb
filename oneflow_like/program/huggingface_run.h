// Flags --load_hf and --save_hf of programs that train: weights from a Hugging Face folder before the first
// step, and a folder for transformers after the last.
#pragma once

#include <gflags/gflags_declare.h>

#include "oneflow_like/checkpoint/huggingface.h"
#include "oneflow_like/oneflow_like.h"

DECLARE_string(load_hf);
DECLARE_string(save_hf);

namespace oneflow_like {

// Throws Error for flags that contradict others; takes the slash off the end of folders.
void CheckHuggingFaceFlags();
// Throws Error where --save_hf is there already or cannot be made.
void RequireHuggingFaceFolder(const Launcher& launcher);
// Where --load_hf is given: reads its weights into the model, whose session is made; where `partial`, those
// that the folder has.
void LoadHuggingFace(const Launcher& launcher, Model& model, const ModelFormat& format, bool partial = false);
// Where --save_hf is given: writes it from the last checkpoint, or from one that is made for this and
// removed.
void SaveHuggingFace(const Launcher& launcher, Model& model, const ModelFormat& format);

}  // namespace oneflow_like
