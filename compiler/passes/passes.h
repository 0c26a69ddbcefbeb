// The passes: each is one function in one file of its name, whose first comment says what it needs and
// leaves. The list in compile.cc runs them; text files in tests/compiler/passes/ have examples of each.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "compiler/graph/graph.h"
#include "compiler/plan/options.h"

namespace oneflow_like {

// --- Logical graph to logical graph ---

void AddLossScale(Graph* graph, const CompileOptions& options);
void Autograd(Graph* graph, const CompileOptions& options);
// Gradients of `loss`, one element, with respect to values, as operators of the forward phase; undefined for
// values that it does not depend on. Throws Error as Autograd does.
std::vector<Tensor> GradientsOf(Graph* graph, int loss, const std::vector<int>& values);
void AddUpdates(Graph* graph, const CompileOptions& options);
// Before all others: gives random operators their keys.
void NameDraws(Graph* graph, const CompileOptions& options);
void MixedPrecision(Graph* graph, const CompileOptions& options);
void PlaceStages(Graph* graph, const CompileOptions& options);
void ShardVariables(Graph* graph, const CompileOptions& options);  // ZeRO
void ChooseSignatures(Graph* graph, const CompileOptions& options);
void ChunkProducts(Graph* graph, const CompileOptions& options);  // beside collectives
void InsertBoxing(Graph* graph, const CompileOptions& options);
void LowerBoxing(Graph* graph, const CompileOptions& options);
void SplitGradients(Graph* graph, const CompileOptions& options);  // zero bubble
void FuseEpilogue(Graph* graph, const CompileOptions& options);
void FuseAccumulate(Graph* graph, const CompileOptions& options);
void Fuse(Graph* graph, const CompileOptions& options);
void PlaceOnHost(Graph* graph, const CompileOptions& options);    // variables
void RepeatForward(Graph* graph, const CompileOptions& options);  // recomputation
void OffloadActivations(Graph* graph, const CompileOptions& options);
void GatherWeights(Graph* graph, const CompileOptions& options);  // ZeRO's third stage
void FillBuckets(Graph* graph, const CompileOptions& options);    // of small collectives
void ChooseAlgorithms(Graph* graph, const CompileOptions& options);
void BoundGradients(Graph* graph, const CompileOptions& options);  // whole ones, under way
void LineUpProducts(Graph* graph, const CompileOptions& options);
void OrderWrites(Graph* graph, const CompileOptions& options);

// --- Values that differ between micro-batches although time does not cut them (micro_batches.cc) ---

// Legal signatures of an operator along one entry: those of its rule, and along time also the cuts that give
// each micro-batch a result of its own (OpDef::turns_of).
std::vector<Signature> SignaturesAlong(const Graph& graph, const Node& node, const BoundRule& rule, int entry,
                                       const std::vector<std::set<int64_t>>& grains);
// Variables that are written in each micro-batch become kRemade: one value for each act.
void MarkWrittenVariables(Graph* graph);
// Throws Error for a variable that is written once a step with a value that differs between micro-batches.
void RefuseWritesOfParts(const Graph& graph);

// --- Invariants ---

// The progress of the passes.
enum class Level { kBuilt, kPlaced, kSigned, kBoxed, kLowered, kOrdered };
// Throws Error naming the violation of an invariant of that level. If one node must come after another and
// only a path of other edges ensures it, that path is added to `implied`.
void VerifyGraph(const Graph& graph, Level level, std::vector<std::string>* implied = nullptr);
// Whether operands and results of the node, which need not be in the graph, have a legal signature of its
// operator.
bool LegalSignature(const Graph& graph, const Node& node);

}  // namespace oneflow_like
