// Converts between the plan's messages and the types that compiler and runtime work with.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/attrs.h"
#include "core/boxes/copy_box.h"
#include "core/device/kernel.h"
#include "core/dims.h"
#include "core/plan.pb.h"

namespace oneflow_like {

Dims ToDims(const plan::Dims& dims);
Box ToBox(const plan::Box& box);
Region ToRegion(const plan::Region& region);
Attrs ToAttrs(const google::protobuf::RepeatedPtrField<plan::Attr>& attrs);
// Throws Error for an element type that does not exist.
DType ToDType(int32_t dtype);
// The spec of a kernel, its operands at the largest extents of any act. An operand without a box is whole.
KernelSpec ToSpec(const plan::Kernel& kernel);

void Set(const Dims& dims, plan::Dims* message);
void Set(const Box& box, plan::Box* message);
void Set(const Region& region, plan::Region* message);
void Set(const Attrs& attrs, google::protobuf::RepeatedPtrField<plan::Attr>* message);
// Whether a buffer stands for a variable.
inline bool IsVariable(const plan::Buffer& buffer) { return !buffer.variable().empty(); }
// Bytes of the arena in a memory, which buffers and scratch take; of the device's own by default.
int64_t ArenaBytes(const plan::Plan& plan, std::string_view memory = "device");
inline bool IsOnHost(const plan::Variable& variable) { return variable.memory() == "host"; }
// The number of tensors that a collective moves, and a member's piece of one.
int OperandsOf(const plan::Collective& collective);
const plan::Piece& PieceOf(const plan::Collective& collective, int operand, int member);
// A hash of all that a plan says; of several plans, `before` is the hash of those before it.
uint64_t HashOf(const plan::Plan& plan, uint64_t before = 0);
// Shortens a plan for reading: replaces bytes in attributes by their number and hash.
void ShortenForText(plan::Plan* plan);

}  // namespace oneflow_like
