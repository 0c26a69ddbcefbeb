// The text of --explain: every boxing with its price and its reason, what each block's wait for its gradients
// saves and takes, and each rank's work beside the mean.
// And sentences about mesh axes that divide little work.
#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "compiler/cost/cost.h"
#include "core/formatted.h"
#include "oneflow_like/job/agreement.h"
#include "oneflow_like/session/session_impl.h"
#include "oneflow_like/session/summary.h"

namespace oneflow_like {

namespace {

constexpr double kNothing = 5e-9;  // seconds that are printed as 0.00 us

std::string BoxingLines(const Compiled& compiled) {
  std::vector<BoxingPrice> prices = PricesOfBoxing(compiled);
  double bytes = 0;
  for (const BoxingPrice& p : prices) bytes += p.bytes;
  std::string text = Cat("\n", prices.size(), " steps of boxing send ", BytesText(bytes),
                         " a step over the whole mesh; dearest first, by estimated time\n");
  int64_t free = 0;
  for (const BoxingPrice& p : prices) {
    if (p.bytes == 0 && p.seconds < kNothing) {
      ++free;
      continue;
    }
    const SourceLine& line = compiled.graph.node(p.node).line;
    text += Cat("  ", SecondsText(p.seconds), "  ", BytesText(p.bytes), "  ", p.primitive,
                p.algorithm.empty() ? "" : " by " + p.algorithm, " of ", p.value,
                line.str().empty() ? "" : " at " + line.str(), ": ", p.from, " -> ", p.to, "\n      ", p.why,
                p.gathered.empty() ? "" : "\n      " + p.gathered, "\n");
  }
  if (free > 0)
    text += Cat("  ", free, free == 1 ? " step sends" : " steps send", " nothing and ",
                free == 1 ? "takes" : "take", " no time, such as local slices\n");
  return text;
}

std::string OverlapLines(const Compiled& compiled) {
  if (compiled.options.decided.overlap.value_or(Overlap()).chunks == 1) return "";
  const Overlapped all = OverlappedIn(compiled);
  std::string text = Cat("\n", OverlapText(compiled));
  for (const auto* nodes : {&all.products, &all.behind})
    for (int n : *nodes) {
      const Node& node = compiled.graph.node(n);
      text += Cat("  ", compiled.graph.Describe(n), ": ", node.why, "\n");
    }
  return text;
}

std::string WorkLines(const Compiled& compiled, const std::vector<RankSummary>& summaries) {
  double sum = 0;
  int ranks = 0;
  std::vector<RankWork> work;
  for (const RankSummary& s : summaries) {
    work.push_back(WorkOfRank(compiled, s.rank));
    sum += work.back().heavy_flops * static_cast<double>(s.ranks.size());
    ranks += static_cast<int>(s.ranks.size());
  }
  double mean = sum / ranks;
  std::string text = Cat("\nproducts and attention of a step: ", mean / 1e9, " GFLOP a rank in the mean\n");
  for (size_t i = 0; i < work.size(); ++i)
    text += Cat("  rank", summaries[i].ranks.size() == 1 ? " " : "s ", RangesText(summaries[i].ranks), ": ",
                work[i].heavy_flops / 1e9, " GFLOP, ",
                Formatted("%.2f %%", mean > 0 ? 100 * work[i].heavy_flops / mean : 100),
                " of the mean; all operators ", work[i].flops / 1e9, " GFLOP\n");
  return text;
}

WaitLine LineOf(const WaitPrice& price, double times, bool host) {
  const auto of = [](const auto& by_mode, Recompute mode) { return by_mode[static_cast<size_t>(mode)]; };
  const double all = of(price.bytes, Recompute::kNone);
  WaitLine line{.blocks = {price.region}, .keeps = of(price.bytes, price.chosen)};
  for (const Recompute mode : kRecomputeModes) {
    const bool nothing_to_send = of(price.bytes, mode) == of(price.bytes, WithoutGather(mode));
    const bool possible = !(GathersAgain(mode) && nothing_to_send) && (mode != Recompute::kHost || host);
    const bool copied = mode == Recompute::kHost && of(price.seconds, mode) > 0;  // all leaves the device
    const WaitWay way{mode, copied ? all : all - of(price.bytes, mode), times * of(price.seconds, mode)};
    if (mode == price.chosen)
      line.chosen = way;
    else if (possible)
      line.others.push_back(way);
  }
  return line;
}

// Returns a line with the time of a step in which no region recomputes anything; empty if none does.
std::string AllKeptText(const Session::Impl& session) {
  const std::optional<double> kept = session.all_kept ? session.all_kept() : std::nullopt;
  if (!kept) return "";
  return Cat("  if all were kept, a step would take ", SecondsText(*kept), " by estimate instead of ",
             SecondsText(session.compiled.logical.makespan), "\n");
}

// "computed again, saves 1.20 MB, takes 0.31 ms"
std::string WayText(const WaitWay& way) {
  return way.mode == Recompute::kNone
             ? Described(way.mode)
             : Cat(Described(way.mode), ", saves ", BytesText(way.saves), ", takes ", SecondsText(way.takes));
}

}  // namespace

const char* Described(Recompute mode) {
  switch (mode) {
    case Recompute::kNone:
      return "kept";
    case Recompute::kGather:
      return "sent again";
    case Recompute::kSelective:
      return "computed again but for products";
    case Recompute::kSelectiveGather:
      return "sent again, and computed again but for products";
    case Recompute::kFull:
      return "computed again";
    case Recompute::kHost:
      return "on the host";
    case Recompute::kAuto:
      break;
  }
  return "open";
}

std::vector<WaitLine> WaitLinesOf(const Session::Impl& session) {
  std::vector<WaitLine> lines;
  if (!session.wait_prices) return lines;
  const Compiled& compiled = session.compiled;
  for (const WaitPrice& price : session.wait_prices()) {
    WaitLine line = LineOf(price, compiled.graph.times(), compiled.options.machine.host.known);
    const auto at = std::find_if(lines.begin(), lines.end(), [&](const WaitLine& other) {
      return std::tie(other.chosen, other.keeps, other.others) ==
             std::tie(line.chosen, line.keeps, line.others);
    });
    if (at == lines.end())
      lines.push_back(std::move(line));
    else
      at->blocks.push_back(price.region);
  }
  return lines;
}

// But for what the program knows alone: how its layers cut sequences.
std::string DecidedText(const Decisions& decisions) {
  std::string text;
  for (const std::string& line : Lines(ToText(SavedPlan{decisions, "", ""}))) {
    const std::string what = line.substr(0, line.find(' '));
    static const std::set<std::string> elsewhere = {"oneflow_like", "model",  "machine", "mesh",
                                                    "wait",         "weight", "end",     "sequence_parallel"};
    const bool each = what == "recompute" && !decisions.waits.empty();  // of blocks, below
    if (elsewhere.count(what) == 0 && !each) text += Cat(text.empty() ? "decided: " : ", ", line);
  }
  return text + "\n";
}

std::string WaitsText(const std::vector<WaitLine>& lines, bool others) {
  std::string text;
  for (const WaitLine& line : lines) {
    text += Cat("  ", BlocksText(line.blocks), ": ", WayText(line.chosen), "; keeps ", BytesText(line.keeps),
                "\n");
    if (!others) continue;
    std::string either;
    for (const WaitWay& way : line.others) either += Cat(either.empty() ? "" : "; ", WayText(way));
    if (!either.empty()) text += Cat("      or ", either, "\n");
  }
  return text.empty()
             ? ""
             : Cat("\nhow values of a block wait for its gradients: bytes of each micro-batch that this "
                   "saves, and the time that a rank takes for it in a step; the step becomes longer by less "
                   "where this runs beside other work\n",
                   text);
}

std::string Session::ExplainText() const {
  const Compiled& compiled = impl_->compiled;
  return Cat("session ", impl_->options.name, ": mesh ", compiled.graph.mesh().str(), ", a step of ",
             SecondsText(compiled.logical.makespan), " by estimate\n", DecidedText(compiled.options.decided),
             RecomputeText(compiled), BoxingLines(compiled), OverlapLines(compiled),
             WaitsText(WaitLinesOf(*impl_), /*others=*/true), AllKeptText(*impl_),
             impl_->next_waits.empty() ? "" : Cat("  ", impl_->next_waits, "\n"),
             WorkLines(compiled, Summaries()));
}

std::vector<std::string> Session::AxisWarnings() const {
  constexpr double kEnough = 0.5;  // of the work divided: cost has found a use for the axis
  const Graph& graph = impl_->compiled.graph;
  const Mesh& mesh = graph.mesh();
  std::vector<bool> used(mesh.rank(), false);
  std::vector<double> divided(mesh.rank(), 0);
  double all = 0;
  for (int n : graph.Order()) {
    const Node& node = graph.node(n);
    const bool given = node.kind == NodeKind::kInput || node.kind == NodeKind::kVariable;
    const double flops = graph.IsHeavy(n) ? LocalWork(graph, n, graph.RuleOf(n)).work().flops : 0;
    all += flops;
    for (int a = 0; a < mesh.rank(); ++a) {
      const auto cut = [a](const NdSbp& sbp) { return !sbp.empty() && !sbp[1 + a].is_broadcast(); };
      const bool result = !node.out.empty() && cut(graph.value(node.out[0]).sbp);
      const auto annotation = node.fixed.find(1 + a);
      used[a] = used[a] || node.slice.fixed[a] != Slice::kFree || (given && result) ||
                (annotation != node.fixed.end() && !annotation->second.is_broadcast());
      if (result || std::any_of(node.want.begin(), node.want.end(), cut)) divided[a] += flops;
    }
  }
  std::vector<std::string> sentences;
  for (int a = 0; a < mesh.rank(); ++a) {
    if (mesh.axis_size(a) == 1 || used[a] || divided[a] > kEnough * all) continue;
    sentences.push_back(Cat("neither data nor weights are cut over mesh axis ", mesh.axis_name(a), ": its ",
                            mesh.axis_size(a), " devices repeat ",
                            divided[a] == 0 ? "all" : PercentText(all - divided[a], all),
                            " of the work of products and attention"));
  }
  return sentences;
}

}  // namespace oneflow_like
