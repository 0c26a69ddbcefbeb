// From the plan's messages to the types the runtime works with.
#pragma once

#include "core/attrs.h"
#include "core/dims.h"
#include "core/kernel.h"
#include "core/plan.pb.h"

namespace oneflow_like {

Dims ToDims(const plan::Dims& dims);
Box ToBox(const plan::Box& box);
Attrs ToAttrs(const google::protobuf::RepeatedPtrField<plan::Attr>& attrs);
// Throws Error for an element type that does not exist.
DType ToDType(int32_t dtype);
// The spec of a kernel, its operands at the largest extents of any act. An operand without a box is whole.
KernelSpec ToSpec(const plan::Kernel& kernel);

}  // namespace oneflow_like
