// Pooling over windows of rows and columns, channels last: the greatest element and the mean, with windows of
// a fixed size or adaptive ones (attribute "size" instead of "kernel", "stride" and "padding"). max_pool2d
// also gives where each greatest element stands in its plane (h * width + w), which its gradient reads.
#include "ops/pooling.h"

#include <limits>

#include "ops/language/functional.h"
#include "ops/language/sparse.h"
#include "ops/manifest.h"
#include "ops/reference.h"

namespace oneflow_like {

PoolShape ShapeOfPool(const Attrs& attrs, const TensorArg& x, const TensorArg& y) {
  PoolShape shape{x.extent[0], x.extent[3], {x.extent[1], y.extent[1]}, {x.extent[2], y.extent[2]}};
  PoolAxis* axes[] = {&shape.rows, &shape.columns};
  for (int axis : {0, 1}) {
    axes[axis]->adaptive = attrs.Has("size");
    if (axes[axis]->adaptive) continue;
    axes[axis]->kernel = attrs.Ints("kernel")[axis];
    axes[axis]->stride = attrs.Ints("stride")[axis];
    axes[axis]->padding = attrs.Ints("padding")[axis];
  }
  shape.with_padding = attrs.Int("count_padding", 1) != 0;
  return shape;
}

namespace {

// --- Reference kernels ---------------------------------------------------------------------------

int64_t OffsetIn(const TensorArg& plane, int64_t n, int64_t h, int64_t w, int64_t c) {
  return ((n * plane.extent[1] + h) * plane.extent[2] + w) * plane.extent[3] + c;
}

// f(h, w) for every element of a window, row by row.
template <typename F>
void ForElements(const PoolShape& shape, int64_t p, int64_t q, F&& f) {
  PoolRange rows = shape.rows.Window(p), columns = shape.columns.Window(q);
  for (int64_t h = rows.begin; h < rows.end; ++h) {
    for (int64_t w = columns.begin; w < columns.end; ++w) f(h, w);
  }
}

// f(p, q) for every result that element (h, w) is of: all windows are asked.
template <typename F>
void ForWindows(const PoolShape& shape, int64_t h, int64_t w, F&& f) {
  auto has = [](PoolRange range, int64_t i) { return i >= range.begin && i < range.end; };
  for (int64_t p = 0; p < shape.rows.out; ++p) {
    for (int64_t q = 0; q < shape.columns.out; ++q) {
      if (has(shape.rows.Window(p), h) && has(shape.columns.Window(q), w)) f(p, q);
    }
  }
}

Status MaxPool(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0], &at = context.out[1];
  PoolShape shape = ShapeOfPool(context.spec.attrs, x, y);
  int64_t offset = 0;
  ForEachIndex(y.extent, [&](const Dims& i) {
    double greatest = -std::numeric_limits<double>::infinity();
    int64_t where = -1;
    ForElements(shape, i[1], i[2], [&](int64_t h, int64_t w) {
      double value = LoadFloat(x, OffsetIn(x, i[0], h, w, i[3]));
      if (where >= 0 && !(value > greatest) && !std::isnan(value)) return;
      greatest = value;
      where = h * x.extent[2] + w;
    });
    at.as<int32_t>()[offset] = static_cast<int32_t>(where);
    StoreFloat(y, offset++, greatest);
  });
  return {};
}

Status MaxPoolGrad(const KernelContext& context) {
  const TensorArg &dy = context.in[0], &at = context.in[1], &dx = context.out[0];
  PoolShape shape = ShapeOfPool(context.spec.attrs, dx, dy);
  int64_t offset = 0;
  ForEachIndex(dx.extent, [&](const Dims& i) {
    double total = 0;
    ForWindows(shape, i[1], i[2], [&](int64_t p, int64_t q) {
      int64_t from = OffsetIn(dy, i[0], p, q, i[3]);
      if (at.as<int32_t>()[from] == i[1] * dx.extent[2] + i[2]) total += LoadFloat(dy, from);
    });
    StoreFloat(dx, offset++, total);
  });
  return {};
}

// By how many elements result (p, q) of a mean is divided.
double CountOf(const PoolShape& shape, int64_t p, int64_t q) {
  return static_cast<double>(shape.rows.Count(p, shape.with_padding) *
                             shape.columns.Count(q, shape.with_padding));
}

Status AvgPool(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  PoolShape shape = ShapeOfPool(context.spec.attrs, x, y);
  int64_t offset = 0;
  ForEachIndex(y.extent, [&](const Dims& i) {
    double total = 0;
    ForElements(shape, i[1], i[2],
                [&](int64_t h, int64_t w) { total += LoadFloat(x, OffsetIn(x, i[0], h, w, i[3])); });
    StoreFloat(y, offset++, total / CountOf(shape, i[1], i[2]));
  });
  return {};
}

Status AvgPoolGrad(const KernelContext& context) {
  const TensorArg &dy = context.in[0], &dx = context.out[0];
  PoolShape shape = ShapeOfPool(context.spec.attrs, dx, dy);
  int64_t offset = 0;
  ForEachIndex(dx.extent, [&](const Dims& i) {
    double total = 0;
    ForWindows(shape, i[1], i[2], [&](int64_t p, int64_t q) {
      total += LoadFloat(dy, OffsetIn(dy, i[0], p, q, i[3])) / CountOf(shape, p, q);
    });
    StoreFloat(dx, offset++, total);
  });
  return {};
}

// --- Checks and rules ----------------------------------------------------------------------------

// Results along both axes of x with these rows and columns.
void ExtentsOf(const OpCall& call, const int64_t* in, int64_t* out) {
  const Attrs& attrs = *call.attrs;
  for (int axis : {0, 1}) {
    if (attrs.Has("size")) {
      out[axis] = attrs.Ints("size")[axis];
    } else {
      int64_t kernel = attrs.Ints("kernel")[axis], padding = attrs.Ints("padding")[axis];
      out[axis] = (in[axis] + 2 * padding - kernel) / attrs.Ints("stride")[axis] + 1;
    }
  }
}

void CheckWindows(const OpCall& call, const int64_t* in) {
  const Attrs& attrs = *call.attrs;
  if (attrs.Has("size")) {
    RequirePair(call, "size", 1);
  } else {
    RequirePair(call, "kernel", 1);
    RequirePair(call, "stride", 1);
    RequirePair(call, "padding", 0);
  }
  for (int axis : {0, 1}) {
    if (in[axis] < 1)
      Fail(call.who, ": x has ", in[axis], " ", kPlaneAxes[axis], " but must have at least 1");
    if (attrs.Has("size")) continue;
    int64_t kernel = attrs.Ints("kernel")[axis], padding = attrs.Ints("padding")[axis];
    if (2 * padding > kernel)
      Fail(call.who, ": padding of the ", kPlaneAxes[axis], " is ", padding,
           " but may be at most half of the kernel, ", kernel);
    if (in[axis] + 2 * padding < kernel)
      Fail(call.who, ": the kernel has ", kernel, " ", kPlaneAxes[axis], " but x with its padding has ",
           in[axis] + 2 * padding);
    if (in[0] * in[1] > std::numeric_limits<int32_t>::max())
      Fail(call.who, ": a plane of ", in[0], " rows and ", in[1], " columns has more than 2^31 - 1 elements");
  }
}

void CheckPool(const OpCall& call) {
  RequireInputs(call, 1);
  RequirePictures(call);
  CheckWindows(call, call.shapes[0].begin() + 1);
}

// dy, and with kInputs 2 the places; attribute "plane" has the rows and columns of x.
template <size_t kInputs>
void CheckPoolGrad(const OpCall& call) {
  RequireInputs(call, kInputs);
  RequirePictures(call);
  RequirePair(call, "plane", 1);
  CheckWindows(call, call.attrs->Ints("plane").data());
  int64_t out[2];
  ExtentsOf(call, call.attrs->Ints("plane").data(), out);
  for (int axis : {0, 1}) {
    if (call.shapes[0][axis + 1] != out[axis])
      Fail(call.who, ": dy has ", call.shapes[0][axis + 1], " ", kPlaneAxes[axis], " but pooling gives ",
           out[axis]);
  }
  if (kInputs == 2 && call.dtypes[1] != DType::kInt32)
    Fail(call.who, ": operand 2 is ", Name(call.dtypes[1]), " but must be i32");
}

std::map<std::string, int64_t> PoolExtents(const OpCall& call) {
  int64_t out[2];
  ExtentsOf(call, call.shapes[0].begin() + 1, out);
  return {{"p", out[0]}, {"q", out[1]}};
}
std::map<std::string, int64_t> PoolGradExtents(const OpCall& call) {
  return {{"h", call.attrs->Ints("plane")[0]}, {"w", call.attrs->Ints("plane")[1]}};
}

// One operation for each element of each window; adaptive ones have in / out elements along an axis.
double PoolFlops(const BoundRule& rule) {
  double flops = 1;
  for (const auto& [label, extent] : rule.extents) {
    if (label != "p" && label != "q") flops *= static_cast<double>(extent);
  }
  return flops;
}

// --- Table entries -------------------------------------------------------------------------------

Attrs Windows(std::vector<int64_t> kernel, std::vector<int64_t> stride, std::vector<int64_t> padding) {
  return {{"kernel", kernel}, {"stride", stride}, {"padding", padding}};
}
Attrs Adaptive(std::vector<int64_t> size) { return {{"size", size}}; }

struct PoolSample {
  Dims x;
  Attrs attrs;
};
std::vector<PoolSample> PoolSamples() {
  return {{{2, 5, 6, 4}, Windows({2, 3}, {2, 1}, {1, 1})},
          {{3, 7, 4, 2}, Windows({3, 2}, {3, 2}, {0, 0})},
          {{2, 7, 5, 3}, Adaptive({3, 2})},
          {{1, 2, 3, 5}, Adaptive({4, 3})},
          {{0, 4, 4, 2}, Windows({2, 2}, {2, 2}, {0, 0})},
          {{2, 1, 1, 1}, Windows({1, 1}, {1, 1}, {0, 0})},
          {{2, 3, 3, 0}, Adaptive({1, 1})}};
}

// Every window covers the whole plane, so that any place that is drawn is in it.
std::vector<PoolSample> WideSamples() {
  return {{{3, 2, 2, 4}, Windows({3, 3}, {1, 1}, {1, 1})},
          {{2, 2, 3, 5}, Windows({3, 5}, {1, 1}, {1, 2})},
          {{2, 3, 4, 3}, Windows({3, 4}, {3, 4}, {0, 0})},
          {{2, 1, 1, 3}, Adaptive({4, 3})},
          {{3, 5, 4, 2}, Adaptive({1, 1})},
          {{0, 4, 4, 2}, Adaptive({1, 1})},
          {{2, 3, 3, 0}, Adaptive({1, 1})}};
}

Attrs WithPlane(const Attrs& attrs, const Dims& x) {
  Attrs more = attrs;
  more.Set("plane", std::vector<int64_t>{x[1], x[2]});
  return more;
}
Attrs WithoutPlane(const Attrs& attrs) {
  Attrs fewer;
  for (const auto& [name, value] : attrs.map()) {
    if (name != "plane") fewer.Set(name, value);
  }
  return fewer;
}

// dy's shape for a sample of x's.
Dims ResultOf(const PoolSample& sample) {
  OpCall call{"pool", "pool", {sample.x}, {DType::kFloat32}, &sample.attrs};
  int64_t out[2];
  ExtentsOf(call, sample.x.begin() + 1, out);
  return {sample.x[0], out[0], out[1], sample.x[3]};
}

OpDef PoolOp(const std::string& name, const std::string& doc) {
  OpDef def{.name = name, .doc = doc};
  def.whole = {"h", "w", "p", "q"};
  def.flops = PoolFlops;
  def.precision = Precision::kFollow;
  return def;
}

void AddMaxPool(Catalog* catalog) {
  OpDef pool = PoolOp("max_pool2d", "The greatest of every window, and where it stands; a NaN wins.");
  pool.axes = "x[n h w c] -> y[n p q c], at[n p q c]";
  pool.extents = PoolExtents;
  pool.check = CheckPool;
  pool.dtypes = ResultTypes({0, DType::kInt32});
  pool.grad = [](const GradCall& c) {
    Attrs attrs = WithPlane(c.attrs, c.in[0].shape());
    return Apply(c.in[0].graph(), "max_pool2d_grad", {c.dout[0], c.out[1]}, attrs);
  };
  pool.reference = MaxPool;
  for (const PoolSample& s : PoolSamples())  // far apart: moving one a little seldom changes the greatest
    pool.samples.push_back({.in = {s.x}, .attrs = s.attrs, .low = -20, .high = 20});
  catalog->Add(std::move(pool));

  OpDef grad = PoolOp("max_pool2d_grad", "dy at the elements that were the greatest, 0 elsewhere.");
  grad.axes = "dy[n p q c], at[n p q c] -> dx[n h w c]";
  grad.linear = {{"dy"}};
  grad.extents = PoolGradExtents;
  grad.check = CheckPoolGrad<2>;
  grad.grad = [](const GradCall& c) {  // where the greatest stood, which does not move
    const Dims in = c.dout[0].shape(), out = c.in[0].shape();
    Tensor planes = reshape(c.dout[0], {in[0], in[1] * in[2], in[3]});
    Tensor places = reshape(c.in[1], {out[0], out[1] * out[2], out[3]});
    return std::vector<Tensor>{reshape(take_along_axis(planes, places, 1), out), Tensor()};
  };
  grad.reference = MaxPoolGrad;
  for (const PoolSample& s : WideSamples()) {
    grad.samples.push_back({.in = {ResultOf(s), ResultOf(s)},
                            .attrs = WithPlane(s.attrs, s.x),
                            .dtypes = {DType::kFloat32, DType::kInt32},
                            .limit = s.x[1] * s.x[2]});
  }
  catalog->Add(std::move(grad));
}

void AddAvgPool(Catalog* catalog) {
  OpDef pool = PoolOp("avg_pool2d", "The mean of every window; \"count_padding\" says whether over padding.");
  pool.axes = "x[n h w c] -> y[n p q c]";
  pool.linear = {{"x"}};
  pool.extents = PoolExtents;
  pool.check = CheckPool;
  pool.grad = [](const GradCall& c) {
    Attrs attrs = WithPlane(c.attrs, c.in[0].shape());
    return Apply(c.in[0].graph(), "avg_pool2d_grad", {c.dout[0]}, attrs);
  };
  pool.reference = AvgPool;

  OpDef grad =
      PoolOp("avg_pool2d_grad", "The gradient of avg_pool2d: every element of a window has its share.");
  grad.axes = "dy[n p q c] -> dx[n h w c]";
  grad.linear = {{"dy"}};
  grad.extents = PoolGradExtents;
  grad.check = CheckPoolGrad<1>;
  grad.grad = [](const GradCall& c) {
    return Apply(c.in[0].graph(), "avg_pool2d", {c.dout[0]}, WithoutPlane(c.attrs));
  };
  grad.reference = AvgPoolGrad;

  for (PoolSample s : PoolSamples()) {
    for (int64_t count : {1, 0}) {
      if (count == 0 && s.x[1] != 5) continue;  // the one with padding
      s.attrs.Set("count_padding", count);
      pool.samples.push_back({.in = {s.x}, .attrs = s.attrs});
      grad.samples.push_back({.in = {ResultOf(s)}, .attrs = WithPlane(s.attrs, s.x)});
    }
  }
  catalog->Add(std::move(pool));
  catalog->Add(std::move(grad));
}

}  // namespace

void AddPooling(Catalog* catalog) {
  AddMaxPool(catalog);
  AddAvgPool(catalog);
}

}  // namespace oneflow_like
