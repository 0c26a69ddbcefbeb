// Helpers for functions on Tensors: argument checks with errors in the user's words, and adding nodes.
#pragma once

#include <string>
#include <vector>

#include "ops/language/functional.h"

namespace oneflow_like {

// "matmul at gpt.cc:31", for messages; of a part of another function, that function's name. One that is made
// of others begins with `at = at.In("its_name")`.
std::string Who(const char* op, const Here& at);
// The graph of an operand. Throws Error for an undefined Tensor.
GraphBuilder* GraphOf(const char* op, const Tensor& x, const Here& at);
// Adds a node and returns its first output.
Tensor One(const char* op, const std::vector<Tensor>& in, const Attrs& attrs, const Here& at);
// The axis as a non-negative number. Throws Error when x has no such axis; `more`: when a result with so many
// axes more has none.
int64_t NormalAxis(const char* op, int64_t axis, const Tensor& x, const Here& at, int64_t more = 0);
// The same for a list; an empty list means all axes. Throws Error for an axis that is named twice.
std::vector<int64_t> NormalAxes(const char* op, std::vector<int64_t> axes, const Tensor& x, const Here& at);
// The name that the line of the operator's axes (ops/op.h), and the function, has for an input: "ids". Of one
// that any number of inputs share, and of operators that are not built in, "operand 2".
std::string OperandName(const std::string& op, size_t input);
// The same of the first input; "x" for a function that is made of several operators.
std::string FirstOperandName(const std::string& function);
// The graph of the named operand. Throws Error for an undefined Tensor.
GraphBuilder* NeedGiven(const char* op, const char* operand, const Tensor& x, const Here& at);
// Throws Error unless the named operand is of a floating type, of i32 or i64, of bool.
void NeedFloating(const char* op, const char* operand, const Tensor& x, const Here& at);
void NeedInteger(const char* op, const char* operand, const Tensor& x, const Here& at);
void NeedBool(const char* op, const char* operand, const Tensor& x, const Here& at);
// Here::In of a function. Throws Error unless its operand x is of a floating type.
inline Here InFloating(const char* function, const Tensor& x, const Here& at) {
  const Here within = at.In(function);
  NeedFloating(function, "x", x, within);
  return within;
}
// The product of these axes' extents.
int64_t Count(const Tensor& x, const std::vector<int64_t>& axes);
// x without these axes, each of extent 1, unless they are kept.
Tensor Dropped(Tensor x, const std::vector<int64_t>& axes, bool keep, const Here& at);

}  // namespace oneflow_like
