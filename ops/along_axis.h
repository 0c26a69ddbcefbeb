// Shared by operators along one axis: attribute "axis", their labels, a tensor seen as [outer, along, inner],
// and what operators by index have in common.
#pragma once

#include <string>
#include <vector>

#include "core/device/kernel.h"
#include "ops/language/calls.h"
#include "ops/manifest.h"
#include "ops/reference.h"

namespace oneflow_like {

// Attribute "axis" of a call, an axis of input `input`; throws Error where there is none.
inline int RequireAxis(const OpCall& call, size_t input = 0) {
  RequireAttr(call, "axis");
  int64_t axis = call.attrs->Int("axis"), rank = call.shapes[input].rank();
  if (axis < 0 || axis >= rank) {
    Fail(call.who, ": axis ", axis, " does not exist, its operand ", call.shapes[input].str(), " has ", rank,
         rank == 1 ? " axis" : " axes");
  }
  return static_cast<int>(axis);
}

// Requires numbers of any type: flags cannot be summed over ranks.
inline void RequireNumbers(const OpCall& call, size_t input) {
  if (call.dtypes[input] == DType::kBool)
    Fail(call.who, ": ", OperandName(call.op, input), " is bool but must be numbers; cast it");
}

// Requires the types of sums by index: floating types, i32 and i64.
inline void RequireSummable(const OpCall& call, size_t input) {
  DType dtype = call.dtypes[input];
  if (!IsFloating(dtype) && dtype != DType::kInt32 && dtype != DType::kInt64)
    Fail(call.who, ": ", OperandName(call.op, input), " is ", Name(dtype),
         " but must be of a floating type, i32 or i64; cast it");
}

// "a b v d": the letters of `rank` axes with `label` on `axis`.
inline std::string LettersAround(int rank, int axis, const std::string& label) {
  std::string text;
  for (int i = 0; i < rank; ++i) text += (i == 0 ? "" : " ") + (i == axis ? label : Letter(i));
  return text;
}

inline int AxisOf(const KernelSpec& spec) { return static_cast<int>(spec.attrs.Int("axis")); }

struct AroundAxis {
  int64_t outer, along, inner;
  AroundAxis(const TensorArg& arg, int axis)
      : outer(OuterOf(arg.extent, axis)), along(arg.extent[axis]), inner(InnerOf(arg.extent, axis)) {}
};

// The step's error for an index out of range.
inline Status IndexOutside(int64_t id, int64_t limit) {
  return Status(Cat("index ", id, " is outside [0, ", limit, ")"));
}

// Fails for the first index outside [0, limit).
inline Status CheckIndices(const TensorArg& ids, int64_t limit) {
  for (int64_t i = 0; i < ids.elements(); ++i) {
    int64_t id = LoadInt(ids, i);
    if (id < 0 || id >= limit) return IndexOutside(id, limit);
  }
  return Status();
}

// --- Rules of operators by index: a letter for every axis of x, "v" for the one that is indexed, "i", "j",
// ... for those of ids ---

constexpr int kIds = 8;

inline std::string JoinedLabels(const std::vector<std::string>& lists) {
  std::string text;
  for (const std::string& list : lists) text += (text.empty() || list.empty() ? "" : " ") + list;
  return text;
}

// The axes of a tensor of `rank` axes with `label` (or labels) instead of one of them.
inline std::string AxesWith(int rank, int axis, const std::string& labels) {
  return JoinedLabels({Letters(0, axis), labels, Letters(axis + 1, rank)});
}

inline std::string IdLetters(const Dims& ids) { return Letters(kIds, kIds + ids.rank()); }

// Attribute "batched" of take and index_sum: ids[a.. i] has indices of its own for each index of the axes
// before the one that is indexed.
inline bool Batched(const Attrs& attrs) { return attrs.Has("batched"); }

// x[a v c] and ids[a i c] of equal extents but on the axis `free`; -1: on all.
inline void CheckAlong(const OpCall& call, size_t ids, size_t other, const char* name, int free) {
  const Dims &a = call.shapes[ids], &b = call.shapes[other];
  if (a.rank() != b.rank())
    Fail(call.who, ": ids ", a.str(), " has ", a.rank(), a.rank() == 1 ? " axis" : " axes", " but ", name,
         " ", b.str(), " has ", b.rank());
  for (int axis = 0; axis < a.rank(); ++axis)
    if (axis != free && a[axis] != b[axis])
      Fail(call.who, ": axis ", axis, " of ids ", a.str(), " is ", a[axis], " but of ", name, " ", b.str(),
           " is ", b[axis], free < 0 ? std::string() : Cat("; only axis ", free, " may differ"));
}

}  // namespace oneflow_like
