// From the plan's messages to the types the runtime works with.
#include "actor/plan_reading.h"

#include <algorithm>

namespace oneflow_like {

Dims ToDims(const plan::Dims& dims) { return Dims(dims.at().begin(), dims.at().end()); }

Box ToBox(const plan::Box& box) {
  return {Dims(box.begin().begin(), box.begin().end()), Dims(box.extent().begin(), box.extent().end())};
}

Attrs ToAttrs(const google::protobuf::RepeatedPtrField<plan::Attr>& attrs) {
  Attrs result;
  for (const plan::Attr& attr : attrs) {
    switch (attr.value_case()) {
      case plan::Attr::kI:
        result.Set(attr.name(), attr.i());
        break;
      case plan::Attr::kF:
        result.Set(attr.name(), attr.f());
        break;
      case plan::Attr::kS:
        result.Set(attr.name(), attr.s());
        break;
      case plan::Attr::kInts:
        result.Set(attr.name(), std::vector<int64_t>(attr.ints().at().begin(), attr.ints().at().end()));
        break;
      case plan::Attr::VALUE_NOT_SET:
        Fail("attribute '", attr.name(), "' of the plan has no value");
    }
  }
  return result;
}

DType ToDType(int32_t dtype) {
  if (dtype < 0 || dtype > static_cast<int32_t>(DType::kBool)) Fail("the plan names element type ", dtype);
  return static_cast<DType>(dtype);
}

namespace {

TensorArg ToArg(const plan::Operand& operand) {
  TensorArg arg;
  arg.dtype = ToDType(operand.dtype());
  arg.global = ToDims(operand.global());
  Box largest = Box::Whole(arg.global);
  for (int i = 0; i < operand.box_size(); ++i) {
    Box box = ToBox(operand.box(i));
    if (i == 0) {
      largest = box;
    } else {
      for (int a = 0; a < box.extent.rank(); ++a)
        largest.extent[a] = std::max(largest.extent[a], box.extent[a]);
    }
  }
  arg.begin = largest.begin;
  arg.extent = largest.extent;
  return arg;
}

}  // namespace

KernelSpec ToSpec(const plan::Kernel& kernel) {
  KernelSpec spec;
  spec.name = kernel.name();
  spec.attrs = ToAttrs(kernel.attr());
  for (const plan::Operand& operand : kernel.in()) spec.in.push_back(ToArg(operand));
  for (const plan::Operand& operand : kernel.out()) spec.out.push_back(ToArg(operand));
  spec.node = kernel.node();
  spec.line = SourceLine(kernel.file(), kernel.line());
  return spec;
}

}  // namespace oneflow_like
