// A recommender (Naumov et al. 2019): will somebody click? Written once, as if for one device;
// examples/dlrm.cc trains it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oneflow_like/oneflow_like.h"

namespace examples {

using namespace oneflow_like;

struct DlrmConfig {
  int64_t dense = 13, tables = 26;  // numbers and words of a sample
  int64_t rows = 1000, width = 16;  // of a table
  // Hidden layers of the network of numbers, which ends in `width`, and of the one behind the products, which
  // ends in one number.
  std::vector<int64_t> bottom = {64, 32}, top = {64, 64, 32, 32};
  // How mesh axis tp cuts tables: "rows", "columns", or "mixed": every second one by columns.
  std::string cut = "mixed";
  int64_t micro_batches = 1;  // of the training (nn::LookUpOptions)
};

// Throws Error when a number is below 1, or `cut` none of its words.
void CheckDlrm(const DlrmConfig& config);

// dense f32[n dense], ids i32[n tables] -> logits f32[n]: products of all pairs of the words' rows and the
// numbers' vector, and that vector, go into the second network. Layers are cut over mesh axis tp, those of
// the second network spread over pp, all else is on its first stage.
Tensor DlrmLogits(Scope scope, Tensor dense, Tensor ids, const DlrmConfig& config);

}  // namespace examples
