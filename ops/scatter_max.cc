// The greatest by index: of src and x, which has the result's shape, where ids says to which place along one
// axis each part or element of src goes. The axis may be cut, and so may ids: x counts on every rank, which
// changes no maximum.
#include "ops/along_axis.h"
#include "ops/language/expressions.h"
#include "ops/language/sparse.h"

namespace oneflow_like {
namespace {

// kAlong: ids has an index for every element; else one for every part along the axis.
template <bool kAlong>
Status MaxByIndex(const KernelContext& context) {
  const TensorArg &ids = context.in[0], &src = context.in[1], &x = context.in[2], &y = context.out[0];
  const int axis = AxisOf(context.spec);
  if (Status checked = CheckIndices(ids, y.global[axis]); !checked.ok()) return checked;
  const AroundAxis at(y, axis);
  const int64_t count = kAlong ? ids.extent[axis] : ids.elements();
  DispatchType(y.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t i = 0; i < y.elements(); ++i) y.as<T>()[i] = x.as<T>()[i];
    for (int64_t i = 0; i < src.elements(); ++i) {
      const int64_t c = i % at.inner, part = i / at.inner, o = part / count;
      const int64_t row = LoadInt(ids, kAlong ? i : part % count) - y.begin[axis];
      if (row < 0 || row >= at.along) continue;
      T* place = y.as<T>() + (o * at.along + row) * at.inner + c;
      const auto old = Load(place), value = Load(src.as<T>() + i);
      if (value > old || value != value) *place = src.as<T>()[i];  // a NaN stays
    }
  });
  return Status();
}

// Of elements that are equally great, x's among them, each gets its share of the gradient.
template <bool kAlong>
std::vector<Tensor> MaxByIndexGrad(const GradCall& c) {
  const int64_t axis = c.attrs.Int("axis");
  const Tensor &ids = c.in[0], &src = c.in[1], &x = c.in[2], &y = c.out[0];
  const auto at_ids = [&](Tensor t) { return kAlong ? take_along_axis(t, ids, axis) : take(t, axis, ids); };
  const auto in_type = [](Tensor t, DType dtype) { return t.dtype() == dtype ? t : cast(t, dtype); };
  Tensor hit = cast(equal(src, at_ids(y)), DType::kFloat32), own = cast(equal(x, y), DType::kFloat32);
  const Attrs attrs = {{"axis", axis}, {"extent", y.shape()[static_cast<int>(axis)]}};
  Tensor hits = Apply(y.graph(), kAlong ? "scatter_sum" : "index_sum", {ids, hit}, attrs)[0];
  Tensor ties = add(own, hits);
  Tensor share = div(in_type(c.dout[0], DType::kFloat32), maximum(ties, 1));  // 0 beside a NaN
  return {Tensor(), c.wanted[1] ? in_type(mul(hit, at_ids(share)), src.dtype()) : Tensor(),
          c.wanted[2] ? in_type(mul(own, share), x.dtype()) : Tensor()};
}

void CheckMax(const OpCall& call) {
  RequireInputs(call, 3);
  RequireInteger(call, 0);
  RequireSummable(call, 1);
  RequireAxis(call, 2);
  RequireSameTypes(call, 1);
}

// The axes of ids in src stand where the axis stands in x.
void CheckParts(const OpCall& call) {
  CheckMax(call);
  const Dims &ids = call.shapes[0], &src = call.shapes[1], &x = call.shapes[2];
  const int64_t axis = call.attrs->Int("axis");
  Dims wanted(x.begin(), x.begin() + axis);
  for (int64_t extent : ids) wanted.push_back(extent);
  for (auto extent = x.begin() + axis + 1; extent != x.end(); ++extent) wanted.push_back(*extent);
  if (src != wanted)
    Fail(call.who, ": src is ", src.str(), " but must be ", wanted.str(), ", as x ", x.str(),
         " with the axes of ids ", ids.str(), " in place of axis ", axis);
}

void CheckElements(const OpCall& call) {
  CheckMax(call);
  CheckAlong(call, 0, 1, "src", -1);
  CheckAlong(call, 0, 2, "x", RequireAxis(call, 2));
}

OpDef MaxOp(const std::string& name, const std::string& doc, std::vector<Sample> samples) {
  OpDef def{.name = name, .doc = doc};
  def.samples = std::move(samples);
  for (Sample& s : def.samples) s.low = -20, s.high = 20;  // far apart: no rounding makes two equal
  def.dtypes = ResultTypes({1});
  def.flops = [](const BoundRule& rule) { return static_cast<double>(rule.in[1].shape.elements()); };
  return def;
}

Attrs AlongAxis(int64_t axis) { return {{"axis", axis}}; }

}  // namespace

void AddScatterMax(Catalog* catalog) {
  const DType f = DType::kFloat32, i = DType::kInt32, l = DType::kInt64;
  OpDef parts =
      MaxOp("index_max", "The greatest of x and of those parts of src whose index names it.",
            {{.in = {{5}, {5, 4}, {6, 4}}, .attrs = AlongAxis(0), .dtypes = {i, f, f}, .limit = 6},
             {.in = {{4}, {3, 4, 2}, {3, 5, 2}}, .attrs = AlongAxis(1), .dtypes = {l, f, f}, .limit = 5},
             {.in = {{2, 3}, {4, 2, 3}, {4, 7}}, .attrs = AlongAxis(1), .dtypes = {i, f, f}, .limit = 7},
             {.in = {{}, {5}, {4, 5}}, .attrs = AlongAxis(0), .dtypes = {l, l, l}, .limit = 4}});
  parts.axes_of = [](const OpCall& call) {
    RequireInputs(call, 3);
    const int rank = call.shapes[2].rank(), axis = RequireAxis(call, 2);
    const std::string ids = IdLetters(call.shapes[0]), whole = "[" + AxesWith(rank, axis, "v") + "]";
    return "ids[" + ids + "], src[" + AxesWith(rank, axis, ids) + "], x" + whole + " -> y" + whole;
  };
  parts.folds_of = [](const OpCall& call) {
    std::map<std::string, Reduce> folds;
    for (int a = 0; a < call.shapes[0].rank(); ++a) folds[Letter(kIds + a)] = Reduce::kMax;
    return folds;
  };
  parts.check = CheckParts;
  parts.grad = MaxByIndexGrad<false>;
  parts.reference = MaxByIndex<false>;
  catalog->Add(std::move(parts));

  OpDef elements = MaxOp(
      "scatter_max", "The greatest of x and of those elements of src whose index names it.",
      {{.in = {{5, 4}, {5, 4}, {6, 4}}, .attrs = AlongAxis(0), .dtypes = {i, f, f}, .limit = 6},
       {.in = {{3, 4, 2}, {3, 4, 2}, {3, 5, 2}}, .attrs = AlongAxis(1), .dtypes = {l, f, f}, .limit = 5},
       {.in = {{6}, {6}, {4}}, .attrs = AlongAxis(0), .dtypes = {i, l, l}, .limit = 4}});
  elements.axes_of = [](const OpCall& call) {
    RequireInputs(call, 3);
    const int rank = call.shapes[2].rank(), axis = RequireAxis(call, 2);
    const std::string ids = "[" + AxesWith(rank, axis, Letter(kIds)) + "]",
                      whole = "[" + AxesWith(rank, axis, "v") + "]";
    return "ids" + ids + ", src" + ids + ", x" + whole + " -> y" + whole;
  };
  elements.folds = {{Letter(kIds), Reduce::kMax}};
  elements.check = CheckElements;
  elements.grad = MaxByIndexGrad<true>;
  elements.reference = MaxByIndex<true>;
  catalog->Add(std::move(elements));
}

}  // namespace oneflow_like
