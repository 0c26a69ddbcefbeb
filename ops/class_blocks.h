// Losses whose classes are cut: statistics of blocks of classes, held where the classes are, and the loss
// made of them. Shared by the operators with logits (cross_entropy.cc) and without (linear_cross_entropy.cc).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/host_device.h"
#include "ops/op.h"

namespace oneflow_like {

// Blocks of all classes, at most: as many parts can the classes be cut into.
inline constexpr int64_t kClassBlocks = 64;

// The first class of block `block` of `blocks` blocks that divide `classes` evenly.
OFL_HOST_DEVICE int64_t FirstOfBlock(int64_t classes, int64_t blocks, int64_t block) {
  const int64_t each = classes / blocks, longer = classes % blocks;  // the first ones have a class more
  return block * each + (block < longer ? block : longer);
}

// OpDef::extents: of label p, the blocks.
std::map<std::string, int64_t> BlocksOf(int64_t classes);
// Of a rank that has classes but no block: there are more parts than blocks.
Status TooFewBlocks(int64_t blocks);

// {loss[..], lse[..]} from {greatest[.. p], total[.. p], own[..]} as class_statistics gives them.
std::vector<Tensor> LossOfStatistics(const std::vector<Tensor>& statistics, Tensor target);

// Adds the gradients of outputs {loss, lse}: dloss, which is 0 where none comes, and dlse where one comes.
void AddLossGradients(const GradCall& call, std::vector<Tensor>* in);

}  // namespace oneflow_like
