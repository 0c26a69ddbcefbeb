// Figures of a compiled session, for page.html.
#include "oneflow_like/report/figures.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "compiler/graph/text.h"
#include "oneflow_like/session/plain_cores.h"
#include "oneflow_like/session/summary.h"

namespace oneflow_like {

namespace {

using Json = nlohmann::json;

// So much is shown at most.
constexpr size_t kMemoryCurves = 16, kMemoryPoints = 300, kLargestBuffers = 20, kShownBoxings = 400;
constexpr size_t kShownActs = 6000, kShownStages = 32, kShownOperators = 300, kShownNodes = 4000;

Json Pairs(const std::vector<std::pair<std::string, int64_t>>& pairs) {
  Json list = Json::array();
  for (const auto& [name, bytes] : pairs) list.push_back({name, bytes});
  return list;
}

Json RankFigures(const RankSummary& s) {
  return {{"rank", s.rank},
          {"ranks", RangesText(s.ranks)},
          {"count", s.ranks.size()},
          {"stage", s.stage},
          {"peak_bytes", s.peak_bytes},
          {"persistent_bytes", s.persistent_bytes},
          {"host_bytes", s.host_persistent_bytes + s.host_transient_bytes},
          {"transient_bytes", s.transient_bytes},
          {"library_bytes", s.library_bytes},
          {"communicator_bytes", s.communicator_bytes},
          {"staging_bytes", s.staging_bytes},
          {"feed_bytes", s.feed_bytes},
          {"lower_bound_bytes", s.lower_bound_bytes},
          {"bytes_sent", s.bytes_sent},
          {"flops", s.flops},
          {"plain_flops", s.plain_flops},
          {"plain_warning", PlainCoresWarning({s})},
          {"actors", s.actors},
          {"buffers", s.buffers},
          {"collectives", s.collectives},
          {"purposes", Pairs(s.purposes)},
          {"consumers", Pairs(s.consumers)}};
}

// --- Memory over a step ---

// Bytes by purpose at so many positions at most: of neighbours the one with most bytes, so that no peak is
// lost.
class LiveCurve {
 public:
  LiveCurve(std::vector<int64_t> at_start, int positions)
      : now_(std::move(at_start)),
        positions_(std::max(1, positions)),
        width_((positions_ + kMemoryPoints - 1) / kMemoryPoints) {}

  // REQUIRES: ascending positions.
  void Add(int position, Purpose purpose, int64_t bytes) {
    while (at_ < position) Keep();
    now_[static_cast<int>(purpose)] += bytes;
  }
  Json Points() {
    while (at_ < positions_) Keep();
    return std::move(points_);
  }
  int peak_position() const { return peak_position_; }

 private:
  // Bytes live at position at_, which all changes have come to.
  void Keep() {
    int64_t total = 0;
    for (int64_t bytes : now_) total += bytes;
    if (at_ % static_cast<int>(width_) == 0) most_ = -1;
    if (total > most_) {
      if (most_ >= 0) points_.erase(points_.size() - 1);
      Json point = Json::array({at_});
      for (int64_t bytes : now_) point.push_back(bytes);
      points_.push_back(std::move(point));
      most_ = total;
    }
    if (total > peak_) {
      peak_ = total;
      peak_position_ = at_;
    }
    ++at_;
  }

  std::vector<int64_t> now_;
  const int positions_;
  const size_t width_;
  int at_ = 0, peak_position_ = 0;
  int64_t most_ = -1, peak_ = -1;
  Json points_ = Json::array();
};

// Part of a micro-batch's work: from this position on. [position, phase, micro-batch or -1]
Json PartsOfStep(const Compiled& compiled, const plan::Plan& plan) {
  std::map<int, const plan::Actor*> actors;
  for (const plan::Actor& a : plan.actor()) actors[a.id()] = &a;
  std::map<int, int> acts;
  Json parts = Json::array();
  int position = 0;
  for (const plan::Stream& stream : plan.stream()) {
    if (stream.kind() != plan::COMPUTE) continue;
    for (int id : stream.actor()) {
      const Segment& segment = compiled.logical.segments[id];
      const int phase = static_cast<int>(segment.phase), act = segment.per_micro_batch ? acts[id]++ : -1;
      if (parts.empty() || parts.back()[1] != phase || parts.back()[2] != act)
        parts.push_back({position, phase, act});
      position += std::max(1, actors.at(id)->kernel_size());
    }
  }
  return parts;
}

// The largest buffers at the peak, and what of the peak they leave.
Json AtPeak(const Compiled& compiled, const RankPlan& made, const std::vector<Purpose>& purposes) {
  struct Held {
    std::string name, where;
    int64_t bytes;
    int purpose;
  };
  std::map<int, const plan::Kernel*> writer;
  std::map<int, const plan::Buffer*> buffers;
  for (const plan::Actor& a : made.plan.actor())
    for (const plan::Kernel& k : a.kernel())
      for (const plan::Operand& o : k.out()) writer[o.buffer()] = &k;
  for (const plan::Buffer& b : made.plan.buffer()) buffers[b.id()] = &b;
  std::vector<Held> all;
  const std::map<std::string, Purpose> of_variable = PurposesOfVariables(compiled, purposes);
  for (const plan::Variable& v : made.plan.variable())
    all.push_back({"variable " + v.name(), SourceLine(v.init().file(), v.init().line()).str(), v.bytes(),
                   static_cast<int>(of_variable.at(v.name()))});
  for (auto [id, bytes] : made.at_peak) {
    if (id == kScratch) {
      all.push_back({"scratch of kernels", "", bytes, static_cast<int>(Purpose::kOther)});
      continue;
    }
    const plan::Buffer& b = *buffers.at(id);
    const plan::Kernel* k = writer.count(id) ? writer[id] : nullptr;
    all.push_back(
        {Cat(b.name(), b.slots() > 1 ? Cat(" (", b.slots(), " slots)") : ""),
         Cat(k ? Cat(k->name(), " ", SourceLine(k->file(), k->line()).str()) : "", HeldText(compiled, id)),
         bytes, static_cast<int>(purposes[id])});
  }
  std::stable_sort(all.begin(), all.end(), [](const Held& a, const Held& b) { return a.bytes > b.bytes; });
  Json rows = Json::array();
  int64_t left = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i < kLargestBuffers)
      rows.push_back({all[i].name, all[i].where, all[i].purpose, all[i].bytes});
    else
      left += all[i].bytes;
  }
  const size_t others = all.size() > kLargestBuffers ? all.size() - kLargestBuffers : 0;
  return {{"rows", rows}, {"other_buffers", others}, {"other_bytes", left}};
}

Json MemoryFigures(const Compiled& compiled, const std::vector<RankSummary>& summaries) {
  std::vector<size_t> chosen(summaries.size());
  for (size_t i = 0; i < chosen.size(); ++i) chosen[i] = i;
  std::stable_sort(chosen.begin(), chosen.end(),
                   [&](size_t a, size_t b) { return summaries[a].peak_bytes > summaries[b].peak_bytes; });
  if (chosen.size() > kMemoryCurves) chosen.resize(kMemoryCurves);
  const std::vector<Purpose> purposes = PurposesOf(compiled);
  std::vector<int> ranks;
  for (size_t i : chosen) ranks.push_back(summaries[i].rank);
  Json curves = Json::array();
  for (const RankPlan& made : PlansOf(compiled, ranks)) {
    LiveCurve curve(VariablesByPurpose(compiled, purposes, made.plan), made.live.positions);
    for (const LiveBytes::Change& c : made.live.changes)
      curve.Add(c.position, c.buffer == kScratch ? Purpose::kOther : purposes[c.buffer], c.bytes);
    Json points = curve.Points();
    curves.push_back({{"rank", made.plan.rank()},
                      {"positions", std::max(1, made.live.positions)},
                      {"points", std::move(points)},
                      {"peak_position", curve.peak_position()},
                      {"parts", PartsOfStep(compiled, made.plan)},
                      {"at_peak", AtPeak(compiled, made, purposes)}});
  }
  return curves;
}

// --- Communication ---

Json WaitFigures(const Session::Impl& session) {
  Json rows = Json::array();
  for (const WaitLine& line : WaitLinesOf(session))
    rows.push_back({{"blocks", BlocksText(line.blocks)},
                    {"how", Described(line.chosen.mode)},
                    {"keeps", line.keeps},
                    {"saves", line.chosen.saves},
                    {"takes", line.chosen.takes}});
  return rows;
}

Json BoxingFigures(const Compiled& compiled) {
  const std::vector<BoxingPrice> prices = PricesOfBoxing(compiled);
  Json rows = Json::array();
  double bytes = 0, seconds = 0, left_bytes = 0;
  for (size_t i = 0; i < prices.size(); ++i) {
    const BoxingPrice& p = prices[i];
    bytes += p.bytes;
    seconds += p.seconds;
    if (i >= kShownBoxings) {
      left_bytes += p.bytes;
      continue;
    }
    rows.push_back({{"primitive", p.primitive},
                    {"value", p.value},
                    {"from", p.from},
                    {"to", p.to},
                    {"why", p.why},
                    {"gathered", p.gathered},
                    {"line", compiled.graph.node(p.node).line.str()},
                    {"bytes", p.bytes},
                    {"seconds", p.seconds}});
  }
  return {{"steps", prices.size()},
          {"bytes", bytes},
          {"seconds", seconds},
          {"rows", rows},
          {"left_out", prices.size() - rows.size()},
          {"left_out_bytes", left_bytes}};
}

// --- The schedule of a step ---

// One row for each stage and stream: acts as [start, end, phase, micro-batch or -1, segment]. Where there are
// too many, neighbours of one micro-batch and phase are one.
struct ScheduleRow {
  std::string stage, stream;
  int rank = 0;
  bool link = false;
  std::vector<const Firing*> acts;
};

std::vector<ScheduleRow> RowsOfSchedule(const Compiled& compiled, size_t* stages) {
  const Mesh& mesh = compiled.graph.mesh();
  const LogicalPlan& plan = compiled.logical;
  std::vector<ScheduleRow> rows;
  std::set<std::string> known;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const std::string stage = StageOf(compiled, rank);
    if (!known.insert(stage).second || known.size() > kShownStages) continue;
    const std::vector<int> coords = mesh.Coords(rank);
    std::vector<ScheduleRow> of_rank;
    for (const LogicalStream& s : plan.streams)
      of_rank.push_back({stage, s.name, rank, s.kind == StreamKind::kLink, {}});
    for (const Firing& f : plan.order) {
      const Segment& segment = plan.segments[f.transition];
      if (segment.stream >= 0 && (segment.slice.Contains(coords) || segment.from.Contains(coords)))
        of_rank[segment.stream].acts.push_back(&f);
    }
    for (ScheduleRow& row : of_rank)
      if (!row.acts.empty()) rows.push_back(std::move(row));
  }
  *stages = known.size();
  return rows;
}

Json ScheduleFigures(const Compiled& compiled) {
  const LogicalPlan& plan = compiled.logical;
  size_t stages = 0, all = 0;
  const std::vector<ScheduleRow> rows = RowsOfSchedule(compiled, &stages);
  for (const ScheduleRow& row : rows) all += row.acts.size();
  const bool merges = all > kShownActs;
  const double near = plan.makespan / 500;
  Json shown = Json::array();
  for (const ScheduleRow& row : rows) {
    Json acts = Json::array();
    for (const Firing* f : row.acts) {
      const Segment& segment = plan.segments[f->transition];
      const int phase = static_cast<int>(segment.phase), act = segment.per_micro_batch ? f->act : -1;
      if (merges && !acts.empty() && acts.back()[2] == phase && acts.back()[3] == act &&
          f->start - acts.back()[1].get<double>() < near) {
        acts.back()[1] = std::max(f->end, acts.back()[1].get<double>());
        acts.back()[4] = -1;
        continue;
      }
      acts.push_back({f->start, f->end, phase, act, f->transition});
    }
    shown.push_back({{"stage", row.stage},
                     {"stream", row.stream},
                     {"rank", row.rank},
                     {"link", row.link},
                     {"acts", std::move(acts)}});
  }
  return {{"rows", shown}, {"stages", stages}, {"left_out", stages - std::min(stages, kShownStages)}};
}

// By segment, as plans call their actors: what the acts of charts are called. [name, phase, micro-batches or
// 0, seconds of an act, link]
Json SegmentFigures(const Compiled& compiled) {
  Json segments = Json::array();
  for (const Segment& s : compiled.logical.segments) {
    const Node &first = compiled.graph.node(s.nodes.front()), &last = compiled.graph.node(s.nodes.back());
    std::string text = s.name;
    if (s.nodes.size() > 1)
      text += Cat(": ", s.nodes.size(), " operators, ", first.name, " ", first.line.str(), " to ", last.name,
                  " ", last.line.str());
    else
      text += Cat(" ", first.line.str());
    segments.push_back({text, static_cast<int>(s.phase), s.per_micro_batch ? compiled.graph.times() : 0,
                        s.seconds, compiled.logical.On(s, StreamKind::kLink)});
  }
  return segments;
}

// --- Estimated times ---

// A profile's name for the node's kernel (actor/profile.h).
std::string LabelOf(const Node& node) {
  std::string line = node.line.str();
  if (!line.empty()) line = " " + line;
  return IsCollective(node) ? Cat(node.op, " ", node.name, line) : Cat(node.name, ": ", node.op, line);
}

// Seconds of a step, summed over all ranks, by category and of the operators that take most.
Json EstimateFigures(const Compiled& compiled) {
  const Graph& graph = compiled.graph;
  CostModel cost(graph, compiled.options.machine);
  auto ranks = [&](const Slice& slice) {
    double n = 1;
    for (int a = 0; a < graph.mesh().rank(); ++a)
      if (slice.fixed[a] == Slice::kFree) n *= graph.mesh().axis_size(a);
    return n;
  };
  struct Row {
    std::string label, category;
    double seconds;
  };
  std::vector<Row> rows;
  std::map<std::string, double> categories;
  for (const Segment& s : compiled.logical.segments)
    for (int n : s.nodes) {
      const Node& node = graph.node(n);
      if (IsEnd(node)) continue;
      double seconds = IsCollective(node) ? s.seconds * (s.per_micro_batch ? graph.times() : 1)
                                          : cost.Seconds(n) * ActsOf(graph, node);
      seconds *= ranks(s.slice) + (s.from == s.slice ? 0 : ranks(s.from));
      std::string category = graph.CategoryOf(node);
      if (category.empty()) category = "other";
      categories[category] += seconds;
      rows.push_back({LabelOf(node), category, seconds});
    }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return a.seconds > b.seconds; });
  Json operators = Json::array();
  for (size_t i = 0; i < std::min(rows.size(), kShownOperators); ++i)
    operators.push_back({rows[i].label, rows[i].category, rows[i].seconds});
  return {{"categories", categories}, {"operators", operators}, {"all_operators", rows.size()}};
}

// --- The logical graph ---

Json GraphFigures(const Compiled& compiled) {
  const Graph& graph = compiled.graph;
  const std::vector<int> order = graph.Order();
  Json nodes = Json::array();
  for (size_t i = 0; i < std::min(order.size(), kShownNodes); ++i) {
    const Node& node = graph.node(order[i]);
    Json in = Json::array(), out = Json::array();
    for (size_t j = 0; j < node.in.size(); ++j) {
      const Value& v = graph.value(node.in[j]);
      const bool other = j < node.want.size() && !node.want[j].empty() && node.want[j] != v.sbp;
      in.push_back({v.name, SbpText(graph, node.slice, other ? node.want[j] : v.sbp)});
    }
    for (int o : node.out) {
      const Value& v = graph.value(o);
      out.push_back({v.name, Cat(Name(v.dtype), v.shape.str()), SbpText(graph, node.slice, v.sbp)});
    }
    nodes.push_back({{"name", node.name},
                     {"op", node.op},
                     {"phase", static_cast<int>(node.phase)},
                     {"stage", node.slice.str(graph.mesh())},
                     {"in", in},
                     {"out", out},
                     {"line", node.line.str()},
                     {"why", node.why},
                     {"boxing", IsCollective(node) || IsLocalBoxing(node)}});
  }
  return {{"nodes", nodes}, {"left_out", order.size() - nodes.size()}};
}

}  // namespace

std::string ReportFigures(const Session::Impl& session) {
  const Compiled& compiled = session.compiled;
  const std::vector<RankSummary> summaries = SummariesOf(session);
  Json stages = Json::array(), ranks = Json::array(), purposes = Json::array(), streams = Json::array();
  for (const StageTime& s : TimesOfStages(compiled)) stages.push_back({s.stage, s.seconds, s.bubble});
  for (const RankSummary& s : summaries) ranks.push_back(RankFigures(s));
  for (int p = 0; p < kPurposes; ++p) purposes.push_back(Name(static_cast<Purpose>(p)));
  for (const LogicalStream& s : compiled.logical.streams) streams.push_back(s.name);
  const Json figures = {{"name", session.options.name},
                        {"mesh", compiled.graph.mesh().str()},
                        {"world", compiled.graph.mesh().size()},
                        {"micro_batches", compiled.graph.times()},
                        {"schedule_name", Name(compiled.logical.schedule)},
                        {"trains", session.trains},
                        {"seconds", compiled.logical.makespan},
                        {"purposes", purposes},
                        {"stream_names", streams},
                        {"stages", stages},
                        {"ranks", ranks},
                        {"memory", MemoryFigures(compiled, summaries)},
                        {"decided", DecidedText(compiled.options.decided)},
                        {"waits", WaitFigures(session)},
                        {"boxing", BoxingFigures(compiled)},
                        {"schedule", ScheduleFigures(compiled)},
                        {"segments", SegmentFigures(compiled)},
                        {"estimates", EstimateFigures(compiled)},
                        {"graph", GraphFigures(compiled)}};
  return figures.dump(-1, ' ', true, Json::error_handler_t::replace);
}

}  // namespace oneflow_like
