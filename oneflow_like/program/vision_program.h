// The common part of programs that learn to name pictures: data, training, held-out accuracy. A program
// provides its model, and asks for PictureGroup().
#pragma once

#include <functional>
#include <map>
#include <string>

#include "oneflow_like/oneflow_like.h"
#include "oneflow_like/program/picture_data.h"

namespace oneflow_like {

struct VisionModel {
  // images f32[n, height, width, channels] -> logits f32[n, classes]. Weights have the same names in every
  // graph.
  std::function<Tensor(Scope scope, Tensor images, bool training)> logits;
  Optimizer optimizer;
  std::map<std::string, std::string> state = {}, files = {};  // texts and files that checkpoints keep
  // Load weights before the first step, and write them after the last (Program in program.h). May be empty.
  std::function<void(Model&model)> begin = {}, end = {};
};

// Returns the model that the program's flags ask for, for pictures of this shape. Throws Error if flags
// contradict one another.
using MakeVisionModel = std::function<VisionModel(const PictureShape& shape)>;

// Trains the model and measures it: the body of Launcher::Main. Returns the exit code. `scale` applies to
// pictures of
// --images.
int TrainVisionModel(const Launcher& launcher, const MakeVisionModel& make, const PictureScale& scale = {});

}  // namespace oneflow_like
