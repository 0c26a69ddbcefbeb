// What the kernels of attention_grad on tensor cores share (attention_tensor_grad.cu,
// attention_tensor_bias.cu): slopes of scores, and tiles whose rows are queries.
#pragma once

#include "ops/cuda/attention_scores.h"

namespace oneflow_like::cuda {

// What makes a probability of a score again: lse in units of log2, +infinity for a query without keys, so
// that none is left of it.
struct QueryStatistics {
  float lse, delta;
  OFL_DEVICE QueryStatistics InUnits() const { return {lse == -INFINITY ? INFINITY : lse * kLog2E, delta}; }
};

// P and dS from scores and dP, of which what was dropped is 0.
// `of_element(n, i)`: the statistics of a score's query.
template <int C, typename OfElement>
OFL_DEVICE void FinishSlopes(const AttentionShape& shape, const OfElement& of_element, Sums<C>* scores,
                             Sums<C>* slopes) {
  const float unit = ScoreUnit(shape);
  OFL_UNROLL
  for (int n = 0; n < C / 8; ++n) {
    OFL_UNROLL
    for (int i = 0; i < 4; ++i) {
      const QueryStatistics query = of_element(n, i);
      float &score = scores->Of(n).at[i], &slope = slopes->Of(n).at[i];
      score = PowerOfTwo(score * unit - query.lse);
      slope = score * (slope * shape.keep - query.delta);
    }
  }
}

// The same of keys' rows with dropout, which kept P is an operand of a product, too: it becomes the scores.
template <int C, typename OfElement>
OFL_DEVICE void FinishKeptSlopes(const AttentionShape& shape, const KeptScores<false, C>& kept,
                                 const OfElement& of_element, Sums<C>* scores, Sums<C>* slopes) {
  const float unit = ScoreUnit(shape);
  OFL_UNROLL
  for (int n = 0; n < C / 8; ++n) {
    OFL_UNROLL
    for (int i = 0; i < 4; ++i) {
      const QueryStatistics query = of_element(n, i);
      float &score = scores->Of(n).at[i], &slope = slopes->Of(n).at[i];
      const float p = PowerOfTwo(score * unit - query.lse);
      score = kept.At(n, i) ? p : 0.0f;
      slope = score * slope * shape.keep - p * query.delta;
    }
  }
}

// --- Rows are queries
// Rows of queries and of what came to their results, in shared memory; `stats` are of the lane's rows.
template <typename T, int W>
struct QueryTile {
  int64_t b, pair;
  int h, first;
  HeadRows<T> q, dout;
  QueryStatistics stats[2];

  OFL_DEVICE QueryTile(const AttentionShape& shape, int64_t of_pair, int from, const T* q_data,
                       const T* dout_data)
      : b(of_pair / shape.heads), pair(of_pair), h(static_cast<int>(of_pair % shape.heads)), first(from) {
    q = QueryView(shape, b, h, shape.width).Rows(q_data, first, kTensorRows);
    dout = QueryView(shape, b, h, shape.value_width).Rows(dout_data, first, kTensorRows);
  }

  // dS of the tile of keys that begins at `column`. `dots(scores, dp)` adds their products.
  template <int C, typename Dots>
  OFL_DEVICE void Slopes(const AttentionShape& shape, const TileKnowledge& known, int column,
                         const RowPlaces& places, const ColumnData<C>& data, bool whole, const Dots& dots,
                         Sums<C>* ds) const {
    const int row = first + WarpOfThread() * 16;
    Sums<C> bias, scores = {};
    KeptScores<true, C> kept;
    if (shape.bias != nullptr) LoadBias<true>(shape, b, h, row, column, &bias);
    if (shape.drop > 0) kept.Load(known, pair - shape.first_pair, row, column);
    *ds = {};
    dots(&scores, ds);
    FinishScores<true>(shape, row, column, places, data, whole, bias, &scores);
    if (shape.drop > 0) {
      kept.Arrive(row);
      kept.Apply(ds);
    }
    FinishSlopes(
        shape, [&](int, int i) { return stats[i / 2]; }, &scores, ds);
  }
};

// The gradient of the bias, from `delta` = do . o of every query, for the part's pairs: added to what those
// before have left.
void LaunchTensorBiasGrad(const AttentionShape& part, const TileKnowledge& known,
                          const KernelContext& context, const LaunchContext& launch, const float* delta);

}  // namespace oneflow_like::cuda
