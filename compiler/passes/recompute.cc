// Recomputation: gradients read values that are computed, or sent, again, so that these need not be kept
// until then, unless their operator says that they stay (OpDef::stays). Needs: a lowered, fused graph with
// regions. Leaves: copies (phase backward) of forward nodes, which compute the same bits by the same kernels;
// the backward nodes of the region read them. A region's copies run after all gradients that enter it, which
// edges `after` say; the first may be there early, as that of a loss of the region's own is.
//
// With kGather only messages are repeated: where keys and values are gathered for attention over a cut
// sequence, each rank keeps its own part, and the gather runs while the gradients behind attention are made.
// Messages between stages are not repeated, nor those whose operands take more than they let go of.
//
// Copied is only what a backward node reads and what leads to it within the region: a collective whose result
// no gradient needs is not repeated, nor is what enters the next region. Weights, their casts and gathers,
// and values of the whole batch stay; parts of these that micro-batches read are taken again.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "compiler/passes/passes.h"

namespace oneflow_like {

namespace {

bool Stays(const Graph& graph, const Node& node) {
  const OpDef* def = graph.catalog().Find(node.op);
  return def && def->stays;
}

class Repeater {
 public:
  Repeater(Graph* graph, Recompute otherwise)
      : graph_(*graph), order_(graph->Order()), sizes_(graph->Sizes()) {
    const size_t nodes = graph_.num_nodes();
    mode_.assign(nodes, Recompute::kNone);
    region_.resize(nodes);
    for (int n : order_) {
      region_[n] = graph_.regions().Of(graph_.node(n).name);
      if (region_[n].empty()) continue;
      mode_[n] = graph_.regions().SettingOf(region_[n], otherwise);
    }
  }

  void Run() {
    FindRepeatable();
    FindCopied();
    for (int n : order_) {
      if (graph_.node(n).phase == Phase::kForward) continue;
      for (size_t i = 0; i < graph_.node(n).in.size(); ++i) {
        const int v = graph_.node(n).in[i];
        if (!Repeatable(v)) continue;
        const int again = Copy(v);
        graph_.node(n).in[i] = again;
      }
    }
  }

 private:
  bool Repeatable(int v) const {
    const int n = graph_.value(v).producer;
    return n < static_cast<int>(repeatable_.size()) && repeatable_[n] &&
           !(mode_[n] == Recompute::kFull && leaves_[v]);
  }

  // Whether each micro-batch has a value of its own. Values of variables alone, and those to which all
  // micro-batches contribute, are not. In a step of one micro-batch: whether it depends on the step's inputs.
  bool DependsOnBatch(int n) const {
    const Node& node = graph_.node(n);
    if (IsEnd(node) || node.primitive == Primitive::kAccumulate || node.primitive == Primitive::kTimeGather)
      return node.kind == NodeKind::kInput;
    if (graph_.times() == 1)
      return std::any_of(node.in.begin(), node.in.end(),
                         [&](int v) { return of_batch_[graph_.value(v).producer]; });
    return std::all_of(node.out.begin(), node.out.end(),
                       [&](int v) { return graph_.value(v).sbp[0].is_split(); });
  }

  bool Costly(int n) const { return IsCollective(graph_.node(n)) || graph_.IsHeavy(n); }

  // A message within a stage, in a region that repeats them.
  bool IsGather(int n) const {
    const Node& node = graph_.node(n);
    return GathersAgain(mode_[n]) && node.phase == Phase::kForward && IsCollective(node) &&
           graph_.producer(node.in[0]).slice == node.slice;
  }

  double Bytes(int v) const { return PieceBytes(graph_.value(v), sizes_); }

  // Whether repeating a node lets go of more bytes than it keeps instead: of its operands those that would
  // not be kept otherwise. They are, from then on.
  bool Pays(const Node& node) {
    double freed = 0, kept = 0;
    std::vector<int> instead;
    for (int v : node.out) freed += kept_[v] ? Bytes(v) : 0;
    for (int v : node.in) {
      const int p = graph_.value(v).producer;
      if (kept_[v] || kept_[graph_.BehindViews(v)] || repeatable_[p] || !of_batch_[p]) continue;
      kept += Bytes(v);
      instead.push_back(v);
    }
    if (kept > 0 && kept >= freed) return false;
    for (int v : instead) kept_[v] = true;
    return true;
  }

  // What enters the next region is kept for that one's copies, so its gradients read it there: it is not made
  // again, nor is the message that brought it.
  void FindLeaving() {
    leaves_.assign(graph_.num_values(), false);
    for (auto it = order_.rbegin(); it != order_.rend(); ++it) {
      const Node& node = graph_.node(*it);
      if (node.phase != Phase::kForward) continue;
      for (int v : node.in) {
        leaves_[v] = leaves_[v] || region_[graph_.value(v).producer] != region_[*it] ||
                     (graph_.IsView(*it) && leaves_[node.out[0]]);
      }
    }
  }

  // Whether most of what a node makes stays in the region: statistics of a norm whose result leaves are not
  // worth another norm.
  bool StaysWithin(const Node& node) const {
    double within = 0, leaving = 0;
    for (int v : node.out) (leaves_[v] ? leaving : within) += Bytes(v);
    return within >= leaving;
  }

  // Finds the results of messages, and what readers see of them: views, and chunks of an overlapped product
  // that are joined again. A message counts as kept if a view or a join of its result is kept.
  void FindBrought() {
    brought_.assign(graph_.num_nodes(), false);
    for (int n : order_) {
      const Node& node = graph_.node(n);
      const bool joins = node.phase == Phase::kForward && GathersAgain(mode_[n]) &&
                         (graph_.IsView(n) || node.op == "concat");
      brought_[n] = IsGather(n) || (joins && std::all_of(node.in.begin(), node.in.end(), [&](int v) {
                                      return brought_[graph_.value(v).producer];
                                    }));
    }
    for (auto it = order_.rbegin(); it != order_.rend(); ++it)
      if (brought_[*it] && !IsGather(*it) && kept_[graph_.node(*it).out[0]])
        for (int v : graph_.node(*it).in) kept_[v] = true;
  }

  void FindRepeatable() {
    kept_.assign(graph_.num_values(), false);
    for (int n : order_)
      if (graph_.node(n).phase != Phase::kForward)
        for (int v : graph_.node(n).in) kept_[v] = true;
    FindBrought();
    FindLeaving();
    repeatable_.assign(graph_.num_nodes(), false);
    of_batch_.assign(graph_.num_nodes(), false);
    for (int n : order_) {
      const Node& node = graph_.node(n);
      of_batch_[n] = DependsOnBatch(n);
      if (node.phase != Phase::kForward || IsEnd(node) || !of_batch_[n] || Stays(graph_, node)) continue;
      if (mode_[n] == Recompute::kFull) repeatable_[n] = StaysWithin(node);
      if (WithoutGather(mode_[n]) == Recompute::kSelective && !Costly(n)) repeatable_[n] = Pays(node);
      if (IsGather(n))
        repeatable_[n] = Pays(node);
      else if (brought_[n])
        repeatable_[n] = std::all_of(node.in.begin(), node.in.end(), [&](int v) { return Repeatable(v); });
    }
  }

  // The copy of a value.
  int Copy(int v) {
    auto [known, fresh] = copies_.try_emplace(v, -1);
    if (!fresh) return known->second;
    const int n = graph_.value(v).producer;
    const std::vector<int>& waits = copied_.at(region_[n]).waits;
    Node copy = graph_.node(n);
    copy.phase = Phase::kBackward;
    copy.why = Cat(IsGather(n) ? kSentAgain : kComputedAgain, region_[n]);
    bool first = true;  // nothing before it is copied
    for (int& in : copy.in) {
      if (!Repeatable(in) || region_[graph_.value(in).producer] != region_[n]) continue;
      in = Copy(in);
      // A view is no act, so who reads one waits itself.
      const int p = graph_.value(in).producer;
      first = first && graph_.IsView(p) && !graph_.node(p).after.empty();
    }
    if (first) copy.after.insert(copy.after.end(), waits.begin(), waits.end());
    const int again = graph_.AddCopy(n, std::move(copy), ".again");
    for (size_t o = 0; o < graph_.node(n).out.size(); ++o)
      copies_[graph_.node(n).out[o]] = graph_.node(again).out[o];
    return copies_[v];
  }

  // A region of which something is repeated.
  struct Copied {
    Recompute mode;
    int reader;                // the first node that reads a copy
    std::vector<int> entries;  // nodes that make gradients which enter the region
    std::vector<int> waits;    // nodes that its copies come after
  };

  void FindCopied() {
    position_.assign(graph_.num_nodes(), 0);
    serves_.resize(graph_.num_nodes());
    reads_.resize(graph_.num_nodes());
    std::vector<std::string> in_turn;
    for (size_t i = 0; i < order_.size(); ++i) {
      const int n = order_[i];
      position_[n] = static_cast<int>(i);
      serves_[n] = ServedBy(n);
      if (graph_.node(n).phase == Phase::kForward) continue;
      for (int v : graph_.node(n).in) {
        if (!Repeatable(v)) continue;
        const int p = graph_.value(v).producer;
        reads_[n].push_back(region_[p]);
        if (copied_.try_emplace(region_[p], Copied{mode_[p], n, {}, {}}).second)
          in_turn.push_back(region_[p]);
      }
    }
    for (int n : order_) {
      if (!IsGradient(graph_.node(n).phase)) continue;
      std::vector<std::string> regions = reads_[n];  // also of what enters the next region
      regions.push_back(serves_[n]);
      for (int p : GradientsOf(n))
        for (const std::string& region : regions)
          if (const auto it = copied_.find(region); it != copied_.end() && serves_[p] != region)
            it->second.entries.push_back(p);
    }
    for (const std::string& region : in_turn) FindWaits(region);
  }

  // The region whose gradients a node makes. Its name alone does not say it: the last gradient of a region
  // may be fused with the sum of those that enter the region before.
  const std::string& ServedBy(int n) const {
    const std::string* other = nullptr;
    if (region_[n].empty()) return region_[n];
    for (int v : graph_.node(n).in) {
      const int p = graph_.value(v).producer;
      if (graph_.node(p).phase != Phase::kForward || leaves_[v] || region_[p].empty()) continue;
      if (region_[p] == region_[n]) return region_[n];
      other = &region_[p];
    }
    return other ? *other : region_[n];
  }

  // Nodes that make the gradients which a node reads.
  std::vector<int> GradientsOf(int reader) const {
    std::vector<int> makers;
    for (int v : graph_.node(reader).in)
      if (const int p = graph_.value(graph_.BehindViews(v)).producer;
          graph_.node(p).phase == Phase::kBackward)
        makers.push_back(p);
    return makers;
  }

  // Copies come after what their first reader waits for and the gradients that enter the region besides;
  // messages after the latter alone, as they take time that nobody need wait for if what follows does not
  // read their results at once. A gradient that needs copies of the region, where a model comes to it twice,
  // is not waited for, nor is one that another implies.
  void FindWaits(const std::string& region) {
    Copied& copied = copied_.at(region);
    const auto take = [&](int p) {
      if (NeedsCopies(p, region, copied.reader)) return;
      copied.waits.push_back(p);
      crossed_ = crossed_ || position_[p] > position_[copied.reader];
    };
    const std::vector<int> first = GradientsOf(copied.reader);
    if (!GathersAgain(copied.mode)) std::for_each(first.begin(), first.end(), take);
    std::sort(copied.entries.begin(), copied.entries.end(),
              [&](int a, int b) { return position_[a] > position_[b]; });
    for (int p : copied.entries) {
      const auto is_it = [&](int n) { return n == p; };
      const auto not_before = [&](int n) { return position_[n] >= position_[p]; };
      if (!Behind(copied.waits, is_it, not_before)) take(p);
    }
    if (copied.waits.empty()) std::for_each(first.begin(), first.end(), take);
  }

  // Whether a gradient is made of copies of a region, of which `reader` reads one first.
  bool NeedsCopies(int p, const std::string& region, int reader) {
    if (!crossed_ && position_[p] < position_[reader]) return false;
    const auto reads = [&](int n) {
      return std::find(reads_[n].begin(), reads_[n].end(), region) != reads_[n].end();
    };
    return Behind({p}, reads, [](int) { return true; });
  }

  // Whether `found` of one of the nodes, or of one that these come after by way of others for which `look`.
  template <typename Found, typename Look>
  bool Behind(std::vector<int> todo, const Found& found, const Look& look) {
    seen_.resize(graph_.num_nodes(), 0);
    ++search_;
    while (!todo.empty()) {
      const int n = todo.back();
      todo.pop_back();
      if (graph_.node(n).phase == Phase::kForward || seen_[n] == search_ || !look(n)) continue;
      seen_[n] = search_;
      if (found(n)) return true;
      for (int v : graph_.node(n).in) todo.push_back(graph_.value(v).producer);
      const std::vector<int>& after = graph_.node(n).after;
      todo.insert(todo.end(), after.begin(), after.end());
      for (const std::string& region : reads_[n]) {
        const std::vector<int>& waits = copied_.at(region).waits;
        todo.insert(todo.end(), waits.begin(), waits.end());
      }
    }
    return false;
  }

  Graph& graph_;
  const std::vector<int> order_;
  const std::vector<int> sizes_;
  std::vector<std::string> region_;          // by node
  std::vector<Recompute> mode_;              // by node
  std::vector<bool> of_batch_, repeatable_;  // by node
  std::vector<bool> brought_;                // by node: FindBrought
  std::vector<bool> leaves_;                 // values that another region, or what is in none, reads
  std::vector<bool> kept_;                   // values, from forward to backward; of repeatable nodes none are
  std::map<int, int> copies_;                // of values
  std::map<std::string, Copied> copied_;     // by region
  std::vector<int> position_;                // by node, in the order
  std::vector<std::string> serves_;          // by node: ServedBy
  std::vector<std::vector<std::string>> reads_;  // by node: regions of which it reads copies
  bool crossed_ = false;                         // something waits for what comes later in the order
  std::vector<int> seen_;                        // by node: the last search that came to it
  int search_ = 0;
};

}  // namespace

void RepeatForward(Graph* graph, const CompileOptions& options) {
  const Recompute otherwise = options.decided.recompute;
  const Regions& regions = graph->regions();
  const auto recomputed = [&](const auto& region) {
    const Recompute setting = regions.SettingOf(region.first, otherwise);
    return setting != Recompute::kNone && setting != Recompute::kHost && setting != Recompute::kAuto;
  };
  if (std::any_of(regions.all().begin(), regions.all().end(), recomputed)) Repeater(graph, otherwise).Run();
}

}  // namespace oneflow_like
