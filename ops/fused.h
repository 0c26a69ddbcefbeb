// The operator "fused": several elementwise operators in one pass over memory. Its attribute "program" is a
// chain of steps in single-assignment form, "outputs" lists the values written:
//
//   program="add 0 1;gelu 2;dropout 3 key=17 p=0.1" outputs=[4]
//
// Inputs are values 0 .. n-1, step j defines value n + j. Inputs and outputs are floating or bool; inputs
// have the shape of the outputs or broadcast to it. The compiler makes such nodes after signatures are
// chosen.
#pragma once

#include <string>
#include <vector>

#include "ops/op.h"

namespace oneflow_like {

struct FusedStep {
  std::string op;         // an operator that is Fusible
  std::vector<int> args;  // values
  Attrs attrs;
};

// Whether one use of an operator may become part of a chain: an elementwise operator with a scalar body
// (ops/scalar.h) or a program of such, add_n, cast or dropout, whose operands are all floating or bool.
bool Fusible(const OpDef& def, const std::vector<DType>& in, const std::vector<DType>& out);

// Whether the operator is a user's program of such steps (OpDef::scalar).
bool IsProgram(const OpDef& def);
// The steps of one use of a fusible operator: one step, or those of its program, with values 0, 1, ... for
// its operands. Throws Error, beginning with `who`, when the program cannot be parsed.
std::vector<FusedStep> StepsOf(const OpDef& def, const Attrs& attrs, int operands, const std::string& who);

// The text of a program, and back. Parsing throws Error for a step that names no fusible operator or a value
// that is not yet defined.
std::string FusedProgram(const std::vector<FusedStep>& steps);
std::vector<FusedStep> ParseFused(const std::string& program, int num_inputs,
                                  const std::string& who = "fused");

// The kernel of an operator that is a program (IsProgram): the steps' own reference kernels, element by
// element.
KernelFactory ProgramKernel(const OpDef& def);

// Types of all values: the inputs', then one for each step.
std::vector<DType> FusedTypes(const std::vector<FusedStep>& steps, const std::vector<DType>& inputs);

}  // namespace oneflow_like
