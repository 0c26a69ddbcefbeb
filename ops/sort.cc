// argsort, whose first k indices are those of sort and top_k; cumsum; flip; arange.
#include <cmath>

#include "ops/along_axis.h"
#include "ops/language/functional.h"

namespace oneflow_like {
namespace {

// --- Reference kernels ---------------------------------------------------------------------------

// Whether a stands before b in rising order: a NaN is greater than every number.
template <typename V>
bool Before(V a, V b) {
  if constexpr (std::is_floating_point_v<V>) {
    if (std::isnan(a) || std::isnan(b)) return !std::isnan(a) && std::isnan(b);
  }
  return a < b;
}

// An element's place is the number of those before it.
Status Argsort(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  int axis = AxisOf(context.spec);
  AroundAxis at(x, axis);
  int64_t k = y.extent[axis];
  bool descending = context.spec.attrs.Int("descending", 0) != 0;
  DispatchType(x.dtype, [&](auto t) {
    for (int64_t line = 0; line < at.outer * at.inner; ++line) {
      int64_t o = line / at.inner, c = line % at.inner;
      const auto* from = x.as<decltype(t)>() + o * at.along * at.inner + c;
      for (int64_t i = 0; i < at.along; ++i) {
        auto own = Load(from + i * at.inner);
        int64_t place = 0;
        for (int64_t j = 0; j < at.along; ++j) {
          auto other = Load(from + j * at.inner);
          bool before = descending ? Before(own, other) : Before(other, own);
          bool after = descending ? Before(other, own) : Before(own, other);
          place += before || (!after && j < i);
        }
        if (place < k) y.as<int64_t>()[(o * k + place) * at.inner + c] = i;
      }
    }
  });
  return Status();
}

Status Cumsum(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  AroundAxis at(x, AxisOf(context.spec));
  bool reverse = context.spec.attrs.Int("reverse", 0) != 0;
  bool exclusive = context.spec.attrs.Int("exclusive", 0) != 0;
  DispatchType(x.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t line = 0; line < at.outer * at.inner; ++line) {
      int64_t first = line / at.inner * at.along * at.inner + line % at.inner;
      Wide<T> sum = 0;
      for (int64_t i = 0; i < at.along; ++i) {
        int64_t offset = first + (reverse ? at.along - 1 - i : i) * at.inner;
        Wide<T> with = sum + Load(x.as<T>() + offset);
        Store(y.as<T>() + offset, exclusive ? sum : with);
        sum = with;
      }
    }
  });
  return Status();
}

Status Flip(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  AroundAxis at(x, AxisOf(context.spec));
  DispatchType(x.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t i = 0; i < y.elements(); ++i) {
      int64_t c = i % at.inner, row = i / at.inner, o = row / at.along, s = row % at.along;
      y.as<T>()[i] = x.as<T>()[(o * at.along + at.along - 1 - s) * at.inner + c];
    }
  });
  return Status();
}

Status Arange(const KernelContext& context) {
  const TensorArg& y = context.out[0];
  double begin = context.spec.attrs.Float("begin"), step = context.spec.attrs.Float("step");
  for (int64_t i = 0; i < y.elements(); ++i)
    StoreFloat(y, i, begin + step * static_cast<double>(y.begin[0] + i));
  return Status();
}

// --- Rules ---------------------------------------------------------------------------------------

void AddArgsort(Catalog* catalog) {
  OpDef def{.name = "argsort", .doc = "Where the first k elements of the order along one axis stand."};
  def.axes_of = [](const OpCall& call) {
    int rank = call.shapes[0].rank(), axis = RequireAxis(call);
    return "x[" + LettersAround(rank, axis, "s") + "] -> y[" + LettersAround(rank, axis, "k") + "]";
  };
  def.whole = {"s", "k"};
  def.extents = [](const OpCall& call) {
    return std::map<std::string, int64_t>{{"k", call.attrs->Int("k")}};
  };
  def.check = [](const OpCall& call) {
    RequireInputs(call, 1);
    RequireArithmetic(call);
    RequireAttr(call, "k");
    int axis = RequireAxis(call);
    int64_t k = call.attrs->Int("k"), extent = call.shapes[0][axis];
    if (k < 0 || k > extent)
      Fail(call.who, ": k is ", k, " but axis ", axis, " has ", extent, " elements; k must be in [0, ",
           extent, "]");
  };
  def.dtypes = ResultTypes({DType::kInt64});
  def.flops = [](const BoundRule& rule) {
    return static_cast<double>(rule.in[0].shape.elements()) * std::log2(2.0 + rule.extents.at("s"));
  };
  def.stops_gradient = true;
  def.any_type = true;
  def.reference = Argsort;
  auto attrs = [](int64_t axis, int64_t k, int64_t descending) {
    return Attrs{{"axis", axis}, {"k", k}, {"descending", descending}};
  };
  def.samples = {{.in = {{3, 7}}, .attrs = attrs(1, 7, 0)},
                 {.in = {{3, 7}}, .attrs = attrs(1, 3, 1)},
                 {.in = {{6, 4, 5}}, .attrs = attrs(0, 4, 1)},
                 {.in = {{3, 9, 2}}, .attrs = attrs(1, 9, 1), .dtypes = {DType::kInt64}, .limit = 4}};
  catalog->Add(std::move(def));
}

void AddCumsum(Catalog* catalog) {
  OpDef def{.name = "cumsum", .doc = "Sums of the elements up to each one along one axis."};
  def.axes_of = [](const OpCall& call) {
    std::string axes = "[" + LettersAround(call.shapes[0].rank(), RequireAxis(call), "s") + "]";
    return "x" + axes + " -> y" + axes;
  };
  def.whole = {"s"};
  def.linear = {{"x"}};
  def.check = [](const OpCall& call) {
    RequireInputs(call, 1);
    RequireArithmetic(call);
    RequireAxis(call);
  };
  def.grad = [](const GradCall& c) {
    Attrs attrs = c.attrs;
    attrs.Set("reverse", int64_t{c.attrs.Int("reverse", 0) == 0});
    return Apply(c.in[0].graph(), "cumsum", {c.dout[0]}, attrs);
  };
  def.reference = Cumsum;
  auto attrs = [](int64_t axis, int64_t reverse, int64_t exclusive) {
    return Attrs{{"axis", axis}, {"reverse", reverse}, {"exclusive", exclusive}};
  };
  def.samples = {{.in = {{3, 7}}, .attrs = attrs(1, 0, 0)},
                 {.in = {{6, 4}}, .attrs = attrs(0, 1, 0)},
                 {.in = {{3, 5, 2}}, .attrs = attrs(1, 0, 1)},
                 {.in = {{7}}, .attrs = attrs(0, 1, 1)}};
  catalog->Add(std::move(def));
}

void AddFlip(Catalog* catalog) {
  OpDef def{.name = "flip", .doc = "One axis in reverse order."};
  def.axes_of = [](const OpCall& call) {
    std::string axes = "[" + LettersAround(call.shapes[0].rank(), RequireAxis(call), "s") + "]";
    return "x" + axes + " -> y" + axes;
  };
  def.whole = {"s"};
  def.linear = {{"x"}};
  def.check = [](const OpCall& call) {
    RequireInputs(call, 1);
    RequireAxis(call);
  };
  def.flops = NoFlops;
  def.grad = [](const GradCall& c) { return Apply(c.in[0].graph(), "flip", {c.dout[0]}, c.attrs); };
  def.precision = Precision::kFollow;
  def.reference = Flip;
  def.samples = {{.in = {{3, 7}}, .attrs = {{"axis", int64_t{1}}}},
                 {.in = {{6, 4, 5}}, .attrs = {{"axis", int64_t{0}}}},
                 {.in = {{4, 3, 5}}, .attrs = {{"axis", int64_t{1}}}, .dtypes = {DType::kInt32}}};
  catalog->Add(std::move(def));
}

void AddArange(Catalog* catalog) {
  OpDef def{.name = "arange", .doc = "`count` numbers from begin on, step apart."};
  def.axes = "-> y[a]";
  def.extents = [](const OpCall& call) {
    return std::map<std::string, int64_t>{{"a", call.attrs->Int("count")}};
  };
  def.check = [](const OpCall& call) {
    RequireInputs(call, 0);
    for (const char* name : {"begin", "step", "count", "dtype"}) RequireAttr(call, name);
    if (call.attrs->Int("count") < 0)
      Fail(call.who, ": count is ", call.attrs->Int("count"), " but must not be negative");
  };
  def.dtypes = [](const OpCall& call) {
    DType dtype;
    const std::string& name = call.attrs->Str("dtype");
    if (!ParseDType(name, &dtype)) Fail(call.who, ": there is no type named \"", name, "\"");
    return std::vector<DType>{dtype};
  };
  def.flops = NoFlops;
  def.reference = Arange;
  for (const char* dtype : {"f32", "i64", "i32"}) {
    def.samples.push_back(
        {.attrs = {{"begin", -2.0}, {"step", 3.0}, {"count", int64_t{7}}, {"dtype", dtype}}});
  }
  catalog->Add(std::move(def));
}

}  // namespace

void AddSort(Catalog* catalog) {
  AddArgsort(catalog);
  AddCumsum(catalog);
  AddFlip(catalog);
  AddArange(catalog);
}

}  // namespace oneflow_like
