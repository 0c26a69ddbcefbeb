// nn::LookUp. The ids of a table in a part of the batch are a pool, whose room at each rank is its size: as
// experts of ranks do (experts.cc), ids go there and rows come back by tables of which goes where. What a
// rank got for a table is a list of its own part of the table's rows (embedding_in_parts).
#include <algorithm>

#include "oneflow_like/model/layer.h"
#include "oneflow_like/nn.h"
#include "ops/language/expressions.h"

namespace oneflow_like::nn {
namespace {

// The greatest divisor of `all` that is at most `most`.
int64_t DivisorUpTo(int64_t all, int64_t most) {
  for (int64_t d = std::min(all, most); d > 1; --d)
    if (all % d == 0) return d;
  return 1;
}

// Samples of a pool, where the batch and the rows divide among the ranks; 0: they do not, or not so.
int64_t SamplesOfPool(const Mesh& mesh, const Dims& ids, int64_t rows, const LookUpOptions& o) {
  constexpr int64_t kMost = 64;  // enough for few messages of counts, and for other micro-batches
  constexpr int64_t kMostRows = (1 << 24) - 1;  // of a rank: their numbers are sent in fp32
  const int64_t ranks = mesh.SizeAlong(mesh.FindAxes(o.tp)),
                parts = ranks * mesh.SizeAlong(mesh.FindAxes(o.batch)) * o.micro_batches;
  if (ranks == 1 || rows % ranks != 0 || rows / ranks > kMostRows || ids[0] == 0 || ids[0] % parts != 0)
    return 0;
  return DivisorUpTo(ids[0] / parts, kMost);
}

Tensor Exchanged(const std::vector<Tensor>& tables, Tensor ids, int64_t samples, int64_t ranks,
                 const std::string& axis, const Here& at) {
  const Dims table = tables[0].shape();
  const int64_t batch = ids.shape()[0], columns = ids.shape()[1], parts = batch / samples,
                pools = parts * columns, each = table[0] / ranks;
  GraphBuilder* graph = ids.graph();
  // Each rank serves some of the pools.
  Tensor mine =
      reshape(transpose(reshape(ids, {parts, samples, columns}, at), {0, 2, 1}, at), {pools, samples, 1}, at);
  mine = annotate(mine, {{axis, S(0)}}, at);
  const Tensor rows_of_rank = full(graph, {}, static_cast<double>(each), ids.dtype(), at);
  Tensor owner = floor_divide(mine, rows_of_rank, at);
  // The step fails at the rank of an id that is in no table, and names it.
  owner = where(less(mine, static_cast<double>(table[0]), at), owner, mine, at);
  const RankRoutes routes = route_ranks(owner, ranks, ranks, samples, {.weights = {}, .may_drop = false}, at);
  const double share = 1 / static_cast<double>(ranks);
  auto between_ranks = [&](Tensor x) { return exchange(x, routes.routes.counts, share, at); };

  // Rows from 1 on, counted at their rank: 0 is a place that none fills.
  Tensor row = shift(cast(sub(mine, mul(owner, rows_of_rank, at), at), DType::kFloat32, at), 1, at);
  Tensor there = annotate(between_ranks(take_rows(row, routes.routes, {}, at)), {{axis, S(0)}}, at);
  Tensor first =
      reshape(arange(graph, 0, static_cast<double>(ranks), 1, DType::kInt32, at), {ranks, 1, 1, 1}, at);
  first = mul(first, full(graph, {}, static_cast<double>(each), DType::kInt32, at), at);
  there = reshape(there, {ranks, parts, columns, samples}, at);
  Tensor number = add(cast(shift(there, -1, at), DType::kInt32, at), first, at);
  number = where(greater(there, .5, at), number, -1.0, at);
  std::vector<Tensor> found;
  for (int64_t i = 0; i < columns; ++i) {
    Tensor list = reshape(slice(number, 2, i, i + 1, at), {ranks, parts * samples}, at);
    found.push_back(
        reshape(embedding_in_parts(tables[i], list, at), {ranks, parts, 1, samples, table[1]}, at));
  }
  Tensor back = reshape(concat(found, 2, at), {ranks, pools, samples, table[1]}, at);
  back = annotate(back, {{axis, S(0)}}, {.gradient = {{axis, S(0)}}}, at);
  Tensor y = return_rows(between_ranks(back), routes.routes, {}, at);
  y = transpose(reshape(y, {parts, columns, samples, table[1]}, at), {0, 2, 1, 3}, at);
  return reshape(y, {batch, columns, table[1]}, at);
}

}  // namespace

Annotation CutOfRows(const Scope& s, int64_t rows, const LookUpOptions& o) {
  const Mesh& mesh = s.mesh();
  const int64_t ranks = mesh.SizeAlong(mesh.FindAxes(o.tp));
  if (mesh.FindAxes(o.tp).empty()) return {};
  if (rows < 1 || rows % ranks != 0) return {{o.tp, S(0)}};
  return {{o.tp, Canonical(S(0, rows / ranks), {rows}, mesh.size() * std::max<int64_t>(1, o.micro_batches))}};
}

Tensor LookUp(Scope s, const std::vector<Tensor>& tables, Tensor ids, const LookUpOptions& o, Here at) {
  const Layer layer("LookUp", s, at);
  at = layer.at;
  if (!ids.defined()) Fail(layer.who, ": ids is a Tensor that was never given a value");
  const Dims shape = ids.shape();
  if (tables.empty() || shape.rank() != 2 || shape[1] != std::ssize(tables))
    Fail(layer.who, ": ids is ", shape.str(), " but must have a column for each of the ", tables.size(),
         " tables");
  for (const Tensor& table : tables)
    if (table.shape().rank() != 2 || table.shape() != tables[0].shape())
      Fail(layer.who, ": a table is ", table.shape().str(), " but another one ", tables[0].shape().str(),
           "; look tables of another shape up by themselves");
  if (o.micro_batches < 1) Fail(layer.who, ": micro_batches is ", o.micro_batches, " but must be at least 1");
  const Mesh& mesh = s.mesh();
  if (const int64_t samples = SamplesOfPool(mesh, shape, tables[0].shape()[0], o); samples > 0)
    return Exchanged(tables, ids, samples, mesh.SizeAlong(mesh.FindAxes(o.tp)), o.tp, at);
  std::vector<Tensor> rows;
  for (int64_t i = 0; i < shape[1]; ++i)
    rows.push_back(embedding(tables[i], slice(ids, 1, i, i + 1, at), at));
  return concat(rows, 1, at);
}

}  // namespace oneflow_like::nn
