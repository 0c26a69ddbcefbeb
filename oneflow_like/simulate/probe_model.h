// The models whose kernels calibration measures: on a processor language models are trained, for a device
// they and a network of convolutions are compiled, and each of their kernels is timed by itself.
#pragma once

#include <cstdint>

#include "oneflow_like/model.h"
#include "oneflow_like/session.h"

namespace oneflow_like {

// Shapes differ in what bounds their kernels: few or many rows, narrow or wide products, short or long
// sequences; gradients that are summed over micro-batches, or not.
struct ProbeShape {
  int64_t batch = 8, context = 1024, width = 768, heads = 12;  // batch: of each rank and micro-batch
  bool llama = false;  // RMS norms, SwiGLU and rotary positions in place of a GPT's
  int micro_batches = 1;
  int64_t vocabulary = 512;
  int64_t kv_heads = 0;  // 0: as many as heads
  double dropout = 0.1;  // of a GPT
  int64_t inner = 0;     // of the feed-forward layers; 0: as many times the width as is usual
  int64_t experts = 0;   // top-2, in place of the feed-forward layers; 0: none
  double room = 0;       // ExpertsOptions::room; 0: capacity
  double clip_norm = 1;
  // Not 0: a residual network on pictures of this side, in place of a language model: a large first
  // convolution and a pooling, then bottlenecks of 1, 2, 4 and 8 times the width, two of each, the first of
  // which halves the side. Context, heads and what follows them do not count.
  int64_t side = 0;
  int64_t layers = 2;  // of a language model
  bool erf = false;    // BERT's GELU by the error function in place of GPT's
};

// tokens and targets i32[batch context] -> the model's loss.
Tensor ProbeLoss(Model* model, Tensor tokens, Tensor targets, const ProbeShape& shape);
// How it is trained, on a mesh with this axis of the batch, or of tensor parallelism; either may be empty.
TrainOptions ProbeTraining(const ProbeShape& shape, DType dtype, const std::string& batch,
                           const std::string& tensor);
// A training of the model on one device, by SGD if it is of pictures, else by AdamW. Its inputs are "in" and
// "targets".
Session DeviceProbe(Model* model, const ProbeShape& shape, DType dtype);
// The inputs of one of its steps. Targets are random: a model whose targets were its input learned to repeat
// it, and its steps were a tenth shorter than those of a training. Numbers that repeat probably cost a card
// less power.
Feeds ProbeFeeds(const ProbeShape& shape);

}  // namespace oneflow_like
