// The functions of ops/sparse.h: attributes for the operators of sort.cc, take.cc, embedding_bag.cc,
// sparse_rows.cc and grouped_matmul.cc, and compositions of those that are there.
#include "ops/sparse.h"

#include <algorithm>
#include <cmath>

#include "ops/op.h"

namespace oneflow_like {
namespace {

std::string Who(const char* op, const Here& at) {
  std::string line = SourceLine(at).str();
  return line.empty() ? std::string(op) : Cat(op, " at ", line);
}

GraphBuilder* GraphOf(const char* op, const Tensor& x, const Here& at) {
  if (!x.defined()) Fail(Who(op, at), ": operand 1 is a Tensor that was never given a value");
  return x.graph();
}

// `more`: axes that the result has and x has not.
int64_t NormalAxis(const char* op, int64_t axis, const Tensor& x, const Here& at, int64_t more = 0) {
  GraphOf(op, x, at);
  int64_t rank = x.shape().rank() + more;
  if (axis < -rank || axis >= rank) {
    Fail(Who(op, at), ": axis ", axis, " does not exist, its ", more ? "result of " : "operand ",
         x.shape().str(), " has ", rank, rank == 1 ? " axis" : " axes");
  }
  return axis < 0 ? axis + rank : axis;
}

Tensor One(const std::vector<Tensor>& in, const char* op, const Attrs& attrs, const Here& at) {
  return Apply(GraphOf(op, in[0], at), op, in, attrs, at)[0];
}

Tensor Order(const char* op, Tensor x, int64_t axis, int64_t k, bool descending, const Here& at) {
  axis = NormalAxis(op, axis, x, at);
  int64_t extent = x.shape()[static_cast<int>(axis)];
  if (k < 0 || k > extent)
    Fail(Who(op, at), ": k is ", k, " but axis ", axis, " has ", extent, " elements; k must be in [0, ",
         extent, "]");
  return One({x}, "argsort", {{"axis", axis}, {"k", k}, {"descending", int64_t{descending}}}, at);
}

int64_t ExtentOf(const char* op, const Tensor& x, int64_t axis, const Here& at) {
  return x.shape()[static_cast<int>(NormalAxis(op, axis, x, at))];
}

// x plus sums of src by index; both operands of one type.
Tensor AddSums(const char* op, const char* sums, Tensor x, int64_t axis, Tensor ids, Tensor src,
               const Here& at) {
  axis = NormalAxis(op, axis, x, at);
  GraphOf(op, src, at);
  if (x.dtype() != src.dtype())
    Fail(Who(op, at), ": x is ", Name(x.dtype()), " but src is ", Name(src.dtype()), "; cast one of them");
  Attrs attrs = {{"axis", axis}, {"extent", x.shape()[static_cast<int>(axis)]}};
  Dims shape = x.shape();
  Tensor sum = One({ids, src}, sums, attrs, at);
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
  Tensor indices = Order("sort", x, axis, ExtentOf("sort", x, axis, at), descending, at);
  return {take_along_axis(x, indices, axis, at), indices};
}

Sorted top_k(Tensor x, int64_t k, int64_t axis, bool largest, Here at) {
  Tensor indices = Order("top_k", x, axis, k, largest, at);
  return {take_along_axis(x, indices, axis, at), indices};
}

Tensor argmin(Tensor x, int64_t axis, Here at) {
  if (ExtentOf("argmin", x, axis, at) == 0)
    Fail(Who("argmin", at), ": axis ", axis, " is 0 but must be at least 1 to have a least element");
  Tensor first = Order("argmin", x, axis, 1, false, at);
  return squeeze(first, axis, at);
}

Tensor cumsum(Tensor x, int64_t axis, const CumsumOptions& options, Here at) {
  Attrs attrs = {{"axis", NormalAxis("cumsum", axis, x, at)},
                 {"reverse", int64_t{options.reverse}},
                 {"exclusive", int64_t{options.exclusive}}};
  return One({x}, "cumsum", attrs, at);
}

// --- Elements by index ---------------------------------------------------------------------------

Tensor take(Tensor x, int64_t axis, Tensor ids, Here at) {
  return One({x, ids}, "take", {{"axis", NormalAxis("take", axis, x, at)}}, at);
}

Tensor take_along_axis(Tensor x, Tensor ids, int64_t axis, Here at) {
  return One({x, ids}, "take_along_axis", {{"axis", NormalAxis("take_along_axis", axis, x, at)}}, at);
}

Tensor scatter_add(Tensor x, int64_t axis, Tensor ids, Tensor src, Here at) {
  return AddSums("scatter_add", "scatter_sum", x, axis, ids, src, at);
}

Tensor index_add(Tensor x, int64_t axis, Tensor ids, Tensor src, Here at) {
  return AddSums("index_add", "index_sum", x, axis, ids, src, at);
}

// --- Embeddings ----------------------------------------------------------------------------------

Tensor embedding_bag(Tensor table, Tensor ids, Tensor lengths, Bag mode, Here at) {
  const char* name = mode == Bag::kSum ? "sum" : mode == Bag::kMean ? "mean" : "max";
  return One({table, ids, lengths}, "embedding_bag", {{"mode", name}}, at);
}

Tensor embedding_bag(Tensor table, Tensor ids, Tensor lengths, Tensor weights, Here at) {
  return One({table, ids, lengths, weights}, "embedding_bag", {{"mode", "sum"}}, at);
}

TouchedRows unique_rows(Tensor ids, Tensor grad, Here at) {
  std::vector<Tensor> out = Apply(GraphOf("unique_rows", ids, at), "unique_rows", {ids, grad}, {}, at);
  return {out[0], out[1]};
}

Tensor sgd_rows(Tensor table, const TouchedRows& touched, const SgdRows& options, Here at) {
  return One({table, touched.rows, touched.values}, "sgd_rows",
             {{"lr", options.lr}, {"weight_decay", options.weight_decay}}, at);
}

AdagradState adagrad_rows(Tensor table, Tensor state, const TouchedRows& touched, const AdagradRows& options,
                          Here at) {
  GraphOf("adagrad_rows", table, at);
  Tensor squares = mean(square(touched.values, at), {-1}, false, at);
  Tensor sums = One({state, touched.rows, squares}, "add_squares_to_rows", {{"lr", options.lr}}, at);
  return {One({table, touched.rows, touched.values, sums}, "adagrad_rows",
              {{"lr", options.lr}, {"eps", options.eps}}, at),
          sums};
}

// --- Products by expert --------------------------------------------------------------------------

Tensor grouped_matmul(Tensor x, Tensor w, Tensor counts, Here at) {
  return One({x, w, counts}, "grouped_matmul", {}, at);
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
    if (times[axis] < 0) Fail(Who(op, at), ": axis ", axis, " is to stand ", times[axis], " times");
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

Tensor tril(Tensor x, int64_t diagonal, Here at) { return KeepTriangle("tril", x, diagonal, false, at); }
Tensor triu(Tensor x, int64_t diagonal, Here at) { return KeepTriangle("triu", x, diagonal, true, at); }

Tensor flip(Tensor x, std::vector<int64_t> axes, Here at) {
  for (int64_t& axis : axes) axis = NormalAxis("flip", axis, x, at);
  std::sort(axes.begin(), axes.end());
  for (size_t i = 0; i < axes.size(); ++i) {
    if (i > 0 && axes[i] == axes[i - 1]) Fail(Who("flip", at), ": axis ", axes[i], " is named twice");
    x = One({x}, "flip", {{"axis", axes[i]}}, at);
  }
  return x;
}

Tensor roll(Tensor x, int64_t by, int64_t axis, Here at) {
  int64_t extent = ExtentOf("roll", x, axis, at);
  int64_t first = extent > 0 ? (extent - by % extent) % extent : 0;  // of x, that stands first in the result
  if (first == 0) return x;
  return concat({slice(x, axis, first, extent, at), slice(x, axis, 0, first, at)}, axis, at);
}

Tensor repeat(Tensor x, std::vector<int64_t> times, Here at) {
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
  axis = NormalAxis("repeat_interleave", axis, x, at);
  std::vector<int64_t> all(x.shape().rank(), 1);
  all[axis] = times;
  return Copies("repeat_interleave", x, all, true, at);
}

Tensor stack(const std::vector<Tensor>& parts, int64_t axis, Here at) {
  if (parts.empty()) Fail(Who("stack", at), ": takes at least 1 part but was given 0");
  axis = NormalAxis("stack", axis, parts[0], at, 1);
  Dims shape = parts[0].shape();
  std::vector<Tensor> apart;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].defined() && parts[i].shape() != shape)
      Fail(Who("stack", at), ": part 1 is ", shape.str(), " but part ", i + 1, " is ",
           parts[i].shape().str());
    apart.push_back(unsqueeze(parts[i], axis, at));
  }
  return concat(apart, axis, at);
}

Tensor squeeze(Tensor x, int64_t axis, Here at) {
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
  double count = std::ceil((end - begin) / step);
  if (!(step != 0 && std::isfinite(count)))
    Fail(Who("arange", at), ": from ", begin, " to ", end, " by steps of ", step, " there is no end");
  if (count > 0x1p48)
    Fail(Who("arange", at), ": ", count, " numbers are more than 2^48, the most a tensor may have");
  Attrs attrs = {{"begin", begin},
                 {"step", step},
                 {"count", static_cast<int64_t>(std::max(0.0, count))},
                 {"dtype", std::string(Name(dtype))}};
  return Apply(graph, "arange", {}, attrs, at)[0];
}

}  // namespace oneflow_like
