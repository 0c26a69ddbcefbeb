// The passes: each is one function in one file of its name, whose first comment says what it needs and
// leaves. The list in compile.cc runs them; text files in tests/compiler/passes/ have examples of each.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "compiler/cost.h"
#include "compiler/graph.h"
#include "compiler/logical_plan.h"
#include "compiler/overlap.h"
#include "compiler/schedule.h"
#include "core/plan.pb.h"
#include "ops/optimizer.h"
#include "sbp/collective_cost.h"

namespace oneflow_like {

// The user's options of a training.
struct Training {
  Optimizer optimizer;
  Schedule schedule;     // of the learning rate
  double clip_norm = 0;  // 0: none
  SkipSteps skip;
  Recompute recompute = Recompute::kNone;  // of regions without a setting
  bool fed_rate = false;                   // the factor on learning rates is an input, "<name>:lr_factor"
};
// Mesh axes along which activations keep one signature (Parallel in session.h); -1: none.
struct Roles {
  int batch = -1, tensor = -1, context = -1;
};

struct CompileOptions {
  std::string name = "train";
  int times = 1;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  bool exact_groups = false;              // of an interleaved schedule: ScheduleOf
  int zero_axis = -1;                     // mesh axis that also cuts variables
  int zero_stage = 1, zero_prefetch = 1;  // of ModelOptions::zero
  int64_t zero_small = 4096;
  Roles roles;
  Overlap overlap;
  int64_t bucket_bytes = 0;  // of collectives joined to one; 0: each by itself
  // Of each rank the first of the ranks that reach its memory by address: collectives exchange messages
  // between these sets. Empty: all reach each other's.
  std::vector<int> nodes;
  WantedAlgorithms algorithms;  // in place of the cheapest
  uint64_t seed = 1;
  Machine machine;                   // the machine that estimates assume
  std::optional<Training> training;  // of a graph with a train node
  DType dtype = DType::kFloat32;     // of matrix products and activations: mixed precision unless fp32
  bool fuse = true;                  // operators into one kernel; false: each has its own
  // For regions with Recompute::kAuto: the bytes of a device, and those that a rank needs beside its plan if
  // there can be any.
  int64_t memory_budget = 0;
  std::function<int64_t(const plan::Plan&)> bytes_beside_plan;
};

// --- Logical graph to logical graph ---

void AddLossScale(Graph* graph, const CompileOptions& options);
void Autograd(Graph* graph);
// Gradients of `loss`, one element, with respect to values, as operators of the forward phase; undefined for
// values that it does not depend on. Throws Error as Autograd does.
std::vector<Tensor> GradientsOf(Graph* graph, int loss, const std::vector<int>& values);
void AddUpdates(Graph* graph, const CompileOptions& options);
// Before all others: gives random operators their keys.
void NameDraws(Graph* graph);
void MixedPrecision(Graph* graph, const CompileOptions& options);
void PlaceStages(Graph* graph);
void ShardVariables(Graph* graph, const CompileOptions& options);  // ZeRO
void ChooseSignatures(Graph* graph, const CompileOptions& options);
void ChunkProducts(Graph* graph, const CompileOptions& options);  // beside collectives
void InsertBoxing(Graph* graph, const CompileOptions& options);
void LowerBoxing(Graph* graph, const CompileOptions& options);
void SplitGradients(Graph* graph, const CompileOptions& options);  // zero bubble
void FuseEpilogue(Graph* graph);
void FuseAccumulate(Graph* graph);
void Fuse(Graph* graph);
void ChooseRecompute(Graph* graph, const CompileOptions& options);
// What ChooseRecompute chooses within a number of bytes, by region that is left to the compiler.
using RecomputeWithin = std::function<std::map<std::string, Recompute>(int64_t memory_budget)>;
// For several budgets: the plans that are compared depend on none, and are compiled once. `graph` and
// `options` must outlive the result.
RecomputeWithin SearchRecompute(const Graph& graph, const CompileOptions& options);
void RepeatForward(Graph* graph, const CompileOptions& options);  // recomputation
void GatherWeights(Graph* graph, const CompileOptions& options);  // ZeRO's third stage
void FillBuckets(Graph* graph, const CompileOptions& options);    // of small collectives
void ChooseAlgorithms(Graph* graph, const CompileOptions& options);
void BoundGradients(Graph* graph);  // whole ones, under way
void OrderWrites(Graph* graph);

// --- Values that differ between micro-batches although time does not cut them (micro_batches.cc) ---

// Legal signatures of an operator along one entry: those of its rule, and along time also the cuts that give
// each micro-batch a result of its own (OpDef::turns_of).
std::vector<Signature> SignaturesAlong(const Graph& graph, const Node& node, const BoundRule& rule, int entry,
                                       const std::vector<std::set<int64_t>>& grains);
// Variables that are written in each micro-batch become kRemade: one value for each act.
void MarkWrittenVariables(Graph* graph);
// Throws Error for a variable that is written once a step with a value that differs between micro-batches.
void RefuseWritesOfParts(const Graph& graph);

// --- To the logical plan, and from it to one rank's ---

LogicalPlan FormSegments(const Graph& graph, const CompileOptions& options);
void OrderActs(const Graph& graph, LogicalPlan* plan);
// kOutline: for estimates and simulation, in a fraction of the time. Of a tensor's pieces, and of the regions
// of a collective, those of the first micro-batch stand for those of the others where these only lie
// elsewhere. kMemory: in a fraction of that time, what memory follows from and no more: buffers and variables
// with their bytes, and which kernels use them when.
enum class PlanDetail : uint8_t { kWhole, kOutline, kMemory };
plan::Plan Partition(const Graph& graph, const LogicalPlan& logical, const CompileOptions& options, int rank,
                     PlanDetail detail = PlanDetail::kWhole);
// Assigns an offset to every buffer and scratch, and a size to every arena. Returns the lower bound: the sum
// over arenas of the most bytes that are live at once. `at_peak`: those bytes by buffer, all scratch under
// kScratch. `live`: the live bytes over time.
constexpr int kScratch = -1;
struct LiveBytes {
  // From `position` on the buffer (kScratch: all scratch) holds `bytes` more, or less. A position is that of
  // a kernel in the compute stream's list of a step.
  struct Change {
    int position = 0, buffer = 0;
    int64_t bytes = 0;
  };
  std::vector<Change> changes;  // by position; the first are the bytes that are always live
  int positions = 0;            // of a step
};
int64_t PlaceMemory(plan::Plan* plan, std::map<int, int64_t>* at_peak = nullptr, LiveBytes* live = nullptr);

// --- Invariants ---

// The progress of the passes.
enum class Level { kBuilt, kPlaced, kSigned, kBoxed, kLowered, kOrdered };
// Throw Error naming the violation of an invariant: of that level, or of a plan with its order. If one node
// must come after another and only a path of other edges ensures it, that path is added to `implied`.
void VerifyGraph(const Graph& graph, Level level, std::vector<std::string>* implied = nullptr);
void VerifyLogicalPlan(const Graph& graph, const LogicalPlan& plan,
                       std::vector<std::string>* implied = nullptr);
// Whether operands and results of the node, which need not be in the graph, have a legal signature of its
// operator.
bool LegalSignature(const Graph& graph, const Node& node);

}  // namespace oneflow_like
