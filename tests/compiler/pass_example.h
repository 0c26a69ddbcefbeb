// A text example of a pass: a graph, `----`, and what the pass leaves of it. Lines that open with `with`
// before the graph give what the pass is told, `key=value` separated by blanks:
//
//   optimizer=adamw clip=1      the update rule of a graph with a train node
//   schedule=gpipe zero=dp      compile options; 1F1B and none unless given
//   stage=3 small=4             of ZeRO; stage 1 unless given
//   overlap=2 always=yes        products in chunks, whatever the estimate says; or with link=1e6 (bytes/s)
//   dtype=bf16                  of mixed precision; f32 unless given
//   reduce=bf16                 of gradients' sums over devices, beside optimizer=; f32 unless given
//   budget=4096                 bytes of a device, for regions whose recomputation is auto
//   node=2 levels=4,0           so many ranks reach each other's memory; links by level, each of which joins
//   so
//                               many devices with ten times the latency and a tenth of the bandwidth of the
//                               last
//   collective=ring             of choose_algorithms, in place of the cheapest
//   rank=1                      whose plan partition and place_memory show
//   from=autograd               the pass the graph is put through first; then all up to the one shown
//   show=streams                of order_acts: the compute streams and stashes alone
//
// `#` opens a comment, and blanks may align columns: neither is compared.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "compiler/compile.h"
#include "compiler/graph/text.h"
#include "compiler/search/choose_recompute.h"
#include "core/plan/plan_values.h"
#include "ops/op.h"

namespace oneflow_like {

struct PassExample {
  std::string comment, head, graph, expected;  // head: the `with` lines as they stand
  std::map<std::string, std::string> options;

  std::string Option(const std::string& key, const std::string& otherwise) const {
    auto it = options.find(key);
    return it == options.end() ? otherwise : it->second;
  }
};

inline std::vector<std::string> SplitAt(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, at);)
    if (!part.empty()) parts.push_back(part);
  return parts;
}

inline PassExample ParsePassExample(const std::string& text) {
  PassExample e;
  std::stringstream lines(text);
  bool expected = false;
  for (std::string line; std::getline(lines, line);) {
    if (line == "----") {
      expected = true;
    } else if (expected) {
      e.expected += line + "\n";
    } else if (line.rfind("with ", 0) == 0) {
      e.head += line + "\n";
      for (const std::string& word : SplitAt(line.substr(5), ' ')) {
        size_t equals = word.find('=');
        if (equals == std::string::npos) Fail("'", word, "' is no key=value");
        e.options[word.substr(0, equals)] = word.substr(equals + 1);
      }
    } else if (line.rfind("#", 0) == 0 && e.graph.empty()) {
      e.comment += line + "\n";
    } else {
      e.graph += line + "\n";
    }
  }
  return e;
}

// --- The text of a plan ---

inline std::string PlanBoxText(const plan::Box& box) {
  std::string text = "[";
  for (int a = 0; a < box.extent_size(); ++a)
    text += Cat(a ? "," : "", box.begin(a), ":", box.begin(a) + box.extent(a));
  return text + "]";
}

inline std::string PlanOperandText(const plan::Plan& plan, const plan::Operand& o) {
  std::string text = "?";
  for (const plan::Buffer& b : plan.buffer())
    if (b.id() == o.buffer()) text = b.name();
  for (int i = 0; i < o.box_size(); ++i) text += PlanBoxText(o.box(i));
  if (o.period() > 1) text += Cat("/", o.period());
  return text;
}

inline std::string PlanKernelText(const plan::Plan& plan, const plan::Kernel& k, bool placed) {
  std::string text = "  " + k.name() + "(";
  for (int i = 0; i < k.in_size(); ++i) text += (i ? ", " : "") + PlanOperandText(plan, k.in(i));
  text += ")";
  for (int i = 0; i < k.out_size(); ++i) text += (i ? ", " : " -> ") + PlanOperandText(plan, k.out(i));
  if (k.scratch_bytes() > 0) text += Cat(" scratch=", k.scratch_bytes());
  if (k.scratch_bytes() > 0 && placed) text += Cat("@", k.scratch_offset());
  return text + "\n";
}

inline std::string PlanCollectiveText(const plan::Collective& c) {
  std::string text = Cat("  among ranks");
  for (int r : c.rank()) text += Cat(" ", r);
  if (!c.algorithm().empty()) text += Cat(", ", c.algorithm(), c.unit() > 0 ? Cat(" of ", c.unit()) : "");
  if (!c.reduce().empty() && c.reduce() != "none") text += " by " + c.reduce();
  for (int t = 0; t < c.work_size(); ++t) {
    text += t ? " | mine:" : ", mine:";
    for (const plan::Region& r : c.work(t).region()) {
      text += " " + (r.operand() > 0 ? Cat("operand ", r.operand(), " ") : "") + PlanBoxText(r.box()) + " ";
      for (int s : r.source()) text += Cat(s, s == r.source(r.source_size() - 1) ? "" : "+");
      text += ">";
      for (int d : r.dest()) text += Cat(d, d == r.dest(r.dest_size() - 1) ? "" : ",");
    }
  }
  return text + "\n";
}

// Whether the slots lie side by side.
inline bool Ring(const plan::Buffer& b) {
  for (int i = 1; i < b.offset_size(); ++i)
    if (b.offset(i) != b.offset(i - 1) + b.slot_bytes()) return false;
  return b.offset_size() == b.slots();
}

// What is worth reading of one rank's plan, one line each: variables, buffers, actors with their ports and
// kernels, streams. `placed`: with offsets.
inline std::string PlanText(const plan::Plan& plan, bool placed) {
  std::string text = Cat("rank ", plan.rank(), " of ", plan.world(), "\n");
  for (const plan::Variable& v : plan.variable())
    text += Cat("variable ", v.name(), " ", PlanBoxText(v.box()), " ", v.bytes(), " bytes\n");
  for (const plan::Buffer& b : plan.buffer()) {
    if (IsVariable(b)) continue;
    text += Cat("buffer ", b.name(), " ", b.slots(), " x ", b.slot_bytes(), " bytes");
    for (int i = 0; placed && i < b.offset_size(); ++i)
      if (!Ring(b) || i == 0) text += Cat(i == 0 ? " at " : ", ", b.offset(i));
    text += "\n";
  }
  for (const plan::Actor& a : plan.actor()) {
    text += Cat("actor ", a.id(), " ", a.name(), a.acts() > 1 ? Cat(" x", a.acts()) : std::string(), ":");
    for (const plan::Port& p : a.in())
      text += Cat(" in(edge ", p.edge(), " from ", p.peer(), ", credits ", p.credits(), ", period ",
                  p.period(), ", kernel ", p.kernel(), ")");
    for (const plan::Port& p : a.out())
      text += Cat(" out(edge ", p.edge(), " to ", p.peer(), ", credits ", p.credits(), ", period ",
                  p.period(), ", kernel ", p.kernel(), ")");
    text += "\n";
    for (const plan::Kernel& k : a.kernel()) text += PlanKernelText(plan, k, placed);
    if (a.has_collective()) text += PlanCollectiveText(a.collective());
  }
  for (const plan::Stream& s : plan.stream()) {
    text += "stream " + s.name() + ":";
    for (int a : s.actor()) text += Cat(" ", a);
    text += "\n";
  }
  return text;
}

// Buffers and scratch alone, by offset.
inline std::string MemoryText(const plan::Plan& plan, int64_t lower_bound) {
  std::vector<std::pair<int64_t, std::string>> lines;
  for (const plan::Buffer& b : plan.buffer())
    if (!IsVariable(b))
      for (int i = 0; i < (Ring(b) ? 1 : b.offset_size()); ++i)
        lines.push_back({b.offset(i), Ring(b)
                                          ? Cat(b.name(), ": ", b.slots(),
                                                b.slots() == 1 ? " slot of " : " slots of ", b.slot_bytes())
                                          : Cat(b.name(), ": message ", i, " of ", b.slot_bytes())});
  for (const plan::Actor& a : plan.actor())
    for (const plan::Kernel& k : a.kernel())
      if (k.scratch_bytes() > 0)
        lines.push_back({k.scratch_offset(), Cat("scratch of ", k.node(), ": ", k.scratch_bytes())});
  std::sort(lines.begin(), lines.end());
  std::string text =
      Cat("rank ", plan.rank(), ": ", ArenaBytes(plan), " bytes, lower bound ", lower_bound, "\n");
  for (const auto& [offset, line] : lines) text += Cat("at ", offset, " ", line, "\n");
  return text;
}

// --- The order as on paper ---

// Per slice the acts of its compute stream, "F0 F1 B0 ...": phase, the segment's number among its kind where
// there are several, act; and the slots of what its forward keeps for its backward.
inline std::string StreamsText(const Graph& graph, const LogicalPlan& plan) {
  std::map<std::string, std::map<Phase, std::vector<int>>> segments;
  std::map<std::string, std::string> streams;
  std::map<std::string, int> stash;
  auto slice = [&](int s) { return plan.segments[s].slice.str(graph.mesh()); };
  for (size_t s = 0; s < plan.segments.size(); ++s)
    if (plan.On(plan.segments[s], StreamKind::kCompute)) {
      segments[slice(s)][plan.segments[s].phase].push_back(static_cast<int>(s));
      stash[slice(s)];
    }
  for (const Firing& f : plan.order) {
    const Segment& s = plan.segments[f.transition];
    if (!plan.On(s, StreamKind::kCompute)) continue;
    const std::vector<int>& alike = segments[slice(f.transition)][s.phase];
    size_t number = std::find(alike.begin(), alike.end(), f.transition) - alike.begin();
    streams[slice(f.transition)] +=
        Cat(" ", std::string("FBWU")[static_cast<int>(s.phase)],
            alike.size() > 1 ? std::string(1, static_cast<char>('a' + number)) : std::string(),
            s.per_micro_batch ? Cat(f.act) : std::string());
  }
  for (const LogicalBuffer& b : plan.buffers) {
    if (b.writer < 0 || plan.segments[b.writer].phase != Phase::kForward || !b.variable.empty() ||
        !plan.On(plan.segments[b.writer], StreamKind::kCompute) || b.write_period > 1)
      continue;
    for (int r : b.readers)
      if (plan.segments[r].phase == Phase::kBackward && plan.On(plan.segments[r], StreamKind::kCompute))
        stash[slice(b.writer)] = std::max(stash[slice(b.writer)], b.slots);
  }
  std::string text;
  for (const auto& [where, acts] : streams)
    text += Cat("compute", where.empty() ? "" : " ", where, ":", acts, "\n");
  for (const auto& [where, slots] : stash)
    text += Cat("stash", where.empty() ? "" : " ", where, ": ", slots, "\n");
  return text;
}

// --- Running ---

inline constexpr char kChooseRecompute[] = "choose_recompute";

// All passes, in the order they run.
inline const std::vector<std::string>& PassNames() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Pass& pass : Passes()) {
      all.push_back(pass.name);
      if (pass.name == std::string(kBeforeWaits)) all.push_back(kChooseRecompute);  // a search, and no pass
    }
    all.insert(all.end(), {"form_segments", "order_acts", "partition", "place_memory"});
    return all;
  }();
  return names;
}

class PassRun {
 public:
  explicit PassRun(const PassExample& example)
      : example_(example), graph_(ParseGraph(BuiltinCatalog(), example.graph)) {
    Decisions& decided = options_.decided;
    decided.mesh = graph_.mesh();
    decided.micro_batches = graph_.times();
    for (PipelineSchedule schedule : {PipelineSchedule::kGPipe, PipelineSchedule::kZeroBubble})
      if (example.Option("schedule", "1f1b") == Name(schedule)) decided.schedule = schedule;
    if (example.options.count("zero")) {
      decided.zero = std::stoi(example.Option("stage", "1"));
      decided.zero_axis = graph_.mesh().NameOf(graph_.mesh().AxesOrFail(example.Option("zero", ""), "zero"));
    }
    decided.zero_small = std::stoi(example.Option("small", "4096"));
    decided.offload = ParseOffload(example.Option("offload", ""), "offload");
    decided.offload.small = decided.zero_small;
    decided.overlap = {.chunks = std::stoi(example.Option("overlap", "1")),
                       .always = example.Option("always", "no") == "yes"};
    if (example.options.count("link"))
      options_.machine.topology.links[0].bandwidth = std::stod(example.Option("link", ""));
    if (example.options.count("node")) SetLinks();
    decided.algorithms = ParseWantedAlgorithms(example.Option("collective", ""), "collective");
    decided.bucket = std::stoi(example.Option("bucket", "0"));
    options_.asked.roles = {graph_.mesh().FindAxes(example.Option("batch", "")),
                            graph_.mesh().FindAxes(example.Option("tensor", "")),
                            graph_.mesh().FindAxes(example.Option("context", ""))};
    if (!ParseDType(example.Option("dtype", "f32"), &options_.asked.dtype))
      Fail("there is no type ", example.Option("dtype", ""));
    SetTraining();
  }

  // Runs the passes from the example's first to `pass`; the text of what that one leaves.
  std::string Upto(const std::string& pass) {
    Position last = Find(pass), on_plan = Find("form_segments");
    for (Position at = Find(example_.Option("from", pass)); at <= last && at < on_plan; ++at) RunOne(*at);
    if (last < on_plan) return ToText(graph_);
    LogicalPlan logical = FormSegments(graph_, options_);
    if (pass == "form_segments") return ToText(graph_, logical);
    OrderActs(graph_, &logical);
    VerifyLogicalPlan(graph_, logical);
    if (pass == "order_acts")
      return example_.Option("show", "") == "streams" ? StreamsText(graph_, logical)
                                                      : ToText(graph_, logical);
    plan::Plan plan = Partition(graph_, logical, options_, std::stoi(example_.Option("rank", "0")));
    if (pass == "partition") return PlanText(plan, false);
    int64_t bound = PlaceMemory(&plan);
    return MemoryText(plan, bound);
  }

 private:
  using Position = std::vector<std::string>::const_iterator;

  static Position Find(const std::string& pass) {
    Position at = std::find(PassNames().begin(), PassNames().end(), pass);
    if (at == PassNames().end()) Fail("there is no pass ", pass);
    return at;
  }

  void RunOne(const std::string& name) {
    if (name == kChooseRecompute) {
      RecomputeSearch search(graph_, options_);
      const WaitChoice choice = search.Within(std::stoll(example_.Option("budget", "0")));
      for (const auto& [region, how] : choice.waits) graph_.regions().Choose(region, how);
    }
    for (const Pass& pass : Passes()) {
      if (name != pass.name) continue;
      pass.run(&graph_, options_);
      // Examples of other passes need not be whole graphs.
      static const std::set<std::string> verified = {"choose_signatures", "insert_boxing", "lower_boxing",
                                                     "fuse_epilogue", "fuse_accumulate"};
      if (verified.count(name)) VerifyGraph(graph_, pass.leaves);
    }
  }

  void SetLinks() {
    const int node = std::stoi(example_.Option("node", ""));
    for (int rank = 0; rank < graph_.mesh().size(); ++rank)
      options_.machine.nodes.push_back(rank / node * node);
    std::vector<Topology::Link>& links = options_.machine.topology.links;
    Topology::Link link = links[0];
    links.clear();
    for (const std::string& devices : SplitAt(example_.Option("levels", "0"), ',')) {
      link.devices = std::stoi(devices);
      links.push_back(link);
      link.latency *= 10;
      link.bandwidth /= 10;
    }
  }

  void SetTraining() {
    const std::string op = example_.Option("optimizer", "");
    auto number = [&](const char* key, const char* otherwise) {
      return std::stod(example_.Option(key, otherwise));
    };
    const double lr = number("lr", "0.1"), decay = number("weight_decay", "0"), clip = number("clip", "0");
    if (op == "sgd") options_.asked.training = Training{Sgd{.lr = lr, .weight_decay = decay}, {}, clip};
    if (op == "adam") options_.asked.training = Training{Adam{.lr = lr, .weight_decay = decay}, {}, clip};
    if (op == "adamw") options_.asked.training = Training{AdamW{.lr = lr, .weight_decay = decay}, {}, clip};
    if (const std::string to = example_.Option("reduce", ""); !to.empty())
      if (!ParseDType(to, &options_.decided.reduce_dtype.emplace())) Fail("there is no type ", to);
  }

  const PassExample& example_;
  Graph graph_;
  CompileOptions options_;
};

}  // namespace oneflow_like
