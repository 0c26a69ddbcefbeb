// The passes: each is one function in one file of its name, headed there by what it needs and leaves. The
// list in compile.cc runs them; text files in tests/compiler/passes/ show each at work.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "compiler/cost.h"
#include "compiler/graph.h"
#include "compiler/logical_plan.h"
#include "compiler/schedule.h"
#include "core/plan.pb.h"
#include "ops/optimizer.h"

namespace oneflow_like {

// What the user asked for, as data.
struct Training {
  Optimizer optimizer;
  Schedule schedule;     // of the learning rate
  double clip_norm = 0;  // 0: none
  SkipSteps skip;
  Recompute recompute = Recompute::kNone;  // of regions that say nothing
  bool fed_rate = false;                   // the factor on learning rates is an input, "<name>:lr_factor"
};
struct CompileOptions {
  std::string name = "train";
  int times = 1;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  int zero_axis = -1;                     // mesh axis that also cuts variables
  int zero_stage = 1, zero_prefetch = 1;  // of ModelOptions::zero
  int64_t zero_small = 4096;
  uint64_t seed = 1;
  Machine machine;                   // what costs are estimated for
  std::optional<Training> training;  // of a graph with a train node
  DType dtype = DType::kFloat32;     // of matrix products and activations: mixed precision unless fp32
  bool fuse = true;                  // operators into one kernel; off, each keeps its own line
};

// --- Logical graph to logical graph ---

void AddLossScale(Graph* graph, const CompileOptions& options);
void Autograd(Graph* graph);
// Gradients of `loss`, one element, with respect to values, as operators of the forward phase; undefined
// where it does not depend on one. Throws Error as Autograd does.
std::vector<Tensor> GradientsOf(Graph* graph, int loss, const std::vector<int>& values);
void AddUpdates(Graph* graph, const CompileOptions& options);
// Before all others: gives random operators their keys.
void NameDraws(Graph* graph);
void MixedPrecision(Graph* graph, const CompileOptions& options);
void PlaceStages(Graph* graph);
void ShardVariables(Graph* graph, const CompileOptions& options);  // ZeRO
void ChooseSignatures(Graph* graph, const CompileOptions& options);
void InsertBoxing(Graph* graph, const CompileOptions& options);
void LowerBoxing(Graph* graph, const CompileOptions& options);
void FuseEpilogue(Graph* graph);
void Fuse(Graph* graph);
void RepeatForward(Graph* graph, const CompileOptions& options);  // recomputation
void GatherWeights(Graph* graph, const CompileOptions& options);  // ZeRO's third stage
void OrderWrites(Graph* graph);

// --- To the logical plan, and from it to one rank's ---

LogicalPlan FormSegments(const Graph& graph, const CompileOptions& options);
void OrderActs(const Graph& graph, const CompileOptions& options, LogicalPlan* plan);
plan::Plan Partition(const Graph& graph, const LogicalPlan& logical, const CompileOptions& options, int rank);
// Gives every transient buffer and scratch its place; fills transient_bytes. Returns the lower bound: the
// largest sum of bytes live at once. `at_peak`: those bytes by buffer, all scratch under kScratch.
constexpr int kScratch = -1;
int64_t PlaceMemory(plan::Plan* plan, std::map<int, int64_t>* at_peak = nullptr);

// --- Invariants ---

// How far the passes have come.
enum class Level { kBuilt, kPlaced, kSigned, kBoxed, kLowered, kOrdered };
// Throw Error naming what breaks an invariant: of that level, or of a plan with its order. Where nothing says
// directly that one thing comes after another, but others together do, `implied` is given the path.
void VerifyGraph(const Graph& graph, Level level, std::vector<std::string>* implied = nullptr);
void VerifyLogicalPlan(const Graph& graph, const LogicalPlan& plan,
                       std::vector<std::string>* implied = nullptr);
// Whether operands and results of the node, which need not be in the graph, have a signature of its operator.
bool LegalSignature(const Graph& graph, const Node& node);

}  // namespace oneflow_like
