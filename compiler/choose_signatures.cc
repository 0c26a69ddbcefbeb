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
#include <algorithm>
#include <map>

#include "compiler/passes.h"

namespace oneflow_like {

namespace {

constexpr double kImpossible = 1e30;

using Choice = Signature;

enum class Role { kNone, kBatch, kTensor, kContext };

Role RoleOf(const Roles& roles, int axis) {
  if (axis < 0) return Role::kNone;
  return axis == roles.batch     ? Role::kBatch
         : axis == roles.tensor  ? Role::kTensor
         : axis == roles.context ? Role::kContext
                                 : Role::kNone;
}

// How a value is to be read, and what the word counts.
struct Promise {
  Sbp sbp;
  int weight = 1;
};
constexpr int kOfWeight = 1000;

class AxisChooser {
 public:
  // `entry` indexes NdSbp: 0 is time. `pieces[n]`: what settled axes leave of node n's work to the busiest
  // rank in one of its `acts[n]`.
  AxisChooser(Graph* graph, const CompileOptions& options, int entry, const std::vector<int>& order,
              const std::vector<std::vector<int>>& readers, const std::vector<BoundRule>& rules,
              std::vector<LocalWork>* pieces, std::vector<int>* acts,
              std::vector<std::vector<Choice>>* settled)
      : graph_(*graph),
        machine_(options.machine),
        entry_(entry),
        role_(RoleOf(options.roles, entry - 1)),
        parts_(graph->Sizes()[entry]),
        order_(order),
        readers_(readers),
        rules_(rules),
        pieces_(*pieces),
        acts_(*acts),
        settled_(*settled),
        choices_(graph->num_nodes()),
        own_(graph->num_nodes()),
        least_(graph->num_nodes()),
        picked_(graph->num_nodes(), 0),
        promised_(graph->num_values()),
        varying_(graph->num_values(), false),
        cache_(graph->num_values()) {}

  void Run() {
    if (role_ == Role::kTensor) FindHeld();
    for (int n : order_) {
      choices_[n] = ChoicesOf(n);
      KeepPromises(n);
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

  bool Free(int n) const {
    return parts_ > 1 && (entry_ == 0 || graph_.node(n).slice.fixed[entry_ - 1] == Slice::kFree);
  }

  // Of a node that no rule is of: a variable, an input, a fetch.
  std::vector<Choice> ChoicesOfEnd(int n, Choice plain) {
    const Node& node = graph_.node(n);
    if (node.kind != NodeKind::kFetch) {
      const auto fixed = node.fixed.find(entry_);
      if (fixed != node.fixed.end()) plain.out[0] = fixed->second;
      const auto batch = node.fixed.find(0);
      const bool cut_batch =
          role_ == Role::kBatch && node.kind == NodeKind::kInput && batch != node.fixed.end();
      if (fixed == node.fixed.end() && cut_batch) plain.out[0] = batch->second;
      std::vector<Choice> all{plain};
      if (node.kind == NodeKind::kInput && fixed == node.fixed.end() && entry_ > 0 && !cut_batch)
        AddCuts(graph_.value(node.out[0]).shape, &all, false);
      return all;
    }
    std::vector<Choice> all{plain};
    AddCuts(graph_.value(node.in[0]).shape, &all, true);
    const Value& v = graph_.value(node.in[0]);
    for (const Choice& c : choices_[v.producer])  // a merged axis is cut in grains
      if (c.out[v.output].is_split() && c.out[v.output].grain > 1) {
        all.push_back(plain);
        all.back().in[0] = c.out[v.output];
      }
    return all;
  }

  std::vector<Choice> ChoicesOf(int n) {
    const Node& node = graph_.node(n);
    Choice plain;
    plain.in.assign(node.in.size(), B());
    plain.out.assign(node.out.size(), B());
    if (!Free(n)) return {plain};
    if (node.kind == NodeKind::kVariable || node.kind == NodeKind::kInput || node.kind == NodeKind::kFetch)
      return ChoicesOfEnd(n, plain);
    const auto fixed = node.fixed.find(entry_);
    std::vector<std::set<int64_t>> grains(node.in.size());
    for (size_t i = 0; i < node.in.size(); ++i) {
      const Value& v = graph_.value(node.in[i]);
      for (const Choice& c : choices_[v.producer])
        if (c.out[v.output].is_split()) grains[i].insert(c.out[v.output].grain);
    }
    std::vector<Choice> all = SignaturesAlong(graph_, node, rules_[n], entry_, grains);
    const OpDef& def = graph_.catalog().Get(node.op);
    auto illegal = [&](const Choice& c) {
      if (fixed != node.fixed.end() && c.out[0] != fixed->second) return true;
      if (c.expanded && (entry_ == 0 || !def.expand)) return true;
      if (MixesTerms(n, c)) return true;
      for (const Choice& other : settled_[n])
        if (!Compatible(other, c)) return true;
      for (auto [out, in] : def.inplace) {  // an update reads exactly its variable's placement
        auto of = graph_.producer(node.in[in]).fixed.find(entry_);
        Sbp variable = of == graph_.producer(node.in[in]).fixed.end() ? B() : of->second;
        if (c.in[in] != variable || c.out[out] != variable) return true;
      }
      return false;
    };
    std::vector<Choice> legal;
    for (Choice& c : all)
      if (!illegal(c)) legal.push_back(std::move(c));
    if (legal.empty()) {
      std::string text;
      for (const Choice& c : all) text += (text.empty() ? "" : ", ") + c.str();
      Fail(graph_.Describe(n), ": no signature along ", EntryName(), " gives ",
           fixed != node.fixed.end() ? fixed->second.str() : "its variable's placement", "; legal are ",
           text);
    }
    return legal;
  }

  // Whether v may be another in each micro-batch though it is B over time: a variable that is written in each
  // (compiler/micro_batches.cc), a sum over the micro-batch, or what is made of such.
  void FindVarying(int n) {
    const Node& node = graph_.node(n);
    bool varies = node.kind == NodeKind::kVariable && node.rate == Rate::kRemade;
    for (size_t s = 0; s < choices_[n].size() && !varies; ++s) {
      const Choice& c = choices_[n][s];
      if (least_[n][s] >= kImpossible || c.out.empty() || !c.out[0].is_broadcast()) continue;
      varies = Cuts(c);
      for (size_t i = 0; i < node.in.size(); ++i)
        varies = varies || (c.in[i].is_broadcast() && varying_[node.in[i]]);
    }
    for (int v : node.out) varying_[v] = varies;
  }

  // Whether terms of a sum over the batch would meet, before they are added up, what differs between them:
  // the sum of products is not the product of the sum.
  bool MixesTerms(int n, const Choice& c) const {
    const std::vector<int>& in = graph_.node(n).in;
    if (entry_ > 0 || std::none_of(in.begin(), in.end(), [&](int v) { return varying_[v]; })) return false;
    return std::any_of(c.in.begin(), c.in.end(), [](const Sbp& sbp) { return sbp.is_partial(); });
  }

  // A weight is used as it is annotated: along this axis, choices of a node are those that read it so. Where
  // a node has none for the very cut, those that cut the same tensor axis, in other grains, come next; where
  // it has none of either, it gathers. The promise goes on through nodes of one operand (casts, views,
  // transposes) to whoever computes with what they make.
  //
  // Along an axis with a role every cut goes on through every node that can keep it: of the batch or the
  // sequence from the inputs, of tensor parallelism from what weights make of activations and from what is
  // held to a cut. A weight's word counts for more than theirs.
  void KeepPromises(int n) {
    const Node& node = graph_.node(n);
    std::vector<Choice>& choices = choices_[n];
    if (entry_ == 0 || !Free(n)) return;
    if (node.kind == NodeKind::kVariable) {
      auto fixed = node.fixed.find(entry_);
      if (fixed == node.fixed.end() || node.stored.count(entry_)) return;
      promised_[node.out[0]] = {fixed->second, kOfWeight};
      return;
    }
    if (node.kind == NodeKind::kFetch) return;
    if (node.kind == NodeKind::kInput) {
      if (role_ != Role::kNone && choices.size() == 1) promised_[node.out[0]] = {choices[0].out[0], 1};
      return;
    }
    if (role_ == Role::kTensor) KeepWhole(n);
    const int most = KeepMost(n);
    if (most > 0 && node.in.size() == 1)
      promised_[node.out[0]] = {choices[0].out[0], promised_[node.in[0]].weight};
    else if (role_ != Role::kNone)
      for (size_t o = 0; o < node.out.size(); ++o)
        if (std::all_of(choices.begin(), choices.end(),
                        [&](const Choice& c) { return c.out[o] == choices[0].out[o]; }))
          promised_[node.out[o]] = {choices[0].out[o], 1};
  }

  // A cut over tensor-parallel ranks does not go on through a sum over it: cost decides whether partial sums
  // are cheaper than the whole.
  static bool Passes(const Choice& c) {
    return std::any_of(c.out.begin(), c.out.end(), [](const Sbp& sbp) { return sbp.is_split(); });
  }

  // Of a node's choices those that keep most promises of its operands; gives how many they keep.
  int KeepMost(int n) {
    const Node& node = graph_.node(n);
    std::vector<Choice>& choices = choices_[n];
    int most = 0;
    std::vector<int> kept(choices.size(), 0);
    for (size_t s = 0; s < choices.size(); ++s) {
      for (size_t i = 0; i < node.in.size(); ++i) {
        const auto& [promise, weight] = promised_[node.in[i]];
        const Sbp& in = choices[s].in[i];
        if (promise.is_split() && in.is_split() && in.axis == promise.axis &&
            (weight >= kOfWeight || role_ != Role::kTensor || Passes(choices[s])))
          kept[s] += in == promise ? 2 * weight : weight;
      }
      most = std::max(most, kept[s]);
    }
    if (most == 0) return 0;
    size_t left = 0;
    for (size_t s = 0; s < choices.size(); ++s)
      if (kept[s] == most) std::swap(choices[left++], choices[s]);
    choices.resize(left);
    return most;
  }

  // Along an axis of tensor parallelism: what a region gives to others is whole, and so is what no cut weight
  // has to do with, unless something is held to a cut in the region: then cost decides about that.
  void KeepWhole(int n) {
    const Node& node = graph_.node(n);
    if (node.fixed.count(entry_) || node.phase == Phase::kUpdate) return;
    const std::string region = graph_.regions().Of(node.name);
    if (held_.count(region)) return;
    if (LeavesRegion(n, region))
      KeepOnly(&choices_[n], [](const Choice& c) { return c.out[0].is_broadcast(); });
    if (std::none_of(node.in.begin(), node.in.end(), [&](int v) { return promised_[v].sbp.is_split(); }))
      KeepOnly(&choices_[n], [](const Choice& c) {
        auto cut = [](const Sbp& sbp) { return sbp.is_split(); };
        return std::none_of(c.in.begin(), c.in.end(), cut) && std::none_of(c.out.begin(), c.out.end(), cut);
      });
  }

  bool LeavesRegion(int n, const std::string& region) const {
    if (region.empty() || graph_.node(n).phase != Phase::kForward) return false;
    const std::vector<int>& readers = readers_[graph_.node(n).out[0]];
    return std::any_of(readers.begin(), readers.end(), [&](int r) {
      const Node& reader = graph_.node(r);
      return reader.phase == Phase::kForward && graph_.regions().Of(reader.name) != region;
    });
  }

  void FindHeld() {
    for (int n : order_) {
      const Node& node = graph_.node(n);
      if (node.kind == NodeKind::kVariable || node.kind == NodeKind::kInput) continue;
      auto fixed = node.fixed.find(entry_);
      if (fixed != node.fixed.end() && fixed->second.is_split()) held_.insert(graph_.regions().Of(node.name));
    }
  }

  // All, where none is as wanted.
  template <typename Wanted>
  static void KeepOnly(std::vector<Choice>* choices, Wanted wanted) {
    if (std::any_of(choices->begin(), choices->end(), wanted))
      std::erase_if(*choices, [&](const Choice& c) { return !wanted(c); });
  }

  void AddCuts(const Dims& shape, std::vector<Choice>* all, bool in) const {
    for (int a = 0; a < shape.rank(); ++a) {
      Choice c = (*all)[0];
      (in ? c.in : c.out)[0] = S(a);
      all->push_back(c);
    }
  }

  std::string EntryName() const { return entry_ == 0 ? "time" : graph_.mesh().axis_name(entry_ - 1); }

  // Estimated seconds of a step that the node itself takes on the busiest rank.
  double Own(int n, const Choice& c) {
    const Node& node = graph_.node(n);
    if (IsEnd(node)) return 0;
    LocalWork& piece = pieces_[n];
    if (Cuts(c)) piece.Cut(c.in, c.out, parts_, 0);
    double acts = entry_ == 0 && EachAct(c) ? parts_ : acts_[n];
    double seconds = acts * SecondsOf(machine_, piece.work(), RateType(graph_, node));
    if (c.expanded) {  // two all-reduces of what the label is lost from
      const Topology::Link& link = machine_.topology.Spanning(parts_);
      double lost = 4.0 * static_cast<double>(piece.out(0).elements());
      seconds += acts * 2 * (2 * link.latency + 2 * lost / link.bandwidth);
    }
    piece.Undo();
    return seconds;
  }

  static bool Cuts(const Choice& c) { return !c.label.empty(); }
  // Along time: whether the node then acts for every micro-batch.
  static bool EachAct(const Choice& c) {
    auto differs = [](const Sbp& sbp) { return !sbp.is_broadcast(); };
    return std::any_of(c.in.begin(), c.in.end(), differs) || std::any_of(c.out.begin(), c.out.end(), differs);
  }

  // Changing value v from one signature along this axis to what a node of `slice` wants.
  double Edge(int v, const Sbp& from, const Sbp& to, const Slice& slice) {
    const Slice& at = graph_.producer(v).slice;
    if (from == to && at == slice) return 0;
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
    if (varying_[v] && to.is_partial()) return kImpossible;
    if (from.is_split() || (from.is_partial() && !to.is_broadcast())) return kImpossible;
    return send + copy * (from.is_partial() || to.is_partial() ? parts_ : 1);
  }

  double MeshEdge(int v, const Sbp& from, const Sbp& to, const Slice& slice) const {
    const Value& value = graph_.value(v);
    Layout a{graph_.producer(v).slice, value.sbp}, b{slice, value.sbp};
    a.sbp[entry_] = from;
    b.sbp[entry_] = to;
    // What is Partial over time is accumulated before it moves, once per step.
    if (value.sbp[0].is_partial()) a.sbp[0] = b.sbp[0] = B();
    return CostOfBoxing(graph_.mesh(), graph_.times(), value.shape, SizeOf(value.dtype), a, b,
                        machine_.topology)
        .seconds;
  }

  void Forward(int n) {
    const Node& node = graph_.node(n);
    for (size_t own = 0; own < choices_[n].size(); ++own) {
      const Choice& c = choices_[n][own];
      double cost = own_[n][own];
      for (size_t i = 0; i < node.in.size(); ++i) {
        const Value& v = graph_.value(node.in[i]);
        double least = kImpossible;
        for (size_t s = 0; s < choices_[v.producer].size(); ++s) {
          double before = least_[v.producer][s];
          if (before < kImpossible) before /= std::max<size_t>(1, readers_[node.in[i]].size());
          least = std::min(
              least, before + Edge(node.in[i], choices_[v.producer][s].out[v.output], c.in[i], node.slice));
        }
        cost += least;
      }
      least_[n].push_back(std::min(cost, kImpossible));  // what is impossible stays so, however many share it
    }
    if (*std::min_element(least_[n].begin(), least_[n].end()) >= kImpossible) RefuseBatchCut(n);
  }

  // No signature of n can be had from what its operands may be over time.
  [[noreturn]] void RefuseBatchCut(int n) const {
    for (int in : graph_.node(n).in) {
      const Value& v = graph_.value(in);
      for (size_t s = 0; s < choices_[v.producer].size(); ++s) {
        const Sbp& have = choices_[v.producer][s].out[v.output];
        if (least_[v.producer][s] < kImpossible && have.is_split()) RefuseBatchCut(n, v, have);
      }
    }
    Fail(graph_.Describe(n), ": it needs the whole batch, but ", parts_,
         " micro-batches cut it; use 1 micro-batch, or an operator that works on parts");
  }
  [[noreturn]] void RefuseBatchCut(int n, const Value& v, const Sbp& have) const {
    Fail(graph_.Describe(n), ": it needs the whole batch of '", v.name, "', but ", parts_,
         " micro-batches cut it (", have.str(),
         " over time); use 1 micro-batch, or an operator that works on parts");
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
        if (known) continue;
        seen.push_back({&to, &reader.slice});
        cost += Edge(v, from, to, reader.slice);
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
      if (entry_ == 0 && TimeEdge(node.in[i], have, c.in[i], true) >= kImpossible) RefuseBatchCut(n, v, have);
      node.want[i][entry_] = c.in[i];
    }
    for (size_t o = 0; o < node.out.size(); ++o) graph_.value(node.out[o]).sbp[entry_] = c.out[o];
    if (Cuts(c)) {
      pieces_[n].Cut(c.in, c.out, parts_, 0);
      pieces_[n].Keep();
      settled_[n].push_back(c);
    }
    if (entry_ == 0 && EachAct(c)) acts_[n] = parts_;
  }

  struct Cached {
    Sbp from, to;
    const Slice* slice;
    double cost;
  };

  Graph& graph_;
  const Machine& machine_;
  int entry_;
  const Role role_;  // of the axis
  int parts_;
  const std::vector<int>& order_;
  const std::vector<std::vector<int>>& readers_;
  const std::vector<BoundRule>& rules_;
  std::vector<LocalWork>& pieces_;
  std::vector<int>& acts_;
  std::vector<std::vector<Choice>>& settled_;  // per node the cuts along axes already settled
  std::vector<std::vector<Choice>> choices_;
  std::vector<std::vector<double>> own_, least_;  // seconds by choice: of the node, of all up to it
  std::vector<int> picked_;
  std::vector<Promise> promised_;  // per value
  std::set<std::string> held_;     // regions where something is held to a cut along the axis
  std::vector<bool> varying_;      // per value, along time
  std::vector<std::vector<Cached>> cache_;
};

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
    graph->node(n).why = "expansion of " + graph->Describe(id);
  }
  for (size_t o = 0; o < node.out.size(); ++o)
    for (int r : readers[node.out[o]])
      for (int& v : graph->node(r).in)
        if (v == node.out[o]) v = out[o].id();
  graph->Remove(id);
}

}  // namespace

void ChooseSignatures(Graph* graph, const CompileOptions& options) {
  MarkWrittenVariables(graph);
  for (;;) {
    std::vector<int> order = graph->Order();
    std::vector<std::vector<int>> readers = graph->Readers();
    std::vector<BoundRule> rules(graph->num_nodes());
    std::vector<LocalWork> pieces(graph->num_nodes());
    std::vector<int> acts(graph->num_nodes(), 1);
    RuleCache cache(*graph);
    int entries = 1 + graph->mesh().rank();
    for (int n : order) {
      Node& node = graph->node(n);
      if (!IsEnd(node)) {
        rules[n] = cache.Of(n);
        pieces[n] = LocalWork(*graph, n, rules[n]);
      }
      node.want.assign(node.in.size(), NdSbp(entries, B()));
      for (int v : node.out) graph->value(v).sbp.assign(entries, B());
    }
    std::vector<std::vector<Choice>> settled(graph->num_nodes());
    std::set<int> expanded;
    for (int entry = 0; entry < entries; ++entry) {
      AxisChooser chooser(graph, options, entry, order, readers, rules, &pieces, &acts, &settled);
      chooser.Run();
      for (int n : chooser.Expanded()) expanded.insert(n);
    }
    if (expanded.empty()) {
      for (int n : order) graph->SettleRate(n);
      RefuseWritesOfParts(*graph);
      return;
    }
    for (int n : expanded) Expand(graph, n);
  }
}

}  // namespace oneflow_like
