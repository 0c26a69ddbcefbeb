// Plays compiled plans without computing anything: acts run in any order that credits, streams and
// collectives allow, drawn at random, and each kernel's reads and writes go to a model of the ranks' memory
// that knows what every 64 bytes hold. What a kernel must find there is taken from the graph alone: which
// value, of which step and micro-batch, cut in which box, summed up over how many acts. So a slot that is
// given up early, two buffers that share bytes while both are alive, an update ahead of a reader, or a port
// that announces before its kernel is seen in some order, and told with both ends.
//
//   Meaning meaning(compiled);
//   std::string wrong = Replay(meaning, plans, {.seed = 7}).Run();   // empty: nothing
//
// PlanOfSegments turns a logical plan into a plan of one rank whose buffers share no bytes and whose actors
// are in no stream: there credits alone keep slots from being written too early.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "compiler/compile.h"
#include "core/plan/plan_values.h"
#include "core/random.h"

namespace oneflow_like {

// What the values of a compiled graph are, from its nodes and signatures alone.
class Meaning {
 public:
  // A value, or the variable it is a state of, seen through views; `updates` of it have been applied.
  struct Origin {
    int value = -1, updates = 0;
    bool operator==(const Origin& o) const = default;
  };

  explicit Meaning(const Compiled& compiled)
      : graph_(compiled.graph), logical_(compiled.logical), origin_(compiled.graph.num_values()) {
    const Graph& graph = graph_;
    for (int v = 0; v < graph.num_values(); ++v) origin_[v] = {v, 0};
    for (int n : graph.Order()) {
      const Node& node = graph.node(n);
      if (node.op == "variable") variables_[node.name] = node.out[0];
      const OpDef* def = graph.catalog().Find(node.op);
      if (!def) continue;
      if (def->view) origin_[node.out[0]] = origin_[node.in[0]];
      for (auto [out, in] : def->inplace) {
        origin_[node.out[out]] = {origin_[node.in[in]].value, 1};
        updated_.insert(origin_[node.in[in]].value);
      }
    }
  }

  const Graph& graph() const { return graph_; }
  const LogicalPlan& logical() const { return logical_; }
  // The nodes whose kernels an actor runs.
  const std::vector<int>& NodesOf(const plan::Actor& actor) const {
    return logical_.segments[actor.id()].nodes;
  }
  int Variable(const std::string& name) const { return variables_.at(name); }
  Origin OriginOf(int value) const { return origin_[value]; }
  bool IsVariable(int value) const { return graph_.producer(origin_[value].value).op == "variable"; }
  // Of a variable, how many updates it has had when step `step` begins.
  int64_t UpdatesBefore(int value, int64_t step) const {
    return updated_.count(origin_[value].value) ? step : 0;
  }
  // Whether a step has one such value for each micro-batch, rather than one.
  bool EachMicroBatch(int value) const {
    const int v = origin_[value].value;
    const NdSbp& sbp = graph_.value(v).sbp;
    return graph_.times() > 1 && !sbp.empty() &&
           (!sbp[0].is_broadcast() || graph_.producer(v).rate == Rate::kRemade);
  }
  // Acts of the node in a step.
  int ActsOf(int n) const {
    const Node& node = graph_.node(n);
    bool each = node.rate == Rate::kRemade || node.attrs.Has("last");
    for (const NdSbp& want : node.want) each = each || (!want.empty() && !want[0].is_broadcast());
    for (int v : node.out) {
      const NdSbp& sbp = graph_.value(v).sbp;
      each = each || (!sbp.empty() && !sbp[0].is_broadcast());
    }
    return each && graph_.times() > 1 ? graph_.times() : 1;
  }
  // How many acts write a value before it is whole.
  int ActsToWrite(int value) const {
    int origin = origin_[value].value;
    return EachMicroBatch(value) ? 1 : ActsOf(graph_.value(origin).producer);
  }

 private:
  const Graph& graph_;
  const LogicalPlan& logical_;
  std::vector<Origin> origin_;
  std::set<int> updated_;                 // variables
  std::map<std::string, int> variables_;  // their values
};

// The two ends of each edge, of actors that are there.
inline void AddPorts(const LogicalPlan& logical, plan::Plan* plan) {
  for (size_t e = 0; e < logical.edges.size(); ++e) {
    const LogicalEdge& edge = logical.edges[e];
    auto port = [&](int segment, int peer, int credits, int period, bool out) {
      plan::Actor* actor = plan->mutable_actor(segment);
      plan::Port* p = out ? actor->add_out() : actor->add_in();
      p->set_edge(static_cast<int>(e));
      p->set_credits(credits);
      p->set_period(period);
      p->set_kernel(actor->kernel_size() - 1);
      p->set_peer(peer);
    };
    port(edge.writer, edge.reader, edge.slots - edge.full, edge.write_period, true);
    port(edge.reader, edge.writer, edge.full, edge.read_period, false);
  }
}

// A logical plan as the plan of one rank: a buffer of 64 bytes for each slot, none shared; no streams.
inline plan::Plan PlanOfSegments(const Meaning& meaning) {
  const Graph& graph = meaning.graph();
  const LogicalPlan& logical = meaning.logical();
  plan::Plan plan;
  plan.set_world(1);
  plan.set_times(graph.times());
  int64_t offset = 0;
  for (size_t i = 0; i < logical.buffers.size(); ++i) {
    const LogicalBuffer& b = logical.buffers[i];
    plan::Buffer* out = plan.add_buffer();
    out->set_id(static_cast<int>(i));
    out->set_name(graph.value(b.value).name);
    out->set_slot_bytes(64);
    out->set_slots(b.slots);
    out->set_full(b.full);
    if (!b.variable.empty()) {
      out->set_variable(b.variable);
      plan::Variable* variable = plan.add_variable();
      variable->set_name(b.variable);
      variable->set_bytes(64);
    } else {
      for (int slot = 0; slot < b.slots; ++slot, offset += 64) out->add_offset(offset);
    }
  }
  plan.add_arena()->set_memory("device");
  plan.mutable_arena(0)->set_bytes(offset);
  for (size_t s = 0; s < logical.segments.size(); ++s) {
    const Segment& segment = logical.segments[s];
    plan::Actor* actor = plan.add_actor();
    actor->set_id(static_cast<int>(s));
    actor->set_name(segment.name);
    actor->set_stream(-1);
    actor->set_acts(segment.per_micro_batch ? graph.times() : 1);
    for (int n : segment.nodes) {
      plan::Kernel* k = actor->add_kernel();
      k->set_name(graph.node(n).op);
      k->set_node(graph.node(n).name);
      auto operand = [&](int v, plan::Operand* o) {
        o->set_buffer(logical.buffer_of[v]);
        o->set_dtype(static_cast<int>(DType::kUInt8));
        plan::Box* box = o->add_box();
        box->add_begin(0);
        box->add_extent(1);
        o->set_period(meaning.EachMicroBatch(v) ? 1 : actor->acts());
      };
      for (int v : graph.node(n).in) operand(v, k->add_in());
      for (int v : graph.node(n).out) operand(v, k->add_out());
    }
  }
  AddPorts(logical, &plan);
  return plan;
}

struct ReplayOptions {
  uint64_t seed = 1;
  int steps = 3, steps_in_flight = 2;
};

class Replay {
 public:
  // Plans of all ranks.
  Replay(const Meaning& meaning, const std::vector<plan::Plan>& plans, const ReplayOptions& options)
      : meaning_(meaning), options_(options) {
    for (const plan::Plan& plan : plans) AddRank(plan);
    for (Rank& rank : ranks_)
      for (Act& a : rank.actors) {
        left_ += int64_t{a.spec->acts()} * options_.steps;
        if (a.spec->has_collective()) groups_[GroupOf(a)].push_back(&a);
      }
    step_left_.assign(options_.steps, left_ / options_.steps);
    for (const auto& [group, members] : groups_) CheckWork(members);
  }

  // Empty, or what went wrong, with the seed.
  std::string Run() {
    if (error_.empty()) Loop();
    return error_.empty() ? "" : Cat("seed ", options_.seed, ": ", error_);
  }

 private:
  static constexpr int64_t kGranule = 64;

  // What bytes hold. Written in part, a value is whole after some more acts.
  struct Content {
    int value = -1, part = -1, written = 0;
    int64_t version = 0;  // the step, or of a variable the updates
    bool operator==(const Content& o) const = default;
  };
  struct Cell {
    Content content;
    int64_t box = 0;               // hash of the box, 0 where it was not written as a whole
    int as = -1;                   // the value the box is of: a view has other boxes
    const void* writer = nullptr;  // a kernel that is at it
  };
  struct Range {
    int64_t begin = 0, end = 0;  // granules
    bool empty() const { return begin >= end; }
  };
  struct PortState {
    const plan::Port* spec = nullptr;
    bool out = false;
    int credits = 0, phase = 0, kernel = 0;
    int peer_actor = -1, peer_port = -1;
    bool starved() const { return phase == 0 && credits == 0; }
  };
  struct Place {
    const plan::Operand* operand = nullptr;
    const plan::Buffer* buffer = nullptr;
    int value = -1;
    int64_t base = 0;   // of a variable, granules
    int64_t arena = 0;  // else where its arena begins
  };
  struct KernelState {
    const plan::Kernel* spec = nullptr;
    std::vector<Place> in, out;
    Range scratch;
  };
  struct Act {
    const plan::Actor* spec = nullptr;
    int rank = 0;
    int64_t k = 0;  // acts ended
    bool busy = false, inside = false;
    size_t kernel = 0, announced = 0;
    std::vector<PortState> ports;
    std::vector<KernelState> kernels;
    int t() const { return static_cast<int>(k % spec->acts()); }
    int64_t step() const { return k / spec->acts(); }
    bool in_order() const { return !spec->has_collective() && spec->stream() >= 0; }
    bool ready() const {
      if (busy) return false;
      for (const PortState& p : ports)
        if (p.starved()) return false;
      return true;
    }
  };
  struct StreamState {
    std::vector<int> order;
    size_t next = 0;
    int64_t step = 0;
    int last = -1;  // the actor started last
  };
  struct Rank {
    const plan::Plan* plan = nullptr;
    std::vector<Act> actors;
    std::vector<StreamState> streams;
    std::vector<Cell> memory;
    std::vector<int64_t> arenas;  // where each begins; then the end of the last one. In granules
  };
  // One thing that may go on: the head of a stream, or an actor.
  struct Unit {
    int rank = 0, stream = -1, actor = -1;
    double weight = 1;
  };

  void Wrong(const std::string& what) {
    if (error_.empty()) error_ = what;
  }

  // --- Loading ---

  void AddRank(const plan::Plan& plan) {
    ranks_.emplace_back();
    Rank& rank = ranks_.back();
    int number = static_cast<int>(ranks_.size()) - 1;
    rank.plan = &plan;
    rank.arenas.push_back(0);
    for (const plan::Arena& arena : plan.arena()) {
      if (arena.bytes() % kGranule != 0) Wrong(Cat("an arena of ", arena.bytes(), " bytes"));
      rank.arenas.push_back(rank.arenas.back() + arena.bytes() / kGranule);
    }
    rank.memory.resize(rank.arenas.back());
    std::map<std::string, int64_t> variables;
    for (const plan::Variable& v : plan.variable()) {
      variables[v.name()] = static_cast<int64_t>(rank.memory.size());
      Cell cell;
      cell.content = {meaning_.Variable(v.name()), -1, 1, 0};
      rank.memory.resize(rank.memory.size() + (v.bytes() + kGranule - 1) / kGranule, cell);
    }
    std::map<int, const plan::Buffer*> buffers;
    for (const plan::Buffer& b : plan.buffer()) {
      buffers[b.id()] = &b;
      if (IsVariable(b)) continue;
      if (b.offset_size() < b.slots() || b.slot_bytes() % kGranule != 0)
        Wrong(Cat("buffer '", b.name(), "' of ", b.slots(), " slots of ", b.slot_bytes(), " bytes lies at ",
                  b.offset_size(), " places"));
      const int64_t arena = plan.arena(b.arena()).bytes();
      for (int64_t offset : b.offset())
        if (offset % kGranule != 0 || offset < 0 || offset + b.slot_bytes() > arena)
          Wrong(Cat("buffer '", b.name(), "' with slots of ", b.slot_bytes(), " bytes has one at ", offset,
                    " in an arena of ", arena));
    }
    std::map<int, int> index;
    for (const plan::Actor& actor : plan.actor()) {
      index[actor.id()] = static_cast<int>(rank.actors.size());
      rank.actors.emplace_back();
      LoadActor(actor, number, buffers, variables, &rank.actors.back());
    }
    Connect(&rank, index);
    for (const plan::Stream& stream : plan.stream()) {
      StreamState state;
      for (int id : stream.actor()) state.order.push_back(index.at(id));
      rank.streams.push_back(std::move(state));
      units_.push_back({number, static_cast<int>(rank.streams.size()) - 1, -1, 1});
    }
    for (size_t a = 0; a < rank.actors.size(); ++a) units_.push_back({number, -1, static_cast<int>(a), 1});
  }

  void LoadActor(const plan::Actor& actor, int number, const std::map<int, const plan::Buffer*>& buffers,
                 const std::map<std::string, int64_t>& variables, Act* act) {
    act->spec = &actor;
    act->rank = number;
    const std::vector<int>& nodes = meaning_.NodesOf(actor);
    for (int i = 0; i < actor.kernel_size(); ++i) {
      const plan::Kernel& kernel = actor.kernel(i);
      KernelState k;
      k.spec = &kernel;
      const Node& node = meaning_.graph().node(nodes.at(i));
      if (kernel.node() != node.name)
        return Wrong(Cat("kernel ", i, " of ", actor.name(), " is '", kernel.node(), "' but its node is '",
                         node.name, "'"));
      auto places = [&](const auto& operands, const std::vector<int>& values, std::vector<Place>* places) {
        if (operands.size() != static_cast<int>(values.size()))
          return Wrong(Cat(kernel.node(), " has ", operands.size(), " operands of ", values.size()));
        for (int i = 0; i < operands.size(); ++i) {
          Place p{&operands[i], buffers.at(operands[i].buffer()), values[i], -1};
          if (IsVariable(*p.buffer))
            p.base = variables.at(p.buffer->variable());
          else
            p.arena = ranks_[number].arenas.at(p.buffer->arena());
          places->push_back(p);
        }
      };
      // A transfer between stages has one end here.
      bool transfer = actor.has_collective();
      if (!transfer || kernel.in_size() > 0) places(kernel.in(), node.in, &k.in);
      if (!transfer || kernel.out_size() > 0) places(kernel.out(), node.out, &k.out);
      if (kernel.scratch_bytes() > 0) {
        k.scratch = {kernel.scratch_offset() / kGranule,
                     (kernel.scratch_offset() + kernel.scratch_bytes() + kGranule - 1) / kGranule};
        if (kernel.scratch_offset() % kGranule != 0 || k.scratch.end > ranks_[number].arenas.at(1))
          Wrong(Cat("scratch of ", kernel.node(), " at ", kernel.scratch_offset()));
      }
      act->kernels.push_back(std::move(k));
    }
    bool kernels =
        actor.stream() >= 0 ? !actor.has_collective() : actor.feed().empty() && actor.fetch().empty();
    auto ports = [&](const auto& specs, bool out) {
      for (const plan::Port& spec : specs)
        act->ports.push_back({&spec, out, spec.credits(), 0, kernels ? spec.kernel() : 0, -1, -1});
    };
    ports(actor.in(), false);
    ports(actor.out(), true);
    std::stable_sort(act->ports.begin(), act->ports.end(),
                     [](const PortState& a, const PortState& b) { return a.kernel < b.kernel; });
  }

  void Connect(Rank* rank, const std::map<int, int>& index) {
    std::map<std::pair<int, bool>, std::pair<int, int>> ends;
    for (size_t a = 0; a < rank->actors.size(); ++a)
      for (size_t p = 0; p < rank->actors[a].ports.size(); ++p) {
        const PortState& port = rank->actors[a].ports[p];
        ends[{port.spec->edge(), port.out}] = {static_cast<int>(a), static_cast<int>(p)};
      }
    for (Act& a : rank->actors)
      for (PortState& p : a.ports) {
        auto it = ends.find({p.spec->edge(), !p.out});
        if (it == ends.end() || index.count(p.spec->peer()) == 0 ||
            index.at(p.spec->peer()) != it->second.first)
          return Wrong(Cat("edge ", p.spec->edge(), " of ", a.spec->name(), " has one end"));
        std::tie(p.peer_actor, p.peer_port) = it->second;
      }
  }

  std::pair<int64_t, std::vector<int>> GroupOf(const Act& a) const {
    const plan::Collective& c = a.spec->collective();
    return {c.id(), std::vector<int>(c.rank().begin(), c.rank().end())};
  }

  static Box ToBox(const plan::Box& box) {
    return {Dims(box.begin().begin(), box.begin().end()), Dims(box.extent().begin(), box.extent().end())};
  }
  static Box At(const google::protobuf::RepeatedPtrField<plan::Box>& boxes, int act) {
    return ToBox(boxes[boxes.size() == 1 ? 0 : act]);
  }

  // A member's piece of an operand.
  static const plan::Piece& PieceOf(const plan::Collective& c, int operand, int member) {
    return c.piece(operand * c.rank_size() + member);
  }

  // What members say of their pieces is what their operands hold.
  void CheckPieces(const Act& m, int t) {
    const plan::Collective& c = m.spec->collective();
    const plan::Kernel& k = m.spec->kernel(0);
    const int operands = std::max(k.in_size(), k.out_size());
    if (c.piece_size() != operands * c.rank_size())
      return Wrong(Cat(m.spec->name(), " has ", c.piece_size(), " pieces"));
    for (int i = 0; i < operands; ++i) {
      const plan::Piece& mine = PieceOf(c, i, c.me());
      if (k.in_size() > 0 && !(At(k.in(i).box(), t) == At(mine.in(), t)))
        return Wrong(Cat("rank ", m.rank, ", ", m.spec->name(), " gives another box than it holds"));
      if (k.out_size() > 0 && !(At(k.out(i).box(), t) == At(mine.out(), t)))
        return Wrong(Cat("rank ", m.rank, ", ", m.spec->name(), " is given another box than it wants"));
    }
  }

  // In each act of a collective the members together write every element that a member wants once, from
  // pieces that have it, and all say the same of the pieces as their operands do.
  void CheckWork(const std::vector<const Act*>& members) {
    for (int t = 0; t < members[0]->spec->acts(); ++t) {
      std::map<std::pair<int, int>, std::vector<Box>> written;  // by operand, member
      for (const Act* m : members) {
        const plan::Collective& c = m->spec->collective();
        const std::string who = Cat("rank ", m->rank, ", ", m->spec->name(), " act ", t);
        CheckPieces(*m, t);
        for (const plan::Region& region : c.work(c.work_size() == 1 ? 0 : t).region()) {
          const int o = region.operand();
          Box box = ToBox(region.box());
          for (int s : region.source())
            if (PieceOf(c, o, s).in_size() == 0 || !(At(PieceOf(c, o, s).in(), t).Intersect(box) == box))
              return Wrong(Cat(who, " takes ", box.str(), " of member ", s, ", which does not hold it"));
          for (int d : region.dest()) {
            if (PieceOf(c, o, d).out_size() == 0 || !(At(PieceOf(c, o, d).out(), t).Intersect(box) == box))
              return Wrong(Cat(who, " writes ", box.str(), " to member ", d, ", which does not want it"));
            for (const Box& other : written[{o, d}])
              if (!other.Intersect(box).empty()) return Wrong(Cat(who, " writes ", box.str(), " twice"));
            written[{o, d}].push_back(box);
          }
        }
      }
      CheckWhole(*members[0], t, written);
    }
  }

  void CheckWhole(const Act& first, int t, const std::map<std::pair<int, int>, std::vector<Box>>& written) {
    const plan::Collective& c = first.spec->collective();
    for (int o = 0; o < c.piece_size() / c.rank_size(); ++o)
      for (int d = 0; d < c.rank_size(); ++d) {
        int64_t elements = 0;
        if (auto boxes = written.find({o, d}); boxes != written.end())
          for (const Box& box : boxes->second) elements += box.elements();
        const plan::Piece& piece = PieceOf(c, o, d);
        if (piece.out_size() > 0 && elements != At(piece.out(), t).elements())
          return Wrong(Cat(first.spec->name(), " act ", t, " writes ", elements, " elements of the ",
                           At(piece.out(), t).elements(), " that member ", d, " wants"));
      }
  }

  // --- Orders ---

  uint64_t Draw(uint64_t limit) { return RandomBits(options_.seed, 11, draws_++) % limit; }

  // Some streams, feeds or ranks are held back in some stretches and hurried in others.
  void Reweigh() {
    static const double weights[] = {1e-3, .05, 1, 1, 20};
    for (Unit& u : units_) u.weight = weights[Draw(5)];
    for (size_t r = 0; r < ranks_.size(); ++r) {
      double slow = Draw(4) == 0 ? 1e-2 : 1;
      for (Unit& u : units_)
        if (u.rank == static_cast<int>(r)) u.weight *= slow;
    }
  }

  void Loop() {
    std::vector<const Unit*> enabled;
    for (int64_t event = 0; left_ > 0 && error_.empty(); ++event) {
      if (event % 200 == 0) Reweigh();
      enabled.clear();
      double sum = 0;
      for (const Unit& u : units_)
        if (Enabled(u)) {
          enabled.push_back(&u);
          sum += u.weight;
        }
      if (enabled.empty()) return Wrong(Stall());
      double at = ToUniform(RandomBits(options_.seed, 12, draws_++)) * sum;
      size_t i = 0;
      while (i + 1 < enabled.size() && (at -= enabled[i]->weight) > 0) ++i;
      Go(*enabled[i]);
    }
  }

  bool Launched(int64_t step) const {
    return step < options_.steps &&
           (step < options_.steps_in_flight || step_left_[step - options_.steps_in_flight] == 0);
  }

  bool Enabled(const Unit& u) {
    Rank& rank = ranks_[u.rank];
    if (u.stream >= 0) {
      StreamState& s = rank.streams[u.stream];
      if (s.order.empty() || !Launched(s.step)) return false;
      if (s.last >= 0 && rank.actors[s.last].in_order() && rank.actors[s.last].busy) return false;
      return rank.actors[s.order[s.next]].ready();
    }
    Act& a = rank.actors[u.actor];
    if (!a.busy) return a.spec->stream() < 0 && Launched(a.step()) && a.ready();
    if (!a.spec->has_collective()) return true;
    for (const Act* m : groups_.at(GroupOf(a)))  // all have arrived for this act, or have ended it
      if (m->k < a.k || (m->k == a.k && !m->busy)) return false;
    return true;
  }

  std::string Stall() const {
    std::string text = "nothing can go on:";
    for (const Rank& rank : ranks_)
      for (const Act& a : rank.actors)
        for (const PortState& p : a.ports)
          if (!a.busy && p.starved() && a.step() < options_.steps)
            text += Cat(" [rank ", a.rank, " ", a.spec->name(), " act ", a.k, " waits for ",
                        rank.actors[p.peer_actor].spec->name(), "]");
    return text;
  }

  void Go(const Unit& u) {
    Rank& rank = ranks_[u.rank];
    if (u.stream >= 0) {
      StreamState& s = rank.streams[u.stream];
      s.last = s.order[s.next];
      if (++s.next == s.order.size()) {
        s.next = 0;
        ++s.step;
      }
      return Start(&rank.actors[s.last]);
    }
    Act& a = rank.actors[u.actor];
    if (!a.busy) return Start(&a);
    KernelState& k = a.kernels[a.kernel];
    if (!a.inside) {
      Begin(&a, &k);
      a.inside = true;
      return;
    }
    End(&a, &k);
    a.inside = false;
    Announce(&a, static_cast<int>(a.kernel));
    if (++a.kernel == a.kernels.size()) Finish(&a);
  }

  void Start(Act* a) {
    a->busy = true;
    a->kernel = a->announced = 0;
    for (PortState& p : a->ports) p.credits -= p.phase == 0;
    // A collective, a feed or a fetch is at its memory from its start.
    if (!a->in_order()) {
      Begin(a, &a->kernels[0]);
      a->inside = true;
    }
  }

  void Announce(Act* a, int kernel) {
    for (; a->announced < a->ports.size() && a->ports[a->announced].kernel <= kernel; ++a->announced) {
      PortState& p = a->ports[a->announced];
      if (++p.phase < p.spec->period()) continue;
      p.phase = 0;
      ++ranks_[a->rank].actors[p.peer_actor].ports[p.peer_port].credits;
    }
  }

  void Finish(Act* a) {
    Announce(a, 1 << 30);
    --step_left_[a->step()];
    --left_;
    ++a->k;
    a->busy = false;
  }

  // --- Memory ---

  const plan::Box& BoxOf(const Place& p, int t) const {
    return p.operand->box(p.operand->box_size() == 1 ? 0 : t);
  }

  // The granules an operand takes in act k.
  Range RangeOf(const Place& p, const Act& a) {
    int64_t bytes = static_cast<int64_t>(SizeOf(static_cast<DType>(p.operand->dtype())));
    for (int64_t e : BoxOf(p, a.t()).extent()) bytes *= e;
    if (bytes > p.buffer->slot_bytes())
      Wrong(Cat("a piece of ", bytes, " bytes of '", p.buffer->name(), "' in a slot of ",
                p.buffer->slot_bytes()));
    int64_t granules = (bytes + kGranule - 1) / kGranule;
    if (p.base >= 0) return {p.base, p.base + granules};
    int64_t message = a.k / std::max(1, p.operand->period()) + p.operand->skip();
    int64_t begin =
        p.arena + p.buffer->offset(static_cast<int>(message % p.buffer->offset_size())) / kGranule;
    return {begin, begin + granules};
  }

  int64_t BoxHash(const Place& p, int t) const {
    uint64_t h = 1469598103934665603ull;
    for (const auto* list : {&BoxOf(p, t).begin(), &BoxOf(p, t).extent()})
      for (int64_t e : *list) h = (h ^ static_cast<uint64_t>(e)) * 1099511628211ull;
    return static_cast<int64_t>(h | 1);
  }

  // What a value is in this act, when `written` of its acts have written it.
  Content ContentOf(int value, const Act& a, int written) const {
    Meaning::Origin origin = meaning_.OriginOf(value);
    if (meaning_.IsVariable(value))
      return {origin.value, -1, 1, meaning_.UpdatesBefore(value, a.step()) + origin.updates};
    return {origin.value, meaning_.EachMicroBatch(value) ? a.t() : -1, written, a.step()};
  }

  std::string Text(const Content& c) const {
    if (c.value < 0) return "nothing";
    std::string text = Cat("'", meaning_.graph().value(c.value).name, "'");
    bool variable = meaning_.graph().producer(c.value).op == "variable";
    text += Cat(variable ? " updates " : " of step ", c.version);
    if (c.part >= 0) text += Cat(" micro-batch ", c.part);
    return text + (c.written > 1 ? Cat(" after ", c.written, " acts") : "");
  }

  std::string Who(const Act& a, const KernelState& k) const {
    return Cat("rank ", a.rank, ", ", a.spec->name(), " act ", a.k, ": ", k.spec->name(), " '",
               k.spec->node(), "'");
  }

  void Expect(const Act& a, const KernelState& k, const Place& p, const Content& want, const char* when) {
    Range range = RangeOf(p, a);
    int64_t box = BoxHash(p, a.t());
    for (int64_t g = range.begin; g < range.end; ++g) {
      const Cell& cell = ranks_[a.rank].memory[g];
      if (cell.writer == &k) continue;  // an update, or a sum that goes on
      if (cell.writer == nullptr && cell.content == want) {
        if (cell.box == 0 || cell.as != p.value || cell.box == box) continue;
        return Wrong(Cat(Who(a, k), " reads another box of ", Text(want), " than was written"));
      }
      const KernelState* writer = static_cast<const KernelState*>(cell.writer);
      return Wrong(Cat(Who(a, k), " needs ", Text(want), " ", when, " at byte ", g * kGranule,
                       ", which holds ", Text(cell.content),
                       writer ? Cat(", being written by '", writer->spec->node(), "'") : std::string()));
    }
  }

  void Mark(const Act& a, const KernelState& k, Range range) {
    for (int64_t g = range.begin; g < range.end; ++g) {
      Cell& cell = ranks_[a.rank].memory[g];
      if (cell.writer != nullptr)
        return Wrong(Cat(Who(a, k), " writes at byte ", g * kGranule, ", where '",
                         static_cast<const KernelState*>(cell.writer)->spec->node(), "' is writing"));
      cell.writer = &k;
      cell.content = {};
    }
  }

  bool Unmark(const Act& a, const KernelState& k, Range range, const Cell& with) {
    for (int64_t g = range.begin; g < range.end; ++g) {
      Cell& cell = ranks_[a.rank].memory[g];
      if (cell.writer != &k) {
        Wrong(Cat(Who(a, k), " has lost its result at byte ", g * kGranule));
        return false;
      }
      cell = with;
    }
    return true;
  }

  // Which of a value's acts is under way; a value that several acts write holds the sum of those before.
  int WrittenBefore(int value, const Act& a) const { return meaning_.ActsToWrite(value) > 1 ? a.t() : 0; }

  void Begin(Act* a, KernelState* k) {
    for (const Place& p : k->in)
      Expect(*a, *k, p, ContentOf(p.value, *a, meaning_.ActsToWrite(p.value)), "at its start");
    for (const Place& p : k->out) {
      int before = WrittenBefore(p.value, *a);
      if (before > 0) Expect(*a, *k, p, ContentOf(p.value, *a, before), "to add to");
    }
    for (const Place& p : k->out) Mark(*a, *k, RangeOf(p, *a));
    Mark(*a, *k, k->scratch);
  }

  void End(Act* a, KernelState* k) {
    for (const Place& p : k->in) {
      bool replaced = false;  // by the update itself
      for (const Place& out : k->out) replaced = replaced || out.buffer == p.buffer;
      if (!replaced) {
        Range range = RangeOf(p, *a);
        for (int64_t g = range.begin; g < range.end; ++g)
          if (ranks_[a->rank].memory[g].writer == k)
            return Wrong(Cat(Who(*a, *k), " writes over its operand '", p.buffer->name(), "'"));
        Expect(*a, *k, p, ContentOf(p.value, *a, meaning_.ActsToWrite(p.value)), "until its end");
      }
    }
    for (const Place& p : k->out) {
      Cell cell;
      cell.content = ContentOf(p.value, *a, WrittenBefore(p.value, *a) + 1);
      if (meaning_.IsVariable(p.value)) cell.content.written = 1;
      cell.as = p.value;
      cell.box = BoxHash(p, a->t());
      if (!Unmark(*a, *k, RangeOf(p, *a), cell)) return;
    }
    Unmark(*a, *k, k->scratch, {});
  }

  const Meaning& meaning_;
  const ReplayOptions options_;
  std::vector<Rank> ranks_;
  std::vector<Unit> units_;
  std::map<std::pair<int64_t, std::vector<int>>, std::vector<const Act*>> groups_;
  std::vector<int64_t> step_left_;  // acts of each step
  int64_t left_ = 0;
  uint64_t draws_ = 0;
  std::string error_;
};

}  // namespace oneflow_like
