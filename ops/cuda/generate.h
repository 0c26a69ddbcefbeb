// CUDA C++ for chains of elementwise operators: one pass over memory, values in fp32 registers whatever the
// length of the chain (ops/fused.h; a single operator is a chain of one). What differs between layers -
// constants, keys of draws, extents - is an argument, so that they share one text, and the text depends on
// nothing but the steps, the types, which operands broadcast and the number of axes then.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/device/kernel.h"
#include "ops/cuda/grid.h"
#include "ops/fused.h"

namespace oneflow_like::cuda {

struct Chain {
  std::vector<FusedStep> steps;
  std::vector<DType> inputs;     // floating or bool
  std::vector<int64_t> outputs;  // values of the chain
};

// The chain of a node: the operator "fused", or one that is Fusible.
Chain ChainOf(const KernelSpec& spec);

struct GeneratedChain {
  std::string function, source;

  std::vector<DType> inputs, outputs;
  std::vector<bool> whole;  // per input: element i belongs to element i of the outputs; others broadcast
  int rank = 1;             // axes of the walk, after merging; an act may need fewer, never more
  int pack = 4;             // elements per thread and turn where everything is aligned
  struct Draw {             // of a dropout
    uint64_t key;
    uint32_t least;  // of DropRule
    float scale;
  };
  std::vector<Draw> draws;
  std::vector<float> constants;
  size_t arg_bytes = 0;
};

// Throws Error, naming spec.node, when the chain has more operands than one launch can take.
GeneratedChain GenerateChain(const Chain& chain, const KernelSpec& spec);

// How an act is launched.
struct ChainLaunch {
  Grid grid;
  int64_t packs = 0;                // turns of `pack` elements; the rest goes element by element
  std::vector<unsigned char> args;  // the text's Args; of arg_bytes
};
// Fills `launch`, allocating nothing when its args have arg_bytes already. `act` is device memory (ActState).
void PlanLaunch(const GeneratedChain& chain, const KernelContext& context, const void* act,
                int multiprocessors, ChainLaunch* launch);

}  // namespace oneflow_like::cuda
