// Segments, buffers and edges.
// Needs: a lowered graph. Leaves: a logical plan without order: consecutive nodes of one slice, stream, phase
// and rate that need no message in between are one segment; each collective, input and fetch is one of its
// own. Values become buffers (views share their root's), and edges carry the credits between segments.
//
// A value that all micro-batches make together (a sum over the batch) is whole after the last of them.
// Whoever reads it within a micro-batch does so in a later *epoch*: another pass over the micro-batches, for
// which what it reads besides is held. A node is in one epoch; so no segment reads what it has not finished
// writing.
//
// A node's level counts how often the longest path to it changes segment class. Nodes of one class and level
// have no path between them that leaves the class, so joining them makes no cycle.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "compiler/plan/make_plans.h"
#include "compiler/plan/schedule.h"

namespace oneflow_like {

namespace {

// Slice, stream, phase, per micro-batch, epoch, chunk, region or own number, part.
using Class = std::tuple<Slice, int, Phase, bool, int, int, int, int>;

// A node waits for `node`; `whole`: for all of its acts of a step, not only for the one of its own
// micro-batch.
struct Dependency {
  int node;
  bool whole;
};

// Per value the value whose bytes it has: through views, and from an update's result to its variable.
std::vector<int> Roots(const Graph& graph, const std::vector<int>& order) {
  std::vector<int> root(graph.num_values());
  for (int v = 0; v < graph.num_values(); ++v) root[v] = v;
  for (int n : order) {
    const Node& node = graph.node(n);
    if (graph.IsView(n)) root[node.out[0]] = root[node.in[0]];
    if (const OpDef* def = graph.catalog().Find(node.op))
      for (auto [out, in] : def->inplace) root[node.out[out]] = root[node.in[in]];
  }
  return root;
}

class Former {
 public:
  Former(const Graph& graph, const CompileOptions& options)
      : graph_(graph), options_(options), order_(graph.Order()), cost_(graph, options.machine) {
    plan_.schedule = options.schedule;
    plan_.exact_groups = options.exact_groups;
    if (options.overlap.chunks > 1) plan_.second = options.overlap.always ? kAnyGain : options.overlap.gain;
    plan_.root = Roots(graph, order_);
    plan_.buffer_of.assign(graph.num_values(), -1);
    segment_of_.assign(graph.num_nodes(), -1);
  }

  LogicalPlan Run() {
    MakeStreams();
    FindRegions();
    FindDependencies();
    ChooseEpochs();
    FindChunks();
    MakeSegments();
    MakeBuffers();
    MakeEdges();
    KeepBehind();
    AdmitMicroBatches();
    return std::move(plan_);
  }

 private:
  static constexpr int kCompute = 0;  // of the plan's streams
  static constexpr double kAnyGain = -1e9;
  static constexpr int kMostLinks =
      4;  // a GPU has eight queues; feeds, fetches, copies and kernels need four

  // A link stream for each set of mesh axes that communicates, so that messages along one axis do not wait
  // for those along another. Sets beyond the number of links share the last.
  void MakeStreams() {
    std::set<std::vector<int>> sets;
    for (int n : order_)
      if (IsCollective(graph_.node(n))) sets.insert(AxesOf(n));
    std::vector<std::vector<int>> sorted(sets.begin(), sets.end());
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const auto& a, const auto& b) { return a.size() < b.size(); });
    plan_.streams = {{"compute", StreamKind::kCompute, {}}};
    for (const std::vector<int>& axes : sorted) {
      if (static_cast<int>(plan_.streams.size()) <= kMostLinks)
        plan_.streams.push_back({"link", StreamKind::kLink, {}});
      link_of_[axes] = static_cast<int>(plan_.streams.size()) - 1;
      std::vector<int>& joined = plan_.streams.back().axes;
      for (int a : axes)
        if (std::find(joined.begin(), joined.end(), a) == joined.end()) joined.push_back(a);
      std::sort(joined.begin(), joined.end());
    }
    for (LogicalStream& stream : plan_.streams)
      for (size_t i = 0; i < stream.axes.size(); ++i)
        stream.name += Cat(i == 0 ? " " : "+", graph_.mesh().axis_name(stream.axes[i]));
  }

  // The mesh axes along which the members of a collective differ.
  std::vector<int> AxesOf(int n) const {
    std::vector<int> axes;
    if (!graph_.node(n).attrs.Has("axes")) return axes;
    for (int64_t a : graph_.node(n).attrs.Ints("axes"))
      if (graph_.mesh().axis_size(static_cast<int>(a)) > 1) axes.push_back(static_cast<int>(a));
    return axes;
  }

  Class ClassOf(int n) const {
    const Node& node = graph_.node(n);
    bool micro = node.rate != Rate::kOnce;
    if (node.kind == NodeKind::kInput || node.kind == NodeKind::kFetch)
      return {node.slice, -1, Phase::kForward, micro, epoch_[n], chunk_[n], n, -1};
    if (IsCollective(node))
      return {node.slice, link_of_.at(AxesOf(n)), node.phase, micro, epoch_[n], chunk_[n], n, -1};
    return {node.slice, kCompute, node.phase, micro, epoch_[n], chunk_[n], RegionOf(n), node.part};
  }

  // Where gradients leave or weights are gathered, those of one layer are on their way while another is
  // worked on.
  int RegionOf(int n) const { return region_.empty() ? -1 : region_[n]; }

  bool GradientLeaves(int n) const {
    const Node& node = graph_.node(n);
    return IsCollective(node) && IsGradient(graph_.producer(node.in[0]).phase) &&
           (node.phase == Phase::kUpdate || (IsGradient(node.phase) && options_.zero_axis >= 0)) &&
           graph_.producer(node.in[0]).slice == node.slice;
  }

  void FindRegions() {
    const bool gathered = options_.zero_axis >= 0;
    if (!gathered && std::none_of(order_.begin(), order_.end(), [&](int n) { return GradientLeaves(n); }))
      return;
    std::map<std::string, int> number{{"", -1}};
    region_.assign(graph_.num_nodes(), -1);
    for (int n : order_)
      if (IsGradient(graph_.node(n).phase) || (gathered && graph_.node(n).phase == Phase::kForward))
        region_[n] =
            number.try_emplace(graph_.regions().Of(graph_.node(n).name), number.size()).first->second;
  }

  bool Computes(int n) const { return graph_.node(n).kind != NodeKind::kVariable && !graph_.IsView(n); }

  // The nodes that each node waits for, views looked through, and those that wait for it.
  void FindDependencies() {
    before_.resize(graph_.num_nodes());
    after_.resize(graph_.num_nodes());
    for (int n : order_) {
      if (!Computes(n)) continue;
      const bool once = graph_.node(n).rate == Rate::kOnce;
      auto depend = [&](int b, bool whole) {
        if (!Computes(b)) return;
        whole = whole && graph_.node(b).rate == Rate::kEachAct;
        before_[n].push_back({b, whole});
        after_[b].push_back({n, whole});
      };
      for (int v : graph_.node(n).in) {
        while (graph_.IsView(graph_.value(v).producer)) v = graph_.producer(v).in[0];
        // A reader of what an update left in its variable waits for the update, not for the variable alone.
        depend(graph_.value(v).producer, graph_.value(v).sbp[0].is_broadcast());
      }
      for (int b : graph_.node(n).after) depend(b, once);
    }
    for (int n : order_)
      if (graph_.WritesEach(n)) together_.push_back(UsersOf(plan_.root[graph_.node(n).out[0]]));
  }

  // Nodes that read a variable, itself or a view of it, or write it.
  std::vector<int> UsersOf(int variable) const {
    std::vector<int> users;
    for (int n : order_) {
      const auto is = [&](int v) { return plan_.root[v] == variable; };
      const Node& node = graph_.node(n);
      if (Computes(n) && (std::any_of(node.in.begin(), node.in.end(), is) ||
                          std::any_of(node.out.begin(), node.out.end(), is)))
        users.push_back(n);
    }
    return users;
  }

  // Readers and writer of a variable that each micro-batch writes are of one epoch, as the next micro-batch
  // reads what this one writes. False: none had to be made later for that.
  bool JoinEpochs() {
    bool changed = false;
    for (const std::vector<int>& users : together_) {
      int last = 0;
      for (int n : users) last = std::max(last, epoch_[n]);
      if (last > static_cast<int>(order_.size())) RefuseWholeWithin(users);
      for (int n : users) {
        changed = changed || epoch_[n] < last;
        epoch_[n] = last;
      }
    }
    return changed;
  }

  // Nodes from which one of `from` is reached, or the other way round.
  std::set<int> Reached(const std::vector<int>& from,
                        const std::vector<std::vector<Dependency>>& next) const {
    std::set<int> reached(from.begin(), from.end());
    std::vector<int> todo = from;
    while (!todo.empty()) {
      const int n = todo.back();
      todo.pop_back();
      for (auto [m, whole] : next[n])
        if (reached.insert(m).second) todo.push_back(m);
    }
    return reached;
  }

  [[noreturn]] void RefuseWholeWithin(const std::vector<int>& users) const {
    const std::set<int> behind = Reached(users, after_), ahead = Reached(users, before_);
    int writer = users.back();
    for (int n : users)
      if (graph_.WritesEach(n)) writer = n;
    const std::string& variable = graph_.producer(plan_.root[graph_.node(writer).out[0]]).name;
    for (int n : ahead)
      for (auto [b, whole] : before_[n])
        if (whole && behind.count(b))
          Fail(graph_.DescribeForUser(writer), ": variable '", variable, "' is written in each of ",
               graph_.times(), " micro-batches, but between a reader of it and this stands ",
               graph_.DescribeForUser(graph_.value(graph_.node(b).in[0]).producer),
               ", which is of the whole batch; use micro_batch_sum or micro_batch_mean there, or leave out "
               "each_micro_batch");
    Fail(graph_.DescribeForUser(writer), ": variable '", variable,
         "' is read within micro-batches and once for all of them; leave out each_micro_batch");
  }

  // The epoch of every node: one more than that of a node it needs whole, and else at least that of the nodes
  // it waits for. Between two epochs values are held for all micro-batches, so what leads to an update is as
  // late as it can be (a forward pass whose loss divides by a number of tokens is in the epoch of that loss,
  // the counting in one of its own) and the update as early, but for what it computes from variables alone,
  // which comes with its readers; then the rest likewise.
  void ChooseEpochs() {
    epoch_.assign(graph_.num_nodes(), 0);
    std::vector<bool> settled(graph_.num_nodes(), false);
    for (int n : order_) settled[n] = !Computes(n) || graph_.node(n).kind == NodeKind::kInput;
    auto as_early = [&] {
      int last = 0;
      for (int n : order_) {
        if (settled[n]) continue;
        for (auto [b, whole] : before_[n]) epoch_[n] = std::max(epoch_[n], epoch_[b] + whole);
        last = std::max(last, epoch_[n]);
      }
      return last;
    };
    do as_early();
    while (JoinEpochs());
    for (const std::vector<int>& users : together_)
      for (int n : users) settled[n] = true;
    std::vector<bool> constant(graph_.num_nodes(), false);  // waits for no input of the step
    for (int n : order_) {
      constant[n] = graph_.node(n).kind != NodeKind::kInput;
      for (auto [b, whole] : before_[n]) constant[n] = constant[n] && constant[b];
      settled[n] = settled[n] || (graph_.node(n).phase == Phase::kUpdate && !constant[n]);
    }
    for (auto it = order_.rbegin(); it != order_.rend(); ++it) {
      int late = 1 << 30;
      for (auto [r, whole] : after_[*it])
        if (settled[r]) late = std::min(late, epoch_[r] - whole);
      if (settled[*it] || late == 1 << 30) continue;
      epoch_[*it] = late;
      settled[*it] = true;
    }
    int last = as_early();
    for (auto it = order_.rbegin(); it != order_.rend(); ++it) {
      if (settled[*it]) continue;
      epoch_[*it] = last;
      for (auto [r, whole] : after_[*it]) epoch_[*it] = std::min(epoch_[*it], epoch_[r] - whole);
    }
  }

  // How often what a node works on has come back to an earlier stage: from there on it is another chunk of
  // that stage's work. The backward pass goes the same way back. Nodes that wait for inputs alone come with
  // the first that reads it.
  void FindChunks() {
    chunk_.assign(graph_.num_nodes(), 0);
    std::vector<bool> carried(graph_.num_nodes(), false);
    int last = 0;
    const std::vector<bool> written = LeadToVariables();
    for (int n : order_) {
      if (!Works(n, Phase::kForward)) continue;
      for (auto [b, whole] : before_[n]) {
        if (!Works(b, Phase::kForward)) continue;
        const bool back = graph_.node(n).slice < graph_.node(b).slice && !written[n];
        chunk_[n] = std::max(chunk_[n], chunk_[b] + back);
        carried[n] = carried[n] || carried[b] || graph_.node(n).slice != graph_.node(b).slice;
      }
      last = std::max(last, chunk_[n]);
    }
    if (last == 0) return;
    for (auto it = order_.rbegin(); it != order_.rend(); ++it) {
      if (!Works(*it, Phase::kForward) || carried[*it]) continue;
      int first = last;
      for (auto [r, whole] : after_[*it])
        if (Works(r, Phase::kForward)) first = std::min(first, chunk_[r]);
      chunk_[*it] = std::max(chunk_[*it], first);
    }
    for (int n : order_)
      if (Works(n, Phase::kBackward)) chunk_[n] = ChunkOfGradient(n, last);
  }

  // Nodes that end in writes of variables, in each micro-batch, and that nothing else waits for: where they
  // lie on an earlier stage, that makes no chunk of it.
  std::vector<bool> LeadToVariables() const {
    std::vector<bool> lead(graph_.num_nodes(), false);
    for (auto it = order_.rbegin(); it != order_.rend(); ++it) {
      const auto& readers = after_[*it];
      lead[*it] =
          Works(*it, Phase::kForward) && (graph_.WritesEach(*it) || !readers.empty()) &&
          std::all_of(readers.begin(), readers.end(), [&](const Dependency& r) { return lead[r.node]; });
    }
    return lead;
  }

  int ChunkOfGradient(int n, int last) const {
    const Slice& slice = graph_.node(n).slice;
    int of_gradients = last + 1, of_forward = -1;
    for (auto [b, whole] : before_[n]) {
      const Slice& from = graph_.node(b).slice;
      if (Works(b, Phase::kBackward))
        of_gradients = std::min(of_gradients, std::max(0, chunk_[b] - (from < slice ? 1 : 0)));
      else if (Works(b, Phase::kForward) && from == slice)
        of_forward = std::max(of_forward, chunk_[b]);
    }
    if (of_gradients <= last) return of_gradients;
    return of_forward < 0 ? last : of_forward;
  }

  // Whether a node does a part of the work on each micro-batch.
  bool Works(int n, Phase part) const {
    const Node& node = graph_.node(n);
    return Computes(n) && !IsEnd(node) && node.rate != Rate::kOnce && node.phase != Phase::kUpdate &&
           IsGradient(node.phase) == IsGradient(part);
  }

  std::vector<int> Levels() const {
    std::vector<int> level(graph_.num_nodes(), 0);
    std::vector<bool> constant(graph_.num_nodes(), false);  // waits for no input of the step
    for (int n : order_) {
      if (!Computes(n)) continue;
      constant[n] = graph_.node(n).kind != NodeKind::kInput;
      for (auto [b, whole] : before_[n]) {
        level[n] = std::max(level[n], level[b] + (ClassOf(b) == ClassOf(n) ? 0 : 1));
        constant[n] = constant[n] && constant[b];
      }
    }
    // A constant could run at any time: it stands with the first that reads it, not in a segment of its own.
    for (auto it = order_.rbegin(); it != order_.rend(); ++it) {
      if (!constant[*it] || after_[*it].empty()) continue;
      int first = 1 << 30;
      for (auto [r, whole] : after_[*it]) first = std::min(first, ClassOf(r) == ClassOf(*it) ? level[r] : -1);
      level[*it] = std::max(level[*it], first);
    }
    return level;
  }

  void MakeSegments() {
    std::vector<int> level = Levels();
    std::map<std::pair<Class, int>, std::vector<int>> groups;
    for (int n : order_)
      if (Computes(n)) groups[{ClassOf(n), level[n]}].push_back(n);
    // In the order of their first nodes, levels first: edges point forward.
    std::vector<std::tuple<int, int, const std::vector<int>*>> sorted;
    for (auto& [key, nodes] : groups) sorted.push_back({key.second, nodes[0], &nodes});
    std::sort(sorted.begin(), sorted.end());
    for (auto& [lvl, first, nodes] : sorted) {
      const Node& node = graph_.node(first);
      Segment s;
      s.nodes = *nodes;
      s.slice = node.slice;
      s.from = IsCollective(node) ? graph_.producer(node.in[0]).slice : node.slice;
      s.stream = std::get<1>(ClassOf(first));
      s.phase = node.phase;
      s.per_micro_batch = node.rate != Rate::kOnce;
      s.chunk = chunk_[first];
      s.epoch = epoch_[first];
      s.name = s.stream == kCompute
                   ? Cat(Name(s.phase), plan_.segments.size(), s.slice.str(graph_.mesh()).empty() ? "" : "@",
                         s.slice.str(graph_.mesh()))
                   : Cat(node.op, " ", node.name);
      for (int n : s.nodes) {
        s.seconds += cost_.Seconds(n);
        segment_of_[n] = static_cast<int>(plan_.segments.size());
      }
      plan_.segments.push_back(std::move(s));
    }
  }

  int Period(int segment, int value) const {
    return plan_.segments[segment].per_micro_batch ? graph_.PeriodOf(value) : 1;
  }

  void MakeBuffers() {
    auto buffer = [&](int value) -> int {
      int root = plan_.root[value];
      if (plan_.buffer_of[root] < 0) {
        plan_.buffer_of[root] = static_cast<int>(plan_.buffers.size());
        LogicalBuffer b;
        b.value = root;
        const Node& producer = graph_.producer(root);
        if (producer.kind == NodeKind::kVariable) {
          b.variable = producer.name;
          b.full = 1;
        } else {
          b.writer = segment_of_[graph_.value(root).producer];
          b.write_period = Period(b.writer, root);
        }
        plan_.buffers.push_back(std::move(b));
      }
      plan_.buffer_of[value] = plan_.buffer_of[root];
      return plan_.buffer_of[root];
    };
    for (int n : order_) {
      const Node& node = graph_.node(n);
      if (node.kind == NodeKind::kVariable) {
        buffer(node.out[0]);
        continue;
      }
      for (int v : node.out) buffer(v);
      for (int v : node.in) buffer(v);
      if (graph_.IsView(n)) continue;
      int s = segment_of_[n];
      for (int v : node.out) {
        LogicalBuffer& b = plan_.buffers[plan_.buffer_of[v]];
        if (!b.variable.empty()) b.writer = s;  // an update
      }
    }
    for (int n : order_) {
      if (segment_of_[n] < 0) continue;
      for (int v : graph_.node(n).in) {
        LogicalBuffer& b = plan_.buffers[plan_.buffer_of[v]];
        int s = segment_of_[n];
        std::vector<int>& readers = IsResult(graph_, v) ? b.result_readers : b.readers;
        if (s != b.writer && std::find(readers.begin(), readers.end(), s) == readers.end())
          readers.push_back(s);
      }
    }
    for (LogicalBuffer& b : plan_.buffers) {
      std::sort(b.readers.begin(), b.readers.end());
      std::sort(b.result_readers.begin(), b.result_readers.end());
    }
  }

  // A remade value is made for the next micro-batch once this one has read it; but a reader in a later epoch
  // reads it when all micro-batches are through with the one before.
  bool OneAtATime(int remade, int reader) const {
    return plan_.segments[segment_of_[remade]].epoch == plan_.segments[reader].epoch &&
           graph_.node(remade).rate == Rate::kRemade;
  }

  void MakeEdges() {
    std::map<std::tuple<int, int, int, int, int>, int> known;
    for (size_t i = 0; i < plan_.buffers.size(); ++i) {
      const LogicalBuffer& b = plan_.buffers[i];
      if (b.writer < 0) continue;
      auto add = [&](int r, int full) {
        int read_period = Period(r, b.value);
        auto [it, fresh] = known.try_emplace({b.writer, r, b.write_period, read_period, full},
                                             static_cast<int>(plan_.edges.size()));
        if (fresh) {
          LogicalEdge e;
          e.writer = b.writer;
          e.reader = r;
          e.write_period = b.write_period;
          e.read_period = read_period;
          e.full = full;
          // A variable has its one slot before any play: there an update waits for all who read it.
          if (!b.variable.empty()) e.slots = b.slots;
          if (b.variable.empty() && OneAtATime(graph_.value(b.value).producer, r)) e.slots = 1;
          plan_.edges.push_back(e);
        }
        plan_.edges[it->second].buffers.push_back(static_cast<int>(i));
      };
      for (int r : b.readers) add(r, b.full);
      for (int r : b.result_readers) add(r, 0);
    }
  }

  // Edges for an `after` within a micro-batch that no value stands for. Variables keep updates behind.
  void KeepBehind() {
    std::set<std::pair<int, int>> joined;
    for (const LogicalEdge& e : plan_.edges) joined.insert({e.writer, e.reader});
    for (int n : order_) {
      const Node& node = graph_.node(n);
      if (node.phase == Phase::kUpdate || graph_.WritesEach(n)) continue;
      for (int b : node.after) {
        const int from = segment_of_[b], to = segment_of_[n];
        if (from < 0 || to < 0 || from == to ||
            plan_.segments[from].per_micro_batch != plan_.segments[to].per_micro_batch ||
            !joined.insert({from, to}).second)
          continue;
        LogicalEdge edge;
        edge.writer = from;
        edge.reader = to;
        edge.slots = OneAtATime(b, to) ? 1 : graph_.times();
        edge.why = Cat(node.name, " comes after ", graph_.node(b).name);
        plan_.edges.push_back(edge);
      }
    }
  }

  void AdmitMicroBatches() {
    for (const StageLimit& limit : LimitsOf(plan_, graph_.times())) {
      LogicalEdge edge;
      edge.writer = limit.from;
      edge.reader = limit.to;
      edge.slots = limit.micro_batches;
      edge.why = limit.why;
      plan_.edges.push_back(edge);
    }
  }

  const Graph& graph_;
  const CompileOptions& options_;
  std::vector<int> order_;
  std::vector<std::vector<Dependency>> before_, after_;  // by node
  std::vector<int> epoch_, chunk_;                       // by node
  std::vector<std::vector<int>> together_;               // nodes that are of one epoch
  std::vector<int> region_;                              // by node, -1 for none; empty where all are one
  CostModel cost_;
  std::vector<int> segment_of_;
  std::map<std::vector<int>, int> link_of_;  // stream by mesh axes
  LogicalPlan plan_;
};

}  // namespace

LogicalPlan FormSegments(const Graph& graph, const CompileOptions& options) {
  return Former(graph, options).Run();
}

}  // namespace oneflow_like
