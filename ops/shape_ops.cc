// Operators that move elements without computing: transpose, slice, concat, pad and broadcast_to. All are
// linear: they carry partial sums.
#include <cstring>

#include "ops/along_axis.h"
#include "ops/language/functional.h"
#include "ops/manifest.h"
#include "ops/reference.h"

namespace oneflow_like {
namespace {

// --- Reference kernels ---------------------------------------------------------------------------

// Copies `rows` of x's axis, from row `x_begin`, to row `y_begin` of y's; all other extents agree.
void CopyRows(const TensorArg& x, const TensorArg& y, int axis, int64_t x_begin, int64_t y_begin,
              int64_t rows) {
  int64_t outer = OuterOf(x.extent, axis);
  int64_t row = InnerOf(x.extent, axis) * static_cast<int64_t>(SizeOf(x.dtype));
  if (rows * row == 0) return;
  for (int64_t o = 0; o < outer; ++o) {
    std::memcpy(y.as<char>() + (o * y.extent[axis] + y_begin) * row,
                x.as<char>() + (o * x.extent[axis] + x_begin) * row, rows * row);
  }
}

int AxisOf(const Attrs& attrs) { return static_cast<int>(attrs.Int("axis")); }

// The distance of neighbours along the axis: in x of a slice, in y of a pad.
int64_t StepOf(const Attrs& attrs) { return attrs.Int("step", 1); }
// From the first of `count` such elements to the last.
int64_t Covered(int64_t count, int64_t step) { return count == 0 ? 0 : (count - 1) * step + 1; }

Status SliceAxis(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  int axis = AxisOf(context.spec.attrs);
  int64_t begin = context.spec.attrs.Int("begin"), step = StepOf(context.spec.attrs);
  if (step == 1) {
    CopyRows(x, y, axis, begin, 0, y.extent[axis]);
  } else {
    for (int64_t i = 0; i < y.extent[axis]; ++i) CopyRows(x, y, axis, begin + i * step, i, 1);
  }
  return Status();
}

Status Concat(const KernelContext& context) {
  int axis = AxisOf(context.spec.attrs);
  int64_t begin = 0;
  for (const TensorArg& x : context.in) {
    CopyRows(x, context.out[0], axis, 0, begin, x.extent[axis]);
    begin += x.extent[axis];
  }
  return Status();
}

Status Pad(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  int axis = AxisOf(context.spec.attrs);
  if (y.elements() > 0) std::memset(y.data, 0, y.elements() * SizeOf(y.dtype));
  int64_t before = context.spec.attrs.Int("before"), step = StepOf(context.spec.attrs);
  if (step == 1) {
    CopyRows(x, y, axis, 0, before, x.extent[axis]);
  } else {
    for (int64_t i = 0; i < x.extent[axis]; ++i) CopyRows(x, y, axis, i, before + i * step, 1);
  }
  return Status();
}

Status Transpose(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  const std::vector<int64_t>& order = context.spec.attrs.Ints("order");
  size_t size = SizeOf(x.dtype);
  char* to = y.as<char>();
  ForEachIndex(y.extent, [&](const Dims& index) {
    Dims from = index;
    for (int i = 0; i < index.rank(); ++i) from[static_cast<int>(order[i])] = index[i];
    std::memcpy(to, x.as<char>() + OffsetOf(x.extent, from) * size, size);
    to += size;
  });
  return Status();
}

Status BroadcastTo(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  size_t size = SizeOf(x.dtype);
  char* to = y.as<char>();
  ForEachIndex(y.extent, [&](const Dims& index) {
    std::memcpy(to, x.as<char>() + BroadcastOffset(x.extent, index) * size, size);
    to += size;
  });
  return Status();
}

// --- Rules ---------------------------------------------------------------------------------------

int CheckedAxis(const OpCall& call) {
  if (call.shapes.empty()) Fail(call.who, ": takes at least 1 input but was given 0");
  RequireAttr(call, "axis");
  int64_t axis = call.attrs->Int("axis");
  if (axis < 0 || axis >= call.shapes[0].rank()) {
    Fail(call.who, ": axis ", axis, " is outside its operand of ", call.shapes[0].rank(), " axes");
  }
  return static_cast<int>(axis);
}

// slice and pad: x's axis becomes another one, of another extent, and neither can be cut.
OpDef ResizeOp(const std::string& name, const std::string& doc, int64_t (*extent)(int64_t, const Attrs&),
               KernelFn reference) {
  OpDef def{.name = name, .doc = doc};
  def.axes_of = [](const OpCall& call) {
    int rank = call.shapes[0].rank(), axis = CheckedAxis(call);
    return "x[" + LettersAround(rank, axis, "old") + "] -> y[" + LettersAround(rank, axis, "new") + "]";
  };
  def.whole = {"old", "new"};
  def.extents = [extent](const OpCall& call) {
    return std::map<std::string, int64_t>{{"new", extent(call.shapes[0][CheckedAxis(call)], *call.attrs)}};
  };
  def.linear = {{"x"}};
  def.flops = [](const BoundRule&) { return 0.0; };
  def.precision = Precision::kFollow;
  def.reference = reference;
  return def;
}

void CheckStep(const OpCall& call) {
  if (StepOf(*call.attrs) < 1) Fail(call.who, ": step is ", StepOf(*call.attrs), " but must be at least 1");
}

// pad() of an operand with zeros between its elements, too.
Tensor PadApart(Tensor x, int64_t axis, int64_t before, int64_t after, int64_t step) {
  if (step == 1) return pad(x, axis, before, after);
  Attrs attrs = {{"axis", axis}, {"before", before}, {"after", after}, {"step", step}};
  return Apply(x.graph(), "pad", {x}, attrs)[0];
}

void AddSlice(Catalog* catalog) {
  OpDef cut = ResizeOp(
      "slice", "The part [begin, end) of one axis; with a step, every step-th index of it.",
      [](int64_t, const Attrs& attrs) {
        return (attrs.Int("end") - attrs.Int("begin") + StepOf(attrs) - 1) / StepOf(attrs);
      },
      SliceAxis);
  cut.check = [](const OpCall& call) {
    RequireInputs(call, 1);
    int axis = CheckedAxis(call);
    RequireAttr(call, "begin");
    RequireAttr(call, "end");
    CheckStep(call);
    int64_t begin = call.attrs->Int("begin"), end = call.attrs->Int("end"), extent = call.shapes[0][axis];
    if (begin < 0 || begin > end || end > extent) {
      Fail(call.who, ": [", begin, ", ", end, ") is not a part of axis ", axis, ", which is ", extent);
    }
  };
  cut.grad = [](const GradCall& c) {
    int axis = AxisOf(c.attrs);
    int64_t extent = c.in[0].shape()[axis], begin = c.attrs.Int("begin"), step = StepOf(c.attrs);
    int64_t after = extent - begin - Covered(c.out[0].shape()[axis], step);
    return std::vector<Tensor>{PadApart(c.dout[0], axis, begin, after, step)};
  };
  auto part = [](int64_t axis, int64_t begin, int64_t end) {
    return Attrs{{"axis", axis}, {"begin", begin}, {"end", end}};
  };
  cut.samples = {{.in = {{6, 8}}, .attrs = part(1, 2, 5)}, {.in = {{6, 4, 5}}, .attrs = part(0, 0, 4)}};
  for (int64_t step : {2, 3}) {
    Sample apart{.in = {{6, 8, 3}}, .attrs = part(1, 1, 8)};
    apart.attrs.Set("step", step);
    cut.samples.push_back(apart);
  }
  catalog->Add(std::move(cut));
}

void AddPad(Catalog* catalog) {
  OpDef zeros = ResizeOp(
      "pad", "Zeros before and after along one axis; with a step, step - 1 zeros between neighbours too.",
      [](int64_t x, const Attrs& attrs) {
        return attrs.Int("before") + Covered(x, StepOf(attrs)) + attrs.Int("after");
      },
      Pad);
  zeros.check = [](const OpCall& call) {
    RequireInputs(call, 1);
    CheckedAxis(call);
    CheckStep(call);
    RequireExtents(call.who, {StepOf(*call.attrs)});  // so that its product with an extent is a number
    for (const char* name : {"before", "after"}) {
      RequireAttr(call, name);
      if (call.attrs->Int(name) < 0)
        Fail(call.who, ": ", name, " is ", call.attrs->Int(name), " but must not be negative");
      RequireExtents(call.who, {call.attrs->Int(name)});
    }
  };
  zeros.grad = [](const GradCall& c) {
    int axis = AxisOf(c.attrs);
    int64_t before = c.attrs.Int("before"), step = StepOf(c.attrs);
    int64_t end = before + Covered(c.in[0].shape()[axis], step);
    return std::vector<Tensor>{slice(c.dout[0], axis, before, end, step)};
  };
  auto around = [](int64_t axis, int64_t before, int64_t after) {
    return Attrs{{"axis", axis}, {"before", before}, {"after", after}};
  };
  zeros.samples = {{.in = {{6, 4}}, .attrs = around(1, 2, 1)}, {.in = {{3, 6, 4}}, .attrs = around(0, 0, 3)}};
  Sample apart{.in = {{6, 4, 3}}, .attrs = around(1, 1, 2)};
  apart.attrs.Set("step", int64_t{3});
  zeros.samples.push_back(apart);
  catalog->Add(std::move(zeros));
}

void AddConcat(Catalog* catalog) {
  OpDef def{.name = "concat", .doc = "Tensors one after another along one axis."};
  def.axes_of = [](const OpCall& call) {
    int rank = call.shapes[0].rank(), axis = CheckedAxis(call);
    std::string in;
    for (size_t i = 0; i < call.shapes.size(); ++i) {
      in += (i == 0 ? "" : ", ") + Cat("x", i, "[", LettersAround(rank, axis, Cat("part", i)), "]");
    }
    return in + " -> y[" + LettersAround(rank, axis, "all") + "]";
  };
  def.whole_of = [](const OpCall& call) {
    std::set<std::string> whole = {"all"};
    for (size_t i = 0; i < call.shapes.size(); ++i) whole.insert(Cat("part", i));
    return whole;
  };
  def.linear_of = [](const OpCall& call) {
    std::set<std::string> all;
    for (size_t i = 0; i < call.shapes.size(); ++i) all.insert(Cat("x", i));
    return std::vector<std::set<std::string>>{all};
  };
  def.extents = [](const OpCall& call) {
    int axis = CheckedAxis(call);
    int64_t all = 0;
    for (const Dims& shape : call.shapes) all += shape[axis];
    return std::map<std::string, int64_t>{{"all", all}};
  };
  def.check = [](const OpCall& call) {
    const int along = CheckedAxis(call);
    RequireSameTypes(call);
    const Dims& first = call.shapes[0];
    for (size_t i = 1; i < call.shapes.size(); ++i) {
      const Dims& other = call.shapes[i];
      if (other.rank() != first.rank())
        Fail(call.who, ": operand 1 has ", first.rank(), " axes but operand ", i + 1, " has ", other.rank());
      for (int axis = 0; axis < first.rank(); ++axis)
        if (axis != along && other[axis] != first[axis])
          Fail(call.who, ": axis ", axis, " is ", first[axis], " in operand 1 but ", other[axis],
               " in operand ", i + 1, "; only axis ", along, " may differ");
    }
  };
  def.flops = [](const BoundRule&) { return 0.0; };
  def.grad = [](const GradCall& c) {
    int64_t axis = c.attrs.Int("axis"), begin = 0;
    std::vector<Tensor> d(c.in.size());
    for (size_t i = 0; i < d.size(); ++i) {
      int64_t end = begin + c.in[i].shape()[static_cast<int>(axis)];
      if (c.wanted[i]) d[i] = slice(c.dout[0], axis, begin, end);
      begin = end;
    }
    return d;
  };
  def.precision = Precision::kFollow;
  def.reference = Concat;
  def.samples = {{.in = {{6, 2}, {6, 3}, {6, 1}}, .attrs = {{"axis", int64_t{1}}}},
                 {.in = {{2, 6}, {3, 6}}, .attrs = {{"axis", int64_t{0}}}}};
  catalog->Add(std::move(def));
}

void AddTranspose(Catalog* catalog) {
  OpDef def{.name = "transpose", .doc = "Axis i of the result is axis order[i] of x."};
  def.axes_of = [](const OpCall& call) {
    std::string out;
    for (int64_t axis : call.attrs->Ints("order")) {
      out += (out.empty() ? "" : " ") + Letter(static_cast<int>(axis));
    }
    return "x[" + Letters(0, call.shapes[0].rank()) + "] -> y[" + out + "]";
  };
  def.linear = {{"x"}};
  def.check = [](const OpCall& call) {
    RequireInputs(call, 1);
    RequireAttr(call, "order");
    const std::vector<int64_t>& order = call.attrs->Ints("order");
    int rank = call.shapes[0].rank();
    std::set<int64_t> axes(order.begin(), order.end());
    bool all = axes.size() == order.size() && static_cast<int>(order.size()) == rank &&
               (rank == 0 || (*axes.begin() == 0 && *axes.rbegin() == rank - 1));
    if (!all) {
      Fail(call.who, ": order ", Dims(order.begin(), order.end()).str(), " must name each of the ", rank,
           " axes of its operand once");
    }
  };
  def.flops = [](const BoundRule&) { return 0.0; };
  def.grad = [](const GradCall& c) {
    const std::vector<int64_t>& order = c.attrs.Ints("order");
    std::vector<int64_t> inverse(order.size());
    for (size_t i = 0; i < order.size(); ++i) inverse[order[i]] = static_cast<int64_t>(i);
    return std::vector<Tensor>{transpose(c.dout[0], inverse)};
  };
  def.precision = Precision::kFollow;
  def.reference = Transpose;
  auto order = [](std::vector<int64_t> o) { return Attrs{{"order", std::move(o)}}; };
  def.samples = {{.in = {{6, 4}}, .attrs = order({1, 0})},
                 {.in = {{3, 4, 5}}, .attrs = order({2, 0, 1})},
                 {.in = {{2, 3, 4, 5}}, .attrs = order({0, 2, 1, 3})}};
  catalog->Add(std::move(def));
}

void AddBroadcastTo(Catalog* catalog) {
  OpDef def{.name = "broadcast_to", .doc = "x repeated along new leading axes and along axes of extent 1."};
  def.axes_of = [](const OpCall& call) {
    Dims x = call.shapes[0], shape = call.attrs->GetDims("shape");
    int lead = shape.rank() - x.rank();
    std::string in;
    for (int i = 0; i < x.rank(); ++i) {
      in += (i == 0 ? "" : " ") + (x[i] == 1 && shape[lead + i] != 1 ? "1" : Letter(lead + i));
    }
    return "x[" + in + "] -> y[" + Letters(0, shape.rank()) + "]";
  };
  def.extents = [](const OpCall& call) {
    Dims shape = call.attrs->GetDims("shape");
    std::map<std::string, int64_t> extents;
    for (int i = 0; i < shape.rank(); ++i) extents[Letter(i)] = shape[i];
    return extents;
  };
  def.check = [](const OpCall& call) {
    RequireInputs(call, 1);
    RequireAttr(call, "shape");
    Dims x = call.shapes[0], shape = call.attrs->GetDims("shape");
    int lead = shape.rank() - x.rank();
    if (lead < 0) Fail(call.who, ": ", x.str(), " has more axes than ", shape.str());
    for (int i = 0; i < x.rank(); ++i) {
      if (x[i] != 1 && x[i] != shape[lead + i]) {
        Fail(call.who, ": axis ", i, " is ", x[i], " but must be 1 or ", shape[lead + i], " to become ",
             shape[lead + i]);
      }
    }
  };
  def.linear = {{"x"}};
  def.flops = [](const BoundRule&) { return 0.0; };
  def.grad = [](const GradCall& c) { return std::vector<Tensor>{sum_to(c.dout[0], c.in[0].shape())}; };
  def.precision = Precision::kFollow;
  def.reference = BroadcastTo;
  auto to = [](std::vector<int64_t> shape) { return Attrs{{"shape", std::move(shape)}}; };
  def.samples = {{.in = {{4}}, .attrs = to({6, 4})},
                 {.in = {{6, 1}}, .attrs = to({3, 6, 4})},
                 {.in = {{}}, .attrs = to({6})},
                 {.in = {{6, 4}}, .attrs = to({6, 4})}};
  catalog->Add(std::move(def));
}

}  // namespace

void AddShapeOps(Catalog* catalog) {
  AddTranspose(catalog);
  AddSlice(catalog);
  AddPad(catalog);
  AddConcat(catalog);
  AddBroadcastTo(catalog);
}

}  // namespace oneflow_like
