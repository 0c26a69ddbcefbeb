// embedding: rows of a table by number. The table may be cut by rows: each rank answers for the rows it holds
// with the row and for all others with zeros, and the sum is whole. With attribute `parts` the ids are in as
// many parts, each of which names rows of its own part of the table (embedding_in_parts): cut alike, ids and
// rows are on one rank.
#include <algorithm>

#include "ops/language/functional.h"
#include "ops/language/sparse.h"
#include "ops/list_parts.h"
#include "ops/manifest.h"
#include "ops/reference.h"

namespace oneflow_like {
namespace {

Status NoSuchRow(int64_t id, int64_t rows) {
  return Status(Cat("id ", id, " is outside the table of ", rows, " rows"));
}

Status EmbeddingReference(const KernelContext& context) {
  const TensorArg &table = context.in[0], &ids = context.in[1], &y = context.out[0];
  const ListParts parts = PartsOf(context.spec.attrs, ids, table.global[0]);
  int64_t width = table.extent[1];
  for (int64_t n = 0; n < ids.elements(); ++n) {
    int64_t id = LoadInt(ids, n), row = id - table.begin[0];
    if (parts.places == 0 && (id < 0 || id >= table.global[0])) return NoSuchRow(id, table.global[0]);
    bool here = row >= 0 && row < table.extent[0] && parts.Has(n, id);
    for (int64_t d = 0; d < width; ++d)
      StoreFloat(y, n * width + d, here ? LoadFloat(table, row * width + d) : 0);
  }
  return {};
}

Status EmbeddingGradReference(const KernelContext& context) {
  const TensorArg &ids = context.in[0], &dy = context.in[1], &dtable = context.out[0];
  const ListParts parts = PartsOf(context.spec.attrs, ids, dtable.global[0]);
  int64_t width = dtable.extent[1];
  for (int64_t n = 0; n < ids.elements() && parts.places == 0; ++n) {
    int64_t id = LoadInt(ids, n);
    if (id < 0 || id >= dtable.global[0]) return NoSuchRow(id, dtable.global[0]);
  }
  auto names = [&](int64_t n, int64_t row) {
    const int64_t id = dtable.begin[0] + row;
    return LoadInt(ids, n) == id && parts.Has(n, id);
  };
  for (int64_t row = 0; row < dtable.extent[0]; ++row) {
    for (int64_t d = 0; d < width; ++d) StoreFloat(dtable, row * width + d, 0);
    bool used = false;  // a row that no id names costs one look at the ids, not one for each column
    for (int64_t n = 0; n < ids.elements() && !used; ++n) used = names(n, row);
    for (int64_t d = 0; d < width && used; ++d) {
      double total = 0;
      for (int64_t n = 0; n < ids.elements(); ++n) {
        if (names(n, row)) total += LoadFloat(dy, n * width + d);
      }
      StoreFloat(dtable, row * width + d, total);
    }
  }
  return {};
}

int64_t PartsIn(const OpCall& call) { return call.attrs->Int("parts", 0); }

std::set<std::string> WholeInParts(const OpCall& call) {
  return PartsIn(call) > 0 ? std::set<std::string>{"v"} : std::set<std::string>{};
}

void CheckPartsOfTable(const OpCall& call, const Dims& ids, int64_t rows) {
  const int64_t parts = PartsIn(call);
  if (parts == 0) return;
  if (parts < 0 || ids.rank() != 2 || ids[0] != parts)
    Fail(call.who, ": ids ", ids.str(), " must have ", parts, " parts as its first of two axes");
  if (rows % parts != 0)
    Fail(call.who, ": ids are in ", parts, " parts, which do not divide the ", rows, " rows of the table");
}

void CheckGrad(const OpCall& call) {
  RequireInputs(call, 2);
  RequireInteger(call, 0);
  RequireFloating(call, 1);
  RequireAttr(call, "rows");
  const Dims& dy = call.shapes[1];
  if (dy.rank() == 0 || Dims(dy.begin(), dy.end() - 1) != call.shapes[0]) {
    Fail(call.who, ": dy is ", dy.str(), " but must be ids ", call.shapes[0].str(), " with one more axis");
  }
  CheckPartsOfTable(call, call.shapes[0], call.attrs->Int("rows"));
}

}  // namespace

void AddEmbedding(Catalog* catalog) {
  using enum DType;
  catalog->Add({
      .name = "embedding",
      .doc = "The rows of table that ids name. An id outside the table fails the step; in parts, one outside "
             "its "
             "part gives 0.",
      .axes_of =
          [](const OpCall& call) {
            return PartsIn(call) > 0 ? "table[(r v) d], ids[r m] -> y[r m d]"
                                     : "table[v d], ids[..] -> y[.. d]";
          },
      .folds_of =
          [](const OpCall& call) {
            return PartsIn(call) > 0 ? std::map<std::string, Reduce>{}
                                     : std::map<std::string, Reduce>{{"v", Reduce::kSum}};
          },
      .linear = {{"table"}},
      .whole_of = WholeInParts,
      .check =
          [](const OpCall& call) {
            RequireInputs(call, 2);
            RequireFloating(call, 0);
            RequireInteger(call, 1);
            CheckPartsOfTable(call, call.shapes[1], call.shapes[0].rank() > 0 ? call.shapes[0][0] : 0);
          },
      .grad = [](const GradCall& call) -> std::vector<Tensor> {
        Attrs rows = call.attrs;
        rows.Set("rows", call.in[0].shape()[0]);
        return {Apply(call.in[0].graph(), "embedding_grad", {call.in[1], call.dout[0]}, rows)[0], Tensor()};
      },
      .flops = [](const BoundRule& rule) { return static_cast<double>(rule.out[0].shape.elements()); },
      .chosen = {"v", "ids"},
      .reference = EmbeddingReference,
      .precision = Precision::kNarrow,
      .samples =
          {{.in = {{7, 3}, {5}}, .dtypes = {kFloat32, kInt64}, .limit = 7},
           {.in = {{5, 2}, {3, 1}}, .dtypes = {kFloat32, kInt32}, .limit = 5},
           {.in = {{1, 3}, {2}}, .dtypes = {kFloat32, kInt64}, .limit = 1},
           {.in = {{3, 5}, {0}}, .dtypes = {kFloat32, kInt64}, .limit = 3},
           {.in = {{8, 3}, {4, 6}}, .attrs = {{"parts", 4}}, .dtypes = {kFloat32, kInt32}, .limit = 8}},
  });
  catalog->Add({
      .name = "embedding_grad",
      .doc = "Gradient of embedding with respect to its table of `rows` rows: dy summed over equal ids.",
      .axes_of =
          [](const OpCall& call) {
            return PartsIn(call) > 0 ? "ids[r m], dy[r m d] -> dtable[(r v) d]"
                                     : "ids[..], dy[.. d] -> dtable[v d]";
          },
      .folds_of =
          [](const OpCall& call) {
            return std::map<std::string, Reduce>{{PartsIn(call) > 0 ? "m" : "..", Reduce::kSum}};
          },
      .linear = {{"dy"}},
      .whole_of = WholeInParts,
      .extents =
          [](const OpCall& call) {
            return std::map<std::string, int64_t>{
                {"v", call.attrs->Int("rows") / std::max<int64_t>(1, PartsIn(call))}};
          },
      .dtypes = ResultTypes({1}),
      .check = CheckGrad,
      .grad = [](const GradCall& call) -> std::vector<Tensor> {
        return {Tensor(), call.attrs.Has("parts") ? embedding_in_parts(call.dout[0], call.in[0])
                                                  : embedding(call.dout[0], call.in[0])};
      },
      .rows =
          [](const Attrs&, const std::vector<Tensor>& in) {
            const int64_t n = in[0].shape().elements(), width = in[1].shape().back();
            return std::pair{reshape(in[0], {n}), reshape(in[1], {n, width})};
          },
      .flops = [](const BoundRule& rule) { return static_cast<double>(rule.in[1].shape.elements()); },
      .reference = EmbeddingGradReference,
      .any_type = true,
      .typed = true,
      .samples =
          {{.in = {{5}, {5, 3}}, .attrs = {{"rows", 7}}, .dtypes = {kInt64, kFloat32}, .limit = 7},
           {.in = {{3, 1}, {3, 1, 2}}, .attrs = {{"rows", 5}}, .dtypes = {kInt32, kFloat32}, .limit = 5},
           {.in = {{0}, {0, 5}}, .attrs = {{"rows", 3}}, .dtypes = {kInt64, kFloat32}, .limit = 3},
           {.in = {{4, 6}, {4, 6, 3}},
            .attrs = {{"rows", 8}, {"parts", 4}},
            .dtypes = {kInt32, kFloat32},
            .limit = 8}},
  });
}

}  // namespace oneflow_like
