// Recomputation: gradients read values that are computed again, so that these need not be kept until then.
// Needs: a lowered, fused graph with regions. Leaves: copies (phase backward) of forward nodes, which compute
// the same bits by the same kernels; the backward nodes of the region read them. A region's copies run after
// the gradient that enters it, which edges `after` say.
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
    for (int n : order_) {
      if (graph_.node(n).phase == Phase::kForward) continue;
      for (size_t i = 0; i < graph_.node(n).in.size(); ++i) {
        const int v = graph_.node(n).in[i];
        if (!Repeatable(v)) continue;
        const int again = Copy(v, n);
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

  // Of a rank's piece, about.
  double Bytes(int v) const {
    const Value& value = graph_.value(v);
    double bytes = static_cast<double>(value.shape.elements()) * SizeOf(value.dtype);
    for (size_t e = 0; e < sizes_.size(); ++e)
      if (value.sbp[e].is_split()) bytes /= sizes_[e];
    return bytes;
  }

  // Whether repeating a node that costs little lets go of more bytes than it keeps instead: of its operands
  // those that would not be kept otherwise. They are, from then on.
  bool Pays(const Node& node) {
    double freed = 0, kept = 0;
    std::vector<int> instead;
    for (int v : node.out) freed += kept_[v] ? Bytes(v) : 0;
    for (int v : node.in) {
      const int p = graph_.value(v).producer;
      if (kept_[v] || repeatable_[p] || !of_batch_[p]) continue;
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

  void FindRepeatable() {
    kept_.assign(graph_.num_values(), false);
    for (int n : order_)
      if (graph_.node(n).phase != Phase::kForward)
        for (int v : graph_.node(n).in) kept_[v] = true;
    FindLeaving();
    repeatable_.assign(graph_.num_nodes(), false);
    of_batch_.assign(graph_.num_nodes(), false);
    for (int n : order_) {
      const Node& node = graph_.node(n);
      of_batch_[n] = DependsOnBatch(n);
      if (node.phase != Phase::kForward || IsEnd(node) || !of_batch_[n]) continue;
      if (mode_[n] == Recompute::kFull) repeatable_[n] = StaysWithin(node);
      if (mode_[n] == Recompute::kSelective && !Costly(n)) repeatable_[n] = Pays(node);
    }
  }

  // The copy of a value that `reader`, the first of its region to ask, reads.
  int Copy(int v, int reader) {
    auto [known, fresh] = copies_.try_emplace(v, -1);
    if (!fresh) return known->second;
    const int n = graph_.value(v).producer;
    const std::vector<int>& waits = WaitsOf(region_[n], reader);
    Node copy = graph_.node(n);
    copy.phase = Phase::kBackward;
    copy.why = Cat(kComputedAgain, region_[n]);
    bool first = true;  // nothing before it is copied
    for (int& in : copy.in) {
      if (!Repeatable(in) || region_[graph_.value(in).producer] != region_[n]) continue;
      in = Copy(in, reader);
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

  // Nodes that make the gradients which the region's first reader of a copy reads besides.
  const std::vector<int>& WaitsOf(const std::string& region, int reader) {
    auto [it, fresh] = waits_.try_emplace(region);
    if (fresh)
      for (int v : graph_.node(reader).in) {
        const int p = graph_.value(graph_.BehindViews(v)).producer;
        if (graph_.node(p).phase == Phase::kBackward && p < static_cast<int>(region_.size()))
          it->second.push_back(p);
      }
    return it->second;
  }

  Graph& graph_;
  const std::vector<int> order_;
  const std::vector<int> sizes_;
  std::vector<std::string> region_;          // by node
  std::vector<Recompute> mode_;              // by node
  std::vector<bool> of_batch_, repeatable_;  // by node
  std::vector<bool> leaves_;                 // values that another region, or what is in none, reads
  std::vector<bool> kept_;                   // values, from forward to backward; of repeatable nodes none are
  std::map<int, int> copies_;                // of values
  std::map<std::string, std::vector<int>> waits_;  // by region
};

}  // namespace

void RepeatForward(Graph* graph, const CompileOptions& options) {
  const Recompute otherwise = options.training ? options.training->recompute : Recompute::kNone;
  const Regions& regions = graph->regions();
  const auto recomputed = [&](const auto& region) {
    const Recompute setting = regions.SettingOf(region.first, otherwise);
    return setting == Recompute::kSelective || setting == Recompute::kFull;
  };
  if (std::any_of(regions.all().begin(), regions.all().end(), recomputed)) Repeater(graph, otherwise).Run();
}

}  // namespace oneflow_like
