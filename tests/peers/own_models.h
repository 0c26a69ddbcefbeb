// Ten models that are no examples, written with the public headers alone: each a list of inputs, and a
// function that builds its trainings. own_models.cc trains them on meshes, own_models.py in PyTorch.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "oneflow_like/oneflow_like.h"

namespace oneflow_like::peers {

inline constexpr int64_t kOwnBatch = 12;

struct OwnInput {
  std::string name;
  Dims shape;     // after the batch axis
  int limit = 0;  // ids below it; 0: numbers in [-1, 1)
};

struct OwnTraining {
  Tensor loss;
  Optimizer optimizer;
  std::string name = "train";
  std::vector<std::string> weights = {};  // TrainOptions::weights
};

using OwnInputs = std::map<std::string, Tensor>;

struct OwnModel {
  std::string name;
  std::vector<OwnInput> inputs;
  // Trainings in turn, of a model whose stacks have so many blocks.
  std::function<std::vector<OwnTraining>(Model&, OwnInputs&, int64_t layers)> build;
  // Bytes that a block more in each stack keeps of a batch for its gradients if it is recomputed: what goes
  // into the blocks. 0: not counted.
  int64_t kept = 0;
  Average average = {};
  std::vector<WeightPattern> patterns = {};
};

// The stages of the mesh, and blocks of a stack on the first of them or on the last.
int Stages(const Model& model);
std::vector<int64_t> OnStage(const Model& model, int64_t layers, bool last);

std::vector<OwnModel> OwnSequences();  // T5, CLIP, DiT, LSTM, linear attention
std::vector<OwnModel> OwnNetworks();   // graph attention, WGAN-GP, Sophia, distillation, a router

}  // namespace oneflow_like::peers
