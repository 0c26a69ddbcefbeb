// The planner: which steps lead from one layout to another, and what they cost. Works on fixed-size states,
// for the choice of signatures asks for the cost of a great many pairs.
#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "sbp/boxing_load.h"
#include "sbp/boxing_step.h"

namespace oneflow_like {
namespace {

// Plans are compared for elements of this size, so that a plan does not depend on the element type.
constexpr double kPlanBytes = 4;
// Axes that change beyond this number change together with the last: the search is over all subsets.
constexpr int kMaxItems = 5;

// A layout held inline.
struct State {
  std::array<int, kMaxMeshAxes> fixed;
  std::array<Sbp, kMaxMeshAxes + 1> sbp;

  State(const Layout& layout) {
    std::copy(layout.slice.fixed.begin(), layout.slice.fixed.end(), fixed.begin());
    std::copy(layout.sbp.begin(), layout.sbp.end(), sbp.begin());
  }
  LayoutView view() const { return {fixed.data(), sbp.data()}; }
  bool free(int axis) const { return fixed[axis] == Slice::kFree; }
  const Sbp& at(int axis) const { return sbp[1 + axis]; }
  Sbp& at(int axis) { return sbp[1 + axis]; }
  const Sbp& time() const { return sbp[0]; }
};

bool SameSlice(const State& a, const State& b, int axes) {
  return std::equal(a.fixed.begin(), a.fixed.begin() + axes, b.fixed.begin());
}

bool Same(const State& a, const State& b, int axes) {
  return SameSlice(a, b, axes) && std::equal(a.sbp.begin(), a.sbp.begin() + axes + 1, b.sbp.begin());
}

// Seconds are a part that does not depend on the bytes of an element, and a part for each byte of it.
struct Cost {
  double fixed = 0, per_byte = 0, moved = 0;
  int steps = 0;
  double seconds(double bytes) const { return fixed + bytes * per_byte; }
  void Add(const Cost& o) {
    fixed += o.fixed;
    per_byte += o.per_byte;
    moved += o.moved;
    steps += o.steps;
  }
  // Equal but for rounding: the fewer steps win, then the first.
  bool Beats(const Cost& o) const {
    const double mine = seconds(kPlanBytes), other = o.seconds(kPlanBytes);
    if (std::abs(mine - other) > 1e-9 * std::max(mine, other)) return mine < other;
    return steps < o.steps;
  }
};

// Extends one sequence of steps from one state.
class Planner {
 public:
  Planner(const Mesh& mesh, int times, const Dims& shape, const State& from, const Topology& topology,
          std::vector<BoxingStep>* steps)
      : mesh_(mesh), times_(times), shape_(shape), topology_(topology), at_(from), steps_(steps) {}

  const State& at() const { return at_; }
  const Cost& cost() const { return cost_; }
  // Of one act of one step from here.
  BoxingLoad LoadOfOne(const State& to, double element_bytes, const LinkLevels& levels) const;

  // Changes time, mesh axes and slice, in the order that is legal and cheapest.
  void Reach(const State& to);
  // Of one step from here: a change of time alone, or of mesh axes and slice at equal time.
  Cost CostOfOne(const State& to) const {
    if (at_.time() != to.time()) return CostOfLocal(at_, to);
    return CostOfStep(at_, to, AnalyseStep(mesh_, times_, shape_, at_.view(), to.view()));
  }

 private:
  double Elements() const { return static_cast<double>(shape_.elements()); }
  bool CutsMesh(const State& state, int tensor_axis) const;
  double Largest(const State& state, double* pieces) const;
  // Of a change of time, what an act passes over: of a whole and a micro-batch's part of it, the part.
  double LargestOfAct(const State& from, const State& to) const {
    double pieces;
    return std::min(Largest(from, &pieces), Largest(to, &pieces));
  }
  double Busiest(const State& from, const State& to, const StepShape& shape, double* moved) const;
  double MembersWithin(const State& end, uint32_t axes, int64_t devices) const;
  void LoadLinks(const State& from, const State& to, const StepShape& shape, double bytes,
                 const LinkLevels& levels, std::vector<double>* links) const;
  Cost CostOfStep(const State& from, const State& to, const StepShape& shape) const;
  Cost CostOfLocal(const State& from, const State& to) const;
  void Take(const State& to, Primitive primitive, uint32_t axes, const Cost& cost);
  void TakeRouted(const State& to);
  void ChangeTime(Primitive primitive, const Sbp& time);
  void ReachAcrossTime(const State& to);
  void ReachMesh(const State& to);
  void CombineBefore(const State& to);
  void Search(const State& to);

  const Mesh& mesh_;
  const int times_;
  const Dims& shape_;
  const Topology& topology_;
  State at_;
  Cost cost_;
  std::vector<BoxingStep>* steps_;  // null: only the cost is wanted
};

Layout LayoutOf(const State& state, int axes) {
  Layout layout;
  layout.slice.fixed.assign(state.fixed.begin(), state.fixed.begin() + axes);
  layout.sbp.assign(state.sbp.begin(), state.sbp.begin() + axes + 1);
  return layout;
}

// Acts of one step that carry the value, and the size of all of them, in sizes of the whole tensor.
double Acts(const Sbp& time, int times) { return time.is_broadcast() ? 1 : times; }
double Volume(const Sbp& time, int times) { return time.is_partial() ? times : 1; }

// Elements of the largest piece of one act, at coordinate 0 of every axis that cuts; `pieces` is by how much
// an even cut would divide the tensor.
double Planner::Largest(const State& state, double* pieces) const {
  Dims left = shape_;
  *pieces = 1;
  const auto cut = [&](const Sbp& sbp, int parts) {
    if (!sbp.is_split() || parts == 1) return;
    left[sbp.axis] = Cut({0, left[sbp.axis]}, parts, 0, sbp.grain).extent;
    *pieces *= parts;
  };
  cut(state.time(), times_);
  for (int a = 0; a < mesh_.rank(); ++a)
    if (state.free(a)) cut(state.at(a), mesh_.axis_size(a));
  return static_cast<double>(left.elements());
}

Cost Planner::CostOfStep(const State& from, const State& to, const StepShape& shape) const {
  int64_t span = 1, stride = 1;  // devices from a group's first to its last
  for (int a = mesh_.rank() - 1; a >= 0; stride *= mesh_.axis_size(a--))
    if (shape.affected >> a & 1) span += stride * (mesh_.axis_size(a) - 1);
  Cost cost;
  const double acts = Acts(from.time(), times_);
  double in_pieces, out_pieces;
  const double largest_in = Largest(from, &in_pieces), largest_out = Largest(to, &out_pieces);
  const double busiest = Busiest(from, to, shape, &cost.moved);
  // A local copy writes its destination; a message passes over both of its ends.
  const double passed = acts * (largest_out + (shape.local ? 0 : largest_in));
  const Topology::Link& link = topology_.Spanning(span);
  cost.per_byte = busiest / link.bandwidth + passed / topology_.memory_bandwidth;
  if (!shape.local) cost.fixed = acts * link.latency * shape.rounds * (shape.combines ? 2 : 1);
  cost.steps = 1;
  return cost;
}

// Elements of a step that the device sends or receives which does most of either; `moved` over the whole
// mesh.
double Planner::Busiest(const State& from, const State& to, const StepShape& shape, double* moved) const {
  double copies = 1, groups = 1, in_pieces = 1, out_pieces = 1;
  for (int a = 0; a < mesh_.rank(); ++a) {
    if ((shape.affected >> a & 1) || !from.free(a)) continue;
    groups *= mesh_.axis_size(a);
    if (!from.at(a).is_split()) copies *= mesh_.axis_size(a);
  }
  *moved = Volume(from.time(), times_) * Elements() * copies * shape.factor;
  const double in = Largest(from, &in_pieces), out = Largest(to, &out_pieces);
  // Whoever holds more than an even share sends or receives that much more.
  const double uneven = std::max(in * in_pieces, out * out_pieces) / std::max(1.0, Elements());
  return *moved * std::max(1.0, uneven) / (groups * std::min(shape.receivers, shape.senders));
}

// Devices of one unit of so many that differ in the coordinates of these axes alone.
double Planner::MembersWithin(const State& end, uint32_t axes, int64_t devices) const {
  double members = 1;
  int64_t stride = 1;
  for (int a = mesh_.rank() - 1; a >= 0; stride *= mesh_.axis_size(a--))
    if (end.free(a) && (axes >> a & 1))
      members *= std::clamp<double>(static_cast<double>(devices) / stride, 1, mesh_.axis_size(a));
  return members;
}

// The group at coordinate 0 of the axes outside of it. `bytes`: of its busiest device, in one act.
void Planner::LoadLinks(const State& from, const State& to, const StepShape& shape, double bytes,
                        const LinkLevels& levels, std::vector<double>* links) const {
  int64_t first = std::numeric_limits<int64_t>::max(), last = 0;
  for (const State* end : {&from, &to}) {
    int64_t low = 0, high = 0, stride = 1;
    for (int a = mesh_.rank() - 1; a >= 0; stride *= mesh_.axis_size(a--)) {
      const bool spread = end->free(a) && (shape.affected >> a & 1);
      low += stride * (end->free(a) ? 0 : end->fixed[a]);
      high += stride * (spread ? mesh_.axis_size(a) - 1 : end->free(a) ? 0 : end->fixed[a]);
    }
    first = std::min(first, low);
    last = std::max(last, high);
  }
  // Of devices that go round, each unit's links carry what one device sends, whoever of them it is from.
  const bool ring = shape.primitive == Primitive::kAllReduce ||
                    shape.primitive == Primitive::kReduceScatter ||
                    shape.primitive == Primitive::kAllGather || shape.primitive == Primitive::kBroadcast;
  const int joins = levels.LevelJoining(first, last);
  links->assign(joins + 1, 0);
  int64_t unit = 1;  // devices of the level inside
  for (int level = 0; level <= joins; ++level) {
    const double members = MembersWithin(from, shape.affected, unit);
    const double together = MembersWithin(from, ~0u, unit);  // of all groups
    const Topology::Link& link = topology_.links[level];
    const double carried =
        levels.IsShared(level) ? (ring ? together / members : together) : (ring ? 1 / members : 1);
    if (level == joins || (ring && MembersWithin(from, shape.affected, link.devices) > members))
      (*links)[level] = bytes * carried / link.bandwidth;
    unit = link.devices;
  }
}

BoxingLoad Planner::LoadOfOne(const State& to, double element_bytes, const LinkLevels& levels) const {
  BoxingLoad load;
  if (at_.time() != to.time()) {
    load.copies = LargestOfAct(at_, to) * element_bytes / topology_.memory_bandwidth;
    return load;
  }
  const StepShape shape = AnalyseStep(mesh_, times_, shape_, at_.view(), to.view());
  double pieces, moved;
  load.copies = (Largest(to, &pieces) + (shape.local ? 0 : Largest(at_, &pieces))) * element_bytes /
                topology_.memory_bandwidth;
  if (shape.local) return load;
  const double bytes = Busiest(at_, to, shape, &moved) / Acts(at_.time(), times_) * element_bytes;
  LoadLinks(at_, to, shape, bytes, levels, &load.links);
  double rounds = 0;
  for (int a = 0; a < mesh_.rank(); ++a) {
    if (!(shape.affected >> a & 1) || mesh_.axis_size(a) == 1) continue;
    rounds += at_.free(a) || to.free(a) ? std::ceil(std::log2(mesh_.axis_size(a))) : 1;
  }
  load.latency = topology_.links[load.links.size() - 1].latency * rounds * (shape.combines ? 2 : 1);

  const auto members = [&](int64_t devices) {
    return static_cast<int>(
        std::max(MembersWithin(at_, shape.affected, devices), MembersWithin(to, shape.affected, devices)));
  };
  load.primitive = shape.primitive;
  load.members = shape.primitive == Primitive::kSend ? 2 : members(std::numeric_limits<int64_t>::max());
  const int64_t unit = topology_.links[0].devices;
  load.per_unit = load.links.size() == 1 || unit == 0 ? load.members : members(unit);
  load.bytes = std::max(Largest(at_, &pieces), Largest(to, &pieces)) * element_bytes;
  if (shape.primitive == Primitive::kAllToAll) load.bytes *= load.members;
  return load;
}

// Of a change of time: every act's piece is passed over once.
Cost Planner::CostOfLocal(const State& from, const State& to) const {
  Cost cost;
  const double acts = std::max(Acts(from.time(), times_), Acts(to.time(), times_));
  cost.per_byte = acts * LargestOfAct(from, to) / topology_.memory_bandwidth;
  cost.steps = 1;
  return cost;
}

void Planner::Take(const State& to, Primitive primitive, uint32_t axes, const Cost& cost) {
  cost_.Add(cost);
  at_ = to;
  if (steps_ == nullptr) return;
  BoxingStep step{primitive, LayoutOf(to, mesh_.rank()), {}};
  for (int a = 0; a < mesh_.rank(); ++a) {
    if (axes >> a & 1) step.axes.push_back(a);
  }
  steps_->push_back(std::move(step));
}

void Planner::TakeRouted(const State& to) {
  if (Same(at_, to, mesh_.rank())) return;
  const StepShape shape = AnalyseStep(mesh_, times_, shape_, at_.view(), to.view());
  CHECK(!shape.mixed_folds);
  Take(to, shape.primitive, shape.local ? 0 : shape.affected, CostOfStep(at_, to, shape));
}

void Planner::ChangeTime(Primitive primitive, const Sbp& time) {
  State to = at_;
  to.sbp[0] = time;
  Take(to, primitive, 0, CostOfLocal(at_, to));
}

bool Planner::CutsMesh(const State& state, int tensor_axis) const {
  for (int a = 0; a < mesh_.rank(); ++a) {
    const Sbp& sbp = state.at(a);
    if (state.free(a) && mesh_.axis_size(a) > 1 && sbp.is_split() && sbp.axis == tensor_axis) return true;
  }
  return false;
}

// The cheapest way to change mesh axes and slice at equal time.
void Planner::ReachMesh(const State& to) {
  CombineBefore(to);
  State whole = to;
  Reduce fold = Reduce::kNone;
  bool mixed = false;
  for (int a = 0; a < mesh_.rank(); ++a) {
    if (!to.at(a).is_partial() || (at_.fixed[a] == to.fixed[a] && at_.at(a) == to.at(a))) continue;
    mixed |= fold != Reduce::kNone && fold != to.at(a).fold;
    fold = to.at(a).fold;
    whole.at(a) = B();
  }
  if (!mixed) return Search(to);
  // New Partials of several folds are made one after another, from B.
  Search(whole);
  for (int a = 0; a < mesh_.rank(); ++a) {
    whole.at(a) = to.at(a);
    TakeRouted(whole);
  }
}

// Where Partials of several folds are involved, those of the source are combined first, the inner mesh axis
// first: a maximum of sums is not the sum of maxima.
void Planner::CombineBefore(const State& to) {
  const int axes = mesh_.rank();
  Reduce fold = Reduce::kNone;
  bool mixed = false, changes = false;
  for (int a = 0; a < axes; ++a) {
    const bool differs = at_.fixed[a] != to.fixed[a] || at_.at(a) != to.at(a);
    changes |= differs && at_.at(a).is_partial();
    for (const Sbp* sbp : {&std::as_const(at_).at(a), differs ? &to.at(a) : &std::as_const(at_).at(a)}) {
      if (!sbp->is_partial()) continue;
      mixed |= fold != Reduce::kNone && fold != sbp->fold;
      fold = sbp->fold;
    }
  }
  if (!mixed || !changes) return;
  for (int a = axes - 1; a >= 0; --a) {
    if (!at_.at(a).is_partial()) continue;
    State next = at_;
    next.at(a) = B();
    TakeRouted(next);
  }
}

// Every order in which the changes can be made, singly or several together: shortest paths over the sets of
// changes made so far. An item is a mesh axis that is free at both ends, or the crossing from slice to slice.
void Planner::Search(const State& to) {
  const int axes = mesh_.rank();
  uint32_t item_axes[kMaxItems] = {};
  int items = 0;
  int crossing = -1;
  if (!SameSlice(at_, to, axes)) crossing = items++;
  for (int a = 0; a < axes; ++a) {
    if (!at_.free(a) || !to.free(a) || at_.at(a) == to.at(a)) continue;
    item_axes[std::min(items, kMaxItems - 1)] |= 1u << a;
    items = std::min(items + 1, kMaxItems);
  }
  if (items <= 1) return TakeRouted(to);  // does nothing where nothing differs
  const State from = at_;
  const auto state_of = [&](uint32_t done) {
    const bool crossed = crossing >= 0 ? (done >> crossing & 1) != 0 : false;
    State state = crossed ? to : from;
    for (int i = 0; i < items; ++i) {
      for (int a = 0; a < axes; ++a) {
        if (item_axes[i] >> a & 1) state.at(a) = done >> i & 1 ? to.at(a) : from.at(a);
      }
    }
    return state;
  };
  const uint32_t all = (1u << items) - 1;
  Cost best[1 << kMaxItems];
  uint32_t before[1 << kMaxItems] = {};
  for (uint32_t done = 1; done <= all; ++done) best[done].fixed = std::numeric_limits<double>::infinity();
  for (uint32_t done = 0; done < all; ++done) {
    if (best[done].fixed == std::numeric_limits<double>::infinity()) continue;
    const State here = state_of(done);
    const uint32_t rest = all & ~done;
    for (uint32_t next = rest; next != 0; next = (next - 1) & rest) {
      const State there = state_of(done | next);
      const StepShape shape = AnalyseStep(mesh_, times_, shape_, here.view(), there.view());
      if (shape.mixed_folds) continue;
      Cost cost = best[done];
      cost.Add(CostOfStep(here, there, shape));
      Cost& known = best[done | next];
      if (known.fixed == std::numeric_limits<double>::infinity() || cost.Beats(known)) {
        known = cost;
        before[done | next] = done;
      }
    }
  }
  uint32_t path[kMaxItems];
  int length = 0;
  for (uint32_t done = all; done != 0; done = before[done]) path[length++] = done;
  while (length > 0) TakeRouted(state_of(path[--length]));
}

// B to S over time, or S to B. The micro-batch is cut out, or put in its place, locally, and so the mesh must
// not cut the same tensor axis at that moment: then the pieces would not nest. What the mesh changes before
// and what after is chosen by cost.
void Planner::ReachAcrossTime(const State& to) {
  const bool slices = to.time().is_split();
  const Primitive primitive = slices ? Primitive::kTimeSlice : Primitive::kTimeGather;
  const int cut = slices ? to.time().axis : at_.time().axis, axes = mesh_.rank();
  const Sbp before = at_.time();
  const auto without_cut = [&](State state, const State& other) {
    state.sbp[0] = before;
    for (int a = 0; a < axes && times_ > 1; ++a) {
      const auto cuts = [&](const Sbp& sbp) { return sbp.is_split() && sbp.axis == cut; };
      if (state.free(a) && cuts(state.at(a)))
        state.at(a) = other.free(a) && !cuts(other.at(a)) ? other.at(a) : B();
    }
    return state;
  };
  State source_whole = at_;
  for (int a = 0; a < axes; ++a) {
    if (source_whole.at(a).is_split() && source_whole.at(a).axis == cut) source_whole.at(a) = B();
  }
  const State candidates[] = {without_cut(to, at_), at_, times_ > 1 ? source_whole : at_};
  const State* chosen = nullptr;
  Cost best;
  for (const State& middle : candidates) {
    if (times_ > 1 && CutsMesh(middle, cut)) continue;
    Planner trial(mesh_, times_, shape_, at_, topology_, nullptr);
    trial.ReachMesh(middle);
    trial.ChangeTime(primitive, to.time());
    trial.ReachMesh(to);
    if (chosen != nullptr && !trial.cost().Beats(best)) continue;
    chosen = &middle;
    best = trial.cost();
  }
  ReachMesh(*chosen);
  ChangeTime(primitive, to.time());
  ReachMesh(to);
}

void Planner::Reach(const State& to) {
  const Sbp from_time = at_.time(), to_time = to.time();
  if (from_time == to_time) return ReachMesh(to);
  const bool legal = from_time.is_broadcast() || (from_time.is_partial() && !to_time.is_split()) ||
                     (from_time.is_split() && to_time.is_broadcast());
  if (!legal && times_ > 1) {
    const int axes = mesh_.rank();
    Fail("boxing ", LayoutOf(at_, axes).str(mesh_, times_), " to ", LayoutOf(to, axes).str(mesh_, times_),
         " needs the whole batch, but the value comes in ", times_,
         " micro-batches, one after another; use one micro-batch, or keep its time entry ", from_time.str());
  }
  if (from_time.is_partial()) {
    // Time is the outermost axis and so folded last: Partials of other folds, and what is inside of them,
    // come first.
    int outermost = 0;
    while (outermost < mesh_.rank() &&
           (!at_.at(outermost).is_partial() || at_.at(outermost).fold == from_time.fold)) {
      ++outermost;
    }
    for (int a = mesh_.rank() - 1; a >= outermost; --a) {
      if (!at_.at(a).is_partial()) continue;
      State next = at_;
      next.at(a) = B();
      TakeRouted(next);
    }
  }
  if (from_time.is_split() && to_time.is_broadcast()) return ReachAcrossTime(to);
  // Accumulated before any communication, so that what is sent is sent once per step.
  if (!from_time.is_broadcast()) ChangeTime(Primitive::kAccumulate, B());
  if (to_time.is_split()) return ReachAcrossTime(to);
  State once = to;
  once.sbp[0] = B();
  ReachMesh(once);
  if (to_time.is_partial()) ChangeTime(Primitive::kKeep, to_time);
}

}  // namespace

const Topology::Link& Topology::Spanning(int64_t span) const {
  CHECK(!links.empty());
  for (const Link& link : links)
    if (link.devices == 0 || span <= link.devices) return link;
  return links.back();
}

int LinkLevels::LevelJoining(int64_t device, int64_t other) const {
  const std::vector<Topology::Link>& links = topology.links;
  CHECK(!links.empty());
  for (size_t level = 0; level + 1 < links.size(); ++level)
    if (links[level].devices == 0 || device / links[level].devices == other / links[level].devices)
      return static_cast<int>(level);
  return static_cast<int>(links.size()) - 1;
}

double BoxingLoad::seconds() const {
  double busy = 0;
  for (double link : links) busy = std::max(busy, link);
  return latency + copies + busy;
}

std::vector<BoxingStep> PlanBoxing(const Mesh& mesh, int times, const Dims& shape, const Layout& from,
                                   const Layout& to, const Topology& topology) {
  std::vector<BoxingStep> steps;
  Planner planner(mesh, times, shape, from, topology, &steps);
  planner.Reach(to);
  return steps;
}

BoxingCost CostOfBoxing(const Mesh& mesh, int times, const Dims& shape, int64_t element_bytes,
                        const Layout& from, const Layout& to, const Topology& topology) {
  if (from == to) return {};
  Planner planner(mesh, times, shape, from, topology, nullptr);
  planner.Reach(to);
  return {planner.cost().seconds(static_cast<double>(element_bytes)), planner.cost().moved};
}

BoxingCost CostOfBoxingStep(const Mesh& mesh, int times, const Dims& shape, int64_t element_bytes,
                            const Layout& from, const Layout& to, const Topology& topology) {
  const Cost cost = Planner(mesh, times, shape, from, topology, nullptr).CostOfOne(to);
  return {cost.seconds(static_cast<double>(element_bytes)), cost.moved};
}

BoxingLoad LoadOfBoxingStep(const Mesh& mesh, int times, const Dims& shape, int64_t element_bytes,
                            const Layout& from, const Layout& to, const LinkLevels& levels) {
  return Planner(mesh, times, shape, from, levels.topology, nullptr)
      .LoadOfOne(to, static_cast<double>(element_bytes), levels);
}

}  // namespace oneflow_like
