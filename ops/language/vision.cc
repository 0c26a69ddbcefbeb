// The functions of ops/language/vision.h: each spells out its options for two axes and adds a node. What has
// one axis is a picture of one row.
#include "ops/language/vision.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "ops/language/calls.h"
#include "ops/language/numbers.h"

namespace oneflow_like {
namespace {

using Pair = std::vector<int64_t>;  // rows, columns

// Which function was called, and where.
struct Call {
  const char* name;
  Here at;
  int axes;  // of its windows

  Call(const char* function, const Here& here, int axes)
      : name(function), at(here.In(function)), axes(axes) {}

  std::string who() const { return Who(name, at); }

  void Require(Tensor x, int rank, const char* operand, const char* shape) const {
    NeedGiven(name, operand, x, at);
    if (x.shape().rank() != rank)
      Fail(who(), ": ", operand, " has ", x.shape().rank(), x.shape().rank() == 1 ? " axis" : " axes",
           " but needs ", rank, " (", shape, ")");
  }
  void RequirePlane(Tensor x) const {
    Require(x, axes + 2, "x", axes == 2 ? "batch, rows, columns, channels" : "batch, positions, channels");
  }
  void RequireFilter(Tensor filter) const {
    Require(filter, axes + 2, "the filter",
            axes == 2 ? "filters, rows, columns, channels of a group"
                      : "filters, positions, channels of a group");
  }

  // An option for rows and columns, each at least `least`; that is also what the one row of a picture of one
  // axis has.
  Pair Both(const char* option, const Pair& given, int64_t least) const {
    if (given.size() != 1 && static_cast<int>(given.size()) != axes)
      Fail(who(), ": ", option, " has ", given.size(), " numbers but must have 1", axes == 2 ? " or 2" : "");
    constexpr int64_t kMost = INT32_MAX;  // so that extents do not overflow
    for (size_t i = 0; i < given.size(); ++i)
      if (given[i] < least || given[i] > kMost)
        Fail(who(), ": ", option,
             given.size() == 1 ? ""
             : i == 0          ? " of the rows"
                               : " of the columns",
             " is ", given[i], " but must be at ", given[i] < least ? "least " : "most ",
             given[i] < least ? least : kMost);
    if (axes == 1) return {least, given[0]};
    return {given[0], given.back()};
  }

  // A node of a picture. One of one axis has positions in place of columns, also in messages.
  Tensor One(Tensor x, const std::string& op, const std::vector<Tensor>& in, const Attrs& attrs) const {
    if (axes == 2) return Apply(x.graph(), op, in, attrs, at)[0];
    try {
      return Apply(x.graph(), op, in, attrs, at)[0];
    } catch (const Error& error) {
      std::string text = error.what();
      for (const auto& [plane, line] :
           {std::pair{" of the columns", ""}, std::pair{" columns", " positions"}})
        for (size_t begin; (begin = text.find(plane)) != std::string::npos;)
          text.replace(begin, std::strlen(plane), line);
      throw Error(text);
    }
  }

  // [n l c] as one row, and back.
  Tensor AsPlane(Tensor x) const {
    if (axes == 2) return x;
    const Dims shape = x.shape();
    return reshape(x, {shape[0], 1, shape[1], shape[2]}, at);
  }
  Tensor FromPlane(Tensor x) const {
    if (axes == 2) return x;
    const Dims shape = x.shape();
    return reshape(x, {shape[0], shape[2], shape[3]}, at);
  }
};

Tensor Convolve(const Call& call, Tensor x, Tensor filter, const ConvOptions& o) {
  call.RequirePlane(x);
  call.RequireFilter(filter);
  Attrs attrs = {{"stride", call.Both("stride", o.stride, 1)},
                 {"padding", call.Both("padding", o.padding, 0)},
                 {"dilation", call.Both("dilation", o.dilation, 1)},
                 {"groups", o.groups}};
  // conv2d checks this too, but does not know the filter's own shape.
  const int64_t channels = x.shape().back();
  if (call.axes == 1 && o.groups == 1 && channels != filter.shape().back())
    Fail(call.who(), ": x has ", channels, " channels but the filter ", filter.shape().str(), " takes ",
         filter.shape().back());
  x = call.AsPlane(x);
  return call.FromPlane(call.One(x, "conv2d", {x, call.AsPlane(filter)}, attrs));
}

Tensor ConvolveTransposed(const Call& call, Tensor x, Tensor filter, const ConvTransposeOptions& o) {
  call.RequirePlane(x);
  call.RequireFilter(filter);
  const Pair stride = call.Both("stride", o.stride, 1), padding = call.Both("padding", o.padding, 0),
             dilation = call.Both("dilation", o.dilation, 1),
             more = call.Both("output_padding", o.output_padding, 0);
  if (o.groups < 1) Fail(call.who(), ": groups is ", o.groups, " but must be at least 1");
  if (x.shape().back() != filter.shape()[0])
    Fail(call.who(), ": x has ", x.shape().back(), " channels but axis 0 of the filter ",
         filter.shape().str(), " has ", filter.shape()[0]);
  if (x.shape().back() % o.groups != 0)
    Fail(call.who(), ": x has ", x.shape().back(), " channels, which do not divide into ", o.groups,
         " groups");
  NeedFloating(call.name, "x", x, call.at);
  NeedFloating(call.name, "filter", filter, call.at);
  if (x.dtype() != filter.dtype())
    Fail(call.who(), ": x is ", Name(x.dtype()), " but filter is ", Name(filter.dtype()),
         "; cast one of them");
  x = call.AsPlane(x);
  filter = call.AsPlane(filter);
  Pair size;
  for (int axis : {0, 1}) {
    if (x.shape()[axis + 1] < 1 || filter.shape()[axis + 1] < 1)
      Fail(call.who(), ": ", x.shape()[axis + 1] < 1 ? "x" : "filter", " has 0 ",
           call.axes == 1 ? "positions"
           : axis == 0    ? "rows"
                          : "columns",
           " but needs at least 1");
    if (more[axis] < 0 || more[axis] >= std::max<int64_t>(1, stride[axis]))
      Fail(call.who(), ": output_padding is ", more[axis],
           " but must be at least 0 and less than the stride, ", stride[axis]);
    int64_t extent = (x.shape()[axis + 1] - 1) * stride[axis] - 2 * padding[axis] +
                     dilation[axis] * (filter.shape()[axis + 1] - 1) + more[axis] + 1;
    if (extent < 1)
      Fail(call.who(), ": its result would have ", extent,
           call.axes == 1 ? " positions"
           : axis == 0    ? " rows"
                          : " columns",
           ", since ", padding[axis], " are cut off on both sides");
    size.push_back(extent);
  }
  Attrs attrs = {
      {"stride", stride}, {"padding", padding}, {"dilation", dilation}, {"groups", o.groups}, {"size", size}};
  return call.FromPlane(call.One(x, "conv2d_grad_input", {x, filter}, attrs));
}

Tensor Pool(const Call& call, const char* op, Tensor x, const PoolOptions& o) {
  call.RequirePlane(x);
  const Pair kernel = call.Both("kernel", o.kernel, 1);
  Attrs attrs = {{"kernel", kernel},
                 {"stride", o.stride.empty() ? kernel : call.Both("stride", o.stride, 1)},
                 {"padding", call.Both("padding", o.padding, 0)}};
  if (std::string(op) == "avg_pool2d") attrs.Set("count_padding", int64_t{o.count_include_pad});
  x = call.AsPlane(x);
  return call.FromPlane(call.One(x, op, {x}, attrs));
}

Tensor PoolTo(const Call& call, const char* op, Tensor x, const Pair& size) {
  call.RequirePlane(x);
  x = call.AsPlane(x);
  return call.FromPlane(call.One(x, op, {x}, {{"size", size}}));
}

}  // namespace

Tensor conv2d(Tensor x, Tensor filter, const ConvOptions& options, Here at) {
  return Convolve({"conv2d", at, 2}, x, filter, options);
}
Tensor conv1d(Tensor x, Tensor filter, const ConvOptions& options, Here at) {
  return Convolve({"conv1d", at, 1}, x, filter, options);
}
Tensor conv2d_transpose(Tensor x, Tensor filter, const ConvTransposeOptions& options, Here at) {
  return ConvolveTransposed({"conv2d_transpose", at, 2}, x, filter, options);
}
Tensor conv1d_transpose(Tensor x, Tensor filter, const ConvTransposeOptions& options, Here at) {
  return ConvolveTransposed({"conv1d_transpose", at, 1}, x, filter, options);
}

Tensor max_pool2d(Tensor x, const PoolOptions& options, Here at) {
  return Pool({"max_pool2d", at, 2}, "max_pool2d", x, options);
}
Tensor avg_pool2d(Tensor x, const PoolOptions& options, Here at) {
  return Pool({"avg_pool2d", at, 2}, "avg_pool2d", x, options);
}
Tensor max_pool1d(Tensor x, const PoolOptions& options, Here at) {
  return Pool({"max_pool1d", at, 1}, "max_pool2d", x, options);
}
Tensor avg_pool1d(Tensor x, const PoolOptions& options, Here at) {
  return Pool({"avg_pool1d", at, 1}, "avg_pool2d", x, options);
}
Tensor adaptive_max_pool2d(Tensor x, int64_t rows, int64_t columns, Here at) {
  return PoolTo({"adaptive_max_pool2d", at, 2}, "max_pool2d", x, {rows, columns});
}
Tensor adaptive_avg_pool2d(Tensor x, int64_t rows, int64_t columns, Here at) {
  return PoolTo({"adaptive_avg_pool2d", at, 2}, "avg_pool2d", x, {rows, columns});
}
Tensor adaptive_max_pool1d(Tensor x, int64_t length, Here at) {
  return PoolTo({"adaptive_max_pool1d", at, 1}, "max_pool2d", x, {1, length});
}
Tensor adaptive_avg_pool1d(Tensor x, int64_t length, Here at) {
  return PoolTo({"adaptive_avg_pool1d", at, 1}, "avg_pool2d", x, {1, length});
}

Tensor interpolate(Tensor x, int64_t rows, int64_t columns, const InterpolateOptions& options, Here at) {
  Call call{"interpolate", at, 2};
  call.RequirePlane(x);
  NeedEnum(call.who(), "mode", options.mode, ResizeMode::kBilinear, "ResizeMode");
  std::string mode = options.mode == ResizeMode::kNearest ? "nearest" : "bilinear";
  return call.One(
      x, "interpolate", {x},
      {{"size", Pair{rows, columns}}, {"mode", mode}, {"align_corners", int64_t{options.align_corners}}});
}

Tensor group_norm(Tensor x, int64_t groups, Tensor gamma, Tensor beta, double eps, Here at) {
  Call call{"group_norm", at, 2};
  NeedGiven(call.name, "x", x, call.at);
  return call.One(x, "group_norm", {x, gamma, beta}, {{"groups", groups}, {"eps", eps}});
}

namespace {

int64_t ElementsOfChannel(Tensor x) {
  const int64_t channels = x.shape().back();
  return channels == 0 ? 0 : x.shape().elements() / channels;
}

// A number near the mean of each channel, to sum squares about: the mean of every sixteenth row, or other
// part of the longest axis between batch and channels, so that statistics read x once. Neither mean nor
// variance depend on it but in their rounding, so no gradient flows through it. If a share f of a channel's
// elements has the mean c, then (c - mean)^2 <= (1 - f) / f variance: the subtraction of the squares loses at
// most four bits, whatever the data.
Tensor Centre(Tensor x, const Here& at) {
  const Dims shape = x.shape();
  int64_t axis = 0;
  for (int64_t a = 1; a + 1 < shape.rank(); ++a)
    if (axis == 0 || shape[a] > shape[axis]) axis = a;
  Tensor some = axis > 0 && shape[axis] > 1 ? slice(x, axis, 0, shape[axis], 16, at) : x;
  Tensor none = full(x.graph(), {shape.back()}, 0, DType::kFloat32, at);
  Tensor total = Apply(x.graph(), "channel_moments", {some, none}, {}, at)[0];
  return stop_gradient(scale(total, 1.0 / static_cast<double>(ElementsOfChannel(some)), at), at);
}

// x normalised by statistics of its channels.
Tensor Normalise(const Call& call, Tensor x, Tensor gamma, Tensor beta, Tensor mean, Tensor variance,
                 double eps) {
  Tensor factor = mul(gamma, rsqrt(shift(variance, eps, call.at), call.at), call.at);
  return call.One(x, "channel_affine", {x, mean, factor, beta}, {});
}

void CheckBatchNorm(const Call& call, Tensor x, const std::vector<std::pair<const char*, Tensor>>& numbers,
                    double eps) {
  NeedFloating(call.name, "x", x, call.at);
  if (x.shape().rank() < 2)
    Fail(call.who(), ": x has ", x.shape().rank(), x.shape().rank() == 1 ? " axis" : " axes",
         " but needs at least 2 (batch, .., channels)");
  for (const auto& [name, tensor] : numbers) {
    NeedFloating(call.name, name, tensor, call.at);
    call.Require(tensor, 1, name, "channels");
    if (tensor.shape()[0] != x.shape().back())
      Fail(call.who(), ": ", name, " is ", tensor.shape().str(), " but x has ", x.shape().back(),
           " channels");
  }
  NeedNumber(call.who(), "eps", eps, Domain::kPositive);
}

}  // namespace

BatchNorm batch_norm(Tensor x, Tensor gamma, Tensor beta, double eps, Here at) {
  Call call{"batch_norm", at, 2};
  CheckBatchNorm(call, x, {{"gamma", gamma}, {"beta", beta}}, eps);
  const int64_t count = ElementsOfChannel(x);
  if (count == 0) Fail(call.who(), ": x is ", x.shape().str(), ", which has no element to take a mean of");
  const double share = 1.0 / static_cast<double>(count);
  at = call.at;
  Tensor centre = Centre(x, at);
  std::vector<Tensor> about = Apply(x.graph(), "channel_moments", {x, centre}, {}, at);
  Tensor away = scale(about[0], share, at);
  Tensor variance = relu(sub(scale(about[1], share, at), square(away, at), at), at);
  Tensor mean = add(centre, away, at);
  return {Normalise(call, x, gamma, beta, mean, variance, eps), mean, variance};
}

Tensor batch_norm_eval(Tensor x, Tensor gamma, Tensor beta, Tensor mean, Tensor variance, double eps,
                       Here at) {
  Call call{"batch_norm_eval", at, 2};
  CheckBatchNorm(call, x, {{"gamma", gamma}, {"beta", beta}, {"mean", mean}, {"variance", variance}}, eps);
  return Normalise(call, x, gamma, beta, mean, variance, eps);
}

}  // namespace oneflow_like
