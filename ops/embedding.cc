// embedding: rows of a table by number. The table may be cut by rows: each rank answers for the rows it holds
// with the row and for all others with zeros, and the sum is whole.
#include "ops/language/functional.h"
#include "ops/manifest.h"
#include "ops/reference.h"

namespace oneflow_like {
namespace {

Status NoSuchRow(int64_t id, int64_t rows) {
  return Status(Cat("id ", id, " is outside the table of ", rows, " rows"));
}

Status EmbeddingReference(const KernelContext& context) {
  const TensorArg &table = context.in[0], &ids = context.in[1], &y = context.out[0];
  int64_t width = table.extent[1];
  for (int64_t n = 0; n < ids.elements(); ++n) {
    int64_t id = LoadInt(ids, n), row = id - table.begin[0];
    if (id < 0 || id >= table.global[0]) return NoSuchRow(id, table.global[0]);
    bool here = row >= 0 && row < table.extent[0];
    for (int64_t d = 0; d < width; ++d)
      StoreFloat(y, n * width + d, here ? LoadFloat(table, row * width + d) : 0);
  }
  return {};
}

Status EmbeddingGradReference(const KernelContext& context) {
  const TensorArg &ids = context.in[0], &dy = context.in[1], &dtable = context.out[0];
  int64_t width = dtable.extent[1];
  for (int64_t n = 0; n < ids.elements(); ++n) {
    int64_t id = LoadInt(ids, n);
    if (id < 0 || id >= dtable.global[0]) return NoSuchRow(id, dtable.global[0]);
  }
  for (int64_t row = 0; row < dtable.extent[0]; ++row) {
    for (int64_t d = 0; d < width; ++d) StoreFloat(dtable, row * width + d, 0);
    bool used = false;  // a row that no id names costs one look at the ids, not one for each column
    for (int64_t n = 0; n < ids.elements() && !used; ++n) used = LoadInt(ids, n) == dtable.begin[0] + row;
    for (int64_t d = 0; d < width && used; ++d) {
      double total = 0;
      for (int64_t n = 0; n < ids.elements(); ++n) {
        if (LoadInt(ids, n) == dtable.begin[0] + row) total += LoadFloat(dy, n * width + d);
      }
      StoreFloat(dtable, row * width + d, total);
    }
  }
  return {};
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
}

}  // namespace

void AddEmbedding(Catalog* catalog) {
  using enum DType;
  catalog->Add({
      .name = "embedding",
      .doc = "The rows of table that ids name. An id outside the table fails the step.",
      .axes = "table[v d], ids[..] -> y[.. d]",
      .folds = {{"v", Reduce::kSum}},
      .linear = {{"table"}},
      .check =
          [](const OpCall& call) {
            RequireInputs(call, 2);
            RequireFloating(call, 0);
            RequireInteger(call, 1);
          },
      .grad = [](const GradCall& call) -> std::vector<Tensor> {
        Attrs rows = {{"rows", call.in[0].shape()[0]}};
        return {Apply(call.in[0].graph(), "embedding_grad", {call.in[1], call.dout[0]}, rows)[0], Tensor()};
      },
      .flops = [](const BoundRule& rule) { return static_cast<double>(rule.out[0].shape.elements()); },
      .chosen = {"v", "ids"},
      .reference = EmbeddingReference,
      .precision = Precision::kNarrow,
      .samples = {{.in = {{7, 3}, {5}}, .dtypes = {kFloat32, kInt64}, .limit = 7},
                  {.in = {{5, 2}, {3, 1}}, .dtypes = {kFloat32, kInt32}, .limit = 5},
                  {.in = {{1, 3}, {2}}, .dtypes = {kFloat32, kInt64}, .limit = 1},
                  {.in = {{3, 5}, {0}}, .dtypes = {kFloat32, kInt64}, .limit = 3}},
  });
  catalog->Add({
      .name = "embedding_grad",
      .doc = "Gradient of embedding with respect to its table of `rows` rows: dy summed over equal ids.",
      .axes = "ids[..], dy[.. d] -> dtable[v d]",
      .folds = {{"..", Reduce::kSum}},
      .linear = {{"dy"}},
      .extents =
          [](const OpCall& call) {
            return std::map<std::string, int64_t>{{"v", call.attrs->Int("rows")}};
          },
      .dtypes = [](const OpCall& call) { return std::vector<DType>{call.dtypes[1]}; },
      .check = CheckGrad,
      .grad = [](const GradCall& call) -> std::vector<Tensor> {
        return {Tensor(), embedding(call.dout[0], call.in[0])};
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
           {.in = {{0}, {0, 5}}, .attrs = {{"rows", 3}}, .dtypes = {kInt64, kFloat32}, .limit = 3}},
  });
}

}  // namespace oneflow_like
