// Segments, buffers and edges.
// Needs: a lowered graph. Leaves: a logical plan without order: consecutive nodes of one slice, stream, phase
// and rate that need no message in between are one segment; each collective, input and fetch is one of its
// own. Values become buffers (views share their root's), and edges carry the credits between segments.
//
// A node's level counts how often the longest path to it changes segment class. Nodes of one class and level
// have no path between them that leaves the class, so joining them makes no cycle.
#include <algorithm>
#include <compare>
#include <map>
#include <set>
#include <tuple>

#include "compiler/cost/cost.h"
#include "compiler/plan/epochs.h"
#include "compiler/plan/make_plans.h"
#include "compiler/plan/schedule.h"

namespace oneflow_like {

namespace {

constexpr int kCompute = 0;  // of the plan's streams
constexpr double kAnyGain = -1e9;
// A GPU has eight queues; feeds, fetches, copies and kernels need four.
constexpr int kMostLinks = 4;

// Per value the value whose bytes it has: through views, and from an update's result to its variable.
std::vector<int> Roots(const Graph& graph, const std::vector<int>& order) {
  std::vector<int> root(graph.num_values());
  for (int v = 0; v < graph.num_values(); ++v) root[v] = v;
  for (int n : order) {
    const Node& node = graph.node(n);
    if (graph.IsView(n)) root[node.out[0]] = root[node.in[0]];
    for (auto [out, in] : graph.InPlace(n)) root[node.out[out]] = root[node.in[in]];
  }
  return root;
}

// The mesh axes along which the members of a collective differ.
std::vector<int> AxesAcross(const Graph& graph, const Node& collective) {
  std::vector<int> axes;
  if (!collective.attrs.Has("axes")) return axes;
  for (int64_t a : collective.attrs.Ints("axes"))
    if (graph.mesh().axis_size(static_cast<int>(a)) > 1) axes.push_back(static_cast<int>(a));
  return axes;
}

struct Streams {
  std::vector<LogicalStream> all;
  std::map<std::vector<int>, int> link_of;  // by the mesh axes of a collective
  int from_host = -1, to_host = -1;         // of copies, if there are any

  int Of(const Graph& graph, const Node& node) const {
    if (IsHostCopy(node)) return node.op == kFromHost ? from_host : to_host;
    return IsCollective(node) ? link_of.at(AxesAcross(graph, node)) : kCompute;
  }
};

// The level of links that members which differ along these axes need.
int LevelOf(const Mesh& mesh, const std::vector<int>& axes, const Topology& topology) {
  int64_t span = 1, stride = 1;
  for (int a = mesh.rank() - 1; a >= 0; stride *= mesh.axis_size(a--))
    if (HasAxis(axes, a)) span += stride * (mesh.axis_size(a) - 1);
  return std::min(static_cast<int>(&topology.Spanning(span) - topology.links.data()), kMostLinks - 1);
}

// A link stream for each set of mesh axes that communicates, so that messages along one axis do not wait
// for those along another. Where there are more sets than links, those share one that use the same level of
// the network: what goes between hosts holds up nothing within one. Copies have one stream in each direction.
Streams StreamsOf(const Graph& graph, const std::vector<int>& order, const Topology& topology) {
  std::set<std::vector<int>> sets;
  for (int n : order)
    if (IsCollective(graph.node(n))) sets.insert(AxesAcross(graph, graph.node(n)));
  std::vector<std::vector<int>> sorted(sets.begin(), sets.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.size() < b.size(); });
  const bool enough = std::ssize(sorted) <= kMostLinks;
  const auto level = [&](const std::vector<int>& axes) {
    return enough ? 0 : LevelOf(graph.mesh(), axes, topology);
  };
  std::set<int> levels;
  for (const std::vector<int>& axes : sorted) levels.insert(level(axes));
  std::map<int, int> last;  // stream of a level
  Streams streams{.all = {{"compute", StreamKind::kCompute, {}}}};
  for (const std::vector<int>& axes : sorted) {
    const int at = level(axes);
    // Levels that have no stream yet keep one for themselves.
    const auto others = std::count_if(levels.begin(), levels.end(),
                                      [&](int other) { return other != at && last.count(other) == 0; });
    if (last.count(at) == 0 || std::ssize(streams.all) + others <= kMostLinks) {
      last[at] = static_cast<int>(streams.all.size());
      streams.all.push_back({"link", StreamKind::kLink, {}});
    }
    streams.link_of[axes] = last[at];
    std::vector<int>& joined = streams.all[last[at]].axes;
    for (int a : axes)
      if (std::find(joined.begin(), joined.end(), a) == joined.end()) joined.push_back(a);
    std::sort(joined.begin(), joined.end());
  }
  for (LogicalStream& stream : streams.all)
    for (size_t i = 0; i < stream.axes.size(); ++i)
      stream.name += Cat(i == 0 ? " " : "+", graph.mesh().axis_name(stream.axes[i]));
  const auto add_copies = [&](int* stream, const char* name, StreamKind kind, auto are_of) {
    if (std::none_of(order.begin(), order.end(), [&](int n) { return are_of(graph.node(n)); })) return;
    *stream = static_cast<int>(streams.all.size());
    streams.all.push_back({name, kind, {}});
  };
  add_copies(&streams.from_host, "from host", StreamKind::kFromHost,
             [](const Node& node) { return node.op == kFromHost; });
  add_copies(&streams.to_host, "to host", StreamKind::kToHost,
             [](const Node& node) { return IsHostCopy(node) && node.op != kFromHost; });
  return streams;
}

// --- Nodes into segments ---

bool GradientLeaves(const Graph& graph, const CompileOptions& options, int n) {
  const Node& node = graph.node(n);
  return IsCollective(node) && IsGradient(graph.producer(node.in[0]).phase) &&
         (node.phase == Phase::kUpdate || (IsGradient(node.phase) && options.decided.zero > 0)) &&
         graph.producer(node.in[0]).slice == node.slice;
}

// By node, the number of its region where the work of regions stays apart, else -1: where gradients leave or
// weights are gathered, those of one layer are on their way while another is worked on.
std::vector<int> RegionsApart(const Graph& graph, const CompileOptions& options,
                              const std::vector<int>& order) {
  std::vector<int> region(graph.num_nodes(), -1);
  const bool gathered = options.decided.zero > 0;
  if (!gathered &&
      std::none_of(order.begin(), order.end(), [&](int n) { return GradientLeaves(graph, options, n); }))
    return region;
  std::map<std::string, int> number{{"", -1}};
  for (int n : order) {
    const Node& node = graph.node(n);
    if (IsGradient(node.phase) || (gathered && node.phase == Phase::kForward))
      region[n] = number.try_emplace(graph.regions().Of(node.name), number.size()).first->second;
  }
  return region;
}

// Nodes of different classes are in different segments.
struct Class {
  Slice slice;
  int stream = -1;
  Phase phase = Phase::kForward;
  bool per_micro_batch = false;
  int epoch = 0, chunk = 0;
  int apart = -1;  // its region, or the node's own number
  int part = -1;

  bool operator==(const Class&) const = default;
  std::weak_ordering operator<=>(const Class&) const = default;
};

// By node; `order` is the graph's.
std::vector<Class> ClassesOf(const Graph& graph, const CompileOptions& options, const std::vector<int>& order,
                             const Streams& streams, const std::vector<int>& epoch,
                             const std::vector<int>& chunk) {
  const std::vector<int> region = RegionsApart(graph, options, order);
  std::vector<Class> classes(graph.num_nodes());
  for (int n : order) {
    if (!Runs(graph, n)) continue;
    const Node& node = graph.node(n);
    Class& c = classes[n] = {.slice = node.slice,
                             .per_micro_batch = node.rate != Rate::kOnce,
                             .epoch = epoch[n],
                             .chunk = chunk[n],
                             .apart = n};
    if (node.kind == NodeKind::kInput || node.kind == NodeKind::kFetch) continue;
    c.phase = node.phase;
    c.stream = streams.Of(graph, node);
    if (c.stream == kCompute) {
      c.apart = region[n];
      c.part = node.part;
    } else if (IsHostCopy(node) && node.part >= 0) {  // together with others of its bucket
      c.apart = -1;
      c.part = node.part;
    }
  }
  return classes;
}

// By node. A constant could run at any time: it stands with the first that reads it, not in a segment of its
// own.
std::vector<int> LevelsOf(const Graph& graph, const Dependencies& waits, const std::vector<Class>& classes) {
  std::vector<int> level(graph.num_nodes(), 0);
  for (int n : waits.order)
    for (auto [b, whole] : waits.before[n])
      level[n] = std::max(level[n], level[b] + (classes[b] == classes[n] ? 0 : 1));
  const std::vector<bool> constant = FindConstants(graph, waits);
  for (auto it = waits.order.rbegin(); it != waits.order.rend(); ++it) {
    if (!constant[*it] || waits.after[*it].empty()) continue;
    int first = 1 << 30;
    for (auto [r, whole] : waits.after[*it])
      first = std::min(first, classes[r] == classes[*it] ? level[r] : -1);
    level[*it] = std::max(level[*it], first);
  }
  return level;
}

std::vector<Segment> SegmentsOf(const Graph& graph, const CompileOptions& options,
                                const std::vector<int>& order, const std::vector<Class>& classes,
                                const std::vector<int>& level) {
  std::map<std::pair<Class, int>, std::vector<int>> groups;
  for (int n : order)
    if (Runs(graph, n)) groups[{classes[n], level[n]}].push_back(n);
  // In the order of their first nodes, levels first: edges point forward.
  std::vector<std::tuple<int, int, const Class*, const std::vector<int>*>> sorted;
  for (const auto& [key, nodes] : groups) sorted.push_back({key.second, nodes[0], &key.first, &nodes});
  std::sort(sorted.begin(), sorted.end());
  CostModel cost(graph, options.machine);
  std::vector<Segment> segments;
  for (const auto& [_, first, of, nodes] : sorted) {
    const Node& node = graph.node(first);
    Segment s;
    s.nodes = *nodes;
    s.slice = node.slice;
    s.from = IsCollective(node) ? graph.producer(node.in[0]).slice : node.slice;
    s.stream = of->stream;
    s.phase = node.phase;
    s.per_micro_batch = of->per_micro_batch;
    s.chunk = of->chunk;
    s.epoch = of->epoch;
    const std::string at = s.slice.str(graph.mesh());
    s.name = s.stream == kCompute ? Cat(Name(s.phase), segments.size(), at.empty() ? "" : "@", at)
                                  : Cat(node.op, " ", node.name);
    for (int n : s.nodes) s.seconds += cost.Seconds(n);
    segments.push_back(std::move(s));
  }
  return segments;
}

// By node, its segment; -1: none.
std::vector<int> SegmentByNode(const Graph& graph, const std::vector<Segment>& segments) {
  std::vector<int> of(graph.num_nodes(), -1);
  for (size_t s = 0; s < segments.size(); ++s)
    for (int n : segments[s].nodes) of[n] = static_cast<int>(s);
  return of;
}

// --- Values into buffers ---

int PeriodIn(const Graph& graph, const Segment& segment, int value) {
  return segment.per_micro_batch ? graph.PeriodOf(value) : 1;
}

// Without their readers. Sets `buffer_of`, which is LogicalPlan's.
std::vector<LogicalBuffer> BuffersOf(const Graph& graph, const std::vector<int>& order,
                                     const std::vector<int>& root, const std::vector<Segment>& segments,
                                     const std::vector<int>& segment_of, std::vector<int>* buffer_of) {
  std::vector<LogicalBuffer> buffers;
  buffer_of->assign(graph.num_values(), -1);
  const auto buffer = [&](int value) -> LogicalBuffer& {
    int& of_root = (*buffer_of)[root[value]];
    if (of_root < 0) {
      of_root = static_cast<int>(buffers.size());
      LogicalBuffer& b = buffers.emplace_back();
      b.value = root[value];
      const Node& producer = graph.producer(b.value);
      if (producer.kind == NodeKind::kVariable) {
        b.variable = producer.name;
        b.full = 1;
      } else {
        b.writer = segment_of[graph.value(b.value).producer];
        b.write_period = PeriodIn(graph, segments[b.writer], b.value);
      }
    }
    (*buffer_of)[value] = of_root;
    return buffers[of_root];
  };
  for (int n : order) {
    const Node& node = graph.node(n);
    for (int v : node.out) {
      LogicalBuffer& b = buffer(v);
      if (!b.variable.empty() && segment_of[n] >= 0) b.writer = segment_of[n];  // an update
    }
    for (int v : node.in) buffer(v);
  }
  return buffers;
}

void AddReaders(const Graph& graph, const std::vector<int>& order, const std::vector<int>& segment_of,
                const std::vector<int>& buffer_of, std::vector<LogicalBuffer>* buffers) {
  for (int n : order) {
    const int s = segment_of[n];
    if (s < 0) continue;
    for (int v : graph.node(n).in) {
      LogicalBuffer& b = (*buffers)[buffer_of[v]];
      std::vector<int>& readers = IsResult(graph, v) ? b.result_readers : b.readers;
      if (s != b.writer && std::find(readers.begin(), readers.end(), s) == readers.end())
        readers.push_back(s);
    }
  }
  for (LogicalBuffer& b : *buffers) {
    std::sort(b.readers.begin(), b.readers.end());
    std::sort(b.result_readers.begin(), b.result_readers.end());
  }
}

// --- Edges ---

// A remade value is made for the next micro-batch once this one has read it; but a reader in a later epoch
// reads it when all micro-batches are through with the one before.
bool OneAtATime(const Graph& graph, int remade, const Segment& writer, const Segment& reader) {
  return writer.epoch == reader.epoch && graph.node(remade).rate == Rate::kRemade;
}

// One for all buffers between two segments that have the same periods.
std::vector<LogicalEdge> EdgesOfBuffers(const Graph& graph, const std::vector<Segment>& segments,
                                        const std::vector<LogicalBuffer>& buffers) {
  std::vector<LogicalEdge> edges;
  std::map<std::tuple<int, int, int, int, int>, int> known;
  for (size_t i = 0; i < buffers.size(); ++i) {
    const LogicalBuffer& b = buffers[i];
    if (b.writer < 0) continue;
    const auto add = [&](int r, int full) {
      const int read_period = PeriodIn(graph, segments[r], b.value);
      auto [it, fresh] =
          known.try_emplace({b.writer, r, b.write_period, read_period, full}, static_cast<int>(edges.size()));
      if (fresh) {
        LogicalEdge& e = edges.emplace_back();
        e.writer = b.writer;
        e.reader = r;
        e.write_period = b.write_period;
        e.read_period = read_period;
        e.full = full;
        // A variable has its one slot before any play: there an update waits for all who read it.
        if (!b.variable.empty())
          e.slots = b.slots;
        else if (OneAtATime(graph, graph.value(b.value).producer, segments[b.writer], segments[r]))
          e.slots = 1;
      }
      edges[it->second].buffers.push_back(static_cast<int>(i));
    };
    for (int r : b.readers) add(r, b.full);
    for (int r : b.result_readers) add(r, 0);
  }
  return edges;
}

LogicalEdge EdgeWithoutBuffer(int writer, int reader, int slots, std::string why) {
  LogicalEdge edge;
  edge.writer = writer;
  edge.reader = reader;
  edge.slots = slots;
  edge.why = std::move(why);
  return edge;
}

// Adds those for an `after` within a micro-batch that no value stands for. Variables keep updates behind.
// Copies from the host may wait for all micro-batches.
void AddWaits(const Graph& graph, const std::vector<int>& order, const std::vector<Segment>& segments,
              const std::vector<int>& segment_of, std::vector<LogicalEdge>* edges) {
  std::set<std::pair<int, int>> joined;
  for (const LogicalEdge& e : *edges) joined.insert({e.writer, e.reader});
  for (int n : order) {
    const Node& node = graph.node(n);
    const bool copies = node.op == kFromHost;
    if ((node.phase == Phase::kUpdate && !copies) || graph.WritesEach(n)) continue;
    for (int b : node.after) {
      const int from = segment_of[b], to = segment_of[n];
      if (from < 0 || to < 0 || from == to) continue;
      const bool of_all = copies && segments[from].per_micro_batch && !segments[to].per_micro_batch;
      if ((segments[from].per_micro_batch != segments[to].per_micro_batch && !of_all) ||
          !joined.insert({from, to}).second)
        continue;
      const bool one = of_all || OneAtATime(graph, b, segments[from], segments[to]);
      edges->push_back(EdgeWithoutBuffer(from, to, one ? 1 : graph.times(),
                                         Cat(node.name, " comes after ", graph.node(b).name)));
      if (of_all) edges->back().write_period = graph.times();
    }
  }
}

}  // namespace

LogicalPlan FormSegments(const Graph& graph, const CompileOptions& options) {
  LogicalPlan plan;
  plan.schedule = options.decided.schedule;
  plan.exact_groups = options.decided.exact_groups;
  const Overlap overlap = options.decided.overlap.value_or(Overlap());
  if (overlap.chunks > 1) plan.second = overlap.always ? kAnyGain : overlap.gain;

  const Dependencies waits = FindDependencies(graph);
  const std::vector<int>& order = waits.order;
  plan.root = Roots(graph, order);
  const Streams streams = StreamsOf(graph, order, options.machine.topology);
  plan.streams = streams.all;

  const std::vector<Class> classes = ClassesOf(graph, options, order, streams,
                                               FindEpochs(graph, waits, plan.root), FindChunks(graph, waits));
  plan.segments = SegmentsOf(graph, options, order, classes, LevelsOf(graph, waits, classes));

  const std::vector<int> segment_of = SegmentByNode(graph, plan.segments);
  plan.buffers = BuffersOf(graph, order, plan.root, plan.segments, segment_of, &plan.buffer_of);
  AddReaders(graph, order, segment_of, plan.buffer_of, &plan.buffers);
  plan.edges = EdgesOfBuffers(graph, plan.segments, plan.buffers);
  AddWaits(graph, order, plan.segments, segment_of, &plan.edges);
  for (const StageLimit& limit : LimitsOf(plan, graph.times()))
    plan.edges.push_back(EdgeWithoutBuffer(limit.from, limit.to, limit.micro_batches, limit.why));
  return plan;
}

}  // namespace oneflow_like
