// The functions of ops/language/volumes.h: compositions, whose gradients, signatures and kernels are those of
// their parts.
#include "ops/language/volumes.h"

#include <array>
#include <cstdint>

#include "ops/language/calls.h"
#include "ops/language/composed.h"
#include "ops/language/expressions.h"
#include "ops/language/numbers.h"
#include "ops/language/sparse.h"

namespace oneflow_like {
namespace {

constexpr int64_t kMostTaps = 1024;
constexpr const char* kVolumeAxes[] = {"depth", "rows", "columns"};

// An option for depth, rows and columns; of two axes, depth has `least`.
std::array<int64_t, 3> EachAxis(const char* op, const char* option, const std::vector<int64_t>& given,
                                int axes, int64_t least, const Here& at) {
  if (given.size() != 1 && static_cast<int>(given.size()) != axes)
    Fail(Who(op, at), ": ", option, " has ", given.size(), " numbers but must have 1 or ", axes);
  std::array<int64_t, 3> each = {least, least, least};
  for (int i = 0; i < axes; ++i) {
    const int64_t number = given.size() == 1 ? given[0] : given[i];
    if (number < least || number > INT32_MAX)
      Fail(Who(op, at), ": ", option,
           given.size() == 1 ? "" : Cat(" of the ", kVolumeAxes[3 - axes + i]).c_str(), " is ", number,
           " but must be at ", number < least ? "least " : "most ",
           number < least ? least : int64_t{INT32_MAX});
    each[3 - axes + i] = number;
  }
  return each;
}

void NeedAxes(const char* op, const char* operand, const Tensor& x, int rank, const char* axes,
              const Here& at) {
  NeedGiven(op, operand, x, at);
  if (x.shape().rank() != rank)
    Fail(Who(op, at), ": ", operand, " is ", x.shape().str(), " but must have the axes ", axes);
}

// How many windows there are along an axis of so many elements, padding included.
int64_t WindowCount(const char* op, const char* axis, int64_t extent, int64_t size, int64_t stride,
                    int64_t dilation, const Here& at) {
  const int64_t covers = dilation * (size - 1) + 1;
  if (size < 1) Fail(Who(op, at), ": the filter has ", size, " ", axis, " but needs at least 1");
  if (covers > extent)
    Fail(Who(op, at), ": a window covers ", covers, " ", axis, " but x has ", extent, ", padding included");
  return (extent - covers) / stride + 1;
}

struct WindowAxis {
  int64_t size, stride, padding, dilation, count;  // count: of windows

  // i64[count size]: the places of each window, padding included.
  Tensor Places(GraphBuilder* graph, const Here& at) const {
    const auto by = [&](int64_t n, int64_t step) {
      return arange(graph, 0, static_cast<double>(n * step), static_cast<double>(step), DType::kInt64, at);
    };
    return add(reshape(by(count, stride), {count, 1}, at), by(size, dilation), at);
  }
};

}  // namespace

// --- Volumes -------------------------------------------------------------------------------------

Tensor conv3d(Tensor x, Tensor filter, const ConvOptions& o, Here at) {
  at = at.In("conv3d");
  NeedAxes("conv3d", "x", x, 5, "[n d h w c]", at);
  NeedAxes("conv3d", "filter", filter, 5, "[k t r s c/groups]", at);
  const auto stride = EachAxis("conv3d", "stride", o.stride, 3, 1, at),
             padding = EachAxis("conv3d", "padding", o.padding, 3, 0, at),
             dilation = EachAxis("conv3d", "dilation", o.dilation, 3, 1, at);
  const Dims from = x.shape(), window = filter.shape();
  const int64_t taps = window[1], groups = o.groups;
  if (groups < 1) Fail(Who("conv3d", at), ": groups is ", groups, " but must be at least 1");
  if (from[4] % groups != 0 || from[4] / groups != window[4])
    Fail(Who("conv3d", at), ": x has ", from[4], " channels but the filter ", window.str(), " takes ",
         window[4], " in each of ", groups, groups == 1 ? " group" : " groups");
  if (taps > kMostTaps)
    Fail(Who("conv3d", at), ": the filter has a depth of ", taps, " but may have ", kMostTaps, " at most");
  if (padding[0] > 0) x = pad(x, 1, padding[0], padding[0], at);
  const int64_t out = WindowCount("conv3d", kVolumeAxes[0], x.shape()[1], taps, stride[0], dilation[0], at);
  // The parts of x that each element of the filter's depth meets, among the channels of their group.
  std::vector<Tensor> parts;
  for (int64_t t = 0; t < taps; ++t) {
    const int64_t begin = t * dilation[0];
    Tensor part = x;
    if (taps > 1 || stride[0] > 1)
      part = slice(x, 1, begin, begin + (out - 1) * stride[0] + 1, stride[0], at);
    if (groups > 1 && taps > 1)
      part = reshape(part, {from[0], out, from[2], from[3], groups, from[4] / groups}, at);
    parts.push_back(part);
  }
  Tensor all = taps > 1 ? concat(parts, -1, at) : parts[0];
  all = reshape(all, {from[0] * out, from[2], from[3], taps * from[4]}, at);
  Tensor flat = reshape(transpose(filter, {0, 2, 3, 1, 4}, at),
                        {window[0], window[2], window[3], taps * window[4]}, at);
  Tensor y = conv2d(
      all, flat, {{stride[1], stride[2]}, {padding[1], padding[2]}, {dilation[1], dilation[2]}, groups}, at);
  return reshape(y, {from[0], out, y.shape()[1], y.shape()[2], window[0]}, at);
}

Tensor conv3d_transpose(Tensor x, Tensor filter, const ConvTransposeOptions& o, Here at) {
  at = at.In("conv3d_transpose");
  NeedAxes("conv3d_transpose", "x", x, 5, "[n o p q k]", at);
  NeedAxes("conv3d_transpose", "filter", filter, 5, "[k t r s c/groups]", at);
  const auto stride = EachAxis("conv3d_transpose", "stride", o.stride, 3, 1, at),
             padding = EachAxis("conv3d_transpose", "padding", o.padding, 3, 0, at),
             dilation = EachAxis("conv3d_transpose", "dilation", o.dilation, 3, 1, at),
             more = EachAxis("conv3d_transpose", "output_padding", o.output_padding, 3, 0, at);
  const Dims from = x.shape(), window = filter.shape();
  const int64_t planes = from[1], taps = window[1], channels = window[4];
  if (planes < 1 || taps < 1 || taps > kMostTaps)
    Fail(Who("conv3d_transpose", at), ": x has a depth of ", planes, " and the filter one of ", taps,
         ", but they must have at least 1, and the filter ", kMostTaps, " at most");
  if (more[0] >= stride[0])
    Fail(Who("conv3d_transpose", at), ": output_padding of the depth is ", more[0],
         " but must be less than the stride, ", stride[0]);
  const int64_t covered = (planes - 1) * stride[0] + dilation[0] * (taps - 1) + 1 + more[0];
  const int64_t depth = covered - 2 * padding[0];
  if (depth < 1)
    Fail(Who("conv3d_transpose", at), ": its result would have a depth of ", depth, ", since ", padding[0],
         " are cut off on both sides");
  Tensor flat =
      reshape(transpose(filter, {0, 2, 3, 1, 4}, at), {window[0], window[2], window[3], taps * channels}, at);
  Tensor y = conv2d_transpose(reshape(x, {from[0] * planes, from[2], from[3], from[4]}, at), flat,
                              {{stride[1], stride[2]},
                               {padding[1], padding[2]},
                               {dilation[1], dilation[2]},
                               {more[1], more[2]},
                               o.groups},
                              at);
  const int64_t rows = y.shape()[1], columns = y.shape()[2];
  y = reshape(y, {from[0], planes, rows, columns, o.groups, taps, channels}, at);
  y = reshape(transpose(y, {0, 1, 5, 2, 3, 4, 6}, at),
              {from[0], planes, taps, rows, columns, o.groups * channels}, at);
  const WindowAxis places{taps, stride[0], padding[0], dilation[0], planes};
  y = One("index_sum", {places.Places(y.graph(), at), y}, {{"axis", int64_t{1}}, {"extent", covered}}, at);
  return padding[0] > 0 ? slice(y, 1, padding[0], padding[0] + depth, at) : y;
}

namespace {

using Pool2d = Tensor (*)(Tensor x, const PoolOptions& options, Here at);
using AdaptivePool2d = Tensor (*)(Tensor x, int64_t rows, int64_t columns, Here at);

// f of every plane of rows and columns, then g of planes that have depth for rows.
template <typename F, typename G>
Tensor ByPlanes(Tensor x, const Here& at, F&& f, G&& g) {
  const Dims s = x.shape();
  Tensor y = f(reshape(x, {s[0] * s[1], s[2], s[3], s[4]}, at));
  const int64_t rows = y.shape()[1], columns = y.shape()[2];
  y = g(reshape(y, {s[0], s[1], rows * columns, s[4]}, at));
  return reshape(y, {s[0], y.shape()[1], rows, columns, s[4]}, at);
}

Tensor PoolVolume(const char* op, Pool2d pool, Tensor x, const PoolOptions& o, Here at) {
  at = at.In(op);
  NeedAxes(op, "x", x, 5, "[n d h w c]", at);
  const auto kernel = EachAxis(op, "kernel", o.kernel, 3, 1, at),
             stride = o.stride.empty() ? kernel : EachAxis(op, "stride", o.stride, 3, 1, at),
             padding = EachAxis(op, "padding", o.padding, 3, 0, at);
  if (padding[0] > kernel[0] / 2)
    Fail(Who(op, at), ": padding of the depth is ", padding[0], " but may be half of the kernel's ",
         kernel[0], " at most");
  WindowCount(op, kVolumeAxes[0], x.shape()[1] + 2 * padding[0], kernel[0], stride[0], 1, at);
  const auto part = [&](Tensor y, std::vector<int64_t> size, std::vector<int64_t> step,
                        std::vector<int64_t> border) {
    return pool(y, {std::move(size), std::move(step), std::move(border), o.count_include_pad}, at);
  };
  return ByPlanes(
      x, at,
      [&](Tensor y) {
        return part(y, {kernel[1], kernel[2]}, {stride[1], stride[2]}, {padding[1], padding[2]});
      },
      [&](Tensor y) {
        return part(y, {kernel[0], 1}, {stride[0], 1}, {padding[0], 0});
      });
}

Tensor PoolVolumeTo(const char* op, AdaptivePool2d pool, Tensor x, int64_t depth, int64_t rows,
                    int64_t columns, Here at) {
  at = at.In(op);
  NeedAxes(op, "x", x, 5, "[n d h w c]", at);
  if (depth < 1) Fail(Who(op, at), ": depth is ", depth, " but must be at least 1");
  if (x.shape()[1] < 1) Fail(Who(op, at), ": x ", x.shape().str(), " has no depth");
  return ByPlanes(
      x, at, [&](Tensor y) { return pool(y, rows, columns, at); },
      [&](Tensor y) { return pool(y, depth, y.shape()[2], at); });
}

}  // namespace

Tensor max_pool3d(Tensor x, const PoolOptions& options, Here at) {
  return PoolVolume("max_pool3d", max_pool2d, x, options, at);
}
Tensor avg_pool3d(Tensor x, const PoolOptions& options, Here at) {
  return PoolVolume("avg_pool3d", avg_pool2d, x, options, at);
}
Tensor adaptive_max_pool3d(Tensor x, int64_t depth, int64_t rows, int64_t columns, Here at) {
  return PoolVolumeTo("adaptive_max_pool3d", adaptive_max_pool2d, x, depth, rows, columns, at);
}
Tensor adaptive_avg_pool3d(Tensor x, int64_t depth, int64_t rows, int64_t columns, Here at) {
  return PoolVolumeTo("adaptive_avg_pool3d", adaptive_avg_pool2d, x, depth, rows, columns, at);
}

// --- Windows of pictures -------------------------------------------------------------------------

namespace {

// Of rows and columns.
std::array<WindowAxis, 2> WindowAxes(const char* op, int64_t rows, int64_t columns, const WindowOptions& o,
                                     const Here& at) {
  const auto kernel = EachAxis(op, "kernel", o.kernel, 2, 1, at),
             stride = EachAxis(op, "stride", o.stride, 2, 1, at),
             padding = EachAxis(op, "padding", o.padding, 2, 0, at),
             dilation = EachAxis(op, "dilation", o.dilation, 2, 1, at);
  std::array<WindowAxis, 2> axes;
  for (int i : {1, 2})
    axes[i - 1] = {kernel[i], stride[i], padding[i], dilation[i],
                   WindowCount(op, kVolumeAxes[i], (i == 1 ? rows : columns) + 2 * padding[i], kernel[i],
                               stride[i], dilation[i], at)};
  return axes;
}

}  // namespace

Tensor unfold(Tensor x, const WindowOptions& options, Here at) {
  at = at.In("unfold");
  NeedAxes("unfold", "x", x, 4, "[n h w c]", at);
  const Dims s = x.shape();
  const auto [rows, columns] = WindowAxes("unfold", s[1], s[2], options, at);
  if (rows.padding > 0) x = pad(x, 1, rows.padding, rows.padding, at);
  if (columns.padding > 0) x = pad(x, 2, columns.padding, columns.padding, at);
  Tensor y = take(x, 1, rows.Places(x.graph(), at), at);  // [n p r w c]
  y = take(y, 3, columns.Places(x.graph(), at), at);      // [n p r q s c]
  return reshape(transpose(y, {0, 1, 3, 2, 4, 5}, at),
                 {s[0], rows.count, columns.count, rows.size * columns.size * s[3]}, at);
}

Tensor fold(Tensor y, int64_t rows, int64_t columns, const WindowOptions& options, Here at) {
  at = at.In("fold");
  NeedAxes("fold", "y", y, 4, "[n p q (r s c)]", at);
  if (rows < 1 || columns < 1)
    Fail(Who("fold", at), ": the result would have ", rows, " rows and ", columns,
         " columns but needs at least 1");
  const auto [down, along] = WindowAxes("fold", rows, columns, options, at);
  const Dims s = y.shape();
  const int64_t window = down.size * along.size;
  if (s[1] != down.count || s[2] != along.count || s[3] % window != 0)
    Fail(Who("fold", at), ": y is ", s.str(), " but there are ", down.count, " x ", along.count,
         " windows, and its last axis must be a multiple of their ", window, " elements");
  const auto summed = [&](Tensor t, int64_t axis, const WindowAxis& w, int64_t extent) {
    t = One("index_sum", {w.Places(y.graph(), at), t}, {{"axis", axis}, {"extent", extent + 2 * w.padding}},
            at);
    return w.padding > 0 ? slice(t, axis, w.padding, w.padding + extent, at) : t;
  };
  Tensor x = transpose(reshape(y, {s[0], s[1], s[2], down.size, along.size, s[3] / window}, at),
                       {0, 1, 3, 2, 4, 5}, at);
  return summed(summed(x, 3, along, columns), 1, down, rows);
}

// --- Sampling ------------------------------------------------------------------------------------

namespace {

// Where the samples lie along one axis of `extent` elements, counted in elements.
Tensor SamplePlaces(Tensor grid, int64_t coordinate, int64_t extent, const GridOptions& o, const Here& at) {
  Tensor g = select(grid, -1, coordinate, at);
  const double half = 0.5 * static_cast<double>(o.align_corners ? extent - 1 : extent);
  Tensor place = shift(scale(g, half, at), o.align_corners ? half : half - 0.5, at);
  return o.border ? clamp(place, 0, static_cast<double>(extent - 1), at) : place;
}

// 1 where there is an element.
Tensor IsInside(Tensor place, int64_t extent, const Here& at) {
  Tensor inside = logical_and(greater_equal(place, 0, at), less(place, static_cast<double>(extent), at), at);
  return cast(inside, DType::kFloat32, at);
}

Tensor ElementAt(Tensor place, int64_t extent, const Here& at) {
  return cast(clamp(place, 0, static_cast<double>(extent - 1), at), DType::kInt32, at);
}

}  // namespace

Tensor grid_sample(Tensor x, Tensor grid, const GridOptions& o, Here at) {
  at = at.In("grid_sample");
  NeedAxes("grid_sample", "x", x, 4, "[n h w c]", at);
  NeedAxes("grid_sample", "grid", grid, 4, "[n p q 2]", at);
  NeedFloating("grid_sample", "x", x, at);
  NeedFloating("grid_sample", "grid", grid, at);
  NeedEnum(Who("grid_sample", at), "mode", o.mode, ResizeMode::kBilinear, "ResizeMode");
  const Dims s = x.shape(), g = grid.shape();
  if (g[0] != s[0] || g[3] != 2)
    Fail(Who("grid_sample", at), ": grid is ", g.str(), " but must be [", s[0],
         " p q 2], with the batch of x ", s.str());
  const int64_t rows = s[1], columns = s[2], places = g[1] * g[2];
  if (rows < 1 || columns < 1 || rows > INT32_MAX / columns)
    Fail(Who("grid_sample", at), ": x ", s.str(), " has ", rows, " x ", columns,
         " elements in a picture but must have at least 1 and fewer than 2^31");
  // In fp32 in mixed precision, too: 8 bits do not name a place.
  Tensor wide = One("cast", {grid}, {{"dtype", std::string("f32")}}, at);
  Tensor flat = reshape(x, {s[0], rows * columns, s[3]}, at);
  const auto element = [&](Tensor row, Tensor column, Tensor weight) {
    Tensor ids = add(scale(ElementAt(row, rows, at), static_cast<double>(columns), at),
                     ElementAt(column, columns, at), at);
    if (!o.border) {
      Tensor inside = mul(IsInside(row, rows, at), IsInside(column, columns, at), at);
      weight = weight.defined() ? mul(weight, inside, at) : inside;
    }
    Tensor value = batched_take(flat, reshape(ids, {s[0], places}, at), 1, at);
    if (!weight.defined()) return value;
    return mul(cast(value, DType::kFloat32, at), reshape(weight, {s[0], places, 1}, at), at);
  };
  Tensor column = SamplePlaces(wide, 0, columns, o, at), row = SamplePlaces(wide, 1, rows, o, at), y;
  if (o.mode == ResizeMode::kNearest) {
    y = element(round(row, at), round(column, at), {});
  } else {
    Tensor above = floor(row, at), left = floor(column, at);
    Tensor down = sub(row, above, at), along = sub(column, left, at);
    const auto rest = [&](Tensor share) { return shift(neg(share, at), 1, at); };
    Tensor below = shift(above, 1, at), right = shift(left, 1, at);
    y = add_n({element(above, left, mul(rest(down), rest(along), at)),
               element(above, right, mul(rest(down), along, at)),
               element(below, left, mul(down, rest(along), at)), element(below, right, mul(down, along, at))},
              at);
  }
  return cast(reshape(y, {s[0], g[1], g[2], s[3]}, at), x.dtype(), at);
}

}  // namespace oneflow_like
