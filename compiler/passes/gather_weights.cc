// ZeRO's third stage: a weight is whole only while a layer works with it; and weights that wait on the host:
// they are on the device only then.
// Needs: a lowered, fused graph. Leaves: in place of a gather, or a copy from the host and what follows it,
// that runs once a step and is read all through it a copy of it for each unit that reads the weight, which is
// *remade* in each act. A unit is a region, or what lies between two, in the forward or in the backward pass.
// A unit's gathers begin when the unit before the last `prefetch` ones has ended (Node::after), in the first
// ones of a pass too, which wait for the micro-batch before.
#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "compiler/passes/passes.h"

namespace oneflow_like {

namespace {

class Gatherer {
 public:
  Gatherer(Graph* graph, const CompileOptions& options)
      : graph_(*graph),
        order_(graph->Order()),
        weights_(options.decided.offload.weights),
        prefetch_(options.decided.offload.weights ? options.decided.offload.prefetch
                                                  : options.decided.prefetch.value_or(1)),
        small_(options.decided.zero_small) {}

  void Run() {
    FindGathered();
    FindUnits();
    for (size_t i = 0; i < order_.size(); ++i) {
      const int n = order_[i];
      if (of_variables_[n] || unit_of_[n].number < 0) continue;
      for (size_t in = 0; in < graph_.node(n).in.size(); ++in) {
        const int v = graph_.node(n).in[in];
        if (!Gathered(v)) continue;
        const int again = Copy(v, unit_of_[n], static_cast<int>(i));
        graph_.node(n).in[in] = again;
      }
    }
    RemoveUnread();
  }

 private:
  // A stage's share of a micro-batch is gone through unit by unit, forward and back.
  struct Unit {
    Slice slice;
    int number = -1;  // -1: of none
    bool operator<(const Unit& other) const {
      return std::tie(number, slice) < std::tie(other.number, other.slice);
    }
  };
  struct Stage {
    std::map<std::pair<Phase, std::string>, int> units;
    std::string last;                       // region that was worked on
    std::vector<std::vector<int>> nodes;    // of each unit, positions in the order
    std::vector<std::vector<int>> readers;  // of these, those that read gathered weights
    int forward = 0;                        // units of the forward pass
  };

  bool Gathered(int v) const {
    const int n = graph_.value(v).producer;
    return n < static_cast<int>(gathered_.size()) && gathered_[n];
  }

  // Gathers of variables and what is made of them alone.
  void FindGathered() {
    of_variables_.assign(graph_.num_nodes(), false);
    gathered_.assign(graph_.num_nodes(), false);
    for (int n : order_) {
      const Node& node = graph_.node(n);
      of_variables_[n] = node.kind == NodeKind::kVariable && node.rate == Rate::kOnce;
      if (IsEnd(node) || node.in.empty() || node.phase == Phase::kUpdate) continue;
      // A weight that is broadcast over the batch is a value of each micro-batch, not of the variable alone.
      of_variables_[n] = node.rate != Rate::kEachAct &&
                         std::all_of(node.in.begin(), node.in.end(),
                                     [&](int v) { return of_variables_[graph_.value(v).producer]; });
      if (!of_variables_[n]) continue;
      gathered_[n] = (weights_ && node.op == kFromHost) ||
                     (IsCollective(node) && graph_.value(node.out[0]).shape.elements() > small_);
      for (int v : node.in) gathered_[n] = gathered_[n] || gathered_[graph_.value(v).producer];
    }
  }

  // In the order in which gathered weights are first read: what else is of a region's backward pass may come
  // early, as a message of what forward made does.
  void FindUnits() {
    unit_of_.resize(graph_.num_nodes());
    for (int n : order_) {
      const Node& node = graph_.node(n);
      if (!Works(n) || !std::any_of(node.in.begin(), node.in.end(), [&](int v) { return Gathered(v); }))
        continue;
      Stage& stage = stages_[node.slice];
      std::string region = graph_.regions().Of(node.name);
      if (region.empty())
        region = stage.last + "/";  // between two
      else
        stage.last = region;
      const auto [unit, fresh] =
          stage.units.try_emplace({node.phase, region}, static_cast<int>(stage.nodes.size()));
      if (fresh) stage.nodes.emplace_back(), stage.readers.emplace_back();
      if (node.phase == Phase::kForward) stage.forward = static_cast<int>(stage.nodes.size());
      unit_of_[n] = {node.slice, unit->second};
    }
    for (size_t i = 0; i < order_.size(); ++i) {
      const Node& node = graph_.node(order_[i]);
      Unit& unit = unit_of_[order_[i]];
      if (!Works(order_[i])) continue;
      Stage& stage = stages_[node.slice];
      const auto in_region = stage.units.find({node.phase, graph_.regions().Of(node.name)});
      if (unit.number < 0 && in_region != stage.units.end()) unit = {node.slice, in_region->second};
      if (unit.number < 0) continue;
      stage.nodes[unit.number].push_back(static_cast<int>(i));
      if (std::any_of(node.in.begin(), node.in.end(), [&](int v) { return Gathered(v); }))
        stage.readers[unit.number].push_back(static_cast<int>(i));
    }
  }

  // Whether it does a micro-batch's work.
  bool Works(int n) const {
    const Node& node = graph_.node(n);
    return !graph_.IsView(n) && !IsEnd(node) && !of_variables_[n] && node.phase != Phase::kUpdate &&
           (graph_.times() == 1 || node.rate == Rate::kEachAct);
  }

  // The value that a unit reads in place of v; `position` is that of its first reader.
  int Copy(int v, const Unit& unit, int position) {
    auto [known, fresh] = copies_.try_emplace({v, unit}, -1);
    if (!fresh) return known->second;
    const int n = graph_.value(v).producer;
    Node copy = graph_.node(n);
    copy.phase = graph_.node(order_[position]).phase;
    bool first = true;
    for (int& in : copy.in)
      if (Gathered(in)) in = Copy(in, unit, position), first = false;
    const int before = unit.number - prefetch_ - 1;
    // A copy from the host takes the room of weights that nobody reads any more.
    const bool copies = copy.op == kFromHost;
    if (const int last = first && before >= 0 ? LastOf(unit.slice, before, position, copies) : -1; last >= 0)
      copy.after.push_back(order_[last]);
    const int again = graph_.AddCopy(n, std::move(copy), ".again");
    if (graph_.times() > 1) graph_.node(again).rate = Rate::kRemade;
    for (size_t o = 0; o < graph_.node(n).out.size(); ++o)
      copies_[{graph_.node(n).out[o], unit}] = graph_.node(again).out[o];
    if (first) WaitForMicroBatchBefore(again, unit, position);
    return copies_[{v, unit}];
  }

  // The last node of a unit, or of those that read weights, that stands before `position`; -1: none.
  int LastOf(const Slice& slice, int unit, int position, bool readers) const {
    const Stage& stage = stages_.at(slice);
    const std::vector<int>& nodes = (readers ? stage.readers : stage.nodes)[unit];
    auto it = std::lower_bound(nodes.begin(), nodes.end(), position);
    return it == nodes.begin() ? -1 : *(it - 1);
  }

  // The first units of a pass gather for the next micro-batch when this one comes to the last units.
  void WaitForMicroBatchBefore(int gather, const Unit& unit, int position) {
    const Stage& stage = stages_.at(unit.slice);
    const bool forward = unit.number < stage.forward;
    const int begin = forward ? 0 : stage.forward;
    const int end = forward ? stage.forward : static_cast<int>(stage.nodes.size());
    const int last = end - 1 - std::max(0, prefetch_ - (unit.number - begin));
    if (graph_.times() == 1 || last <= unit.number) return;
    const int node = order_[stage.nodes[last].back()];
    if (stage.nodes[last].back() > position) graph_.node(node).after.push_back(gather);
  }

  void RemoveUnread() {
    std::vector<std::vector<int>> readers = graph_.Readers();
    for (auto it = order_.rbegin(); it != order_.rend(); ++it) {
      const Node& node = graph_.node(*it);
      if (!gathered_[*it] || std::any_of(node.out.begin(), node.out.end(), [&](int v) {
            return std::any_of(readers[v].begin(), readers[v].end(), [&](int r) { return graph_.alive(r); });
          }))
        continue;
      graph_.Remove(*it);
    }
  }

  Graph& graph_;
  const std::vector<int> order_;
  const bool weights_;  // that lie on the host are read from there by each unit
  const int prefetch_;
  const int64_t small_;  // elements of a weight that is gathered once, as messages take time too
  std::vector<bool> of_variables_, gathered_;  // by node
  std::map<Slice, Stage> stages_;
  std::vector<Unit> unit_of_;                   // by node
  std::map<std::pair<int, Unit>, int> copies_;  // of values
};

}  // namespace

void GatherWeights(Graph* graph, const CompileOptions& options) {
  const bool gathers = options.decided.zero >= 3;
  if (gathers || options.decided.offload.weights) Gatherer(graph, options).Run();
}

}  // namespace oneflow_like
