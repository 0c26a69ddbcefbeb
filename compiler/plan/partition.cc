// One rank's physical plan.
// Needs: a logical plan with its order. Leaves: the actors, buffers, streams and collectives of one rank; its
// cost does not grow with the number of ranks, but for the groups the rank belongs to. Memory is placed
// afterwards.
#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "compiler/plan/rank_plan.h"
#include "core/plan/plan_values.h"

namespace oneflow_like {

namespace {

// Of the ranks with equal pieces the first delivers.
bool FetchesOn(const RankOfMesh& rank, const Node& node) {
  const NdSbp& sbp = rank.graph.value(node.in[0]).sbp;
  for (size_t a = 0; a < rank.coords.size(); ++a)
    if (node.slice.fixed[a] == Slice::kFree && sbp[a + 1].is_broadcast() && rank.coords[a] != 0) return false;
  return true;
}

// The segments that the rank takes part in.
std::vector<int> SegmentsOn(const RankOfMesh& rank, const LogicalPlan& logical) {
  std::vector<int> segments;
  for (size_t s = 0; s < logical.segments.size(); ++s)
    if (rank.In(logical.segments[s].slice) || rank.In(logical.segments[s].from))
      segments.push_back(static_cast<int>(s));
  return segments;
}

// The actors of these segments; their ids are the numbers of segments.
void AddActors(const RankOfMesh& rank, const LogicalPlan& logical, const CompileOptions& options,
               const std::vector<int>& segments, plan::Plan* plan) {
  std::vector<std::vector<int>> positions(logical.segments.size());  // of acts in the order
  for (size_t i = 0; i < logical.order.size(); ++i)
    positions[logical.order[i].transition].push_back(static_cast<int>(i));
  CostModel cost(rank.graph, options.machine);
  std::deque<Route> routes;
  for (int s : segments) {
    const Segment& segment = logical.segments[s];
    const Node& node = rank.graph.node(segment.nodes[0]);
    if (node.kind == NodeKind::kFetch && !FetchesOn(rank, node)) continue;
    plan::Actor* actor = plan->add_actor();
    actor->set_id(s);
    if (rank.described()) actor->set_name(segment.name);
    actor->set_stream(segment.stream);
    actor->set_acts(segment.per_micro_batch ? rank.graph.times() : 1);
    for (int n : segment.nodes) MakeKernel(rank, logical, options, segment, n, &cost, actor->add_kernel());
    if (segment.stream >= 0 && !logical.On(segment, StreamKind::kCompute))
      for (int position : positions[s]) actor->add_position(position);
    if (IsCollective(node) && rank.described()) MakeCollective(rank, node, &routes, actor);
    if (node.kind == NodeKind::kInput) actor->set_feed(node.name);
    if (node.kind == NodeKind::kFetch) actor->set_fetch(node.name);
  }
}

constexpr char kDevice[] = "device", kHost[] = "host";

// The number of an arena of the plan, which gets one on the host with the first buffer there.
int ArenaOf(bool on_host, plan::Plan* plan) {
  if (on_host && plan->arena_size() == 1) plan->add_arena()->set_memory(kHost);
  return on_host ? 1 : 0;
}

// The buffers that these segments use, in the order of their first use.
void AddBuffers(const RankOfMesh& rank, const LogicalPlan& logical, const std::vector<int>& segments,
                plan::Plan* plan) {
  std::vector<bool> made(logical.buffers.size(), false);
  const auto add = [&](const std::vector<int>& values) {
    for (int value : values) {
      const int id = logical.buffer_of[value];
      if (made[id]) continue;
      made[id] = true;
      const LogicalBuffer& b = logical.buffers[id];
      const Value& v = rank.graph.value(b.value);
      plan::Buffer* out = plan->add_buffer();
      out->set_id(id);
      if (rank.described()) out->set_name(v.name);
      out->set_slot_bytes(rank.SlotBytes(v));
      out->set_arena(ArenaOf(rank.graph.OnHost(b.value), plan));
      out->set_slots(b.slots);
      out->set_full(b.full);
      out->set_variable(b.variable);
    }
  };
  for (int s : segments)
    for (int n : logical.segments[s].nodes) {
      const Node& node = rank.graph.node(n);
      if (rank.Reads(logical.segments[s], node)) add(node.in);
      if (rank.Writes(logical.segments[s], node)) add(node.out);
    }
}

// The last kernel of a segment that touches one of the buffers behind an edge.
int LastUse(const Graph& graph, const LogicalPlan& logical, int segment, const LogicalEdge& edge,
            bool writes) {
  int last = -1;
  const std::vector<int>& nodes = logical.segments[segment].nodes;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = graph.node(nodes[i]);
    for (int v : writes ? node.out : node.in)
      if (std::binary_search(edge.buffers.begin(), edge.buffers.end(), logical.buffer_of[v]))
        last = static_cast<int>(i);
  }
  return last < 0 ? static_cast<int>(nodes.size()) - 1 : last;
}

// `actor_of`: per segment the actor of the plan, or nullptr.
void AddPorts(const RankOfMesh& rank, const LogicalPlan& logical, const std::vector<plan::Actor*>& actor_of) {
  for (size_t e = 0; e < logical.edges.size(); ++e) {
    const LogicalEdge& edge = logical.edges[e];
    plan::Actor *writer = actor_of[edge.writer], *reader = actor_of[edge.reader];
    if (writer == nullptr || reader == nullptr) continue;
    // A transfer between stages has one end here; the other end's edges are on the other rank.
    if (!rank.In(logical.segments[edge.writer].slice) || !rank.In(logical.segments[edge.reader].from))
      continue;
    plan::Port* out = writer->add_out();
    out->set_edge(static_cast<int>(e));
    out->set_credits(edge.slots - edge.full);
    out->set_period(edge.write_period);
    out->set_kernel(LastUse(rank.graph, logical, edge.writer, edge, true));
    out->set_peer(edge.reader);
    plan::Port* in = reader->add_in();
    in->set_edge(static_cast<int>(e));
    in->set_credits(edge.full);
    in->set_period(edge.read_period);
    in->set_kernel(LastUse(rank.graph, logical, edge.reader, edge, false));
    in->set_peer(edge.writer);
  }
}

void AddStreams(const LogicalPlan& logical, const std::vector<plan::Actor*>& actor_of, plan::Plan* plan) {
  for (const LogicalStream& s : logical.streams) {
    plan::Stream* stream = plan->add_stream();
    stream->set_name(s.name);
    stream->set_kind(static_cast<plan::StreamKind>(s.kind));
    for (int a : s.axes) stream->add_axis(a);
  }
  for (const Firing& f : logical.order) {
    const int stream = logical.segments[f.transition].stream;
    if (actor_of[f.transition] != nullptr && stream >= 0)
      plan->mutable_stream(stream)->add_actor(f.transition);
  }
}

// Adds an input or output to the list, unless it is there.
void Declare(const std::string& name, const Value& v, google::protobuf::RepeatedPtrField<plan::Fetch>* list) {
  for (const plan::Fetch& f : *list)
    if (f.name() == name) return;
  plan::Fetch* f = list->Add();
  f->set_name(name);
  f->set_dtype(static_cast<int>(v.dtype));
  Set(v.shape, f->mutable_global());
}

// Inputs and outputs of the whole mesh, the rank's inputs first.
void DeclareEnds(const Graph& graph, const LogicalPlan& logical, const std::vector<int>& segments,
                 plan::Plan* plan) {
  const auto declare = [&](const Segment& s) {
    const Node& node = graph.node(s.nodes[0]);
    if (node.kind == NodeKind::kFetch) Declare(node.name, graph.value(node.in[0]), plan->mutable_output());
    if (node.kind == NodeKind::kInput) Declare(node.name, graph.value(node.out[0]), plan->mutable_input());
  };
  for (int s : segments)
    if (graph.node(logical.segments[s].nodes[0]).kind == NodeKind::kInput) declare(logical.segments[s]);
  for (const Segment& s : logical.segments) declare(s);
}

// How a variable gets its first value.
void SetInit(const Node& node, const Value& v, plan::Kernel* init) {
  init->set_name(node.attrs.Str("init"));
  init->set_node(node.name);
  init->set_file(node.line.file);
  init->set_line(node.line.line);
  plan::Operand* piece = init->add_out();
  piece->set_dtype(static_cast<int>(v.dtype));
  Set(v.shape, piece->mutable_global());
  Attrs attrs = node.attrs;
  attrs.Set("shape", std::vector<int64_t>(v.shape.begin(), v.shape.end()));
  attrs.Set("dtype", std::string(Name(v.dtype)));
  Set(attrs, init->mutable_attr());
}

void AddVariables(const RankOfMesh& rank, const LogicalPlan& logical, plan::Plan* plan) {
  for (const LogicalBuffer& b : logical.buffers) {
    if (b.variable.empty()) continue;
    const Node& node = rank.graph.producer(b.value);
    if (!rank.In(node.slice)) continue;
    const Value& v = rank.graph.value(b.value);
    plan::Variable* out = plan->add_variable();
    out->set_name(b.variable);
    out->set_bytes(rank.SlotBytes(v));
    if (rank.graph.OnHost(b.value)) out->set_memory(kHost);
    if (!rank.described()) continue;
    out->set_dtype(static_cast<int>(v.dtype));
    Set(v.shape, out->mutable_global());
    Set(rank.Boxes(v)[0], out->mutable_box());
    SetInit(node, v, out->mutable_init());
    if (b.writer >= 0) plan->add_updated(b.variable);
  }
}

using Numbers = std::vector<int64_t>;

// All that makes the plans of two ranks differ: the layouts of values (each shape and layout once) and the
// places of nodes.
struct WhatRanksHave {
  std::vector<const Value*> values;
  std::vector<const Node*> fetches;
  std::vector<const Slice*> slices;
};

WhatRanksHave WhatRanksHaveOf(const Graph& graph, const LogicalPlan& logical) {
  WhatRanksHave what;
  std::set<Numbers> known;
  const auto add_value = [&](const Value& value) {
    Numbers key(value.shape.begin(), value.shape.end());
    for (const Sbp& sbp : value.sbp) {  // a part has the whole shape
      const bool split = sbp.is_split();
      key.insert(key.end(), {split ? sbp.axis : -1, split ? sbp.grain : 0});
    }
    if (known.insert(std::move(key)).second) what.values.push_back(&value);
  };
  const auto add_slice = [&](const Slice& slice) {
    if (std::none_of(what.slices.begin(), what.slices.end(), [&](const Slice* s) { return *s == slice; }))
      what.slices.push_back(&slice);
  };
  for (const Segment& segment : logical.segments) {
    add_slice(segment.slice);
    add_slice(segment.from);
    for (int n : segment.nodes) {
      const Node& node = graph.node(n);
      if (node.kind == NodeKind::kFetch) what.fetches.push_back(&node);
      for (int v : node.in) add_value(graph.value(v));
      for (int v : node.out) add_value(graph.value(v));
    }
  }
  return what;
}

}  // namespace

std::vector<int> FirstAlike(const Graph& graph, const LogicalPlan& logical) {
  const Mesh& mesh = graph.mesh();
  const int world = mesh.size();
  const WhatRanksHave what = WhatRanksHaveOf(graph, logical);
  std::vector<std::vector<int>> coords;
  std::vector<int64_t> kind_of;  // by rank, a number for its pieces and the segments it takes part in
  std::vector<Numbers> of_rank(world);
  std::map<Numbers, int64_t> kinds;
  for (int r = 0; r < world; ++r) {
    const RankOfMesh rank(graph, r, PlanDetail::kOutline);
    Numbers key;
    for (const Value* value : what.values)
      for (const Box& box : rank.Boxes(*value)) key.insert(key.end(), box.extent.begin(), box.extent.end());
    for (const Slice* slice : what.slices) key.push_back(rank.In(*slice));
    key.insert(key.end(), rank.device_kind.begin(), rank.device_kind.end());
    kind_of.push_back(kinds.emplace(std::move(key), std::ssize(kinds)).first->second);
    for (const Node* fetch : what.fetches) of_rank[r].push_back(FetchesOn(rank, *fetch));
    coords.push_back(rank.coords);
  }
  // The kinds of all that a rank may exchange messages with, over one axis or several.
  std::vector<int> wide;
  for (int a = 0; a < mesh.rank(); ++a)
    if (mesh.axis_size(a) > 1) wide.push_back(a);
  std::map<Numbers, int> first;
  std::vector<int> alike;
  for (int r = 0; r < world; ++r) {
    Numbers& key = of_rank[r];
    key.push_back(kind_of[r]);
    for (int over = 1; over < 1 << wide.size(); ++over)
      for (int m = 0; m < world; ++m) {
        bool member = true;
        for (size_t w = 0; w < wide.size(); ++w)
          member = member && ((over >> w & 1) || coords[r][wide[w]] == coords[m][wide[w]]);
        if (member) key.push_back(kind_of[m]);
      }
    alike.push_back(first.emplace(std::move(key), r).first->second);
  }
  return alike;
}

plan::Plan Partition(const Graph& graph, const LogicalPlan& logical, const CompileOptions& options, int rank,
                     PlanDetail detail) {
  const RankOfMesh here(graph, rank, detail);
  plan::Plan plan;
  plan.set_name(options.asked.name);
  plan.set_rank(rank);
  plan.set_world(graph.mesh().size());
  plan.set_device_kind(here.device_kind);
  plan.set_device_kinds(graph.mesh().kind());
  plan.set_times(graph.times());
  plan.set_seed(options.asked.seed);
  plan.set_order_hash(logical.hash);
  plan.set_kernel_threads(options.asked.kernel_threads);
  plan.add_arena()->set_memory(kDevice);

  const std::vector<int> segments = SegmentsOn(here, logical);
  AddActors(here, logical, options, segments, &plan);
  AddBuffers(here, logical, segments, &plan);
  std::vector<plan::Actor*> actor_of(logical.segments.size(), nullptr);
  for (plan::Actor& actor : *plan.mutable_actor()) actor_of[actor.id()] = &actor;
  AddPorts(here, logical, actor_of);
  AddStreams(logical, actor_of, &plan);
  if (here.described()) DeclareEnds(graph, logical, segments, &plan);
  AddVariables(here, logical, &plan);
  return plan;
}

}  // namespace oneflow_like
