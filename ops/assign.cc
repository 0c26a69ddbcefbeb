// Giving variables a value: assign, assign_slice in place, and copy; copies from and to the host.
#include <cstring>

#include "ops/language/calls.h"
#include "ops/manifest.h"
#include "ops/reference.h"

namespace oneflow_like {
namespace {

int64_t BytesOf(const TensorArg& arg) { return arg.elements() * static_cast<int64_t>(SizeOf(arg.dtype)); }

Status AssignReference(const KernelContext& context) {
  const TensorArg &value = context.in[1], &to = context.out[0];
  if (value.data != to.data && value.elements() > 0) std::memmove(to.data, value.data, BytesOf(value));
  return {};
}

Status CopyReference(const KernelContext& context) {
  const TensorArg &from = context.in[0], &to = context.out[0];
  if (from.elements() > 0) std::memcpy(to.data, from.data, BytesOf(from));
  return {};
}

// variable, value, begin -> the variable with value at [begin, begin + extent) of the axis. In place only the
// part is touched.
Status AssignSliceReference(const KernelContext& context) {
  const TensorArg &variable = context.in[0], &value = context.in[1], &to = context.out[0];
  const int axis = static_cast<int>(context.spec.attrs.Int("axis"));
  const int64_t begin = LoadInt(context.in[2], 0), places = to.global[axis] - value.extent[axis] + 1;
  if (begin < 0 || begin >= places) return Status(Cat("index ", begin, " is outside [0, ", places, ")"));
  if (variable.data != to.data && to.elements() > 0) std::memcpy(to.data, variable.data, BytesOf(to));
  const int64_t inner = InnerOf(to.extent, axis) * static_cast<int64_t>(SizeOf(to.dtype));
  const int64_t part = value.extent[axis] * inner, whole = to.extent[axis] * inner;
  for (int64_t i = 0; part > 0 && i < OuterOf(to.extent, axis); ++i)
    std::memmove(to.as<char>() + i * whole + begin * inner, value.as<char>() + i * part, part);
  return {};
}

void CheckAssign(const OpCall& call) {
  RequireInputs(call, 2);
  if (call.dtypes[0] != call.dtypes[1])
    Fail(call.who, ": the variable is ", Name(call.dtypes[0]), " but the value is ", Name(call.dtypes[1]),
         "; cast the value");
  if (call.shapes[0] != call.shapes[1])
    Fail(call.who, ": the variable is ", call.shapes[0].str(), " but the value is ", call.shapes[1].str());
}

void CheckAssignSlice(const OpCall& call) {
  RequireInputs(call, 3);
  RequireAttr(call, "axis");
  if (call.dtypes[2] != DType::kInt32 && call.dtypes[2] != DType::kInt64)
    Fail(call.who, ": begin is ", Name(call.dtypes[2]), " but must be i32 or i64");
  if (call.dtypes[0] != call.dtypes[1])
    Fail(call.who, ": the variable is ", Name(call.dtypes[0]), " but the value is ", Name(call.dtypes[1]),
         "; cast the value");
  const Dims &variable = call.shapes[0], &value = call.shapes[1];
  const int64_t axis = call.attrs->Int("axis");
  if (axis < 0 || axis >= variable.rank())
    Fail(call.who, ": axis ", axis, " does not exist, the variable ", variable.str(), " has ",
         variable.rank());
  bool fits = value.rank() == variable.rank();
  for (int i = 0; fits && i < value.rank(); ++i)
    fits = i == axis ? value[i] <= variable[i] : value[i] == variable[i];
  if (!fits)
    Fail(call.who, ": the variable is ", variable.str(), " but the value is ", value.str(),
         "; they may differ along axis ", axis, " alone, where the value is not longer");
  if (call.shapes[2].elements() != 1)
    Fail(call.who, ": begin is ", call.shapes[2].str(), " but must be one number");
}

// A letter for each axis, and names of their own for the one that differs.
std::string SliceAxes(const OpCall& call) {
  std::string axes[2];
  for (int i = 0; i < call.shapes[0].rank(); ++i) {
    const bool cut = i == call.attrs->Int("axis");
    for (int operand : {0, 1})
      axes[operand] += (i > 0 ? " " : "") + (cut ? std::string(operand == 0 ? "all" : "part") : Letter(i));
  }
  std::string begin;
  for (int i = 0; i < call.shapes[2].rank(); ++i) begin += i > 0 ? " 1" : "1";
  return "variable[" + axes[0] + "], value[" + axes[1] + "], begin[" + begin + "] -> new[" + axes[0] + "]";
}

std::string AssignAxes(const OpCall& call) {
  std::string axes = "[" + Letters(0, call.shapes[0].rank()) + "]";
  return "variable" + axes + ", value" + axes + " -> new" + axes;
}

// Copies between the memory of a device and that of its host, which the compiler inserts (place_on_host,
// offload_activations). They are ends of graphs that gradients have been made of.
void AddHostCopies(Catalog* catalog) {
  OpDef copy{.name = "to_host",
             .doc = "x in the memory of the host.",
             .axes = "x[..] -> y[..]",
             .linear = {{"x"}},
             .grad = [](const GradCall& call) { return call.dout; },
             .category = kHostCopies,
             .flops = NoFlops,
             .reference = CopyReference,
             .precision = Precision::kFollow,
             .samples = {{.in = {{6, 4}}}, {.in = {{2, 3, 5}}, .dtypes = {DType::kInt32}}, {.in = {{}}}}};
  catalog->Add(copy);
  copy.name = "from_host";
  copy.doc = "x, which lies in the memory of the host, in that of the device.";
  catalog->Add(copy);
  catalog->Add(
      {.name = "assign_host",
       .doc = "A variable in the memory of the host takes the value.",
       .axes_of = AssignAxes,
       .check = CheckAssign,
       .category = kHostCopies,
       .flops = NoFlops,
       .reference = AssignReference,
       .inplace = {{0, 0}},
       .samples = {{.in = {{5, 7}, {5, 7}}}, {.in = {{3}, {3}}, .dtypes = {DType::kInt32, DType::kInt32}}}});
}

}  // namespace

void AddAssign(Catalog* catalog) {
  catalog->Add({
      .name = "assign",
      .doc = "The variable takes the value when the step's other readers have read what it held.",
      .axes_of = AssignAxes,
      .check = CheckAssign,
      .flops = [](const BoundRule&) { return 0.0; },
      .reference = AssignReference,
      .inplace = {{0, 0}},
      .samples = {{.in = {{5, 7}, {5, 7}}},
                  {.in = {{3}, {3}}, .dtypes = {DType::kInt32, DType::kInt32}},
                  {.in = {{}, {}}}},
  });
  catalog->Add({
      .name = "assign_slice",
      .doc = "The variable takes the value in a part of one axis.",
      .axes_of = SliceAxes,
      .whole = {"all", "part"},
      .turns_of =
          [](const OpCall& call) {
            return call.attrs->Has("each_micro_batch") ? std::set<std::string>{"part"}
                                                       : std::set<std::string>();
          },
      .check = CheckAssignSlice,
      .flops = [](const BoundRule&) { return 0.0; },
      .reference = AssignSliceReference,
      .inplace = {{0, 0}},
      .writes_part = true,
      .samples = {{.in = {{5, 7}, {2, 7}, {}},
                   .attrs = {{"axis", int64_t{0}}},
                   .dtypes = {DType::kFloat32, DType::kFloat32, DType::kInt32}},
                  {.in = {{3, 9, 2}, {3, 5, 2}, {1}},
                   .attrs = {{"axis", int64_t{1}}},
                   .dtypes = {DType::kFloat32, DType::kFloat32, DType::kInt64}},
                  {.in = {{3, 4}, {3, 0}, {}},
                   .attrs = {{"axis", int64_t{1}}},
                   .dtypes = {DType::kFloat32, DType::kFloat32, DType::kInt32}}},
  });
  AddHostCopies(catalog);
  catalog->Add({
      .name = "copy",
      .doc = "x itself, in memory of its own.",
      .axes = "x[..] -> y[..]",
      .linear = {{"x"}},
      .grad = [](const GradCall& call) { return call.dout; },
      .flops = [](const BoundRule&) { return 0.0; },
      .reference = CopyReference,
      .precision = Precision::kFollow,
      .samples = {{.in = {{6, 4}}}, {.in = {{2, 3, 5}}, .dtypes = {DType::kInt32}}, {.in = {{}}}},
  });
}

}  // namespace oneflow_like
