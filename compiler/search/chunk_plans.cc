#include "compiler/search/chunk_plans.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "compiler/cost/cost.h"
#include "sbp/boxing.h"

namespace oneflow_like {

namespace {

// A graph as plans are looked for in it.
struct BatchGraph {
  const Graph& graph;
  const std::vector<std::vector<int>> readers;  // by value
  const std::vector<int> sizes;                 // Graph::Sizes
  const std::vector<bool> of_batch;  // by node: all that a micro-batch's data leads to, so not weights, nor
                                     // what is made of them alone

  // A node of the forward or backward pass that acts on each micro-batch.
  bool Works(int n) const {
    const Node& node = graph.node(n);
    return node.kind == NodeKind::kOperator && of_batch[n] &&
           (node.phase == Phase::kForward || node.phase == Phase::kBackward) &&
           node.rate == (graph.times() > 1 ? Rate::kEachAct : Rate::kOnce);
  }
  bool IsProduct(int n) const {
    const Node& node = graph.node(n);
    return Works(n) && node.in.size() == 2 && node.in[0] != node.in[1] && node.out.size() == 1 &&
           graph.CategoryOf(node) == "matmul";
  }
};

std::vector<bool> LedToByInputs(const Graph& graph, const std::vector<int>& order) {
  std::vector<bool> led(graph.num_nodes(), false);
  for (int n : order) {
    const std::vector<int>& in = graph.node(n).in;
    led[n] = graph.node(n).kind == NodeKind::kInput ||
             std::any_of(in.begin(), in.end(), [&](int v) { return led[graph.value(v).producer]; });
  }
  return led;
}

// --- Axes and rows ---

// The one entry in which two signatures differ; -1: none or several.
int Difference(const NdSbp& from, const NdSbp& to) {
  int entry = -1;
  for (size_t e = 0; e < from.size(); ++e) {
    if (from[e] == to[e]) continue;
    if (entry >= 0) return -1;
    entry = static_cast<int>(e);
  }
  return entry;
}

// Whether a mesh axis cuts an axis of one element, which a view cannot do.
bool CutsOne(const Dims& shape, const NdSbp& sbp) {
  return std::any_of(sbp.begin(), sbp.end(),
                     [&](const Sbp& s) { return s.is_split() && shape[s.axis] == 1; });
}

// The axis, if it is whole but for at most one even cut. `sizes`: Graph::Sizes.
std::optional<ChunkAxis> ChunkAxisOf(const std::vector<int>& sizes, const Dims& shape, const NdSbp& sbp,
                                     int axis) {
  ChunkAxis rows{axis, 1};
  if (CutsOne(shape, sbp)) return std::nullopt;
  for (size_t e = 0; e < sbp.size(); ++e) {
    if (!sbp[e].is_split() || sbp[e].axis != axis) continue;
    // A grain of a plain signature makes parts uneven.
    if (rows.pieces > 1 || shape[axis] % sizes[e] != 0 || sbp[e].grain > 1) return std::nullopt;
    rows.pieces = sizes[e];
  }
  if (Plain(shape, sbp, sizes) != sbp || shape.rank() + 2 > Dims::kMaxRank) return std::nullopt;
  return rows;
}

// Of two axes of a shape the one of more chunks, then one that nothing cuts, whose chunks are slices.
bool Better(const Dims& shape, const ChunkAxis& a, const ChunkAxis& b, int wanted) {
  return std::tuple(-MostChunks(shape, a, wanted), a.pieces > 1) <
         std::tuple(-MostChunks(shape, b, wanted), b.pieces > 1);
}

// The rows of product n that are axis `axis` of its operand `operand`, or of its result (-1).
std::optional<ProductRows> RowsOf(const Graph& graph, int n, int operand, int axis) {
  const BoundRule& rule = graph.RuleOf(n);
  const BoundRule::Operand& of = operand < 0 ? rule.out[0] : rule.in[operand];
  const std::vector<std::string>& labels = of.axes[axis].labels;
  if (labels.size() != 1) return std::nullopt;
  auto find = [&](const BoundRule::Operand& in) {
    for (size_t a = 0; a < in.axes.size(); ++a)
      if (in.axes[a].labels == labels && in.shape[static_cast<int>(a)] == of.shape[axis])
        return static_cast<int>(a);
    return -1;
  };
  ProductRows rows{find(rule.out[0]), {}};
  for (const BoundRule::Operand& in : rule.in) rows.in.push_back(find(in));
  if (rows.out < 0 || rule.notes.whole.count(labels[0])) return std::nullopt;
  return rows;
}

// Whether chunks of axis a of product n's result come from chunks of its operands.
bool FromChunks(const BatchGraph& in, int n, int a, const ChunkAxis& rows) {
  const std::optional<ProductRows> of = RowsOf(in.graph, n, -1, a);
  if (!of) return false;
  const Node& node = in.graph.node(n);
  bool any = false;
  for (size_t i = 0; i < node.in.size(); ++i) {
    if (of->in[i] < 0) continue;
    const std::optional<ChunkAxis> operand =
        ChunkAxisOf(in.sizes, in.graph.value(node.in[i]).shape, node.want[i], of->in[i]);
    if (!operand || (operand->pieces != 1 && operand->pieces != rows.pieces)) return false;
    any = true;
  }
  return any;
}

// The rows of v to chunk, which becomes `to`, the sum of these products: those that a reduce-scatter deals,
// or, of an all-reduce, the axis that suits best.
std::optional<ChunkAxis> RowsOfSum(const BatchGraph& in, const Value& v, const NdSbp& want, const Sbp& to,
                                   const std::vector<int>& products, int wanted) {
  std::optional<ChunkAxis> best;
  for (int a = 0; a < v.shape.rank(); ++a) {
    if (to.is_split() && to.axis != a) continue;
    const std::optional<ChunkAxis> rows = ChunkAxisOf(in.sizes, v.shape, want, a);
    if (!rows || !ChunkAxisOf(in.sizes, v.shape, v.sbp, a)) continue;
    if ((!best || Better(v.shape, *rows, *best, wanted)) &&
        std::all_of(products.begin(), products.end(), [&](int n) { return FromChunks(in, n, a, *rows); }))
      best = rows;
  }
  return best;
}

// --- Gradients behind ---

// Products of the backward pass whose results lead to v by way of light nodes alone.
std::vector<int> ProductsBefore(const BatchGraph& in, int v) {
  std::vector<int> products, todo = {in.graph.value(v).producer};
  std::set<int> seen;
  while (!todo.empty()) {
    const int n = todo.back();
    todo.pop_back();
    if (!in.Works(n) || in.graph.node(n).phase != Phase::kBackward || !seen.insert(n).second) continue;
    if (in.IsProduct(n)) products.push_back(n);
    if (in.graph.IsHeavy(n)) continue;
    for (int operand : in.graph.node(n).in) todo.push_back(in.graph.value(operand).producer);
  }
  return products;
}

// Gradients of weights that could be computed while sums of these products are on their way, on the slice of
// a plan; `used`: nodes of other plans.
std::vector<int> BehindProducts(const BatchGraph& in, const std::set<int>& used, const Slice& slice,
                                const std::vector<int>& products) {
  std::set<int> operands;
  for (int n : products) operands.insert(in.graph.node(n).in.begin(), in.graph.node(n).in.end());
  std::vector<int> behind;
  const auto for_updates = [&](int v) {
    return std::all_of(in.readers[v].begin(), in.readers[v].end(),
                       [&](int r) { return in.graph.node(r).phase == Phase::kUpdate; });
  };
  for (int v : operands)
    for (int r : in.readers[v]) {
      const Node& node = in.graph.node(r);
      if (in.graph.IsHeavy(r) && node.phase == Phase::kBackward && !used.count(r) && node.slice == slice &&
          std::find(behind.begin(), behind.end(), r) == behind.end() &&
          std::all_of(node.out.begin(), node.out.end(), for_updates))
        behind.push_back(r);
    }
  return behind;
}

// --- Plans of one value ---

using Reading = std::vector<std::pair<int, int>>;  // nodes, and which of their operands

// Readers of v that work on its slice, by the signature that they want.
std::map<NdSbp, Reading> ReadingsOf(const BatchGraph& in, int v) {
  std::map<NdSbp, Reading> reads;
  for (int r : in.readers[v]) {
    const Node& reader = in.graph.node(r);
    if (reader.slice != in.graph.producer(v).slice || !in.Works(r)) continue;
    for (size_t i = 0; i < reader.in.size(); ++i)
      if (reader.in[i] == v) reads[reader.want[i]].push_back({r, static_cast<int>(i)});
  }
  return reads;
}

// Where products read v whole: gathered, or combined. Rows are those that are gathered, or else such as
// most products keep.
std::optional<ChunkPlan> GatherOf(const BatchGraph& in, const std::set<int>& used, int wanted, int v,
                                  const NdSbp& want, const Reading& reads) {
  const Value& value = in.graph.value(v);
  ChunkPlan plan{.gather = true, .value = v, .want = want, .entry = Difference(value.sbp, want)};
  if (plan.entry <= 0 || !want[plan.entry].is_broadcast()) return std::nullopt;
  const auto is_forward = [&](int n) { return in.graph.node(n).phase == Phase::kForward; };
  // A message that the forward pass waits for has been sent when products of the backward pass begin.
  const bool for_forward =
      std::any_of(reads.begin(), reads.end(), [&](const auto& read) { return is_forward(read.first); });
  const Sbp& from = value.sbp[plan.entry];
  for (int a = 0; a < value.shape.rank(); ++a) {
    const std::optional<ChunkAxis> axis = ChunkAxisOf(in.sizes, value.shape, value.sbp, a);
    if (!axis || (from.is_split() ? from.axis != a : from != P())) continue;
    std::vector<ChunkedProduct> products;
    Reading others;
    for (auto [r, i] : reads) {
      std::optional<ProductRows> rows;
      if (in.IsProduct(r)) {
        const Value& made = in.graph.value(in.graph.node(r).out[0]);
        if (!CutsOne(made.shape, made.sbp)) rows = RowsOf(in.graph, r, i, a);
      }
      if (rows && rows->in[1 - i] < 0 && !used.count(r) && (!for_forward || is_forward(r)))
        products.push_back({r, *rows});
      else
        others.push_back({r, i});
    }
    if (products.empty() || products.size() < plan.products.size() ||
        (products.size() == plan.products.size() && !Better(value.shape, *axis, plan.rows, wanted)))
      continue;
    plan.rows = *axis;
    plan.products = std::move(products);
    plan.others = std::move(others);
  }
  if (plan.products.empty()) return std::nullopt;
  if (from.is_partial())
    plan.behind = BehindProducts(in, used, in.graph.producer(v).slice, ProductsBefore(in, v));
  return plan;
}

// Adds to a plan's sums, and to `products`, what v is the sum of: products, and sums in between, which nobody
// else reads: elementwise operators that make partial sums of partial sums. False: of something else.
bool AddTerms(const BatchGraph& in, const std::set<int>& used, int v, ChunkPlan* plan,
              std::vector<int>* products) {
  const int n = in.graph.value(v).producer;
  const Node& node = in.graph.node(n);
  if (used.count(n) || node.slice != in.graph.producer(plan->value).slice) return false;
  if (in.IsProduct(n)) {
    for (size_t i = 0; i < node.in.size(); ++i)  // one message is enough
      if (in.of_batch[in.graph.value(node.in[i]).producer] && in.graph.value(node.in[i]).sbp != node.want[i])
        return false;
    products->push_back(n);
    return true;
  }
  const OpDef* def = in.graph.catalog().Find(node.op);
  if (!in.Works(n) || !def || def->scalar.empty() || def->random) return false;
  for (size_t i = 0; i < node.in.size(); ++i) {
    const Value& term = in.graph.value(node.in[i]);
    if (!(term.shape == in.graph.value(v).shape) || term.sbp != node.want[i] ||
        term.sbp[plan->entry] != P() || in.readers[node.in[i]].size() != 1 ||
        !AddTerms(in, used, node.in[i], plan, products))
      return false;
  }
  plan->sums.push_back(n);
  return true;
}

// Where v is partial and all its readers want it combined alike: what it is the sum of, if that is
// products.
std::optional<ChunkPlan> SumOf(const BatchGraph& in, const std::set<int>& used, int wanted, int v) {
  const Value& value = in.graph.value(v);
  const Slice& slice = in.graph.producer(v).slice;
  ChunkPlan plan{.value = v};
  for (int r : in.readers[v]) {
    const Node& reader = in.graph.node(r);
    if (!in.Works(r) || reader.slice != slice) return std::nullopt;
    for (size_t i = 0; i < reader.in.size(); ++i) {
      if (reader.in[i] != v) continue;
      if (plan.want.empty()) plan.want = reader.want[i];
      if (plan.want != reader.want[i]) return std::nullopt;
    }
  }
  plan.entry = plan.want.empty() ? -1 : Difference(value.sbp, plan.want);
  if (plan.entry <= 0 || value.sbp[plan.entry] != P()) return std::nullopt;
  const Sbp& to = plan.want[plan.entry];
  std::vector<int> products;
  if (to.is_partial() || !AddTerms(in, used, v, &plan, &products)) return std::nullopt;
  const std::optional<ChunkAxis> rows = RowsOfSum(in, value, plan.want, to, products, wanted);
  if (!rows) return std::nullopt;
  plan.rows = *rows;
  for (int n : products) plan.products.push_back({n, *RowsOf(in.graph, n, -1, rows->axis)});
  if (in.graph.node(products[0]).phase == Phase::kBackward)
    plan.behind = BehindProducts(in, used, slice, products);
  return plan;
}

}  // namespace

std::vector<ChunkPlan> FindChunkPlans(const Graph& graph, const CompileOptions& options) {
  const std::vector<int> order = graph.Order();
  const BatchGraph in{graph, graph.Readers(), graph.Sizes(), LedToByInputs(graph, order)};
  const Overlap overlap = options.decided.overlap.value_or(Overlap());
  CostModel cost(graph, options.machine);
  std::vector<ChunkPlan> plans;
  std::set<int> used;  // nodes of these
  const auto take = [&](std::optional<ChunkPlan> plan) {
    if (!plan || !ChooseChunks(graph, options.machine, overlap, &cost, &*plan)) return false;
    for (const ChunkedProduct& product : plan->products) used.insert(product.node);
    used.insert(plan->sums.begin(), plan->sums.end());
    used.insert(plan->behind.begin(), plan->behind.end());
    plans.push_back(std::move(*plan));
    return true;
  };
  for (int n : order)
    for (int v : graph.node(n).out) {
      if (!in.of_batch[n] || graph.value(v).sbp[0].is_partial()) continue;
      bool taken = false;
      for (const auto& [want, reads] : ReadingsOf(in, v))
        taken |= take(GatherOf(in, used, overlap.chunks, v, want, reads));
      if (!taken) take(SumOf(in, used, overlap.chunks, v));
    }
  return plans;
}

}  // namespace oneflow_like
