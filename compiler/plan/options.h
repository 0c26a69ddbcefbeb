// What a graph is compiled for: what was asked for, what was decided about its plan, and the machine that is
// assumed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compiler/cost/cost.h"
#include "compiler/plan/decisions.h"
#include "core/device/kernel.h"
#include "ops/language/optimizer.h"
#include "sbp/mesh.h"

namespace oneflow_like {

// The user's options of a training.
struct Training {
  Optimizer optimizer;
  Schedule schedule;     // of the learning rate
  double clip_norm = 0;  // 0: none
  SkipSteps skip;
  Recompute recompute = Recompute::kNone;  // of regions without a setting; kAuto: a search decides
  bool fed_rate = false;                   // the factor on learning rates is an input, "<name>:lr_factor"
  Average average = {};                    // of the weights
  // The user's graph, of which the compiled one is a part: values have the same ids. Only compared.
  const GraphBuilder* source = nullptr;
  int source_values = 0;                                         // that it had
  double clip_value = 0;                                         // 0: none
  std::vector<std::pair<std::string, double>> clip_groups = {};  // patterns of weights and their norms
  // Whether regions with kAuto repeat messages (true), do not (false), or choose for themselves (empty).
  // A region that computes everything again repeats its messages in any case.
  std::optional<bool> gather_again = {};
  // Values of the graph, f32[]: numbers of choices for which experts have no room. A step in which one is
  // above 0 changes no variable, nor do those behind it (add_updates.cc).
  std::vector<int> no_room = {};
  bool has_more_room = false;  // the plan in which such steps run again
};
// Mesh axes along which activations keep one signature (Parallel in session.h).
struct Roles {
  MeshAxes batch, tensor, context;
};

// What was asked for, whatever is decided about the plan.
struct Request {
  std::string name = "train";
  uint64_t seed = 1;
  DType dtype = DType::kFloat32;  // of matrix products and activations: mixed precision unless fp32
  bool tf32 = false;  // products and convolutions in fp32 round to TF32; only where there are GPUs
  Roles roles;
  std::optional<Training> training;  // of a graph with a train node
  bool fuse = true;                  // operators into one kernel; false: each has its own
  bool choose_host = true;           // Offload::choose
  std::set<std::string> on_host;     // variables that lie there since another session was made
  // What states the scratch of kernels (KernelRegistry::Scratch); nullptr: OpDef::scratch alone does. The
  // threads are those that any process of the job gives a kernel at most.
  const KernelRegistry* kernels = nullptr;
  int kernel_threads = 1;
  // A graph of the same nodes with other extents, whose signatures are taken (choose_signatures); nullptr:
  // the cheapest are.
  std::shared_ptr<const Graph> signed_as;
};

struct CompileOptions {
  Request asked;
  Decisions decided;
  Machine machine;
};

}  // namespace oneflow_like
