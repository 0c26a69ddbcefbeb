// Elements by index along any axis: take and take_along_axis, and the sums that are their gradients. The axis
// that is indexed may be cut: each rank serves the indices in its range, gives zero for the others, and keeps
// the sums of its range. Sums may have a third operand, x of the result's shape and type, to which they are
// added (compiler/passes/fuse_epilogue.cc makes these).
#include "ops/along_axis.h"
#include "ops/language/sparse.h"

namespace oneflow_like {
namespace {

// --- Reference kernels ---------------------------------------------------------------------------

// kAlong: ids has an index for every element; else one for every part along the axis, of all outer indices
// or, batched, of each.
template <bool kAlong>
Status Take(const KernelContext& context) {
  const TensorArg &x = context.in[0], &ids = context.in[1], &y = context.out[0];
  int axis = AxisOf(context.spec);
  if (Status checked = CheckIndices(ids, x.global[axis]); !checked.ok()) return checked;
  AroundAxis at(x, axis);
  const bool batched = Batched(context.spec.attrs);
  int64_t count = kAlong || batched ? ids.extent[axis] : ids.elements();
  DispatchType(x.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t i = 0; i < y.elements(); ++i) {
      int64_t c = i % at.inner, j = i / at.inner % count, o = i / at.inner / count;
      int64_t row = LoadInt(ids, kAlong ? i : batched ? o * count + j : j) - x.begin[axis];
      bool here = row >= 0 && row < at.along;
      y.as<T>()[i] = here ? x.as<T>()[(o * at.along + row) * at.inner + c] : T{};
    }
  });
  return Status();
}

template <bool kAlong>
Status SumByIndex(const KernelContext& context) {
  const TensorArg &ids = context.in[0], &from = context.in[1], &y = context.out[0];
  const TensorArg* x = context.in.size() > 2 ? &context.in[2] : nullptr;
  int axis = AxisOf(context.spec);
  if (Status checked = CheckIndices(ids, y.global[axis]); !checked.ok()) return checked;
  AroundAxis at(y, axis);
  const bool batched = Batched(context.spec.attrs);
  int64_t count = kAlong || batched ? ids.extent[axis] : ids.elements();
  DispatchType(from.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t i = 0; i < y.elements(); ++i) {
      int64_t c = i % at.inner, row = i / at.inner % at.along, o = i / at.inner / at.along;
      Wide<T> sum = 0;
      if (x)
        DispatchType(x->dtype, [&](auto of) { sum = static_cast<Wide<T>>(Load(x->as<decltype(of)>() + i)); });
      for (int64_t j = 0; j < count; ++j) {
        int64_t offset = (o * count + j) * at.inner + c;
        if (LoadInt(ids, kAlong ? offset : batched ? o * count + j : j) == y.begin[axis] + row)
          sum += Load(from.as<T>() + offset);
      }
      DispatchType(y.dtype, [&](auto to) { Store(y.as<decltype(to)>() + i, sum); });
    }
  });
  return Status();
}

// --- Rules -------------------------------------------------------------------------------------

std::map<std::string, int64_t> ExtentOfAxis(const OpCall& call) { return {{"v", call.attrs->Int("extent")}}; }

void CheckExtent(const OpCall& call) {
  RequireAttr(call, "extent");
  if (call.attrs->Int("extent") < 0)
    Fail(call.who, ": extent is ", call.attrs->Int("extent"), " but must not be negative");
}

bool AddsToX(const OpCall& call) { return call.shapes.size() == 3; }

// ids, src and perhaps x.
void CheckSums(const OpCall& call) {
  if (!AddsToX(call)) RequireInputs(call, 2);
  RequireInteger(call, 0);
  RequireSummable(call, 1);
  if (!AddsToX(call)) return;
  DType result = call.dtypes[1];
  if (call.attrs->Has("dtype")) ParseDType(call.attrs->Str("dtype"), &result);
  if (call.dtypes[2] != result)
    Fail(call.who, ": x is ", Name(call.dtypes[2]), " but the sums are ", Name(result), "; cast one of them");
}

// The line of sums of `in` that have the axes `y`.
std::string SumsLine(const OpCall& call, const std::string& in, const std::string& y) {
  return in + (AddsToX(call) ? ", x[" + y + "]" : "") + " -> y[" + y + "]";
}

// How sums over cut ids, which have these labels, recombine. With x they do not: it would be added more than
// once.
std::map<std::string, Reduce> SumsFolds(const OpCall& call, const std::vector<std::string>& labels) {
  std::map<std::string, Reduce> folds;
  if (AddsToX(call)) return folds;
  for (const std::string& label : labels) folds[label] = Reduce::kSum;
  return folds;
}

// Partial sums of src add up, to an x of partial sums where there is one.
std::vector<std::set<std::string>> LinearSums(const OpCall& call, const std::string& src) {
  if (AddsToX(call)) return {{src, "x"}};
  return {{src}};
}

// The gradients of ids, src and x, given that of src.
std::vector<Tensor> SumsGrad(const GradCall& c, Tensor dsrc) {
  std::vector<Tensor> din = {Tensor(), dsrc};
  if (c.in.size() == 3) din.push_back(c.dout[0]);
  return din;
}

double OneForEach(const BoundRule& rule) { return static_cast<double>(rule.in[1].shape.elements()); }

Attrs At(int64_t axis) { return {{"axis", axis}}; }
Attrs At(int64_t axis, int64_t extent) { return {{"axis", axis}, {"extent", extent}}; }

Attrs InBatches(Attrs attrs) {
  attrs.Set("batched", int64_t{1});
  return attrs;
}

// The labels of ids, and those that stand in place of the axis.
std::string LabelsOfIds(const OpCall& call, size_t ids) {
  if (!Batched(*call.attrs)) return IdLetters(call.shapes[ids]);
  return JoinedLabels({Letters(0, static_cast<int>(call.attrs->Int("axis"))), Letter(kIds)});
}
std::string LabelsInPlace(const OpCall& call, size_t ids) {
  return Batched(*call.attrs) ? Letter(kIds) : IdLetters(call.shapes[ids]);
}

// ids has the axes of `other` before the one that is indexed, which may differ in x.
void CheckBatches(const OpCall& call, size_t ids, size_t other, const char* name) {
  const Dims &a = call.shapes[ids], &b = call.shapes[other];
  const int axis = static_cast<int>(call.attrs->Int("axis")), same = axis + (other == 1);
  if (a.rank() != axis + 1 || Dims(a.begin(), a.begin() + same) != Dims(b.begin(), b.begin() + same))
    Fail(call.who, ": ids is ", a.str(), " but must have the axes of ", name, " ", b.str(), " before axis ",
         axis, ", and one of indices");
}

void AddTakeParts(Catalog* catalog) {
  const DType f = DType::kFloat32, i = DType::kInt32, l = DType::kInt64;
  OpDef take{.name = "take", .doc = "The parts of x along one axis that ids names."};
  take.axes_of = [](const OpCall& call) {
    int rank = call.shapes[0].rank(), axis = RequireAxis(call);
    return "x[" + AxesWith(rank, axis, "v") + "], ids[" + LabelsOfIds(call, 1) + "] -> y[" +
           AxesWith(rank, axis, LabelsInPlace(call, 1)) + "]";
  };
  take.folds = {{"v", Reduce::kSum}};
  take.linear = {{"x"}};
  take.check = [](const OpCall& call) {
    RequireInputs(call, 2);
    RequireAxis(call);
    RequireNumbers(call, 0);
    RequireInteger(call, 1);
    if (Batched(*call.attrs)) return CheckBatches(call, 1, 0, "x");
    int rank = call.shapes[0].rank() - 1 + call.shapes[1].rank();
    if (rank > Dims::kMaxRank)
      Fail(call.who, ": x ", call.shapes[0].str(), " taken by ids ", call.shapes[1].str(), " would have ",
           rank, " axes, but a tensor has at most ", Dims::kMaxRank);
  };
  take.flops = NoFlops;
  take.chosen = {"v", "ids"};
  take.grad = [](const GradCall& c) {
    int64_t axis = c.attrs.Int("axis");
    Attrs attrs = At(axis, c.in[0].shape()[static_cast<int>(axis)]);
    if (Batched(c.attrs)) attrs.Set("batched", int64_t{1});
    return std::vector<Tensor>{Apply(c.in[0].graph(), "index_sum", {c.in[1], c.dout[0]}, attrs)[0], Tensor()};
  };
  take.precision = Precision::kFollow;
  take.reference = Take<false>;
  take.samples = {{.in = {{6, 4}, {5}}, .attrs = At(0), .dtypes = {f, i}, .limit = 6},
                  {.in = {{3, 5, 2}, {4}}, .attrs = At(1), .dtypes = {f, l}, .limit = 5},
                  {.in = {{3, 7}, {2, 3}}, .attrs = At(1), .dtypes = {f, i}, .limit = 7},
                  {.in = {{4, 5}, {}}, .attrs = At(0), .dtypes = {l, l}, .limit = 4},
                  {.in = {{3, 5, 2}, {3, 4}}, .attrs = InBatches(At(1)), .dtypes = {f, i}, .limit = 5},
                  {.in = {{2, 3, 6}, {2, 3, 4}}, .attrs = InBatches(At(2)), .dtypes = {f, l}, .limit = 6}};
  catalog->Add(std::move(take));
}

void AddIndexSum(Catalog* catalog) {
  const DType f = DType::kFloat32, i = DType::kInt32, l = DType::kInt64;
  OpDef sum;
  sum.name = "index_sum";
  sum.doc = "Parts of src added up along one axis: each to the part of the result that its index names.";
  sum.axes_of = [](const OpCall& call) {
    int rank = call.shapes[1].rank() - (Batched(*call.attrs) ? 0 : call.shapes[0].rank() - 1),
        axis = static_cast<int>(call.attrs->Int("axis"));
    const std::string in =
        "ids[" + LabelsOfIds(call, 0) + "], src[" + AxesWith(rank, axis, LabelsInPlace(call, 0)) + "]";
    return SumsLine(call, in, AxesWith(rank, axis, "v"));
  };
  sum.folds_of = [](const OpCall& call) {
    std::vector<std::string> labels;
    const int axes = Batched(*call.attrs) ? 1 : call.shapes[0].rank();
    for (int a = 0; a < axes; ++a) labels.push_back(Letter(kIds + a));
    return SumsFolds(call, labels);
  };
  sum.linear_of = [](const OpCall& call) { return LinearSums(call, "src"); };
  sum.extents = ExtentOfAxis;
  sum.check = [](const OpCall& call) {
    CheckSums(call);
    RequireAttr(call, "axis");
    CheckExtent(call);
    if (Batched(*call.attrs)) return RequireAxis(call, 1), CheckBatches(call, 0, 1, "src");
    int64_t axis = call.attrs->Int("axis");
    int ids = call.shapes[0].rank(), rank = call.shapes[1].rank() - ids + 1;
    if (axis < 0 || axis >= rank)
      Fail(call.who, ": src ", call.shapes[1].str(), " has ", call.shapes[1].rank(),
           " axes but needs at least ", axis + ids, ", those of ids from axis ", axis, " on");
    const auto first = call.shapes[1].begin() + axis;
    if (const Dims part(first, first + ids); part != call.shapes[0])
      Fail(call.who, ": ids is ", call.shapes[0].str(), " but src ", call.shapes[1].str(), " is ", part.str(),
           " from axis ", axis, " on");
  };
  sum.dtypes = ResultTypes({1});
  sum.flops = OneForEach;
  sum.grad = [](const GradCall& c) {
    const int64_t axis = c.attrs.Int("axis");
    return SumsGrad(c, Batched(c.attrs) ? batched_take(c.dout[0], c.in[0], axis)
                                        : oneflow_like::take(c.dout[0], axis, c.in[0]));
  };
  sum.any_type = sum.typed = true;
  sum.reference = SumByIndex<false>;
  sum.samples = {
      {.in = {{5}, {5, 4}}, .attrs = At(0, 6), .dtypes = {i, f}, .limit = 6},
      {.in = {{4}, {3, 4, 2}}, .attrs = At(1, 5), .dtypes = {l, f}, .limit = 5},
      {.in = {{2, 3}, {4, 2, 3}}, .attrs = At(1, 7), .dtypes = {i, f}, .limit = 7},
      {.in = {{}, {5}}, .attrs = At(0, 4), .dtypes = {l, l}, .limit = 4},
      {.in = {{5}, {5, 4}, {6, 4}}, .attrs = At(0, 6), .dtypes = {i, f, f}, .limit = 6},
      {.in = {{2, 3}, {4, 2, 3}, {4, 7}}, .attrs = At(1, 7), .dtypes = {i, f, f}, .limit = 7},
      {.in = {{4}, {4}, {3}}, .attrs = At(0, 3), .dtypes = {l, l, l}, .limit = 3},
      {.in = {{3, 4}, {3, 4, 2}}, .attrs = InBatches(At(1, 5)), .dtypes = {i, f}, .limit = 5},
      {.in = {{2, 3, 4}, {2, 3, 4}}, .attrs = InBatches(At(2, 6)), .dtypes = {l, f}, .limit = 6},
      {.in = {{3, 4}, {3, 4, 2}, {3, 5, 2}}, .attrs = InBatches(At(1, 5)), .dtypes = {i, f, f}, .limit = 5}};
  catalog->Add(std::move(sum));
}

void AddTakeAlongAxis(Catalog* catalog) {
  const DType f = DType::kFloat32, i = DType::kInt32, l = DType::kInt64;
  OpDef take{.name = "take_along_axis",
             .doc = "Element by element, that of x along one axis which ids names."};
  take.axes_of = [](const OpCall& call) {
    int rank = call.shapes[0].rank(), axis = RequireAxis(call);
    std::string ids = "[" + AxesWith(rank, axis, Letter(kIds)) + "]";
    return "x[" + AxesWith(rank, axis, "v") + "], ids" + ids + " -> y" + ids;
  };
  take.folds = {{"v", Reduce::kSum}};
  take.linear = {{"x"}};
  take.check = [](const OpCall& call) {
    RequireInputs(call, 2);
    RequireAxis(call);
    RequireNumbers(call, 0);
    RequireInteger(call, 1);
    CheckAlong(call, 1, 0, "x", RequireAxis(call));
  };
  take.flops = NoFlops;
  take.chosen = {"v", "ids"};
  take.grad = [](const GradCall& c) {
    int64_t axis = c.attrs.Int("axis");
    Attrs attrs = At(axis, c.in[0].shape()[static_cast<int>(axis)]);
    return std::vector<Tensor>{Apply(c.in[0].graph(), "scatter_sum", {c.in[1], c.dout[0]}, attrs)[0],
                               Tensor()};
  };
  take.precision = Precision::kFollow;
  take.reference = Take<true>;
  take.samples = {{.in = {{6, 4}, {5, 4}}, .attrs = At(0), .dtypes = {f, i}, .limit = 6},
                  {.in = {{3, 5, 2}, {3, 4, 2}}, .attrs = At(1), .dtypes = {f, l}, .limit = 5},
                  {.in = {{7}, {6}}, .attrs = At(0), .dtypes = {i, l}, .limit = 7}};
  catalog->Add(std::move(take));
}

void AddScatterSum(Catalog* catalog) {
  const DType f = DType::kFloat32, i = DType::kInt32, l = DType::kInt64;
  OpDef sum;
  sum.name = "scatter_sum";
  sum.doc = "Elements of src added up along one axis: each to the place in the result that its index names.";
  sum.axes_of = [](const OpCall& call) {
    int rank = call.shapes[0].rank(), axis = RequireAxis(call);
    std::string ids = "[" + AxesWith(rank, axis, Letter(kIds)) + "]";
    return SumsLine(call, "ids" + ids + ", src" + ids, AxesWith(rank, axis, "v"));
  };
  sum.folds_of = [](const OpCall& call) { return SumsFolds(call, {Letter(kIds)}); };
  sum.linear_of = [](const OpCall& call) { return LinearSums(call, "src"); };
  sum.extents = ExtentOfAxis;
  sum.check = [](const OpCall& call) {
    CheckSums(call);
    RequireAxis(call);
    CheckExtent(call);
    CheckAlong(call, 0, 1, "src", -1);
  };
  sum.dtypes = ResultTypes({1});
  sum.flops = OneForEach;
  sum.grad = [](const GradCall& c) {
    return SumsGrad(c, take_along_axis(c.dout[0], c.in[0], c.attrs.Int("axis")));
  };
  sum.any_type = sum.typed = true;
  sum.reference = SumByIndex<true>;
  sum.samples = {
      {.in = {{5, 4}, {5, 4}}, .attrs = At(0, 6), .dtypes = {i, f}, .limit = 6},
      {.in = {{3, 4, 2}, {3, 4, 2}}, .attrs = At(1, 5), .dtypes = {l, f}, .limit = 5},
      {.in = {{6}, {6}}, .attrs = At(0, 4), .dtypes = {l, l}, .limit = 4},
      {.in = {{5, 4}, {5, 4}, {6, 4}}, .attrs = At(0, 6), .dtypes = {i, f, f}, .limit = 6},
      {.in = {{3, 4, 2}, {3, 4, 2}, {3, 5, 2}}, .attrs = At(1, 5), .dtypes = {l, f, f}, .limit = 5},
      {.in = {{6}, {6}, {4}}, .attrs = At(0, 4), .dtypes = {i, l, l}, .limit = 4}};
  catalog->Add(std::move(sum));
}

}  // namespace

void AddTake(Catalog* catalog) {
  AddTakeParts(catalog);
  AddIndexSum(catalog);
  AddTakeAlongAxis(catalog);
  AddScatterSum(catalog);
}

}  // namespace oneflow_like
