// OracleTest: checks that an operator of your own does what its entry says.
#pragma once

#include <string>

#include "ops/op.h"

namespace oneflow_like {

// Runs every sample of the entry (OpDef::samples) whole, and cut by each signature that its axes allow over
// meshes of 2, 3 and 2x2 devices and over micro-batches; again with extents of 0, 1, 2, 5 and 6 in place of
// each, and with other types if the entry accepts them. The pieces together must equal the whole, within 2e-5
// in fp32. Then the gradient, if there is one, is compared with finite differences, within 3e-3. Inputs are
// random, but the same on every machine.
//
// Returns a line for each kind of fault, with operator, shapes, signature and values; empty if there is none.
// `others` are operators that the gradient or the kernel's samples need beside built-in ones. An entry
// without samples, or with a gradient that no sample can test, is a fault.
std::string OracleTest(const OpDef& def, const std::vector<OpDef>& others = {});

}  // namespace oneflow_like
