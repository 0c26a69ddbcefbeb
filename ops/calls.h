// How functions on Tensors add nodes: the checks that each begins with, in the user's words.
#pragma once

#include <string>
#include <vector>

#include "ops/functional.h"

namespace oneflow_like {

// "matmul at gpt.cc:31", for messages.
std::string Who(const char* op, const Here& at);
// The graph of an operand. Throws Error for a Tensor that was never given a value.
GraphBuilder* GraphOf(const char* op, const Tensor& x, const Here& at);
// A node of one output (the first).
Tensor One(const char* op, const std::vector<Tensor>& in, const Attrs& attrs, const Here& at);
// The axis as a number that is not negative. Throws Error when x has none such.
int64_t NormalAxis(const char* op, int64_t axis, const Tensor& x, const Here& at);
// The same of many; all axes when none is named. Throws Error for one that is named twice.
std::vector<int64_t> NormalAxes(const char* op, std::vector<int64_t> axes, const Tensor& x, const Here& at);
// Throws Error unless x is of a floating type, of bool.
void NeedFloating(const char* op, const char* operand, const Tensor& x, const Here& at);
void NeedBool(const char* op, const char* operand, const Tensor& x, const Here& at);
// The extents of these axes multiplied.
int64_t Count(const Tensor& x, const std::vector<int64_t>& axes);
// x without these axes, each of extent 1, unless they are kept.
Tensor Dropped(Tensor x, const std::vector<int64_t>& axes, bool keep, const Here& at);

}  // namespace oneflow_like
