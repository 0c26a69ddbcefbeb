// Chains of elementwise operators become one loop.
// Needs: lowered boxing. Leaves: connected elementwise nodes of one slice, phase, rate, shape and signature
// replaced by one node "fused" (ops/fused.h); values that only they read are never stored.
//
// A node joins the group of one of its producers, of those in its region first and of these the one made last
// (in whatever order they are its operands), unless one of its other operands depends on that group: the
// group runs as a whole, so nothing it waits for may wait for it. Then what one other group alone reads goes
// there, if less is stored for it.
#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "compiler/passes/passes.h"
#include "ops/fused.h"

namespace oneflow_like {

namespace {

class Fuser {
 public:
  explicit Fuser(Graph* graph) : graph_(*graph), order_(graph->Order()), group_(graph->num_nodes(), -1) {
    seen_.assign(graph->num_nodes(), 0);
    place_.assign(graph->num_nodes(), -1);
    for (size_t i = 0; i < order_.size(); ++i) place_[order_[i]] = static_cast<int>(i);
    spanned_.resize(order_.size());
    std::iota(spanned_.begin(), spanned_.end(), 0);
  }

  void Run() {
    for (int n : order_) Join(n);
    std::vector<std::vector<int>> readers = graph_.Readers();
    for (auto n = order_.rbegin(); n != order_.rend(); ++n) Sink(*n, readers);
    for (auto& [id, members] : members_)
      if (members.size() > 1 ||
          (members.size() == 1 && IsProgram(graph_.catalog().Get(graph_.node(members[0]).op))))
        Replace(members, readers);
  }

 private:
  bool CanFuse(int n) const {
    const Node& node = graph_.node(n);
    const OpDef* def = graph_.catalog().Find(node.op);
    if (!def || def->view || node.out.size() != 1 || !node.after.empty()) return false;
    std::vector<DType> in, out;
    for (int v : node.in) in.push_back(graph_.value(v).dtype);
    for (int v : node.out) out.push_back(graph_.value(v).dtype);
    // A user's program has no kernel of its own on GPUs.
    return (graph_.value(node.out[0]).shape.rank() > 0 || IsProgram(*def)) && Fusible(*def, in, out);
  }

  bool Alike(int a, int b) const {
    const Node &x = graph_.node(a), &y = graph_.node(b);
    const Value &u = graph_.value(x.out[0]), &v = graph_.value(y.out[0]);
    return x.slice == y.slice && x.phase == y.phase && u.shape == v.shape && u.sbp == v.sbp &&
           x.rate == y.rate && x.part == y.part;
  }

  // Nodes before this place depend on no member of the group: no group has members on both sides of it.
  // Without it each search would go back to the beginning of the graph.
  int Floor(int group) const {
    int place = place_[members_.at(group).front()];
    while (spanned_[place] < place) place = spanned_[place];
    return place;
  }

  // Whether node n, or a group it belongs to, depends on `group`, whose floor is given.
  bool DependsOn(int n, int group, int floor) {
    if (group_[n] == group) return true;
    if (seen_[n] == visit_ || place_[n] < floor) return false;
    seen_[n] = visit_;
    auto inputs = [&](int m) {
      for (int v : graph_.node(m).in)
        if (DependsOn(graph_.value(v).producer, group, floor)) return true;
      for (int b : graph_.node(m).after)
        if (DependsOn(b, group, floor)) return true;
      return false;
    };
    if (group_[n] < 0) return inputs(n);
    for (int m : members_.at(group_[n])) {
      seen_[m] = visit_;
      if (inputs(m)) return true;
    }
    return false;
  }

  std::vector<FusedStep> Steps(int n) const {
    const Node& node = graph_.node(n);
    return StepsOf(graph_.catalog().Get(node.op), node.attrs, static_cast<int>(node.in.size()),
                   graph_.Describe(n));
  }

  // A launch of a fused kernel on a GPU takes so many addresses.
  bool HasRoom(int group, int n) const {
    size_t operands = graph_.node(n).in.size(), steps = Steps(n).size();
    for (int m : members_.at(group)) {
      operands += graph_.node(m).in.size();
      steps += Steps(m).size();
    }
    return operands <= kMostOperands && steps <= kMostSteps;
  }

  // The operands of n in the order in which it tries to join them.
  std::vector<int> Candidates(int n) const {
    std::vector<int> values = graph_.node(n).in;
    std::sort(values.begin(), values.end(), std::greater<>());
    const std::string region = graph_.regions().Of(graph_.node(n).name);
    std::stable_partition(values.begin(), values.end(),
                          [&](int v) { return graph_.regions().Of(graph_.producer(v).name) == region; });
    return values;
  }

  void Join(int n) {
    if (!CanFuse(n)) return;
    for (int v : Candidates(n)) {
      int p = graph_.value(v).producer, g = group_[p];
      if (g < 0 || !Alike(p, n) || !HasRoom(g, n)) continue;
      bool depends = false;
      const int floor = Floor(g);
      ++visit_;
      for (int other : graph_.node(n).in) {
        int q = graph_.value(other).producer;
        if (group_[q] != g) depends = depends || DependsOn(q, g, floor);
      }
      if (depends) continue;
      const int first = place_[members_[g].front()];
      for (int place = place_[members_[g].back()] + 1; place <= place_[n]; ++place)
        spanned_[place] = std::min(spanned_[place], first);
      group_[n] = g;
      members_[g].push_back(n);
      return;
    }
    group_[n] = static_cast<int>(members_.size());
    members_[group_[n]] = {n};
  }

  // A node whose result one other group alone reads joins that group where this stores less and reads no
  // more: the product in a = f(x), b = a * c, with a read by others and b by a later group, say. No cycle
  // comes of it, since that group depends on the node's already.
  void Sink(int n, const std::vector<std::vector<int>>& readers) {
    if (group_[n] < 0) return;
    const Node& node = graph_.node(n);
    const std::vector<int>& of = readers[node.out[0]];
    if (of.empty()) return;
    const int from = group_[n], to = group_[of[0]];
    if (to < 0 || to == from || !Alike(n, of[0]) || !HasRoom(to, n)) return;
    for (int reader : of)
      if (group_[reader] != to) return;
    int64_t more = 0;  // bytes that the group then reads
    for (int v : std::set<int>(node.in.begin(), node.in.end())) {
      bool stored = group_[graph_.value(v).producer] != from, read = false;
      for (int reader : readers[v]) {
        stored = stored || group_[reader] != from;
        read = read || group_[reader] == to;
      }
      if (!stored) return;
      if (!read) more += Bytes(v);
    }
    // A number for each channel, say, costs nothing beside what is saved: a sixteenth.
    const int64_t saved = Bytes(node.out[0]);
    if (more > saved + saved / 16) return;
    std::erase(members_.at(from), n);
    members_.at(to).insert(members_.at(to).begin(), n);
    group_[n] = to;
  }

  int64_t Bytes(int v) const {
    return graph_.value(v).shape.elements() * static_cast<int64_t>(SizeOf(graph_.value(v).dtype));
  }

  void Replace(const std::vector<int>& members, const std::vector<std::vector<int>>& readers) {
    std::map<int, int> ssa;  // value -> number in the program
    Node fused;
    fused.op = "fused";
    std::set<int> inside(members.begin(), members.end());
    for (int n : members)
      for (size_t i = 0; i < graph_.node(n).in.size(); ++i) {
        int v = graph_.node(n).in[i];
        if (inside.count(graph_.value(v).producer) || ssa.count(v)) continue;
        ssa[v] = static_cast<int>(fused.in.size());
        fused.in.push_back(v);
        fused.want.push_back(graph_.node(n).want[i]);
      }
    int next = static_cast<int>(fused.in.size());
    std::vector<FusedStep> steps;
    std::vector<int64_t> outputs;
    std::vector<int> results;
    for (int n : members) {
      const Node& node = graph_.node(n);
      std::vector<int> numbers;  // of the operands and steps of this member
      for (int v : node.in) numbers.push_back(ssa.at(v));
      for (FusedStep& step : Steps(n)) {
        for (int& arg : step.args) arg = numbers[arg];
        numbers.push_back(next++);
        steps.push_back(std::move(step));
      }
      ssa[node.out[0]] = numbers.back();
      bool read_outside = false;
      for (int r : readers[node.out[0]]) read_outside = read_outside || !inside.count(r);
      if (!read_outside) continue;
      outputs.push_back(ssa[node.out[0]]);
      results.push_back(node.out[0]);
    }
    if (results.empty()) return;
    const Node& last = graph_.node(members.back());
    fused.attrs.Set("program", FusedProgram(steps));
    fused.attrs.Set("outputs", outputs);
    fused.slice = last.slice;
    fused.placed = true;
    fused.phase = last.phase;
    fused.rate = last.rate;
    fused.part = last.part;
    fused.line = last.line;
    fused.name = last.name;
    fused.why = Cat("fusion of ", members.size(), " elementwise operators");
    for (int n : members) graph_.Remove(n);
    int id = graph_.AddRaw(std::move(fused), {});
    for (size_t o = 0; o < results.size(); ++o) {  // values keep their ids: readers need no change
      graph_.node(id).out.push_back(results[o]);
      graph_.value(results[o]).producer = id;
      graph_.value(results[o]).output = static_cast<int>(o);
    }
  }

  static constexpr size_t kMostSteps = 24, kMostOperands = 60;

  Graph& graph_;
  std::vector<int> order_, group_, seen_;
  std::map<int, std::vector<int>> members_;
  std::vector<int> place_;  // of a node in order_
  // By place, that of the first member of groups with members before it and at or after it; else the place
  // itself.
  std::vector<int> spanned_;
  int visit_ = 0;  // number of the search that last saw a node
};

}  // namespace

void Fuse(Graph* graph, const CompileOptions& options) {
  if (options.asked.fuse) Fuser(graph).Run();
}

}  // namespace oneflow_like
