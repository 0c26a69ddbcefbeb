// The text of --explain: every boxing with its price and its reason, and each rank's work beside the mean.
// And sentences about mesh axes that divide little work.
#include <algorithm>
#include <utility>

#include "compiler/cost/cost.h"
#include "oneflow_like/session/session_impl.h"
#include "oneflow_like/session/summary.h"

namespace oneflow_like {

namespace {

std::string BoxingLines(const Compiled& compiled) {
  std::vector<BoxingPrice> prices = PricesOfBoxing(compiled);
  double bytes = 0;
  for (const BoxingPrice& p : prices) bytes += p.bytes;
  std::string text = Cat("\n", prices.size(), " steps of boxing send ", BytesText(bytes),
                         " a step over the whole mesh; dearest first, by estimated time\n");
  for (const BoxingPrice& p : prices) {
    const SourceLine& line = compiled.graph.node(p.node).line;
    text += Cat("  ", SecondsText(p.seconds), "  ", BytesText(p.bytes), "  ", p.primitive,
                p.algorithm.empty() ? "" : " by " + p.algorithm, " of ", p.value,
                line.str().empty() ? "" : " at " + line.str(), ": ", p.from, " -> ", p.to, "\n      ", p.why,
                p.gathered.empty() ? "" : "\n      " + p.gathered, "\n");
  }
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

// Blocks whose lines are alike share one, where the first of them is.
std::string WaitLines(const std::vector<WaitPrice>& prices, bool host) {
  std::vector<std::pair<std::string, std::vector<std::string>>> lines;
  for (const WaitPrice& price : prices) {
    std::string text;
    for (const Recompute mode : kRecomputeModes) {
      const auto m = static_cast<size_t>(mode);
      const bool chosen = mode == price.chosen;
      const bool nothing_to_send = price.bytes[m] == price.bytes[static_cast<size_t>(WithoutGather(mode))];
      if (((GathersAgain(mode) && nothing_to_send) || (mode == Recompute::kHost && !host)) && !chosen)
        continue;
      text += Cat(text.empty() ? ": " : ", ", chosen ? "*" : "", Name(mode), " ", BytesText(price.bytes[m]),
                  price.seconds[m] > 0 ? Cat(" and ", SecondsText(price.seconds[m])) : "");
    }
    const auto at =
        std::find_if(lines.begin(), lines.end(), [&](const auto& line) { return line.first == text; });
    if (at == lines.end())
      lines.push_back({text, {price.region}});
    else
      at->second.push_back(price.region);
  }
  std::string text;
  for (const auto& [line, blocks] : lines)
    text += Cat("  ",
                blocks.size() == 1 ? blocks[0]
                                   : Cat(blocks.size(), " blocks, ", blocks[0],
                                         blocks.size() == 2 ? " and " : " to ", blocks.back()),
                line, "\n");
  return text.empty() ? ""
                      : Cat("\nwhat a rank keeps of a micro-batch for the gradients of a block, and the time "
                            "to repeat the rest, by --recompute and --gather_again; * is what it does\n",
                            text);
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
                work[i].heavy_flops / 1e9, " GFLOP, ", mean > 0 ? work[i].heavy_flops / mean : 1,
                " of the mean; all operators ", work[i].flops / 1e9, " GFLOP\n");
  return text;
}

}  // namespace

std::string Session::ExplainText() const {
  const Compiled& compiled = impl_->compiled;
  return Cat("session ", impl_->options.name, ": mesh ", compiled.graph.mesh().str(), ", a step of ",
             SecondsText(compiled.logical.makespan), " by estimate\n", RecomputeText(compiled),
             BoxingLines(compiled), OverlapLines(compiled),
             impl_->wait_prices ? WaitLines(impl_->wait_prices(), compiled.options.machine.host.known) : "",
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
