// Properties of one step of boxing, computed without a loop over ranks: which mesh axes take part, whether it
// is local, how many elements it moves. Shared by the router and the planner; private to sbp/.
#pragma once

#include <cstdint>

#include "sbp/boxing.h"

namespace oneflow_like {

// A layout without its storage: per mesh axis the fixed coordinate or Slice::kFree; sbp[0] is time.
struct LayoutView {
  const int* fixed = nullptr;
  const Sbp* sbp = nullptr;
};
inline LayoutView View(const Layout& layout) { return {layout.slice.fixed.data(), layout.sbp.data()}; }

// Adds to `changed` (a bit per axis) the axes that cut a tensor axis which a changed axis outside of them
// cuts too, at either end: cuts nest, so their intervals differ although their Sbp does not. The other axes
// are independent: the members that share their coordinates form one group.
uint32_t CloseOverCuts(uint32_t changed, int axes, const Sbp* from, const int* from_sizes, const Sbp* to,
                       const int* to_sizes);

struct StepShape {
  uint32_t affected = 0;     // mesh axes whose coordinates differ inside one group, a bit each
  bool local = false;        // every destination member holds all that it needs
  bool mixed_folds = false;  // Partials of different folds change: one program cannot do that
  Primitive primitive = Primitive::kRouted;
  // For one group, per element of the group's part of the tensor.
  double factor = 0;  // elements moved
  double receivers = 1, senders = 1;
  double rounds = 0;      // of messages: the logarithm of the members
  bool combines = false;  // reduces, and then hands on to replicas
};

// REQUIRES: equal time entries. `shape` and `times` matter only where cuts of one tensor axis do not line up.
StepShape AnalyseStep(const Mesh& mesh, int times, const Dims& shape, LayoutView from, LayoutView to);

}  // namespace oneflow_like
