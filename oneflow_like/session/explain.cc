// The text of --explain: every boxing with its price and its reason, and each rank's work beside the mean.
#include <algorithm>

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
  if (compiled.options.overlap.chunks == 1) return "";
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
                work[i].heavy_flops / 1e9, " GFLOP, ", mean > 0 ? work[i].heavy_flops / mean : 1,
                " of the mean; all operators ", work[i].flops / 1e9, " GFLOP\n");
  return text;
}

}  // namespace

std::string Session::ExplainText() const {
  const Compiled& compiled = impl_->compiled;
  return Cat("session ", impl_->options.name, ": mesh ", compiled.graph.mesh().str(), ", a step of ",
             SecondsText(compiled.logical.makespan), " by estimate\n", RecomputeText(compiled),
             BoxingLines(compiled), OverlapLines(compiled), WorkLines(compiled, Summaries()));
}

}  // namespace oneflow_like
