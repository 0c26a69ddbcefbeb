// What products, attention and fused kernels do of each amount that their times grow with: how often a matrix
// is read, packed or written depends on the extents of the others, and attention computes whole tiles.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "ops/cpu/attention_few.h"
#include "ops/cpu/attention_tile.h"
#include "ops/cpu/kernels.h"
#include "ops/equation.h"
#include "ops/fused.h"

namespace oneflow_like::cpu {
namespace {

double BytesOf(const TensorArg& arg) {
  return static_cast<double>(arg.elements()) * static_cast<double>(SizeOf(arg.dtype));
}

// A result whose last axis comes from the left operand is computed as its transpose, with the operands
// exchanged.
void ProductWork(const KernelSpec& spec, std::vector<LabelAxes> labels, Work* work) {
  constexpr double kPage = 4096;
  const TensorArg *left = &spec.in[0], *right = &spec.in[1], &result = spec.out[0];
  const int last = result.global.rank() - 1;
  if (std::any_of(labels.begin(), labels.end(), [&](const LabelAxes& l) { return l.y == last && l.b < 0; })) {
    std::swap(left, right);
    for (LabelAxes& l : labels) std::swap(l.a, l.b);
  }
  work->bytes = 0;
  work->left = BytesOf(*left);
  work->right = BytesOf(*right);
  work->result = BytesOf(result);
  if (Accumulates(spec.attrs)) work->sum = work->result;
  // Rows of the left operand, and columns of the right one, that lie beside each other in memory.
  const bool left_turned = std::any_of(labels.begin(), labels.end(), [&](const LabelAxes& l) {
    return l.y >= 0 && l.a == left->global.rank() - 1;
  });
  const bool right_turned = std::any_of(labels.begin(), labels.end(), [&](const LabelAxes& l) {
    return l.y < 0 && l.b == right->global.rank() - 1;
  });
  auto rows = static_cast<double>(SizeOf(left->dtype)), columns = static_cast<double>(SizeOf(right->dtype));
  for (const LabelAxes& l : labels) {
    if (l.y < 0 || (l.a >= 0 && l.b >= 0)) continue;
    (l.a >= 0 ? rows : columns) *= static_cast<double>(result.extent[l.y]);
  }
  if (right_turned) work->turned = work->right;
  if (left_turned && rows >= kPage) work->strided += work->left;
  if (!right_turned && columns >= kPage) work->strided += work->right;
}

// Of queries and keys, operands `first` and the next. `tiles`: whole tiles of queries, up to the last key
// that one of them sees.
void WorkOfScores(const KernelSpec& spec, int first, bool tiles, Work* work) {
  const TensorArg &q = spec.in[first], &k = spec.in[first + 1];
  const int64_t queries = q.extent[1], keys = k.extent[1];
  // Before which key the first local query ends.
  const int64_t ends = q.begin[1] - k.begin[1] + k.global[1] - q.global[1];
  const bool causal = spec.attrs.Int("causal", 0) != 0;
  double pairs = 0;
  for (int64_t s = 0; s < queries; s += kLanes) {
    const int64_t end = std::min(s + kLanes, queries);
    const int64_t seen = causal ? std::clamp<int64_t>(ends + end, 0, keys) : keys;
    pairs += static_cast<double>(tiles ? kLanes : end - s) * static_cast<double>(seen);
  }
  const double all = static_cast<double>(queries) * static_cast<double>(keys);
  if (all == 0) return;
  work->flops *= pairs / all;
  const int last = q.extent.rank() - 1;
  double heads = 1;  // with those that share a head of keys
  for (int axis = 2; axis < last; ++axis) heads *= static_cast<double>(q.extent[axis]);
  work->score = static_cast<double>(q.extent[0]) * heads * pairs;
  if (spec.attrs.Float("dropout", 0) > 0) work->dropped = work->score;
}

}  // namespace

void MatmulWork(const KernelSpec& spec, Work* work) {
  ProductWork(spec, MatmulLabels(spec.in[0].global, spec.in[1].global, spec.out[0].global), work);
}

void EinsumWork(const KernelSpec& spec, Work* work) {
  ProductWork(spec, EinsumLabels(spec.attrs.Str("equation")), work);
}

void AttentionWork(const KernelSpec& spec, Work* work) { WorkOfScores(spec, 0, !FewQueriesFit(spec), work); }

void AttentionGradWork(const KernelSpec& spec, Work* work) { WorkOfScores(spec, 1, true, work); }

std::vector<std::string> FusedSteps(const KernelSpec& spec) {
  std::vector<std::string> steps;
  for (const FusedStep& step : ParseFused(spec.attrs.Str("program"), static_cast<int>(spec.in.size())))
    steps.push_back(step.op);
  return steps;
}

}  // namespace oneflow_like::cpu
