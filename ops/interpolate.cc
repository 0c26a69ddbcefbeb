// interpolate: pictures x[n h w c] resized to other rows and columns, by the nearest element or bilinearly.
// It is linear; its gradient's gradient is itself.
#include "ops/interpolate.h"

#include "ops/language/functional.h"
#include "ops/manifest.h"
#include "ops/reference.h"

namespace oneflow_like {

ResizeShape ShapeOfResize(const Attrs& attrs, const TensorArg& x, const TensorArg& y) {
  bool bilinear = attrs.Str("mode") == "bilinear", corners = attrs.Int("align_corners") != 0;
  return {x.extent[0],
          x.extent[3],
          {x.extent[1], y.extent[1], bilinear, corners},
          {x.extent[2], y.extent[2], bilinear, corners}};
}

namespace {

// The reference finds positions in double, by the formulas users know (those of PyTorch): the centre of
// result p lies at (p + 1/2) in / out - 1/2, and with corners aligned at p (in - 1) / (out - 1).
double PositionOf(const ResizeAxis& axis, int64_t p) {
  double in = static_cast<double>(axis.in), out = static_cast<double>(axis.out), at = static_cast<double>(p);
  if (axis.align_corners) return axis.out > 1 ? at * (in - 1) / (out - 1) : 0;
  return std::max(0.0, (at + 0.5) * in / out - 0.5);
}

// f(row, part) for every row that result p is of.
template <typename F>
void ForSources(const ResizeAxis& axis, int64_t p, F&& f) {
  if (!axis.bilinear) return f(p * axis.in / axis.out, 1.0);
  double position = PositionOf(axis, p);
  int64_t first = std::min(static_cast<int64_t>(position), axis.in - 1);
  double weight = std::min(1.0, position - static_cast<double>(first));
  f(first, 1 - weight);
  f(std::min(first + 1, axis.in - 1), weight);
}

int64_t OffsetOfPixel(const TensorArg& plane, int64_t n, int64_t h, int64_t w, int64_t c) {
  return ((n * plane.extent[1] + h) * plane.extent[2] + w) * plane.extent[3] + c;
}

Status Interpolate(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  ResizeShape shape = ShapeOfResize(context.spec.attrs, x, y);
  int64_t offset = 0;
  ForEachIndex(y.extent, [&](const Dims& i) {
    double total = 0;
    ForSources(shape.rows, i[1], [&](int64_t h, double of_row) {
      ForSources(shape.columns, i[2], [&](int64_t w, double of_column) {
        total += of_row * of_column * LoadFloat(x, OffsetOfPixel(x, i[0], h, w, i[3]));
      });
    });
    StoreFloat(y, offset++, total);
  });
  return {};
}

Status InterpolateGrad(const KernelContext& context) {
  const TensorArg &dy = context.in[0], &dx = context.out[0];
  ResizeShape shape = ShapeOfResize(context.spec.attrs, dx, dy);
  int64_t offset = 0;
  ForEachIndex(dx.extent, [&](const Dims& i) {
    double total = 0;
    for (int64_t p = 0; p < dy.extent[1]; ++p) {
      double of_row = 0;
      ForSources(shape.rows, p, [&](int64_t h, double part) { of_row += h == i[1] ? part : 0; });
      for (int64_t q = 0; of_row != 0 && q < dy.extent[2]; ++q) {
        double of_column = 0;
        ForSources(shape.columns, q, [&](int64_t w, double part) { of_column += w == i[2] ? part : 0; });
        if (of_column != 0) total += of_row * of_column * LoadFloat(dy, OffsetOfPixel(dy, i[0], p, q, i[3]));
      }
    }
    StoreFloat(dx, offset++, total);
  });
  return {};
}

void RequireSizes(const OpCall& call, const std::string& name) {
  RequireAttr(call, name);
  const std::vector<int64_t>& pair = call.attrs->Ints(name);
  if (pair.size() != 2)
    Fail(call.who, ": ", name, " has ", pair.size(), " numbers but must have 2, for rows and columns");
  if (pair[0] < 1 || pair[1] < 1)
    Fail(call.who, ": ", name, " is ", pair[0], " rows and ", pair[1],
         " columns but must be at least 1 and 1");
}

// kGrad: x is dy, and "plane" has the rows and columns of the gradient.
template <bool kGrad>
void CheckResize(const OpCall& call) {
  const char* name = kGrad ? "dy" : "x";
  RequireInputs(call, 1);
  RequirePictures(call);
  const Dims& x = call.shapes[0];
  RequireSizes(call, kGrad ? "plane" : "size");
  RequireAttr(call, "mode");
  RequireAttr(call, "align_corners");
  const std::string& mode = call.attrs->Str("mode");
  if (mode != "nearest" && mode != "bilinear")
    Fail(call.who, ": mode is \"", mode, "\" but must be \"nearest\" or \"bilinear\"");
  if (mode == "nearest" && call.attrs->Int("align_corners") != 0)
    Fail(call.who, ": align_corners has a meaning only for mode bilinear, not for nearest");
  if (x[1] < 1 || x[2] < 1)
    Fail(call.who, ": ", name, " has ", x[1], " rows and ", x[2], " columns but needs at least 1 and 1");
}

OpDef InterpolateOp(const std::string& name, const std::string& doc) {
  OpDef def{.name = name, .doc = doc};
  def.whole = {"h", "w", "p", "q"};
  def.precision = Precision::kFollow;
  return def;
}

// The other of the pair's attributes: what "size" and "plane" say, from the operand.
Attrs TurnedRound(const GradCall& c, const char* name) {
  Dims shape = c.in[0].shape();
  return {{name, std::vector<int64_t>{shape[1], shape[2]}},
          {"mode", c.attrs.Str("mode")},
          {"align_corners", c.attrs.Int("align_corners")}};
}

}  // namespace

void AddInterpolate(Catalog* catalog) {
  OpDef resize =
      InterpolateOp("interpolate", "Rows and columns resized, by the nearest element or bilinearly.");
  resize.axes = "x[n h w c] -> y[n p q c]";
  resize.linear = {{"x"}};
  resize.extents = [](const OpCall& call) -> std::map<std::string, int64_t> {
    return {{"p", call.attrs->Ints("size")[0]}, {"q", call.attrs->Ints("size")[1]}};
  };
  resize.check = CheckResize<false>;
  resize.flops = [](const BoundRule& rule) { return 7.0 * rule.out[0].shape.elements(); };
  resize.grad = [](const GradCall& c) {
    return Apply(c.in[0].graph(), "interpolate_grad", {c.dout[0]}, TurnedRound(c, "plane"));
  };
  resize.reference = Interpolate;

  OpDef grad = InterpolateOp("interpolate_grad", "The gradient of interpolate.");
  grad.axes = "dy[n p q c] -> dx[n h w c]";
  grad.linear = {{"dy"}};
  grad.extents = [](const OpCall& call) -> std::map<std::string, int64_t> {
    return {{"h", call.attrs->Ints("plane")[0]}, {"w", call.attrs->Ints("plane")[1]}};
  };
  grad.check = CheckResize<true>;
  grad.flops = [](const BoundRule& rule) { return 7.0 * rule.in[0].shape.elements(); };
  grad.grad = [](const GradCall& c) {
    return Apply(c.in[0].graph(), "interpolate", {c.dout[0]}, TurnedRound(c, "size"));
  };
  grad.reference = InterpolateGrad;

  struct Ways {
    Dims x;
    std::vector<int64_t> size;
    std::string mode;
    int64_t align_corners;
  };
  for (const Ways& w : std::vector<Ways>{{{2, 3, 4, 3}, {7, 9}, "nearest", 0},
                                         {{2, 5, 3, 2}, {2, 3}, "nearest", 0},
                                         {{2, 3, 4, 3}, {7, 5}, "bilinear", 0},
                                         {{3, 5, 6, 2}, {2, 11}, "bilinear", 1},
                                         {{1, 1, 2, 4}, {3, 1}, "bilinear", 1},
                                         {{2, 4, 1, 1}, {1, 3}, "bilinear", 0},
                                         {{0, 2, 2, 3}, {3, 3}, "nearest", 0}}) {
    Attrs attrs = {{"mode", w.mode}, {"align_corners", w.align_corners}}, back = attrs;
    attrs.Set("size", w.size);
    back.Set("plane", std::vector<int64_t>{w.x[1], w.x[2]});
    resize.samples.push_back({.in = {w.x}, .attrs = attrs});
    grad.samples.push_back({.in = {{w.x[0], w.size[0], w.size[1], w.x[3]}}, .attrs = back});
  }
  catalog->Add(std::move(resize));
  catalog->Add(std::move(grad));
}

}  // namespace oneflow_like
