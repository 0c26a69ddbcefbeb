// BERT (Devlin et al. 2019) as it is trained on words that were masked, written once, as if for one device;
// examples/bert.cc trains it.
#pragma once

#include <cstdint>
#include <string>

#include "oneflow_like/oneflow_like.h"

namespace examples {

using namespace oneflow_like;

struct BertConfig {
  int64_t layers = 2, width = 128, heads = 2;
  int64_t context = 128;     // positions
  int64_t vocabulary = 258;  // mask and padding among them
  double dropout = 0;
};

// tiny, mini, small or base. Throws Error for other names.
BertConfig BertOfSize(const std::string& size);

// Throws Error when the numbers contradict each other or the mesh, which has axes dp, tp and pp.
void CheckBert(const BertConfig& config, const Mesh& mesh);

// tokens i32[n s], padding i32[n s] (0: a token, 1: behind the text's end) -> logits f32[n s vocabulary]. No
// token sees padding. Heads, the inner axis and the rows of the table, which the output reads too, are cut
// over mesh axis tp, blocks are spread over pp.
Tensor BertLogits(Scope scope, Tensor tokens, Tensor padding, const BertConfig& config, bool training);

// The mean cross entropy over the tokens that are asked for: targets i32[n s], negative where nothing is.
Tensor BertLoss(Tensor logits, Tensor targets);

}  // namespace examples
