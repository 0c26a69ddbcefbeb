// What a loop knows of its body and of where its values lie: of loop.cc, which runs it, and loop_place.cc,
// which places it.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "ops/loop.h"

namespace oneflow_like {

struct ValuePlace {
  enum Where : uint8_t { kArena, kState, kX, kRead, kNext, kY } where = kArena;
  size_t number = 0;  // of the state, x, read value or y
  int64_t offset = 0;
};

// Steps whose rows go through one product.
inline constexpr int64_t kStepsTogether = 16;

struct LoopNode {
  KernelSpec spec;
  std::unique_ptr<Kernel> kernel;
  std::vector<int> in, out;  // values
  std::vector<TensorArg> in_args, out_args;
  bool invariant = false;
  size_t together = 0;  // the result whose term it gives for several steps; 0: it runs in every step
};

struct Loop::Impl {
  // Without kernels it tells the scratch alone.
  Impl(const KernelSpec& spec, const InnerKernels& kernels, bool make);

  // --- When it is made ---
  void FindSources();
  void FindViews();
  void ChoosePlaces();
  void PlaceArena();
  bool Direct(const LoopCall::Operand& operand, const Dims& extent) const;
  size_t TermOfRows(const Body::Node& node, const InnerKernels& kernels) const;
  TensorArg ArgOf(int value) const;
  int64_t Bytes(int value) const;
  int64_t PlaceBytes(const LoopCall::Operand& operand, const Dims& extent, int64_t* rows) const;

  // --- In an act ---
  Status Run(const KernelContext& context, LoopDevice* device);
  void SetExtents(const KernelContext& context);
  Status Step(const KernelContext& context, LoopDevice* device, int64_t step);
  Status RunNodes(const KernelContext& context, LoopDevice* device, bool invariant);
  Status RunTogether(const KernelContext& context, LoopDevice* device, int64_t last);
  Status Put(const KernelContext& context, LoopDevice* device, size_t result, int value, int64_t step);
  char* Place(const KernelContext& context, const ValuePlace& lies, int64_t step) const;
  char* Data(const KernelContext& context, int value, int64_t step) const;
  char* StateAfter(const KernelContext& context, size_t state, int64_t step) const;
  char* Kept(const KernelContext& context, size_t state, int64_t step) const;
  int64_t Position(int64_t step) const { return call.reverse ? call.steps - 1 - step : step; }
  char* Arena(const KernelContext& context, int64_t offset) const {
    return static_cast<char*>(context.scratch) + offset;
  }

  const KernelSpec& spec;  // while it is made
  LoopCall call;
  std::vector<Body::Node> order;
  std::vector<bool> invariant;  // by value: the same in every step
  std::vector<LoopNode> nodes;
  std::vector<int> root;                       // by value: that whose bytes it has
  std::vector<ValuePlace> lies;                // by root
  std::vector<bool> stacked;                   // by root: those of several steps lie in a row
  std::vector<std::pair<size_t, int>> copied;  // results, in order, that are values which lie elsewhere
  std::set<size_t> terms_together;             // of copied
  std::vector<bool> in_kept;                   // by state: it lies where it is kept
  std::vector<int64_t> sums, other;            // offsets of sums, of the states' second place
  int64_t inner_scratch = 0, bytes = 0;
  struct Source {
    bool out = false;
    size_t operand = 0;
    int axis = 0;
  };
  std::map<char, Source> sources;                      // of labels: where their pieces can be seen
  std::map<char, std::pair<int64_t, int64_t>> pieces;  // begin and extent in this act
};

}  // namespace oneflow_like
