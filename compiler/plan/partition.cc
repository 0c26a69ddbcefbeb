// One rank's physical plan.
// Needs: a logical plan with its order. Leaves: the actors, buffers, streams and collectives of one rank; its
// cost does not grow with the number of ranks, but for the groups the rank belongs to. Memory is placed
// afterwards.
#include <glog/logging.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <set>

#include "compiler/cost/collective_costs.h"
#include "compiler/plan/make_plans.h"
#include "core/plan/plan_values.h"

namespace oneflow_like {

namespace {

int64_t RoundUp(int64_t bytes) { return (bytes + 63) / 64 * 64; }

class Partitioner {
 public:
  Partitioner(const Graph& graph, const LogicalPlan& logical, const CompileOptions& options, int rank,
              PlanDetail detail)
      : graph_(graph),
        logical_(logical),
        options_(options),
        detail_(detail),
        sizes_(graph.Sizes()),
        cost_(graph, options.machine) {
    coords_ = graph.mesh().Coords(rank);
    plan_.set_name(options.name);
    plan_.set_rank(rank);
    plan_.set_world(graph.mesh().size());
    plan_.set_device_kind(graph.mesh().KindOf(rank));
    plan_.set_device_kinds(graph.mesh().kind());
    plan_.set_times(graph.times());
    plan_.set_seed(options.seed);
    plan_.set_order_hash(logical.hash);
    plan_.set_kernel_threads(options.kernel_threads);
    plan_.add_arena()->set_memory("device");
  }

  plan::Plan Run() {
    actor_of_.assign(logical_.segments.size(), -1);
    positions_.resize(logical_.segments.size());
    for (size_t i = 0; i < logical_.order.size(); ++i)
      positions_[logical_.order[i].transition].push_back(static_cast<int>(i));
    for (size_t s = 0; s < logical_.segments.size(); ++s)
      if (Here(logical_.segments[s].slice) || Here(logical_.segments[s].from)) MakeActor(static_cast<int>(s));
    for (size_t e = 0; e < logical_.edges.size(); ++e) MakePorts(static_cast<int>(e));
    MakeStreams();
    MakeVariables();
    return std::move(plan_);
  }

 private:
  bool Here(const Slice& slice) const { return slice.Contains(coords_); }
  bool Described() const { return detail_ != PlanDetail::kMemory; }

  // How many micro-batches have pieces of such a tensor that the plan tells apart. An outline keeps the first
  // of pieces that are alike but for their place.
  int TimesOf(const Dims& shape, const Sbp& sbp) const {
    if (!sbp.is_split()) return 1;
    const int times = graph_.times();
    const auto extent = [&](int t) { return Cut({0, shape[sbp.axis]}, times, t, sbp.grain).extent; };
    return detail_ != PlanDetail::kWhole && extent(0) == extent(times - 1) ? 1 : times;
  }

  // The pieces of a value this rank holds.
  std::vector<Box> Boxes(const Value& v, const NdSbp& sbp) const {
    std::vector<int> coords(1 + coords_.size());
    std::copy(coords_.begin(), coords_.end(), coords.begin() + 1);
    std::vector<Box> boxes;
    const int times = TimesOf(v.shape, sbp[0]);
    for (int t = 0; t < times; ++t) {
      coords[0] = t;
      boxes.push_back(LocalBox(v.shape, sbp, sizes_, coords));
    }
    return boxes;
  }

  int64_t SlotBytes(const Value& v) const {
    int64_t most = 0;
    for (const Box& b : Boxes(v, v.sbp)) most = std::max(most, b.elements());
    return std::max<int64_t>(64, RoundUp(most * SizeOf(v.dtype)));
  }

  int BufferId(int value) {
    int id = logical_.buffer_of[value];
    if (made_.insert(id).second) {
      const LogicalBuffer& b = logical_.buffers[id];
      const Value& v = graph_.value(b.value);
      plan::Buffer* out = plan_.add_buffer();
      out->set_id(id);
      if (Described()) out->set_name(v.name);
      out->set_slot_bytes(SlotBytes(v));
      out->set_slots(b.slots);
      out->set_full(b.full);
      out->set_variable(b.variable);
    }
    return id;
  }

  // Without its pieces if the plan is of memory alone and the kernel's scratch does not depend on them.
  void SetOperand(int segment, int value, bool pieces, plan::Operand* out) {
    const Value& v = graph_.value(value);
    out->set_buffer(BufferId(value));
    out->set_period(logical_.segments[segment].per_micro_batch ? graph_.PeriodOf(value) : 1);
    if (!pieces) return;
    out->set_dtype(static_cast<int>(v.dtype));
    Set(v.shape, out->mutable_global());
    for (const Box& b : Boxes(v, v.sbp)) Set(b, out->add_box());
  }

  // Whether this rank keeps the value when a B becomes a P, rather than the identity.
  bool Keeps(const Node& node) const {
    const NdSbp& from = graph_.value(node.in[0]).sbp;
    const NdSbp& to = graph_.value(node.out[0]).sbp;
    for (size_t a = 0; a < coords_.size(); ++a)
      if (from[a + 1].is_broadcast() && to[a + 1].is_partial() && coords_[a] != 0) return false;
    return true;
  }

  static std::string FoldOf(const NdSbp& sbp) {
    for (const Sbp& s : sbp)
      if (s.is_partial()) return Name(s.fold);
    return "";
  }

  void MakeKernel(int segment, int n, plan::Actor* actor) {
    const Node& node = graph_.node(n);
    const OpDef* def = graph_.catalog().Find(node.op);
    plan::Kernel* k = actor->add_kernel();
    k->set_name(node.kind == NodeKind::kInput ? "feed" : node.op);
    bool source = !IsCollective(node) || Here(logical_.segments[segment].from);
    bool target = !IsCollective(node) || Here(logical_.segments[segment].slice);
    const bool scratch = StatesScratch(node, def), pieces = Described() || scratch;
    if (source)
      for (int v : node.in) SetOperand(segment, v, pieces, k->add_in());
    if (target)
      for (int v : node.out) SetOperand(segment, v, pieces, k->add_out());
    if (!pieces) return;
    const Attrs attrs = AttrsOf(node);
    if (scratch) k->set_scratch_bytes(RoundUp(ScratchOf(def, *k, attrs)));
    if (Described()) Describe(n, def, attrs, k);
  }

  Attrs AttrsOf(const Node& node) const {
    Attrs attrs = node.attrs;
    if (IsLocalBoxing(node)) {
      attrs.Set("fold", node.primitive == Primitive::kAccumulate ? FoldOf(graph_.value(node.in[0]).sbp)
                                                                 : FoldOf(graph_.value(node.out[0]).sbp));
      attrs.Set("keep", static_cast<int64_t>(Keeps(node)));
    }
    return attrs;
  }

  bool StatesScratch(const Node& node, const OpDef* def) const {
    if (node.kind == NodeKind::kInput || node.kind == NodeKind::kFetch || IsCollective(node)) return false;
    if (options_.kernels != nullptr) return options_.kernels->StatesScratch(node.op, plan_.device_kind());
    return def != nullptr && def->scratch;
  }

  // Where a kernel comes from and what it costs, and its attributes.
  void Describe(int n, const OpDef* def, const Attrs& attrs, plan::Kernel* k) {
    const Node& node = graph_.node(n);
    k->set_node(node.name);
    k->set_file(node.line.file);
    k->set_line(node.line.line);
    if (node.line.function != node.op) k->set_function(node.line.function);
    Set(attrs, k->mutable_attr());
    auto local = [&](const plan::Operand& o) {
      double n = 1;
      if (o.box_size())
        for (int64_t e : o.box(0).extent()) n *= e;
      return n * SizeOf(static_cast<DType>(o.dtype()));
    };
    double bytes = 0;
    for (const auto* operands : {&k->in(), &k->out()})
      for (const plan::Operand& o : *operands) bytes += local(o);
    if (SumsOverTime(node)) bytes += local(k->out(0));  // which is read as well
    const Work work = cost_.WorkOfStep(n, coords_);
    if (def && !def->chosen.label.empty()) bytes = work.bytes / ActsOf(graph_, node);
    k->set_bytes(bytes);
    k->set_category(graph_.CategoryOf(node));
    k->set_flops(work.flops / ActsOf(graph_, node));
  }

  int64_t ScratchOf(const OpDef* def, const plan::Kernel& k, const Attrs& attrs) const {
    if (options_.kernels != nullptr) return options_.kernels->Scratch(SpecOf(k, attrs), plan_.device_kind());
    return def->scratch(SpecOf(k, attrs));
  }

  KernelSpec SpecOf(const plan::Kernel& k, const Attrs& attrs) const {
    KernelSpec spec;
    spec.name = k.name();
    spec.attrs = attrs;
    spec.threads = options_.kernel_threads;
    auto arg = [](const plan::Operand& o) {
      TensorArg a;
      a.dtype = static_cast<DType>(o.dtype());
      a.global = Dims(o.global().at().begin(), o.global().at().end());
      a.begin = Dims(o.box(0).begin().begin(), o.box(0).begin().end());
      a.extent = Dims(o.box(0).extent().begin(), o.box(0).extent().end());
      for (const plan::Box& box : o.box())  // of any act
        for (int axis = 0; axis < a.extent.rank(); ++axis)
          a.extent[axis] = std::max(a.extent[axis], box.extent(axis));
      return a;
    };
    for (const plan::Operand& o : k.in()) spec.in.push_back(arg(o));
    for (const plan::Operand& o : k.out()) spec.out.push_back(arg(o));
    return spec;
  }

  // Bytes that members without a part in the source fetch here: they count for the giver.
  double Given(const BoxingProgram& program, const Layout& from, const Layout& to, int time,
               const Value& in) const {
    const auto& has_in = program.has_in;
    if (!has_in[program.me] || std::find(has_in.begin(), has_in.end(), false) == has_in.end()) return 0;
    BoxingProgram all =
        RouteGroup(graph_.mesh(), graph_.times(), time, in.shape, from, to, coords_, /*everybody=*/true);
    double given = 0;
    for (size_t m = 0; m < all.members.size(); ++m) {
      if (all.has_in[m]) continue;
      for (const Region& r : all.work[m])
        for (int s : r.sources)
          if (s == all.me) given += static_cast<double>(r.box.elements()) * SizeOf(in.dtype);
    }
    return given;
  }

  void MakeCollective(const Node& node, plan::Actor* actor) {
    plan::Collective* c = actor->mutable_collective();
    for (int position : positions_[actor->id()]) c->add_position(position);
    if (!Described()) return;
    c->set_id(actor->id());
    c->set_primitive(node.op);
    if (const std::optional<NamedAlgorithm> named = AlgorithmOf(node)) {
      c->set_algorithm(Name(named->algorithm));
      c->set_unit(named->unit);
    }
    double sent = 0;
    for (size_t i = 0; i < node.in.size(); ++i) sent += AddOperand(node, static_cast<int>(i), c);
    actor->mutable_kernel(0)->set_link_bytes(sent);
  }

  // How a collective moves a tensor, by micro-batch. Blocks that are alike have the same ones.
  struct Route {
    Dims shape;
    size_t element_bytes = 0;
    Layout from, to;
    std::vector<BoxingProgram> programs;
    double sent = 0;  // bytes that this rank sends in an act
  };
  const Route& RouteOf(int from, int to) {
    const Value& in = graph_.value(from);
    Route route{in.shape, SizeOf(in.dtype), graph_.LayoutOf(from), graph_.LayoutOf(to), {}, 0};
    for (const Route& known : routes_)
      if (known.shape == route.shape && known.element_bytes == route.element_bytes &&
          known.from == route.from && known.to == route.to)
        return known;
    const int times = TimesOf(in.shape, route.from.sbp[0]);
    for (int t = 0; t < times; ++t) {
      BoxingProgram program =
          RouteGroup(graph_.mesh(), graph_.times(), t, in.shape, route.from, route.to, coords_);
      for (const Region& r : program.work[program.me]) {
        int remote = 0;
        for (int s : r.sources) remote += s != program.me && program.has_in[program.me];
        for (int d : r.dests) remote += d != program.me;
        route.sent += double(r.box.elements()) * remote * SizeOf(in.dtype);
      }
      route.sent += Given(program, route.from, route.to, t, in);
      route.programs.push_back(std::move(program));
    }
    route.sent /= times;
    routes_.push_back(std::move(route));
    return routes_.back();
  }

  // Gives the bytes that this rank sends of it in an act.
  double AddOperand(const Node& node, int operand, plan::Collective* c) {
    const Route& route = RouteOf(node.in[operand], node.out[operand]);
    for (size_t t = 0; t < route.programs.size(); ++t) {
      const BoxingProgram& program = route.programs[t];
      const int members = static_cast<int>(program.members.size());
      if (operand == 0 && t == 0) {
        for (int member : program.members) c->add_rank(graph_.mesh().IndexOf(member));
        c->set_reduce(Name(program.reduce));
        c->set_me(program.me);
        c->mutable_piece()->Reserve(static_cast<int>(node.in.size()) * members);
      }
      CHECK_EQ(members, c->rank_size()) << node.name << ": operands of different groups";
      for (int m = 0; t == 0 && m < members; ++m) c->add_piece();
      for (int m = 0; m < members; ++m) {
        plan::Piece* piece = c->mutable_piece(operand * members + m);
        if (program.has_in[m]) Set(program.in[m], piece->add_in());
        if (program.has_out[m]) Set(program.out[m], piece->add_out());
      }
      plan::RegionList* work = operand == 0 ? c->add_work() : c->mutable_work(static_cast<int>(t));
      for (const Region& r : program.work[program.me]) {
        Set(r, work->add_region());
        work->mutable_region(work->region_size() - 1)->set_operand(operand);
      }
    }
    return route.sent;
  }

  void MakeActor(int s) {
    const Segment& segment = logical_.segments[s];
    plan::Actor* actor = plan_.add_actor();
    actor_of_[s] = plan_.actor_size() - 1;
    actor->set_id(s);
    if (Described()) actor->set_name(segment.name);
    actor->set_stream(segment.stream);
    actor->set_acts(segment.per_micro_batch ? graph_.times() : 1);
    for (int n : segment.nodes) MakeKernel(s, n, actor);
    const Node& node = graph_.node(segment.nodes[0]);
    if (IsCollective(node)) MakeCollective(node, actor);
    if (node.kind == NodeKind::kInput) {
      actor->set_feed(node.name);
      if (Described()) Declare(node.name, graph_.value(node.out[0]), plan_.mutable_input());
    }
    if (node.kind == NodeKind::kFetch) {
      if (FetchesHere(node)) {
        actor->set_fetch(node.name);
      } else {  // another rank holds the same bytes and delivers them
        plan_.mutable_actor()->RemoveLast();
        actor_of_[s] = -1;
      }
    }
  }

  // Of the ranks with equal pieces the first delivers.
  bool FetchesHere(const Node& node) {
    const NdSbp& sbp = graph_.value(node.in[0]).sbp;
    for (size_t a = 0; a < coords_.size(); ++a)
      if (node.slice.fixed[a] == Slice::kFree && sbp[a + 1].is_broadcast() && coords_[a] != 0) return false;
    return true;
  }

  void Declare(const std::string& name, const Value& v,
               google::protobuf::RepeatedPtrField<plan::Fetch>* list) {
    for (const plan::Fetch& f : *list)
      if (f.name() == name) return;
    plan::Fetch* f = list->Add();
    f->set_name(name);
    f->set_dtype(static_cast<int>(v.dtype));
    Set(v.shape, f->mutable_global());
  }

  // The last kernel of a segment that touches one of the buffers behind an edge.
  int LastUse(int segment, const LogicalEdge& edge, bool writes) const {
    int last = -1;
    const std::vector<int>& nodes = logical_.segments[segment].nodes;
    for (size_t i = 0; i < nodes.size(); ++i) {
      const Node& node = graph_.node(nodes[i]);
      for (int v : writes ? node.out : node.in)
        if (std::binary_search(edge.buffers.begin(), edge.buffers.end(), logical_.buffer_of[v]))
          last = static_cast<int>(i);
    }
    return last < 0 ? static_cast<int>(nodes.size()) - 1 : last;
  }

  void MakePorts(int e) {
    const LogicalEdge& edge = logical_.edges[e];
    int writer = actor_of_[edge.writer], reader = actor_of_[edge.reader];
    if (writer < 0 || reader < 0) return;
    // A transfer between stages has one end here; the other end's edges are on the other rank.
    const Segment &w = logical_.segments[edge.writer], &r = logical_.segments[edge.reader];
    if (!Here(w.slice) || !Here(r.from)) return;
    plan::Port* out = plan_.mutable_actor(writer)->add_out();
    out->set_edge(e);
    out->set_credits(edge.slots - edge.full);
    out->set_period(edge.write_period);
    out->set_kernel(LastUse(edge.writer, edge, true));
    out->set_peer(edge.reader);
    plan::Port* in = plan_.mutable_actor(reader)->add_in();
    in->set_edge(e);
    in->set_credits(edge.full);
    in->set_period(edge.read_period);
    in->set_kernel(LastUse(edge.reader, edge, false));
    in->set_peer(edge.writer);
  }

  void MakeStreams() {
    for (const LogicalStream& s : logical_.streams) {
      plan::Stream* stream = plan_.add_stream();
      stream->set_name(s.name);
      stream->set_kind(s.kind == StreamKind::kCompute ? plan::COMPUTE : plan::LINK);
      for (int a : s.axes) stream->add_axis(a);
    }
    for (const Firing& f : logical_.order) {
      int stream = logical_.segments[f.transition].stream;
      if (actor_of_[f.transition] >= 0 && stream >= 0) plan_.mutable_stream(stream)->add_actor(f.transition);
    }
    if (!Described()) return;
    for (const Segment& s : logical_.segments) {
      const Node& node = graph_.node(s.nodes[0]);
      if (node.kind == NodeKind::kFetch) Declare(node.name, graph_.value(node.in[0]), plan_.mutable_output());
      if (node.kind == NodeKind::kInput) Declare(node.name, graph_.value(node.out[0]), plan_.mutable_input());
    }
  }

  void MakeVariables() {
    for (const LogicalBuffer& b : logical_.buffers) {
      if (b.variable.empty()) continue;
      const Node& node = graph_.producer(b.value);
      if (!Here(node.slice)) continue;
      const Value& v = graph_.value(b.value);
      plan::Variable* out = plan_.add_variable();
      out->set_name(b.variable);
      out->set_bytes(SlotBytes(v));
      if (!Described()) continue;
      out->set_dtype(static_cast<int>(v.dtype));
      Set(v.shape, out->mutable_global());
      Set(Boxes(v, v.sbp)[0], out->mutable_box());
      plan::Kernel* init = out->mutable_init();
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
      if (b.writer >= 0) plan_.add_updated(b.variable);
    }
  }

  const Graph& graph_;
  const LogicalPlan& logical_;
  const CompileOptions& options_;
  const PlanDetail detail_;
  std::vector<int> sizes_;
  CostModel cost_;
  std::deque<Route> routes_;
  std::vector<int> coords_;
  std::vector<int> actor_of_;                // per segment the index of its actor in the plan, -1
  std::vector<std::vector<int>> positions_;  // per segment those of its acts in the order
  std::set<int> made_;
  plan::Plan plan_;
};

}  // namespace

plan::Plan Partition(const Graph& graph, const LogicalPlan& logical, const CompileOptions& options, int rank,
                     PlanDetail detail) {
  return Partitioner(graph, logical, options, rank, detail).Run();
}

}  // namespace oneflow_like
