// Functions made of others: normalisation over any axes, elements by index, results of bounded number,
// running results, borders and windows, biases of attention.
#include "ops/language/composed.h"
#include "ops/language/expressions.h"
#include "ops/language/losses.h"
#include "ops/language/sparse.h"
#include "tests/peers/values.h"

namespace oneflow_like::peers {
namespace {

ValueResults All(const Extremes& e) { return std::vector<Tensor>{e.values, e.indices}; }
ValueResults All(const Found& f) { return std::vector<Tensor>{f.indices, f.count}; }
ValueResults All(const Distinct& d) { return std::vector<Tensor>{d.values, d.counts, d.count}; }

void AddNorms(ValueCases* cases) {
  const ValueInput x = F({4, 6, 5});
  const ValueCases more = {
      {"softmax/axis", {x}, [](ValueIn x) { return softmax(x[0], 1); }},
      {"softmax/first", {x}, [](ValueIn x) { return softmax(x[0], 0); }},
      {"log_softmax/axis", {x}, [](ValueIn x) { return log_softmax(x[0], -2); }},
      {"layer_norm_over/last", {x}, [](ValueIn x) { return layer_norm_over(x[0], {-1}); }},
      {"layer_norm_over/axes",
       {x},
       [](ValueIn x) {
         return layer_norm_over(x[0], {1, 2}, 1e-3);
       }},
      {"rms_norm_over/last", {x}, [](ValueIn x) { return rms_norm_over(x[0], {2}); }},
      {"rms_norm_over/axes",
       {x},
       [](ValueIn x) {
         return rms_norm_over(x[0], {0, 2}, 1e-3);
       }},
      {"weight_norm", {x, F({4})}, [](ValueIn x) { return weight_norm(x[0], x[1]); }},
      {"weight_norm/axis", {x, F({6})}, [](ValueIn x) { return weight_norm(x[0], x[1], 1); }},
  };
  cases->insert(cases->end(), more.begin(), more.end());
}

void AddElements(ValueCases* cases) {
  const ValueInput x = F({3, 8, 2});
  const ValueCases more = {
      {"take/places",
       {x},
       [](ValueIn x) {
         return take(x[0], 1, {7, 0, -2, 0});
       }},
      {"max_with_indices", {x}, [](ValueIn x) { return All(max_with_indices(x[0], 1)); }},
      {"min_with_indices", {x}, [](ValueIn x) { return All(min_with_indices(x[0])); }},
      {"dynamic_slice", {x, I({}, 5)}, [](ValueIn x) { return dynamic_slice(x[0], 1, x[1], 4); }},
      {"slice_scatter", {x, F({3, 3, 2})}, [](ValueIn x) { return slice_scatter(x[0], 1, 2, x[1]); }},
      {"slice_scatter/end", {x, F({3, 3, 2})}, [](ValueIn x) { return slice_scatter(x[0], 1, -3, x[1]); }},
      {"scatter",
       {x, F({3, 8, 2}), F({3, 8, 2})},  // each place once
       [](ValueIn x) { return scatter(x[0], 1, slice(argsort(x[1], 1), 1, 0, 5), slice(x[2], 1, 0, 5)); }},
      {"bincount", {I({5, 7}, 9)}, [](ValueIn x) { return bincount(x[0], 11); }},
      {"nonzero", {Flags({4, 6})}, [](ValueIn x) { return All(nonzero(x[0], 40)); }},
      {"nonzero/fewer", {Flags({4, 6})}, [](ValueIn x) { return All(nonzero(x[0], 3)); }},
      {"unique", {I({5, 7}, 9, -9)}, [](ValueIn x) { return All(unique(x[0], 50)); }},
      {"unique/fewer", {I({50}, 9)}, [](ValueIn x) { return All(unique(x[0], 4)); }},
      {"searchsorted", {F({20}), F({3, 4})}, [](ValueIn x) { return searchsorted(sort(x[0]).values, x[1]); }},
      {"searchsorted/right",
       {I({20}, 9), I({3, 4}, 9)},
       [](ValueIn x) { return searchsorted(sort(x[0]).values, x[1], true); }},
      {"quantile", {x}, [](ValueIn x) { return quantile(x[0], 0.3, 1); }},
      {"quantile/ends",
       {x},
       [](ValueIn x) {
         return std::vector{quantile(x[0], 0, 1, true), quantile(x[0], 1, 1, true)};
       }},
  };
  cases->insert(cases->end(), more.begin(), more.end());
}

void AddRunning(ValueCases* cases) {
  const ValueInput x = F({3, 21, 2});
  const ValueCases more = {
      {"cumprod", {x}, [](ValueIn x) { return cumprod(x[0], 1); }},
      {"cummax", {x}, [](ValueIn x) { return cummax(x[0], 1); }},
      {"cummax/integers", {I({30}, 9, -9)}, [](ValueIn x) { return cummax(x[0], 0); }},
      {"cummin", {x}, [](ValueIn x) { return cummin(x[0], -2); }},
      {"logcumsumexp", {x}, [](ValueIn x) { return logcumsumexp(x[0], 1); }},
      {"logcumsumexp/far", {F({40}, -80, 80)}, [](ValueIn x) { return logcumsumexp(x[0], 0); }},
  };
  cases->insert(cases->end(), more.begin(), more.end());
}

void AddShapes(ValueCases* cases) {
  const ValueInput x = F({2, 4, 5, 3});
  const ValueCases more = {
      {"pad/axes",
       {x},
       [](ValueIn x) {
         return pad(x[0], {{0, 1}, {2, 0}, {0, 0}, {1, 3}}, {.value = 0.5});
       }},
      {"pad/reflect",
       {x},
       [](ValueIn x) {
         return pad(x[0], {{0, 0}, {3, 1}, {0, 4}, {0, 0}}, {.mode = PadMode::kReflect});
       }},
      {"pad/replicate",
       {x},
       [](ValueIn x) {
         return pad(x[0], {{0, 0}, {3, 1}, {0, 9}, {0, 0}}, {.mode = PadMode::kReplicate});
       }},
      {"pad/circular",
       {x},
       [](ValueIn x) {
         return pad(x[0], {{0, 0}, {4, 1}, {0, 5}, {0, 0}}, {.mode = PadMode::kCircular});
       }},
      {"unfold", {x}, [](ValueIn x) { return unfold(x[0], 2, 3); }},
      {"unfold/steps", {F({11, 2})}, [](ValueIn x) { return unfold(x[0], 0, 4, 3); }},
      {"pixel_shuffle", {F({2, 3, 4, 18})}, [](ValueIn x) { return pixel_shuffle(x[0], 3); }},
      {"pixel_unshuffle", {F({2, 6, 4, 3})}, [](ValueIn x) { return pixel_unshuffle(x[0], 2); }},
  };
  cases->insert(cases->end(), more.begin(), more.end());
}

void AddAttention(ValueCases* cases) {
  const ValueInput q = F({2, 5, 6, 4}), k = F({2, 7, 6, 4});
  const ValueCases more = {
      {"alibi",
       {q, k, k},
       [](ValueIn x) { return attention(x[0], x[1], x[2], {.bias = alibi(x[0].graph(), 6, 5, 7)}); }},
      {"relative_buckets",
       {F({8, 3})},
       [](ValueIn x) {
         return gather(x[0], relative_buckets(x[0].graph(), 40, 50, {.buckets = 8, .max_distance = 20}));
       }},
      {"relative_buckets/causal",
       {F({8, 3})},
       [](ValueIn x) {
         return gather(x[0], relative_buckets(x[0].graph(), 40, 40,
                                              {.buckets = 8, .max_distance = 20, .bidirectional = false}));
       }},
      {"relative_places",
       {F({35, 3})},
       [](ValueIn x) { return gather(x[0], relative_places(x[0].graph(), 3, 4)); }},
      {"attention/mask",
       {q, k, k, Flags({2, 1, 5, 7})},
       [](ValueIn x) { return attention(x[0], x[1], x[2], {.causal = false, .mask = x[3]}); }},
      {"attention/key_lengths",
       {q, k, k, I({2}, 8, 1)},
       [](ValueIn x) { return attention(x[0], x[1], x[2], {.causal = false, .key_lengths = x[3]}); }},
      {"attention/mask_and_bias",
       {q, k, k, Flags({5, 7}), F({6, 1, 7}), I({2}, 8, 1, DType::kInt32)},
       [](ValueIn x) {
         return attention(x[0], x[1], x[2],
                          {.causal = false, .bias = x[4], .mask = x[3], .key_lengths = x[5]});
       }},
  };
  cases->insert(cases->end(), more.begin(), more.end());
}

}  // namespace

ValueCases ComposedCases() {
  ValueCases cases;
  AddNorms(&cases);
  AddElements(&cases);
  AddRunning(&cases);
  AddShapes(&cases);
  AddAttention(&cases);
  return cases;
}

}  // namespace oneflow_like::peers
