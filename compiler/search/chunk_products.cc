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
#include <tuple>

#include "compiler/explain.h"
#include "compiler/passes/passes.h"
#include "compiler/search/chunk_plans.h"

namespace oneflow_like {

namespace {

class ChunkWriter {
 public:
  explicit ChunkWriter(Graph* graph) : graph_(*graph) {
    const std::vector<int> order = graph->Order();
    place_.resize(graph->num_nodes());
    for (size_t i = 0; i < order.size(); ++i) place_[order[i]] = {static_cast<int>(i), 0};
  }

  void Write(const std::vector<ChunkPlan>& plans) {
    for (const ChunkPlan& plan : plans)
      if (plan.gather)
        Gathered(plan);
      else
        Combined(plan);
    if (!plans.empty()) Renumber();
  }

 private:
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
    Node node = NodeLike(of, op);
    node.attrs = attrs;
    node.in = {v};
    node.want = {want};
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

  // Gives v to the node that makes `made`: readers of v read it from there.
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
    const int first = plan.products[0].node;
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
      for (const auto& [n, rows] : plan.products) {
        std::vector<int> in = graph_.node(n).in;
        for (size_t i = 0; i < in.size(); ++i)
          if (rows.in[i] >= 0) in[i] = pieces.back();
        results[n].push_back(ProductOf(plan, n, rows, in, c, part));
      }
    }
    if (!plan.others.empty()) {
      int whole = graph_.AddValue(
          {graph_.UniqueName(of.name), graph_.value(plan.value).dtype, graph_.value(plan.value).shape}, -1,
          0);
      graph_.value(whole).sbp = plan.want;
      of.why = Cat("chunks of '", of.name, "' together");
      Join(pieces, plan.want, plan.rows, whole, of, first);
      for (auto [r, i] : plan.others)
        if (graph_.alive(r)) graph_.node(r).in[i] = whole;
    }
    for (const auto& [n, of_product] : plan.products) {
      const Node old = graph_.node(n);
      const ChunkAxis rows{of_product.out, plan.rows.pieces};
      Node join = old;
      join.why = Cat("chunks of '", old.name, "' together");
      graph_.Remove(n);
      Join(results[n], graph_.value(old.out[0]).sbp, rows, old.out[0], join, n);
    }
  }

  static std::vector<int> NodesOf(const ChunkPlan& plan) {
    std::vector<int> nodes;
    for (const ChunkedProduct& product : plan.products) nodes.push_back(product.node);
    nodes.insert(nodes.end(), plan.sums.begin(), plan.sums.end());
    return nodes;
  }

  void Combined(const ChunkPlan& plan) {
    const int last = graph_.value(plan.value).producer;
    if (plan.chunks == 1) {
      for (int n : NodesOf(plan)) graph_.node(n).part = parts_;
      ++parts_;
      PutBehind(plan, last);
      return;
    }
    std::vector<int> results;
    for (int64_t c = 0; c < plan.chunks; ++c) results.push_back(ChunkOfSum(plan, c, parts_++));
    PutBehind(plan, last);
    Node join = graph_.node(last);
    join.why = Cat("chunks of '", join.name, "' together");
    for (int n : NodesOf(plan)) graph_.Remove(n);
    Join(results, plan.want, plan.rows, plan.value, join, last);
  }

  int ChunkOfSum(const ChunkPlan& plan, int64_t c, int part) {
    std::map<int, int> made;                              // by value
    std::map<std::tuple<int, NdSbp, int>, int> chunk_of;  // of an operand: value, signature, axis
    for (const auto& [n, rows] : plan.products) {
      Node node = graph_.node(n);
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

  // New nodes stand where those stood that they replace.
  void Renumber() {
    std::vector<int> order;
    for (int n = 0; n < graph_.num_nodes(); ++n)
      if (graph_.alive(n)) order.push_back(n);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return place_[a] < place_[b]; });
    graph_.Renumber(order);
  }

  Graph& graph_;
  std::vector<std::pair<int, int>> place_;  // by node, in the order that is to be
  int placed_ = 0, parts_ = 0;
};

}  // namespace

void ChunkProducts(Graph* graph, const CompileOptions& options) {
  if (options.decided.overlap.value_or(Overlap()).chunks > 1)
    ChunkWriter(graph).Write(FindChunkPlans(*graph, options));
}

}  // namespace oneflow_like
