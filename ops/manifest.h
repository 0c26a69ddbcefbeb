// The manifest of operators: one line for each file of the table, and the checks that they share.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "ops/op.h"

namespace oneflow_like {

// ops/elementwise.cc
void AddElementwise(Catalog* catalog);
// ops/functions.cc
void AddFunctions(Catalog* catalog);
// ops/logic.cc
void AddLogic(Catalog* catalog);
// ops/reduce.cc
void AddReduce(Catalog* catalog);
// ops/reshape.cc
void AddReshape(Catalog* catalog);
// ops/shape_ops.cc
void AddShapeOps(Catalog* catalog);
// ops/gather.cc
void AddGather(Catalog* catalog);
// ops/sort.cc ... ops/rank_routes.cc
void AddSort(Catalog* catalog);
void AddTake(Catalog* catalog);
void AddScatterMax(Catalog* catalog);
void AddLinearRecurrence(Catalog* catalog);
void AddEmbeddingBag(Catalog* catalog);
void AddSparseRows(Catalog* catalog);
void AddGroupedMatmul(Catalog* catalog);
void AddRoutes(Catalog* catalog);
void AddRankRoutes(Catalog* catalog);
// ops/constant.cc
void AddConstant(Catalog* catalog);
// ops/matmul.cc ... ops/optimizer.cc
void AddMatmul(Catalog* catalog);
void AddLinear(Catalog* catalog);
void AddSoftmax(Catalog* catalog);
void AddCrossEntropy(Catalog* catalog);
void AddLinearCrossEntropy(Catalog* catalog);
void AddNorm(Catalog* catalog);
void AddEmbedding(Catalog* catalog);
void AddAttention(Catalog* catalog);
void AddRope(Catalog* catalog);
void AddDropout(Catalog* catalog);
void AddConvolution(Catalog* catalog);
void AddPooling(Catalog* catalog);
void AddInterpolate(Catalog* catalog);
void AddGroupNorm(Catalog* catalog);
void AddBatchNorm(Catalog* catalog);
void AddOptimizers(Catalog* catalog);
void AddAssign(Catalog* catalog);
void AddLossScaling(Catalog* catalog);
void AddTemporalClassification(Catalog* catalog);
void AddSolve(Catalog* catalog);
void AddWithin(Catalog* catalog);
// ops/micro_batch.cc
void AddMicroBatch(Catalog* catalog);
void AddFused(Catalog* catalog);
// ops/scan.cc; last, as its samples are made of other operators.
void AddScan(Catalog* catalog);

// ops/boxing_kernels.cc: kernels for the local steps of boxing; no operators.
void AddBoxingKernels(KernelRegistry* registry);

// A label for axis i of an operand whose labels are computed: "a", "b", ... REQUIRES: 0 <= axis < 26.
std::string Letter(int axis);
// "a b c": labels of the axes [begin, end).
std::string Letters(int begin, int end);

// Requirements for `check` and `axes_of` functions; each throws Error in the user's words.
void RequireInputs(const OpCall& call, size_t count);
void RequireFloating(const OpCall& call);  // every input
void RequireFloating(const OpCall& call, size_t input);
void RequireInteger(const OpCall& call, size_t input);        // i32 or i64
void RequireSameTypes(const OpCall& call, size_t first = 0);  // inputs from `first` on agree
void RequireSameTypes(const OpCall& call, size_t a, size_t b);
void RequireArithmetic(const OpCall& call);  // all inputs of one type other than bool
// Requires that the attribute is present; for operators used by name.
void RequireAttr(const OpCall& call, const std::string& name);
// A user's words for the axes h and w of a picture.
inline const char* const kPlaneAxes[] = {"rows", "columns"};
// Requires a first input of floating type and of 4 axes, pictures with their channels last.
void RequirePictures(const OpCall& call);
// Requires an attribute of two numbers, for rows and columns, none below `least`.
void RequirePair(const OpCall& call, const std::string& name, int64_t least);

// OpDef::dtypes: of each result its type, or the number of the input that has it.
std::function<std::vector<DType>(const OpCall&)> ResultTypes(std::vector<std::variant<int, DType>> results);

}  // namespace oneflow_like
