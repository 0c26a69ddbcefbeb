#include "compiler/search/wait_prices.h"

#include <algorithm>
#include <set>
#include <utility>

#include "compiler/compile.h"
#include "compiler/cost/cost.h"
#include "compiler/passes/passes.h"

namespace oneflow_like {

KeptOfRegions KeptWith(Graph graph, const CompileOptions& options) {
  const int before = graph.num_nodes();
  RepeatForward(&graph, options);
  OffloadActivations(&graph, options);
  CostModel cost(graph, options.machine);
  const std::vector<int> sizes = graph.Sizes();
  std::vector<bool> counted(graph.num_values(), false);
  KeptOfRegions kept;
  for (int n : graph.Order()) {
    const Node& node = graph.node(n);
    if (n >= before) kept.seconds[graph.regions().Of(node.name)] += cost.Seconds(n);
    if (!IsGradient(node.phase)) continue;
    for (int v : node.in) {
      v = graph.BehindViews(v);
      const Node& maker = graph.producer(v);
      if (counted[v] || maker.phase != Phase::kForward || IsEnd(maker)) continue;
      counted[v] = true;
      const Value& value = graph.value(v);
      kept.bytes[graph.regions().Of(node.name)] += LargestPieceBytes(value, value.sbp, sizes);
    }
  }
  return kept;
}

std::vector<WaitPrice> PricesOfWaits(const Graph& graph, const CompileOptions& options) {
  const Recompute otherwise = options.decided.recompute;
  std::vector<WaitPrice> prices;
  std::set<std::string> known{""};
  for (int n : graph.Order())
    if (const std::string region = graph.regions().Of(graph.node(n).name); known.insert(region).second)
      prices.push_back({region, graph.regions().SettingOf(region, otherwise)});
  for (const Recompute mode : kRecomputeModes) {
    Graph all = graph;
    for (const WaitPrice& price : prices) all.regions().Choose(price.region, mode);
    KeptOfRegions kept = KeptWith(std::move(all), options);
    for (WaitPrice& price : prices) {
      price.bytes[static_cast<size_t>(mode)] = kept.bytes[price.region];
      price.seconds[static_cast<size_t>(mode)] = kept.seconds[price.region];
    }
  }
  std::erase_if(prices, [](const WaitPrice& price) {
    return std::all_of(price.bytes.begin(), price.bytes.end(), [](double bytes) { return bytes == 0; });
  });
  return prices;
}

std::optional<double> SecondsOfAllKept(Graph graph, const CompileOptions& options) {
  std::set<std::string> regions;
  for (int n : graph.Order()) regions.insert(graph.regions().Of(graph.node(n).name));
  regions.erase("");
  const Recompute otherwise = options.decided.recompute;
  if (std::all_of(regions.begin(), regions.end(), [&](const std::string& region) {
        return graph.regions().SettingOf(region, otherwise) == Recompute::kNone;
      }))
    return {};
  for (const std::string& region : regions) graph.regions().Choose(region, Recompute::kNone);
  return CompileAfter(kBeforeWaits, std::move(graph), options).logical.makespan;
}

}  // namespace oneflow_like
