// The functions of ops/language/sparse.h: attributes for the operators of sort.cc, take.cc, embedding_bag.cc,
// sparse_rows.cc, grouped_matmul.cc and routes.cc, and compositions of those that are there.
#include "ops/language/sparse.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "ops/language/calls.h"
#include "ops/language/numbers.h"

namespace oneflow_like {
namespace {

Tensor Order(const char* op, Tensor x, int64_t axis, int64_t k, bool descending, const Here& at) {
  axis = NormalAxis(op, axis, x, at);
  int64_t extent = x.shape()[static_cast<int>(axis)];
  if (k < 0 || k > extent)
    Fail(Who(op, at), ": k is ", k, " but axis ", axis, " has ", extent, " elements; k must be in [0, ",
         extent, "]");
  return One("argsort", {x}, {{"axis", axis}, {"k", k}, {"descending", int64_t{descending}}}, at);
}

int64_t ExtentOf(const char* op, const Tensor& x, int64_t axis, const Here& at) {
  return x.shape()[static_cast<int>(NormalAxis(op, axis, x, at))];
}

// x plus sums of src by index; both operands of one type.
Tensor ScatterSums(const char* op, const char* sums, Tensor x, int64_t axis, Tensor ids, Tensor src,
                   const Here& at) {
  axis = NormalAxis(op, axis, x, at);
  NeedInteger(op, "ids", ids, at);
  NeedGiven(op, "src", src, at);
  if (x.dtype() != src.dtype())
    Fail(Who(op, at), ": x is ", Name(x.dtype()), " but src is ", Name(src.dtype()), "; cast one of them");
  Attrs attrs = {{"axis", axis}, {"extent", x.shape()[static_cast<int>(axis)]}};
  Dims shape = x.shape();
  Tensor sum = One(sums, {ids, src}, attrs, at);
  if (sum.shape() != shape)
    Fail(Who(op, at), ": x is ", shape.str(), " but src ", src.shape().str(), " by ids ", ids.shape().str(),
         " adds to ", sum.shape().str());
  return add(x, sum, at);
}

}  // namespace

// --- Order ---------------------------------------------------------------------------------------

Tensor argsort(Tensor x, int64_t axis, bool descending, Here at) {
  return Order("argsort", x, axis, ExtentOf("argsort", x, axis, at), descending, at);
}

Sorted sort(Tensor x, int64_t axis, bool descending, Here at) {
  at = at.In("sort");
  Tensor indices = Order("sort", x, axis, ExtentOf("sort", x, axis, at), descending, at);
  return {take_along_axis(x, indices, axis, at), indices};
}

Sorted top_k(Tensor x, int64_t k, int64_t axis, bool largest, Here at) {
  at = at.In("top_k");
  Tensor indices = Order("top_k", x, axis, k, largest, at);
  return {take_along_axis(x, indices, axis, at), indices};
}

Tensor argmin(Tensor x, int64_t axis, Here at) {
  at = at.In("argmin");
  axis = NormalAxis("argmin", axis, x, at);
  if (ExtentOf("argmin", x, axis, at) == 0)
    Fail(Who("argmin", at), ": axis ", axis, " is 0 but must be at least 1 to have a least element");
  Tensor first = Order("argmin", x, axis, 1, false, at);
  return squeeze(first, axis, at);
}

Tensor cumsum(Tensor x, int64_t axis, const CumsumOptions& options, Here at) {
  Attrs attrs = {{"axis", NormalAxis("cumsum", axis, x, at)},
                 {"reverse", int64_t{options.reverse}},
                 {"exclusive", int64_t{options.exclusive}}};
  return One("cumsum", {x}, attrs, at);
}

// --- Elements by index ---------------------------------------------------------------------------

Tensor take(Tensor x, int64_t axis, Tensor ids, Here at) {
  NeedInteger("take", "ids", ids, at);
  return One("take", {x, ids}, {{"axis", NormalAxis("take", axis, x, at)}}, at);
}

Tensor take_along_axis(Tensor x, Tensor ids, int64_t axis, Here at) {
  NeedInteger("take_along_axis", "ids", ids, at);
  return One("take_along_axis", {x, ids}, {{"axis", NormalAxis("take_along_axis", axis, x, at)}}, at);
}

Tensor batched_take(Tensor x, Tensor ids, int64_t axis, Here at) {
  at = at.In("batched_take");
  NeedInteger("batched_take", "ids", ids, at);
  return One("take", {x, ids}, {{"axis", NormalAxis("batched_take", axis, x, at)}, {"batched", int64_t{1}}},
             at);
}

Tensor scatter_add(Tensor x, int64_t axis, Tensor ids, Tensor src, Here at) {
  at = at.In("scatter_add");
  return ScatterSums("scatter_add", "scatter_sum", x, axis, ids, src, at);
}

Tensor index_add(Tensor x, int64_t axis, Tensor ids, Tensor src, Here at) {
  at = at.In("index_add");
  return ScatterSums("index_add", "index_sum", x, axis, ids, src, at);
}

namespace {

void NeedSummable(const char* op, const char* operand, const Tensor& x, const Here& at) {
  NeedGiven(op, operand, x, at);
  if (!IsFloating(x.dtype()) && x.dtype() != DType::kInt32 && x.dtype() != DType::kInt64)
    Fail(Who(op, at), ": ", operand, " is ", Name(x.dtype()),
         " but must be of a floating type, i32 or i64; cast it");
}

// The least is found as the greatest in the opposite order, which has a number for each, exactly.
Tensor Opposite(Tensor x, const Here& at) { return IsFloating(x.dtype()) ? neg(x, at) : bitwise_not(x, at); }

Tensor ByIndex(const char* function, const char* op, Tensor x, int64_t axis, Tensor ids, Tensor src,
               bool least, Here at) {
  at = at.In(function);
  NeedSummable(function, "x", x, at);
  NeedSummable(function, "src", src, at);
  NeedInteger(function, "ids", ids, at);
  const Attrs attrs = {{"axis", NormalAxis(function, axis, x, at)}};
  if (!least) return One(op, {ids, src, x}, attrs, at);
  return Opposite(One(op, {ids, Opposite(src, at), Opposite(x, at)}, attrs, at), at);
}

}  // namespace

Tensor scatter_max(Tensor x, int64_t axis, Tensor ids, Tensor src, Here at) {
  return ByIndex("scatter_max", "scatter_max", x, axis, ids, src, false, at);
}
Tensor scatter_min(Tensor x, int64_t axis, Tensor ids, Tensor src, Here at) {
  return ByIndex("scatter_min", "scatter_max", x, axis, ids, src, true, at);
}
Tensor index_max(Tensor x, int64_t axis, Tensor ids, Tensor src, Here at) {
  return ByIndex("index_max", "index_max", x, axis, ids, src, false, at);
}
Tensor index_min(Tensor x, int64_t axis, Tensor ids, Tensor src, Here at) {
  return ByIndex("index_min", "index_max", x, axis, ids, src, true, at);
}

// A softmax is the same whatever is taken from all of its elements, so no gradient flows through the
// greatest. It is finite, so that what is -infinity gives 0, and where there is a finite element the sum is
// at least 1.
Tensor segment_softmax(Tensor x, Tensor ids, int64_t segments, int64_t axis, Here at) {
  at = InFloating("segment_softmax", x, at);
  NeedInteger("segment_softmax", "ids", ids, at);
  axis = NormalAxis("segment_softmax", axis, x, at);
  Dims whole = x.shape();
  if (ids.shape() != Dims{whole[static_cast<int>(axis)]})
    Fail(Who("segment_softmax", at), ": ids is ", ids.shape().str(), " but must be [",
         whole[static_cast<int>(axis)], "], as axis ", axis, " of x ", whole.str());
  if (segments < 0) Fail(Who("segment_softmax", at), ": segments is ", segments, " but must be 0 or more");
  whole[static_cast<int>(axis)] = segments;
  Tensor wide = cast(x, DType::kFloat32, at);
  Tensor least = full(x.graph(), whole, std::numeric_limits<float>::lowest(), DType::kFloat32, at);
  Tensor top = One("stop_gradient", {index_max(least, axis, ids, wide, at)}, {}, at);
  Tensor parts = exp(sub(wide, take(top, axis, ids, at), at), at);
  Tensor sums = One("index_sum", {ids, parts}, {{"axis", axis}, {"extent", segments}}, at);
  Tensor half = full(x.graph(), {}, 0.5, DType::kFloat32, at);
  return cast(div(parts, maximum(take(sums, axis, ids, at), half, at), at), x.dtype(), at);
}

// --- Embeddings ----------------------------------------------------------------------------------

namespace {

void NeedBags(const Tensor& ids, const Tensor& lengths, const Here& at) {
  NeedInteger("embedding_bag", "ids", ids, at);
  NeedInteger("embedding_bag", "lengths", lengths, at);
}

}  // namespace

Tensor embedding_bag(Tensor table, Tensor ids, Tensor lengths, Bag mode, Here at) {
  NeedBags(ids, lengths, at);
  NeedEnum(Who("embedding_bag", at), "mode", mode, Bag::kMax, "Bag");
  const char* name = mode == Bag::kSum ? "sum" : mode == Bag::kMean ? "mean" : "max";
  return One("embedding_bag", {table, ids, lengths}, {{"mode", name}}, at);
}

Tensor embedding_bag(Tensor table, Tensor ids, Tensor lengths, Tensor weights, Here at) {
  NeedBags(ids, lengths, at);
  return One("embedding_bag", {table, ids, lengths, weights}, {{"mode", "sum"}}, at);
}

Tensor embedding_in_parts(Tensor table, Tensor ids, Here at) {
  NeedInteger("embedding_in_parts", "ids", ids, at);
  return One("embedding", {table, ids}, {{"parts", ids.shape().rank() > 0 ? ids.shape()[0] : 0}},
             at.In("embedding_in_parts"));
}

TouchedRows unique_rows(Tensor ids, Tensor grad, int64_t parts, Here at) {
  Attrs attrs;
  if (parts > 0) attrs.Set("parts", parts);
  std::vector<Tensor> out = Apply(GraphOf("unique_rows", ids, at), "unique_rows", {ids, grad}, attrs, at);
  return {out[0], out[1], parts};
}

namespace {

// Attributes of an update of these rows.
Attrs ForRows(const TouchedRows& touched, Attrs attrs) {
  if (touched.parts > 0) attrs.Set("parts", touched.parts);
  return attrs;
}

}  // namespace

Tensor sgd_rows(Tensor table, const TouchedRows& touched, const SgdRows& options, Here at) {
  return One("sgd_rows", {table, touched.rows, touched.values},
             ForRows(touched, {{"lr", options.lr}, {"weight_decay", options.weight_decay}}), at);
}

AdagradState adagrad_rows(Tensor table, Tensor state, const TouchedRows& touched, const AdagradRows& options,
                          Here at) {
  at = at.In("adagrad_rows");
  GraphOf("adagrad_rows", table, at);
  Tensor squares = mean(square(touched.values, at), {-1}, false, at);
  Tensor sums =
      One("add_squares_to_rows", {state, touched.rows, squares}, ForRows(touched, {{"lr", options.lr}}), at);
  return {One("adagrad_rows", {table, touched.rows, touched.values, sums},
              ForRows(touched, {{"lr", options.lr}, {"eps", options.eps}}), at),
          sums};
}

// --- Products by expert --------------------------------------------------------------------------

Tensor grouped_matmul(Tensor x, Tensor w, Tensor counts, Here at) {
  NeedInteger("grouped_matmul", "counts", counts, at);
  return One("grouped_matmul", {x, w, counts}, {}, at);
}
Tensor grouped_matmul(Tensor x, Tensor w, Tensor counts, double share, Here at) {
  NeedInteger("grouped_matmul", "counts", counts, at);
  return One("grouped_matmul", {x, w, counts}, {{"share", share}}, at);
}

// --- Rows to experts and back --------------------------------------------------------------------

Routes route(Tensor chosen, int64_t experts, int64_t room, const RouteOptions& options, Here at) {
  NeedInteger("route", "chosen", chosen, at);
  std::vector<Tensor> in = {chosen};
  if (options.weights.defined()) in.push_back(options.weights);
  const std::vector<Tensor> out =
      Apply(chosen.graph(), "route", in,
            {{"experts", experts}, {"room", room}, {"error", int64_t{!options.may_drop}}}, at);
  return {out[0], out[1], out[2]};
}

namespace {

Tensor RowsBy(const char* op, const char* rows, Tensor x, const Routes& routes, Tensor weights,
              const Here& at) {
  NeedGiven(op, rows, x, at);
  NeedGiven(op, "slots", routes.slots, at);
  NeedGiven(op, "places", routes.places, at);
  std::vector<Tensor> in = {x, routes.slots, routes.places};
  if (weights.defined()) in.push_back(weights);
  return One(op, in, {}, at);
}

}  // namespace

Tensor take_rows(Tensor x, const Routes& routes, Tensor weights, Here at) {
  return RowsBy("take_rows", "x", x, routes, weights, at);
}
Tensor return_rows(Tensor y, const Routes& routes, Tensor weights, Here at) {
  return RowsBy("return_rows", "y", y, routes, weights, at);
}

RankRoutes route_ranks(Tensor chosen, int64_t experts, int64_t ranks, int64_t room,
                       const RouteOptions& options, Here at) {
  NeedInteger("route_ranks", "chosen", chosen, at);
  std::vector<Tensor> in = {chosen};
  if (options.weights.defined()) in.push_back(options.weights);
  const std::vector<Tensor> out = Apply(
      chosen.graph(), "route_ranks", in,
      {{"experts", experts}, {"ranks", ranks}, {"room", room}, {"error", int64_t{!options.may_drop}}}, at);
  return {{out[0], out[1], out[2]}, out[3], out[4]};
}

Tensor exchange(Tensor y, Tensor counts, double share, Here at) {
  NeedInteger("exchange", "counts", counts, at);
  return One("exchange", {y, counts}, {{"share", share}}, at);
}

Routes sort_choices(Tensor kept, int64_t experts, int64_t room, Here at) {
  GraphBuilder* graph = GraphOf("sort_choices", kept, at);
  const std::vector<Tensor> out =
      Apply(graph, "sort_choices", {kept}, {{"experts", experts}, {"room", room}}, at);
  return {out[0], out[1], out[2]};
}

// --- Shape and position --------------------------------------------------------------------------

namespace {

// Rows and columns are numbered in f32, in which chains are fused: exact up to 2^24.
Tensor KeepTriangle(const char* op, Tensor x, int64_t diagonal, bool upper, const Here& at) {
  GraphBuilder* graph = GraphOf(op, x, at);
  Dims shape = x.shape();
  if (shape.rank() < 2)
    Fail(Who(op, at), ": its operand ", shape.str(), " has ", shape.rank(),
         shape.rank() == 1 ? " axis" : " axes", " but needs at least 2");
  int64_t rows = shape[shape.rank() - 2], columns = shape[shape.rank() - 1];
  if (std::max(rows, columns) > int64_t{1} << 24)
    Fail(Who(op, at), ": its operand ", shape.str(), " has an axis of more than 2^24, the most it takes");
  diagonal = std::clamp(diagonal, -rows - 1, columns + 1);
  auto first = static_cast<double>(diagonal), end = static_cast<double>(diagonal + rows);
  Tensor row = reshape(arange(graph, first, end, 1, DType::kFloat32, at), {rows, 1}, at);
  Tensor column = arange(graph, 0, static_cast<double>(columns), 1, DType::kFloat32, at);
  Tensor keep = upper ? greater_equal(column, row, at) : less_equal(column, row, at);
  return where(keep, x, full(graph, {}, 0, x.dtype(), at), at);
}

// x with every axis i as times[i] copies of itself, `inside`: each of its elements by itself.
Tensor Copies(const char* op, Tensor x, const std::vector<int64_t>& times, bool inside, const Here& at) {
  Dims shape = x.shape(), result = shape;
  std::vector<int64_t> apart, wide;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (times[axis] < 0)
      Fail(Who(op, at), ": times of axis ", axis, " is ", times[axis], " but must be 0 or more");
    result[axis] = shape[axis] * times[axis];
    bool split = times[axis] != 1;
    if (split && !inside) apart.push_back(1), wide.push_back(times[axis]);
    apart.push_back(shape[axis]), wide.push_back(shape[axis]);
    if (split && inside) apart.push_back(1), wide.push_back(times[axis]);
  }
  if (result == shape) return x;
  if (apart.size() > Dims::kMaxRank)
    Fail(Who(op, at), ": ", shape.str(), " needs an axis more for each of the axes that are repeated, ",
         apart.size(), ", but a tensor has at most ", Dims::kMaxRank, "; repeat them in turn");
  Tensor split = reshape(x, Dims(apart.begin(), apart.end()), at);
  return reshape(broadcast_to(split, Dims(wide.begin(), wide.end()), at), result, at);
}

}  // namespace

Tensor tril(Tensor x, int64_t diagonal, Here at) {
  return KeepTriangle("tril", x, diagonal, false, at.In("tril"));
}
Tensor triu(Tensor x, int64_t diagonal, Here at) {
  return KeepTriangle("triu", x, diagonal, true, at.In("triu"));
}

Tensor flip(Tensor x, std::vector<int64_t> axes, Here at) {
  at = at.In("flip");
  for (int64_t& axis : axes) axis = NormalAxis("flip", axis, x, at);
  std::sort(axes.begin(), axes.end());
  for (size_t i = 0; i < axes.size(); ++i) {
    if (i > 0 && axes[i] == axes[i - 1]) Fail(Who("flip", at), ": axis ", axes[i], " is named twice");
    x = One("flip", {x}, {{"axis", axes[i]}}, at);
  }
  return x;
}

Tensor roll(Tensor x, int64_t by, int64_t axis, Here at) {
  at = at.In("roll");
  int64_t extent = ExtentOf("roll", x, axis, at);
  int64_t first = extent > 0 ? (extent - by % extent) % extent : 0;  // of x, that stands first in the result
  if (first == 0) return x;
  return concat({slice(x, axis, first, extent, at), slice(x, axis, 0, first, at)}, axis, at);
}

Tensor repeat(Tensor x, std::vector<int64_t> times, Here at) {
  at = at.In("repeat");
  GraphOf("repeat", x, at);
  Dims shape = x.shape();
  if (static_cast<int>(times.size()) > Dims::kMaxRank)
    Fail(Who("repeat", at), ": ", times.size(), " axes are to be repeated, but a tensor has at most ",
         Dims::kMaxRank);
  Dims leading(std::max(0, static_cast<int>(times.size()) - shape.rank()), int64_t{1});
  for (int64_t extent : shape) leading.push_back(extent);
  if (leading != shape) x = reshape(x, leading, at);
  times.insert(times.begin(), leading.rank() - times.size(), 1);
  return Copies("repeat", x, times, false, at);
}

Tensor repeat_interleave(Tensor x, int64_t times, int64_t axis, Here at) {
  at = at.In("repeat_interleave");
  axis = NormalAxis("repeat_interleave", axis, x, at);
  std::vector<int64_t> all(x.shape().rank(), 1);
  all[axis] = times;
  return Copies("repeat_interleave", x, all, true, at);
}

Tensor stack(const std::vector<Tensor>& parts, int64_t axis, Here at) {
  at = at.In("stack");
  if (parts.empty()) Fail(Who("stack", at), ": takes at least 1 part but was given 0");
  axis = NormalAxis("stack", axis, parts[0], at, 1);
  Dims shape = parts[0].shape();
  std::vector<Tensor> apart;
  for (size_t i = 0; i < parts.size(); ++i) {
    NeedGiven("stack", Cat("part ", i + 1).c_str(), parts[i], at);
    if (parts[i].shape() != shape)
      Fail(Who("stack", at), ": part 1 is ", shape.str(), " but part ", i + 1, " is ",
           parts[i].shape().str());
    apart.push_back(unsqueeze(parts[i], axis, at));
  }
  return concat(apart, axis, at);
}

Tensor squeeze(Tensor x, int64_t axis, Here at) {
  at = at.In("squeeze");
  axis = NormalAxis("squeeze", axis, x, at);
  Dims shape;
  for (int i = 0; i < x.shape().rank(); ++i) {
    if (i != axis) shape.push_back(x.shape()[i]);
  }
  int64_t extent = x.shape()[static_cast<int>(axis)];
  if (extent != 1) Fail(Who("squeeze", at), ": axis ", axis, " is ", extent, " but must be 1");
  return reshape(x, shape, at);
}

Tensor unsqueeze(Tensor x, int64_t axis, Here at) {
  at = at.In("unsqueeze");
  axis = NormalAxis("unsqueeze", axis, x, at, 1);
  if (x.shape().rank() == Dims::kMaxRank)
    Fail(Who("unsqueeze", at), ": its operand has ", Dims::kMaxRank, " axes, the most a tensor may have");
  Dims shape;
  for (int i = 0; i <= x.shape().rank(); ++i) {
    if (i == axis) shape.push_back(1);
    if (i < x.shape().rank()) shape.push_back(x.shape()[i]);
  }
  return reshape(x, shape, at);
}

Tensor arange(GraphBuilder* graph, double begin, double end, double step, DType dtype, Here at) {
  if (graph == nullptr) Fail(Who("arange", at), ": no graph was given to make the tensor in");
  NeedType(Who("arange", at), dtype);
  for (const auto& [name, number] :
       {std::pair{"begin", begin}, std::pair{"end", end}, std::pair{"step", step}})
    NeedNumber(Who("arange", at), name, number, Domain::kFinite);
  for (const auto& [name, number] : {std::pair{"begin", begin}, std::pair{"step", step}})
    if (!IsFloating(dtype) && number != std::floor(number))
      Fail(Who("arange", at), ": ", name, " is ", number, ", which is no number of type ", Name(dtype));
  double count = std::ceil((end - begin) / step);
  if (!(step != 0 && std::isfinite(count)))
    Fail(Who("arange", at), ": from ", begin, " to ", end, " by steps of ", step, " there is no end");
  if (count > 0x1p48)
    Fail(Who("arange", at), ": ", count, " numbers, by steps of ", step,
         ", are more than 2^48, the most a tensor may have");
  Attrs attrs = {{"begin", begin},
                 {"step", step},
                 {"count", static_cast<int64_t>(std::max(0.0, count))},
                 {"dtype", std::string(Name(dtype))}};
  return Apply(graph, "arange", {}, attrs, at)[0];
}

}  // namespace oneflow_like
