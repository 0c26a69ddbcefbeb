// Finds products to compute in chunks while a message is sent, by estimate; chunk_products.cc writes them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "compiler/compile.h"
#include "compiler/cost/cost.h"
#include "compiler/graph/graph.h"

namespace oneflow_like {

// An axis that is divided into chunks, of a value that `pieces` ranks cut along it.
struct ChunkAxis {
  int axis = -1;
  int64_t pieces = 1;
};

// The rows of a product: the axis of its result, and of the operands that have it.
struct ProductRows {
  int out = -1;
  std::vector<int> in;  // by operand; -1: it has no rows
};

struct ChunkedProduct {
  int node = -1;
  ProductRows rows;
};

// Products to compute in chunks while a message is sent, and gradients to compute meanwhile.
struct ChunkPlan {
  bool gather = false;
  int value = -1;                           // the value that is gathered, or combined
  NdSbp want;                               // its signature where it is read
  int entry = -1;                           // entry of the signature that changes
  ChunkAxis rows;                           // of `value`
  std::vector<ChunkedProduct> products;     // for a gather its readers; else the products that sum up to
                                            // `value`
  std::vector<std::pair<int, int>> others;  // for a gather: other readers, and the operand number there
  std::vector<int> sums;                    // additions of products, in order
  std::vector<int> behind;                  // gradients of weights
  int64_t chunks = 1;
  double before = 0, after = 0;  // estimated seconds of an act
};

// In how many chunks an axis of a shape can be dealt, at most `wanted`.
int64_t MostChunks(const Dims& shape, const ChunkAxis& rows, int wanted);
// Sets the number of chunks that takes an act the least seconds, and these (chunk_estimate.cc). False: none
// gains enough.
bool ChooseChunks(const Graph& graph, const Machine& machine, const Overlap& overlap, CostModel* cost,
                  ChunkPlan* plan);

// In the graph's order. No node is in two plans.
std::vector<ChunkPlan> FindChunkPlans(const Graph& graph, const CompileOptions& options);

}  // namespace oneflow_like
