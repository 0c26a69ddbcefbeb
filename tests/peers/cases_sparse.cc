// Order, elements by index, bags of embeddings, rows that a batch touched, products by expert, rows that go
// to experts and back, small changes of shape.
#include "ops/language/sparse.h"
#include "tests/peers/values.h"

namespace oneflow_like::peers {
namespace {

ValueResults Both(const Sorted& sorted) { return std::vector<Tensor>{sorted.values, sorted.indices}; }
ValueResults Both(const TouchedRows& touched) { return std::vector<Tensor>{touched.rows, touched.values}; }
ValueResults Both(const AdagradState& updated) { return std::vector<Tensor>{updated.table, updated.state}; }

void AddOrder(ValueCases* cases) {
  const ValueInput x = F({3, 40, 2}), few = I({4, 50}, 6);  // integers: equal elements keep their order
  const ValueCases more = {
      {"sort", {x}, [](ValueIn x) { return Both(sort(x[0], 1)); }},
      {"sort/falling", {x}, [](ValueIn x) { return Both(sort(x[0], 1, true)); }},
      {"sort/ties", {few}, [](ValueIn x) { return Both(sort(x[0])); }},
      {"sort/falling_ties", {few}, [](ValueIn x) { return Both(sort(x[0], -1, true)); }},
      {"sort/long", {F({2, 3000})}, [](ValueIn x) { return Both(sort(x[0])); }},
      {"argsort", {x}, [](ValueIn x) { return argsort(x[0], 0); }},
      {"argsort/falling_ties", {few}, [](ValueIn x) { return argsort(x[0], 1, true); }},
      {"top_k", {x}, [](ValueIn x) { return Both(top_k(x[0], 7, 1)); }},
      {"top_k/least", {x}, [](ValueIn x) { return Both(top_k(x[0], 7, 1, false)); }},
      {"top_k/all", {F({5, 9})}, [](ValueIn x) { return Both(top_k(x[0], 9)); }},
      {"argmin", {x}, [](ValueIn x) { return argmin(x[0], 1); }},
      {"cumsum", {x}, [](ValueIn x) { return cumsum(x[0], 1); }},
      {"cumsum/long", {F({2, 3000})}, [](ValueIn x) { return cumsum(x[0], -1); }},
      {"cumsum/reverse", {x}, [](ValueIn x) { return cumsum(x[0], 1, {.reverse = true}); }},
      {"cumsum/exclusive", {x}, [](ValueIn x) { return cumsum(x[0], 1, {.exclusive = true}); }},
      {"cumsum/both", {x}, [](ValueIn x) { return cumsum(x[0], 0, {.reverse = true, .exclusive = true}); }},
      {"cumsum/integers", {few}, [](ValueIn x) { return cumsum(x[0], 0); }},
  };
  cases->insert(cases->end(), more.begin(), more.end());
}

void AddIndexing(ValueCases* cases) {
  const ValueInput x = F({3, 8, 2});
  const ValueCases more = {
      {"take", {x, I({4, 5}, 8)}, [](ValueIn x) { return take(x[0], 1, x[1]); }},
      {"take/rows", {x, I({7}, 3, 0, DType::kInt32)}, [](ValueIn x) { return take(x[0], 0, x[1]); }},
      {"take/one", {x, I({}, 2)}, [](ValueIn x) { return take(x[0], -1, x[1]); }},
      {"take_along_axis", {x, I({3, 5, 2}, 8)}, [](ValueIn x) { return take_along_axis(x[0], x[1], 1); }},
      {"take_along_axis/last",
       {x, I({3, 8, 6}, 2)},
       [](ValueIn x) { return take_along_axis(x[0], x[1], -1); }},
      {"batched_take", {x, I({3, 6}, 8)}, [](ValueIn x) { return batched_take(x[0], x[1], 1); }},
      {"batched_take/last", {x, I({3, 8, 5}, 2)}, [](ValueIn x) { return batched_take(x[0], x[1], -1); }},
      {"scatter_add",
       {x, I({3, 11, 2}, 8), F({3, 11, 2})},
       [](ValueIn x) { return scatter_add(x[0], 1, x[1], x[2]); }},
      {"scatter_add/integers",
       {I({3, 8}, 9, -9), I({7, 8}, 3), I({7, 8}, 9, -9)},
       [](ValueIn x) { return scatter_add(x[0], 0, x[1], x[2]); }},
      {"index_add", {x, I({11}, 8), F({3, 11, 2})}, [](ValueIn x) { return index_add(x[0], 1, x[1], x[2]); }},
      {"index_add/axes",
       {x, I({5, 4}, 3), F({5, 4, 8, 2})},
       [](ValueIn x) { return index_add(x[0], 0, x[1], x[2]); }},
      {"scatter_max",
       {x, I({3, 11, 2}, 8), F({3, 11, 2})},
       [](ValueIn x) { return scatter_max(x[0], 1, x[1], x[2]); }},
      {"scatter_max/ties",  // of whole numbers
       {I({3, 4}, 3), I({3, 30}, 4), I({3, 30}, 3), F({3, 4}), F({3, 30})},
       [](ValueIn x) {
         const auto few = [](Tensor whole, Tensor t) { return cast(whole, DType::kFloat32) + 0 * t; };
         return scatter_max(few(x[0], x[3]), -1, x[1], few(x[2], x[4]));
       }},
      {"scatter_min",
       {x, I({3, 11, 2}, 8, 0, DType::kInt32), F({3, 11, 2})},
       [](ValueIn x) { return scatter_min(x[0], 1, x[1], x[2]); }},
      {"scatter_min/integers",
       {I({3, 8}, 9, -9), I({7, 8}, 3), I({7, 8}, 9, -9)},
       [](ValueIn x) { return scatter_min(x[0], 0, x[1], x[2]); }},
      {"index_max", {x, I({11}, 8), F({3, 11, 2})}, [](ValueIn x) { return index_max(x[0], 1, x[1], x[2]); }},
      {"index_max/axes",
       {x, I({5, 4}, 3), F({5, 4, 8, 2})},
       [](ValueIn x) { return index_max(x[0], 0, x[1], x[2]); }},
      {"index_min", {x, I({11}, 8), F({3, 11, 2})}, [](ValueIn x) { return index_min(x[0], 1, x[1], x[2]); }},
      {"segment_softmax", {F({20, 3}), I({20}, 6)}, [](ValueIn x) { return segment_softmax(x[0], x[1], 7); }},
      {"segment_softmax/axis", {x, I({8}, 4)}, [](ValueIn x) { return segment_softmax(x[0], x[1], 4, 1); }},
  };
  cases->insert(cases->end(), more.begin(), more.end());
}

void AddEmbeddings(ValueCases* cases) {
  const ValueInput table = F({9, 5}), ids = I({12, 4}, 9), lengths = I({12}, 5);
  const ValueInput touching = I({14}, 9, -3), gradients = F({14, 5});  // a negative id names no row
  const ValueCases more = {
      {"embedding_bag", {table, ids, lengths}, [](ValueIn x) { return embedding_bag(x[0], x[1], x[2]); }},
      {"embedding_bag/mean",
       {table, ids, lengths},
       [](ValueIn x) { return embedding_bag(x[0], x[1], x[2], Bag::kMean); }},
      {"embedding_bag/max",
       {table, ids, lengths},
       [](ValueIn x) { return embedding_bag(x[0], x[1], x[2], Bag::kMax); }},
      {"embedding_bag/weights",
       {table, ids, lengths, F({12, 4})},
       [](ValueIn x) { return embedding_bag(x[0], x[1], x[2], x[3]); }},
      {"unique_rows", {touching, gradients}, [](ValueIn x) { return Both(unique_rows(x[0], x[1])); }},
      {"sgd_rows",
       {table, touching, gradients},
       [](ValueIn x) { return sgd_rows(x[0], unique_rows(x[1], x[2]), {.lr = 0.3}); }},
      {"sgd_rows/decay",
       {table, touching, gradients},
       [](ValueIn x) { return sgd_rows(x[0], unique_rows(x[1], x[2]), {.lr = 0.3, .weight_decay = 0.2}); }},
      {"adagrad_rows",
       {table, F({9}, 0.1, 2), touching, gradients},
       [](ValueIn x) {
         return Both(adagrad_rows(x[0], x[1], unique_rows(x[2], x[3]), {.lr = 0.3, .eps = 1e-3}));
       }},
      {"grouped_matmul",
       {F({20, 6}), F({4, 6, 3}), I({4}, 6)},
       [](ValueIn x) { return grouped_matmul(x[0], x[1], x[2]); }},
  };
  cases->insert(cases->end(), more.begin(), more.end());
}

ValueResults All(const Routes& routes) {
  return std::vector<Tensor>{routes.slots, routes.places, routes.counts};
}

ValueResults All(const RankRoutes& r) {
  return std::vector<Tensor>{r.routes.slots, r.routes.places, r.routes.counts, r.kept, r.chosen};
}

void AddRoutes(ValueCases* cases) {
  const ValueInput chosen = I({3, 20, 2}, 4), weights = F({3, 20, 2}, 0, 1), x = F({3, 20, 5}),
                   y = F({4, 3, 8, 5});
  const ValueCases more = {
      {"route", {chosen}, [](ValueIn x) { return All(route(x[0], 4, 8)); }},
      {"route/weights",
       {chosen, weights},
       [](ValueIn x) { return All(route(x[0], 4, 8, {.weights = x[1]})); }},
      {"take_rows", {x, chosen}, [](ValueIn x) { return take_rows(x[0], route(x[1], 4, 8)); }},
      {"take_rows/weights",
       {x, chosen, weights},
       [](ValueIn x) { return take_rows(x[0], route(x[1], 4, 8), x[2]); }},
      {"return_rows", {y, chosen}, [](ValueIn x) { return return_rows(x[0], route(x[1], 4, 8)); }},
      {"return_rows/weights",
       {y, chosen, weights},
       [](ValueIn x) { return return_rows(x[0], route(x[1], 4, 8), x[2]); }},
      {"route_ranks", {chosen}, [](ValueIn x) { return All(route_ranks(x[0], 4, 2, 12)); }},
      {"route_ranks/weights",
       {chosen, weights},
       [](ValueIn x) { return All(route_ranks(x[0], 4, 2, 12, {.weights = x[1]})); }},
      {"sort_choices",
       {I({2, 3, 10, 2}, 5)},
       [](ValueIn x) { return All(sort_choices(cast(x[0], DType::kFloat32), 4, 14)); }},
      {"exchange",
       {F({2, 3, 4, 5}), I({3, 2}, 4, 0, DType::kInt32)},
       [](ValueIn x) { return exchange(x[0], x[1]); }},
      {"grouped_matmul/ranks",
       {F({2, 3, 9, 6}), F({2, 2, 6, 3}), I({2, 3, 2}, 5)},
       [](ValueIn x) { return grouped_matmul(x[0], x[1], x[2]); }},
  };
  cases->insert(cases->end(), more.begin(), more.end());
}

void AddShapes(ValueCases* cases) {
  const ValueInput x = F({2, 5, 7});
  const ValueCases more = {
      {"tril", {x}, [](ValueIn x) { return tril(x[0]); }},
      {"tril/above", {x}, [](ValueIn x) { return tril(x[0], 2); }},
      {"tril/below", {x}, [](ValueIn x) { return tril(x[0], -3); }},
      {"triu", {x}, [](ValueIn x) { return triu(x[0]); }},
      {"triu/above", {x}, [](ValueIn x) { return triu(x[0], 2); }},
      {"triu/below", {x}, [](ValueIn x) { return triu(x[0], -3); }},
      {"flip",
       {x},
       [](ValueIn x) {
         return flip(x[0], {0, -1});
       }},
      {"roll", {x}, [](ValueIn x) { return roll(x[0], 3, 1); }},
      {"roll/back", {x}, [](ValueIn x) { return roll(x[0], -16, -1); }},
      {"repeat",
       {x},
       [](ValueIn x) {
         return repeat(x[0], {2, 1, 3});
       }},
      {"repeat/leading",
       {F({3, 2})},
       [](ValueIn x) {
         return repeat(x[0], {2, 1, 2});
       }},
      {"repeat_interleave", {x}, [](ValueIn x) { return repeat_interleave(x[0], 3, 1); }},
      {"stack", {F({3, 4}), F({3, 4}), F({3, 4})}, [](ValueIn x) { return stack(x); }},
      {"stack/last", {F({3, 4}), F({3, 4})}, [](ValueIn x) { return stack(x, -1); }},
      {"squeeze", {F({3, 1, 4})}, [](ValueIn x) { return squeeze(x[0], -2); }},
      {"unsqueeze", {F({3, 4})}, [](ValueIn x) { return unsqueeze(x[0], -1); }},
      {"arange", {F({9})}, [](ValueIn x) { return x[0] * arange(x[0].graph(), -1, 3.3, 0.5); }},
      {"arange/integers",
       {I({5}, 9)},
       [](ValueIn x) { return x[0] + arange(x[0].graph(), 20, 5, -3, DType::kInt64); }},
  };
  cases->insert(cases->end(), more.begin(), more.end());
}

}  // namespace

ValueCases SparseCases() {
  ValueCases cases;
  AddOrder(&cases);
  AddIndexing(&cases);
  AddEmbeddings(&cases);
  AddRoutes(&cases);
  AddShapes(&cases);
  return cases;
}

}  // namespace oneflow_like::peers
