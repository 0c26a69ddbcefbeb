// conv2d and its two gradients. Each of the three is a sum of products over the relation of
// ops/convolution.h, linear in both operands, and the gradients of each are the other two: so derivatives of
// any order exist, and a transposed convolution is the gradient with respect to the input.
#include "ops/convolution.h"

#include "ops/language/functional.h"
#include "ops/manifest.h"
#include "ops/reference.h"

namespace oneflow_like {

ConvolutionShape ShapeOfConvolution(const Attrs& attrs, const ConvolutionArgs& args) {
  const TensorArg &x = *args.x, &filter = *args.filter, &y = *args.y;
  ConvolutionShape shape;
  shape.batch = x.extent[0];
  shape.in = filter.extent[3];
  int64_t groups = attrs.Int("groups");
  shape.groups = groups;
  if (groups > 1) {  // a rank holds whole groups
    int64_t out = filter.global[0] / groups;
    shape.groups = out > 0 ? filter.extent[0] / out : shape.in > 0 ? x.extent[3] / shape.in : 0;
  }
  shape.out = shape.groups > 0 ? filter.extent[0] / shape.groups : 0;
  const std::vector<int64_t>&stride = attrs.Ints("stride"), &padding = attrs.Ints("padding"),
        &dilation = attrs.Ints("dilation");
  shape.rows = {x.extent[1], filter.extent[1], y.extent[1], stride[0], padding[0], dilation[0]};
  shape.columns = {x.extent[2], filter.extent[2], y.extent[2], stride[1], padding[1], dilation[1]};
  return shape;
}

namespace {

using Kind = ConvolutionKind;

// --- Reference kernels ---------------------------------------------------------------------------

// Offsets of elements, and the sums over what meets.
struct Relation {
  ConvolutionShape shape;
  const TensorArg &x, &filter, &y;

  double X(int64_t n, int64_t h, int64_t w, int64_t channel) const {
    return LoadFloat(x, ((n * shape.rows.in + h) * shape.columns.in + w) * x.extent[3] + channel);
  }
  double Filter(int64_t channel, int64_t r, int64_t s, int64_t c) const {
    return LoadFloat(filter, ((channel * shape.rows.window + r) * shape.columns.window + s) * shape.in + c);
  }
  double Y(int64_t n, int64_t p, int64_t q, int64_t channel) const {
    return LoadFloat(y, ((n * shape.rows.out + p) * shape.columns.out + q) * y.extent[3] + channel);
  }
};

// f(r, h) for every element r of a window at result p that lies inside the axis.
template <typename F>
void ForWindow(const ConvolutionAxis& axis, int64_t p, F&& f) {
  for (int64_t r = 0; r < axis.window; ++r) {
    int64_t h = p * axis.stride - axis.padding + r * axis.dilation;
    if (h >= 0 && h < axis.in) f(r, h);
  }
}

// f(r, p) for every result p whose window has element h as its element r.
template <typename F>
void ForResults(const ConvolutionAxis& axis, int64_t h, F&& f) {
  for (int64_t r = 0; r < axis.window; ++r) {
    int64_t at = h + axis.padding - r * axis.dilation;
    if (at >= 0 && at % axis.stride == 0 && at / axis.stride < axis.out) f(r, at / axis.stride);
  }
}

double ForwardAt(const Relation& of, const Dims& at) {
  const ConvolutionShape& shape = of.shape;
  int64_t group = at[3] / shape.out;
  double total = 0;
  ForWindow(shape.rows, at[1], [&](int64_t r, int64_t h) {
    ForWindow(shape.columns, at[2], [&](int64_t s, int64_t w) {
      for (int64_t c = 0; c < shape.in; ++c)
        total += of.X(at[0], h, w, group * shape.in + c) * of.Filter(at[3], r, s, c);
    });
  });
  return total;
}

double GradInputAt(const Relation& of, const Dims& at) {
  const ConvolutionShape& shape = of.shape;
  int64_t group = at[3] / shape.in, c = at[3] % shape.in;
  double total = 0;
  ForResults(shape.rows, at[1], [&](int64_t r, int64_t p) {
    ForResults(shape.columns, at[2], [&](int64_t s, int64_t q) {
      for (int64_t k = group * shape.out; k < (group + 1) * shape.out; ++k)
        total += of.Y(at[0], p, q, k) * of.Filter(k, r, s, c);
    });
  });
  return total;
}

double GradFilterAt(const Relation& of, const Dims& at) {
  const ConvolutionShape& shape = of.shape;
  int64_t channel = at[0] / shape.out * shape.in + at[3];
  double total = 0;
  auto meets = [](const ConvolutionAxis& axis, int64_t p, int64_t r) {
    int64_t h = p * axis.stride - axis.padding + r * axis.dilation;
    return h >= 0 && h < axis.in ? h : -1;
  };
  for (int64_t n = 0; n < shape.batch; ++n) {
    for (int64_t p = 0; p < shape.rows.out; ++p) {
      int64_t h = meets(shape.rows, p, at[1]);
      for (int64_t q = 0; q < shape.columns.out; ++q) {
        int64_t w = meets(shape.columns, q, at[2]);
        if (h >= 0 && w >= 0) total += of.X(n, h, w, channel) * of.Y(n, p, q, at[0]);
      }
    }
  }
  return total;
}

template <Kind kKind>
Status ConvolutionReference(const KernelContext& context) {
  ConvolutionArgs args = ConvolutionArgsOf(kKind, context);
  Relation of{ShapeOfConvolution(context.spec.attrs, args), *args.x, *args.filter, *args.y};
  int64_t offset = 0;
  ForEachIndex(context.out[0].extent, [&](const Dims& at) {
    double total = kKind == Kind::kForward     ? ForwardAt(of, at)
                   : kKind == Kind::kGradInput ? GradInputAt(of, at)
                                               : GradFilterAt(of, at);
    StoreFloat(context.out[0], offset++, total);
  });
  return {};
}

// --- Checks --------------------------------------------------------------------------------------

void RequireFourAxes(const OpCall& call, const Dims& shape, const char* name, const char* axes) {
  if (shape.rank() != 4)
    Fail(call.who, ": ", name, " has ", shape.rank(), shape.rank() == 1 ? " axis" : " axes", " but needs 4 (",
         axes, ")");
}

void CheckChannels(const OpCall& call, int64_t groups, const Dims* x, const Dims* filter, const Dims* y) {
  auto divides = [&](const char* what, int64_t channels) {
    if (channels % groups != 0)
      Fail(call.who, ": ", what, " ", channels, ", which does not divide into ", groups, " groups");
  };
  if (x) divides("the channels of x are", (*x)[3]);
  if (y) divides("the channels of dy are", (*y)[3]);
  if (filter) divides("the filters (axis 0 of the filter) are", (*filter)[0]);
  if (x && filter && (*x)[3] / groups != (*filter)[3]) {
    Fail(call.who, ": x has ", (*x)[3], " channels",
         groups > 1 ? Cat(", ", (*x)[3] / groups, " in each of ", groups, " groups,") : std::string(),
         " but the filter ", filter->str(), " takes ", (*filter)[3]);
  }
  if (y && filter && (*y)[3] != (*filter)[0])
    Fail(call.who, ": dy has ", (*y)[3], " channels but the filter ", filter->str(), " gives ", (*filter)[0]);
}

// Results along both axes, by the attributes; throws where a window does not fit.
void ResultExtents(const OpCall& call, const int64_t* in, const int64_t* window, int64_t* out) {
  for (int axis : {0, 1}) {
    int64_t stride = call.attrs->Ints("stride")[axis], padding = call.attrs->Ints("padding")[axis],
            dilation = call.attrs->Ints("dilation")[axis];
    if (window[axis] < 1)
      Fail(call.who, ": the filter has ", window[axis], " ", kPlaneAxes[axis], " but must have at least 1");
    out[axis] = ConvolutionExtent(in[axis], window[axis], stride, padding, dilation);
    if (out[axis] < 1) {
      Fail(call.who, ": a filter of ", window[axis], " ", kPlaneAxes[axis], " at dilation ", dilation,
           " spans ", dilation * (window[axis] - 1) + 1, " but x with its padding has ",
           in[axis] + 2 * padding);
    }
  }
}

template <Kind kKind>
void CheckConvolution(const OpCall& call) {
  RequireInputs(call, 2);
  RequireFloating(call);
  RequireSameTypes(call);
  const Dims &first = call.shapes[0], &second = call.shapes[1];
  const char* const kPlane = "batch, rows, columns, channels";
  const char* const kFilter = "filters, rows, columns, channels of a group";
  RequireFourAxes(call, first, kKind == Kind::kGradInput ? "dy" : "x", kPlane);
  RequireFourAxes(call, second, kKind == Kind::kGradFilter ? "dy" : "the filter",
                  kKind == Kind::kGradFilter ? kPlane : kFilter);
  RequirePair(call, "stride", 1);
  RequirePair(call, "padding", 0);
  RequirePair(call, "dilation", 1);
  RequireAttr(call, "groups");
  int64_t groups = call.attrs->Int("groups"), out[2];
  if (groups < 1) Fail(call.who, ": groups is ", groups, " but must be at least 1");
  const Dims* y = nullptr;
  if (kKind == Kind::kForward) {
    CheckChannels(call, groups, &first, &second, nullptr);
    ResultExtents(call, first.begin() + 1, second.begin() + 1, out);
  } else if (kKind == Kind::kGradInput) {
    CheckChannels(call, groups, nullptr, &second, y = &first);
    RequirePair(call, "size", 0);
    ResultExtents(call, call.attrs->Ints("size").data(), second.begin() + 1, out);
  } else {
    CheckChannels(call, groups, &first, nullptr, y = &second);
    RequirePair(call, "window", 1);
    ResultExtents(call, first.begin() + 1, call.attrs->Ints("window").data(), out);
  }
  for (int axis : {0, 1}) {
    if (y && (*y)[axis + 1] != out[axis])
      Fail(call.who, ": dy has ", (*y)[axis + 1], " ", kPlaneAxes[axis],
           " but a convolution of that size gives ", out[axis]);
  }
}

// --- Rules ---------------------------------------------------------------------------------------

// With one group the channels are plain labels, and each of them can be cut.
template <Kind kKind>
std::string ConvolutionAxes(const OpCall& call) {
  bool grouped = call.attrs->Int("groups") > 1;
  std::string x = grouped ? "x[n h w (g c)]" : "x[n h w c]", y = grouped ? "y[n p q (g k)]" : "y[n p q k]";
  std::string filter = grouped ? "filter[(g k) r s c]" : "filter[k r s c]";
  if (kKind == Kind::kForward) return x + ", " + filter + " -> " + y;
  if (kKind == Kind::kGradInput) return "d" + y + ", " + filter + " -> d" + x;
  return x + ", d" + y + " -> d" + filter;
}

template <Kind kKind>
std::map<std::string, int64_t> ConvolutionExtents(const OpCall& call) {
  std::map<std::string, int64_t> extents;
  int64_t groups = call.attrs->Int("groups"), out[2];
  if (groups > 1) extents["g"] = groups;
  if (kKind == Kind::kForward) {
    ResultExtents(call, call.shapes[0].begin() + 1, call.shapes[1].begin() + 1, out);
    extents["p"] = out[0];
    extents["q"] = out[1];
  } else if (kKind == Kind::kGradInput) {
    extents["h"] = call.attrs->Ints("size")[0];
    extents["w"] = call.attrs->Ints("size")[1];
  } else {
    extents["r"] = call.attrs->Ints("window")[0];
    extents["s"] = call.attrs->Ints("window")[1];
  }
  return extents;
}

// A product for every result, element of its window, channel and filter, whether or not it lies in the
// padding.
double ConvolutionFlops(const BoundRule& rule) {
  double flops = 2;
  for (const auto& [label, extent] : rule.extents) {
    if (label != "h" && label != "w") flops *= static_cast<double>(extent);
  }
  return flops;
}

// --- Gradients -----------------------------------------------------------------------------------

std::vector<int64_t> Plane(const Dims& shape) { return {shape[1], shape[2]}; }

Attrs WithExtents(const Attrs& attrs, const std::string& name, std::vector<int64_t> value) {
  Attrs more;
  for (const char* kept : {"stride", "padding", "dilation", "groups"}) more.Set(kept, attrs.map().at(kept));
  if (!name.empty()) more.Set(name, std::move(value));
  return more;
}

Tensor Forward(const Attrs& attrs, Tensor x, Tensor filter) {
  return Apply(x.graph(), "conv2d", {x, filter}, WithExtents(attrs, "", {}))[0];
}
Tensor GradInput(const Attrs& attrs, Tensor dy, Tensor filter, const Dims& x) {
  return Apply(dy.graph(), "conv2d_grad_input", {dy, filter}, WithExtents(attrs, "size", Plane(x)))[0];
}
Tensor GradFilter(const Attrs& attrs, Tensor x, Tensor dy, const Dims& filter) {
  return Apply(x.graph(), "conv2d_grad_filter", {x, dy}, WithExtents(attrs, "window", Plane(filter)))[0];
}

// The result's gradient takes the result's place in the relation.
template <Kind kKind>
std::vector<Tensor> ConvolutionGrad(const GradCall& call) {
  Tensor first = call.in[0], second = call.in[1], d = call.dout[0];
  const Dims first_shape = first.shape(), second_shape = second.shape();
  std::vector<Tensor> din(2);
  if (kKind == Kind::kForward) {
    if (call.wanted[0]) din[0] = GradInput(call.attrs, d, second, first_shape);
    if (call.wanted[1]) din[1] = GradFilter(call.attrs, first, d, second_shape);
  } else if (kKind == Kind::kGradInput) {
    if (call.wanted[0]) din[0] = Forward(call.attrs, d, second);
    if (call.wanted[1]) din[1] = GradFilter(call.attrs, d, first, second_shape);
  } else {
    if (call.wanted[0]) din[0] = GradInput(call.attrs, second, d, first_shape);
    if (call.wanted[1]) din[1] = Forward(call.attrs, first, d);
  }
  return din;
}

// --- Table entries -------------------------------------------------------------------------------

struct Window {
  std::vector<int64_t> stride = {1, 1}, padding = {0, 0}, dilation = {1, 1};
  int64_t groups = 1;
  Attrs attrs() const {
    return {{"stride", stride}, {"padding", padding}, {"dilation", dilation}, {"groups", groups}};
  }
};

// x and filter of samples; what each kind of them takes follows.
struct SampleShape {
  Dims x, filter;
  Window window;
};
const std::vector<SampleShape>& SampleShapes() {
  static const std::vector<SampleShape> shapes = {
      {{2, 3, 3, 2}, {4, 2, 2, 2}, {}},
      {{2, 5, 3, 2}, {2, 3, 2, 2}, {.stride = {2, 1}, .padding = {1, 1}}},
      {{2, 7, 7, 4}, {6, 3, 2, 2}, {.stride = {2, 3}, .padding = {1, 1}, .dilation = {2, 1}, .groups = 2}},
      {{2, 3, 3, 3}, {6, 2, 3, 1}, {.padding = {0, 1}, .groups = 3}},
      {{2, 3, 4, 5}, {3, 1, 1, 5}, {}},
      {{1, 1, 1, 1}, {1, 1, 1, 1}, {.stride = {2, 2}}},
      {{0, 3, 3, 2}, {2, 2, 2, 2}, {}},
      {{2, 3, 3, 0}, {2, 2, 2, 0}, {}},
  };
  return shapes;
}

template <Kind kKind>
Sample SampleOf(const SampleShape& of) {
  Sample sample;
  sample.attrs = of.window.attrs();
  Dims y = of.x;
  for (int axis : {0, 1})
    y[axis + 1] = ConvolutionExtent(of.x[axis + 1], of.filter[axis + 1], of.window.stride[axis],
                                    of.window.padding[axis], of.window.dilation[axis]);
  y[3] = of.filter[0];
  if (kKind == Kind::kForward) sample.in = {of.x, of.filter};
  if (kKind == Kind::kGradInput) {
    sample.in = {y, of.filter};
    sample.attrs.Set("size", Plane(of.x));
  }
  if (kKind == Kind::kGradFilter) {
    sample.in = {of.x, y};
    sample.attrs.Set("window", Plane(of.filter));
  }
  return sample;
}

template <Kind kKind>
OpDef ConvolutionOp(const std::string& name, const std::string& doc) {
  OpDef def{.name = name, .doc = doc};
  def.axes_of = ConvolutionAxes<kKind>;
  def.whole = {"h", "w", "p", "q", "r", "s"};
  def.extents = ConvolutionExtents<kKind>;
  if (kKind == Kind::kForward) {
    def.folds = {{"c", Reduce::kSum}};
    def.linear = {{"x"}, {"filter"}};
  } else if (kKind == Kind::kGradInput) {
    def.folds = {{"k", Reduce::kSum}};
    def.linear = {{"dy"}, {"filter"}};
  } else {
    def.folds = {{"n", Reduce::kSum}};
    def.linear = {{"x"}, {"dy"}};
  }
  def.check = CheckConvolution<kKind>;
  def.grad = ConvolutionGrad<kKind>;
  def.category = "convolution";
  def.flops = ConvolutionFlops;
  def.cuda_unit = [](const KernelSpec& spec) -> ComputeUnit {
    const ConvolutionShape shape = ShapeOfConvolution(spec.attrs, ConvolutionArgsOf(kKind, spec));
    if (!MayConvolve(shape))
      return {ComputeUnit::Kind::kPlain, "a plane's extent is not that of its windows, rounded down"};
    // cuDNN 9.19 and 9.28 advise no such engine for any card (tests/cudnn).
    if (shape.groups > 1 && shape.in == 1 && shape.out == 1)
      return {ComputeUnit::Kind::kPlain, "each channel is a group of its own"};
    return UnitOfProducts(spec);
  };
  def.reference = ConvolutionReference<kKind>;
  def.precision = Precision::kNarrow;
  def.typed = true;
  for (const SampleShape& shape : SampleShapes()) def.samples.push_back(SampleOf<kKind>(shape));
  return def;
}

}  // namespace

void AddConvolution(Catalog* catalog) {
  catalog->Add(ConvolutionOp<Kind::kForward>(
      "conv2d",
      "Sums over a window of rows and columns, in groups of channels; channels are the last axis."));
  catalog->Add(ConvolutionOp<Kind::kGradInput>(
      "conv2d_grad_input", "Gradient of conv2d with respect to x, whose rows and columns \"size\" says."));
  catalog->Add(ConvolutionOp<Kind::kGradFilter>(
      "conv2d_grad_filter",
      "Gradient of conv2d with respect to the filter, whose rows and columns \"window\" says."));
}

}  // namespace oneflow_like
