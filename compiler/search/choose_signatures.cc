// Signatures by cost.
// Needs: nodes on slices; the user's annotations in Node::fixed. Leaves: an NdSbp for every value and for
// every operand of every node. Weights are read as they are annotated, where the reader can; cost chooses
// what that leaves open. Operators whose cheapest signature cuts an expandable axis are replaced by their
// expansion.
//
// Axes are settled one after another, time first. For one axis: a forward sweep gives each node, for each of
// its signatures, the least cost of it and all it depends on, as if the graph were a tree; a backward sweep
// picks; then single nodes are improved with their neighbours fixed until nothing changes, and so are heavy
// nodes together with their gradients where they share operands. Cost is estimated seconds: the node's share
// of its work plus boxing on its edges, a boxing that two readers share counted once.
#include <glog/logging.h>

#include <algorithm>
#include <map>
#include <set>

#include "compiler/search/axis_choices.h"
#include "compiler/search/boxing_prices.h"
#include "ops/tf32.h"

namespace oneflow_like {

namespace {

bool CutsAxis(const Sbp& sbp, int axis) { return sbp.is_split() && sbp.axis == axis; }

// Whether operand i of a node has to be whole where micro-batches bring it in parts. It gets it whole if its
// operator needs all of that axis, and says so (OpDef::whole_batch), or is of the update, or computes a
// gradient: then the operator whose gradient it is had the value whole, and readers took parts of its result.
bool NeedsWhole(const Graph& graph, const BoundRule* rule, const Sbp& from, const Sbp& to, int n, size_t i) {
  if (!from.is_split() || from == to) return false;
  if (!to.is_broadcast() || rule == nullptr || i >= rule->in.size()) return true;
  const OpDef* def = graph.catalog().Find(graph.node(n).op);
  if (graph.node(n).phase == Phase::kForward && !(def && def->whole_batch)) return true;
  const std::vector<std::string>& labels = rule->in[i].axes[from.axis].labels;
  return std::none_of(labels.begin(), labels.end(),
                      [&](const std::string& label) { return rule->notes.whole.count(label) > 0; });
}

// Where values are to lie: gradients that updates read as their variables do in the end.
std::map<int, const FixedSbp*> Laid(const Graph& graph, const std::vector<int>& order) {
  std::map<int, const FixedSbp*> lies;
  for (int n : order) {
    const Node& node = graph.node(n);
    const OpDef* def = graph.catalog().Find(node.op);
    if (node.phase != Phase::kUpdate || !def) continue;
    for (auto [out, in] : def->inplace) {
      const Node& variable = graph.producer(node.in[in]);
      for (int v : node.in)
        if (v != node.in[in] && graph.value(v).shape == graph.value(node.in[in]).shape)
          lies.emplace(v, &variable.fixed);
    }
  }
  return lies;
}

class AxisChooser : AxisChoices {
 public:
  AxisChooser(Graph* graph, const CompileOptions& options, int entry, NodesOfChoice* nodes)
      : AxisChoices(graph, options, entry, nodes, /*open=*/false),
        own_(graph->num_nodes()),
        least_(graph->num_nodes()),
        prices_(*graph, options),
        picked_(graph->num_nodes(), 0),
        cache_(graph->num_values()) {
    if (entry > 0) lies_ = Laid(*graph, order_);
  }

  void Run() {
    for (int n : order_) {
      Enumerate(n);
      for (const Choice& c : choices_[n]) own_[n].push_back(Own(n, c));
      Forward(n);
      if (entry_ == 0) FindVarying(n);
    }
    for (auto it = order_.rbegin(); it != order_.rend(); ++it) picked_[*it] = Best(*it, /*backward=*/true);
    Improve();
    bool changed = false;
    for (int n : order_)
      if (const int gradient = SharesOperandsWith(n); gradient >= 0) changed |= PickTogether(n, gradient);
    if (changed) Improve();
    for (int n : order_) Write(n);
  }

  // Nodes whose choice needs their expansion.
  std::vector<int> Expanded() const {
    std::vector<int> nodes;
    for (int n : order_)
      if (choices_[n][picked_[n]].expanded) nodes.push_back(n);
    return nodes;
  }

 private:
  // One node after another, the others as they are.
  void Improve() {
    for (int sweep = 0; sweep < 6; ++sweep) {
      bool changed = false;
      for (int n : order_) {
        if (choices_[n].size() < 2) continue;
        int best = Best(n, /*backward=*/false);
        changed = changed || best != picked_[n];
        picked_[n] = best;
      }
      if (!changed) break;
    }
  }

  // A heavy node after n that reads at least two of its operands, as attention's gradient does; -1: none. A
  // cut that needs other operands is dear for either of them alone, where the other one keeps its own.
  int SharesOperandsWith(int n) const {
    if (entry_ == 0 || !graph_.IsHeavy(n) || choices_[n].size() < 2) return -1;
    const std::vector<int>& in = graph_.node(n).in;
    for (int r : readers_[in[0]]) {
      if (r <= n || !graph_.IsHeavy(r) || choices_[r].size() < 2) continue;
      const std::vector<int>& others = graph_.node(r).in;
      const auto shared = std::count_if(in.begin(), in.end(), [&](int v) {
        return std::find(others.begin(), others.end(), v) != others.end();
      });
      if (shared >= 2) return r;
    }
    return -1;
  }

  // The cheapest pair of choices of two nodes, each pair with the best that light readers of their results
  // make of it; the others as they are. False: they have it.
  bool PickTogether(int a, int b) {
    std::set<int> moved, values;
    for (int n : {a, b})
      for (int v : graph_.node(n).out)
        for (int r : readers_[v])
          if (!graph_.IsHeavy(r)) moved.insert(r);
    moved.insert({a, b});
    for (int n : moved) {
      values.insert(graph_.node(n).in.begin(), graph_.node(n).in.end());
      values.insert(graph_.node(n).out.begin(), graph_.node(n).out.end());
    }
    const auto cost = [&] {
      double sum = 0;
      for (int n : moved) sum += own_[n][picked_[n]];
      for (int v : values) {
        const Value& value = graph_.value(v);
        sum += ToReaders(v, choices_[value.producer][picked_[value.producer]].out[value.output]);
      }
      return sum;
    };
    const auto picks = [&] {
      std::map<int, int> all;
      for (int n : moved) all[n] = picked_[n];
      return all;
    };
    const auto pick = [&](const std::map<int, int>& all) {
      for (auto [n, choice] : all) picked_[n] = choice;
    };
    const std::map<int, int> had = picks();
    std::map<int, int> best = had;
    double least = cost();
    for (size_t i = 0; i < choices_[a].size(); ++i)
      for (size_t j = 0; j < choices_[b].size(); ++j) {
        pick(had);
        picked_[a] = static_cast<int>(i);
        picked_[b] = static_cast<int>(j);
        for (int n : moved)
          if (n != a && n != b) picked_[n] = Best(n, /*backward=*/false);
        if (const double now = cost(); now < least * (1 - 1e-9)) {
          least = now;
          best = picks();
        }
      }
    pick(best);
    return best != had;
  }

  // Whether v may be another in each micro-batch though it is B over time: a variable that is written in each
  // (compiler/passes/micro_batches.cc), a sum over the micro-batch, or what is made of such.
  void FindVarying(int n) {
    const Node& node = graph_.node(n);
    bool varies = (node.kind == NodeKind::kVariable && node.rate == Rate::kRemade) ||
                  (node.kind == NodeKind::kOperator && graph_.catalog().Get(node.op).each_micro_batch);
    for (size_t s = 0; s < choices_[n].size() && !varies; ++s) {
      const Choice& c = choices_[n][s];
      if (least_[n][s] >= kImpossibleCost || c.out.empty() || !c.out[0].is_broadcast()) continue;
      varies = Cuts(c);
      for (size_t i = 0; i < node.in.size(); ++i)
        varies = varies || (c.in[i].is_broadcast() && varying_[node.in[i]]);
    }
    for (int v : node.out) varying_[v] = varies;
  }

  bool NeedsWholeBatch(const Sbp& from, const Sbp& to, int n, size_t i) const {
    return entry_ == 0 && NeedsWhole(graph_, nodes_.rules[n], from, to, n, i);
  }

  // Changing value v from one signature along this axis to what operand i of a node wants.
  double Edge(int v, const Sbp& from, const Sbp& to, int n, size_t i) {
    const Slice &at = graph_.producer(v).slice, &slice = graph_.node(n).slice;
    if (from == to && at == slice) return 0;
    if (NeedsWholeBatch(from, to, n, i)) return kImpossibleCost;
    for (const Cached& c : cache_[v])
      if (c.from == from && c.to == to && *c.slice == slice) return c.cost;
    double cost = entry_ == 0 ? TimeEdge(v, from, to, at == slice) : MeshEdge(v, from, to, slice);
    cache_[v].push_back({from, to, &slice, cost});
    return cost;
  }

  double TimeEdge(int v, const Sbp& from, const Sbp& to, bool same_slice) const {
    double bytes = graph_.value(v).shape.elements() * double(SizeOf(graph_.value(v).dtype));
    const Topology& topology = machine_.topology;
    const Topology::Link& link = topology.Spanning(graph_.mesh().size());
    double send = same_slice ? 0 : bytes / link.bandwidth + link.latency;
    double copy = bytes / topology.memory_bandwidth;
    if (from == to) return from.is_partial() ? send * parts_ : send;
    if (varying_[v] && to.is_partial()) return kImpossibleCost;
    if (!from.is_broadcast() && !to.is_broadcast()) return kImpossibleCost;
    return send + copy * (from.is_partial() || to.is_partial() ? parts_ : 1);
  }

  double MeshEdge(int v, const Sbp& from, const Sbp& to, const Slice& slice) const {
    const Value& value = graph_.value(v);
    Layout a{graph_.producer(v).slice, value.sbp}, b{slice, value.sbp};
    a.sbp[entry_] = from;
    b.sbp[entry_] = to;
    // A cut outside of one that is to come moves that one's intervals.
    if (const auto lies = lies_.find(v); lies != lies_.end())
      for (const auto& [entry, sbp] : *lies->second)
        if (entry > entry_ && sbp.is_split() && (CutsAxis(from, sbp.axis) || CutsAxis(to, sbp.axis)))
          a.sbp[entry] = b.sbp[entry] = sbp;
    // A value that is Partial over time is accumulated before it moves, once per step.
    if (value.sbp[0].is_partial()) a.sbp[0] = b.sbp[0] = B();
    return prices_.Seconds(graph_, v, a, b);
  }

  void Forward(int n) {
    const Node& node = graph_.node(n);
    for (size_t own = 0; own < choices_[n].size(); ++own) {
      const Choice& c = choices_[n][own];
      double cost = own_[n][own];
      for (size_t i = 0; i < node.in.size(); ++i) {
        const Value& v = graph_.value(node.in[i]);
        double least = kImpossibleCost;
        for (size_t s = 0; s < choices_[v.producer].size(); ++s) {
          double before = least_[v.producer][s];
          if (before < kImpossibleCost) before /= std::max<size_t>(1, readers_[node.in[i]].size());
          least = std::min(least,
                           before + Edge(node.in[i], choices_[v.producer][s].out[v.output], c.in[i], n, i));
        }
        cost += least;
      }
      least_[n].push_back(
          std::min(cost, kImpossibleCost));  // what is impossible stays so, however many share it
    }
    if (*std::min_element(least_[n].begin(), least_[n].end()) >= kImpossibleCost) RefuseBatchCut(n);
  }

  // No signature of n can be had from what its operands may be over time.
  [[noreturn]] void RefuseBatchCut(int n) const {
    for (int in : graph_.node(n).in) {
      const Value& v = graph_.value(in);
      for (size_t s = 0; s < choices_[v.producer].size(); ++s) {
        const Sbp& have = choices_[v.producer][s].out[v.output];
        if (least_[v.producer][s] < kImpossibleCost && have.is_split()) RefuseBatchCut(n, v, have);
      }
    }
    Fail(graph_.DescribeForUser(n), ": it needs the whole batch, but ", parts_,
         " micro-batches cut it; use 1 micro-batch, whole_batch(), or an operator that works on parts");
  }
  [[noreturn]] void RefuseBatchCut(int n, const Value& v, const Sbp& have) const {
    Fail(graph_.DescribeForUser(n), ": it needs the whole batch of '", v.name, "', but ", parts_,
         " micro-batches cut it (", have.str(),
         " over time); use 1 micro-batch, whole_batch(), or an operator that works on parts");
  }

  // Boxing from value v, with signature `from`, to all its readers; equal targets once.
  double ToReaders(int v, const Sbp& from) {
    double cost = 0;
    std::vector<std::pair<const Sbp*, const Slice*>> seen;
    for (int r : readers_[v]) {
      const Node& reader = graph_.node(r);
      for (size_t i = 0; i < reader.in.size(); ++i) {
        if (reader.in[i] != v) continue;
        const Sbp& to = choices_[r][picked_[r]].in[i];
        bool known = false;
        for (auto [sbp, slice] : seen) known = known || (*sbp == to && *slice == reader.slice);
        const double seconds = Edge(v, from, to, r, i);
        if (known && seconds < kImpossibleCost) continue;
        seen.push_back({&to, &reader.slice});
        cost += seconds;
      }
    }
    return cost;
  }

  int Best(int n, bool backward) {
    const Node& node = graph_.node(n);
    int best = 0;
    double best_cost = 0;
    for (size_t s = 0; s < choices_[n].size(); ++s) {
      const Choice& c = choices_[n][s];
      double cost = 0;
      if (backward) {
        cost = least_[n][s];
      } else {
        cost = own_[n][s];
        int before = picked_[n];
        picked_[n] = static_cast<int>(s);
        for (size_t i = 0; i < node.in.size(); ++i) {
          bool first = true;
          for (size_t j = 0; j < i; ++j) first = first && node.in[j] != node.in[i];
          const Value& v = graph_.value(node.in[i]);
          if (first) cost += ToReaders(node.in[i], choices_[v.producer][picked_[v.producer]].out[v.output]);
        }
        picked_[n] = before;
      }
      for (size_t o = 0; o < node.out.size(); ++o) cost += ToReaders(node.out[o], c.out[o]);
      if (s == 0 || cost < best_cost * (1 - 1e-9)) {
        best = static_cast<int>(s);
        best_cost = cost;
      }
    }
    return best;
  }

  void Write(int n) {
    Node& node = graph_.node(n);
    const Choice& c = choices_[n][picked_[n]];
    for (size_t i = 0; i < node.in.size(); ++i) {
      const Value& v = graph_.value(node.in[i]);
      const Sbp& have = choices_[v.producer][picked_[v.producer]].out[v.output];
      if (entry_ == 0 && (NeedsWholeBatch(have, c.in[i], n, i) ||
                          TimeEdge(node.in[i], have, c.in[i], true) >= kImpossibleCost))
        RefuseBatchCut(n, v, have);
      node.want[i][entry_] = c.in[i];
    }
    for (size_t o = 0; o < node.out.size(); ++o) graph_.value(node.out[o]).sbp[entry_] = c.out[o];
    if (Cuts(c)) {
      nodes_.pieces[n].Cut(c.in, c.out, parts_, 0);
      nodes_.pieces[n].Keep();
      nodes_.settled[n].push_back(c);
    }
    if (entry_ == 0 && EachAct(c)) nodes_.acts[n] = parts_;
  }

  struct Cached {
    Sbp from, to;
    const Slice* slice;
    double cost;
  };

  std::vector<std::vector<double>> own_, least_;  // seconds by choice: of the node, of all up to it
  const BoxingPrices prices_;
  std::vector<int> picked_;
  std::vector<std::vector<Cached>> cache_;
  std::map<int, const FixedSbp*> lies_;  // Laid
};

const std::string kExpansionOf = "expansion of ";

void Expand(Graph* graph, int id) {
  const Node node = graph->node(id);
  Graph::Origin origin{node.phase, node.line, &node.slice, ""};
  size_t slash = node.name.rfind('/');
  if (slash != std::string::npos) origin.scope = node.name.substr(0, slash + 1);
  std::vector<Tensor> in;
  for (int v : node.in) in.emplace_back(graph, v);
  std::vector<std::vector<int>> readers = graph->Readers();
  int first_new = graph->num_nodes();
  graph->SetOrigin(&origin);
  std::vector<Tensor> out = graph->catalog().Get(node.op).expand(node.attrs, in);
  graph->SetOrigin(nullptr);
  for (int n = first_new; n < graph->num_nodes(); ++n) {
    graph->node(n).placed = node.placed;
    if (node.attrs.Has(kTf32) && graph->catalog().Get(graph->node(n).op).precision == Precision::kNarrow)
      graph->node(n).attrs.Set(kTf32, node.attrs.Int(kTf32));
    graph->node(n).why = kExpansionOf + graph->Describe(id);
  }
  for (size_t o = 0; o < node.out.size(); ++o)
    for (int r : readers[node.out[o]])
      for (int& v : graph->node(r).in)
        if (v == node.out[o]) v = out[o].id();
  graph->Remove(id);
}

// The signatures of a graph that had the same nodes before its expansions.
void TakeSignatures(const Graph& from, Graph* graph) {
  while (graph->num_nodes() < from.num_nodes()) {  // in their order
    const std::string& why = from.node(graph->num_nodes()).why;
    int expanded = 0;
    while (expanded < graph->num_nodes() &&
           !(graph->alive(expanded) && why == kExpansionOf + graph->Describe(expanded)))
      ++expanded;
    CHECK_LT(expanded, graph->num_nodes()) << "signatures of another graph: " << why;
    Expand(graph, expanded);
  }
  CHECK_EQ(graph->num_nodes(), from.num_nodes()) << "signatures of another graph";
  CHECK_EQ(graph->num_values(), from.num_values()) << "signatures of another graph";
  for (int n : graph->Order()) {
    Node& node = graph->node(n);
    CHECK_EQ(node.name, from.node(n).name) << "signatures of another graph";
    node.want = from.node(n).want;
    for (int v : node.out) graph->value(v).sbp = from.value(v).sbp;
  }
  for (int n : graph->Order()) graph->SettleRate(n);
}

}  // namespace

void ChooseOverTime(Graph* graph, const CompileOptions& options, NodesOfChoice* nodes) {
  AxisChooser(graph, options, 0, nodes).Run();
}

void ChooseSignatures(Graph* graph, const CompileOptions& options) {
  MarkWrittenVariables(graph);
  if (options.asked.signed_as) {
    TakeSignatures(*options.asked.signed_as, graph);
    RefuseWritesOfParts(*graph);
    return;
  }
  for (;;) {
    NodesOfChoice nodes(graph);
    std::set<int> expanded;
    for (int entry = 0; entry < 1 + graph->mesh().rank(); ++entry) {
      AxisChooser chooser(graph, options, entry, &nodes);
      chooser.Run();
      for (int n : chooser.Expanded()) expanded.insert(n);
    }
    if (expanded.empty()) {
      for (int n : nodes.order) graph->SettleRate(n);
      RefuseWritesOfParts(*graph);
      return;
    }
    for (int n : expanded) Expand(graph, n);
  }
}

}  // namespace oneflow_like
