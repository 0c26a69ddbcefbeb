// The common part of programs that learn to name pictures: data, training, held-out accuracy. A program adds
// its model and the flags of its size to those of training_flags.h and picture_data.h.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "oneflow_like/oneflow_like.h"
#include "oneflow_like/program/picture_data.h"

namespace oneflow_like {

struct VisionModel {
  // images f32[n height width channels] -> logits f32[n classes]; the same variables in every graph.
  std::function<Tensor(Scope scope, Tensor images, bool training)> logits;
  Optimizer optimizer;
  std::map<std::string, std::string> state = {}, files = {};  // that checkpoints keep
  // Of weights from elsewhere, and for elsewhere (Program in program.h); may be empty.
  std::function<void(Model&model)> begin = {}, end = {};
};

// The model that the program's flags ask for, for such pictures. Throws Error where they contradict each
// other.
using MakeVisionModel = std::function<VisionModel(const PictureShape& shape)>;

// The body of main(): returns the exit code. Pictures of --images are scaled as `scale` says.
int TrainVisionModel(const Launcher& launcher, const MakeVisionModel& make, const PictureScale& scale = {});

}  // namespace oneflow_like
