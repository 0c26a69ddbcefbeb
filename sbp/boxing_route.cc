// The router: one algorithm for every pair of layouts. Work is done by destination members: each pulls what
// it needs from the sources that hold it, itself first. Where several terms must be folded, the destination's
// replicas share the folding and hand the results to each other. A destination Partial takes each term at one
// coordinate only.
#include <glog/logging.h>

#include <algorithm>
#include <unordered_map>

#include "sbp/boxing_step.h"

namespace oneflow_like {
namespace {

// One end of a group with its members' indices taken apart: index = split + partial + replica offset.
class EndIndex {
 public:
  explicit EndIndex(const BoxingEnd& end) : end_(end), strides_(end.sizes.size()) {
    int stride = 1;
    for (int a = static_cast<int>(end.sizes.size()) - 1; a >= 0; --a) {
      strides_[a] = stride;
      stride *= end.sizes[a];
    }
    CHECK_EQ(stride, static_cast<int>(end.devices.size()));
    split_ = Offsets(Sbp::Kind::kSplit);
    partial_ = Offsets(Sbp::Kind::kPartial);
    replica_ = Offsets(Sbp::Kind::kBroadcast);
    split_of_.resize(stride);
    partial_of_.resize(stride);
    for (int s : split_) {
      for (int p : partial_) {
        for (int r : replica_) {
          split_of_[s + p + r] = s;
          partial_of_[s + p + r] = p;
        }
      }
    }
  }

  int size() const { return static_cast<int>(end_.devices.size()); }
  int axes() const { return static_cast<int>(strides_.size()); }
  int axis_size(int axis) const { return end_.sizes[axis]; }
  int device(int index) const { return end_.devices[index]; }
  int digit(int index, int axis) const { return index / strides_[axis] % end_.sizes[axis]; }
  int stride(int axis) const { return strides_[axis]; }
  const Sbp& sbp(int axis) const { return end_.sbp[axis]; }
  // Offsets of the coordinates along the axes of one kind, in row-major order.
  const std::vector<int>& split() const { return split_; }
  const std::vector<int>& partial() const { return partial_; }
  const std::vector<int>& replica() const { return replica_; }
  int split_of(int index) const { return split_of_[index]; }
  int partial_of(int index) const { return partial_of_[index]; }

  Box BoxOf(const Box& whole, int index) const {
    Box box = whole;
    for (int a = 0; a < axes(); ++a) {
      if (!sbp(a).is_split()) continue;
      const int i = sbp(a).axis;
      const Interval part = Cut({box.begin[i], box.extent[i]}, axis_size(a), digit(index, a), sbp(a).grain);
      box.begin[i] = part.begin;
      box.extent[i] = part.extent;
    }
    return box;
  }

 private:
  std::vector<int> Offsets(Sbp::Kind kind) const {
    std::vector<int> offsets = {0};
    for (int a = 0; a < axes(); ++a) {
      if (sbp(a).kind != kind) continue;
      std::vector<int> longer;
      longer.reserve(offsets.size() * axis_size(a));
      for (int offset : offsets) {
        for (int c = 0; c < axis_size(a); ++c) longer.push_back(offset + c * strides_[a]);
      }
      offsets.swap(longer);
    }
    return offsets;
  }

  const BoxingEnd& end_;
  std::vector<int> strides_, split_, partial_, replica_, split_of_, partial_of_;
};

// Routes inside one group: all of its axes are affected.
class Router {
 public:
  Router(const Box& box, const BoxingEnd& from, const BoxingEnd& to)
      : box_(box), from_(from), to_(to), aligned_(from_.axes() == to_.axes()) {
    std::unordered_map<int, int> source_at;
    for (int s = 0; s < from_.size(); ++s) source_at[from_.device(s)] = s;
    CHECK_EQ(static_cast<int>(source_at.size()), from_.size()) << "a device stands twice at the source";
    dest_of_source_.assign(from_.size(), -1);
    source_of_dest_.assign(to_.size(), -1);
    member_of_dest_.resize(to_.size());
    int members = from_.size();
    for (int d = 0; d < to_.size(); ++d) {
      const auto found = source_at.find(to_.device(d));
      if (found == source_at.end()) {
        member_of_dest_[d] = members++;
        continue;
      }
      CHECK_EQ(dest_of_source_[found->second], -1) << "a device stands twice at the destination";
      source_of_dest_[d] = member_of_dest_[d] = found->second;
      dest_of_source_[found->second] = d;
    }
    const auto both =
        std::find_if(dest_of_source_.begin(), dest_of_source_.end(), [](int d) { return d >= 0; });
    if (both != dest_of_source_.end()) home_ = to_.partial_of(*both);
    reduce_ = TheFold();
    members_ = members;
  }

  // The program without its work.
  BoxingProgram Members() const {
    BoxingProgram program;
    program.reduce = reduce_;
    program.members.resize(members_);
    program.in.resize(members_);
    program.out.resize(members_);
    program.has_in.assign(members_, false);
    program.has_out.assign(members_, false);
    program.work.resize(members_);
    for (int s = 0; s < from_.size(); ++s) {
      program.members[s] = from_.device(s);
      program.in[s] = from_.BoxOf(box_, s);
      program.has_in[s] = true;
    }
    for (int d = 0; d < to_.size(); ++d) {
      const int m = member_of_dest_[d];
      program.members[m] = to_.device(d);
      program.out[m] = to_.BoxOf(box_, d);
      program.has_out[m] = true;
    }
    return program;
  }

  int size() const { return members_; }
  int DestOfMember(int member) const {
    if (member < from_.size()) return dest_of_source_[member];
    for (int d = 0; d < to_.size(); ++d) {
      if (member_of_dest_[d] == member) return d;
    }
    return -1;
  }
  int MemberOfDest(int dest) const { return member_of_dest_[dest]; }
  int destinations() const { return to_.size(); }

  // The regions that destination `me` works on.
  std::vector<Region> WorkOf(int me) const {
    std::vector<Region> work;
    const Box out = to_.BoxOf(box_, me);
    if (out.empty()) return work;
    const int number_of_parts = static_cast<int>(from_.split().size());
    std::vector<int> terms;
    for (int part = 0; part < number_of_parts; ++part) {
      const int split = from_.split()[part];
      const Box piece = out.Intersect(from_.BoxOf(box_, split));
      if (piece.empty()) continue;
      terms.clear();
      for (int partial : from_.partial()) {
        if (Designated(split, partial, to_.split_of(me)) == to_.partial_of(me)) terms.push_back(partial);
      }
      if (terms.size() > 1) {
        Fold(me, part, piece, terms, &work);
        continue;
      }
      Region region;
      region.box = piece;
      for (int partial : terms) region.sources.push_back(Source(split, partial, me));
      region.dests.push_back(member_of_dest_[me]);
      work.push_back(std::move(region));
    }
    return work;
  }

 private:
  Reduce TheFold() const {
    Reduce fold = Reduce::kNone;
    for (const EndIndex* end : {&from_, &to_}) {
      for (int a = 0; a < end->axes(); ++a) {
        if (!end->sbp(a).is_partial() || end->axis_size(a) == 1) continue;
        CHECK(fold == Reduce::kNone || fold == end->sbp(a).fold)
            << "one boxing program cannot fold by " << Name(fold) << " and by " << Name(end->sbp(a).fold);
        fold = end->sbp(a).fold;
      }
    }
    return fold;
  }

  // Which Partial coordinate of the destination takes this term of the source: one that holds it already,
  // else the coordinate of the same axis, else where other terms are held already.
  int Designated(int split, int partial, int to_split) const {
    if (to_.partial().size() == 1) return 0;
    for (int replica : from_.replica()) {
      const int dest = dest_of_source_[split + partial + replica];
      if (dest >= 0 && to_.split_of(dest) == to_split) return to_.partial_of(dest);
    }
    if (!aligned_) return home_;
    int offset = 0;
    for (int a = 0; a < to_.axes(); ++a) {
      if (!to_.sbp(a).is_partial()) continue;
      const int digit =
          from_.sbp(a).is_partial() ? from_.digit(partial, a) % to_.axis_size(a) : to_.digit(home_, a);
      offset += digit * to_.stride(a);
    }
    return offset;
  }

  // Which of the replicas that hold a term destination `me` reads: itself, else the one at its own
  // coordinates, so that replicas share the load.
  int Source(int split, int partial, int me) const {
    const int self = source_of_dest_[me];
    if (self >= 0 && from_.split_of(self) == split && from_.partial_of(self) == partial) return self;
    if (!aligned_) return split + partial + from_.replica()[me % from_.replica().size()];
    int index = split + partial;
    for (int a = 0; a < from_.axes(); ++a) {
      if (from_.sbp(a).is_broadcast()) index += to_.digit(me, a) % from_.axis_size(a) * from_.stride(a);
    }
    return index;
  }

  // Several terms: the replicas of `me` share the piece; those that hold a term come first, for they read
  // less.
  void Fold(int me, int part, const Box& piece, const std::vector<int>& terms,
            std::vector<Region>* work) const {
    const int split = from_.split()[part], base = to_.split_of(me) + to_.partial_of(me);
    std::vector<int> workers;
    for (int replica : to_.replica()) {
      const int self = source_of_dest_[base + replica];
      if (self >= 0 && from_.split_of(self) == split &&
          std::binary_search(terms.begin(), terms.end(), from_.partial_of(self))) {
        workers.push_back(base + replica);
      }
    }
    if (workers.empty()) {
      for (int replica : to_.replica()) workers.push_back(base + replica);
    }
    const auto found = std::find(workers.begin(), workers.end(), me);
    if (found == workers.end()) return;
    Region region;
    region.box = piece;
    const int number = static_cast<int>(workers.size());
    // Rotated by the part, so that the remainders of many small parts do not all fall to the first worker.
    const int index = static_cast<int>(found - workers.begin() + part) % number;
    if (piece.extent.rank() == 0) {
      if (index != 0) return;
    } else {
      const int axis =
          static_cast<int>(std::max_element(piece.extent.begin(), piece.extent.end()) - piece.extent.begin());
      const Interval share = Cut({piece.begin[axis], piece.extent[axis]}, number, index, 1);
      if (share.extent == 0) return;
      region.box.begin[axis] = share.begin;
      region.box.extent[axis] = share.extent;
    }
    for (int partial : terms) region.sources.push_back(Source(split, partial, me));
    for (int replica : to_.replica()) region.dests.push_back(member_of_dest_[base + replica]);
    work->push_back(std::move(region));
  }

  Box box_;
  EndIndex from_, to_;
  bool aligned_;  // axis a of both ends is the same axis
  std::vector<int> dest_of_source_, source_of_dest_, member_of_dest_;
  Reduce reduce_ = Reduce::kNone;
  int members_ = 0;
  int home_ = 0;  // a Partial coordinate of the destination that has sources among its members
};

// The end restricted to the axes in `affected`, at the coordinates of member `index` on the others.
BoxingEnd Restrict(const BoxingEnd& end, uint32_t affected, const std::vector<int>& coords) {
  BoxingEnd group;
  std::vector<int> starts = {0};
  int stride = static_cast<int>(end.devices.size());
  for (size_t a = 0; a < end.sizes.size(); ++a) {
    stride /= end.sizes[a];
    if (!(affected >> a & 1)) {
      for (int& start : starts) start += coords[a] * stride;
      continue;
    }
    group.sizes.push_back(end.sizes[a]);
    group.sbp.push_back(end.sbp[a]);
    std::vector<int> longer;
    for (int start : starts) {
      for (int c = 0; c < end.sizes[a]; ++c) longer.push_back(start + c * stride);
    }
    starts.swap(longer);
  }
  for (int start : starts) group.devices.push_back(end.devices[start]);
  return group;
}

// `box` cut along the axes that are not affected. They cut outside of affected ones, or other tensor axes.
Box GroupBox(Box box, const NdSbp& sbp, const std::vector<int>& sizes, uint32_t affected,
             const std::vector<int>& coords) {
  for (size_t a = 0; a < sizes.size(); ++a) {
    if (affected >> a & 1 || !sbp[a].is_split()) continue;
    const int i = sbp[a].axis;
    const Interval part = Cut({box.begin[i], box.extent[i]}, sizes[a], coords[a], sbp[a].grain);
    box.begin[i] = part.begin;
    box.extent[i] = part.extent;
  }
  return box;
}

// Axes of two ends that are not known to be of one mesh: independent only where the ends have the same form
// and a device of both has the same coordinate at both.
uint32_t AffectedAxes(const BoxingEnd& from, const BoxingEnd& to) {
  const int axes = static_cast<int>(from.sizes.size());
  if (from.sizes.size() != to.sizes.size()) return ~0u;
  std::unordered_map<int, int> source_at;
  for (size_t s = 0; s < from.devices.size(); ++s) source_at[from.devices[s]] = static_cast<int>(s);
  const EndIndex f(from), t(to);
  uint32_t changed = 0;
  for (int a = 0; a < axes; ++a) {
    bool same = from.sizes[a] == to.sizes[a] && from.sbp[a] == to.sbp[a];
    for (int d = 0; same && d < t.size(); ++d) {
      const auto found = source_at.find(t.device(d));
      same = found == source_at.end() || f.digit(found->second, a) == t.digit(d, a);
    }
    if (!same) changed |= 1u << a;
  }
  return CloseOverCuts(changed, axes, from.sbp.data(), from.sizes.data(), to.sbp.data(), to.sizes.data());
}

// Appends a group's program to that of all, whose members are settled.
void Merge(const BoxingProgram& group, const std::unordered_map<int, int>& member_at, BoxingProgram* all) {
  const auto translate = [&](const std::vector<int>& members) {
    std::vector<int> result;
    for (int m : members) result.push_back(member_at.at(group.members[m]));
    return result;
  };
  for (size_t m = 0; m < group.members.size(); ++m) {
    const int at = member_at.at(group.members[m]);
    for (const Region& region : group.work[m]) {
      all->work[at].push_back({region.box, translate(region.sources), translate(region.dests)});
    }
  }
  all->reduce = group.reduce;
}

BoxingProgram RouteWholeGroup(const Box& box, const BoxingEnd& from, const BoxingEnd& to) {
  const Router router(box, from, to);
  BoxingProgram program = router.Members();
  for (int d = 0; d < router.destinations(); ++d) program.work[router.MemberOfDest(d)] = router.WorkOf(d);
  return program;
}

// Only member `me`, which needs nobody else.
BoxingProgram Alone(const BoxingProgram& program, int me) {
  BoxingProgram alone;
  alone.reduce = program.reduce;
  alone.me = 0;
  alone.members = {program.members[me]};
  alone.in = {program.in[me]};
  alone.out = {program.out[me]};
  alone.has_in = {program.has_in[me]};
  alone.has_out = {program.has_out[me]};
  alone.work = {program.work[me]};
  for (Region& region : alone.work[0]) {
    for (std::vector<int>* members : {&region.sources, &region.dests}) {
      for (int& member : *members) {
        CHECK_EQ(member, me) << "a local boxing reads or writes another member";
        member = 0;
      }
    }
  }
  return alone;
}

}  // namespace

int64_t BoxingProgram::Moved() const {
  int64_t moved = 0;
  for (size_t m = 0; m < work.size(); ++m) {
    const auto elsewhere = [m](int member) { return member != static_cast<int>(m); };
    for (const Region& region : work[m]) {
      moved +=
          region.box.elements() * (std::count_if(region.sources.begin(), region.sources.end(), elsewhere) +
                                   std::count_if(region.dests.begin(), region.dests.end(), elsewhere));
    }
  }
  return moved;
}

Box MicroBatch(const Dims& shape, int times, int time, const Sbp& sbp) {
  Box box = Box::Whole(shape);
  if (!sbp.is_split()) return box;
  const Interval part = Cut({0, shape[sbp.axis]}, times, time, sbp.grain);
  box.begin[sbp.axis] = part.begin;
  box.extent[sbp.axis] = part.extent;
  return box;
}

BoxingEnd EndOf(const Mesh& mesh, const Layout& layout) {
  BoxingEnd end;
  std::vector<std::vector<int>> members = {{}};
  for (int a = 0; a < mesh.rank(); ++a) {
    const int fixed = layout.slice.fixed[a];
    end.sizes.push_back(fixed == Slice::kFree ? mesh.axis_size(a) : 1);
    end.sbp.push_back(layout.sbp[1 + a]);
    std::vector<std::vector<int>> longer;
    for (const std::vector<int>& coords : members) {
      for (int c = 0; c < end.sizes[a]; ++c) {
        longer.push_back(coords);
        longer.back().push_back(fixed == Slice::kFree ? c : fixed);
      }
    }
    members.swap(longer);
  }
  for (const std::vector<int>& coords : members) end.devices.push_back(mesh.Device(coords));
  return end;
}

BoxingProgram RouteAll(const Box& box, const BoxingEnd& from, const BoxingEnd& to) {
  const uint32_t affected = AffectedAxes(from, to);
  const EndIndex source(from), dest(to);
  // The members and their pieces, without regard to groups.
  BoxingProgram all;
  std::unordered_map<int, int> member_at;
  for (const BoxingEnd* end : {&from, &to}) {
    for (int device : end->devices) {
      if (member_at.emplace(device, static_cast<int>(all.members.size())).second)
        all.members.push_back(device);
    }
  }
  all.in.resize(all.members.size());
  all.out.resize(all.members.size());
  all.work.resize(all.members.size());
  all.has_in.assign(all.members.size(), false);
  all.has_out.assign(all.members.size(), false);
  for (int s = 0; s < source.size(); ++s) {
    all.in[member_at[source.device(s)]] = source.BoxOf(box, s);
    all.has_in[member_at[source.device(s)]] = true;
  }
  for (int d = 0; d < dest.size(); ++d) {
    all.out[member_at[dest.device(d)]] = dest.BoxOf(box, d);
    all.has_out[member_at[dest.device(d)]] = true;
  }
  // A group for each point of the axes that are not affected.
  int groups = 1;
  for (int a = 0; a < source.axes(); ++a) groups *= affected >> a & 1 ? 1 : from.sizes[a];
  for (int g = 0; g < groups; ++g) {
    std::vector<int> coords(source.axes(), 0);
    int rest = g;
    for (int a = source.axes() - 1; a >= 0; --a) {
      if (affected >> a & 1) continue;
      coords[a] = rest % from.sizes[a];
      rest /= from.sizes[a];
    }
    const Box group_box = affected == ~0u ? box : GroupBox(box, from.sbp, from.sizes, affected, coords);
    const BoxingEnd f = Restrict(from, affected, coords), t = Restrict(to, affected, coords);
    Merge(RouteWholeGroup(group_box, f, t), member_at, &all);
  }
  return all;
}

BoxingProgram RouteGroup(const Mesh& mesh, int times, int time, const Dims& shape, const Layout& from,
                         const Layout& to, const std::vector<int>& coords, bool everybody) {
  CHECK(from.sbp[0] == to.sbp[0]) << "time is changed locally, not by routing";
  const StepShape step = AnalyseStep(mesh, times, shape, View(from), View(to));
  std::vector<int> sizes, group_coords = coords;
  for (int a = 0; a < mesh.rank(); ++a) {
    sizes.push_back(from.slice.fixed[a] == Slice::kFree ? mesh.axis_size(a) : 1);
    if (sizes[a] == 1) group_coords[a] = 0;
  }
  const NdSbp mesh_sbp(from.sbp.begin() + 1, from.sbp.end());
  const Box box =
      GroupBox(MicroBatch(shape, times, time, from.sbp[0]), mesh_sbp, sizes, step.affected, group_coords);
  BoxingEnd ends[2];
  for (int e = 0; e < 2; ++e) {
    // The group alone is spelled out, so that the cost does not grow with the mesh.
    Layout layout = e == 0 ? from : to;
    for (int a = 0; a < mesh.rank(); ++a) {
      const bool free = layout.slice.fixed[a] == Slice::kFree;
      if (free && !(step.affected >> a & 1)) layout.slice.fixed[a] = coords[a];
    }
    BoxingEnd end = EndOf(mesh, layout);
    ends[e] = Restrict(end, step.affected, std::vector<int>(mesh.rank(), 0));
  }
  const Router router(box, ends[0], ends[1]);
  BoxingProgram program = router.Members();
  const auto mine = std::find(program.members.begin(), program.members.end(), mesh.Device(coords));
  CHECK(mine != program.members.end()) << "the coordinates are of neither end of the boxing";
  program.me = static_cast<int>(mine - program.members.begin());
  const int my_dest = router.DestOfMember(program.me);
  for (int d = 0; d < router.destinations(); ++d) {
    if (d == my_dest || (everybody && !step.local)) program.work[router.MemberOfDest(d)] = router.WorkOf(d);
  }
  return step.local ? Alone(program, program.me) : program;
}

}  // namespace oneflow_like
