// Activations in the memory of the host.
// Needs: a lowered, fused graph with regions, whose forward nodes are repeated where that was wanted. Leaves:
// copies to the host behind the forward nodes whose values gradients read, or copies of forward nodes; and
// copies from the host, which these read instead.
//
// A stage computes its regions in order, and their gradients in the opposite order. The work on a region
// waits (Node::after) until the values of the region `prefetch` + 1 before it have been copied to the host,
// so the device holds the values of so many regions. The values of a region are copied back once the gradient
// has come that enters the region `prefetch` after it. The last stage needs the values of its last regions
// again at once, so these stay on the device.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "compiler/passes/passes.h"

namespace oneflow_like {

namespace {

class ActivationMover {
 public:
  ActivationMover(Graph* graph, const CompileOptions& options)
      : graph_(*graph),
        offload_(options.decided.offload),
        otherwise_(options.decided.recompute),
        order_(graph->Order()) {}

  void Run() {
    position_.assign(graph_.num_nodes(), 0);
    for (size_t i = 0; i < order_.size(); ++i) position_[order_[i]] = static_cast<int>(i);
    if (graph_.times() == 1) FindOfBatch();
    FindStages();
    for (int n : order_) {
      if (graph_.node(n).phase == Phase::kForward) continue;
      for (size_t i = 0; i < graph_.node(n).in.size(); ++i) {
        const int v = graph_.node(n).in[i];
        if (!Moves(v, n)) continue;
        const int back = CopyBack(v, n);
        graph_.node(n).in[i] = back;
      }
    }
    for (auto& [gate, copies] : gates_) {
      std::vector<int>& after = graph_.node(gate).after;
      after.insert(after.end(), copies.begin(), copies.end());
    }
  }

 private:
  struct Region {
    int first = -1;              // node of the forward pass
    int first_back = -1;         // node that reads what enters it on the way back
    std::vector<int> gradients;  // nodes that make that
  };
  struct Stage {
    std::map<std::string, int> number;
    std::vector<Region> regions;
  };

  const std::string& RegionOf(int n) {
    auto [known, fresh] = region_.try_emplace(n);
    if (fresh) known->second = graph_.regions().Of(graph_.node(n).name);
    return known->second;
  }

  // Whether it does a micro-batch's work on the device: a narrow copy of a weight, which is made at the
  // beginning of a step, says nothing of when a region is computed.
  bool Works(int n) const {
    const Node& node = graph_.node(n);
    return !graph_.IsView(n) && !IsEnd(node) && !IsCollective(node) && !IsHostCopy(node) &&
           node.phase != Phase::kUpdate &&
           (graph_.times() == 1 ? of_batch_.count(n) > 0 : node.rate == Rate::kEachAct);
  }

  // The nodes that make the gradients which enter a region with this node.
  std::vector<int> Entering(int n) {
    std::vector<int> makers;
    for (int v : graph_.node(n).in) {
      const int p = graph_.value(graph_.BehindViews(v)).producer;
      if (IsGradient(graph_.node(p).phase) &&
          (RegionOf(p) != RegionOf(n) || graph_.node(p).slice != graph_.node(n).slice))
        makers.push_back(p);
    }
    for (int b : graph_.node(n).after)  // of what is computed again
      if (IsGradient(graph_.node(b).phase) && RegionOf(b) != RegionOf(n)) makers.push_back(b);
    return makers;
  }

  void FindStages() {
    for (int n : order_) {
      const Node& node = graph_.node(n);
      if (RegionOf(n).empty() || !Works(n)) continue;
      Stage& stage = stages_[node.slice];
      const auto [known, fresh] =
          stage.number.try_emplace(RegionOf(n), static_cast<int>(stage.regions.size()));
      if (fresh) {
        if (node.phase != Phase::kForward) {  // of the backward pass alone
          stage.number.erase(known);
          continue;
        }
        stage.regions.push_back({.first = n});
        last_ = node.slice;
      }
      Region& region = stage.regions[known->second];
      if (node.phase != Phase::kBackward || region.first_back >= 0) continue;
      region.gradients = Entering(n);
      if (!region.gradients.empty()) region.first_back = n;
    }
  }

  // Whether each micro-batch has a value of its own.
  bool OfBatch(const Node& node, int v) const {
    if (graph_.times() > 1) return graph_.value(v).sbp[0].is_split() && node.rate == Rate::kEachAct;
    return of_batch_.count(graph_.value(v).producer) > 0;
  }

  // Whether a value that `reader` reads after the forward pass is copied to the host. For a view, whether the
  // value that it is a view of is.
  bool Moves(int v, int reader) {
    const int root = graph_.BehindViews(v), p = graph_.value(root).producer;
    const Node& node = graph_.node(p);
    if (node.phase != Phase::kForward || IsEnd(node) || graph_.OnHost(root) || !Works(reader)) return false;
    auto [known, fresh] = moves_.try_emplace(root, false);
    if (!fresh) return known->second;
    const Value& value = graph_.value(root);
    if (RegionOf(reader).empty() || RegionOf(p).empty() ||
        !(offload_.activations ||
          graph_.regions().SettingOf(RegionOf(reader), otherwise_) == Recompute::kHost))
      return false;
    if (value.shape.elements() <= offload_.small || graph_.node(reader).slice != node.slice) return false;
    if (!OfBatch(node, root)) return false;
    const Stage& stage = stages_[node.slice];
    const auto from = stage.number.find(RegionOf(p)), to = stage.number.find(RegionOf(reader));
    if (from == stage.number.end() || to == stage.number.end()) return false;
    const int last = static_cast<int>(stage.regions.size()) - 1;
    if (node.slice == last_ && to->second > last - 1 - offload_.prefetch) return false;
    const Region& back = stage.regions[std::min(last, to->second + offload_.prefetch)];
    const int gate = GateOf(stage, from->second);
    // A model may come to a region twice, and in another order on its way back.
    return moves_[root] = gate >= 0 && position_[gate] > position_[p] && back.first_back >= 0 &&
                          std::all_of(back.gradients.begin(), back.gradients.end(),
                                      [&](int maker) { return position_[maker] < position_[reader]; });
  }

  // In a step of one micro-batch: nodes that depend on its inputs.
  void FindOfBatch() {
    for (int n : order_) {
      const Node& node = graph_.node(n);
      if (node.kind == NodeKind::kInput || std::any_of(node.in.begin(), node.in.end(), [&](int v) {
            return of_batch_.count(graph_.value(v).producer) > 0;
          }))
        of_batch_.insert(n);
    }
  }

  // The node that waits until what region `from` leaves has gone; -1: there is none.
  int GateOf(const Stage& stage, int from) const {
    const int regions = static_cast<int>(stage.regions.size()), at = from + offload_.prefetch + 1;
    if (at < regions) return stage.regions[at].first;
    const int back = 2 * regions - 1 - at;
    return back >= 0 ? stage.regions[back].first_back : -1;
  }

  Node Like(const Node& other, const char* op, Phase phase) const {
    Node node = NodeLike(other, op);
    node.phase = phase;
    return node;
  }

  // What `reader`, the first to ask, reads in place of the value.
  int CopyBack(int v, int reader) {
    auto [known, fresh] = copies_.try_emplace(v, -1);
    if (!fresh) return known->second;
    const int n = graph_.value(v).producer;
    if (graph_.IsView(n)) {
      Node view = graph_.node(n);
      view.phase = Phase::kBackward;
      view.in[0] = CopyBack(view.in[0], reader);
      const int again = graph_.AddCopy(n, std::move(view), ".back");
      return copies_[v] = graph_.node(again).out[0];
    }
    const Stage& stage = stages_.at(graph_.node(n).slice);
    const int from = stage.number.at(RegionOf(n)), to = stage.number.at(RegionOf(reader));
    const int last = static_cast<int>(stage.regions.size()) - 1;
    const int gone = graph_.AddReader(Like(graph_.node(n), kToHost, Phase::kForward), v, ".to_host");
    gates_[GateOf(stage, from)].push_back(graph_.value(gone).producer);
    Node back = Like(graph_.node(n), kFromHost, Phase::kBackward);
    back.after = stage.regions[std::min(last, to + offload_.prefetch)].gradients;
    return copies_[v] = graph_.AddReader(std::move(back), gone, ".back");
  }

  Graph& graph_;
  const Offload& offload_;
  const Recompute otherwise_;
  const std::vector<int> order_;
  std::vector<int> position_;  // by node, in the order
  std::map<Slice, Stage> stages_;
  Slice last_;                             // the stage of the last region
  std::map<int, std::string> region_;      // by node
  std::map<int, bool> moves_;              // values behind views
  std::set<int> of_batch_;                 // nodes
  std::map<int, int> copies_;              // of values
  std::map<int, std::vector<int>> gates_;  // by node, the copies that it waits for
};

}  // namespace

void OffloadActivations(Graph* graph, const CompileOptions& options) {
  if (!options.asked.training) return;
  const Regions& regions = graph->regions();
  const bool any = std::any_of(regions.all().begin(), regions.all().end(), [&](const auto& region) {
    return regions.SettingOf(region.first, options.decided.recompute) == Recompute::kHost;
  });
  if (any || options.decided.offload.activations) ActivationMover(graph, options).Run();
}

}  // namespace oneflow_like
