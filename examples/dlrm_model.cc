#include "examples/dlrm_model.h"

#include <cmath>

namespace examples {
namespace {

Tensor HiddenLayer(Scope s, Tensor x, int64_t width) {
  return relu(nn::Linear(s, x, width, {.init = XavierNormal(), .parallel = nn::Parallel::kColumns}));
}

// x[n v w] -> [n v(v-1)/2]: the product of each vector with all before it.
Tensor PairProducts(Tensor x) {
  const Dims shape = x.shape();
  const int64_t n = shape[0], vectors = shape[1];
  std::vector<int32_t> below;  // the diagonal, as places in a row
  for (int32_t i = 0; i < vectors; ++i)
    for (int32_t j = 0; j < i; ++j) below.push_back(i * static_cast<int32_t>(vectors) + j);
  Tensor products = reshape(einsum("nvw,nuw->nvu", x, x), {n, vectors * vectors});
  return take(products, 1, constant(x.graph(), ToHost(below, {static_cast<int64_t>(below.size())})));
}

}  // namespace

void CheckDlrm(const DlrmConfig& c) {
  auto positive = [](const char* name, int64_t value) {
    if (value < 1) Fail("dlrm: ", name, " is ", value, " but must be at least 1");
  };
  positive("dense", c.dense);
  positive("tables", c.tables);
  positive("rows", c.rows);
  positive("width", c.width);
  for (int64_t width : c.bottom) positive("a layer's width", width);
  for (int64_t width : c.top) positive("a layer's width", width);
  if (c.cut != "rows" && c.cut != "columns" && c.cut != "mixed")
    Fail("dlrm: tables are cut by ", c.cut, ", must be rows, columns or mixed");
}

Tensor DlrmLogits(Scope scope, Tensor dense, Tensor ids, const DlrmConfig& c) {
  CheckDlrm(c);
  const int64_t n = dense.shape()[0];
  Tensor numbers = dense;
  const Scope first = scope.Stage("pp", 0);
  for (size_t i = 0; i < c.bottom.size(); ++i)
    numbers = HiddenLayer(first / Cat("bottom", i), numbers, c.bottom[i]);
  numbers = HiddenLayer(first / "bottom_out", numbers, c.width);
  std::vector<Tensor> vectors = {reshape(numbers, {n, 1, c.width})};
  std::vector<Tensor> tables;
  const nn::LookUpOptions look_up = {.micro_batches = c.micro_batches};
  const Annotation rows = nn::CutOfRows(first, c.rows, look_up);
  const double range = 1 / std::sqrt(static_cast<double>(c.rows));
  for (int64_t i = 0; i < c.tables; ++i) {
    const bool columns = c.cut == "columns" || (c.cut == "mixed" && i % 2 == 1);
    tables.push_back(first.Weight(Cat("table", i), {c.rows, c.width}, Uniform(-range, range),
                                  columns ? Annotation{{"tp", S(1)}} : rows));
    if (c.cut != "rows") vectors.push_back(embedding(tables[i], slice(ids, 1, i, i + 1)));  // [n 1 width]
  }
  if (c.cut == "rows") vectors.push_back(nn::LookUp(first, tables, ids, look_up));
  Tensor x = concat({numbers, PairProducts(concat(vectors, 1))}, 1);
  x = nn::layers(scope / "top", x, static_cast<int64_t>(c.top.size()),
                 [&](Scope s, Tensor y, int64_t i) { return HiddenLayer(s, y, c.top[i]); });
  return squeeze(nn::Linear(scope / "click", x, 1, {.init = XavierNormal()}), 1);
}

}  // namespace examples
