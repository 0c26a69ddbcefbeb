// Products to be made in chunks beside a message, found and estimated; chunk_products.cc writes them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "compiler/compile.h"
#include "compiler/graph.h"

namespace oneflow_like {

// An axis that is dealt in chunks, of a value that `pieces` ranks cut along it.
struct ChunkAxis {
  int axis = -1;
  int64_t pieces = 1;
};

// The rows of a product: the axis of its result, and of the operands that have it.
struct ProductRows {
  int out = -1;
  std::vector<int> in;  // by operand; -1: it has none
};

struct ChunkedProduct {
  int node = -1;
  ProductRows rows;
};

// Products to be made in chunks beside a message, and gradients to be computed meanwhile.
struct ChunkPlan {
  bool gather = false;
  int value = -1;                           // that is gathered, or combined
  NdSbp want;                               // as it is read
  int entry = -1;                           // of the signature, that changes
  ChunkAxis rows;                           // of `value`
  std::vector<ChunkedProduct> products;     // of a gather those that read it; else those that sum up to it
  std::vector<std::pair<int, int>> others;  // of a gather: what else reads it, and as which operand
  std::vector<int> sums;                    // of products, in order
  std::vector<int> behind;                  // gradients of weights
  int64_t chunks = 1;
  double before = 0, after = 0;  // estimated seconds of an act
};

// In the graph's order. Nothing is a part of two.
std::vector<ChunkPlan> FindChunkPlans(const Graph& graph, const CompileOptions& options);

}  // namespace oneflow_like
