// A Llama that reads a picture before its tokens, as a Vision Transformer sees it; written once, as if for
// one device. examples/caption.cc trains it.
#pragma once

#include <string>

#include "examples/llama_model.h"
#include "examples/vit_model.h"

namespace examples {

using namespace oneflow_like;

struct CaptionConfig {
  VitConfig eye = {.layers = 2, .width = 64, .heads = 4, .patch = 4};  // `classes` counts for nothing
  LlamaConfig text;
};

// images f32[n h w c], shown f32[n] (1, or 0 where a text has no picture), tokens i32[n s] -> logits f32[n s
// vocabulary]. The text model's blocks are spread over mesh axis pp; the eye is on all devices, stages
// included (Scope::Everywhere), each of which sees its part of the pictures: dp and pp cut `images` and
// `shown`, dp alone cuts tokens. So a device of the first stage receives what it lacks of its pictures'
// tokens, (pp-1)/pp. Heads and inner axes of both are cut over tp. Throws Error as CheckLlama and VitTokens
// do.
Tensor CaptionLogits(Scope scope, Tensor images, Tensor shown, Tensor tokens, const CaptionConfig& config,
                     bool training);

}  // namespace examples
