#include "compiler/plan/rank_plan.h"

#include <glog/logging.h>

#include <algorithm>
#include <optional>

#include "compiler/cost/collective_costs.h"
#include "core/plan/plan_values.h"

namespace oneflow_like {

namespace {

// --- Kernels ---

// Without its pieces if the plan is of memory alone and the kernel's scratch does not depend on them.
void SetOperand(const RankOfMesh& rank, const LogicalPlan& logical, const Segment& segment, int value,
                bool pieces, plan::Operand* out) {
  const Value& v = rank.graph.value(value);
  out->set_buffer(logical.buffer_of[value]);
  out->set_period(segment.per_micro_batch ? rank.graph.PeriodOf(value) : 1);
  if (!pieces) return;
  out->set_dtype(static_cast<int>(v.dtype));
  Set(v.shape, out->mutable_global());
  for (const Box& b : rank.Boxes(v)) Set(b, out->add_box());
}

std::string FoldOf(const NdSbp& sbp) {
  for (const Sbp& s : sbp)
    if (s.is_partial()) return Name(s.fold);
  return "";
}

// Whether the rank keeps the value when a B becomes a P, rather than the identity.
bool KeepsValue(const RankOfMesh& rank, const NdSbp& from, const NdSbp& to) {
  for (size_t a = 0; a < rank.coords.size(); ++a)
    if (from[a + 1].is_broadcast() && to[a + 1].is_partial() && rank.coords[a] != 0) return false;
  return true;
}

Attrs AttrsOn(const RankOfMesh& rank, const Node& node) {
  Attrs attrs = node.attrs;
  if (IsLocalBoxing(node)) {
    const NdSbp &from = rank.graph.value(node.in[0]).sbp, &to = rank.graph.value(node.out[0]).sbp;
    attrs.Set("fold", FoldOf(node.primitive == Primitive::kAccumulate ? from : to));
    attrs.Set("keep", static_cast<int64_t>(KeepsValue(rank, from, to)));
  }
  return attrs;
}

bool StatesScratch(const RankOfMesh& rank, const CompileOptions& options, const Node& node,
                   const OpDef* def) {
  if (node.kind == NodeKind::kInput || node.kind == NodeKind::kFetch || IsCollective(node)) return false;
  if (options.asked.kernels != nullptr)
    return options.asked.kernels->StatesScratch(node.op, rank.device_kind);
  return def != nullptr && def->scratch;
}

TensorArg LargestOf(const plan::Operand& o) {
  TensorArg a;
  a.dtype = static_cast<DType>(o.dtype());
  a.global = Dims(o.global().at().begin(), o.global().at().end());
  a.begin = Dims(o.box(0).begin().begin(), o.box(0).begin().end());
  a.extent = Dims(o.box(0).extent().begin(), o.box(0).extent().end());
  for (const plan::Box& box : o.box())  // of any act
    for (int axis = 0; axis < a.extent.rank(); ++axis)
      a.extent[axis] = std::max(a.extent[axis], box.extent(axis));
  return a;
}

int64_t ScratchOf(const RankOfMesh& rank, const CompileOptions& options, const OpDef* def, const Attrs& attrs,
                  const plan::Kernel& kernel) {
  KernelSpec spec;
  spec.name = kernel.name();
  spec.attrs = attrs;
  spec.threads = options.asked.kernel_threads;
  for (const plan::Operand& o : kernel.in()) spec.in.push_back(LargestOf(o));
  for (const plan::Operand& o : kernel.out()) spec.out.push_back(LargestOf(o));
  return options.asked.kernels != nullptr ? options.asked.kernels->Scratch(spec, rank.device_kind)
                                          : def->scratch(spec);
}

// Bytes of the first piece.
double BytesOf(const plan::Operand& o) {
  double n = 1;
  if (o.box_size())
    for (int64_t e : o.box(0).extent()) n *= e;
  return n * SizeOf(static_cast<DType>(o.dtype()));
}

// Where a kernel comes from and what it costs, and its attributes.
void Describe(const RankOfMesh& rank, int n, const OpDef* def, const Attrs& attrs, CostModel* cost,
              plan::Kernel* kernel) {
  const Node& node = rank.graph.node(n);
  kernel->set_node(node.name);
  kernel->set_file(node.line.file);
  kernel->set_line(node.line.line);
  if (node.line.function != node.op) kernel->set_function(node.line.function);
  Set(attrs, kernel->mutable_attr());
  double bytes = 0;
  for (const auto* operands : {&kernel->in(), &kernel->out()})
    for (const plan::Operand& o : *operands) bytes += BytesOf(o);
  if (SumsOverTime(node)) bytes += BytesOf(kernel->out(0));  // which is read as well
  const Work work = cost->WorkOfStep(n, rank.coords);
  if (def && (!def->chosen.label.empty() || IsHostCopy(node))) bytes = work.bytes / ActsOf(rank.graph, node);
  kernel->set_bytes(bytes);
  kernel->set_category(rank.graph.CategoryOf(node));
  kernel->set_flops(work.flops / ActsOf(rank.graph, node));
}

// --- Collectives ---

// Bytes of a region's elements that the rank sends; what it keeps counts as nothing.
double SentOf(const BoxingProgram& program, const Region& region, size_t element_bytes) {
  int remote = 0;
  for (int s : region.sources) remote += s != program.me && program.has_in[program.me];
  for (int d : region.dests) remote += d != program.me;
  return double(region.box.elements()) * remote * element_bytes;
}

// Bytes that members without a part in the source fetch here: they count for the giver.
double Given(const RankOfMesh& rank, const Route& route, const BoxingProgram& program, int time) {
  const auto& has_in = program.has_in;
  if (!has_in[program.me] || std::find(has_in.begin(), has_in.end(), false) == has_in.end()) return 0;
  const BoxingProgram all = RouteGroup(rank.graph.mesh(), rank.graph.times(), time, route.shape, route.from,
                                       route.to, rank.coords, /*everybody=*/true);
  double given = 0;
  for (size_t m = 0; m < all.members.size(); ++m) {
    if (all.has_in[m]) continue;
    for (const Region& r : all.work[m])
      for (int s : r.sources)
        if (s == all.me) given += static_cast<double>(r.box.elements()) * route.element_bytes;
  }
  return given;
}

const Route& RouteOf(const RankOfMesh& rank, int from, int to, std::deque<Route>* routes) {
  const Graph& graph = rank.graph;
  const Value& in = graph.value(from);
  Route route{in.shape, SizeOf(in.dtype), graph.LayoutOf(from), graph.LayoutOf(to), {}, 0};
  for (const Route& known : *routes)
    if (known.shape == route.shape && known.element_bytes == route.element_bytes &&
        known.from == route.from && known.to == route.to)
      return known;
  const int times = rank.TimesOf(in.shape, route.from.sbp[0]);
  for (int t = 0; t < times; ++t) {
    BoxingProgram program =
        RouteGroup(graph.mesh(), graph.times(), t, in.shape, route.from, route.to, rank.coords);
    for (const Region& r : program.work[program.me]) route.sent += SentOf(program, r, route.element_bytes);
    route.sent += Given(rank, route, program, t);
    route.programs.push_back(std::move(program));
  }
  route.sent /= times;
  return routes->emplace_back(std::move(route));
}

// The part of a region whose rows have one count, for each of its `counts`, [p r] of rows [r p c ..].
std::vector<Region> ByCount(const Region& region, const Box& counts) {
  std::vector<Region> parts;
  const Box& box = region.box;
  for (int64_t r = box.begin[0]; r < box.begin[0] + box.extent[0]; ++r)
    for (int64_t p = box.begin[1]; p < box.begin[1] + box.extent[1]; ++p) {
      Region part = region;
      for (const auto& [axis, at] : {std::pair(0, r), std::pair(1, p)}) {
        part.box.begin[axis] = at;
        part.box.extent[axis] = 1;
      }
      part.count = (p - counts.begin[0]) * counts.extent[1] + r;
      parts.push_back(std::move(part));
    }
  return parts;
}

// Adds what `program` does with an operand in micro-batch `time`. Pieces are those of the first. `counts`:
// the box of its rows' counts, or nothing.
void AddProgram(const BoxingProgram& program, int operand, int time, const std::optional<Box>& counts,
                plan::Collective* c) {
  const int members = static_cast<int>(program.members.size());
  for (int m = 0; time == 0 && m < members; ++m) c->add_piece();
  for (int m = 0; m < members; ++m) {
    plan::Piece* piece = c->mutable_piece(operand * members + m);
    if (program.has_in[m]) Set(program.in[m], piece->add_in());
    if (program.has_out[m]) Set(program.out[m], piece->add_out());
  }
  plan::RegionList* work = operand == 0 ? c->add_work() : c->mutable_work(time);
  for (const Region& of : program.work[program.me])
    for (const Region& r : counts ? ByCount(of, *counts) : std::vector{of}) {
      plan::Region* region = work->add_region();
      Set(r, region);
      region->set_operand(operand);
    }
}

}  // namespace

int RankOfMesh::TimesOf(const Dims& shape, const Sbp& time) const {
  if (!time.is_split()) return 1;
  const int times = graph.times();
  const auto extent = [&](int t) { return Cut({0, shape[time.axis]}, times, t, time.grain).extent; };
  return detail != PlanDetail::kWhole && extent(0) == extent(times - 1) ? 1 : times;
}

std::vector<Box> RankOfMesh::Boxes(const Value& v) const {
  std::vector<int> at(1 + coords.size());
  std::copy(coords.begin(), coords.end(), at.begin() + 1);
  std::vector<Box> boxes;
  const int times = TimesOf(v.shape, v.sbp[0]);
  for (at[0] = 0; at[0] < times; ++at[0]) boxes.push_back(LocalBox(v.shape, v.sbp, sizes, at));
  return boxes;
}

int64_t RankOfMesh::SlotBytes(const Value& v) const {
  int64_t most = 0;
  for (const Box& b : Boxes(v)) most = std::max(most, b.elements());
  return std::max<int64_t>(64, RoundUp(most * SizeOf(v.dtype)));
}

void MakeKernel(const RankOfMesh& rank, const LogicalPlan& logical, const CompileOptions& options,
                const Segment& segment, int n, CostModel* cost, plan::Kernel* kernel) {
  const Node& node = rank.graph.node(n);
  const OpDef* def = rank.graph.catalog().Find(node.op);
  kernel->set_name(node.kind == NodeKind::kInput ? "feed" : node.op);
  const bool scratch = StatesScratch(rank, options, node, def), pieces = rank.described() || scratch;
  if (rank.Reads(segment, node))
    for (int v : node.in) SetOperand(rank, logical, segment, v, pieces, kernel->add_in());
  if (rank.Writes(segment, node))
    for (int v : node.out) SetOperand(rank, logical, segment, v, pieces, kernel->add_out());
  if (!pieces) return;
  const Attrs attrs = AttrsOn(rank, node);
  if (scratch) kernel->set_scratch_bytes(RoundUp(ScratchOf(rank, options, def, attrs, *kernel)));
  if (rank.described()) Describe(rank, n, def, attrs, cost, kernel);
}

void MakeCollective(const RankOfMesh& rank, const Node& node, std::deque<Route>* routes, plan::Actor* actor) {
  plan::Collective* c = actor->mutable_collective();
  c->set_id(actor->id());
  c->set_primitive(node.op);
  if (const std::optional<NamedAlgorithm> named = AlgorithmOf(node)) {
    c->set_algorithm(Name(named->algorithm));
    c->set_unit(named->unit);
  }
  std::vector<Box> counts;  // by micro-batch
  if (const int v = CountsOf(node); v >= 0) {
    counts = rank.Boxes(rank.graph.value(v));
    c->set_counts(counts[0].elements());
    c->set_rows(2);
    c->set_share(ShareMoved(node));
  }
  double sent = 0;
  for (int operand = 0; operand < std::ssize(node.out); ++operand) {
    const Route& route = RouteOf(rank, node.in[operand], node.out[operand], routes);
    const BoxingProgram& first = route.programs[0];
    if (operand == 0) {
      for (int member : first.members) c->add_rank(rank.graph.mesh().IndexOf(member));
      c->set_reduce(Name(first.reduce));
      c->set_me(first.me);
      c->mutable_piece()->Reserve(static_cast<int>(node.in.size() * first.members.size()));
    }
    CHECK_EQ(std::ssize(first.members), c->rank_size()) << node.name << ": operands of different groups";
    for (int t = 0; t < std::ssize(route.programs); ++t) {
      std::optional<Box> of_rows;
      if (!counts.empty()) of_rows = counts[counts.size() == 1 ? 0 : t];
      AddProgram(route.programs[t], operand, t, of_rows, c);
    }
    sent += route.sent;
  }
  actor->mutable_kernel(0)->set_link_bytes(sent);
}

}  // namespace oneflow_like
