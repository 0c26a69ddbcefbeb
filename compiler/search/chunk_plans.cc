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

class ChunkFinder {
 public:
  ChunkFinder(const Graph& graph, const CompileOptions& options)
      : graph_(graph),
        options_(options),
        readers_(graph.Readers()),
        sizes_(graph.Sizes()),
        cost_(graph, options.machine) {}

  std::vector<ChunkPlan> Find() {
    const std::vector<int> order = graph_.Order();
    MarkOfBatch(order);
    for (int n : order)
      for (int v : graph_.node(n).out) FindPlans(v);
    return std::move(plans_);
  }

 private:
  // Marks all that a micro-batch's data leads to: not weights, nor what is made of them alone.
  void MarkOfBatch(const std::vector<int>& order) {
    of_batch_.assign(graph_.num_nodes(), false);
    for (int n : order) {
      const Node& node = graph_.node(n);
      bool of_batch = node.kind == NodeKind::kInput;
      for (int v : node.in) of_batch = of_batch || of_batch_[graph_.value(v).producer];
      of_batch_[n] = of_batch;
    }
  }

  // A node of the forward or backward pass that acts on each micro-batch.
  bool Works(int n) const {
    const Node& node = graph_.node(n);
    return node.kind == NodeKind::kOperator && of_batch_[n] &&
           (node.phase == Phase::kForward || node.phase == Phase::kBackward) &&
           node.rate == (graph_.times() > 1 ? Rate::kEachAct : Rate::kOnce);
  }
  bool IsProduct(int n) const {
    const Node& node = graph_.node(n);
    return Works(n) && node.in.size() == 2 && node.in[0] != node.in[1] && node.out.size() == 1 &&
           graph_.CategoryOf(node) == "matmul";
  }

  // The one entry in which two signatures differ; -1: none or several.
  int Difference(const NdSbp& from, const NdSbp& to) const {
    int entry = -1;
    for (size_t e = 0; e < from.size(); ++e) {
      if (from[e] == to[e]) continue;
      if (entry >= 0) return -1;
      entry = static_cast<int>(e);
    }
    return entry;
  }

  // The axis, if it is whole but for at most one even cut.
  std::optional<ChunkAxis> AxisOf(const Dims& shape, const NdSbp& sbp, int axis) const {
    ChunkAxis rows{axis, 1};
    for (size_t e = 0; e < sbp.size(); ++e) {
      if (!sbp[e].is_split()) continue;
      if (shape[sbp[e].axis] == 1) return std::nullopt;
      if (sbp[e].axis != axis) continue;
      if (rows.pieces > 1 || shape[axis] % sizes_[e] != 0) return std::nullopt;
      rows.pieces = sizes_[e];
    }
    if (Plain(shape, sbp, sizes_) != sbp || shape.rank() + 2 > Dims::kMaxRank) return std::nullopt;
    return rows;
  }

  // In how many chunks an axis of a shape can be dealt, at most so many as are asked for.
  int64_t MostChunks(const Dims& shape, const ChunkAxis& rows) const {
    for (int64_t chunks = options_.overlap.chunks; chunks > 1; --chunks)
      if (shape[rows.axis] > 0 && shape[rows.axis] % (rows.pieces * chunks) == 0) return chunks;
    return 1;
  }
  // Of two axes of a shape the one of more chunks, then one that nothing cuts, whose chunks are slices.
  bool Better(const Dims& shape, const ChunkAxis& a, const ChunkAxis& b) const {
    return std::tuple(-MostChunks(shape, a), a.pieces > 1) < std::tuple(-MostChunks(shape, b), b.pieces > 1);
  }

  // The rows of product n that are axis `axis` of its operand `operand`, or of its result (-1).
  std::optional<ProductRows> RowsOf(int n, int operand, int axis) {
    const BoundRule& rule = graph_.RuleOf(n);
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

  using Reading = std::vector<std::pair<int, int>>;  // nodes, and which of their operands

  void FindPlans(int v) {
    const Value& value = graph_.value(v);
    if (!of_batch_[value.producer] || value.sbp[0].is_partial()) return;
    std::map<NdSbp, Reading> reads;
    for (int r : readers_[v]) {
      const Node& reader = graph_.node(r);
      if (reader.slice != graph_.producer(v).slice || !Works(r)) continue;
      for (size_t i = 0; i < reader.in.size(); ++i)
        if (reader.in[i] == v) reads[reader.want[i]].push_back({r, static_cast<int>(i)});
    }
    bool taken = false;
    for (const auto& [want, of] : reads)
      if (std::optional<ChunkPlan> plan = GatherOf(v, want, of)) taken |= Choose(&*plan);
    if (taken) return;
    if (std::optional<ChunkPlan> plan = SumOf(v)) Choose(&*plan);
  }

  // Where products read v whole: gathered, or combined. Rows are those that are gathered, or else such as
  // most products keep.
  std::optional<ChunkPlan> GatherOf(int v, const NdSbp& want, const Reading& reads) {
    const Value& value = graph_.value(v);
    ChunkPlan plan{.gather = true, .value = v, .want = want, .entry = Difference(value.sbp, want)};
    if (plan.entry <= 0 || !want[plan.entry].is_broadcast()) return std::nullopt;
    const Sbp& from = value.sbp[plan.entry];
    for (int a = 0; a < value.shape.rank(); ++a) {
      const std::optional<ChunkAxis> axis = AxisOf(value.shape, value.sbp, a);
      if (!axis || (from.is_split() ? from.axis != a : from != P())) continue;
      std::vector<ChunkedProduct> products;
      Reading others;
      for (auto [r, i] : reads) {
        const std::optional<ProductRows> rows = IsProduct(r) ? RowsOf(r, i, a) : std::nullopt;
        if (rows && rows->in[1 - i] < 0 && !used_.count(r))
          products.push_back({r, *rows});
        else
          others.push_back({r, i});
      }
      if (products.empty() || products.size() < plan.products.size() ||
          (products.size() == plan.products.size() && !Better(value.shape, *axis, plan.rows)))
        continue;
      plan.rows = *axis;
      plan.products = std::move(products);
      plan.others = std::move(others);
    }
    if (plan.products.empty()) return std::nullopt;
    if (from.is_partial()) FindBehind(ProductsBefore(v), &plan);
    return plan;
  }

  // Products of the backward pass whose results lead to v by way of light nodes alone.
  std::vector<int> ProductsBefore(int v) const {
    std::vector<int> products, todo = {graph_.value(v).producer};
    std::set<int> seen;
    while (!todo.empty()) {
      const int n = todo.back();
      todo.pop_back();
      if (!Works(n) || graph_.node(n).phase != Phase::kBackward || !seen.insert(n).second) continue;
      if (IsProduct(n)) products.push_back(n);
      if (graph_.IsHeavy(n)) continue;
      for (int in : graph_.node(n).in) todo.push_back(graph_.value(in).producer);
    }
    return products;
  }

  // Where v is partial and all its readers want it combined alike: what it is the sum of, if that is
  // products.
  std::optional<ChunkPlan> SumOf(int v) {
    const Value& value = graph_.value(v);
    ChunkPlan plan{.value = v};
    for (int r : readers_[v]) {
      const Node& reader = graph_.node(r);
      if (!Works(r) || reader.slice != graph_.producer(v).slice) return std::nullopt;
      for (size_t i = 0; i < reader.in.size(); ++i) {
        if (reader.in[i] != v) continue;
        if (plan.want.empty()) plan.want = reader.want[i];
        if (plan.want != reader.want[i]) return std::nullopt;
      }
    }
    plan.entry = plan.want.empty() ? -1 : Difference(value.sbp, plan.want);
    std::vector<int> products;
    if (plan.entry <= 0 || value.sbp[plan.entry] != P() || plan.want[plan.entry].is_partial() ||
        !AddTerms(v, plan, &products, &plan.sums) || !FindRows(products, &plan))
      return std::nullopt;
    for (int n : products) plan.products.push_back({n, *RowsOf(n, -1, plan.rows.axis)});
    if (graph_.node(products[0]).phase == Phase::kBackward) FindBehind(products, &plan);
    return plan;
  }

  // Adds the products that v is the sum of, and the sums in between, which nobody else reads: elementwise
  // operators that make partial sums of partial sums.
  bool AddTerms(int v, const ChunkPlan& plan, std::vector<int>* products, std::vector<int>* sums) const {
    const int n = graph_.value(v).producer;
    const Node& node = graph_.node(n);
    if (used_.count(n) || node.slice != graph_.producer(plan.value).slice) return false;
    if (IsProduct(n)) {
      for (size_t i = 0; i < node.in.size(); ++i)  // one message is enough
        if (of_batch_[graph_.value(node.in[i]).producer] && graph_.value(node.in[i]).sbp != node.want[i])
          return false;
      products->push_back(n);
      return true;
    }
    const OpDef* def = graph_.catalog().Find(node.op);
    if (!Works(n) || !def || def->scalar.empty() || def->random) return false;
    for (size_t i = 0; i < node.in.size(); ++i) {
      const Value& term = graph_.value(node.in[i]);
      if (!(term.shape == graph_.value(v).shape) || term.sbp != node.want[i] || term.sbp[plan.entry] != P() ||
          readers_[node.in[i]].size() != 1 || !AddTerms(node.in[i], plan, products, sums))
        return false;
    }
    sums->push_back(n);
    return true;
  }

  // The rows to chunk: those that a reduce-scatter deals, or, of an all-reduce, the axis that suits best.
  bool FindRows(const std::vector<int>& products, ChunkPlan* plan) {
    const Value& value = graph_.value(plan->value);
    const Sbp& to = plan->want[plan->entry];
    plan->rows.axis = -1;
    for (int a = 0; a < value.shape.rank(); ++a) {
      if (to.is_split() && to.axis != a) continue;
      const std::optional<ChunkAxis> rows = AxisOf(value.shape, plan->want, a);
      if (!rows || !AxisOf(value.shape, value.sbp, a)) continue;
      if ((plan->rows.axis < 0 || Better(value.shape, *rows, plan->rows)) &&
          std::all_of(products.begin(), products.end(), [&](int n) { return FromChunks(n, a, *rows); }))
        plan->rows = *rows;
    }
    return plan->rows.axis >= 0;
  }

  // Whether chunks of axis a of product n's result come from chunks of its operands.
  bool FromChunks(int n, int a, const ChunkAxis& rows) {
    const std::optional<ProductRows> of = RowsOf(n, -1, a);
    if (!of) return false;
    const Node& node = graph_.node(n);
    bool any = false;
    for (size_t i = 0; i < node.in.size(); ++i) {
      if (of->in[i] < 0) continue;
      const std::optional<ChunkAxis> in = AxisOf(graph_.value(node.in[i]).shape, node.want[i], of->in[i]);
      if (!in || (in->pieces != 1 && in->pieces != rows.pieces)) return false;
      any = true;
    }
    return any;
  }

  // Gradients of weights that could be computed while sums of these products are on their way.
  void FindBehind(const std::vector<int>& products, ChunkPlan* plan) const {
    std::set<int> operands;
    for (int n : products) operands.insert(graph_.node(n).in.begin(), graph_.node(n).in.end());
    for (int v : operands)
      for (int r : readers_[v]) {
        const Node& node = graph_.node(r);
        if (!graph_.IsHeavy(r) || node.phase != Phase::kBackward || used_.count(r) ||
            node.slice != graph_.producer(plan->value).slice ||
            std::find(plan->behind.begin(), plan->behind.end(), r) != plan->behind.end())
          continue;
        const bool for_updates = std::all_of(node.out.begin(), node.out.end(), [&](int out) {
          return std::all_of(readers_[out].begin(), readers_[out].end(),
                             [&](int next) { return graph_.node(next).phase == Phase::kUpdate; });
        });
        if (for_updates) plan->behind.push_back(r);
      }
  }

  // --- The estimate ---

  double Bytes(int v, const NdSbp& sbp) const {
    const Value& value = graph_.value(v);
    return static_cast<double>(
               LocalBox(value.shape, sbp, sizes_, std::vector<int>(sizes_.size(), 0)).elements()) *
           static_cast<double>(SizeOf(value.dtype));
  }

  // Reading and writing so many bytes, with `kernels` kernels.
  double CopySeconds(double bytes, int64_t kernels) const {
    return 2 * bytes / options_.machine.topology.memory_bandwidth +
           static_cast<double>(kernels) * options_.machine.overhead;
  }

  // Of the message of one of `chunks`, in one act.
  double MessageSeconds(const ChunkPlan& plan, int64_t chunks) const {
    const Value& value = graph_.value(plan.value);
    Dims shape = value.shape;
    shape[plan.rows.axis] /= chunks;
    const Node& producer = graph_.producer(plan.value);
    return CostOfBoxing(graph_.mesh(), graph_.times(), shape, static_cast<int64_t>(SizeOf(value.dtype)),
                        {producer.slice, value.sbp}, {producer.slice, plan.want}, options_.machine.topology)
               .seconds /
           ActsOf(graph_, graph_.node(plan.products[0].node));
  }

  // Of product n on one of `chunks` of its rows; operands that have none are read whole.
  double ProductSeconds(int n, const ProductRows& rows, int64_t chunks) {
    const Node& node = graph_.node(n);
    Work work = cost_.WorkAt(n, std::vector<int>(sizes_.size(), 0));
    const double parts = static_cast<double>(chunks);
    work.flops /= parts;
    work.bytes = work.largest = 0;
    auto touch = [&](int v, const NdSbp& sbp, double of) {
      const double bytes = Bytes(v, sbp) / of;
      work.bytes += bytes;
      work.largest = std::max(work.largest, bytes / static_cast<double>(SizeOf(graph_.value(v).dtype)));
    };
    touch(node.out[0], graph_.value(node.out[0]).sbp, parts);
    for (size_t i = 0; i < node.in.size(); ++i) touch(node.in[i], node.want[i], rows.in[i] < 0 ? 1 : parts);
    return SecondsOf(options_.machine, work, RateType(graph_, node)) + options_.machine.overhead;
  }

  // An act in so many chunks, and without.
  double SecondsOfPlan(const ChunkPlan& plan, int64_t chunks) {
    double product = 0, copies = 0, behind = 0;
    const double message = MessageSeconds(plan, chunks), parts = static_cast<double>(chunks);
    for (const auto& [n, rows] : plan.products) {
      product += ProductSeconds(n, rows, chunks);
      if (plan.gather) copies += CopySeconds(Bytes(graph_.node(n).out[0], SbpOf(n)), 1);
      for (size_t i = 0; i < rows.in.size() && !plan.gather; ++i)
        if (rows.in[i] >= 0)
          copies += CopySeconds(Bytes(graph_.node(n).in[i], graph_.node(n).want[i]), chunks);
    }
    for (int n : plan.behind) behind += cost_.Seconds(n);
    if (plan.gather) {
      copies += CopySeconds(Bytes(plan.value, graph_.value(plan.value).sbp), chunks);
      if (!plan.others.empty()) copies += CopySeconds(Bytes(plan.value, plan.want), 1);
    } else {
      copies += CopySeconds(Bytes(plan.value, plan.want), 1);
    }
    if (chunks == 1) return product + std::max(message, behind);
    const double line = product + (parts - 1) * std::max(product, message) + message;
    return copies + std::max(line, parts * product + behind);
  }
  const NdSbp& SbpOf(int n) const { return graph_.value(graph_.node(n).out[0]).sbp; }

  // As many chunks as are best, if any gain enough.
  bool Choose(ChunkPlan* plan) {
    const Dims shape = graph_.value(plan->value).shape;
    for (int n : plan->behind) plan->before += cost_.Seconds(n);
    plan->before += MessageSeconds(*plan, 1);
    for (const auto& [n, rows] : plan->products) plan->before += ProductSeconds(n, rows, 1);
    const bool always = options_.overlap.always;
    double least = plan->before * (1 - options_.overlap.gain);
    bool taken = false;
    const int64_t most = MostChunks(shape, plan->rows);
    for (int64_t chunks = plan->behind.empty() ? 2 : 1; chunks <= most; ++chunks) {
      if (shape[plan->rows.axis] % (plan->rows.pieces * chunks) != 0) continue;
      const double seconds = SecondsOfPlan(*plan, chunks);
      if (seconds > least && !always) continue;
      least = plan->after = seconds;
      plan->chunks = chunks;
      taken = true;
    }
    if (!taken) return false;
    for (const ChunkedProduct& product : plan->products) used_.insert(product.node);
    used_.insert(plan->sums.begin(), plan->sums.end());
    used_.insert(plan->behind.begin(), plan->behind.end());
    plans_.push_back(*plan);
    return true;
  }

  const Graph& graph_;
  const CompileOptions& options_;
  const std::vector<std::vector<int>> readers_;  // by value
  const std::vector<int> sizes_;
  CostModel cost_;
  std::vector<bool> of_batch_;  // by node
  std::set<int> used_;          // nodes of a plan
  std::vector<ChunkPlan> plans_;
};

}  // namespace

std::vector<ChunkPlan> FindChunkPlans(const Graph& graph, const CompileOptions& options) {
  return ChunkFinder(graph, options).Find();
}

}  // namespace oneflow_like
