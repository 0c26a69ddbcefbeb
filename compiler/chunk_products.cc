// Products beside their collectives.
// Needs: signatures. Leaves, where that is estimated to save time, in chunks of rows
//   - products that read an operand gathered, or combined by an all-reduce: a chunk of it is on its way while
//     another is multiplied;
//   - products whose partial sums are combined (reduce-scatter or all-reduce): a chunk is combined while
//     another is multiplied;
// and gradients of weights, for which only updates wait, while sums are on their way of products that read
// the same operands.
//
// All of it is in existing operators with their signatures; boxing is inserted afterwards, chunk by chunk. A
// row axis of n elements that t ranks cut is seen as [t, C, n / (t C)]: chunk c has its part of every rank's
// rows, so it lies as the whole did, and joined results have their rows in the old order. Every row's product
// is what it was, and so are sums over ranks: no bit changes, if kernels compute each row alike.
//
// Each chunk's product, and each gradient that is put behind, has a number (Node::part), by which
// form_segments keeps it a segment of its own: in one segment the first would wait for the last one's
// message.
//
// Two resources work in turn, c seconds of products and g of messages; in C chunks they take
// c/C + g/C + (C - 1) max(c/C, g/C), with the latency of each message and the copies that chunks cost.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "compiler/explain.h"
#include "compiler/passes.h"

namespace oneflow_like {

namespace {

// An axis that is dealt in chunks, of a value that `pieces` ranks cut along it.
struct ChunkAxis {
  int axis = -1;
  int64_t pieces = 1;
};

// The rows of a product: the axis of its result, and of the operands that have it.
struct ProductRows {
  int out = -1;
  std::vector<int> in;  // by operand; -1: it has none
};

// Products to be made in chunks beside a message, and gradients to be computed meanwhile.
struct ChunkPlan {
  bool gather = false;
  int value = -1;             // that is gathered, or combined
  NdSbp want;                 // as it is read
  int entry = -1;             // of the signature, that changes
  ChunkAxis rows;             // of `value`
  std::vector<int> products;  // of a gather those that read it; else those that sum up to it
  std::vector<int> sums;      // of products, in order
  std::vector<int> behind;    // gradients of weights
  int64_t chunks = 1;
  double before = 0, after = 0;  // estimated seconds of an act
};

class Chunker {
 public:
  Chunker(Graph* graph, const CompileOptions& options)
      : graph_(*graph),
        options_(options),
        order_(graph->Order()),
        readers_(graph->Readers()),
        sizes_(graph->Sizes()),
        cost_(*graph, options.machine),
        rules_(*graph) {}

  void Run() {
    FindOfBatch();
    place_.resize(graph_.num_nodes());
    for (size_t i = 0; i < order_.size(); ++i) place_[order_[i]] = {static_cast<int>(i), 0};
    std::vector<ChunkPlan> plans;
    for (int n : order_)
      for (int v : graph_.node(n).out) FindPlans(v, &plans);
    for (const ChunkPlan& plan : plans)
      if (plan.gather)
        Gathered(plan);
      else
        Combined(plan);
    if (!plans.empty()) Renumber();
  }

 private:
  // --- Candidates ---

  // What a micro-batch's data leads to: not weights, nor what is made of them alone.
  void FindOfBatch() {
    of_batch_.assign(graph_.num_nodes(), false);
    for (int n : order_) {
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
    return (node.op == "matmul" || node.op == "einsum") && Works(n) && node.in[0] != node.in[1];
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
    const BoundRule& rule = rules_.Of(n);
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

  void FindPlans(int v, std::vector<ChunkPlan>* plans) {
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
      if (std::optional<ChunkPlan> plan = GatherOf(v, want, of)) taken |= Choose(&*plan, plans);
    if (taken) return;
    if (std::optional<ChunkPlan> plan = SumOf(v)) Choose(&*plan, plans);
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
      std::vector<int> products;
      for (auto [r, i] : reads) {
        const std::optional<ProductRows> rows = IsProduct(r) ? RowsOf(r, i, a) : std::nullopt;
        if (rows && rows->in[1 - i] < 0 && !used_.count(r)) products.push_back(r);
      }
      if (products.empty() || products.size() < plan.products.size() ||
          (products.size() == plan.products.size() && !Better(value.shape, *axis, plan.rows)))
        continue;
      plan.rows = *axis;
      plan.products = std::move(products);
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
    if (plan.entry <= 0 || value.sbp[plan.entry] != P() || plan.want[plan.entry].is_partial() ||
        !AddTerms(v, plan.entry, &plan) || !FindRows(&plan))
      return std::nullopt;
    if (graph_.node(plan.products[0]).phase == Phase::kBackward) FindBehind(plan.products, &plan);
    return plan;
  }

  // Products that v is the sum of, and the sums in between, which nobody else reads.
  bool AddTerms(int v, int entry, ChunkPlan* plan) const {
    const int n = graph_.value(v).producer;
    const Node& node = graph_.node(n);
    if (used_.count(n) || node.slice != graph_.producer(plan->value).slice) return false;
    if (IsProduct(n)) {
      for (size_t i = 0; i < node.in.size(); ++i)  // one message is enough
        if (of_batch_[graph_.value(node.in[i]).producer] && graph_.value(node.in[i]).sbp != node.want[i])
          return false;
      plan->products.push_back(n);
      return true;
    }
    if ((node.op != "add" && node.op != "add_n") || !Works(n)) return false;
    for (size_t i = 0; i < node.in.size(); ++i) {
      const Value& term = graph_.value(node.in[i]);
      if (!(term.shape == graph_.value(v).shape) || term.sbp != node.want[i] || term.sbp[entry] != P() ||
          readers_[node.in[i]].size() != 1 || !AddTerms(node.in[i], entry, plan))
        return false;
    }
    plan->sums.push_back(n);
    return true;
  }

  // The rows to chunk: those that a reduce-scatter deals, or, of an all-reduce, the axis that suits best.
  bool FindRows(ChunkPlan* plan) {
    const Value& value = graph_.value(plan->value);
    const Sbp& to = plan->want[plan->entry];
    plan->rows.axis = -1;
    for (int a = 0; a < value.shape.rank(); ++a) {
      if (to.is_split() && to.axis != a) continue;
      const std::optional<ChunkAxis> rows = AxisOf(value.shape, plan->want, a);
      if (!rows || !AxisOf(value.shape, value.sbp, a)) continue;
      if ((plan->rows.axis < 0 || Better(value.shape, *rows, plan->rows)) &&
          std::all_of(plan->products.begin(), plan->products.end(),
                      [&](int n) { return FromChunks(n, a, *rows); }))
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
           ActsOf(graph_, graph_.node(plan.products[0]));
  }

  // Of product n on one of `chunks` of its rows; operands that have none are read whole.
  double ProductSeconds(int n, const ProductRows& rows, int64_t chunks) {
    const Node& node = graph_.node(n);
    Work work = cost_.WorkAt(n, std::vector<int>(sizes_.size(), 0));
    const double parts = static_cast<double>(chunks);
    double bytes = Bytes(node.out[0], graph_.value(node.out[0]).sbp) / parts;
    for (size_t i = 0; i < node.in.size(); ++i)
      bytes += Bytes(node.in[i], node.want[i]) / (rows.in[i] < 0 ? 1 : parts);
    work.flops /= parts;
    work.bytes = bytes;
    return SecondsOf(options_.machine, work, RateType(graph_, node)) + options_.machine.overhead;
  }

  ProductRows RowsIn(const ChunkPlan& plan, int n) {
    if (!plan.gather) return *RowsOf(n, -1, plan.rows.axis);
    const Node& node = graph_.node(n);
    return *RowsOf(n, node.in[0] == plan.value && node.want[0] == plan.want ? 0 : 1, plan.rows.axis);
  }

  // An act in so many chunks, and without.
  double SecondsOfPlan(const ChunkPlan& plan, int64_t chunks) {
    double product = 0, copies = 0, behind = 0;
    const double message = MessageSeconds(plan, chunks), parts = static_cast<double>(chunks);
    for (int n : plan.products) {
      const ProductRows rows = RowsIn(plan, n);
      product += ProductSeconds(n, rows, chunks);
      if (plan.gather) copies += CopySeconds(Bytes(graph_.node(n).out[0], SbpOf(n)), 1);
      for (size_t i = 0; i < rows.in.size() && !plan.gather; ++i)
        if (rows.in[i] >= 0)
          copies += CopySeconds(Bytes(graph_.node(n).in[i], graph_.node(n).want[i]), chunks);
    }
    for (int n : plan.behind) behind += cost_.Seconds(n);
    if (plan.gather) {
      copies += CopySeconds(Bytes(plan.value, graph_.value(plan.value).sbp), chunks);
      if (OthersRead(plan)) copies += CopySeconds(Bytes(plan.value, plan.want), 1);
    } else {
      copies += CopySeconds(Bytes(plan.value, plan.want), 1);
    }
    if (chunks == 1) return product + std::max(message, behind);
    const double line = product + (parts - 1) * std::max(product, message) + message;
    return copies + std::max(line, parts * product + behind);
  }
  const NdSbp& SbpOf(int n) const { return graph_.value(graph_.node(n).out[0]).sbp; }

  bool OthersRead(const ChunkPlan& plan) const {
    for (int r : readers_[plan.value])
      for (size_t i = 0; i < graph_.node(r).in.size(); ++i)
        if (ReadsGathered(plan, r, i) &&
            std::find(plan.products.begin(), plan.products.end(), r) == plan.products.end())
          return true;
    return false;
  }
  bool ReadsGathered(const ChunkPlan& plan, int r, size_t i) const {
    const Node& reader = graph_.node(r);
    return reader.in[i] == plan.value && reader.want[i] == plan.want &&
           reader.slice == graph_.producer(plan.value).slice && Works(r);
  }

  // As many chunks as are best, if any gain enough.
  bool Choose(ChunkPlan* plan, std::vector<ChunkPlan>* plans) {
    const Dims shape = graph_.value(plan->value).shape;
    for (int n : plan->behind) plan->before += cost_.Seconds(n);
    plan->before += MessageSeconds(*plan, 1);
    for (int n : plan->products) plan->before += ProductSeconds(n, RowsIn(*plan, n), 1);
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
    used_.insert(plan->products.begin(), plan->products.end());
    used_.insert(plan->sums.begin(), plan->sums.end());
    used_.insert(plan->behind.begin(), plan->behind.end());
    plans->push_back(*plan);
    return true;
  }

  // --- The graph ---

  // A node like `node` with one result, behind `at` in the order. Signatures here and below are copies: what
  // is a part of the graph moves when the graph grows.
  int Add(Node node, const std::string& name, const Dims& shape, NdSbp sbp, int at) {
    const int like = node.out.empty() ? node.in[0] : node.out[0];
    node.name = graph_.UniqueName(name);
    node.out.clear();
    node.placed = true;
    const Graph::NewValue out{node.name, graph_.value(like).dtype, shape};
    const int id = graph_.AddRaw(std::move(node), {out});
    const int v = graph_.node(id).out[0];
    graph_.value(v).sbp = std::move(sbp);
    graph_.SettleRate(id);
    place_.resize(graph_.num_nodes());
    place_[id] = {place_[at].first, ++placed_};
    return v;
  }

  // An operator on one value, of slice, phase and line of node `of`.
  Node Moving(const char* op, const Attrs& attrs, int v, const NdSbp& want, const Node& of, int part) const {
    Node node;
    node.op = op;
    node.attrs = attrs;
    node.in = {v};
    node.want = {want};
    node.slice = of.slice;
    node.phase = of.phase;
    node.line = of.line;
    node.why = of.why;
    node.part = part;
    return node;
  }

  int View(int v, NdSbp want, const Dims& shape, NdSbp sbp, const Node& of, int part, int at) {
    const std::vector<int64_t> to(shape.begin(), shape.end());
    return Add(Moving("reshape", {{"shape", to}}, v, want, of, part), of.name, shape, sbp, at);
  }

  // The signature of a value whose axis `rows.axis` became three, and the other way round: a cut of it is one
  // of the first of the three, which in the merged axis has grains of `grain`.
  NdSbp Apart(NdSbp sbp, const ChunkAxis& rows) const {
    for (Sbp& s : sbp) {
      if (s.is_split() && s.axis == rows.axis) s = S(rows.axis);
      if (s.is_split() && s.axis > rows.axis) s.axis += 2;
    }
    return sbp;
  }
  NdSbp InGrains(NdSbp sbp, const ChunkAxis& rows, const Dims& shape) const {
    for (size_t e = 0; e < sbp.size(); ++e)
      if (sbp[e].is_split() && sbp[e].axis == rows.axis)
        sbp[e] = Canonical(S(rows.axis, shape[rows.axis] / rows.pieces), shape,
                           e == 0 ? graph_.times() : graph_.Parts());
    return sbp;
  }
  // [.., pieces, second, third, ..]
  static Dims Three(const Dims& shape, const ChunkAxis& rows, int64_t second, int64_t third) {
    Dims three;
    for (int a = 0; a < shape.rank(); ++a) {
      if (a != rows.axis) {
        three.push_back(shape[a]);
        continue;
      }
      for (int64_t extent : {rows.pieces, second, third}) three.push_back(extent);
    }
    return three;
  }

  // Chunk c of v as `want` has it, for `of`.
  int ChunkOf(int v, NdSbp want, const ChunkAxis& rows, int64_t chunks, int64_t c, const Node& of, int part,
              int at) {
    const Dims whole = graph_.value(v).shape;
    Dims chunk = whole;
    chunk[rows.axis] /= chunks;
    if (rows.pieces == 1) {
      const Attrs range = {
          {"axis", int64_t{rows.axis}}, {"begin", c * chunk[rows.axis]}, {"end", (c + 1) * chunk[rows.axis]}};
      return Add(Moving("slice", range, v, want, of, part), of.name, chunk, want, at);
    }
    const int64_t each = chunk[rows.axis] / rows.pieces;
    const NdSbp apart = Apart(want, rows);
    int piece = View(v, InGrains(want, rows, whole), Three(whole, rows, chunks, each), apart, of, part, at);
    const Attrs range = {{"axis", int64_t{rows.axis + 1}}, {"begin", c}, {"end", c + 1}};
    piece =
        Add(Moving("slice", range, piece, apart, of, part), of.name, Three(whole, rows, 1, each), apart, at);
    return View(piece, apart, chunk, InGrains(want, rows, chunk), of, part, at);
  }

  // Makes v, of this shape, of its chunks as `want` has them.
  void Join(const std::vector<int>& chunks, NdSbp want, const ChunkAxis& rows, int v, const Node& of,
            int at) {
    const Dims whole = graph_.value(v).shape, chunk = graph_.value(chunks[0]).shape;
    Node join = Moving("concat", {{"axis", int64_t{rows.axis + (rows.pieces > 1)}}}, chunks[0], want, of, -1);
    join.in.clear();
    join.want.clear();
    const int64_t each = chunk[rows.axis] / rows.pieces, count = static_cast<int64_t>(chunks.size());
    const NdSbp apart = rows.pieces > 1 ? Apart(want, rows) : want;
    for (int c : chunks) {
      join.in.push_back(rows.pieces == 1 ? c
                                         : View(c, InGrains(want, rows, chunk), Three(chunk, rows, 1, each),
                                                apart, of, -1, at));
      join.want.push_back(apart);
    }
    const Dims three = Three(whole, rows, count, each);
    int last = Add(join, of.name, rows.pieces == 1 ? whole : three, apart, at);
    NdSbp sbp = want;
    if (rows.pieces > 1) {
      sbp = InGrains(want, rows, whole);
      last = View(last, apart, whole, sbp, of, -1, at);
    }
    Become(v, last, sbp);
  }

  // Who reads v reads it of the node that makes `made`.
  void Become(int v, int made, NdSbp sbp) {
    const int n = graph_.value(made).producer;
    graph_.node(n).out[0] = v;
    graph_.value(v).producer = n;
    graph_.value(v).output = 0;
    graph_.value(v).sbp = sbp;
  }

  // "the gather of 'x' over tp: 3 ms for 4 ms by estimate"
  std::string MessageText(const ChunkPlan& plan) const {
    return Cat(plan.gather ? "the gather" : "the sum", " of '", graph_.value(plan.value).name, "' over ",
               graph_.mesh().axis_name(plan.entry - 1), ": ", 1e3 * plan.after, " ms for ", 1e3 * plan.before,
               " ms by estimate");
  }
  std::string WhyOf(const ChunkPlan& plan, int64_t c) const {
    return Cat(kInChunks, c + 1, " of ", plan.chunks, ", beside ", MessageText(plan));
  }

  // Product n on a chunk: operands that have its rows in chunks; its result.
  int ProductOf(const ChunkPlan& plan, int n, const ProductRows& rows, const std::vector<int>& in, int64_t c,
                int part) {
    Node node = graph_.node(n);
    node.in = in;
    node.part = part;
    node.why = WhyOf(plan, c);
    const Value& out = graph_.value(node.out[0]);
    Dims shape = out.shape;
    shape[rows.out] /= plan.chunks;
    const NdSbp sbp = out.sbp;
    return Add(std::move(node), graph_.node(n).name, shape, sbp, n);
  }

  // Gradients of weights as segments apart, behind node `at`.
  void PutBehind(const ChunkPlan& plan, int at) {
    for (int n : plan.behind) {
      Node& node = graph_.node(n);
      node.part = parts_++;
      node.why =
          Cat(kPutBehind, graph_.Describe(graph_.value(plan.value).producer), ", beside ", MessageText(plan));
      place_[n] = {place_[at].first, ++placed_};
    }
  }

  void Gathered(const ChunkPlan& plan) {
    const int first = plan.products[0];
    PutBehind(plan, graph_.value(plan.value).producer);
    if (plan.chunks == 1) return;
    Node of = graph_.producer(plan.value);
    of.name = graph_.value(plan.value).name;
    of.phase = graph_.node(first).phase;
    of.line = graph_.node(first).line;
    std::map<int, std::vector<int>> results;  // by product
    std::vector<int> pieces;
    for (int64_t c = 0; c < plan.chunks; ++c) {
      of.why = WhyOf(plan, c);
      pieces.push_back(
          ChunkOf(plan.value, graph_.value(plan.value).sbp, plan.rows, plan.chunks, c, of, -1, first));
      const int part = parts_++;
      for (int n : plan.products) {
        std::vector<int> in = graph_.node(n).in;
        in[in[0] == plan.value && graph_.node(n).want[0] == plan.want ? 0 : 1] = pieces.back();
        results[n].push_back(ProductOf(plan, n, RowsIn(plan, n), in, c, part));
      }
    }
    if (OthersRead(plan)) {
      int whole = graph_.AddValue(
          {graph_.UniqueName(of.name), graph_.value(plan.value).dtype, graph_.value(plan.value).shape}, -1,
          0);
      graph_.value(whole).sbp = plan.want;
      const std::vector<int> others = readers_[plan.value];
      of.why = Cat("chunks of '", of.name, "' together");
      Join(pieces, plan.want, plan.rows, whole, of, first);
      for (int r : others)
        for (size_t i = 0; graph_.alive(r) && i < graph_.node(r).in.size(); ++i)
          if (ReadsGathered(plan, r, i) && results.count(r) == 0) graph_.node(r).in[i] = whole;
    }
    for (int n : plan.products) {
      const Node old = graph_.node(n);
      const ChunkAxis rows{RowsIn(plan, n).out, plan.rows.pieces};
      Node join = old;
      join.why = Cat("chunks of '", old.name, "' together");
      graph_.Remove(n);
      Join(results[n], graph_.value(old.out[0]).sbp, rows, old.out[0], join, n);
    }
  }

  void Combined(const ChunkPlan& plan) {
    const int last = graph_.value(plan.value).producer;
    if (plan.chunks == 1) {
      for (const auto* nodes : {&plan.products, &plan.sums})
        for (int n : *nodes) graph_.node(n).part = parts_;
      ++parts_;
      PutBehind(plan, last);
      return;
    }
    std::vector<int> results;
    for (int64_t c = 0; c < plan.chunks; ++c) results.push_back(ChunkOfSum(plan, c, parts_++));
    PutBehind(plan, last);
    Node join = graph_.node(last);
    join.why = Cat("chunks of '", join.name, "' together");
    for (const auto* nodes : {&plan.products, &plan.sums})
      for (int n : *nodes) graph_.Remove(n);
    Join(results, plan.want, plan.rows, plan.value, join, last);
  }

  int ChunkOfSum(const ChunkPlan& plan, int64_t c, int part) {
    std::map<int, int> made;                              // by value
    std::map<std::tuple<int, NdSbp, int>, int> chunk_of;  // of an operand: value, signature, axis
    for (int n : plan.products) {
      Node node = graph_.node(n);
      const ProductRows rows = RowsIn(plan, n);
      std::vector<int> in = node.in;
      node.why = WhyOf(plan, c);
      for (size_t i = 0; i < in.size(); ++i) {
        if (rows.in[i] < 0) continue;
        auto [it, fresh] = chunk_of.try_emplace({in[i], node.want[i], rows.in[i]}, -1);
        const ChunkAxis axis{rows.in[i], plan.rows.pieces};
        if (fresh) it->second = ChunkOf(in[i], node.want[i], axis, plan.chunks, c, node, part, n);
        in[i] = it->second;
      }
      made[node.out[0]] = ProductOf(plan, n, rows, in, c, part);
    }
    for (int n : plan.sums) {
      Node node = graph_.node(n);
      for (int& v : node.in) v = made.at(v);
      node.part = part;
      node.why = WhyOf(plan, c);
      const Value& out = graph_.value(node.out[0]);
      Dims shape = out.shape;
      shape[plan.rows.axis] /= plan.chunks;
      const NdSbp sbp = out.sbp;
      const int of = node.out[0];
      made[of] = Add(std::move(node), graph_.node(n).name, shape, sbp, n);
    }
    return made.at(plan.value);
  }

  // What is new stands where that stood which it replaces.
  void Renumber() {
    std::vector<int> order;
    for (int n = 0; n < graph_.num_nodes(); ++n)
      if (graph_.alive(n)) order.push_back(n);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return place_[a] < place_[b]; });
    graph_.Renumber(order);
  }

  Graph& graph_;
  const CompileOptions& options_;
  const std::vector<int> order_;
  const std::vector<std::vector<int>> readers_;  // by value, before anything changed
  const std::vector<int> sizes_;
  CostModel cost_;
  RuleCache rules_;
  std::vector<bool> of_batch_;              // by node
  std::set<int> used_;                      // nodes of a plan
  std::vector<std::pair<int, int>> place_;  // by node, in the order that is to be
  int placed_ = 0, parts_ = 0;
};

}  // namespace

void ChunkProducts(Graph* graph, const CompileOptions& options) {
  if (options.overlap.chunks > 1) Chunker(graph, options).Run();
}

}  // namespace oneflow_like
